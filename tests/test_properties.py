"""Whatever is given to a model is either computed as plain NumPy computes it, or refused with nothing changed.

Hypothesis draws arrays of every kind, labels, weights and options, good and bad ones, and an oracle in float64 says
what has to come out. `HYPOTHESIS_PROFILE=long pytest -n0 tests/test_properties.py` draws thousands of cases.
"""

import functools
import os
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keras_bilinear as kb

quiet = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("short", max_examples=20, derandomize=True, **quiet)
settings.register_profile("long", max_examples=int(os.environ.get("HYPOTHESIS_CASES", 1500)), **quiet)
PROFILE = settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))

M, N, L = 3, 4, 2
KINDS = {
    "BSR": lambda **o: kb.BilinearSoftmaxRegression(3, L, alpha=0.02, use_bias=True, seed=0, **o),
    "BLR": lambda **o: kb.BilinearLogisticRegression(L, alpha=0.02, penalty="sum", seed=0, **o),
    "BSR-frobenius": lambda **o: kb.BilinearSoftmaxRegression(3, L, 0.02, penalty="frobenius", seed=0, **o),
    "LSR": lambda **o: kb.LinearSoftmaxRegression(3, alpha=0.02, use_bias=True, **o),
    "LLR": lambda **o: kb.LinearLogisticRegression(alpha=0.02, **o),
}

GOOD_IMAGES = {
    "float64": lambda x: x,
    "float32": lambda x: x.astype("float32"),
    "float16": lambda x: x.astype("float16"),
    "bfloat16": lambda x: tf.cast(x, "bfloat16"),
    "uint8": lambda x: np.abs(3 * x).astype("uint8"),
    "int64": lambda x: np.round(x).astype("int64"),
    "bool": lambda x: x > 0,
    "list": lambda x: x.tolist(),
    "tensor": lambda x: tf.constant(x),
    "variable": lambda x: tf.Variable(x),
    "channel": lambda x: x[..., None],
    "fortran": lambda x: np.asfortranarray(x),
    "strided": lambda x: np.repeat(x, 2, axis=0)[::2][:, ::-1],
    "big endian": lambda x: x.astype(">f4"),
    "unmasked": lambda x: np.ma.masked_array(x, mask=False),
}
BAD_IMAGES = {
    "nan": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 3, np.nan, x),
    "infinite": lambda x: np.where(np.arange(x.size).reshape(x.shape) == x.size - 1, np.inf, x),
    "beyond float32": lambda x: x * 0 + 1e39,
    "colour": lambda x: np.stack([x] * 3, axis=-1),
    "transposed": lambda x: x.transpose(0, 2, 1),
    "flat": lambda x: x.reshape(len(x), -1),
    "single": lambda x: x[0],
    "none": lambda x: x[:0],
    "side by side": lambda x: np.concatenate([x, x], axis=2),
    "nested": lambda x: x[..., None, None],
    "complex": lambda x: x + 1j,
    "text": lambda x: x.astype(str),
    "object": lambda x: x.astype(object),
    "masked": lambda x: np.ma.masked_array(x, mask=x == x.max()),
    "ragged": lambda x: tf.ragged.constant([[[1.0, 2.0], [3.0]]] * len(x)),
    "a number": lambda x: 5,
    "nothing": lambda x: None,
}
GOOD_LABELS = {
    "int": lambda y, H: y,
    "uint8": lambda y, H: y.astype("uint8"),
    "float": lambda y, H: y.astype("float32"),
    "bfloat16": lambda y, H: tf.cast(y, "bfloat16"),
    "column": lambda y, H: y[:, None],
    "list": lambda y, H: y.tolist(),
    "tensor": lambda y, H: tf.constant(y),
    "rows": lambda y, H: H,
    "soft": lambda y, H: 0.7 * H + 0.3 * (H.shape[1] > 1) / H.shape[1] if H.shape[1] > 1 else y,
    "rounded": lambda y, H: H * np.float32(0.9993) if H.shape[1] > 1 else y,
}
BAD_LABELS = {
    "beyond": lambda y, H: y + 3,
    "negative": lambda y, H: -y - 1,
    "half": lambda y, H: y * 0 + 0.5,
    "bfloat16 part": lambda y, H: tf.cast(y * 0 + 0.9, "bfloat16"),
    "wrapped": lambda y, H: y + 2**32,
    "nan": lambda y, H: y * np.nan,
    "text": lambda y, H: y.astype(str),
    "short": lambda y, H: np.append(y, 0),
    "twice": lambda y, H: 2 * H + 2 * (H.shape[1] == 1),
    "nothing": lambda y, H: None,
    "wide": lambda y, H: np.zeros((len(y), 5)),
    "masked": lambda y, H: np.ma.masked_array(y, mask=np.arange(len(y)) == 0),
}
GOOD_WEIGHTS = {
    "none": lambda w: None,
    "float": lambda w: w,
    "int": lambda w: np.ceil(w).astype(int) + 1,
    "column": lambda w: w[:, None],
    "list": lambda w: w.tolist(),
    "some zero": lambda w: np.where(np.arange(len(w)) == 1, 0.0, w),
    "small": lambda w: 1e-3 * w,
}
BAD_WEIGHTS = {
    "negative": lambda w: -w,
    "nan": lambda w: np.full_like(w, np.nan),
    "infinite": lambda w: np.full_like(w, np.inf),
    "all zero": lambda w: 0 * w,
    "too large": lambda w: 0 * w + 3.4e38 if len(w) > 1 else 0 * w + 1e39,
    "short": lambda w: np.append(w, 1.0),
    "text": lambda w: w.astype(str),
    "wide": lambda w: np.stack([w, w], axis=1),
    "masked": lambda w: np.ma.masked_array(w, mask=np.arange(len(w)) == 0),
    "a number": lambda w: 2.0,
}
GOOD_CLASS_WEIGHTS = {"none": None, "some": {0: 2.0}, "floats": {0.0: 0.5, np.int64(1): 3}}
BAD_CLASS_WEIGHTS = {
    "balanced": "balanced",
    "list": [1.0, 2.0],
    "unknown": {7: 1.0},
    "negative": {0: -1.0},
    "nan": {0: np.nan},
}
BAD_OPTIONS = {
    "steps": {"steps_per_epoch": -1},
    "text": {"batch_size": "all"},
    "split": {"validation_split": np.nan},
    "validation": {"validation_data": "a"},
    "validation shape": {"validation_data": (np.zeros((4, N, M)), np.zeros(4))},
    "validation labels": {"validation_data": (np.zeros((4, M, N)), np.full(4, 9))},
    "epochs": {"epochs": 1.5},
    "callbacks": {"callbacks": [keras.callbacks.EarlyStopping]},
}


