"""The pictures of docs/idea.md, drawn by flexconv.viz from two trained networks.

    make demo                                                    # one or two minutes on a CPU
    flexconv train flexnet3-cifar10/short --out runs/cifar       # 75 minutes on one CPU thread
    python docs/pictures.py runs/demo runs/cifar

The second needs CIFAR-10 (`flexconv data fetch cifar10`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

from flexconv import FlexConv2d, from_pretrained, viz
from flexconv.train import RunFolder

IMAGES = Path(__file__).parent / "images"
DPI = 120


def draw(digits: Path, cifar: Path) -> dict[str, Figure]:
    """Every picture by the name of its file."""
    model = from_pretrained(cifar / "weights")
    deep = model.get_submodule("blocks.2.conv1")
    assert isinstance(deep, FlexConv2d)
    records = RunFolder(digits).read_metrics()
    layers = records[0]["sizes"]
    sizes = {name: [(record["step"], tuple(record["sizes"][name])) for record in records] for name in layers}
    return {
        "kernel": viz.plot_kernel(deep, channels=[(0, 0), (47, 35)]),
        "masks": viz.plot_masks(model),
        "sizes": viz.plot_sizes(sizes),
        "spectrum": viz.plot_spectrum(deep, scales=(1, 2)),
    }


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name, figure in draw(*map(Path, sys.argv[1:])).items():
        figure.savefig(IMAGES / f"{name}.png", dpi=DPI, bbox_inches="tight", pad_inches=0.05)
