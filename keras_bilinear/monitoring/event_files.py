"""The event files of TensorBoard: one run that several fits append to, without a step going back.

Imports tensorboard, an optional dependency: import this where it is needed.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar import summary as custom_scalar
from tensorboard.plugins.custom_scalar.layout_pb2 import Category, Chart, Layout, MultilineChartContent
from tensorboard.plugins.hparams import api as hp
from tensorboard.plugins.image import metadata as image
from tensorboard.plugins.scalar.summary import scalar_pb
from tensorboard.util.tensor_util import make_ndarray

OFFSETS = "keras_bilinear"
"""The tag, and the plugin, of the offsets of both axes."""


class Axis:
    """Steps of curves that some fits share, each larger than the one before.

    Args:
        last: The last step that is in the event files; 0 if there is none.
        offset: By how much the steps of the last fit there are ahead of its own count.
    """

    def __init__(self, last: int = 0, offset: int = 0):
        self.last, self.offset = last, offset

    def start(self, count: int, resumed: bool) -> None:
        """Begins a fit whose own count is at `count`.

        One that was interrupted goes on as it began, and what it had written before it broke off is not written
        again. Any other fit goes on after the last step.
        """
        if not resumed:
            self.offset = max(self.last - count, 0)

    def advance(self, count: int) -> int | None:
        """The step of `count`, or None if the event files have it already."""
        step = count + self.offset
        if step <= self.last:
            return None
        self.last = step
        return step


class EventLog:
    """Appends to the run in `folder`, in an event file of its own."""

    def __init__(self, folder: str, epochs: Axis, steps: Axis):
        self.epochs, self.steps = epochs, steps
        self.writer = tf.summary.create_file_writer(folder)
        self._session: Any = None
        self._scalars: dict[str, Summary.Value] = {}
        with self.recording():
            # For the fit that resumes this one. TensorBoard passes over what is of no plugin it knows.
            metadata = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": OFFSETS})
            tf.summary.write(OFFSETS, [epochs.offset, steps.offset], step=epochs.last, metadata=metadata)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Directs summaries here, even where another callback has told TensorFlow to record only now and then."""
        with self.writer.as_default(), tf.summary.record_if(True):
            yield

    def scalars(self, values: dict[str, float], step: int) -> None:
        """All in one record, each in the form it was first made in: one by one they take forty times as long."""
        for tag, value in values.items():
            if tag not in self._scalars:
                self._scalars[tag] = scalar_pb(tag, value).value[0]
            self._scalars[tag].tensor.float_val[0] = value
        self._write(Summary(value=[self._scalars[tag] for tag in values]), step)

    def picture(self, tag: str, pixels: np.ndarray, description: str, step: int) -> None:
        """pixels (H, W, 3), uint8. The description is shown beside the picture.

        What `tf.summary.image` writes, in half the time, for it is made for stacks of many.
        """
        H, W, _ = pixels.shape
        metadata = image.create_summary_metadata(display_name=None, description=description)
        with self.recording():
            tf.summary.write(tag, [str(W), str(H), tf.io.encode_png(pixels)], step=step, metadata=metadata)

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Shown on the Text page."""
        with self.recording():
            tf.summary.text(tag, markdown, step=step)

    def layout(self, categories: dict[str, dict[str, list[str]]]) -> None:
        """Groups curves on the Custom Scalars page: category -> title of a chart -> regular expressions of tags."""

        def chart(title: str, tags: list[str]) -> Chart:
            return Chart(title=title, multiline=MultilineChartContent(tag=tags))

        layout = [
            Category(title=title, chart=[chart(*each) for each in charts.items()])
            for title, charts in categories.items()
        ]
        self._write(custom_scalar.pb(Layout(category=layout)), step=0)

    def start_session(self, choices: dict[str, Any], known: tuple[str, ...], outcomes: dict[str, str]) -> None:
        """Makes the run a row of the HParams page.

        Args:
            choices: The hyperparameters of this run, by name.
            known: The names of all that any run may have: the columns of the page.
            outcomes: The curves whose last values the page compares, and how it calls them.
        """
        metrics = [hp.Metric(tag, display_name=name) for tag, name in outcomes.items()]
        self._session = hp.KerasCallback(self.writer, choices)
        with self.recording():
            hp.hparams_config([hp.HParam(name) for name in known], metrics)
            self._session.on_train_begin()

    def flush(self) -> None:
        """Puts all that was written into the file, where it outlives the process."""
        self.writer.flush()

    def close(self) -> None:
        """Marks the run as finished."""
        if self._session is not None:
            with self.recording():
                self._session.on_train_end()
        self.writer.close()

    def _write(self, record: Any, step: int) -> None:
        with self.recording():
            tf.summary.experimental.write_raw_pb(record.SerializeToString(), step=step)


def axes_of(folder: str, epoch_curve: str, step_curve: str) -> tuple[Axis, Axis]:
    """Where the event files of `folder` stand, by two curves that are always written. A torn end is passed over."""
    axes = {epoch_curve: Axis(), step_curve: Axis()}
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    for name in sorted(name for name in names if name.startswith("events.out.tfevents.")):
        for event in EventFileLoader(os.path.join(folder, name)).Load():
            for value in event.summary.value:
                if value.tag in axes:
                    axes[value.tag].last = max(axes[value.tag].last, event.step)
                elif value.tag == OFFSETS:
                    for axis, offset in zip(axes.values(), make_ndarray(value.tensor), strict=True):
                        axis.offset = int(offset)
    return axes[epoch_curve], axes[step_curve]
