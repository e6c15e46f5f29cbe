/** A file of keras_bilinear, run by LiteRT.js in WebAssembly. */

import { isTFLite, metadata } from "./metadata.js";

/** What is wrong with a file, in words for the person who chose it. */
export class ModelError extends Error {}

let runtime = null;

/** LiteRT.js, loaded once. */
function litert() {
  runtime ??= start();
  return runtime;
}

async function start() {
  const core = await import("@litertjs/core").catch(() => {
    throw new ModelError("LiteRT.js is not there. Run “npm install” in the folder of this page, then reload.");
  });
  // Emscripten's own hook: the runtime's log would otherwise fill the console with errors that are none.
  globalThis.Module = { printErr: (line) => (/^(INFO|WARNING)/.test(line) ? console.debug(line) : console.error(line)) };
  await core.loadLiteRt(new URL("../wasm/", import.meta.resolve("@litertjs/core")).href);
  return core;
}

export class Classifier {
  #core;
  #model;
  #shape;
  #output;
  #range;

  /** Loads a file (Uint8Array). Throws a ModelError that names it if this page cannot run it. */
  static async load(bytes, name) {
    if (!isTFLite(bytes)) throw new ModelError(`${name} is not a TFLite file.`);
    const core = await litert();
    const model = await core.loadAndCompile(bytes, { accelerator: "wasm" }).catch((error) => {
      throw new ModelError(refusal(name, error));
    });
    try {
      const classifier = new Classifier(core, model, bytes, name);
      await classifier.classify(new Float32Array(classifier.M * classifier.N)); // The first run is the slow one.
      return classifier;
    } catch (error) {
      model.delete();
      throw error;
    }
  }

  constructor(core, model, bytes, name) {
    const { shape, K, output } = signature(model, name);
    const { input_range, labels, quantize } = entry(bytes, name);
    const classes = Math.max(K, 2);
    if (labels && labels.length !== classes) {
      throw new ModelError(`${name} has ${labels.length} labels for ${classes} classes.`);
    }
    this.#core = core;
    this.#model = model;
    this.#shape = shape;
    this.#output = output;
    this.#range = input_range ?? [0, 1];
    [, this.M, this.N] = shape;
    this.name = name;
    this.bytes = bytes.length;
    this.quantize = quantize ?? "float32";
    this.labels = labels ?? Array.from({ length: classes }, (_, k) => String(k));
  }

  /**
   * Pixels (Float32Array of M x N, 0 to 1) to probabilities of the classes in order, and the milliseconds that
   * LiteRT.js took. A binary model's one score p becomes 1 - p and p.
   */
  async classify(pixels) {
    const [low, high] = this.#range;
    const start = performance.now();
    const image = new this.#core.Tensor(
      pixels.map((pixel) => low + (high - low) * pixel),
      this.#shape,
    );
    const results = await this.#model.run([image]).finally(() => image.delete());
    const scores = [...(await results[0].data())];
    results[0].delete();
    const milliseconds = performance.now() - start;
    return { probabilities: probabilities(scores, this.#output), milliseconds };
  }

  delete() {
    this.#model.delete();
  }
}

/** Shape of the image, number of scores and name of the output, if this page can run the file's signature. */
function signature(model, name) {
  const [image, ...otherInputs] = model.getInputDetails();
  const [scores, ...otherOutputs] = model.getOutputDetails();
  const single = otherInputs.length === 0 && otherOutputs.length === 0;
  const named = image?.name === "image" && ["probabilities", "logits"].includes(scores?.name);
  const grey = image?.shape.length === 3 || (image?.shape.length === 4 && image.shape[3] === 1);
  if (!single || !named || !grey || scores.shape.length !== 2) {
    const described = [...model.getInputDetails(), "to", ...model.getOutputDetails()]
      .map((tensor) => (tensor === "to" ? tensor : `${tensor.name} (${[...tensor.shape].join(" × ")})`))
      .join(" ");
    throw new ModelError(`${name} is another kind of model: it maps ${described}, not one grey image to its classes.`);
  }
  if (image.dtype !== "float32" || scores.dtype !== "float32") throw new ModelError(notFloat(name, image.dtype));
  const [batch] = image.shape;
  if (batch !== 1) {
    const received = batch < 0 ? "any number of images" : `${batch} images`;
    throw new ModelError(
      `${name} takes ${received} at a time, and the web runtime needs exactly one. Export it with batch_size=1.`,
    );
  }
  return { shape: [...image.shape], K: scores.shape[1], output: scores.name };
}

function entry(bytes, name) {
  try {
    return metadata(bytes);
  } catch {
    throw new ModelError(`${name} is damaged: its metadata cannot be read.`);
  }
}

function refusal(name, error) {
  const type = /Element type (\w+) is not supported/.exec(error.message);
  if (type) return notFloat(name, type[1].toLowerCase());
  if (error.message.includes("Failed to load model")) return `${name} is damaged or incomplete.`;
  if (error instanceof WebAssembly.RuntimeError) {
    return `${name} is damaged, and it stopped LiteRT.js. Reload this page before you open another model.`;
  }
  return `LiteRT.js cannot run ${name}: ${error.message}`;
}

function notFloat(name, type) {
  return `${name} takes or gives ${type} numbers, and this page needs float32. Export it with float32 input and output.`;
}

function probabilities(scores, output) {
  if (scores.length === 1) {
    const p = output === "logits" ? 1 / (1 + Math.exp(-scores[0])) : scores[0];
    return [1 - p, p];
  }
  if (output === "probabilities") return scores;
  const largest = Math.max(...scores);
  const weights = scores.map((score) => Math.exp(score - largest));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => weight / total);
}
