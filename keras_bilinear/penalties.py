"""The penalties R, by the names that users know."""

from keras_bilinear.maths.penalties import Frobenius, Penalty, Product, Ridge, Sum, get

__all__ = ["Frobenius", "Penalty", "Product", "Ridge", "Sum", "get"]
