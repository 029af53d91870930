"""The version of flexconv. pyproject.toml reads it from here; CITATION.cff must agree."""

__version__ = "0.1.0"
