/** A canvas to draw on with mouse, touch, pen or keyboard. Its ink is the opacity of its pixels. */

const LONG_SIDE = 640; // Canvas pixels; enough for models of up to about 200 pixels a side.
const PEN = 1 / 11; // Of the long side: a digit of usual size then has about as much ink as in MNIST.
const INK = "#1c2530"; // Only its opacity counts; in dark schemes the style sheet inverts it.
const KEY_STEP = 1 / 28;
const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Sends the events "change" when its ink changes and "settle" when a stroke or a picture is complete. */
export class Pad extends EventTarget {
  #canvas;
  #cursor;
  #context;
  #pointer = null; // The one that draws; further fingers are ignored.
  #last = null; // Where the stroke is, in canvas pixels.
  #pen = { x: 0.5, y: 0.5, down: false }; // Of the keyboard, in parts of the sides.
  empty = true;

  /** `cursor`: the element that shows where the keyboard's pen is. */
  constructor(canvas, cursor) {
    super();
    this.#canvas = canvas;
    this.#cursor = cursor;
    this.#context = canvas.getContext("2d", { willReadFrequently: true });
    this.shape(1, 1);
    canvas.addEventListener("pointerdown", (event) => this.#press(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#release(event));
    canvas.addEventListener("pointercancel", (event) => this.#release(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Takes the proportions of an image of M rows and N columns; a pad of other proportions is cleared. */
  shape(M, N) {
    const unit = LONG_SIDE / Math.max(M, N);
    const [width, height] = [Math.round(N * unit), Math.round(M * unit)];
    if (this.#canvas.width === width && this.#canvas.height === height && !this.empty) return;
    this.#canvas.width = width;
    this.#canvas.height = height;
    this.#canvas.parentElement.style.setProperty("--aspect", width / height);
    this.clear();
  }

  clear() {
    this.#context.clearRect(0, 0, this.#canvas.width, this.#canvas.height);
    this.#last = null;
    this.empty = true;
    this.#placeCursor();
    this.#changed("change", "settle");
  }

  /** What is drawn: {values, width, height}, 0 for paper to 1 for ink. */
  ink() {
    const { width, height } = this.#canvas;
    const { data } = this.#context.getImageData(0, 0, width, height);
    const values = new Float32Array(width * height);
    for (let i = 0; i < values.length; i++) values[i] = data[4 * i + 3] / 255;
    return { values, width, height };
  }

  /** Replaces what is drawn by other ink, as large as fits; `sharp` keeps the edges of its pixels. */
  show({ values, width, height }, sharp) {
    const small = new OffscreenCanvas(width, height);
    const pixels = new ImageData(width, height);
    values.forEach((value, i) => (pixels.data[4 * i + 3] = Math.round(255 * value)));
    const picture = small.getContext("2d");
    picture.putImageData(pixels, 0, 0);
    picture.globalCompositeOperation = "source-in"; // The colour of ink, at the opacity that is there.
    picture.fillStyle = INK;
    picture.fillRect(0, 0, width, height);
    const scale = Math.min(this.#canvas.width / width, this.#canvas.height / height);
    const [w, h] = [width * scale, height * scale];
    const context = this.#context;
    context.clearRect(0, 0, this.#canvas.width, this.#canvas.height);
    context.imageSmoothingEnabled = !sharp;
    context.drawImage(small, (this.#canvas.width - w) / 2, (this.#canvas.height - h) / 2, w, h);
    this.empty = false;
    this.#changed("change", "settle");
  }

  #press(event) {
    if (event.button !== 0 || this.#pointer !== null) return;
    this.#pointer = event.pointerId;
    this.#pen.down = false;
    this.#placeCursor();
    this.#canvas.setPointerCapture(event.pointerId);
    this.#last = this.#position(event);
    this.#line(this.#last); // A tap is a dot.
  }

  #move(event) {
    if (event.pointerId !== this.#pointer) return;
    const events = event.getCoalescedEvents?.() ?? [];
    for (const each of events.length > 0 ? events : [event]) this.#line(this.#position(each));
  }

  #release(event) {
    if (event.pointerId !== this.#pointer) return;
    this.#pointer = null;
    this.#changed("settle");
  }

  #position(event) {
    const { left, top, width, height } = this.#canvas.getBoundingClientRect();
    return [
      ((event.clientX - left) / width) * this.#canvas.width,
      ((event.clientY - top) / height) * this.#canvas.height,
    ];
  }

  #line(to) {
    const context = this.#context;
    context.strokeStyle = INK;
    context.lineWidth = PEN * LONG_SIDE;
    context.lineCap = "round";
    context.beginPath();
    context.moveTo(...(this.#last ?? to));
    context.lineTo(...to);
    context.stroke();
    this.#last = to;
    this.empty = false;
    this.#changed("change");
  }

  #key(event) {
    const pen = this.#pen;
    const direction = DIRECTIONS[event.key];
    if (direction) {
      pen.x = Math.min(Math.max(pen.x + KEY_STEP * direction[0], 0), 1);
      pen.y = Math.min(Math.max(pen.y + KEY_STEP * direction[1], 0), 1);
      if (pen.down) this.#line(this.#penPosition());
    } else if (event.key === " ") {
      pen.down = !pen.down;
      this.#last = pen.down ? this.#penPosition() : null;
      if (pen.down) this.#line(this.#last);
      else this.#changed("settle");
    } else if (["Escape", "Delete", "Backspace"].includes(event.key)) {
      pen.down = false;
      this.clear();
    } else {
      return;
    }
    event.preventDefault(); // Neither arrows nor space scroll the page.
    this.#placeCursor();
  }

  #penPosition() {
    return [this.#pen.x * this.#canvas.width, this.#pen.y * this.#canvas.height];
  }

  #placeCursor() {
    this.#cursor.style.left = `${100 * this.#pen.x}%`;
    this.#cursor.style.top = `${100 * this.#pen.y}%`;
    this.#cursor.classList.toggle("down", this.#pen.down);
  }

  #changed(...events) {
    for (const event of events) this.dispatchEvent(new Event(event));
  }
}
