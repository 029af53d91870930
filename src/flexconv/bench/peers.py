"""The time of a FlexConv layer next to other layers with kernels of the same size, in one run.

The other layers are plain convolutions, convolutions by `torch.fft`, and those of packages that need not be installed:
fft-conv-pytorch, dcls and nvsubquadratic. They are called, never copied. A layer that cannot be measured has a row with
the reason.
"""

from __future__ import annotations

import importlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from ..nn import FlexConv1d, FlexConv2d
from .ceilings import DTYPES
from .timing import Timing, measure, peak_memory

DCLS_ELEMENTS = 34  # of a kernel: the number that DCLS uses for 17 × 17 taps
CKCONV_WIDTH = 32  # of the hidden layers of the generator, as in MAGNet


class Case(NamedTuple):
    """A layer with as many output as input channels: causal in 1D, centered in 2D."""

    batch: int
    channels: int
    size: tuple[int, ...]
    taps: int
    depthwise: bool

    @property
    def groups(self) -> int:
        return self.channels if self.depthwise else 1

    @property
    def kernel(self) -> tuple[int, ...]:
        return (self.taps,) * len(self.size)


CASES = {
    "cuda": [
        Case(64, 64, (32, 32), 17, False),
        Case(64, 64, (32, 32), 33, False),
        Case(64, 768, (1024,), 1024, True),
        Case(64, 768, (4096,), 4096, True),
        Case(64, 96, (32, 32), 33, True),
        Case(64, 384, (56, 56), 31, True),
    ],
    "cpu": [
        Case(8, 24, (32, 32), 17, False),
        Case(8, 24, (32, 32), 33, False),
        Case(8, 64, (1024,), 1024, True),
        Case(8, 64, (32, 32), 33, True),
    ],
    "small": [Case(2, 3, (8, 8), 5, False), Case(2, 3, (24,), 24, True), Case(2, 3, (8, 8), 5, True)],
}

#: Published times and ratios. They are cited, not measured here.
PUBLISHED = [
    {
        "what": "FlexNet-7 by the authors, CIFAR-10, one batch in training, 16 × 16 and 32 × 32 pixels",
        "figure": "179 ± 7 and 222 ± 9 ms",
        "hardware": "not stated",
        "source": "FlexConv (Romero et al., ICLR 2022), paragraph on training at lower resolutions",
    },
    {
        "what": "FlashFFTConv, gated depthwise 1D, batch 64, 768 channels, 1,024 and 4,096 samples",
        "figure": "0.29 and 1.43 ms; PyTorch 2.30 and 9.49 ms",
        "hardware": "H100",
        "source": "README of HazyResearch/flash-fft-conv",
    },
    {
        "what": "nvSubquadratic 0.2.0, fused depthwise 2D, batch 8, 768 channels, bf16, forward + backward, 32 × 32 "
        "and 64 × 64 pixels",
        "figure": "4.4 and 4.9 times as fast as torch.fft",
        "hardware": "H100",
        "source": "NVIDIA-BioNeMo/nvSubquadratic, release 0.2.0 and pull request 138",
    },
    {
        "what": "RepLKNet, depthwise 2D, 64 × 1000 × 32 × 32, 31 × 31 taps, forward + backward",
        "figure": "193 ms; PyTorch 1,410 ms",
        "hardware": "not stated",
        "source": "DingXiaoH/RepLKNet-pytorch, issue 47",
    },
]


def bench_peers(device: torch.device, *, small: bool = False) -> Iterator[dict[str, Any]]:
    """Time forward and backward of layers in eager mode, including the computation of their kernels.

    Yields one row per case, precision and layer. Inputs have that precision, and bf16 is also that of autocast. The
    masks of "FlexConv" keep the whole grid, which is the same work as that of the other layers. Those of "FlexConv,
    initial mask" have their initial size.
    """
    for case in CASES["small" if small else "cuda" if device.type == "cuda" else "cpu"]:
        for precision in ("fp32", "bf16") if device.type == "cuda" else ("fp32",):
            yield from _rows(case, device, precision, 0.01 if small else 0.4)


def _rows(case: Case, device: torch.device, precision: str, seconds: float) -> Iterator[dict[str, Any]]:
    x = torch.randn(case.batch, case.channels, *case.size, device=device, dtype=DTYPES[precision], requires_grad=True)
    autocast = partial(torch.autocast, device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
    calls: dict[str, Callable[[], object]] = {}
    numbers: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for name, make in LAYERS.items():
        try:
            with quiet():
                layer = make(case).to(device)
                calls[name] = partial(_pass, layer, x, autocast)
                calls[name]()
            numbers[name] = sum(p.numel() for p in layer.parameters())
        except Exception as error:  # whatever other packages raise must not end the benchmark
            calls.pop(name, None)
            reasons[name] = _reason(error)
    with quiet():
        times = measure(calls, device, seconds=seconds)
        memory = {name: peak_memory(call, device) for name, call in calls.items()}
    for name in LAYERS:
        timing = times.get(name, Timing(math.nan, math.nan))
        measured = name in times
        yield {
            "case": case._asdict(),
            "precision": precision,
            "layer": name,
            "ms": timing.ms if measured else None,
            "spread": timing.spread if measured else None,
            "over_flexconv": timing.ms / times["FlexConv"].ms if measured and "FlexConv" in times else None,
            "peak_mib": memory.get(name),
            "parameters": numbers.get(name),
            "reason": reasons.get(name, ""),
        }


def _pass(layer: nn.Module, x: torch.Tensor, autocast: Any) -> object:
    with autocast():
        y = layer(x)
    assert y.shape == x.shape
    used = [p for p in layer.parameters() if p.requires_grad]
    return torch.autograd.grad(y, [x, *used], torch.ones_like(y), allow_unused=True)


def _reason(error: Exception) -> str:
    """What a table says about a layer that could not be measured."""
    if isinstance(error, NotAvailableError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name} is not installed"
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:120]}"


