"""Batch normalization over the batches of all processes, on any device."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import ArgumentError


class _SumOverProcesses(torch.autograd.Function):
    """The sum over all processes. Every process uses it, so its gradient is a sum over all processes as well."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN001, ARG004
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ANN001, ARG004
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient


class SyncedBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm` with the statistics of the global batch. `torch.nn.SyncBatchNorm` needs a GPU."""

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002  (the name of the base class)
        if input.ndim < 2:
            raise ArgumentError(f"batch norm expects an input [batch, channels, …]; got {tuple(input.shape)}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        if not self.training:
            return super().forward(input)
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        axes = [0, *range(2, x.ndim)]
        shape = [1, -1] + [1] * (x.ndim - 2)
        count = torch.tensor(float(x.numel() // x.shape[1]), device=x.device, dtype=x.dtype)
        dist.all_reduce(count)
        mean = _SumOverProcesses.apply(x.sum(axes)) / count
        centred = x - mean.view(shape)
        variance = _SumOverProcesses.apply(centred.square().sum(axes)) / count
        self._track(mean.detach(), variance.detach(), count)
        y = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(input.dtype)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = 1.0 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var), share)


def synchronise_norms(model: nn.Module) -> nn.Module:
    """Convert every batch norm of a model to `SyncedBatchNorm`, in place. Parameters and their names stay the same."""
    for module in model.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
            module.__class__ = SyncedBatchNorm
    return model
