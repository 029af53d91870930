"""Text from files and file names, for a terminal."""

from __future__ import annotations

import re

# control characters except newline and tab, marks that reorder text, line separators, and bytes of file names that are
# not UTF-8
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAKS = re.compile(r"[\n\t]")


def printable(text: str, *, one_line: bool = False) -> str:
    r"""Write control characters as \u001b and so on, so that a terminal shows them and does not obey them.

    `one_line`: newlines and tabs too. JSON stays JSON with the same content.
    """
    text = _UNPRINTABLE.sub(_escape, text)
    return _BREAKS.sub(_escape, text) if one_line else text


def encodable(text: str) -> str:
    r"""Write bytes of file names that are not UTF-8, and other surrogates, as \udcff and so on. The result is UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
