"""One matrix times many sequences, each laid out as rows: y[s] = matrix · x[s].

    matrix [m, k], x [sequences, length ≤ k·width] → y [sequences, length' ≤ m·width]

Position p of a sequence is row p // width, column p mod width. What x lacks behind its end counts as zero, what y would
have behind its own is not computed. Half precision on a GPU uses a Triton kernel, to which ends anywhere are free;
everything else a batch of products, with copies where ends do not fit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .._registry import has_fast_version


@has_fast_version("ops.row_product")
def row_product(matrix: torch.Tensor, x: torch.Tensor, width: int, length: int) -> torch.Tensor:
    """The first `length` positions of matrix · x[s], for every s."""
    rows, terms = matrix.shape
    missing = terms * width - x.shape[1]
    x = (F.pad(x, (0, missing)) if missing else x).view(-1, terms, width)
    y = torch.bmm(matrix.expand(len(x), *matrix.shape), x).view(-1, rows * width)
    return y if length == rows * width else y[:, :length].contiguous()
