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
    palette, indices = _reduce_colours(np.asarray(matte))
    outside = np.asarray(picture.getchannel("A")) == 0
    result = Image.fromarray(np.where(outside, COLOURS, indices).astype(np.uint8))
    result.putpalette([*palette.flatten().tolist(), *[0] * (3 * (COLOURS + 1) - palette.size)])
    result.save(path, transparency=COLOURS, optimize=True)


def _reduce_colours(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Choose a palette [colors, 3] for an image [height, width, 3] → the palette, and the index of every pixel.

    A color with n pixels counts √n times, so that the palette also has room for rare colors, such as the ends of a
    color bar.
    """
    from PIL import Image

    packed = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], dtype=np.uint32)
    values, which, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colours = np.stack([values >> 16, (values >> 8) & 255, values & 255], -1).astype(np.uint8)
    samples = Image.fromarray(np.repeat(colours, np.ceil(np.sqrt(counts)).astype(int), axis=0)[None])
    reduced = samples.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, kmeans=1, dither=Image.Dither.NONE)
    palette = np.array(reduced.getpalette()).reshape(-1, 3)[:COLOURS]
    parts = np.array_split(colours.astype(int), len(colours) // 4096 + 1)  # distances take memory
    nearest = np.concatenate([((part[:, None] - palette) ** 2).sum(-1).argmin(1) for part in parts])
    return palette, nearest[which].reshape(packed.shape)
