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
        is_read = is_data_set(x, y, sample_weight)
        V, images = 0.0, 0
        for batch in self._batches(x) if is_read else [self._checked(x, y, sample_weight)]:
            X, y, weight = map(ops.convert_to_tensor, batch)
            w = ops.cast(weight, self._solver_dtype)
            V += float(bm.cross_entropy(self.logits(X), targets(y, self.units, w.dtype), w))
            images += len(batch.x)
        return V / images + float(self.penalty())

    def certificate(self, x: Any, y: Any = None, sample_weight: Any = None) -> Certificate:
        """How far J on these images can be above the global optimum; see `keras_bilinear.stopping.certificate`.

        A data set of batches is read twice; its labels and scores are held in memory, its images are not.

        Example:
            >>> print(model.certificate(x, y))
        """
        return certificate(self, *unmapped(x, y, sample_weight))
