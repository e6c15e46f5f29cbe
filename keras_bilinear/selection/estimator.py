"""The bilinear models as a scikit-learn classifier, for its pipelines and its model selection."""

import numbers
import warnings
from typing import Any

import numpy as np
from keras import ops

from keras_bilinear.arguments import non_negative, positive_integer
from keras_bilinear.data.arrays import checked_weights
from keras_bilinear.data.unusual import warn_of_guess
from keras_bilinear.models.bilinear import BilinearLogisticRegression, BilinearRegression, BilinearSoftmaxRegression
from keras_bilinear.models.normalization import Moments, expect_same, folded_regression
from keras_bilinear.parts.image_layout import declared_layout
from keras_bilinear.selection.flat_images import as_rows, image_shape
from keras_bilinear.selection.standardization import checked_way, moments_of_images
from keras_bilinear.stopping.automatic_rank import AutomaticRank
from keras_bilinear.stopping.convergence import ADVICE_IF_STALLED, BlockConvergence, ConvergenceWarning
from keras_bilinear.stopping.separation import SeparationStop

try:
    from scipy.special import log_softmax, softmax
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.class_weight import compute_sample_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("BilinearClassifier needs scikit-learn: pip install scikit-learn") from error

DTYPES = [np.float32, np.uint8]
"""What rows are cast to: the first, unless they are bytes."""
BATCH = 4096
"""Images whose scores are computed at once, so that predicting needs little memory."""


