"""Coefficients fitted to `results/bench/calibrate_cpu.jsonl`. See `_cost_model.py`."""

from __future__ import annotations

COEFFICIENTS: dict[tuple[str, bool], dict[str, dict[str, tuple[float, ...]]]] = {
    ("full", False): {
        "direct": {
            "dense aligned": (110e3, 0.0173, 0.514),
            "dense unaligned": (105e3, 0.0235, 1.26),
            "depthwise": (187e3, 0.0277, 0.595),
            "long dense aligned": (131e3, 0.0182, 0.0),
            "long dense unaligned": (121e3, 0.0202, 1.02),
            "long depthwise": (218e3, 0.0281, 0.455),
            "wide dense aligned": (129e3, 0.0185, 0.324),
            "wide dense unaligned": (146e3, 0.0266, 0.0),
            "wide depthwise": (135e3, 0.497, 7.96),
        },
        "fft": {
            "dense": (344e3, 0.0, 0.545, 4.01),
            "depthwise": (347e3, 0.0, 13.9, 0.0),
            "long dense": (208e3, 0.297, 0.0, 0.0),
            "long depthwise": (271e3, 0.155, 0.0, 0.0),
            "wide dense": (317e3, 0.0, 0.517, 3.63),
            "wide depthwise": (289e3, 0.0, 13.7, 0.0),
        },
    },
    ("full", True): {
        "direct": {
            "dense aligned": (569e3, 0.0436, 3.09),
            "dense unaligned": (583e3, 0.0977, 3.91),
            "depthwise": (761e3, 0.856, 1.46),
            "long dense aligned": (348e3, 0.16, 4.17),
            "long dense unaligned": (419e3, 0.167, 1.06),
            "long depthwise": (872e3, 0.88, 1.88),
            "wide dense aligned": (467e3, 0.124, 0.0),
            "wide dense unaligned": (1180e3, 0.197, 43.8),
            "wide depthwise": (796e3, 1.34, 0.0),
        },
        "fft": {
            "dense": (1510e3, 1.34, 0.297, 3.83),
            "depthwise": (1180e3, 0.0, 20.2, 4.19),
            "long dense": (1220e3, 1.3, 3.01, 0.0),
            "long depthwise": (848e3, 0.472, 0.0, 1.94),
            "wide dense": (1690e3, 1.07, 0.54, 4.56),
            "wide depthwise": (1250e3, 0.0, 5.98, 6.12),
        },
    },
}

OVERRIDES: dict[tuple[str, bool], dict[tuple[int, ...], str]] = {}
