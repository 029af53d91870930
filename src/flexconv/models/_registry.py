"""The networks by name."""

from __future__ import annotations

import fnmatch
import inspect
from typing import Any

from .._arguments import unknown_name
from ..errors import ArgumentTypeError
from ._base import SIZES, Model
from .flexnet import FlexNet
from .flextcn import FlexTCN
from .resnet import CIFARResNet
from .sepflexnet import SepFlexNet

#: classes by the "architecture" of a saved config
ARCHITECTURES: dict[str, type[Any]] = {kind.__name__: kind for kind in (FlexNet, FlexTCN, CIFARResNet, SepFlexNet)}

_IMAGE_WIDTHS = {
    "3": [24, 36, 48],
    "5": [22, 33, 33, 44, 44],
    "7": [24, 24, 36, 36, 36, 48, 48],
}

#: name → class, and the arguments that differ from its defaults
MODELS: dict[str, tuple[type[Model], dict[str, Any]]] = {
    **{f"flexnet{n}": (FlexNet, {"widths": widths}) for n, widths in _IMAGE_WIDTHS.items()},
    "flexnet5_njet": (FlexNet, {"widths": [32, 48, 48, 64, 64], "generator": "njet"}),
    "flexnet7_njet": (FlexNet, {"widths": [38, 38, 57, 57, 57, 76, 76], "generator": "njet"}),
    "flexnet7_conv3": (FlexNet, {"widths": _IMAGE_WIDTHS["7"], "conv": "plain", "kernel_size": 3}),
    "flexnet7_conv33": (FlexNet, {"widths": _IMAGE_WIDTHS["7"], "conv": "plain", "kernel_size": 33}),
    **{f"ckcnn{n}": (FlexNet, {"widths": _IMAGE_WIDTHS[n], "conv": "ck", "generator": "siren"}) for n in ("3", "7")},
    **{f"flextcn{n}": (FlexTCN, {"widths": [30] * n}) for n in (2, 4, 6)},
    **{f"cktcn{n}": (FlexTCN, {"widths": [30] * n, "conv": "ck", "generator": "siren"}) for n in (2, 4, 6)},
    **{f"cifar_resnet{depth}": (CIFARResNet, {"depth": depth}) for depth in (20, 32, 44, 56)},
    "cifar_resnet44_ckconv3": (CIFARResNet, {"depth": 44, "conv": "ck"}),
    "cifar_resnet44_flexconv": (
        CIFARResNet,
        {"depth": 44, "conv": "flex", "kernel_size": None, "shortcut": "conv"},
    ),
    # 0.2, 0.67 and 2 million parameters
    "sepflexnet_tiny": (SepFlexNet, {"width": 140, "depth": 4}),
    "sepflexnet_small": (SepFlexNet, {"width": 220, "depth": 6}),
    "sepflexnet_base": (SepFlexNet, {"width": 380, "depth": 6, "generator_options": {"hidden": 64}}),
}


def create_model(name: str, **overrides: Any) -> Model:
    """Create a network by name; see `list_models`.

        create_model("flexnet7", in_channels=3, num_classes=10, image_size=32, generator="magnet")
        create_model("flextcn6", in_channels=1, num_classes=10, length=784)
        create_model("sepflexnet_tiny", in_channels=1, num_classes=10, volume_size=32)

    A name stands for a class (`FlexNet`, `FlexTCN`, `CIFARResNet`, `SepFlexNet`) and some of its arguments. `overrides`
    are further arguments, or replace these. The default generator of CKCNNs and CKTCNs is SIREN.
    """
    if name not in MODELS:
        unknown_name("model", name, MODELS)
    kind, preset = MODELS[name]
    parameters = inspect.signature(kind).parameters
    for override in overrides:
        if override in SIZES and override not in parameters:
            (own,) = (size for size in SIZES if size in parameters)
            raise ArgumentTypeError(
                f"{name!r} is for {SIZES[own]} and takes {own}; got {override}, which is for {SIZES[override]}"
            )
        if override not in parameters:
            unknown_name("argument", override, parameters, of=f"of {name!r}")
    arguments = {**preset, **overrides}
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in arguments]
    if missing:
        raise ArgumentTypeError(f"create_model({name!r}, …) is missing the arguments {', '.join(missing)}")
    return kind(**arguments)


def list_models(pattern: str = "*") -> list[str]:
    """Names for `create_model` that match a pattern such as "flex*"."""
    return sorted(fnmatch.filter(MODELS, pattern))