@functools.cache
def model_of(kind, optimizer, input_scale):
    model = KINDS[kind](input_scale=input_scale)
    model.build((None, M, N))
    model.compile(None if optimizer is None else keras.optimizers.SGD(0.0), run_eagerly=True)
    return model


def randomised(kind, optimizer, input_scale, rng):
    """A model with random weights."""
    model = model_of(kind, optimizer, input_scale)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    return model


def state(model):
    return [np.array(variable.value) for variable in [*model.variables, *model.optimizer.variables]]


def scores(model, X):
    """z and alpha R in float64, from W or the factors alone."""
    bias = model.head.bias
    if hasattr(model, "factors"):
        A, B = (factor.astype("float64") for factor in model.factors())
        W = np.einsum("lmk,lnk->kmn", A, B)
        a, b = (np.sum(part**2, axis=1) for part in (A, B))
        R = {"product": np.sum(a * b), "sum": np.sum(a + b), "frobenius": np.sum(W**2)}[model.penalty_name] / 2
    else:
        W = model.weight_matrices().astype("float64")
        R = np.sum(W**2) / 2
    z = np.einsum("tmn,kmn->tk", model.input_scale * X, W)
    return z if bias is None else z + np.array(bias.value, "float64"), model.alpha * R


def oracle(model, X, C, s):
    """J and the probabilities in float64."""
    z, penalty = scores(model, X)
    if z.shape[1] == 1:
        losses = np.logaddexp(0, z[:, 0]) - C[:, 0] * z[:, 0]
        p = 1 / (1 + np.exp(-z))
    else:
        top = z.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(z - top).sum(axis=1)) + top[:, 0]
        losses = log_sum - np.sum(C * z, axis=1)
        p = np.exp(z - log_sum[:, None])
    return float(np.sum(s * losses) / len(X) + penalty), p, 1e-5 * (1 + np.abs(z).max()) * max(1.0, s.max())


FIELDS = {
    "x": (GOOD_IMAGES, BAD_IMAGES),
    "y": (GOOD_LABELS, BAD_LABELS),
    "w": (GOOD_WEIGHTS, BAD_WEIGHTS),
    "c": (GOOD_CLASS_WEIGHTS, BAD_CLASS_WEIGHTS),
    "options": ({"none": {}}, BAD_OPTIONS),
}


