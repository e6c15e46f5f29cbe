"""The C++ sources of a model: its bytes, its constants, and how TensorFlow Lite Micro runs it."""

import re
import zlib

import numpy as np

from keras_bilinear_export.micro_model import RESOLVER_METHODS, MicroModel

BYTES_A_LINE = 16
KNOWN = 3
"""Images whose scores the firmware carries."""
TOLERANCE = 0.02
"""Of the largest known score: some five steps of int8."""
STORED = {
    "float32": ("float", "f"),
    "int8": ("int8_t", "int8"),
    "uint8": ("uint8_t", "uint8"),
    "int16": ("int16_t", "i16"),
}
"""C++ type of a tensor's numbers, and the member of `TfLiteTensor.data` that points to them."""


def checked_prefix(name: str) -> str:
    """`name` if every identifier that starts with it and an underscore is a valid one, or a ValueError.

    No keyword is among those. A leading underscore or two in a row would be reserved in C++.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*", name, re.ASCII):
        raise ValueError(
            "Expected `name` to start C++ identifiers: letters a to z, digits and single underscores between them, "
            f"a letter first. Received: name={name!r}"
        )
    return name


def header(model: MicroModel, prefix: str, arena: int) -> str:
    """NAME_model.h: what the firmware sees. `arena`: the bytes measured with the reference kernels."""
    M, N = model.image_size
    low, high = model.input_range
    guard = f"{prefix}_MODEL_H_"  # not in upper case: names may differ in case alone
    names = ""
    if model.labels is not None:
        listed = "".join(f"    {c_string(label)},\n" for label in model.labels)
        names = f"constexpr const char* {prefix}_labels[] = {{\n{listed}}};\n\n"
    return f"""\
// An image classifier for TensorFlow Lite Micro. Generated: write it anew rather than edit it.
#ifndef {guard}
#define {guard}

#include <stddef.h>
#include <stdint.h>

// The TFLite file.
constexpr size_t {prefix}_model_size = {len(model.content)};
extern const unsigned char {prefix}_model[{prefix}_model_size];

// Of the file, and known to the other sources: they do not compile with the header of another file.
constexpr uint32_t {prefix}_model_crc = {crc(model)};

// The image, row by row, and the number of scores.
constexpr int {prefix}_rows = {M};
constexpr int {prefix}_columns = {N};
constexpr int {prefix}_classes = {model.classes};

// The least and the largest pixel that the file expects.
constexpr float {prefix}_input_low = {c_float(low)};
constexpr float {prefix}_input_high = {c_float(high)};

// value = (stored number - zero point) * scale
constexpr float {prefix}_input_scale = {c_float(model.image.scale)};
constexpr int {prefix}_input_zero_point = {model.image.zero_point};
constexpr float {prefix}_output_scale = {c_float(model.output.scale)};
constexpr int {prefix}_output_zero_point = {model.output.zero_point};

// Measured: {arena}, with the reference kernels and 64-bit pointers. CMSIS-NN on DSP cores: {model.scratch} more.
constexpr size_t {prefix}_arena_size = {arena + model.scratch};

{names}// Prepares the interpreter, once; false if the arena is too small for the kernels of this firmware.
bool {prefix}_setup();

// Scores of one image of {M} x {N} camera pixels, 0 to 255, which are spread over the file's range; after setup.
bool {prefix}_classify(const uint8_t* pixels, float* scores);

// Images of camera pixels, and the scores that the file gave them where this was written.
constexpr int {prefix}_known = {KNOWN};
extern const uint8_t {prefix}_known_images[{prefix}_known][{prefix}_rows * {prefix}_columns];
extern const float {prefix}_known_scores[{prefix}_known][{prefix}_classes];

// Whether those images get those scores here, but for the rounding of other kernels; once, after setup.
bool {prefix}_check();

#endif  // {guard}
"""


def data(model: MicroModel, prefix: str) -> str:
    """NAME_model.cc: the bytes of the file, aligned as a flatbuffer that is read in place must be."""
    return f"""\
#include "{prefix}_model.h"