class BilinearClassifier(ClassifierMixin, BaseEstimator):
    """A classifier for scikit-learn: BLR for two classes, BSR for more, fitted exactly until it has converged.

    X holds images (T, M, N) or (T, M, N, 1), or flat rows (T, M N) as pipelines pass them on. Rows are cut into
    images of `image_shape`. Without it a warning tells what they are taken for: square images where M N is a square
    number, else images of a single row, on which the model is a linear one. With `rows` images have channels.

    The solver runs in float32 without XLA: one graph, traced once, serves all fits of one rank, image shape and
    number of classes, however many images they have. Of a `GridSearchCV` only the first of these takes seconds.

    Args:
        rank: L, the number of bilinear forms in each class; "auto" with penalty="sum" finds it.
        alpha: Weight of the penalty, >= 0; 0 leaves the factors of separable images without bound.
        penalty: "product" (the paper's choice), "sum" or "frobenius".
        use_bias: Whether each class has an intercept, which is not penalised. Unlike the Keras models it has one
            by default: behind a scaler that centres the pixels nothing else can tell how frequent a class is.
        image_shape: (M, N) of an image, or (M, N, C) with `rows`; None reads it off X.
        tol: The fit has converged when a sweep improves J by less than this fraction of it; with rank="auto", when
            J is certified to be within this fraction of its optimum.
        max_iter: Sweeps the fit may take.
        class_weight: Weight of each class as {label: weight}, or "balanced"; multiplies the sample weights.
        random_state: Integer for reproducible initial factors, or anything else scikit-learn takes.
        input_scale: Factor from the pixels of X to those the weights are for, > 0: 1/255 takes bytes as they are.
        standardize: "rows", "columns" or True: the fit sees images less the mean of every pixel, divided by a scale
            of each row, of each column, or of both. `model_` takes images as they are, for what was done is folded
            into its factors and its bias; it has as many numbers as without.
        rows: The axes of images (M, N, C) that make the rows of a matrix, as for the models: 1 lays them out as
            M x (N C), (1, 2) as (M N) x C.
        verbose: As in Keras: 0 is silent, 1 shows a progress bar for each sweep, 2 a line.

    Attributes:
        model_: The fitted Keras model, for `export_tflite`, `plots.plot_filters` and the like.
        classes_: The labels in the order of the columns of `predict_proba`.
        coef_: W as rows (K, M N), or (1, M N) for two classes, in the order of the pixels of an image.
        intercept_: The bias (K,), or (1,) for two classes; zeros without one.
        image_shape_: (M, N), or (M, N, C).
        n_features_in_: Pixels of an image, M N or M N C.
        n_iter_: Sweeps the fit took.

    Raises:
        ImportError: if scikit-learn is not installed.

    Example:
        >>> search = GridSearchCV(BilinearClassifier(), {"rank": [1, 2, 3]}, cv=3)
        >>> search.fit(x_train, y_train)      # x (T, 28, 28), y (T,) any labels
        >>> export_tflite(search.best_estimator_.model_, "digits.tflite")
    """

    def __init__(
        self,
        rank: int | str = 2,
        alpha: float = 1e-3,
        *,
        penalty: str = "product",
        use_bias: bool = True,
        image_shape: tuple[int, ...] | None = None,
        tol: float = 1e-3,
        max_iter: int = 100,
        class_weight: Any = None,
        random_state: Any = None,
        verbose: int = 0,
        input_scale: float = 1.0,
        standardize: Any = None,
        rows: int | tuple[int, ...] | None = None,
    ):
        self.rank = rank
        self.alpha = alpha
        self.penalty = penalty
        self.use_bias = use_bias
        self.image_shape = image_shape
        self.tol = tol
        self.max_iter = max_iter
        self.class_weight = class_weight
        self.random_state = random_state
        self.verbose = verbose
        self.input_scale = input_scale
        self.standardize = standardize
        self.rows = rows

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "BilinearClassifier":
        """Fits the model anew.

        Args:
            X: Images (T, M, N) or (T, M, N, 1), or rows (T, M N); with `rows` images (T, M, N, C), or (T, M N C).
            y: Labels (T,), integers or strings, of two classes or more.
            sample_weight: (T,) non-negative numbers, or None for all ones.

        Raises:
            ValueError: for settings or data that the model cannot be trained on.
        """
        max_iter = positive_integer("max_iter", self.max_iter)
        tol = non_negative("tol", self.tol)
        stop = AutomaticRank(tol) if isinstance(self.rank, str) else BlockConvergence(tol)
        checked_way(self.standardize)
        images, classes, weight = self._checked(X, y, sample_weight)
        moments = None
        if self.standardize is not None:
            if not self.use_bias:
                raise ValueError("Expected `use_bias=True` with `standardize`: a mean is folded into the bias")
            moments = moments_of_images(images, weight, self.standardize)
        self.model_ = self._new_model()
        # Only the solver is a graph, one for all fits: a graph of the step around it would be traced for each.
        self.model_.compile(jit_compile=False, run_eagerly=True)
        stop.warns = False  # in the words of Keras' arguments
        separation = SeparationStop()
        self.model_.fit(
            images if moments is None else moments.standardized(images),
            classes,
            sample_weight=weight,
            epochs=max_iter,
            callbacks=[stop, separation],
            verbose=self.verbose,
        )
        self.n_iter_ = int(self.model_.schedule.sweep.numpy())
        if moments is not None:
            self.model_ = self._folded(moments)
        if not stop.converged and not separation.reason:
            self._warn(stop)
        return self

    def _checked(self, X: Any, y: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Matrices (T, M, N), class numbers and weights (T,); what classes and what size there are is noted."""
        rows, shape = as_rows(X, self.rows is not None)
        rows, y = validate_data(self, rows, y, dtype=DTYPES)
        check_classification_targets(y)
        self.classes_, classes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"Expected labels `y` of at least two classes. Received: one class, {y[0]!r}")
        self.image_shape_ = image_shape(self.image_shape, shape, rows.shape[1], self.rows is not None)
        if isinstance(sample_weight, numbers.Real):
            sample_weight = np.full(len(rows), sample_weight)  # a scalar weighs all alike, as in scikit-learn
        weight = checked_weights(sample_weight, len(rows)) * compute_sample_weight(self.class_weight, y)
        if shape is None and self.image_shape is None:
            warn_of_guess(rows.shape[1], self.image_shape_, "image_shape")
        return self._matrices(rows), classes, weight

    def _matrices(self, rows: np.ndarray) -> np.ndarray:
        """(T, M, N) of flat images."""
        images, layout = rows.reshape(-1, *self.image_shape_), declared_layout(self.image_shape_, self.rows)
        return images if layout is None else layout.matrices(images)

    def _folded(self, moments: Moments) -> BilinearRegression:
        """The fitted model for images as they are; it tells of the fit as the one that was fitted does."""
        fitted = self.model_
        scaled = Moments(*(part * self.input_scale for part in moments))
        shape = {"input_shape": self.image_shape_, "input_scale": self.input_scale}
        folded = folded_regression(fitted, scaled, **shape)
        expect_same(lambda X: fitted(moments.standardized(X)), folded, moments)
        folded.compile(jit_compile=False, run_eagerly=True)
        folded._last_fit = fitted._last_fit
        return folded

    def _warn(self, stop: BlockConvergence | AutomaticRank) -> None:
        """Says in the words of these settings why the fit has not converged."""
        if isinstance(stop, BlockConvergence) and stop.stalled:
            message = f"The fit has {stop.reason.replace('rtol', 'tol')}. In such a fit {ADVICE_IF_STALLED}."
        else:
            automatic = isinstance(stop, AutomaticRank)
            goal = "left J certified to be within" if automatic else "improved J by no more than"
            message = (
                f"The fit has not converged: none of max_iter={self.max_iter} sweeps {goal} tol={self.tol:g} of it"
                f"{'s optimum' if automatic else ''}. Raise one of them."
            )
        warnings.warn(message, ConvergenceWarning, stacklevel=3)

    def _new_model(self) -> BilinearRegression:
        """BLR or BSR for the classes and images at hand, with initial factors."""
        settings: dict[str, Any] = {
            "rank": self.rank,
            "alpha": self.alpha,
            "penalty": self.penalty,
            "use_bias": self.use_bias,
            "input_shape": self.image_shape_,
            "rows": self.rows,
            "seed": int(check_random_state(self.random_state).randint(2**31 - 1)),
            "dtype": "float32",
            "input_scale": self.input_scale if self.standardize is None else 1.0,
        }
        K = len(self.classes_)
        return BilinearLogisticRegression(**settings) if K == 2 else BilinearSoftmaxRegression(K, **settings)

    def decision_function(self, X: Any) -> np.ndarray:
        """The scores z (T, K); for two classes (T,), positive where the second is the more likely."""
        check_is_fitted(self)
        rows, shape = as_rows(X, self.rows is not None)
        if shape not in (None, self.image_shape_):
            raise ValueError(f"Expected images of {self.image_shape_}, as fitted. Received: images of {shape}")
        images = self._matrices(validate_data(self, rows, dtype=DTYPES, reset=False))
        # In float64, so that the scores of an image do not depend on its neighbours; in batches, for the memory.
        batches = (images[first : first + BATCH].astype("float64") for first in range(0, len(images), BATCH))
        z = np.concatenate(
            [ops.convert_to_numpy(self.model_.logits(ops.convert_to_tensor(part))) for part in batches]
        )
        return z[:, 0] if self.model_.units == 1 else z

    def predict(self, X: Any) -> np.ndarray:
        """The most likely label of each image, (T,)."""
        best = self._scores(X).argmax(axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, (T, K), columns in the order of `classes_`."""
        return softmax(self._scores(X), axis=1)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithm of `predict_proba`, exact where that is 0."""
        return log_softmax(self._scores(X), axis=1)

    def _scores(self, X: Any) -> np.ndarray:
        """z with a column for each class, two classes included: (0, z) has the soft-max (1 - p, p)."""
        z = self.decision_function(X)
        return z if z.ndim == 2 else np.stack([np.zeros_like(z), z], axis=1)

    @property
    def coef_(self) -> np.ndarray:
        """W as rows (K, M N), or (1, M N) for two classes, for pixels as they are in X."""
        W = self.model_.filter_images().reshape(self.model_.units, -1)
        return W if self.model_.input_scale == 1 else W * np.float32(self.model_.input_scale)

    @property
    def intercept_(self) -> np.ndarray:
        """The bias (K,), or (1,) for two classes; zeros without one."""
        bias = self.model_.head.bias
        return np.zeros(self.model_.units, "float32") if bias is None else ops.convert_to_numpy(bias.value)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags
