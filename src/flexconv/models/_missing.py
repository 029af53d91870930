"""Missing samples in a network: the first layer fills them in, and later ones leave out what is still missing."""

from __future__ import annotations

import torch

from ..nn import FillsMissing, check_observed, inside


def check_seen(observed: torch.Tensor, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """Return `observed` as a bool tensor [batch, 1 or channels, *size]; raise if it does not fit x and its lengths."""
    return check_observed(observed, x, x.ndim - 2, None if lengths is None else inside(x, lengths))


def fill_first(
    first: FillsMissing,
    x: torch.Tensor,
    seen: torch.Tensor,
    lengths: torch.Tensor | None,
    counted: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fill in the missing samples of x for the first layer → x, and which positions count after it [batch, 1, *size].

    A position counts if a sample was observed there, or if the kernel of the first layer reaches an observed one.
    `counted` are the observed samples that count; all of `seen` by default.
    """
    exists = None if lengths is None else inside(x, lengths)
    x = first.fill_missing(x, seen, exists)
    observed = (seen if counted is None else counted).any(1, keepdim=True)
    if exists is not None:
        observed = observed & exists
    # A mask that is not around the current position may reach no observed sample. These count anyway, so that every
    # row has a position that counts.
    where = first.propagate_observed(observed) | observed
    return x, where if exists is None else where & exists


def hide_unreached(x: torch.Tensor, where: torch.Tensor | None) -> torch.Tensor:
    """Set x to 0 where a mask [batch, 1, *size] is False, so that it is like padding for the next convolution.

    Lengths [batch] and None hide nothing.
    """
    return x if where is None or where.ndim == 1 else x.masked_fill(~where, 0.0)
