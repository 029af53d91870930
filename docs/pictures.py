"""The figures of README.md and of the documentation: `python docs/pictures.py`, one minute on a CPU.

Every figure is saved twice, for light and for dark pages. The pages show them in a <picture> element, and docs/hooks.py
makes the documentation site choose by its own switch. The figures of docs/results.md: `python -m reproduction all`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from flexconv import FlexConv2d, from_pretrained, ops, viz
from flexconv.sampling import KernelStages, kernel_stages
from flexconv.train import RunFolder
from flexconv.train.plots import size_history, with_test
from flexconv.viz.style import PAGE, new_figure, styled, theme

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
RESULTS = DOCS.parent / "results"
DEMO = RESULTS / "runs/digits-demo"  # the log of `make demo`


# --- README.md: a kernel that grows during training -------------------------------------------------------------------

GRID = 33  # taps
EPOCHS = (0, 2, 4, 11, 30)  # the epochs that are drawn


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
    layer = FlexConv2d(1, 1, kernel_size=GRID, bias=False, parametrization="paper")
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


@styled
def draw_growth(stages: dict[int, KernelStages]) -> Figure:
    """Draw kernel and mask at every epoch, and the filter to learn. All lengths are in pixels of the figure."""
    side, gap, left, top, bottom, extra = 8 * GRID, 18, 52, 52, 64, 22  # 8 pixels per tap
    width, height = left + 6 * side + 5 * gap + extra + 2, top + 2 * side + gap + bottom
    figure = Figure(figsize=(width / 200, height / 200), dpi=200)
    colours = theme()

    def position(column: int) -> int:
        return left + column * (side + gap) + (extra if column == 5 else 0)

    def panel(column: int, row: int) -> Axes:
        y = bottom + (1 - row) * (side + gap)
        area = position(column) / width, y / height, side / width, side / height
        axes = figure.add_axes(area, xticks=[], yticks=[])
        axes.spines[:].set(color=colours.faint, linewidth=0.8)
        return axes

    def text(x: float, y: float, string: str, **options: object) -> None:
        look = {"ha": "center", "va": "center", "color": colours.ink, "fontsize": 9, **options}
        figure.text(x / width, y / height, string, **look)  # type: ignore[arg-type]

    target = ring_filter()[0, 0].numpy()
    limit = max(abs(each.kernel).max() for each in stages.values())
    for column, (epoch, each) in enumerate(stages.items()):
        (first, last), (start, stop) = each.taps
        kernel = torch.zeros(GRID, GRID)
        kernel[first:last, start:stop] = torch.from_numpy(each.kernel[0, 0])
        assert each.mask is not None
        images = ((kernel.numpy(), colours.signed, -limit, limit), (each.mask, colours.share, 0.0, 1.0))
        for row, (values, colormap, low, high) in enumerate(images):
            axes = panel(column, row)
            axes.imshow(values, cmap=colormap, vmin=low, vmax=high, interpolation="nearest")
            box = Rectangle((start - 0.5, first - 0.5), stop - start, last - first, fill=False, edgecolor=colours.ink)
            axes.add_patch(box)
            if column == 0:
                axes.set_ylabel(("kernel", "mask")[row], color=colours.ink, fontsize=9, labelpad=6)
        centre = position(column) + side / 2
        text(centre, height - 24, f"epoch {epoch}")
        text(centre, 34, f"{last - first} × {stop - start} taps", fontsize=10, fontweight="bold")
    panel(5, 0).imshow(target, cmap=colours.signed, vmin=-limit, vmax=limit, interpolation="nearest")
    text(position(5) + side / 2, height - 24, "filter to learn")
    keys = (
        ("kernel size:\nthe taps in use", {"fill": False, "edgecolor": colours.ink}),
        (f"largest kernel:\n{GRID} × {GRID} taps", {"facecolor": colours.share(0.0), "edgecolor": colours.faint}),
    )
    for row, (meaning, look) in enumerate(keys):
        x, y = position(5), bottom + side / 2 + 48 - 96 * row
        figure.add_artist(Rectangle((x / width, (y - 18) / height), 36 / width, 36 / height, linewidth=1.0, **look))  # type: ignore[arg-type]
        text(x + 52, y, meaning, ha="left", fontsize=8, linespacing=1.3)
    return figure


# --- which-network.md: accuracy at other resolutions ------------------------------------------------------------------

RESOLUTIONS = {
    "Characters, 182 samples": "bandwidth_sepflexnet-character-trajectories.json",
    "Sequential CIFAR-10, 1,024 samples": "bandwidth_sepflexnet-tiny-scifar10.json",
}


@styled
def draw_resolutions() -> Figure:
    """Draw the accuracy of networks against the resolution of their inputs, from logs of `benchmarks.bandwidth`."""
    figure = new_figure(PAGE, 2.7, "Accuracy at other resolutions than that of the training")
    colours = theme()
    for axes, (title, file) in zip(figure.subplots(1, len(RESOLUTIONS)), RESOLUTIONS.items(), strict=True):
        rows = json.loads((RESULTS / "bench" / file).read_text("utf-8"))["resolutions"]
        for key, label, colour, marker in (
            ("accuracy", "as trained", colours.blue, "o"),
            ("recalibrated", "norms recalibrated", colours.red, "s"),
        ):
            points = [(row["scale"], 100 * row[key]) for row in rows if row[key] is not None]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=4, label=label)
        scales = [row["scale"] for row in rows]
        axes.set_title(title)
        axes.set_xlabel("resolution")
        axes.set_xticks(scales, [f"×{scale:g}" for scale in scales])
        axes.set_ylim(0, 103)
        axes.grid(axis="y")
        axes.legend(loc="lower right")
    figure.axes[0].set_ylabel("accuracy, %")
    return figure


# --- the documentation -----------------------------------------------------------------------------------------------


def documentation() -> dict[str, Callable[[], Figure]]:
    """The functions that draw the figures of docs/idea.md, runs.md and which-network.md, by the name of their file."""
    model = from_pretrained("flexnet7-cifar10")
    name = "blocks.3.conv1"
    layer = model.get_submodule(name)
    assert isinstance(layer, FlexConv2d)
    run = RunFolder(DEMO)
    records = run.read_metrics()
    return {
        "curves": lambda: viz.plot_curves(with_test(records, run.read_results())),
        "kernel": lambda: viz.plot_kernel(layer, channels=[(30, 19), (8, 15)], name=name),
        "masks": lambda: viz.plot_masks(model),
        "resolutions": draw_resolutions,
        "sizes": lambda: viz.plot_sizes(size_history(records), count="epoch"),
        "spectrum": lambda: viz.plot_spectrum(layer, scales=(1, 2), name=name),
    }


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    torch.set_num_threads(1)  # the result depends on the number of threads
    for name, draw in documentation().items():
        viz.save_themes(draw, IMAGES / f"{name}.png")
    stages = train_ring_filter()
    viz.save_themes(lambda: draw_growth(stages), IMAGES / "growth.png")


if __name__ == "__main__":
    main()
