"""What the tests of pictures look for in a file."""

from matplotlib.image import imread
from matplotlib.text import Text


def is_picture(path):
    """Whether something is drawn in it."""
    pixels = imread(path)
    return pixels.ndim == 3 and min(pixels.shape[:2]) > 100 and pixels[..., :3].std() > 0.01


def fits_the_page(figure):
    """Whether nothing is cut off, the picture is no wider than a README, and no text smaller than 8 points."""
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
    return inside and round(width * figure.dpi) <= 830 and min(sizes) >= 8
