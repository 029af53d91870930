"""Coefficients fitted to these measurements, see `_cost_model.py`.

/dev/fd/63
"""

from __future__ import annotations

COEFFICIENTS: dict[tuple[str, bool], dict[str, dict[str, tuple[float, ...]]]] = {
    ("full", False): {
        "direct": {
            "dense aligned": (110000.0, 0.0173, 0.514, 0.0),
            "dense unaligned": (57700.0, 0.0202, 1.6, 177.0),
            "grouped aligned": (117000.0, 0.017, 0.46, 10.4),
            "grouped unaligned": (86500.0, 0.0239, 1.27, 45.8),
            "depthwise": (178000.0, 0.0263, 0.61, 320.0),
            "long dense aligned": (94500.0, 0.0175, 0.14, 58.9),
            "long dense unaligned": (89600.0, 0.0187, 1.26, 63.1),
            "long grouped aligned": (94500.0, 0.0175, 0.14, 58.9),
            "long grouped unaligned": (89600.0, 0.0187, 1.26, 63.1),
            "long depthwise": (192000.0, 0.0253, 0.507, 415.0),
            "wide dense aligned": (102000.0, 0.0179, 0.418, 38.8),
            "wide dense unaligned": (0.0, 0.0257, 0.0, 67.1),
            "wide grouped aligned": (102000.0, 0.0179, 0.418, 38.8),
            "wide grouped unaligned": (0.0, 0.0257, 0.0, 67.1),
            "wide depthwise": (0.0, 0.491, 8.87, 466.0),
        },
        "fft": {
            "dense": (344000.0, 0.0, 0.545, 4.01),
            "grouped": (354000.0, 0.269, 0.562, 0.383),
            "depthwise": (347000.0, 0.0, 13.9, 0.0),
            "long dense": (208000.0, 0.297, 0.0, 0.0),
            "long grouped": (208000.0, 0.297, 0.0, 0.0),
            "long depthwise": (271000.0, 0.155, 0.0, 0.0),
            "wide dense": (317000.0, 0.0, 0.517, 3.63),
            "wide grouped": (317000.0, 0.0, 0.517, 3.63),
            "wide depthwise": (289000.0, 0.0, 13.7, 0.0),
        },
    },
    ("full", True): {
        "direct": {
            "dense aligned": (569000.0, 0.0436, 3.09, 0.0),
            "dense unaligned": (240000.0, 0.0795, 6.45, 812.0),
            "grouped aligned": (483000.0, 0.105, 0.301, 0.0),
            "grouped unaligned": (248000.0, 0.149, 1.99, 617.0),
            "depthwise": (709000.0, 0.829, 1.63, 2760.0),
            "long dense aligned": (348000.0, 0.16, 4.17, 0.0),
            "long dense unaligned": (293000.0, 0.158, 1.92, 368.0),
            "long grouped aligned": (348000.0, 0.16, 4.17, 0.0),
            "long grouped unaligned": (293000.0, 0.158, 1.92, 368.0),
            "long depthwise": (834000.0, 0.871, 2.01, 994.0),
            "wide dense aligned": (402000.0, 0.117, 0.0, 362.0),
            "wide dense unaligned": (0.0, 0.182, 60.5, 513.0),
            "wide grouped aligned": (402000.0, 0.117, 0.0, 362.0),
            "wide grouped unaligned": (0.0, 0.182, 60.5, 513.0),
            "wide depthwise": (0.0, 1.32, 0.0, 2990.0),
        },
        "fft": {
            "dense": (1510000.0, 1.34, 0.297, 3.83),
            "grouped": (1480000.0, 1.56, 0.78, 0.0),
            "depthwise": (1180000.0, 0.0, 20.2, 4.19),
            "long dense": (1220000.0, 1.3, 3.01, 0.0),
            "long grouped": (1220000.0, 1.3, 3.01, 0.0),
            "long depthwise": (848000.0, 0.472, 0.0, 1.94),
            "wide dense": (1690000.0, 1.07, 0.54, 4.56),
            "wide grouped": (1690000.0, 1.07, 0.54, 4.56),
            "wide depthwise": (1250000.0, 0.0, 5.98, 6.12),
        },
    },
}

OVERRIDES: dict[tuple[str, bool], dict[tuple[int, ...], str]] = {
    ("full", False): {
        (8, 8, 1, 2, 32, 32, 32, 7, 7, 7, 32, 32, 32): "direct",
        (8, 8, 8, 2, 16, 16, 16, 7, 7, 7, 16, 16, 16): "direct",
        (16, 16, 1, 1, 784, 196, 784): "direct",
        (16, 16, 1, 1, 4096, 196, 4096): "direct",
        (16, 16, 1, 1, 16000, 196, 16000): "direct",
        (16, 16, 16, 1, 4096, 196, 4096): "fft",
        (24, 24, 24, 1, 16, 16, 17, 17, 16, 16): "direct",
        (24, 24, 24, 1, 96, 96, 17, 17, 96, 96): "direct",
        (24, 24, 24, 16, 96, 96, 5, 5, 96, 96): "fft",
        (48, 48, 48, 1, 96, 96, 17, 17, 96, 96): "direct",
        (48, 48, 48, 1, 784, 196, 784): "direct",
        (48, 48, 48, 8, 4096, 65, 4096): "direct",
    },
    ("full", True): {
        (8, 8, 1, 1, 96, 96, 5, 5, 96, 96): "fft",
        (8, 8, 1, 16, 32, 32, 5, 5, 32, 32): "fft",
        (16, 16, 16, 1, 4096, 65, 4096): "fft",
        (24, 24, 1, 1, 16, 16, 9, 9, 16, 16): "direct",
        (24, 24, 24, 1, 16, 16, 17, 17, 16, 16): "direct",
        (24, 24, 24, 16, 16, 16, 9, 9, 16, 16): "direct",
        (48, 48, 1, 1, 16, 16, 9, 9, 16, 16): "direct",
        (48, 48, 1, 8, 4096, 17, 4096): "direct",
        (48, 48, 1, 8, 16000, 17, 16000): "direct",
        (48, 48, 48, 1, 16, 16, 17, 17, 16, 16): "direct",
        (48, 48, 48, 1, 96, 96, 17, 17, 96, 96): "direct",
        (48, 48, 48, 1, 4096, 196, 4096): "direct",
        (48, 48, 48, 1, 16000, 196, 16000): "direct",
    },
}
