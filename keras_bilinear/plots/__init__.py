"""Pictures: how a fit went, what a path offers, and what the filters look at."""

from keras_bilinear.plots.curves import plot_convergence, plot_path
from keras_bilinear.plots.filters import plot_filters

__all__ = ["plot_convergence", "plot_filters", "plot_path"]