class NotAvailableError(Exception):
    """A package has no layer for a case."""


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore warnings and log messages of other packages, which would be printed for every layer."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# --- the layers -------------------------------------------------------------------------------------------------------


def _flexconv(case: Case, *, whole_grid: bool) -> nn.Module:
    if len(case.size) == 1:
        layer = FlexConv1d(case.channels, case.channels, case.taps, padding="causal", groups=case.groups)
    else:
        layer = FlexConv2d(case.channels, case.channels, case.taps, groups=case.groups)
    if whole_grid and layer.mask is not None:
        layer.mask.set_(sigma=2.0)
    return layer


class Causal(nn.Module):
    """A layer without padding, and zeros in front of its input."""

    def __init__(self, layer: nn.Module, taps: int) -> None:
        super().__init__()
        self.layer, self.taps = layer, taps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(F.pad(x, (self.taps - 1, 0)))


def _plain(case: Case) -> nn.Module:
    if len(case.size) == 1:
        return Causal(nn.Conv1d(case.channels, case.channels, case.taps, groups=case.groups), case.taps)
    return nn.Conv2d(case.channels, case.channels, case.taps, padding=case.taps // 2, groups=case.groups)


class TorchFFT(nn.Module):
    """A convolution in three lines of `torch.fft`, as one would write it without a package."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        fan_in = case.channels // case.groups
        self.weight = nn.Parameter(torch.randn(case.channels, fan_in, *case.kernel) / fan_in / case.taps)
        self.depthwise = case.depthwise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taps, axes = self.weight.shape[2:], tuple(range(2, x.ndim))
        left = [k - 1 if x.ndim == 3 else k // 2 for k in taps]
        size = [n + k - 1 for n, k in zip(x.shape[2:], taps, strict=True)]
        padded = F.pad(x.float(), [pad for each in reversed(left) for pad in (each, 0)])  # half precision has no FFT
        signal, kernel = torch.fft.rfftn(padded, size, axes), torch.fft.rfftn(self.weight, size, axes).conj()
        product = signal * kernel.squeeze(1) if self.depthwise else torch.einsum("bi...,oi...->bo...", signal, kernel)
        return torch.fft.irfftn(product, size, axes)[(..., *(slice(n) for n in x.shape[2:]))].to(x.dtype)


def _fft_conv_pytorch(case: Case) -> nn.Module:
    package = importlib.import_module("fft_conv_pytorch")
    if len(case.size) == 1:
        return Causal(package.FFTConv1d(case.channels, case.channels, case.taps, groups=case.groups), case.taps)
    return package.FFTConv2d(case.channels, case.channels, case.taps, padding=case.taps // 2, groups=case.groups)


def _dcls(case: Case) -> nn.Module:
    package = importlib.import_module("DCLS.construct.modules")
    settings: dict[str, Any] = {"kernel_count": DCLS_ELEMENTS, "dilated_kernel_size": case.taps, "groups": case.groups}
    if len(case.size) == 1:
        return Causal(package.Dcls1d(case.channels, case.channels, **settings), case.taps)
    return package.Dcls2d(case.channels, case.channels, padding=case.taps // 2, **settings)


class ChannelsFirst(nn.Module):
    """A layer of nvsubquadratic for inputs [batch, channels, *size]."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, is_bhl_input=True)


def _ckconv(case: Case) -> nn.Module:
    """CKConv with a SIREN, a Gaussian mask and the backend "torch_fft", which needs no compiled extension.

    Its kernel always covers the whole input: as many taps as samples if causal, and up to 2N − 1 for N pixels.
    """
    if not case.depthwise:
        raise NotAvailableError("depthwise only")
    modules = [f"nvsubquadratic.{name}" for name in ("lazy_config", "modules.ckconv_nd", "modules.kernels_nd")]
    config, layers, kernels = map(importlib.import_module, modules)
    masks = importlib.import_module("nvsubquadratic.modules.masks_nd")
    dims, (length, *_) = len(case.size), case.size
    kernel = config.LazyConfig(kernels.SIRENKernelND)(
        out_dim=case.channels,
        data_dim=dims,
        mlp_hidden_dim=CKCONV_WIDTH,
        num_layers=3,
        embedding_dim=CKCONV_WIDTH,
        omega_0=10.0,
        L_cache=length,
        use_bias=True,
    )
    mask = config.LazyConfig(masks.GaussianModulationND)(data_dim=dims, num_channels=case.channels, grid_size=length)
    layer = layers.CKConvND(
        data_dim=dims,
        hidden_dim=case.channels,
        kernel_cfg=kernel,
        mask_cfg=mask,
        grid_type="double",
        fft_padding="zero",
        is_causal=dims == 1,
        fft_backend="torch_fft",
    )
    return ChannelsFirst(layer)


LAYERS: dict[str, Callable[[Case], nn.Module]] = {
    "FlexConv": partial(_flexconv, whole_grid=True),
    "FlexConv, initial mask": partial(_flexconv, whole_grid=False),
    "torch.nn.Conv": _plain,
    "torch.fft": TorchFFT,
    "fft-conv-pytorch": _fft_conv_pytorch,
    "DCLS": _dcls,
    "CKConv (nvsubquadratic)": _ckconv,
}
