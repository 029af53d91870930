"""Load weights that were trained with the code of the paper's authors."""

from ._authors import from_authors as from_authors

__all__ = ["from_authors"]
