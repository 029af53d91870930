"""The kernel of a layer as one node of autograd: features, mask and output map, forward and backward.

Three nodes do the same (`fused_sampler.py`, `fused_kernel.py`) with more time on the host. A second derivative is
computed by the plain version.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .._matmul import matmul
from ..nn import GaussianMask
from . import fused_sampler as fused
from .sampler_launches import Grid, MaskSettings

Optional = torch.Tensor | None


class Sampling(NamedTuple):
    """What a basis is computed from, besides tensors. `mask` is None for a layer without a mask."""

    grid: Grid
    settings: MaskSettings | None
    mask: weakref.ref[GaussianMask] | None
    masks: int  # number of parameters of the mask, which are the first of the tensors
    shape: tuple[int, ...]  # of the kernel: [out_channels, in_channels/groups, *sizes]


class Basis(NamedTuple):
    """A basis [taps, rank], and what its gradient needs."""

    values: torch.Tensor
    features: torch.Tensor
    kept: Optional


def sample_basis(sampling: Sampling, features: Optional, tensors: Sequence[Optional], *, keep: bool) -> Basis:
    """The features [taps, rank] under the mask.

    Arguments:
        sampling: The taps and the mask.
        features: Constant features, or None to compute them.
        tensors: Parameters of the mask, then those of the features and the basis of the output map.
        keep: Whether there will be a backward pass.

    """
    kept = None
    if features is None:
        *of_features, output_basis = tensors[sampling.masks :]
        features, kept = fused.launch_features(sampling.grid, of_features, keep=keep)
        if output_basis is not None:
            features = matmul(features, output_basis.t())
    if sampling.settings is None:
        return Basis(features, features, kept)
    parameters: Any = tensors[: sampling.masks]
    return Basis(fused.launch_mask(features, sampling.grid, sampling.settings, parameters), features, kept)


def basis_gradients(
    sampling: Sampling, basis: Basis, tensors: Sequence[Optional], grad: torch.Tensor, needed: Sequence[bool]
) -> list[Optional]:
    """Gradients of the tensors of `sample_basis`, from that of the basis. `needed` says of which."""
    masks = sampling.masks
    of_mask, of_features = True in needed[:masks], True in needed[masks:]
    found: list[Optional] = []
    d_features: Optional = grad
    if sampling.settings is not None:
        parameters: Any = tensors[:masks]
        d_features, found = fused.launch_mask_backward(
            basis.features, sampling.grid, sampling.settings, parameters, grad, of_features=of_features, of_mask=of_mask
        )
    if of_features:
        *of_tensors, output_basis = tensors[masks:]
        assert d_features is not None
        assert basis.kept is not None
        if output_basis is not None:
            d_features = matmul(d_features, output_basis)
        found += [*fused.launch_features_backward(sampling.grid, of_tensors, basis.kept, d_features), None]
    else:
        found += [None] * (len(tensors) - masks)
    return [gradient if wanted else None for gradient, wanted in zip(found, needed, strict=True)]


def plain_basis(sampling: Sampling, features: Optional, tensors: Sequence[Optional]) -> torch.Tensor:
    """`sample_basis` in operations that can be differentiated any number of times."""
    if features is None:
        *of_features, output_basis = tensors[sampling.masks :]
        features = fused.plain_features(sampling.grid.points(), *of_features)  # type: ignore[arg-type]
        if output_basis is not None:
            features = matmul(features, output_basis.t())
    if sampling.mask is None:
        return features
    parameters: Any = tensors[: sampling.masks]
    mask: Any = sampling.mask()
    return features * fused.plain_mask(mask, sampling.grid, parameters).unsqueeze(1)


class SampledKernel(torch.autograd.Function):
    """The kernel of a layer in a dtype, from constant features or None, output map, and tensors of `sample_basis`.

    Autocast must be disabled.
    """

    @staticmethod
    def forward(
        ctx: Any,
        sampling: Sampling,
        dtype: torch.dtype,
        features: Optional,
        weight: torch.Tensor,
        bias: torch.Tensor,
        *tensors: Optional,
    ) -> torch.Tensor:
        differentiable = True in ctx.needs_input_grad
        basis = sample_basis(sampling, features, tensors, keep=differentiable)
        mix = torch.cat([weight, bias.unsqueeze(1)], 1)
        kernel = matmul(mix, basis.values.t()).view(sampling.shape)
        if differentiable:
            ctx.sampling, ctx.constant = sampling, features is not None
            ctx.save_for_backward(weight, bias, mix, *basis, *tensors)
        return kernel if dtype is torch.float32 else kernel.to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Optional, ...]:
        weight, bias, mix, values, features, kept, *tensors = ctx.saved_tensors
        sampling, needed = ctx.sampling, ctx.needs_input_grad[3:]
        with without_autocast(weight):
            grad = grads[0].to(torch.float32).reshape(len(weight), -1)
            if torch.is_grad_enabled():  # for a second derivative

                def plain(weight: torch.Tensor, bias: torch.Tensor, *tensors: Optional) -> torch.Tensor:
                    basis = plain_basis(sampling, features if ctx.constant else None, tensors)
                    return matmul(torch.cat([weight, bias.unsqueeze(1)], 1), basis.t())

                return None, None, None, *fused.plain_gradients(plain, (weight, bias, *tensors), grad)
            d_weight = matmul(grad, values[:, :-1]) if needed[0] else None
            d_bias = torch.mv(grad, values[:, -1]) if needed[1] else None
            if True not in needed[2:]:
                return None, None, None, d_weight, d_bias, *(None,) * len(tensors)
            d_basis = matmul(grad.t(), mix)
            others = basis_gradients(sampling, Basis(values, features, kept), tensors, d_basis, needed[2:])
        return None, None, None, d_weight, d_bias, *others


# `Function.apply` without its handling of function transforms, in which this function is not used
sampled_kernel: Any = super(torch.autograd.Function, SampledKernel).apply  # type: ignore[misc]


class without_autocast:  # noqa: N801
    """Disable autocast for the device of a tensor, in less time than `torch.autocast` takes."""

    __slots__ = ("device",)

    def __init__(self, tensor: torch.Tensor) -> None:
        device = "cuda" if tensor.is_cuda else "cpu"
        self.device = device if torch.is_autocast_enabled(device) else None

    def __enter__(self) -> None:
        if self.device is not None:
            torch.set_autocast_enabled(self.device, False)

    def __exit__(self, *_: object) -> None:
        if self.device is not None:
            torch.set_autocast_enabled(self.device, True)
