"""The bilinear layers of a model, however deep, and what else its variables tell."""

import keras
import numpy as np

from keras_bilinear.parts.factored_layer import SMALL_FILES, FactoredLayer
from keras_bilinear.parts.layers import BilinearDense


def factored_layers(model: keras.Model) -> list[FactoredLayer]:
    """The built layers with bilinear factors, those within other layers and models included, in order."""
    owners = (getattr(weight, "bilinear_layer", None) for weight in model.weights)
    return list(dict.fromkeys(layer for layer in owners if layer is not None))


def named_factored_layers(model: keras.Model) -> dict[str, FactoredLayer]:
    """The layers with factors by name; those of models within the model may share one, and are numbered then."""
    named: dict[str, FactoredLayer] = {}
    for layer in factored_layers(model):
        name, number = layer.name, 2
        while name in named:
            name, number = f"{layer.name}_{number}", number + 1
        named[name] = layer
    return named


def named_layers(model: keras.Model) -> dict[str, BilinearDense]:
    """Those of them whose outputs have filters W_k, by the same names."""
    layers = named_factored_layers(model).items()
    return {name: layer for name, layer in layers if isinstance(layer, BilinearDense)}


def refuse_quantized(model: keras.Model) -> None:
    """Raises a ValueError if Keras' `quantize` has changed a layer of the model, however deep, or LoRA its `head`.

    Known by their variables: codes in whole numbers of 8 bits, or for float8 records of the largest values.
    """
    codes = (v for v in model.variables if v.dtype in ("int8", "uint8") or v.name.endswith("amax_history"))
    found = [f"{variable.path}, quantised by Keras" for variable in codes]
    if getattr(getattr(model, "head", None), "lora_enabled", False):
        found.append("weights under LoRA")
    if model.quantization_mode is not None:
        found.append(f"the dtype policy {model.dtype_policy.name}")
    if found:
        raise ValueError(f"Expected floating-point weights as fitted; {SMALL_FILES}. Received: {found[0]}")


def parameter_count(model: keras.Model) -> int:
    """How many numbers training determines."""
    return sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)
