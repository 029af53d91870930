"""Move the scale of kernels into the norms behind them, so that a network fits into float16.

A norm divides its input by its standard deviation, so the scale of the convolution before it does not matter to the
result. Nothing keeps it small in training: kernels of trained networks reach 60000, and variances 10¹¹. float16 ends at
65504. Here kernel, bias and running statistics are divided by the same powers of two, which is exact. The scale of a
depthwise convolution can move into the 1×1 convolution behind it in the same way, and from there into a norm.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, TypeGuard

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from ._hooks import hooks_of
from .errors import ArgumentTypeError
from .nn import FLOAT16_MAX, FlexConv1d, FlexConvNd, PointwiseConvNd, SeparableFlexConv1d, SeparableFlexConvNd

LARGEST_STD = 64.0  # of the input of a norm: smaller ones are left as they are
SMALLEST_STD = 16.0  # after the division: the variance is so large that the norm's eps, 1e-5, makes no difference

Pair: TypeAlias = tuple[nn.Module | tuple[nn.Module, ...], nn.Module]  # several convolutions, whose sum is normalized
Convolution: TypeAlias = FlexConvNd | _ConvNd

# A subclass with another `forward` may compute something else, such as the convolution with a standardized kernel.
_KNOWN = (
    FlexConvNd,
    FlexConv1d,
    SeparableFlexConvNd,
    SeparableFlexConv1d,
    PointwiseConvNd,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
)
_FORWARDS = {cls.forward for cls in _KNOWN}


def move_scale_to_norms(model: nn.Module, pairs: Iterable[Pair] | None = None) -> list[str]:
    """Divide large kernels, and the statistics of the norms behind them, by powers of two. Changes `model` in place.

        move_scale_to_norms(model)
        model.half()

    The output of the model is the same up to rounding in float32. The networks of `flexconv.models` do this by
    themselves in `.half()`, and `flexconv.materialize` does it for the network that it returns.

    Arguments:
        pairs: (convolution, norm) for every norm that is the only consumer of a convolution's output. By default these
            are consecutive modules of an `nn.Sequential`, and those that a module lists in its method
            `conv_norm_pairs()`, as the blocks of `flexconv.models` do. A 1×1 convolution can take the place of a norm,
            and a tuple of convolutions whose outputs are added can take the place of a convolution.

    Returns:
        The names of the convolutions that were changed. Pairs whose scale cannot be moved are left as they are: custom
        generators without a linear output map, shared or parametrized parameters, subclasses of convolutions with
        another `forward`, other kinds of norms.

    """
    names = {id(module): name for name, module in model.named_modules()}
    uses = _count_uses(model)
    changed = []
    for before, norm in _listed_pairs(model) if pairs is None else _checked(pairs):
        convs = [_convolution_in(each) for each in (before if isinstance(before, tuple) else (before,))]
        if _can_be_scaled(convs, norm, uses) and _move(convs, norm):
            changed += [names.get(id(conv), type(conv).__name__) for conv in convs]
    order = {name: number for number, name in enumerate(names.values())}
    return sorted(changed, key=lambda name: order.get(name, len(order)))


def _count_uses(model: nn.Module) -> Counter[int]:
    """In how many places each module and parameter appears, by id."""
    modules = model.named_modules(remove_duplicate=False)
    parameters = model.named_parameters(remove_duplicate=False)
    return Counter(id(each) for _, each in itertools.chain(modules, parameters))


def _checked(pairs: Iterable[Pair]) -> Iterator[Pair]:
    for pair in pairs:
        before, norm = pair if isinstance(pair, Sequence) and len(pair) == 2 else ((), None)
        modules = [*(before if isinstance(before, tuple) else [before]), norm]
        if len(modules) < 2 or not all(isinstance(each, nn.Module) for each in modules):
            raise ArgumentTypeError(f"pairs must hold (convolution, norm) modules; got {pair!r}")
        yield pair


def _listed_pairs(model: nn.Module) -> Iterator[Pair]:
    """The pairs that can be seen in a model.

    Those of inner modules come first, because a scale moves to the 1×1 convolution at the end of a separable one, and
    from there to the norm outside of it.
    """
    for module in reversed(list(model.modules())):
        if _is_sequential(module):
            yield from itertools.pairwise(module._modules.values())  # type: ignore[misc]  (none is None)
        elif hasattr(module, "conv_norm_pairs"):
            yield from module.conv_norm_pairs()  # type: ignore[operator]


def _convolution_in(module: nn.Module) -> Convolution | None:
    """The module if it is a convolution, or its last one: of an `nn.Sequential`, or of a separable convolution."""
    if _is_sequential(module) and not hooks_of(module):
        module = next(reversed(list(module.children())), module)  # behind padding, as `materialize` makes it
    elif isinstance(module, SeparableFlexConvNd) and _has_known_forward(module) and not hooks_of(module):
        module = module.pointwise
    return module if isinstance(module, (FlexConvNd, _ConvNd)) else None


def _is_sequential(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _can_be_scaled(
    convs: list[Convolution | None], norm: nn.Module, uses: Counter[int]
) -> TypeGuard[list[Convolution]]:
    modules = [*convs, norm]
    known = isinstance(norm, (_BatchNorm, nn.GroupNorm, PointwiseConvNd))
    if not known or any(module is None or hooks_of(module) or not _is_linear(module) for module in modules):
        return False
    parameters = [parameter for module in modules if module is not None for parameter in module.parameters()]
    shared = any(uses[id(each)] > 1 for each in (*modules, *parameters))
    return not shared and not any(p.is_meta for p in parameters)


def _is_linear(module: nn.Module) -> bool:
    """Whether a convolution is proportional to the parameters of its kernel. True for other modules."""
    if isinstance(module, FlexConvNd):
        output = module.generator.output_map
        if output is None or not module.generator.has_factors or type(module).sample is not FlexConvNd.sample:
            return False
        weight = "weight_g" if output.weight_norm else "weight"
        return _has_known_forward(module) and _stores(module, "bias") and _stores(output, weight, "bias")
    if isinstance(module, _ConvNd):
        return _has_known_forward(module) and _stores(module, "weight", "bias")
    return True


def _has_known_forward(module: nn.Module) -> bool:
    return type(module).forward in _FORWARDS


def _stores(module: nn.Module, *names: str) -> bool:
    """Whether these are parameters or None, and not computed from others as by `torch.nn.utils.parametrize`."""
    return all(name in module._parameters or getattr(module, name) is None for name in names)


@torch.no_grad()
def _move(convs: list[Convolution], norm: nn.Module) -> bool:
    """Divide the kernels and what depends on their scale. Returns whether there was anything to divide."""
    factor = _power_of_two(torch.stack([_output_std(conv, norm) for conv in convs]).amax(0))
    if not (factor > 1).any():
        return False
    tensors = [each for conv in convs for each in _parameters_of_kernel(conv, factor)]
    tensors += [(conv.bias, factor) for conv in convs if conv.bias is not None]
    if isinstance(norm, _BatchNorm) and norm.running_mean is not None and norm.running_var is not None:
        tensors += [(norm.running_mean, factor), (norm.running_var, factor.square())]
    elif isinstance(norm, PointwiseConvNd):
        tensors.append((norm.weight, 1 / factor.view(-1, *[1] * norm.dims)))
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


# --- batch norms in evaluation ----------------------------------------------------------------------------------------


@torch.no_grad()
def scale_norms_for_evaluation(model: nn.Module) -> None:
    """Divide variances of batch norms that float16 cannot represent, and their weights. Changes `model` in place.

    A norm of a sum has no convolution before it that the scale could come from. In evaluation, the variance and the
    square of the weight can be divided by the same power of four instead. In training the result would be another one,
    so this is for networks that are only evaluated.
    """
    uses = _count_uses(model)
    for norm in model.modules():
        if not isinstance(norm, _BatchNorm) or norm.training or norm.running_var is None or norm.running_var.is_meta:
            continue
        if norm.weight is None or uses[id(norm.weight)] > 1 or not (norm.running_var > FLOAT16_MAX).any():
            continue
        factor = _power_of_two(norm.running_var.sqrt())
        norm.running_var.div_(factor.square().to(norm.running_var.dtype))
        norm.weight.div_(factor.to(norm.weight.dtype))
