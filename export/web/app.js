/** The page: what is drawn or opened goes to the model, and the model's answer to the page. */

import { Classifier, ModelError } from "./classifier.js";
import { fitted, greyOf, inkOf } from "./image.js";
import { Pad } from "./pad.js";

const LONGEST_PICTURE = 640; // Pixels a side; larger pictures are scaled down first.
const TIMINGS = 30; // Images the shown latency is a mean of: browsers round single timings.

const element = (id) => document.getElementById(id);
const pad = new Pad(element("pad"), element("cursor"));

let classifier = null;
let given = null; // The pixels of a picture that has the model's own size, as long as it is what is shown.
let requested = false;
let announced = true;
let latency = { mean: 0, count: 0 };
let work = Promise.resolve(); // Loading and classifying take turns, so no model is deleted while it runs.

/** Pixels (M x N, 0 to 1) to {probabilities, milliseconds} of the model that is loaded. */
export function classify(pixels) {
  return inTurn(() => classifier.classify(pixels));
}

/** Settles when the first model is loaded, or could not be. */
export const ready = loadFromServer(new URLSearchParams(location.search).get("model") ?? "digits.tflite");

function inTurn(task) {
  const result = work.then(task);
  work = result.catch(() => {});
  return result;
}

// Models ------------------------------------------------------------------------------------------------------

async function loadFromServer(path) {
  await attempt(async () => {
    // Without a question to the server the browser might run the file of yesterday.
    const response = await fetch(path, { cache: "no-cache" }).catch(() => null);
    if (!response?.ok) {
      throw new ModelError(`There is no ${path} beside this page yet. Put one there and reload, or open a model file.`);
    }
    await load(await response.arrayBuffer(), path.split("/").at(-1));
  });
}

function load(buffer, name) {
  return inTurn(async () => {
    const loaded = await Classifier.load(new Uint8Array(buffer), name);
    classifier?.delete();
    classifier = loaded;
    latency = { mean: 0, count: 0 };
    element("latency").textContent = "";
    showModel();
  });
}

/** Runs a task, and says in the page why it failed, if it does. What worked before keeps working. */
async function attempt(task) {
  element("message").hidden = true;
  try {
    await task();
  } catch (error) {
    complain(error);
  }
  request();
}

function complain(error) {
  if (!(error instanceof ModelError)) console.error(error);
  element("message").textContent = error.message;
  element("message").hidden = false;
}

// What is drawn or opened -------------------------------------------------------------------------------------

async function openPicture(file) {
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new ModelError(`${file.name} is neither a model nor a picture that this browser can read.`);
  });
  const isOfModelSize = classifier !== null && bitmap.width === classifier.N && bitmap.height === classifier.M;
  const picture = pictureOf(bitmap);
  if (isOfModelSize) {
    const pixels = greyOf(picture);
    pad.show({ values: pixels, width: bitmap.width, height: bitmap.height }, true);
    given = pixels;
  } else {
    const ink = inkOf(picture);
    if (!ink.values.some((value) => value > 0)) throw new ModelError(`There is no ink in ${file.name}.`);
    pad.show(ink, false);
  }
}

/** The pixels of a bitmap, scaled down to the longest side allowed. */
function pictureOf(bitmap) {
  const scale = Math.min(1, LONGEST_PICTURE / Math.max(bitmap.width, bitmap.height));
  const width = Math.max(1, Math.round(bitmap.width * scale));
  const height = Math.max(1, Math.round(bitmap.height * scale));
  const context = new OffscreenCanvas(width, height).getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  return context.getImageData(0, 0, width, height);
}

/** Asks for one refresh in the next frame, however many changes there are until then. */
function request() {
  if (requested) return;
  requested = true;
  requestAnimationFrame(() => {
    requested = false;
    refresh().catch(complain);
  });
}

async function refresh() {
  document.body.classList.toggle("empty", pad.empty);
  if (classifier === null) return;
  const pixels = pad.empty ? null : (given ?? fitted(pad.ink(), classifier.M, classifier.N));
  showImage(pixels);
  if (pixels === null) return showNothing();
  const { probabilities, milliseconds } = await classify(pixels);
  showLatency(milliseconds);
  showProbabilities(probabilities);
}

// What the page shows -----------------------------------------------------------------------------------------

function showModel() {
  const { M, N, labels, name, bytes, quantize } = classifier;
  pad.shape(M, N);
  element("image").width = N;
  element("image").height = M;
  element("bars").replaceChildren(...labels.map(bar));
  element("facts").textContent = [
    name,
    `${(bytes / 1000).toFixed(1)} kB`,
    quantize,
    `${M} × ${N} pixels`,
    `${labels.length} classes`,
  ].join(" · ");
  document.body.classList.add("loaded");
}

function bar(label) {
  const row = element("bar").content.cloneNode(true).firstElementChild;
  row.querySelector(".label").textContent = label;
  return row;
}

function showImage(pixels) {
  const { M, N } = classifier;
  const image = new ImageData(N, M);
  for (let i = 0; i < M * N; i++) {
    image.data.fill(Math.round(255 * (pixels?.[i] ?? 0)), 4 * i, 4 * i + 3);
    image.data[4 * i + 3] = 255;
  }
  element("image").getContext("2d").putImageData(image, 0, 0);
}

function showNothing() {
  element("class").textContent = "–";
  element("certainty").textContent = "Nothing drawn yet";
  element("announcement").textContent = "";
  announced = true;
  for (const row of element("bars").children) fill(row, null, false);
}

function showProbabilities(probabilities) {
  const top = probabilities.indexOf(Math.max(...probabilities));
  [...element("bars").children].forEach((row, k) => fill(row, probabilities[k], k === top));
  element("class").textContent = classifier.labels[top];
  element("class").classList.toggle("long", classifier.labels[top].length > 3);
  element("certainty").textContent = percent(probabilities[top]);
  if (!announced) element("announcement").textContent = `${classifier.labels[top]}, ${percent(probabilities[top])}`;
  announced = true;
}

function fill(row, probability, isTop) {
  row.classList.toggle("top", isTop);
  row.style.setProperty("--probability", probability ?? 0);
  row.querySelector(".percent").textContent = probability === null ? "–" : percent(probability);
}

function percent(probability) {
  return `${(100 * probability).toFixed(1)} %`;
}

function showLatency(milliseconds) {
  latency.count = Math.min(latency.count + 1, TIMINGS);
  latency.mean += (milliseconds - latency.mean) / latency.count;
  element("latency").textContent = `${latency.mean.toFixed(2)} ms for an image, in this browser`;
}

// Events ------------------------------------------------------------------------------------------------------

pad.addEventListener("change", () => {
  given = null;
  request();
});
pad.addEventListener("settle", () => {
  // A screen reader hears the answer to a stroke, not to each of its points.
  announced = false;
  request();
});

element("clear").addEventListener("click", () => pad.clear());

element("open-picture").addEventListener("change", ({ target }) => {
  const [file] = target.files;
  target.value = ""; // So that the same file can be opened again.
  if (file) attempt(() => openPicture(file));
});

element("open-model").addEventListener("change", ({ target }) => {
  const [file] = target.files;
  target.value = "";
  if (file) attempt(async () => load(await file.arrayBuffer(), file.name));
});

document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("dropping");
});
document.addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) document.body.classList.remove("dropping");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  const [file] = event.dataTransfer.files;
  if (!file) return;
  attempt(async () =>
    file.name.endsWith(".tflite") ? load(await file.arrayBuffer(), file.name) : openPicture(file),
  );
});
