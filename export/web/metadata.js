/**
 * The entry `keras_bilinear` of a TFLite file's metadata: JSON with the file's input range, labels and more.
 *
 * A TFLite file is a flatbuffer. In one, a table points back to its vtable, which tells where each field lies;
 * strings, vectors and tables are reached through relative offsets. All numbers are little-endian.
 */

// Places of the fields in the tables of the TFLite schema.
const MODEL_BUFFERS = 4;
const MODEL_METADATA = 6;
const METADATA_NAME = 0;
const METADATA_BUFFER = 1;
const BUFFER_DATA = 0;

/** Whether the bytes (Uint8Array) begin as every TFLite file does. */
export function isTFLite(bytes) {
  return new TextDecoder().decode(bytes.subarray(4, 8)) === "TFL3";
}

/**
 * What the entry holds, or {} if the file has none.
 *
 * Throws a RangeError where an offset leads out of the file, and a SyntaxError where the entry is no JSON.
 */
export function metadata(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const model = follow(view, 0);
  for (const entry of tables(view, field(view, model, MODEL_METADATA))) {
    if (text(view, field(view, entry, METADATA_NAME)) !== "keras_bilinear") continue;
    const number = field(view, entry, METADATA_BUFFER);
    const index = number === null ? 0 : view.getUint32(number, true); // Zero is the default, which is not written.
    const buffer = tables(view, field(view, model, MODEL_BUFFERS))[index];
    return JSON.parse(text(view, field(view, buffer, BUFFER_DATA)));
  }
  return {};
}

/** Where a table's field lies, or null if it is absent. */
function field(view, table, index) {
  const vtable = table - view.getInt32(table, true);
  const slot = 4 + 2 * index;
  const offset = slot < view.getUint16(vtable, true) ? view.getUint16(vtable + slot, true) : 0;
  return offset === 0 ? null : table + offset;
}

function follow(view, position) {
  return position + view.getUint32(position, true);
}

/** The tables in a vector of them. */
function tables(view, position) {
  if (position === null) return [];
  const vector = follow(view, position);
  return Array.from({ length: view.getUint32(vector, true) }, (_, i) => follow(view, vector + 4 + 4 * i));
}

/** A string, or a vector of bytes that holds one. */
function text(view, position) {
  if (position === null) return "";
  const vector = follow(view, position);
  const bytes = new Uint8Array(view.buffer, view.byteOffset + vector + 4, view.getUint32(vector, true));
  return new TextDecoder().decode(bytes);
}
