"""Pictures: how a fit went, what a path offers, and what the filters look at."""

from keras_bilinear.plots.curves import plot_convergence, plot_path
from keras_bilinear.plots.filters import plot_filters
from keras_bilinear.plots.maps import plot_map

__all__ = ["plot_convergence", "plot_filters", "plot_map", "plot_path"]
