"""A network as a list of simple steps that the script of the page can evaluate.

The network is materialized and traced by `torch.export`. Every operation of the traced graph becomes a step

    {"op": "conv", "inputs": [0], "weight": 3, "bias": 4, "stride": [1, 1], …}

whose result is numbered by its position: 0 is the input of the network, 1 the result of the first step. Weights are
numbers of tensors, stored as float32. The batch dimension is left out: tensors are [C, H, W] or [C]. Series are
images of height 1.
"""

from __future__ import annotations

import base64
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .._multiply_adds import multiply_adds
from ..errors import FlexConvError
from ..materialize import materialize

MAX_WEIGHTS = 700_000  # each takes 5.3 characters of the page
MAX_MULTIPLY_ADDS = 1_500_000_000  # a few seconds in a browser


class UnsupportedError(FlexConvError):
    """The reason why a network cannot be evaluated in the page."""


def program(model: nn.Module, shape: Sequence[int]) -> dict[str, Any]:
    """The steps of a network for inputs [1, C, H, W] or [1, C, L] → {"steps", "tensors", "work": multiply-adds}.

    Raises `UnsupportedError` if the network is too large or contains an operation that the page does not know.
    """
    work = sum(multiply_adds(model, shape).values())
    if work > MAX_MULTIPLY_ADDS:
        raise UnsupportedError(
            f"it needs {_millions(work)} multiply-adds per sample, and the page evaluates at most "
            f"{_millions(MAX_MULTIPLY_ADDS)}"
        )
    plain = materialize(model).eval().cpu().float()
    weights = sum(p.numel() for p in plain.parameters())
    if weights > MAX_WEIGHTS:
        raise UnsupportedError(
            f"its kernels have {_millions(weights)} taps, and the page stores at most {_millions(MAX_WEIGHTS)}"
        )
    example = torch.zeros(1, *shape[1:])
    with torch.no_grad():
        exported = torch.export.export(plain, (example,), strict=False)
    return {**_Translator(exported, len(shape) - 2).translate(), "work": work}


def _millions(count: int) -> str:
    return f"{count / 1e9:.3g} billion" if count >= 1e9 else f"{count / 1e6:.3g} million"


class _Translator:
    """Translates the graph of an exported program, node by node."""

    def __init__(self, exported: torch.export.ExportedProgram, dims: int) -> None:
        self.dims = dims
        signature = exported.graph_signature
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        state = {**exported.state_dict, **exported.constants}
        self.graph = exported.graph
        self.known: dict[str, torch.Tensor] = {node: state[name] for node, name in names.items()}
        self.steps: list[dict[str, Any]] = []
        self.tensors: list[torch.Tensor] = []
        self.numbers: dict[str, int] = {}  # of the results, by the name of their node

    def translate(self) -> dict[str, Any]:
        last = 0
        for node in self.graph.nodes:
            if node.op == "placeholder" and node.name not in self.known:
                self.numbers[node.name] = 0
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                (result,) = node.args[0]  # type: ignore[misc]
                last = self.result(result)
        return {"steps": self.steps, "result": last, "tensors": [_plain(tensor) for tensor in self.tensors]}

    def _call(self, node: torch.fx.Node) -> None:
        name = str(node.target).removeprefix("aten.").partition(".")[0]
        if name in _SAME:
            self.numbers[node.name] = self.result(node.args[0])
            return
        if name not in _STEPS or node.kwargs.get("dtype") is not None:
            raise UnsupportedError(f"the page does not know the operation {node.target}")
        self.steps.append(_STEPS[name](self, _arguments(node)))
        self.numbers[node.name] = len(self.steps)

    def result(self, argument: Any) -> int:
        """The number of the result that an argument refers to."""
        if not isinstance(argument, torch.fx.Node) or argument.name not in self.numbers:
            raise UnsupportedError(f"the page cannot use {argument} as an input")
        return self.numbers[argument.name]

    def constant(self, argument: Any) -> torch.Tensor | None:
        """The parameter or buffer that an argument refers to; None for None."""
        if argument is None:
            return None
        if not isinstance(argument, torch.fx.Node) or argument.name not in self.known:
            raise UnsupportedError(f"the page cannot use {argument}, which is computed, as a weight")
        return self.known[argument.name].detach()

    def pair(self, value: int | Sequence[int], along_height: int) -> list[int]:
        """A setting for height and width. Series have a height of 1, for which it is `along_height`."""
        values = [value] if isinstance(value, int) else list(map(operator.index, value))
        if self.dims == 1:
            return [along_height, values[0]]
        return values * 2 if len(values) == 1 else values

    def store(self, tensor: torch.Tensor | None) -> int | None:
        """The number of a stored tensor."""
        if tensor is None:
            return None
        self.tensors.append(tensor)
        return len(self.tensors) - 1


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of a call by name, including defaults."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((each.name for each in schema), node.args, strict=False)) | dict(node.kwargs)
    return {each.name: given.get(each.name, each.default_value) for each in schema}


