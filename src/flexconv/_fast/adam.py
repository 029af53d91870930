"""Adam for a captured step: fused, in pieces that keep a whole GPU busy.

Torch's fused Adam gives 65,536 numbers to a thread block and 36 tensors to a launch. A parameter of about that size
keeps one processor of a GPU busy while all others wait; views of a few thousand numbers each are shared out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .._registry import provide

PIECE = 4096  # numbers, at least
PIECES = 36  # of a parameter, at most: what one launch takes


class FusedAdam(torch.optim.Adam):
    """`torch.optim.Adam(…, fused=True)`, or AdamW with `decoupled_weight_decay`: the same numbers and the same state.

    For parameters of one dtype, on one device. Where a group is `capturable` they are cut up: that costs the host time
    at every step, but a replay nothing.
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
        """As torch's own; and fused it stays, with its counters on the device, whatever saved the state was not."""
        groups = [{**group, "fused": True} for group in state_dict["param_groups"]]
        super().load_state_dict({**state_dict, "param_groups": groups})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step, as torch's own."""
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
            for piece in (_cut(whole) if group["capturable"] else [whole])
        ]
        params, grads, means, squares, counts = map(list, zip(*pieces, strict=True))
        update = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
        found_inf = getattr(self, "found_inf", None)  # from a scaler of gradients, as the scale is
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


def _cut(tensors: Sequence[torch.Tensor]) -> Iterator[Sequence[torch.Tensor]]:
    """Views [n] of tensors of one shape, all cut alike; the tensors themselves where they are small, or have gaps."""
    count = tensors[0].numel()
    if count <= PIECE or not all(tensor.is_contiguous() for tensor in tensors):
        yield tensors
        return
    size = PIECE * math.ceil(count / (PIECE * PIECES))
    yield from zip(*(tensor.view(-1).split(size) for tensor in tensors), strict=True)


provide("train.adam", FusedAdam)