class Case:
    """One drawn case: what is given, and whether and how it can be computed."""

    def __init__(self, draw):
        self.kind = draw(st.sampled_from(sorted(KINDS)))
        self.optimizer = draw(st.sampled_from([None, "sgd"]))
        # Half of the cases are good, the others have one fault or several.
        faults = draw(st.one_of(st.just(set()), st.sets(st.sampled_from(sorted(FIELDS)), min_size=1)))
        self.names = {
            field: draw(st.sampled_from(sorted(bad if field in faults else good)))
            for field, (good, bad) in FIELDS.items()
        }
        self.is_good = not faults
        T, seed = draw(st.integers(2, 9)), draw(st.integers(0, 2**16))
        self.scale = draw(st.sampled_from([1.0, 0.01, 30.0]))
        self.rng = np.random.default_rng(seed)
        input_scale = draw(st.sampled_from([1.0, 1 / 255]))
        self.model = randomised(self.kind, self.optimizer, input_scale, self.rng)
        K = self.model.units
        x, y = self.scale * self.rng.normal(size=(T, M, N)), self.rng.integers(0, max(K, 2), T)
        H = np.eye(K)[y] if K > 1 else y[:, None].astype(float)
        w = self.rng.uniform(0.5, 2.0, T)
        self.x = {**GOOD_IMAGES, **BAD_IMAGES}[self.names["x"]](x)
        self.y = {**GOOD_LABELS, **BAD_LABELS}[self.names["y"]](y, H)
        self.w = {**GOOD_WEIGHTS, **BAD_WEIGHTS}[self.names["w"]](w)
        self.class_weight = {**GOOD_CLASS_WEIGHTS, **BAD_CLASS_WEIGHTS}[self.names["c"]]
        self.options = BAD_OPTIONS.get(self.names["options"], {})
        self.labels, self.one_hot = y, H

    def targets(self):
        """C in float64."""
        name, K = self.names["y"], self.model.units
        return 0.7 * self.one_hot + 0.3 / K if name == "soft" and K > 1 else self.one_hot

    def weights(self, with_classes):
        """s in float64."""
        w = np.ones(len(self.labels)) if self.w is None else np.asarray(self.w, "float64").reshape(-1)
        if not with_classes or self.class_weight is None:
            return w
        return w * np.array([self.class_weight.get(float(label), 1.0) for label in self.labels])

    def images(self):
        """X in float64, as given."""
        x = tf.cast(self.x, "float64").numpy() if tf.is_tensor(self.x) else np.asarray(self.x)
        return np.asarray(x, "float64").reshape(-1, M, N)


def check_computed(case):
    """Every number that comes out is the oracle's."""
    model, X, C = case.model, case.images(), case.targets()
    J, p, slack = oracle(model, X, C, case.weights(False))
    np.testing.assert_allclose(model.predict(case.x, verbose=0), p, atol=1e-5 * (1 + case.scale))
    assert model.objective(case.x, case.y, case.w) == pytest.approx(J, rel=2e-5, abs=slack)
    assert model.evaluate(case.x, case.y, sample_weight=case.w, verbose=0)[0] == pytest.approx(
        J, rel=2e-5, abs=slack
    )
    proof = model.certificate(case.x, case.y, case.w)
    assert proof.objective == pytest.approx(J, rel=2e-5, abs=slack)
    assert proof.lower_bound <= J + slack
    before, _, slack = oracle(model, X, C, case.weights(True))
    history = model.fit(
        case.x, case.y, sample_weight=case.w, class_weight=case.class_weight, batch_size=len(X), verbose=0
    ).history
    after, _, _ = oracle(model, X, C, case.weights(True))
    assert history["objective"][-1] == pytest.approx(after, rel=5e-5, abs=slack)
    assert after <= before + 1e-6 * abs(before) + slack
    if case.optimizer is not None:
        assert after == before, "a step of size zero"


def check_refused(case):
    """A ValueError that says what was expected, and nothing has changed."""
    before = state(case.model)
    given = {"sample_weight": case.w, "class_weight": case.class_weight, "verbose": 0, **case.options}
    with pytest.raises(ValueError, match="Expected"):
        case.model.fit(case.x, case.y, **given)
    for was, now in zip(before, state(case.model), strict=True):
        np.testing.assert_array_equal(was, now)


@settings(PROFILE)
@given(st.data())
def test_what_is_given_is_computed_or_refused(data):
    case = Case(data.draw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one class, of large pixels
        (check_computed if case.is_good else check_refused)(case)


@settings(PROFILE)
@given(st.data())
def test_labels_and_weights_of_a_data_set_are_computed_or_stop_the_update(data):
    case = Case(data.draw)
    model, T = case.model, len(case.labels)
    if case.optimizer is None or case.names["x"] in BAD_IMAGES or case.y is None:
        return
    try:
        dense = [np.asarray(tf.cast(part, "float32") if tf.is_tensor(part) else part) for part in (case.x, case.y)]
        parts = (*dense, *([] if case.w is None else [np.asarray(case.w)]))
        batches = tf.data.Dataset.from_tensors(parts)
    except (ValueError, TypeError):
        return
    if "masked" in (case.names["y"], case.names["w"]):
        return  # TensorFlow has forgotten the mask when it has made a data set
    if case.names["w"] == "too large":
        return  # a loss may be small enough for their product to be a number
    before = state(model)[: len(model.trainable_variables)]
    is_good = case.names["y"] in GOOD_LABELS and case.names["w"] in (*GOOD_WEIGHTS, "all zero")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = model.fit(batches, shuffle=False, verbose=0).history["loss"][-1]
    except (ValueError, tf.errors.OpError, TypeError):
        assert not is_good
    else:
        J, _, slack = oracle(model, case.images(), case.targets(), case.weights(False)) if is_good else (0, 0, 0)
        if is_good:
            assert loss == pytest.approx(J, rel=5e-5, abs=slack)
        else:
            assert not np.isfinite(loss), f"{T} images, {case.names}"
    for was, now in zip(before, state(model), strict=False):
        np.testing.assert_array_equal(was, now)
