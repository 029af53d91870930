"""Weights of the authors' FlexConv code, in ours.

Their modules are rebuilt with the published behaviour (window symmetric about 0, no guards on the mask) and return the
published numbers, except where their FFT convolutions are wrong: those follow the convolution's definition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ._arguments import unknown_name
from .models import CIFARResNet, FlexNet, FlexTCN
from .models._base import Model
from .nn import (
    GENERATORS,
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

State = Mapping[str, torch.Tensor]

_LAYERS = {1: FlexConv1d, 2: FlexConv2d}


def from_authors(
    state: Mapping[str, Any],
    *,
    kernel_size: int | Sequence[int],
    generator: str = "magnet",
    sampling_scale: float = 1.0,
    cropping: bool = True,
) -> torch.nn.Module:
    """A network, a layer or a bare generator from a state in the authors' names, in eval mode and its precision.

    Arguments:
        state: names to arrays or tensors, as in their `state_dict()`, also that of a DataParallel. An image network
            has `blocks.…` and `out_layer.…` and becomes a `FlexNet`; one for sequences has `backbone.…` and
            `finallyr.…`: a `FlexTCN`; a CIFARResNet has `layer1.…` and `linear.…`. A layer has `Kernel.…`, `bias` and,
            unless it is a CKConv, `mask_params`; a bare generator has the names without `Kernel.`; an N-Jet `alphas`
            and `scales`. Networks come without dropout, of which a state tells nothing.
        kernel_size: the horizon, i.e. the size of the grid. (For a bare generator it has no meaning.)
        generator: "magnet", "gabor", "fourier", "siren", "nsiren" or "mlp".
        sampling_scale: the factor (r1/r2)^D their layers are built with at another resolution.
        cropping: their dynamic cropping.

    """
    if generator not in _READERS:
        unknown_name("generator", generator, _READERS)
    tensors = {name: torch.as_tensor(value).detach().cpu().clone() for name, value in state.items()}
    if tensors and all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    read_layer = partial(
        _read_layer, kernel_size=kernel_size, generator=generator, sampling_scale=sampling_scale, cropping=cropping
    )
    for mark, read_network in _NETWORKS.items():
        if any(name.startswith(mark) for name in tensors):
            return read_network(tensors, read_layer).eval()
    if "alphas" not in tensors and not any(name.startswith("Kernel.") for name in tensors):
        return _read_generator(generator, tensors).eval()
    return read_layer(tensors).eval()


# --- networks ---------------------------------------------------------------------------------------------------------

LayerReader = Callable[[dict[str, torch.Tensor]], torch.nn.Module]

#: our names and theirs, in the order in which they are replaced
_FLEXNET_NAMES = {
    r"^stem_norm\.": "norm1.",
    r"^stem\b": "cconv1",
    r"\.conv(\d)": r".cconv\1",
    r"\.shortcut\.": ".shortcut.0.",
    r"^head\.": "out_layer.",
}
_FLEXTCN_NAMES = _FLEXNET_NAMES | {r"^blocks\.": "backbone.", r"^head\.": "finallyr."}
_RESNET_NAMES = {r"^stem_norm\.": "bn1.", r"^stem\b": "conv1", r"\.norm(\d)": r".bn\1", r"^head\.": "linear."}


def _read_flexnet(state: dict[str, torch.Tensor], read_layer: LayerReader) -> FlexNet:
    stem, *others = _read_layers(state, read_layer, "cconv1", *_block_layers(state, "blocks"))
    widths = [_channels(layer)[1] for layer in others[1::2]]
    model = FlexNet(in_channels=_channels(stem)[0], widths=widths, dropout=0.0, **_arguments(state, "out_layer", stem))
    _load(model, state, _FLEXNET_NAMES, [stem, *others])
    return model


def _read_flextcn(state: dict[str, torch.Tensor], read_layer: LayerReader) -> FlexTCN:
    layers = _read_layers(state, read_layer, *_block_layers(state, "backbone"))
    widths = [_channels(layer)[1] for layer in layers[1::2]]
    arguments = _arguments(state, "finallyr", layers[0])
    model = FlexTCN(in_channels=_channels(layers[0])[0], widths=widths, dropout=0.0, **arguments)
    _load(model, state, _FLEXTCN_NAMES, layers)
    return model


def _read_resnet(state: dict[str, torch.Tensor], read_layer: LayerReader) -> CIFARResNet:
    blocks = len({found[0] for name in state if (found := re.match(r"layer\d\.\d+\.", name))}) // 3
    names = [f"layer{i // blocks + 1}.{i % blocks}" for i in range(3 * blocks)]
    layers = _read_layers(state, read_layer, "conv1", *[f"{name}.conv{i}" for name in names for i in (1, 2)])
    in_channels, width = _channels(layers[0])
    shortcut = "conv" if f"{names[-1].partition('.')[0]}.0.shortcut.0.weight" in state else "pad"
    model = CIFARResNet(
        in_channels=in_channels,
        depth=6 * blocks + 2,
        width=width,
        shortcut=shortcut,
        **_arguments(state, "linear", layers[0]),
    )
    _load(model, state, {rf"^blocks\.{i}\.": f"{name}." for i, name in enumerate(names)} | _RESNET_NAMES, layers)
    return model


_NETWORKS: dict[str, Callable[[dict[str, torch.Tensor], LayerReader], Model]] = {
    "blocks.": _read_flexnet,
    "backbone.": _read_flextcn,
    "layer1.": _read_resnet,
}


def _block_layers(state: State, blocks: str) -> list[str]:
    count = 1 + max(int(name.split(".")[1]) for name in state if name.startswith(f"{blocks}."))
    return [f"{blocks}.{i}.cconv{n}" for i in range(count) for n in (1, 2)]


def _read_layers(state: dict[str, torch.Tensor], read: LayerReader, *names: str) -> list[torch.nn.Module]:
    """The convolutions of a network, taken out of its state."""
    layers = []
    for name in names:
        prefix = f"{name}."
        inner = {key.removeprefix(prefix): state.pop(key) for key in list(state) if key.startswith(prefix)}
        if not inner:
            raise ValueError(f"the state has nothing of {name}")
        try:
            layers.append(_read_plain(inner) if "weight" in inner else read(inner))
        except KeyError as error:
            raise ValueError(f"the state lacks {prefix}{error.args[0]}") from error
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return layers


def _read_plain(state: dict[str, torch.Tensor]) -> torch.nn.Conv2d:
    weight, bias = state.pop("weight"), state.pop("bias", None)
    _refuse_rest(state)
    if weight.ndim != 4:
        raise ValueError(f"weight of a plain convolution must be [out, in, height, width]; got {tuple(weight.shape)}")
    out_channels, in_channels, *size = weight.shape
    conv = torch.nn.Conv2d(in_channels, out_channels, tuple(size), bias=bias is not None, dtype=weight.dtype)  # type: ignore[arg-type]
    _assign(conv, weight=weight, **({} if bias is None else {"bias": bias}))
    return conv


def _channels(layer: Any) -> tuple[int, int]:
    return layer.in_channels, layer.out_channels


def _arguments(state: State, head: str, layer: torch.nn.Module) -> dict[str, Any]:
    """What a network and its first convolution have in common, and the number of classes."""
    if f"{head}.weight" not in state:
        raise ValueError(f"the state lacks {head}.weight")
    weight = state[f"{head}.weight"]
    arguments: dict[str, Any] = {"num_classes": len(weight), "dtype": weight.dtype}
    if isinstance(layer, torch.nn.Conv2d):
        return arguments | {"conv": "plain", "kernel_size": layer.kernel_size}
    assert isinstance(layer, FlexConv1d | FlexConv2d)
    kernel_size = layer.kernel_size if layer.dims > 1 else layer.kernel_size[0]
    arguments |= {"conv": "flex" if layer.mask is not None else "ck", "kernel_size": kernel_size}
    if layer.mask is not None:
        arguments["mask_options"] = {"form": layer.mask.form, "threshold": layer.mask.threshold}
    net = layer.generator
    options: dict[str, Any] = {}
    if isinstance(net, NJet):
        options = {"order": net.order}
    elif isinstance(net, SIREN | MLP):
        maps: Any = net.maps
        options = {"hidden": maps[0].out_features, "layers": len(maps)}
        if isinstance(net, SIREN):
            options |= {"omega_0": net.initial_omega_0, "weight_norm": maps[0].weight_norm}
    elif isinstance(net, FourierNet | GaborNet):
        options = {"hidden": net.hidden, "layers": net.layers}
        if isinstance(net, GaborNet):
            options["steerable"] = net.steerable
    generator = next(name for name, kind in GENERATORS.items() if type(net) is kind)
    return arguments | {"generator": generator, "generator_options": options}


def _load(
    model: Model, state: dict[str, torch.Tensor], names: Mapping[str, str], layers: Sequence[torch.nn.Module]
) -> None:
    """Fill a network from its convolutions and the rest of its state."""
    ours = [(name, module) for name, module in model.named_modules() if name.endswith((".conv1", ".conv2", "stem"))]
    with torch.no_grad():
        for (name, target), layer in zip(ours, layers, strict=True):
            found, wanted = ({key: tuple(t.shape) for key, t in m.state_dict().items()} for m in (layer, target))
            if found != wanted:
                raise ValueError(f"{name} must be like the first convolution, with {wanted}; the state has {found}")
            target.load_state_dict(layer.state_dict())
            if isinstance(target, FlexConv1d | FlexConv2d):
                target.kernel_scale = layer.kernel_scale  # type: ignore[assignment]
        inside = tuple(f"{name}." for name, _ in ours)
        for name, tensor in model.state_dict(keep_vars=True).items():
            if name.startswith(inside):
                continue
            theirs = name
            for pattern, replacement in names.items():
                theirs = re.sub(pattern, replacement, theirs)
            if theirs not in state:
                if name.endswith("num_batches_tracked"):
                    continue
                raise ValueError(f"the state lacks {theirs}")
            value = state.pop(theirs)
            if value.numel() != tensor.numel() or value.shape[: tensor.ndim] != tensor.shape:
                raise ValueError(f"{theirs} must have shape {tuple(tensor.shape)}; the state has {tuple(value.shape)}")
            tensor.copy_(value.reshape(tensor.shape))
    _refuse_rest(state)


# --- layers -----------------------------------------------------------------------------------------------------------


def _read_layer(
    tensors: dict[str, torch.Tensor],
    *,
    kernel_size: int | Sequence[int],
    generator: str,
    sampling_scale: float,
    cropping: bool,
) -> FlexConv1d | FlexConv2d:
    if "alphas" in tensors:
        return _read_njet(tensors, kernel_size)
    prefix = "Kernel."
    inner = {name.removeprefix(prefix): tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
    kernel = _read_generator(generator, inner)
    mask_params, bias = tensors.pop("mask_params", None), tensors.pop("bias")
    for name in ("train_length", "conv_kernel"):  # the horizon they saw, and a cached kernel
        tensors.pop(name, None)
    _refuse_rest(tensors)
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
        kernel=kernel,
        mask=mask,
    )
    _assign(layer, bias=bias)
    layer.kernel_scale = float(sampling_scale)
    return layer


# --- generators -------------------------------------------------------------------------------------------------------


def _read_mfn(state: dict[str, torch.Tensor], make: Callable[..., Any]) -> KernelGenerator:
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
        if f"filters.0.{name}" in state:
            _assign(net, **{name: _stack(name, [state.pop(f"filters.{i}.{name}") for i in filters])})
    _assign(net.output, weight=_matrix(state.pop("output_linear.weight")), bias=state.pop("output_linear.bias"))
    _refuse_rest(state)
    return net


def _read_perceptron(state: dict[str, torch.Tensor], make: Callable[..., Any]) -> KernelGenerator:
    """SIREN, NSIREN and MLP: `kernel_net.i.…`, where i counts activations (and norms) too."""
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
    omegas = [state.pop(f"kernel_net.{i}.omega_0") for i in maps[:-1] if f"kernel_net.{i}.omega_0" in state]
    if omegas:
        _assign(net, omega_0=_stack("omega_0", [omega.reshape(-1) for omega in omegas]).squeeze(-1))
        net.initial_omega_0 = float(omegas[0])
    _refuse_rest(state)
    return net


def _read_njet(state: dict[str, torch.Tensor], kernel_size: int | Sequence[int]) -> FlexConv2d:
    """Their [derivative, in, out] weights; derivatives (i, j) listed with i rising and j falling."""
    alphas = state.pop("alphas")
    count, in_channels, out_channels = alphas.shape
    order = next(n for n in range(count) if (n + 1) * (n + 2) // 2 == count)
    layer = FlexConv2d(
        in_channels,
        out_channels,
        kernel_size,
        bias=False,
        dtype=alphas.dtype,
        kernel=partial(NJet, order=order),
        mask=None,
    )
    jet = layer.generator
    assert isinstance(jet, NJet)
    listed = [(i, j) for i in range(order + 1) for j in range(order - i, -1, -1)]
    reordered = torch.stack([alphas[listed.index(n)] for n in jet.orders])  # type: ignore[arg-type]
    _assign(jet, alpha=reordered.permute(2, 1, 0).reshape(out_channels * in_channels, count), scale=state.pop("scales"))
    _refuse_rest(state)
    return layer


def _read_generator(name: str, state: dict[str, torch.Tensor]) -> KernelGenerator:
    read, make = _READERS[name]
    prefix = "filters." if read is _read_mfn else "kernel_net."
    if not any(key.startswith(prefix) for key in state):
        raise ValueError(
            f"not the state of a {name!r}, which has names in {prefix}…: it has {', '.join(list(state)[:4])} …"
        )
    return read(state, make)


_READERS: dict[str, tuple[Callable[..., KernelGenerator], type[KernelGenerator]]] = {
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
    with torch.no_grad():
        for name, value in values.items():
            target = getattr(module, name)
            if target.shape != value.shape:
                shapes = f"has shape {tuple(target.shape)}; the state has {tuple(value.shape)}"
                raise ValueError(f"{name} of {type(module).__name__} {shapes}")
            target.copy_(value)


def _stack(name: str, values: list[torch.Tensor]) -> torch.Tensor:
    shapes = [tuple(value.shape) for value in values]
    if len(set(shapes)) > 1:
        raise ValueError(f"{name} of a generator must have one shape in all its layers; the state has {shapes}")
    return torch.stack(values)


def _refuse_rest(state: Mapping[str, torch.Tensor]) -> None:
    if state:
        raise ValueError(f"the state holds names that belong to no part of this module: {', '.join(sorted(state))}")
