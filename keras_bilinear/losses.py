"""The loss and the metric of the paper's models, by the names that users know."""

from keras_bilinear.parts.losses import Accuracy, CrossEntropy

__all__ = ["Accuracy", "CrossEntropy"]
