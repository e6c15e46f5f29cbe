"""J on given images, and how far it can be above the optimum."""

from typing import TYPE_CHECKING, Any

from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.models.checked_calls import CheckedCalls
from keras_bilinear.parts.losses import targets
from keras_bilinear.stopping.certificate import Certificate, certificate

if TYPE_CHECKING:
    Host = CheckedCalls
else:
    # At run time a plain mixin, before the class it stands in front of.
    Host = object


class Measured(Host):
    """Mixed into a regression model."""

    def objective(self, x: Any, y: Any = None, sample_weight: Any = None) -> float:
        """J = V + alpha R on the given data (Eq. J.A.B), with V weighted as `fit` weights it."""
        X, y, weight = map(ops.convert_to_tensor, self._checked(x, y, sample_weight))
        C = targets(y, self.units, weight.dtype)
        V = bm.cross_entropy(self.logits(X), C, bm.normalised_weights(weight))
        return float(V + self.penalty())

    def certificate(self, x: Any, y: Any = None, sample_weight: Any = None) -> Certificate:
        """How far J on these images can be above the global optimum; see `keras_bilinear.stopping.certificate`.

        Example:
            >>> print(model.certificate(x, y))
        """
        return certificate(self, x, y, sample_weight)
