"""The captured step trains as the others do."""

import pytest
import torch

from flexconv import train
from flexconv.nn import GaussianMask
from flexconv.train import RunFolder
from flexconv.train.display import Display
from flexconv.train.run import build_model, load_data, make_fabric

from .tiny import tiny_recipe

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def trainer_of(tmp_path, **changes):
    recipe = tiny_recipe(batch_size=50, **changes)
    data = load_data(recipe)
    fabric = make_fabric(recipe, "auto")
    display = Display(None, epochs=1, steps_per_epoch=1)
    return train.Trainer(build_model(recipe, data), data, recipe, RunFolder(tmp_path), fabric, display)


def losses_of(trainer, epochs=2):
    losses = []
    trainer.forward_model.train()
    for epoch in range(epochs):
        trainer.progress.batch = 0
        for batch in trainer.train_batches.iterate(epoch=epoch):
            before = trainer._sums[0].item()
            trainer._step(batch)
            losses.append(trainer._sums[0].item() - before)
    return losses


def test_where_a_graph_cannot_be_captured_steps_run_one_by_one_and_say_so(tmp_path, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    said = []
    monkeypatch.setattr(Display, "say", lambda _, text: said.append(text))
    results = train.train(tiny_recipe(engine="graph", epochs=1), tmp_path / "graph")
    assert any("needs a GPU" in text for text in said)
    assert results["test_accuracy"] == train.train(tiny_recipe(epochs=1), tmp_path / "eager")["test_accuracy"]


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="did you mean 'graph'"):
        tiny_recipe(engine="graf")


@gpu
def test_losses_are_those_of_the_eager_engine(tmp_path):
    eager, graph = (losses_of(trainer_of(tmp_path / engine, engine=engine)) for engine in ("eager", "graph"))
    assert graph[:10] == pytest.approx(eager[:10], rel=1e-4)
    assert graph == pytest.approx(eager, rel=0.05)


@gpu
def test_a_mask_that_leaves_its_window_is_captured_again(tmp_path):
    trainer = trainer_of(tmp_path, engine="graph")
    engine = trainer._run_step.__self__
    losses_of(trainer, epochs=1)
    assert engine.captures == 1
    for module in trainer.model.modules():
        if isinstance(module, GaussianMask):
            torch.nn.init.constant_(module.sigma, 0.6)
    losses_of(trainer, epochs=2)
    assert engine.captures == 2
    assert all(layer.extent == (9, 9) for layer, _ in engine.layers)


@gpu
def test_a_whole_run_with_a_last_batch_that_is_not_full(tmp_path):
    recipe = tiny_recipe(engine="graph", batch_size=50)
    results = train.train(recipe, tmp_path / "run")
    assert results["steps"] == 3 * 23