{same_model(model, prefix)}
alignas(16) const unsigned char {prefix}_model[{prefix}_model_size] = {{
{listed(model.content)}
}};
"""


def listed(content: bytes) -> str:
    """Bytes as the numbers of an array."""
    lines = [content[start : start + BYTES_A_LINE] for start in range(0, len(content), BYTES_A_LINE)]
    return "\n".join("    " + " ".join(f"0x{byte:02x}," for byte in line) for line in lines)


def example(model: MicroModel, prefix: str) -> str:
    """NAME_classify.cc: the resolver with the file's own operators, setup and classification."""
    methods = [RESOLVER_METHODS[operator] for operator in model.operators]
    added = " ||\n      ".join(f"resolver.{method}() != 0" for method in methods)
    image, member = STORED[model.image.dtype.name]
    output, output_member = STORED[model.output.dtype.name]
    return f"""\
#include "{prefix}_model.h"

#include <math.h>

#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"

{same_model(model, prefix)}
// Newer releases hold the classes in tflite::micro, older ones in tflite.
namespace tflite {{
namespace micro {{}}
}}  // namespace tflite
using namespace tflite;
using namespace tflite::micro;

namespace {{

alignas(16) uint8_t arena[{prefix}_arena_size];
MicroInterpreter* interpreter = nullptr;

{stored_pixel(model, prefix, image)}
}}  // namespace

// A status of 0 is kTfLiteOk, in whichever namespace that is.
bool {prefix}_setup() {{
  if (interpreter != nullptr) return true;
  static MicroMutableOpResolver<{len(methods)}> resolver;
  if ({added}) {{
    return false;
  }}
  static MicroInterpreter prepared(GetModel({prefix}_model), resolver, arena, {prefix}_arena_size);
  if (prepared.AllocateTensors() != 0) return false;
  interpreter = &prepared;
  return true;
}}

bool {prefix}_classify(const uint8_t* pixels, float* scores) {{
  if (interpreter == nullptr) return false;
  {image}* input = interpreter->input(0)->data.{member};
  for (int i = 0; i < {prefix}_rows * {prefix}_columns; ++i) input[i] = stored(pixels[i]);
  if (interpreter->Invoke() != 0) return false;
  const {output}* output = interpreter->output(0)->data.{output_member};
  for (int k = 0; k < {prefix}_classes; ++k) {{
    scores[k] = (output[k] - {prefix}_output_zero_point) * {prefix}_output_scale;
  }}
  return true;
}}
"""


def check(model: MicroModel, prefix: str, images: np.ndarray, scores: np.ndarray) -> str:
    """NAME_check.cc: known images, uint8 (KNOWN, M, N), and the scores (KNOWN, K) that they must get."""
    # Never none at all, for float32 rounds in the order that a kernel adds in.
    tolerance = max(TOLERANCE * float(np.abs(scores).max()), 1e-6)
    pixels = "},\n    {".join(f"\n{listed(image.tobytes())}" for image in images)
    known = "},\n    {".join(", ".join(map(c_float, row)) for row in scores)
    return f"""\
#include "{prefix}_model.h"

#include <math.h>

{same_model(model, prefix)}
const uint8_t {prefix}_known_images[{prefix}_known][{prefix}_rows * {prefix}_columns] = {{
    {{{pixels}}}}};

const float {prefix}_known_scores[{prefix}_known][{prefix}_classes] = {{
    {{{known}}}}};

bool {prefix}_check() {{
  // Other kernels may round otherwise; wrong ones are far off.
  constexpr float tolerance = {c_float(tolerance)};
  float scores[{prefix}_classes];
  for (int t = 0; t < {prefix}_known; ++t) {{
    if (!{prefix}_classify({prefix}_known_images[t], scores)) return false;
    for (int k = 0; k < {prefix}_classes; ++k) {{
      // NaN is no difference that is small.
      if (!(fabsf(scores[k] - {prefix}_known_scores[t][k]) <= tolerance)) return false;
    }}
  }}
  return true;
}}
"""


def crc(model: MicroModel) -> str:
    """The checksum of the file, as a literal."""
    return f"0x{zlib.crc32(model.content):08x}u"


def same_model(model: MicroModel, prefix: str) -> str:
    """A line that does not compile with the header of another model."""
    return f"""\
static_assert({prefix}_model_crc == {crc(model)}, "{prefix}_model.h is of another model: write all files anew");
"""


def stored_pixel(model: MicroModel, prefix: str, kind: str) -> str:
    """The function from a camera's pixel to a number of the input, in the steps of `Tensor.quantized`."""
    value = f"{prefix}_input_low + pixel * (({prefix}_input_high - {prefix}_input_low) / 255)"
    if model.image.dtype == np.float32:
        return f"""\
float stored(uint8_t pixel) {{
  return {value};
}}
"""
    ends = np.iinfo(model.image.dtype)
    return f"""\
{kind} stored(uint8_t pixel) {{
  const float value = {value};
  const float step = floorf(value / {prefix}_input_scale + 0.5f) + {prefix}_input_zero_point;
  return static_cast<{kind}>(step < {ends.min} ? {ends.min} : step > {ends.max} ? {ends.max} : step);
}}
"""


def c_float(number: float | np.float32) -> str:
    """A float literal that reads back as the same float32."""
    return f"{float(number):.8e}f"


def c_string(text: str) -> str:
    """A string literal in ASCII: every byte of the UTF-8 text that is no plain character in octal.

    Octal escapes end after three digits, whatever follows; a plain question mark could start a trigraph.
    """
    plain = {byte: chr(byte) for byte in range(0x20, 0x7F) if chr(byte) not in '"\\?'}
    return '"' + "".join(plain.get(byte, f"\\{byte:03o}") for byte in text.encode()) + '"'
