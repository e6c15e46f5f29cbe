"""What Keras needs to train a model on several replicas: it fails there by itself (keras-team/keras#20585).

All of it stands here, and `tests/models/test_replicas.py` fails once Keras can do without.
"""

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.parts.replicas import has_workers, of_first_replica

if TYPE_CHECKING:
    from keras import Model as Host
else:
    # At run time a plain mixin.
    Host = object


class Workers(Host):
    """Mixed into a `keras.Model`, before it. Subclasses train by `_step`."""

    def _build_optimizer(self) -> None:
        raise NotImplementedError

    def _step(self, data: Any) -> dict[str, Tensor]:
        """A training step on a batch; the logs."""
        raise NotImplementedError

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # To see what a batch is like, Keras would add up that of all replicas, which it cannot where they are in
        # several processes, or have images of different numbers.
        strategy = self.distribute_strategy
        if strategy.num_replicas_in_sync == 1 and not has_workers(strategy):
            super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)
            return
        if iterator is not None:
            *_, batches = next(iter(iterator))
            data_batch = next(batches)
        with strategy.scope():
            self._build_optimizer()
            self._symbolic_build(data_batch=of_first_replica(strategy, data_batch))

    def train_step(self, data: Any) -> dict[str, Tensor]:
        return self._for_workers(self._step(data))

    def test_step(self, data: Any) -> dict[str, Tensor]:
        return self._for_workers(super().test_step(data))

    def _for_workers(self, logs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Logs as Keras puts them together: it takes the mean along their first axis, which numbers do not have."""
        if not has_workers(self.distribute_strategy):
            return logs
        return keras.tree.map_structure(lambda value: ops.reshape(value, (-1,)), logs)
