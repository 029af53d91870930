"""One matrix times many sequences, each laid out as the rows of a matrix: y[s] = matrix · x[s].

    matrix [M, K], x [sequences, length ≤ K·width] → y [sequences, length' ≤ M·width]

Position p of a sequence is row p // width and column p mod width. Positions beyond the end of x count as zeros, and
positions beyond the end of y are not returned.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .._registry import has_fast_version


@has_fast_version("ops.row_product")
def row_product(matrix: torch.Tensor, x: torch.Tensor, width: int, length: int) -> torch.Tensor:
    """Return the first `length` positions of matrix · x[s] for every sequence s."""
    rows, terms = matrix.shape
    missing = terms * width - x.shape[1]
    x = (F.pad(x, (0, missing)) if missing else x).view(-1, terms, width)
    y = torch.bmm(matrix.expand(len(x), *matrix.shape), x).view(-1, rows * width)
    return y if length == rows * width else y[:, :length].contiguous()