def _plain(tensor: torch.Tensor) -> dict[str, Any]:
    data = tensor.float().contiguous().numpy().astype("<f4").tobytes()
    return {"shape": list(tensor.shape), "data": base64.b64encode(data).decode("ascii")}


# --- steps ------------------------------------------------------------------------------------------------------------


def _conv(graph: _Translator, given: Mapping[str, Any]) -> dict[str, Any]:
    padding = given["padding"]
    if isinstance(padding, str):
        raise UnsupportedError(f"the page does not know padding={padding!r} of a convolution")
    weight = graph.constant(given["weight"])
    assert weight is not None
    return {
        "op": "conv",
        "inputs": [graph.result(given["input"])],
        "weight": graph.store(weight.unsqueeze(2) if graph.dims == 1 else weight),
        "bias": graph.store(graph.constant(given["bias"])),
        "stride": graph.pair(given["stride"], 1),
        "padding": graph.pair(padding, 0),
        "dilation": graph.pair(given["dilation"], 1),
        "groups": given["groups"],
    }


def _batch_norm(graph: _Translator, given: Mapping[str, Any]) -> dict[str, Any]:
    """Batch norm in evaluation is x · scale + shift per channel."""
    weight, bias, mean, variance = (
        graph.constant(given[name]) for name in ("weight", "bias", "running_mean", "running_var")
    )
    if mean is None or variance is None:
        raise UnsupportedError("the page does not know batch norms without running statistics")
    scale = (variance.double() + given["eps"]).rsqrt()
    scale = scale if weight is None else scale * weight.double()
    shift = -mean.double() * scale
    shift = shift if bias is None else shift + bias.double()
    inputs = [graph.result(given["input"])]
    return {"op": "affine", "inputs": inputs, "scale": graph.store(scale), "shift": graph.store(shift)}


def _group_norm(graph: _Translator, given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "op": "group_norm",
        "inputs": [graph.result(given["input"])],
        "groups": given["num_groups"],
        "weight": graph.store(graph.constant(given["weight"])),
        "bias": graph.store(graph.constant(given["bias"])),
        "eps": given["eps"],
    }


def _linear(graph: _Translator, given: Mapping[str, Any]) -> dict[str, Any]:
    weight, bias = (graph.store(graph.constant(given[name])) for name in ("weight", "bias"))
    return {"op": "linear", "inputs": [graph.result(given["input"])], "weight": weight, "bias": bias}


def _pad(graph: _Translator, given: Mapping[str, Any]) -> dict[str, Any]:
    """Padding of the channels, rows and columns, before and after each."""
    pairs = [given["pad"][i : i + 2] for i in range(0, len(given["pad"]), 2)]  # from the last axis to the first
    if len(pairs) > graph.dims + 1:
        raise UnsupportedError("the page does not pad the batch")
    along = [[0, 0] for _ in range(graph.dims + 1 - len(pairs))] + [list(pair) for pair in reversed(pairs)]
    pads = [along[0], [0, 0], along[1]] if graph.dims == 1 else along
    inputs = [graph.result(given["self"])]
    return {"op": "pad", "inputs": inputs, "pads": pads, "mode": given["mode"], "value": given["value"] or 0.0}


def _pool(kind: str) -> Callable[[_Translator, Mapping[str, Any]], dict[str, Any]]:
    def step(graph: _Translator, given: Mapping[str, Any]) -> dict[str, Any]:
        plain = graph.pair(given["padding"], 0) == [0, 0] and not given["ceil_mode"]
        if not plain or graph.pair(given.get("dilation", 1), 1) != [1, 1] or given.get("divisor_override") is not None:
            raise UnsupportedError("the page does not know pooling with padding, dilation or ceil_mode")
        size = graph.pair(given["kernel_size"], 1)
        stride = graph.pair(given["stride"], 1) if given["stride"] else size
        return {"op": "pool", "kind": kind, "inputs": [graph.result(given["self"])], "size": size, "stride": stride}

    return step


def _mean(graph: _Translator, given: Mapping[str, Any]) -> dict[str, Any]:
    axes = sorted(axis % (graph.dims + 2) for axis in given["dim"])
    if axes != [2, 3][: graph.dims]:
        raise UnsupportedError(f"the page does not know a mean over the axes {given['dim']}")
    return {"op": "mean", "inputs": [graph.result(given["self"])], "keep": given["keepdim"]}


