"""Event files as TensorBoard reads them."""

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray


def read(folder):
    """All events of a run, none left out to save memory."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return events


def curves(folder):
    """Tag -> (steps, values) of every scalar."""
    events, drawn = read(folder), {}
    for tag in events.Tags()["tensors"]:
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
            points = events.Tensors(tag)
            drawn[tag] = (
                [point.step for point in points],
                [float(make_ndarray(point.tensor_proto)) for point in points],
            )
    return drawn
