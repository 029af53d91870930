"""Pictures need matplotlib, which a plain install does not bring."""

from __future__ import annotations

import io
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("matplotlib") else ["test_*.py"]


@pytest.fixture
def draw():
    """Renders a figure, so that whatever would go wrong on saving goes wrong here, and gives it back."""

    def render(figure):
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=40)
        assert buffer.tell() > 1000
        return figure

    return render


def marked(panel, gid):
    """Whatever was drawn in a panel under a name, in order."""
    return [artist for artist in panel.get_children() if artist.get_gid() == gid]


def title_of(figure):
    return figure.get_suptitle()
