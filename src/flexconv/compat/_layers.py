"""Read layers and generators of the authors' code.

Every tensor that is read is removed from the state. Tensors that remain at the end are an error, see `check_all_used`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ..errors import ArgumentError
from ..nn import (
    MLP,
    NSIREN,
    SIREN,
    FlexConv1d,
    FlexConv2d,
    FourierNet,
    GaborNet,
    GaussianMask,
    KernelGenerator,
    MAGNet,
    NJet,
)

_LAYERS = {1: FlexConv1d, 2: FlexConv2d}


def read_layer(
    tensors: dict[str, torch.Tensor],
    *,
    kernel_size: int | Sequence[int],
    generator: str,
    sampling_scale: float,
    cropping: bool,
) -> FlexConv1d | FlexConv2d:
    """A FlexConv, CKConv or N-Jet layer; the arguments are those of `from_authors`."""
    if "alphas" in tensors:
        return _read_njet(tensors, kernel_size)
    prefix = "Kernel."
    inner = {name.removeprefix(prefix): tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
    try:
        kernel = read_generator(generator, inner)
    except KeyError as error:
        raise KeyError(f"{prefix}{error.args[0]}") from error
    if kernel.dims not in _LAYERS:
        raise ArgumentError(f"the authors' layers have 1 or 2 axes; the kernel of this state has {kernel.dims}")
    mask_params, bias = tensors.pop("mask_params", None), tensors.pop("bias")
    for name in ("train_length", "conv_kernel"):  # buffers: the horizon during training, and a cached kernel
        tensors.pop(name, None)
    check_all_used(tensors)
    mask = None
    if mask_params is not None:
        mask = GaussianMask(
            kernel.dims, mean=0.0, threshold=0.1 if cropping else None, form="authors", dtype=mask_params.dtype
        )
        _assign(mask, mean=mask_params[:, 0], sigma=mask_params[:, 1])
    layer = _LAYERS[kernel.dims](
        kernel.channels // len(bias),
        len(bias),
        kernel_size,
        padding="causal" if kernel.dims == 1 else "same",
        dtype=bias.dtype,
        generator=kernel,
        mask=mask,
        parametrization="paper",
    )
    _assign(layer, bias=bias)
    layer.grid = layer.grid._replace(scale=float(sampling_scale))
    return layer


def read_plain_conv(state: dict[str, torch.Tensor]) -> torch.nn.Conv2d:
    weight, bias = state.pop("weight"), state.pop("bias", None)
    check_all_used(state)
    if weight.ndim != 4:
        raise ArgumentError(
            f"the weight of a plain convolution must have shape [out, in, height, width]; got {tuple(weight.shape)}"
        )
    out_channels, in_channels, *size = weight.shape
    conv = torch.nn.Conv2d(in_channels, out_channels, tuple(size), bias=bias is not None, dtype=weight.dtype)  # type: ignore[arg-type]
    _assign(conv, weight=weight, **({} if bias is None else {"bias": bias}))
    return conv


def _read_mfn(state: dict[str, torch.Tensor], make: Callable[..., Any]) -> KernelGenerator:
    """MAGNet, GaborNet and FourierNet: `filters.i.…`, `linear.i.…` and `output_linear.…`."""
    layers = len([name for name in state if re.fullmatch(r"linear\.\d+\.weight", name)])
    filters = range(layers + 1)
    hidden, dims = state["filters.0.linear.weight"].shape[:2]
    steerable = {"steerable": True} if "filters.0.theta" in state else {}
    output = state["output_linear.weight"]
    net = make(dims, len(output), hidden=hidden, layers=layers, dtype=output.dtype, **steerable)
    _assign(
        net,
        frequency=_stack("frequency", [_matrix(state.pop(f"filters.{i}.linear.weight")) for i in filters]),
        phase=_stack("phase", [state.pop(f"filters.{i}.linear.bias") for i in filters]),
        mix_weight=_stack("mix_weight", [_matrix(state.pop(f"linear.{i}.weight")) for i in range(layers)]),
        mix_bias=_stack("mix_bias", [state.pop(f"linear.{i}.bias") for i in range(layers)]),
    )
    for name in ("mu", "gamma", "theta"):
        if getattr(net, name, None) is not None:
            _assign(net, **{name: _stack(name, [state.pop(f"filters.{i}.{name}") for i in filters])})
    _assign(net.output, weight=_matrix(state.pop("output_linear.weight")), bias=state.pop("output_linear.bias"))
    check_all_used(state)
    return net


def _read_perceptron(state: dict[str, torch.Tensor], make: Callable[..., Any]) -> KernelGenerator:
    """SIREN, NSIREN and MLP: `kernel_net.i.…`, where i also counts activations and norms."""
    indices = sorted({int(name.split(".")[1]) for name in state})
    maps = [i for i in indices if f"kernel_net.{i}.bias" in state]
    weight_norm = f"kernel_net.{maps[0]}.weight_v" in state
    first = state[f"kernel_net.{maps[0]}.weight{'_v' if weight_norm else ''}"]
    last = state[f"kernel_net.{maps[-1]}.bias"]
    options: dict[str, Any] = {"weight_norm": True} if weight_norm else {}
    net = make(first.shape[1], len(last), hidden=first.shape[0], layers=len(maps), dtype=last.dtype, **options)
    for i, linear in zip(maps, net.maps, strict=True):
        for name in ("weight_v", "weight_g") if weight_norm else ("weight",):
            _assign(linear, **{name: _matrix(state.pop(f"kernel_net.{i}.{name}"))})
        _assign(linear, bias=state.pop(f"kernel_net.{i}.bias"))
    if isinstance(net, SIREN):
        omegas = [state.pop(f"kernel_net.{i}.omega_0") for i in maps[:-1]]
        _assign(net, omega_0=_stack("omega_0", [omega.reshape(-1) for omega in omegas]).squeeze(-1))
        net.initial_omega_0 = float(omegas[0])
    check_all_used(state)
    return net


def _read_njet(state: dict[str, torch.Tensor], kernel_size: int | Sequence[int]) -> FlexConv2d:
    """The authors' weights are [derivative, in, out], with derivatives (i, j) in order of rising i and falling j."""
    alphas = state.pop("alphas")
    count, in_channels, out_channels = alphas.shape
    order = next(n for n in range(count) if (n + 1) * (n + 2) // 2 == count)
    layer = FlexConv2d(
        in_channels,
        out_channels,
        kernel_size,
        bias=False,
        dtype=alphas.dtype,
        generator=partial(NJet, order=order),
        mask=None,
        parametrization="paper",
    )
    njet = layer.generator
    assert isinstance(njet, NJet)
    listed = [(i, j) for i in range(order + 1) for j in range(order - i, -1, -1)]
    reordered = torch.stack([alphas[listed.index(n)] for n in njet.orders])  # type: ignore[arg-type]
    _assign(
        njet, alpha=reordered.permute(2, 1, 0).reshape(out_channels * in_channels, count), scale=state.pop("scales")
    )
    check_all_used(state)
    return layer


def read_generator(name: str, state: dict[str, torch.Tensor]) -> KernelGenerator:
    """A generator by its name in `READERS`."""
    read, make = READERS[name]
    prefix = "filters." if read is _read_mfn else "kernel_net."
    if not any(key.startswith(prefix) for key in state):
        raise ArgumentError(
            f"a generator {name!r} has names that start with {prefix!r}; the state has {', '.join(list(state)[:4])} …"
        )
    return read(state, make)


READERS: dict[str, tuple[Callable[..., KernelGenerator], type[KernelGenerator]]] = {
    "magnet": (_read_mfn, MAGNet),
    "gabor": (_read_mfn, GaborNet),
    "fourier": (_read_mfn, FourierNet),
    "siren": (_read_perceptron, SIREN),
    "nsiren": (_read_perceptron, NSIREN),
    "mlp": (_read_perceptron, MLP),
}


def _matrix(weight: torch.Tensor) -> torch.Tensor:
    """A 1×1 convolution's weight [out, in, 1, …] as a matrix [out, in]."""
    return weight.flatten(1)


def _assign(module: torch.nn.Module, **values: torch.Tensor) -> None:
    """Copy tensors to the parameters or buffers of these names."""
    with torch.no_grad():
        for name, value in values.items():
            target = getattr(module, name)
            if target.shape != value.shape:
                shapes = f"has shape {tuple(target.shape)}; the state has {tuple(value.shape)}"
                raise ArgumentError(f"{name} of {type(module).__name__} {shapes}")
            target.copy_(value)


def _stack(name: str, values: list[torch.Tensor]) -> torch.Tensor:
    """The tensors of all layers of a generator as one."""
    shapes = [tuple(value.shape) for value in values]
    if len(set(shapes)) > 1:
        raise ArgumentError(f"{name} must have the same shape in all layers of a generator; the state has {shapes}")
    return torch.stack(values)


def check_all_used(state: Mapping[str, torch.Tensor]) -> None:
    """Raise an error if tensors of the state were not read."""
    if state:
        raise ArgumentError(f"the state has unexpected names: {', '.join(sorted(state))}")
