"""The event files of TensorBoard, one for each fit.

Imports tensorboard, an optional dependency: import this where it is needed.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar import summary as custom_scalar
from tensorboard.plugins.custom_scalar.layout_pb2 import Category, Chart, Layout, MultilineChartContent
from tensorboard.plugins.hparams import api_pb2, summary
from tensorboard.plugins.scalar.summary import scalar_pb


class EventLog:
    """Appends to the run in `folder`, in an event file of its own."""

    def __init__(self, folder: str):
        self.writer = tf.summary.create_file_writer(folder)
        self._has_session = False
        self._scalars: dict[str, Summary.Value] = {}

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
        """pixels (H, W, 3), uint8. The description is shown beside the picture."""
        with self.recording():
            tf.summary.image(tag, pixels[None], step=step, description=description)

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
        """Makes the run a row of the HParams page, under the name of its folder.

        Args:
            choices: The hyperparameters of this run, by name.
            known: The names of all that any run may have: the columns of the page, the most telling one first.
            outcomes: The curves whose last values the page compares, and how it calls them.
        """
        # The page sorts its columns by name, but for those that are said to differ, which it puts first.
        columns = [api_pb2.HParamInfo(name=name, differs=name == known[0]) for name in known]
        metrics = [
            api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=name)
            for tag, name in outcomes.items()
        ]
        self._write(summary.experiment_pb(columns, metrics), step=0)
        # Without the name of a group, for which TensorBoard's own callback takes a hash that nobody can read.
        self._write(summary.session_start_pb(choices), step=0)
        self._has_session = True

    def flush(self) -> None:
        """Puts all that was written into the file, where it outlives the process."""
        self.writer.flush()

    def close(self) -> None:
        """Marks the run as finished."""
        if self._has_session:
            self._write(summary.session_end_pb(api_pb2.STATUS_SUCCESS), step=0)
        self.writer.close()

    def _write(self, record: Any, step: int) -> None:
        with self.recording():
            tf.summary.experimental.write_raw_pb(record.SerializeToString(), step=step)
