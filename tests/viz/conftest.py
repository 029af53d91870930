"""Plots need matplotlib, which the minimal installation does not include."""

from __future__ import annotations

import io
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("matplotlib") else ["test_*.py"]


@pytest.fixture
def draw():
    """Render a figure, so that errors in saving it show up in the test, and return it."""

    def render(figure):
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=40)
        assert buffer.tell() > 1000
        return figure

    return render


def marked(panel, gid):
    """The artists of a panel with the given gid, in drawing order."""
    return [artist for artist in panel.get_children() if artist.get_gid() == gid]


def title_of(figure):
    return figure.get_suptitle()
