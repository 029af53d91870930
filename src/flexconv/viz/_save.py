"""Pictures for web pages: both themes, transparent, small and reproducible."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from .style import DPI, THEMES, use_theme

COLOURS = 255  # of a palette with 256 entries, the last of which is transparent


def save_themes(draw: Callable[[], Figure], path: str | Path, *, dpi: int = DPI) -> list[Path]:
    """Draw a figure in both themes and save it as PNG with a transparent background, for pages with a dark mode.

        viz.save_themes(lambda: viz.plot_kernel(layer), "kernel.png")  # kernel-light.png and kernel-dark.png

    The files have a palette of 256 colors, which makes them small. The same figure always gives the same files.

    Arguments:
        draw: a function without arguments that returns the figure.
        path: the path of the picture. The name of the theme is added to it.
        dpi: pixels per inch. The default is twice as fine as a web page needs.

    Returns:
        the paths of the files.

    """
    path, paths = Path(path), []
    for name, theme in THEMES.items():
        with use_theme(name):
            figure = draw()
        paths.append(path.with_name(f"{path.stem}-{name}.png"))
        _save_with_palette(figure, paths[-1], theme.background, dpi)
    return paths


def _save_with_palette(figure: Figure, path: Path, background: str, dpi: int) -> None:
    """Save a figure without its background. The edges of text and lines are blended with the background color."""
    from PIL import Image  # matplotlib requires Pillow

    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi, transparent=True)
    picture = Image.open(buffer)
    matte = Image.new("RGB", picture.size, background)
    matte.paste(picture, mask=picture.getchannel("A"))
    reduced = matte.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, kmeans=1, dither=Image.Dither.NONE)
    outside = np.asarray(picture.getchannel("A")) == 0
    result = Image.fromarray(np.where(outside, COLOURS, np.asarray(reduced)).astype(np.uint8))
    palette = (reduced.getpalette() or [])[: 3 * COLOURS]
    result.putpalette(palette + [0] * (3 * (COLOURS + 1) - len(palette)))
    result.save(path, transparency=COLOURS, optimize=True)
