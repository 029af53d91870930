"""The figures of README.md and docs/idea.md.

    make demo                             # trains a small network on digits, one or two minutes on a CPU
    python docs/pictures.py runs/demo     # half a minute

Without a run folder, only the figure of README.md is drawn.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from flexconv import FlexConv2d, GaussianMask, from_pretrained, ops, viz
from flexconv.sampling import KernelStages, kernel_stages
from flexconv.train import RunFolder

IMAGES = Path(__file__).parent / "images"
DPI = 110


# --- README.md: a kernel that grows during training -------------------------------------------------------------------

GRID = 33  # taps
EPOCHS = (0, 2, 4, 11, 30)  # the epochs that are drawn


class Theme(NamedTuple):
    """Colours that fit the light or the dark theme of GitHub. The background of the figure is transparent."""

    panel: str  # background of a panel, and the colour of 0
    ink: str
    muted: str
    line: str
    negative: tuple[str, str]  # kernel values, strong and weak
    positive: tuple[str, str]  # weak and strong
    mask: str


THEMES = {
    "light": Theme(
        "#f6f8fa", "#1f2328", "#59636e", "#d1d9e0", ("#0a3069", "#218bff"), ("#fb8f44", "#762c00"), "#8250df"
    ),
    "dark": Theme(
        "#151b23", "#f0f6fc", "#9198a1", "#3d444d", ("#b6e3ff", "#218bff"), ("#fb8f44", "#ffe2b8"), "#d2a8ff"
    ),
}


def ring_filter() -> torch.Tensor:
    """Elliptical rings that fade towards the border, with energy 1 → [1, 1, 33, 33]."""
    axis = torch.linspace(-1, 1, GRID)
    rows, columns = torch.meshgrid(axis, axis, indexing="ij")
    radius = ((1.6 * rows) ** 2 + columns**2).sqrt()
    values = torch.exp(-0.5 * (radius / 0.45) ** 2) * torch.cos(13 * radius)
    return (values / values.norm()).reshape(1, 1, GRID, GRID)


def train_ring_filter() -> dict[int, KernelStages]:
    """Train a layer to imitate `ring_filter`. Returns its kernel and mask at the epochs that are drawn."""
    torch.manual_seed(0)
    layer = FlexConv2d(1, 1, kernel_size=GRID, bias=False, mask=GaussianMask(2, sigma=0.075))
    inputs = torch.randn(256, 1, 32, 32)
    targets = ops.conv2d(inputs, ring_filter())
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.005)
    stages = {0: kernel_stages(layer)}
    for epoch in range(1, max(EPOCHS) + 1):
        for batch in torch.randperm(len(inputs)).split(8):
            loss = (layer(inputs[batch]) - targets[batch]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch in EPOCHS:
            stages[epoch] = kernel_stages(layer)
    return stages


def draw_growth(stages: dict[int, KernelStages], theme: Theme) -> Figure:
    """Draw kernel and mask at every epoch, and the filter to learn. All lengths are in pixels of the figure."""
    side, gap, left, top, bottom, extra = 8 * GRID, 18, 52, 52, 64, 22  # 8 pixels per tap
    width, height = left + 6 * side + 5 * gap + extra + 2, top + 2 * side + gap + bottom
    figure = Figure(figsize=(width / 200, height / 200), dpi=200)
    signed = LinearSegmentedColormap.from_list("signed", [*theme.negative, theme.panel, *theme.positive])
    shades = LinearSegmentedColormap.from_list("shades", [theme.panel, theme.mask])

    def position(column: int) -> int:
        return left + column * (side + gap) + (extra if column == 5 else 0)

    def panel(column: int, row: int) -> Axes:
        y = bottom + (1 - row) * (side + gap)
        area = position(column) / width, y / height, side / width, side / height
        axes = figure.add_axes(area, xticks=[], yticks=[])
        axes.spines[:].set(color=theme.line, linewidth=0.8)
        return axes

    def text(x: float, y: float, string: str, **options: object) -> None:
        look = {"ha": "center", "va": "center", "color": theme.ink, "fontsize": 9, **options}
        figure.text(x / width, y / height, string, **look)  # type: ignore[arg-type]

    target = ring_filter()[0, 0].numpy()
    limit = max(abs(each.kernel).max() for each in stages.values())
    for column, (epoch, each) in enumerate(stages.items()):
        (first, last), (start, stop) = each.taps
        kernel = torch.zeros(GRID, GRID)
        kernel[first:last, start:stop] = torch.from_numpy(each.kernel[0, 0])
        assert each.mask is not None
        images = ((kernel.numpy(), signed, -limit, limit), (each.mask, shades, 0.0, 1.0))
        for row, (values, colours, low, high) in enumerate(images):
            axes = panel(column, row)
            axes.imshow(values, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
            box = Rectangle((start - 0.5, first - 0.5), stop - start, last - first, fill=False, edgecolor=theme.ink)
            axes.add_patch(box)
            if column == 0:
                axes.set_ylabel(("kernel", "mask")[row], color=theme.ink, fontsize=9, labelpad=6)
        centre = position(column) + side / 2
        text(centre, height - 24, f"epoch {epoch}", color=theme.muted)
        text(centre, 34, f"{last - first} × {stop - start} taps", fontsize=10, fontweight="bold")
    panel(5, 0).imshow(target, cmap=signed, vmin=-limit, vmax=limit, interpolation="nearest")
    text(position(5) + side / 2, height - 24, "filter to learn", color=theme.muted)
    keys = (
        ("kernel size:\nthe taps in use", {"fill": False, "edgecolor": theme.ink}),
        (f"largest kernel:\n{GRID} × {GRID} taps", {"facecolor": theme.panel, "edgecolor": theme.line}),
    )
    for row, (meaning, look) in enumerate(keys):
        x, y = position(5), bottom + side / 2 + 48 - 96 * row
        figure.add_artist(Rectangle((x / width, (y - 18) / height), 36 / width, 36 / height, linewidth=1.0, **look))  # type: ignore[arg-type]
        text(x + 52, y, meaning, ha="left", color=theme.muted, fontsize=8, linespacing=1.3)
    return figure


# --- docs/idea.md -----------------------------------------------------------------------------------------------------


def draw_idea(run: Path) -> dict[str, Figure]:
    """The figures of docs/idea.md, by the name of their file. `run` is the run folder of `make demo`."""
    model = from_pretrained("flexnet7-cifar10")
    layer = model.get_submodule("blocks.3.conv1")
    assert isinstance(layer, FlexConv2d)
    records = RunFolder(run).read_metrics()
    layers = records[0]["sizes"]
    sizes = {name: [(record["step"], tuple(record["sizes"][name])) for record in records] for name in layers}
    return {
        "kernel": viz.plot_kernel(layer, channels=[(30, 19), (8, 15)]),
        "masks": viz.plot_masks(model),
        "sizes": viz.plot_sizes(sizes),
        "spectrum": viz.plot_spectrum(layer, scales=(1, 2)),
    }


def main(run: Path | None) -> None:
    IMAGES.mkdir(exist_ok=True)
    if run is not None:
        for name, figure in draw_idea(run).items():
            figure.savefig(IMAGES / f"{name}.png", dpi=DPI, bbox_inches="tight", pad_inches=0.05)
    torch.set_num_threads(1)  # the result depends on the number of threads
    stages = train_ring_filter()
    for name, theme in THEMES.items():
        draw_growth(stages, theme).savefig(IMAGES / f"growth-{name}.png", transparent=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="the run folder of make demo")
    main(parser.parse_args().run)
