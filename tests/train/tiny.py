"""A recipe that trains in seconds and contains everything that a resumed run must reproduce."""

from __future__ import annotations

from typing import Any

from flexconv.train import Recipe, build_recipe


def tiny_recipe(**changes: Any) -> Recipe:
    """Return a FlexNet with one block on the digits: both dropouts, augmentation, warm-up, penalties and selection."""
    tree = {
        "model": {
            "name": "flexnet3",
            "parametrization": "paper",  # whose frequencies are learned, and therefore penalized
            "widths": [3],
            "generator_options": {"hidden": 4},
            "dropout": 0.2,
            "dropout_in": 0.1,
        },
        "data": {"name": "digits", "validation": 0.2, "augment": True},
        "optim": {"lr": 0.02, "kernel_norm": 1e-4},
        "schedule": {"warmup_epochs": 1},
        "alias": {"weight": 0.1},
        "epochs": 3,
        "batch_size": 200,
        "seed": 5,
    }
    recipe = build_recipe(tree | changes)
    assert isinstance(recipe, Recipe)
    return recipe
