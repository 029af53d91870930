"""Affine maps in full float32 precision, whatever matmul precision the program has set."""

from __future__ import annotations

import math

import torch
from torch import nn

from ..._matmul import matmul


def affine(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x Wᵀ + b: x [n, in], weight [out, in], bias [out] → [n, out], in the precision of x."""
    return matmul(x, weight.to(x.dtype).t()) + bias.to(x.dtype)


class Affine(nn.Module):
    """A linear map. Weight ~ U(±weight_range), bias ~ U(±bias_range); both default to 1/√in, as in `nn.Linear`.

    With weight norm, W = g · v / ‖v‖ for each row: direction `weight_v` and length `weight_g` are separate parameters.
    `basis` [in + 1, in + 1] is a constant matrix or None. With it, the map is [W b] · basis · [x 1]. It decides how far
    a step of an optimizer moves the outputs.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        weight_norm: bool = False,
        weight_range: float | None = None,
        bias_range: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.weight_norm = in_features, out_features, weight_norm
        default = 1.0 / math.sqrt(in_features)
        self.weight_range = default if weight_range is None else weight_range
        self.bias_range = default if bias_range is None else bias_range
        weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        if weight_norm:
            self.weight_v = weight
            self.weight_g = nn.Parameter(torch.empty(out_features, 1, device=device, dtype=dtype))
        else:
            self.weight = weight
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        self.basis: torch.Tensor | None
        self.register_buffer("basis", None)
        self.reset_parameters()

    def reset_parameters(self, limit: float | None = None) -> None:
        """Draw weight and bias again, from U(±limit) if one is given."""
        weight = self.weight_v if self.weight_norm else self.weight
        weight_range, bias_range = (self.weight_range, self.bias_range) if limit is None else (limit, limit)
        nn.init.uniform_(weight, -weight_range, weight_range)
        nn.init.uniform_(self.bias, -bias_range, bias_range)
        if self.weight_norm:
            with torch.no_grad():
                self.weight_g.copy_(weight.norm(dim=1, keepdim=True))

    @torch.no_grad()
    def scale_rows_(self, factors: torch.Tensor) -> None:
        """Multiply every output by a factor: factors [out]."""
        (self.weight_g if self.weight_norm else self.weight).mul_(factors.to(self.bias).unsqueeze(1))
        self.bias.mul_(factors.to(self.bias))

    def effective_map(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight [out, in] and bias [out], with weight norm and basis applied."""
        weight, bias = self.own_map(dtype)
        if self.basis is None:
            return weight, bias
        both = matmul(torch.cat([weight, bias.unsqueeze(1)], 1), self.basis.to(dtype))
        return both[:, :-1], both[:, -1]

    def own_map(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight [out, in] and bias [out], with weight norm but without the basis."""
        return self._normed_weight(dtype), self.bias.to(dtype)

    def _normed_weight(self, dtype: torch.dtype) -> torch.Tensor:
        if not self.weight_norm:
            return self.weight.to(dtype)
        v = self.weight_v.to(dtype)
        return self.weight_g.to(dtype) * v / v.norm(dim=1, keepdim=True)

    def _load_from_state_dict(self, state_dict: dict[str, torch.Tensor], prefix: str, *args: object) -> None:  # type: ignore[override]
        """Load a state with or without a basis, which stands for the identity."""
        key, bias = f"{prefix}basis", state_dict.get(f"{prefix}bias")
        width = self.in_features + 1
        if self.basis is None and key in state_dict:
            self.basis = torch.eye(width, device=self.bias.device, dtype=self.bias.dtype)
        elif self.basis is not None and bias is not None:
            state_dict.setdefault(key, torch.eye(width, device=bias.device, dtype=bias.dtype))
        super()._load_from_state_dict(state_dict, prefix, *args)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return affine(x, *self.effective_map(x.dtype))

    def extra_repr(self) -> str:
        norm = ", weight_norm=True" if self.weight_norm else ""
        return f"{self.in_features}, {self.out_features}{norm}"
