"""Runs without plots, which take longer than the training of a tiny network."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch):
    """Fixtures of a module, such as `finished` in test_loop.py, are made before, and have plots."""
    monkeypatch.setattr("flexconv.train.run.draw_plots", lambda *_: None)
