/**
 * Ink, and the small image of it that a model reads, made as the images of MNIST were.
 *
 * Ink is {values, width, height}: a Float32Array in rows, 0 for paper to 1 for full ink. A model's image is a
 * Float32Array of M rows of N pixels, on the same scale.
 */

const BOX = 20 / 28; // The part of the image that MNIST fits a digit's bounding box into.

/**
 * Ink scaled so that its bounding box just fits 20 x 20 of 28 x 28 pixels (the same parts of other sizes), then
 * moved so that its centre of mass lies at the middle. Each pixel is the mean of the ink it covers.
 *
 * Returns null where there is no ink.
 */
export function fitted(ink, M, N) {
  const rows = profile(ink, ink.height, (row) => row);
  const columns = profile(ink, ink.width, (row, column) => column);
  if (rows === null) return null;
  const step = Math.max((rows.end - rows.start) / (BOX * M), (columns.end - columns.start) / (BOX * N));
  const down = overlaps(windowStart(rows, step, M), step, M, ink.height);
  const across = overlaps(windowStart(columns, step, N), step, N, ink.width);

  const image = new Float32Array(M * N);
  const narrow = new Float32Array(N); // One row of the ink, at the image's width.
  for (let row = rows.start; row < rows.end; row++) {
    across.forEach(({ first, parts }, j) => {
      let sum = 0;
      for (let k = 0; k < parts.length; k++) sum += parts[k] * ink.values[row * ink.width + first + k];
      narrow[j] = sum;
    });
    down.forEach(({ first, parts }, i) => {
      const part = parts[row - first];
      if (part > 0) for (let j = 0; j < N; j++) image[i * N + j] += part * narrow[j];
    });
  }
  return image;
}

/** Along one side: where the ink starts, where it ends, and its centre of mass; null if there is none. */
function profile(ink, length, coordinate) {
  const sums = new Float64Array(length);
  for (let row = 0, index = 0; row < ink.height; row++) {
    for (let column = 0; column < ink.width; column++, index++) sums[coordinate(row, column)] += ink.values[index];
  }
  const start = sums.findIndex((sum) => sum > 0);
  if (start < 0) return null;
  const end = sums.findLastIndex((sum) => sum > 0) + 1;
  const mass = sums.reduce((total, sum) => total + sum, 0);
  const centre = sums.reduce((total, sum, i) => total + sum * (i + 0.5), 0) / mass;
  return { start, end, centre };
}

/** Where the image's first pixel starts in the ink, for `count` pixels of `step` each. */
function windowStart({ start, end, centre }, step, count) {
  // MNIST's centres of mass lie at the middle of pixel 14 of 0 to 27, half a pixel after the middle of the image.
  const centred = centre - (Math.floor(count / 2) + 0.5) * step;
  // No ink may fall off the image, however lopsided it is.
  return Math.min(Math.max(centred, end - count * step), start);
}

/** For each of `count` pixels: which values of a side it covers, and what part of the pixel each of them is. */
function overlaps(start, step, count, length) {
  return Array.from({ length: count }, (_, i) => {
    const from = start + i * step;
    const to = from + step;
    const first = Math.max(0, Math.floor(from));
    const parts = [];
    for (let k = first; k < Math.min(length, to); k++) {
      parts.push((Math.min(to, k + 1) - Math.max(from, k)) / step);
    }
    return { first, parts };
  });
}

/**
 * The ink in a picture (ImageData): how far a pixel's grey is from that of the paper, which is what the picture's
 * edge shows. So dark ink on light paper and the reverse are the same. The faintest quarter counts as paper.
 */
export function inkOf(picture) {
  const { width, height } = picture;
  const grey = greyOf(picture);
  const edge = grey.filter((_, i) => {
    const row = Math.floor(i / width);
    const column = i % width;
    return row === 0 || column === 0 || row === height - 1 || column === width - 1;
  });
  const paper = edge.sort()[Math.floor(edge.length / 2)];
  const strength = grey.map((value) => Math.abs(value - paper));
  const strongest = strength.reduce((most, value) => Math.max(most, value), 0) || 1;
  const values = strength.map((value) => Math.max(0, (value / strongest - 0.25) / 0.75));
  return { values, width, height };
}

/** The grey of a picture (ImageData) over white, 0 for black to 1 for white, as Rec. 601 weighs the colours. */
export function greyOf({ data, width, height }) {
  return Float32Array.from({ length: width * height }, (_, i) => {
    const alpha = data[4 * i + 3] / 255;
    const grey = (0.299 * data[4 * i] + 0.587 * data[4 * i + 1] + 0.114 * data[4 * i + 2]) / 255;
    return grey * alpha + 1 - alpha;
  });
}
