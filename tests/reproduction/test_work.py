"""Runs that `python -m reproduction ITEM --run` starts."""

from __future__ import annotations

import json

from flexconv.train import build_recipe
from reproduction._item import Job
from reproduction._ledger import Ledger
from reproduction._work import do

TREE = {
    "kind": "cross-resolution",
    "model": {"name": "flexnet3", "widths": [3], "generator_options": {"hidden": 4}},
    "data": {"name": "digits"},
    "epochs": 1,
    "batch_size": 400,
    "source": 8,
    "target": 12,
    "finetune_epochs": 0,
}


def test_runs_to_several_resolutions_share_the_first_stage(tmp_path):
    ledger = Ledger(tmp_path)
    targets = {"a": {}, "b": {"target": 16}, "c": {"target": 16, "optim": {"lr": 0.02}}, "d": {"seed": 1}}
    recipes = {name: build_recipe(TREE | changes) for name, changes in targets.items()}
    outcome = do(
        [Job(name, recipe.seed, recipe) for name, recipe in recipes.items()], ledger, device="cpu", plots=False
    )
    assert (outcome.done, outcome.left) == (4, 0)
    runs = {name: tmp_path / "runs" / f"{name}-seed{recipe.seed}" for name, recipe in recipes.items()}
    logs = {name: (path / "source/metrics.jsonl").read_text() for name, path in runs.items()}
    assert logs["b"] == logs["a"]  # including times: it is the same run
    assert len({logs["a"], logs["c"], logs["d"]}) == 3  # another learning rate, another seed
    results = {name: json.loads((path / "results.json").read_text()) for name, path in runs.items()}
    assert results["b"]["source"] == results["a"]["source"]
    assert results["b"]["out_of_the_box"] != results["a"]["out_of_the_box"]
    assert not (runs["b"] / "source/checkpoints").exists()
    assert not list(tmp_path.rglob("*.part"))

    # a run that could not start, for example because data were missing, has left its first stage
    (runs["b"] / "recipe.yaml").unlink()
    (runs["b"] / "results.json").unlink()
    assert do([Job("b", 0, recipes["b"])], ledger, device="cpu", plots=False).done == 1
    assert json.loads((runs["b"] / "results.json").read_text())["source"] == results["a"]["source"]
