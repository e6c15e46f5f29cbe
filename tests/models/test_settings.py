"""The settings of models and layers: refused as they are given, and the same after a file has been loaded."""

import json
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from tests.files import dtype_policy
from tests.four_models import MODELS

LAYER = {"layer": lambda **o: kb.BilinearDense(3, 2, **o)}

SHAPES = [
    (4, 3, 5),
    (4, 3, 2),
    (4.5, 3.5),
    (4.0, 3.0),
    (4, 0),
    (-4, 3),
    (4, None),
    (None, 3, 1),
    ("4", "3"),
    "43",
    b"43",
    (4,),
    4,
    ((4, 3),),
    [[4, 3], [4, 3]],
    (2, 4, 3, 1),
    {4, 3},
    {4: 1, 3: 1},
    (True, 3),
    (4, 3, True),
    (4, 2**31),
    np.array([4.0, 3.0]),
    tf.TensorShape(None),
    (),
]
PRECISIONS = [
    "int32",
    "bool",
    "uint8",
    "complex64",
    "string",
    np.int64,
    tf.bool,
    keras.DTypePolicy("int32"),
    "int8_from_float32",
    "int8_from_mixed_bfloat16",
    "float8_from_float32",
    "float33",
    5,
]
NO_TRUTH_VALUES = ["False", "", 0, 1, None, [], np.array([True]), 0.0, b"1"]
NO_SEEDS = [1.5, "1", True, np.True_, b"1", 2**63, -(2**63) - 1, [1], np.array([1]), Fraction(1), float("nan")]
NO_NAMES = [5, b"name", 1.5, "a/b", ["name"]]


def cases(models, **settings):
    return [(kind, name, value) for kind in models for name, values in settings.items() for value in values]


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *cases(MODELS, input_shape=SHAPES),
        *cases(MODELS | LAYER, dtype=PRECISIONS, use_bias=NO_TRUTH_VALUES, name=NO_NAMES),
        *cases(("BSR", "BLR"), seed=NO_SEEDS),
    ],
)
def test_faulty_settings_are_refused_before_anything_is_created(kind, name, value, monkeypatch):
    def created(*_, **__):
        raise AssertionError("a variable was created")

    monkeypatch.setattr(keras.layers.Layer, "add_weight", created)
    with pytest.raises(ValueError, match=r"Received|Cannot"):
        (MODELS | LAYER)[kind](**{name: value})


@pytest.mark.parametrize("seed", NO_SEEDS)
def test_seeds_of_initializers(seed):
    with pytest.raises(ValueError, match="`seed`"):
        kb.OrthogonalizedUniform(seed)


def test_a_generator_is_no_seed():
    """Each rank would draw factors of its own, which are not orthogonal to the others."""
    with pytest.raises(ValueError, match="`seed`"):
        kb.OrthogonalizedUniform(keras.random.SeedGenerator(1))


@pytest.mark.parametrize("kind", MODELS | LAYER)
def test_a_global_policy_is_no_way_around(kind):
    with dtype_policy("int8_from_float32"), pytest.raises(ValueError, match="`dtype`"):
        (MODELS | LAYER)[kind]()


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_is_built_for_images_alone(kind):
    model = MODELS[kind]()
    for shape in ((None, 4, 3, 5), (None, 2, 4, 3, 1), (None, 4, 3, None)):
        for use in (model.build, model.compute_output_shape):
            with pytest.raises(ValueError, match="Expected"):
                use(shape)
    assert not model.built
    model.build((None, 4, 3, 1))
    assert model.image_size == (4, 3)


@pytest.mark.parametrize("settings", [{"dtype": "int32"}, {"dtype": "float16"}, {"use_bias": True}])
def test_networks_take_no_setting_that_they_would_ignore(settings):
    image = keras.Input((4, 3))
    with pytest.raises(ValueError, match="Expected `inputs`, `outputs`, `name`, `alternate` and `trainable`"):
        kb.AlternatingModel(image, kb.BilinearDense(3, 1)(image), **settings)


TAKEN = {
    "alpha": [0, 3.4e38, 1.2e-38, Fraction(1, 3), Decimal("0.1"), np.float16(0.1), np.array(0.1), tf.constant(0.1)],
    "use_bias": [np.True_, False],
    "input_shape": [[4, 3], (4, 3, 1), np.array([4, 3]), tf.TensorShape([4, 3, 1])],
    "dtype": ["float16", "float64", "mixed_bfloat16", np.float64, tf.bfloat16, keras.DTypePolicy("mixed_float16")],
    "name": ["über", None, np.str_("name")],
}
BILINEAR = {
    "seed": [0, -1, 2**63 - 1, -(2**63) + 1, np.int64(5), np.uint32(2**32 - 1), None],
    "penalty": ["sum", "frobenius", np.str_("product")],
}


def settings(number, kind):
    """One value of each setting; over 8 models all of them."""
    taken = TAKEN | BILINEAR if kind in ("BSR", "BLR") else TAKEN
    return {name: values[number % len(values)] for name, values in taken.items()}


def test_every_setting_is_the_same_in_another_process(tmp_path):
    kinds = ("BSR", "LLR", "BLR", "BSR", "LSR", "BSR", "BLR", "BLR")
    models = [MODELS[kind](**settings(number, kind)) for number, kind in enumerate(kinds)]
    models += [
        kb.BilinearSoftmaxRegression(np.int32(3), "auto", 0.1, "sum", input_shape=(np.int16(4), 3)),
        keras.Sequential(
            [keras.Input((4, 3)), LAYER["layer"](factor_penalty=kb.penalties.Sum(0.1), name=np.str_("u"))]
        ),
    ]
    models[0].compile(kb.BlockLineSearch("newton_cg", "side", max_inner=2**31 - 1, tolerance=3.4e38))
    models[1].compile(kb.BlockLineSearch(max_inner=np.int64(1), tolerance=Fraction(1, 7)))
    for number, model in enumerate(models):
        model.save(tmp_path / f"{number}.keras")
    script = (
        "import sys, json, keras, keras_bilinear\n"
        "for number in range(int(sys.argv[2])):\n"
        "    model = keras.models.load_model(f'{sys.argv[1]}/{number}.keras')\n"
        "    optimizer = getattr(model, 'optimizer', None)\n"
        "    kept = model.get_config(), optimizer and optimizer.get_config()\n"
        "    print(json.dumps(keras.saving.serialize_keras_object(kept), sort_keys=True))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(len(models))]
    lines = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True).stdout.splitlines()
    for model, line in zip(models, lines, strict=True):
        optimizer = getattr(model, "optimizer", None)
        kept = model.get_config(), optimizer and optimizer.get_config()
        assert json.loads(line) == json.loads(json.dumps(keras.saving.serialize_keras_object(kept), sort_keys=True))
