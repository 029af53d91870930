"""Move the scale of kernels into the norms behind them, so that a network fits into float16.

A norm divides its input by its standard deviation, so the scale of the convolution before it does not matter to the
result. Nothing keeps it small in training: kernels of trained networks reach 60000, and variances 10¹¹. float16 ends at
65504. Here kernel, bias and running statistics are divided by the same powers of two, which is exact.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from ._hooks import hooks_of
from .errors import ArgumentTypeError
from .nn import FlexConvNd

LARGEST_STD = 64.0  # of the input of a norm: smaller ones are left as they are
SMALLEST_STD = 16.0  # after the division: the variance is so large that the norm's eps, 1e-5, makes no difference

Pair: TypeAlias = tuple[nn.Module, nn.Module]
Convolution: TypeAlias = FlexConvNd | _ConvNd


def move_scale_to_norms(model: nn.Module, pairs: Iterable[Pair] | None = None) -> list[str]:
    """Divide large kernels, and the statistics of the norms behind them, by powers of two. Changes `model` in place.

        move_scale_to_norms(model)
        model.half()

    The output of the model is the same up to rounding in float32. The networks of `flexconv.models` do this by
    themselves in `.half()`, and `flexconv.materialize` does it for the network that it returns.

    Arguments:
        pairs: (convolution, norm) for every norm that is the only consumer of a convolution's output. By default these
            are consecutive modules of an `nn.Sequential`, and those that a module lists in its method
            `conv_norm_pairs()`, as the blocks of `flexconv.models` do.

    Returns:
        The names of the convolutions that were changed. Pairs whose scale cannot be moved are left as they are: custom
        generators without a linear output map, shared parameters, other kinds of norms.

    """
    names = {id(module): name for name, module in model.named_modules()}
    uses = _count_uses(model)
    changed = []
    for before, norm in _listed_pairs(model) if pairs is None else _checked(pairs):
        conv = _convolution_in(before)
        if conv is not None and _can_be_scaled(conv, norm, uses) and _move(conv, norm):
            changed.append(names.get(id(conv), type(conv).__name__))
    return changed


def _count_uses(model: nn.Module) -> Counter[int]:
    """In how many places each module and parameter appears, by id."""
    modules = model.named_modules(remove_duplicate=False)
    parameters = model.named_parameters(remove_duplicate=False)
    return Counter(id(each) for _, each in itertools.chain(modules, parameters))


def _checked(pairs: Iterable[Pair]) -> Iterator[Pair]:
    for pair in pairs:
        if not isinstance(pair, Sequence) or [isinstance(each, nn.Module) for each in pair] != [True, True]:
            raise ArgumentTypeError(f"pairs must hold (convolution, norm) modules; got {pair!r}")
        yield pair


def _listed_pairs(model: nn.Module) -> Iterator[Pair]:
    for module in model.modules():
        if _is_sequential(module):
            yield from itertools.pairwise(module._modules.values())  # type: ignore[misc]  (none is None)
        elif hasattr(module, "conv_norm_pairs"):
            yield from module.conv_norm_pairs()  # type: ignore[operator]


def _convolution_in(module: nn.Module) -> Convolution | None:
    """The module if it is a convolution, or the last one of an `nn.Sequential`, as `materialize` makes it."""
    if _is_sequential(module) and not hooks_of(module):
        module = next(reversed(list(module.children())), module)
    return module if isinstance(module, (FlexConvNd, _ConvNd)) else None


def _is_sequential(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _can_be_scaled(conv: Convolution, norm: nn.Module, uses: Counter[int]) -> bool:
    if hooks_of(conv) or hooks_of(norm) or not isinstance(norm, (_BatchNorm, nn.GroupNorm)):
        return False
    if isinstance(conv, FlexConvNd):
        linear = conv.generator.has_factors
    else:
        linear = not conv.transposed and "weight" in conv._parameters  # not parametrized
    parameters = [*conv.parameters(), *norm.parameters()]
    shared = any(uses[id(each)] > 1 for each in (conv, norm, *parameters))
    return linear and not shared and not any(p.is_meta for p in parameters)


@torch.no_grad()
def _move(conv: Convolution, norm: nn.Module) -> bool:
    """Divide the kernel and what depends on its scale. Returns whether there was anything to divide."""
    factor = _power_of_two(_output_std(conv, norm))
    if not (factor > 1).any():
        return False
    tensors = _parameters_of_kernel(conv, factor)
    if conv.bias is not None:
        tensors.append((conv.bias, factor))
    if isinstance(norm, _BatchNorm) and norm.running_mean is not None and norm.running_var is not None:
        tensors += [(norm.running_mean, factor), (norm.running_var, factor.square())]
    for tensor, divisor in tensors:
        tensor.div_(divisor.to(tensor.dtype))
    return True


def _output_std(conv: Convolution, norm: nn.Module) -> torch.Tensor:
    """The standard deviation of each output channel: that of training, or an estimate for inputs of unit variance."""
    if isinstance(norm, _BatchNorm) and norm.running_var is not None:
        return norm.running_var.sqrt()
    kernel = conv.kernel() if isinstance(conv, FlexConvNd) else conv.weight
    norms = kernel.flatten(1).norm(dim=1)
    if isinstance(norm, nn.GroupNorm):  # channels of a group share their statistics
        largest = norms.unflatten(0, (norm.num_groups, -1)).amax(1, keepdim=True)
        return largest.expand(-1, len(norms) // norm.num_groups).flatten()
    return norms


def _power_of_two(std: torch.Tensor) -> torch.Tensor:
    """What brings a standard deviation to between SMALLEST_STD and twice that, if it is above LARGEST_STD."""
    exponent = torch.frexp(std.double() / SMALLEST_STD).exponent - 1
    factor = torch.ldexp(torch.ones_like(std), exponent)
    return torch.where((std > LARGEST_STD) & std.isfinite(), factor, torch.ones_like(factor))


def _parameters_of_kernel(conv: Convolution, factor: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The parameters that a kernel is proportional to, and what to divide them by."""
    if not isinstance(conv, FlexConvNd):
        return [(conv.weight, factor.view(-1, *[1] * (conv.weight.ndim - 1)))]
    output = conv.generator.output_map
    assert output is not None
    rows = factor.repeat_interleave(conv.in_channels // conv.groups)  # one for each pair of channels
    weight = output.weight_g if output.weight_norm else output.weight
    return [(weight, rows.unsqueeze(1)), (output.bias, rows)]
