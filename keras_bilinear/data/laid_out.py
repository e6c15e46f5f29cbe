"""Images with channels, as matrices, before anything else is done with them."""

from typing import Any

import tensorflow as tf

from keras_bilinear.data.arrays import as_array, is_array
from keras_bilinear.parts.image_layout import ImageLayout


def laid_out(data: Any, layout: ImageLayout | None, name: str = "x") -> Any:
    """Arrays or a `tf.data.Dataset` with matrices (T, rows, columns) in place of images (T, M, N, C).

    What has matrices already stays as it is, and so does all without a layout; a ValueError for any other form.
    """
    if layout is None or data is None:
        return data
    if is_array(data):
        images = as_array(data, name)
        layout.expect(name, images.shape)
        return layout.matrices(images)
    if isinstance(data, tf.data.Dataset):
        return data_set_laid_out(data, layout, name)
    raise ValueError(
        f"Expected `{name}` to be arrays or a tf.data.Dataset, for a model of images with channels. Received: "
        f"{type(data).__name__}"
    )


def data_set_laid_out(dataset: tf.data.Dataset, layout: ImageLayout, name: str) -> tf.data.Dataset:
    """A data set of x, (x, y) or (x, y, weight) with its images laid out; any other as it is, for it is refused."""
    spec = dataset.element_spec
    images = spec[0] if isinstance(spec, tuple) else spec
    if not isinstance(images, tf.TensorSpec):
        return dataset
    if images.shape.rank is not None:
        layout.expect(name, tuple(images.shape))
    if not isinstance(spec, tuple):
        return dataset.map(lambda x: layout.matrices(x))
    return dataset.map(lambda x, *rest: (layout.matrices(x), *rest))


def options_laid_out(options: dict[str, Any], layout: ImageLayout | None) -> dict[str, Any]:
    """The options of `fit` with all images laid out."""
    if layout is None:
        return options
    options = {**options, "x": laid_out(options.get("x"), layout)}
    validation = options.get("validation_data")
    if isinstance(validation, tuple | list) and validation:
        images = laid_out(validation[0], layout, "validation_data")
        return {**options, "validation_data": (images, *validation[1:])}
    return {**options, "validation_data": laid_out(validation, layout, "validation_data")}
