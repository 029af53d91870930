"""Regions: functions that are compiled only inside `compiled_regions`."""

import torch

from flexconv._fast.regions import Region, compiled_regions


def test_region_is_compiled_only_inside_compiled_regions(monkeypatch):
    calls = []
    region = Region(lambda x: x + 1, dynamic=False)
    monkeypatch.setattr(torch, "compile", lambda f, **options: lambda x: calls.append(options) or f(x))
    assert region(torch.zeros(())) == 1
    assert calls == []
    with compiled_regions():
        assert region(torch.zeros(())) == 1
    assert region(torch.zeros(())) == 1
    assert calls == [{"fullgraph": True, "dynamic": False, "options": None}]