def _adaptive(graph: _Translator, given: Mapping[str, Any]) -> dict[str, Any]:
    if any(size != 1 for size in given["output_size"]):
        raise UnsupportedError(f"the page does not know adaptive pooling to {given['output_size']}")
    return {"op": "mean", "inputs": [graph.result(given["self"])], "keep": True}


def _flatten(graph: _Translator, given: Mapping[str, Any]) -> dict[str, Any]:
    if given["start_dim"] != 1 or given["end_dim"] != -1:
        raise UnsupportedError("the page does not know how to flatten some of the axes")
    return {"op": "flatten", "inputs": [graph.result(given["self"])]}


def _slice(graph: _Translator, given: Mapping[str, Any]) -> dict[str, Any]:
    start, end, axis = given["start"] or 0, given["end"], given["dim"]
    if axis == 0 or start < 0 or (end is not None and end < 0):
        raise UnsupportedError("the page does not know slices of the batch or from the end")
    end = None if end is None or end > 1 << 30 else end
    inputs = [graph.result(given["self"])]
    axis = axis - 1 if graph.dims == 2 or axis == 1 else 2
    return {"op": "slice", "inputs": inputs, "axis": axis, "start": start, "end": end, "step": given["step"]}


def _select(graph: _Translator, given: Mapping[str, Any]) -> dict[str, Any]:
    """One step of a series, such as the last."""
    if graph.dims != 1 or given["dim"] not in (2, -1):
        raise UnsupportedError(f"the page does not know how to select from the axis {given['dim']}")
    return {"op": "select", "inputs": [graph.result(given["self"])], "index": given["index"]}


def _pointwise(name: str, *options: str) -> Callable[[_Translator, Mapping[str, Any]], dict[str, Any]]:
    def step(graph: _Translator, given: Mapping[str, Any]) -> dict[str, Any]:
        first = given["self"] if "self" in given else given["input"]
        return {"op": "map", "name": name, "inputs": [graph.result(first)], **{each: given[each] for each in options}}

    return step


def _arithmetic(name: str) -> Callable[[_Translator, Mapping[str, Any]], dict[str, Any]]:
    """A sum or product of two results, of a result and a number, or of a result and a constant per channel."""

    def step(graph: _Translator, given: Mapping[str, Any]) -> dict[str, Any]:
        if given.get("alpha", 1) != 1:
            raise UnsupportedError("the page does not know sums with alpha")
        one, two = given["self"], given["other"]
        if isinstance(two, torch.fx.Node) and two.name in graph.numbers and _is_constant(graph, one):
            one, two = two, one
        if isinstance(two, torch.fx.Node) and two.name in graph.numbers:
            return {"op": name, "inputs": [graph.result(one), graph.result(two)]}
        values = torch.tensor(float(two)) if isinstance(two, int | float) else graph.constant(two)
        assert values is not None
        axis = graph.dims + 1  # of the channels, from the last
        per_channel = values.numel() == 1 or (values.ndim >= axis and values.numel() == values.shape[-axis])
        if not per_channel:
            raise UnsupportedError(f"the page cannot combine a result with a constant of shape {list(values.shape)}")
        neutral = {"add": torch.ones(1), "mul": torch.zeros(1)}[name]
        scale, shift = (neutral, values.flatten()) if name == "add" else (values.flatten(), neutral)
        stored = graph.store(scale), graph.store(shift)
        return {"op": "affine", "inputs": [graph.result(one)], "scale": stored[0], "shift": stored[1]}

    return step


def _is_constant(graph: _Translator, argument: Any) -> bool:
    return not isinstance(argument, torch.fx.Node) or argument.name in graph.known


_SAME = ("dropout", "contiguous", "clone", "alias", "detach", "feature_dropout")  # in evaluation, the input itself
_STEPS: dict[str, Callable[[_Translator, Mapping[str, Any]], dict[str, Any]]] = {
    "conv1d": _conv,
    "conv2d": _conv,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "linear": _linear,
    "pad": _pad,
    "max_pool1d": _pool("max"),
    "max_pool2d": _pool("max"),
    "avg_pool1d": _pool("mean"),
    "avg_pool2d": _pool("mean"),
    "mean": _mean,
    "adaptive_avg_pool1d": _adaptive,
    "adaptive_avg_pool2d": _adaptive,
    "flatten": _flatten,
    "select": _select,
    "slice": _slice,
    "add": _arithmetic("add"),
    "add_": _arithmetic("add"),
    "mul": _arithmetic("mul"),
    "relu": _pointwise("relu"),
    "relu_": _pointwise("relu"),
    "gelu": _pointwise("gelu", "approximate"),
    "silu": _pointwise("silu"),
    "silu_": _pointwise("silu"),
    "leaky_relu": _pointwise("leaky_relu", "negative_slope"),
    "sigmoid": _pointwise("sigmoid"),
    "tanh": _pointwise("tanh"),
}
