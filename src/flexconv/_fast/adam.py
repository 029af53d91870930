"""Fused Adam for captured steps, with large parameters split so that they use the whole GPU.

Torch's fused Adam assigns 65,536 numbers to a thread block and 36 tensors to a launch. A parameter of about that size
occupies one multiprocessor while the others are idle. Views of a few thousand numbers are distributed over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .._registry import provide

PIECE = 4096  # minimum size of a piece, in numbers
PIECES = 36  # maximum number of pieces of a parameter: the number of tensors in one launch


class FusedAdam(torch.optim.Adam):
    """`torch.optim.Adam(…, fused=True)`, or AdamW with `decoupled_weight_decay`: same results, same state.

    For parameters of one dtype on one device. Parameters of a `capturable` group are split. This costs host time in
    every step, but not in a replay.
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        decoupled_weight_decay: bool,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, decoupled_weight_decay=decoupled_weight_decay, fused=True)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, also one of an Adam that was not fused. Step counts are moved to the device."""
        groups = [{**group, "fused": True} for group in state_dict["param_groups"]]
        super().load_state_dict({**state_dict, "param_groups": groups})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Run one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        lists: list[list[torch.Tensor]] = [[] for _ in range(6)]
        self._init_group(group, *lists)
        params, grads, means, squares, _, steps = lists
        if not params:
            return
        torch._foreach_add_(steps, 1)
        pieces = [
            (*piece, step)
            for *whole, step in zip(params, grads, means, squares, steps, strict=True)
            for piece in (_split(whole) if group["capturable"] else [whole])
        ]
        params, grads, means, squares, counts = map(list, zip(*pieces, strict=True))
        update = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
        found_inf = getattr(self, "found_inf", None)  # set by a gradient scaler, as is `grad_scale`
        update(
            params,
            grads,
            means,
            squares,
            [],
            counts,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=group["maximize"],
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=found_inf,
        )
        if found_inf is not None:
            torch._foreach_sub_(steps, [found_inf] * len(steps))


def _split(tensors: Sequence[torch.Tensor]) -> Iterator[Sequence[torch.Tensor]]:
    """Split tensors of one shape into flat views. Small or non-contiguous tensors are not split."""
    count = tensors[0].numel()
    if count <= PIECE or not all(tensor.is_contiguous() for tensor in tensors):
        yield tensors
        return
    size = PIECE * math.ceil(count / (PIECE * PIECES))
    yield from zip(*(tensor.view(-1).split(size) for tensor in tensors), strict=True)


provide("train.adam", FusedAdam)
