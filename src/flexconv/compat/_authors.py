"""Load weights that were trained with the authors' code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from .._arguments import unknown_name
from ..errors import ArgumentError
from ._layers import READERS, read_generator, read_layer
from ._networks import NETWORKS


def from_authors(
    state: Mapping[str, Any],
    *,
    kernel_size: int | Sequence[int],
    generator: str = "magnet",
    sampling_scale: float = 1.0,
    cropping: bool = True,
) -> torch.nn.Module:
    """Create a network, a layer or a generator from a state dict of the authors' code.

    The module reproduces the outputs of the published code. Its masks have `form="authors"`: the window is symmetric
    about 0, and mean and sigma are not guarded. The only exception are cases in which an FFT convolution of the
    published code is incorrect; the module computes the correct convolution there. The module is in eval mode and has
    the dtype of the state.

    Arguments:
        state: names to arrays or tensors, as in the `state_dict()` of the authors' module or of a `DataParallel` that
            contains it. The names determine what is created. `blocks.…` and `out_layer.…` make a `FlexNet`,
            `backbone.…` and `finallyr.…` a `FlexTCN`, `layer1.…` and `linear.…` a `CIFARResNet`. A layer has
            `Kernel.…`, `bias` and, unless it is a CKConv, `mask_params`. A generator has the same names without
            `Kernel.`. An N-Jet layer has `alphas` and `scales`. Networks are created without dropout, because a state
            dict does not contain its rate.
        kernel_size: the size of the grid, which the authors call the horizon. It is ignored for a generator.
        generator: "magnet", "gabor", "fourier", "siren", "nsiren" or "mlp".
        sampling_scale: the factor (r1/r2)^D by which the authors' layers multiply their kernels at another resolution.
        cropping: whether the authors' dynamic cropping was enabled.

    """
    if generator not in READERS:
        unknown_name("generator", generator, READERS)
    tensors = {name: torch.as_tensor(value).detach().cpu().clone() for name, value in state.items()}
    if tensors and all(name.startswith("module.") for name in tensors):  # of a DataParallel
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    read = partial(
        read_layer, kernel_size=kernel_size, generator=generator, sampling_scale=sampling_scale, cropping=cropping
    )
    for prefix, read_network in NETWORKS.items():
        if any(name.startswith(prefix) for name in tensors):
            return read_network(tensors, read).eval()
    try:
        if "alphas" not in tensors and not any(name.startswith("Kernel.") for name in tensors):
            return read_generator(generator, tensors).eval()
        return read(tensors).eval()
    except KeyError as error:
        raise ArgumentError(f"the state has no {error.args[0]}") from error
