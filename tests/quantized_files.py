"""Quantized TFLite files and files with the exporter's note, for the tests of what runs such files."""

import flatbuffers
import numpy as np
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema

from keras_bilinear.inference_graph import inference_graph

INT16X8 = tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8


def write_quantized(model, path, images, dtype, input_scale=None):
    """A fully quantized file with inputs and outputs of `dtype`, calibrated on `images`."""
    module, serve = inference_graph(model, "merged", "probabilities", input_scale).traced(1)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([serve], module)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([image[np.newaxis]] for image in images.astype("float32"))
    converter.target_spec.supported_ops = [INT16X8 if dtype == tf.int16 else tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = dtype
    path.write_bytes(converter.convert())


def add_metadata(path, text):
    """Adds the exporter's note to a file."""
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    buffer, entry = schema.BufferT(), schema.MetadataT()
    buffer.data = np.frombuffer(text.encode(), np.uint8)
    entry.name, entry.buffer = "keras_bilinear", len(model.buffers)
    model.buffers.append(buffer)
    model.metadata.append(entry)
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
