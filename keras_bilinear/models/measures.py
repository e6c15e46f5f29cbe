"""J on given images, and how far it can be above the optimum."""

from typing import Any

from keras import ops

from keras_bilinear.data.mapped import unmapped
from keras_bilinear.data.survey import is_data_set
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.models.checked_calls import CheckedCalls
from keras_bilinear.parts.losses import targets
from keras_bilinear.stopping.certificate import Certificate, certificate


class Measured(CheckedCalls):
    """Mixed into a regression model."""

    def objective(self, x: Any, y: Any = None, sample_weight: Any = None) -> float:
        """J = V + alpha R on the given data (Eq. J.A.B), with V weighted as `fit` weights it.

        A `tf.data.Dataset` of (x, y) or (x, y, weight) in batches is read once, and not held in memory.
        """
        x, y, sample_weight = unmapped(x, y, sample_weight)
        if is_data_set(x, y, sample_weight):
            return self._mean_cross_entropy(x) + float(self.penalty())
        X, y, weight = map(ops.convert_to_tensor, self._checked(x, y, sample_weight))
        C = targets(y, self.units, weight.dtype)
        V = bm.cross_entropy(self.logits(X), C, bm.normalised_weights(weight))
        return float(V + self.penalty())

    def _mean_cross_entropy(self, dataset: Any) -> float:
        """V of a data set."""
        V, images = 0.0, 0
        for batch in self._batches(dataset):
            X, y, weight = map(ops.convert_to_tensor, batch)
            w = ops.cast(weight, self._solver_dtype)
            V += float(bm.cross_entropy(self.logits(X), targets(y, self.units, w.dtype), w))
            images += len(batch.x)
        return V / images

    def certificate(self, x: Any, y: Any = None, sample_weight: Any = None) -> Certificate:
        """How far J on these images can be above the global optimum; see `keras_bilinear.stopping.certificate`.

        A data set of batches is read twice; its labels and scores are held in memory, its images are not.

        Example:
            >>> print(model.certificate(x, y))
        """
        return certificate(self, *unmapped(x, y, sample_weight))
