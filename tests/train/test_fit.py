"""Fitting generators to kernels and images."""

from __future__ import annotations

import io
import json
import signal

import numpy as np
import pytest
import torch
from rich.console import Console

from flexconv.data import DamagedDataError, MissingDataError
from flexconv.nn.kernels import GENERATORS
from flexconv.train import Interrupted, fitting, load_recipe, resume
from flexconv.train.fit_group import CPU_POINTS, FitGroup
from flexconv.train.fitting import fit, generator_maker
from flexconv.train.folder import RunError, RunFolder
from flexconv.train.recipe import FitRecipe, ModelRecipe
from flexconv.train.targets import ALEXNET_FILE, RANDOM_FILE, Targets, load_targets

SMALL = {"magnet": {"hidden": 8, "layers": 2}, "gabor": {"hidden": 8}, "fourier": {"hidden": 8}, "njet": {"order": 3}}


def recipe(name="magnet", target="gabor", **changes):
    settings = {"steps": 60, "record_every": 30, "target_options": {"frequencies": [1, 4], "size": 9}}
    options = changes.pop("options", SMALL.get(name, {"hidden": 16}))
    return FitRecipe(model=ModelRecipe(name=name, options=options), target=target, **{**settings, **changes})


@pytest.fixture
def photo(tmp_path):
    from PIL import Image

    rows, columns = np.mgrid[0:12, 0:18]
    pixels = np.stack([10 * rows, 10 * columns, 100 + 5 * rows], -1).astype(np.uint8)
    path = tmp_path / "photo.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize("name", GENERATORS)
def test_every_generator_reduces_the_error(name, tmp_path):
    results = fit(recipe(name, lr=0.03 if name == "njet" else 0.003), tmp_path / "run")
    metrics = RunFolder(tmp_path / "run").read_metrics()
    for target in ("gabor-1", "gabor-4"):
        errors = [line["mse"] for line in metrics if line["target"] == target]
        assert len(errors) == 3  # before the first step, in the middle, at the end
        assert errors[-1] < 0.7 * errors[0]
        assert results["targets"][target]["mse"] == errors[-1]
    assert results["mean_mse"] == pytest.approx(sum(results["targets"][t]["mse"] for t in results["targets"]) / 2)
    assert "mean_psnr" not in results  # only for images


def test_fits_an_image(photo, tmp_path):
    from PIL import Image

    results = fit(recipe(target=str(photo), target_options={}, steps=150, record_every=50), tmp_path / "run")
    psnrs = [line["psnr"] for line in RunFolder(tmp_path / "run").read_metrics()]
    assert psnrs[-1] > psnrs[0] + 10
    assert results["mean_psnr"] == results["targets"]["photo"]["psnr"] == psnrs[-1]
    drawn = np.asarray(Image.open(tmp_path / "run/reconstructions/photo.png"), np.float64)
    true = np.asarray(Image.open(photo), np.float64)
    assert drawn.shape == true.shape
    assert 10 * np.log10(255**2 / np.square(drawn - true).mean()) == pytest.approx(psnrs[-1], abs=0.1)
    assert json.loads((tmp_path / "run/results.json").read_text()) == results
    assert RunFolder(tmp_path / "run").read_recipe().target == str(photo)


def test_psnr_is_that_of_the_clamped_output():
    targets = torch.zeros(1, 1, 3, 3)
    maker = generator_maker(recipe(), Targets(("zero",), targets, pictures=True))
    group = FitGroup([maker(0)], targets, recipe())
    with torch.no_grad():
        for parameter in group.parameters.values():
            parameter.zero_()
        group.parameters["output.bias"].fill_(-0.5)
    assert group.errors() == [(0.25, 0.0)]


def test_fits_targets_together_as_alone(tmp_path, monkeypatch):
    together = fit(recipe(), tmp_path / "together")
    monkeypatch.setattr(fitting, "POINTS_AT_ONCE", 1)
    alone = fit(recipe(), tmp_path / "alone")
    for target, errors in alone["targets"].items():
        assert together["targets"][target]["mse"] == pytest.approx(errors["mse"], rel=1e-3)


def test_result_does_not_depend_on_other_targets(tmp_path):
    pair = fit(recipe(steps=5), tmp_path / "pair")
    single = fit(recipe(steps=5, target_options={"frequencies": [4], "size": 9}), tmp_path / "single")
    assert single["mean_mse"] == pytest.approx(pair["targets"]["gabor-4"]["mse"], rel=1e-4)


def test_points_per_pass_do_not_depend_on_number_of_targets():
    targets = load_targets("gabor", frequencies=[1, 4, 16, 64], size=128)
    maker = generator_maker(recipe(), targets)
    for count in (1, 2, 4):
        group = FitGroup([maker(n) for n in range(count)], targets.values[:count], recipe())
        assert group.rows_at_once * 128 * count == CPU_POINTS


def test_result_does_not_depend_on_rows_per_pass():
    targets = load_targets("gabor", frequencies=[4], size=9)
    maker = generator_maker(recipe(), targets)
    whole, parts = (FitGroup([maker(0)], targets.values, recipe()) for _ in range(2))
    parts.rows_at_once = 2
    for group in (whole, parts):
        group.step()
        group.step()
    torch.testing.assert_close(parts.draw(), whole.draw(), rtol=1e-4, atol=1e-5)


def test_steps_equal_a_plain_torch_loop():
    """A group of one generator takes the same steps as a plain loop."""
    settings = recipe("siren", options={"hidden": 8, "learn_omega_0": True}, omega_factor=50.0)
    targets = load_targets("gabor", frequencies=[4], size=9)
    generator = generator_maker(settings, targets)(0)
    group = FitGroup([generator_maker(settings, targets)(0)], targets.values, settings)
    slow = [p for name, p in generator.named_parameters() if name != "omega_0"]
    optimizer = torch.optim.Adam([{"params": slow}, {"params": [generator.omega_0], "lr": 0.5}], lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        (generator(group.rows.transpose(0, 1)) - targets.values[0]).square().mean().backward()
        optimizer.step()
        group.step()
    for name, parameter in generator.named_parameters():
        torch.testing.assert_close(group.parameters[name][0], parameter, rtol=1e-4, atol=1e-5)
    assert (generator.omega_0 - 30).abs().min() > 0.5


def test_result_depends_on_the_seed(tmp_path):
    first, again, other = (
        fit(recipe(steps=2, seed=seed), tmp_path / str(i))["mean_mse"] for i, seed in enumerate((0, 0, 1))
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("saves", "step"), [*((True, step) for step in (1, 60, 61, 85)), *((False, step) for step in (47, 60, 61, 120))]
)
def test_resumed_fit_ends_with_same_results(saves, step, tmp_path, monkeypatch):
    """Targets are fitted one after the other, 60 steps each, with a checkpoint at every step or none."""
    monkeypatch.setattr("flexconv.train.fitting.CHECKPOINT_SECONDS", -1.0 if saves else 1e9)
    monkeypatch.setattr(fitting, "POINTS_AT_ONCE", 1)
    settings = recipe()
    whole = fit(settings, tmp_path / "whole")
    taken, one = [], FitGroup.step

    def killed(*group):
        if len(taken) == step:
            raise KeyboardInterrupt
        taken.append(1)
        one(*group)

    with monkeypatch.context() as context:
        context.setattr(FitGroup, "step", killed)
        context.setattr(RunFolder, "write_results", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(settings, tmp_path / "run")
    resumed = resume(tmp_path / "run")
    assert resumed["targets"] == whole["targets"]
    for file in ("metrics.jsonl", "reconstructions/gabor-1.png", "reconstructions/gabor-4.png"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert resume(tmp_path / "run") == resumed  # it is finished


@pytest.mark.parametrize("at_once", [1, 2])
def test_signal_saves_a_checkpoint(at_once, tmp_path, monkeypatch):
    """A resumed fit keeps the size of the group, also if it would be chosen differently now."""
    points = {1: 1, 2: 10**6}
    monkeypatch.setattr(fitting, "POINTS_AT_ONCE", points[at_once])
    whole = fit(recipe(), tmp_path / "whole")
    one = FitGroup.step

    def signalled(group):
        if not (tmp_path / "run/checkpoints").exists():
            signal.raise_signal(signal.SIGTERM)
        one(group)

    monkeypatch.setattr(FitGroup, "step", signalled)
    with pytest.raises(Interrupted, match="SIGTERM"):
        fit(recipe(), tmp_path / "run")
    monkeypatch.setattr(fitting, "POINTS_AT_ONCE", points[3 - at_once])
    RunFolder(tmp_path / "run").write_recipe(recipe(lr=0.5))
    with pytest.raises(RunError, match=r"changed.*lr: .* → 0\.5"):
        resume(tmp_path / "run")
    RunFolder(tmp_path / "run").write_recipe(recipe())
    console = Console(file=io.StringIO(), width=200)
    assert resume(tmp_path / "run", console=console)["targets"] == whole["targets"]
    assert "resumed at step 1 of target 1 of 2" in console.file.getvalue()
    assert len(RunFolder(tmp_path / "run").read_machines()) == 2


def test_diverged_fit_has_no_errors(tmp_path):
    results = fit(recipe("mlp", lr=1e6, steps=20), tmp_path / "run")
    assert results["mean_mse"] is None
    assert results["targets"]["gabor-1"]["mse"] is None
    assert (tmp_path / "run/reconstructions/gabor-1.png").is_file()


def test_prints_targets_and_errors(tmp_path):
    with (tmp_path / "said").open("w") as file:
        fit(recipe(steps=2), tmp_path / "run", console=Console(file=file, width=200))
    said = (tmp_path / "said").read_text()
    assert "2 targets of 9 × 9" in said
    assert "mean_mse" in said


@pytest.mark.parametrize(("at_once", "lines"), [(1, ["target 1 of 2", "target 2 of 2"]), (2, ["targets 1 to 2 of 2"])])
def test_prints_progress_without_a_terminal(at_once, lines, tmp_path, monkeypatch):
    monkeypatch.setattr("flexconv.train.fitting.CHECKPOINT_SECONDS", -1.0)
    file = io.StringIO()
    monkeypatch.setattr(fitting, "POINTS_AT_ONCE", 1 if at_once == 1 else 10**6)
    fit(recipe(steps=2), tmp_path / "run", console=Console(file=file, width=200))
    said = [line for line in file.getvalue().splitlines() if line.startswith("target")]
    assert said == [f"{line}, step {step} of 2" for line in lines for step in (1, 2)]


def test_does_not_overwrite_a_fit(tmp_path):
    fit(recipe(steps=1), tmp_path / "run")
    with pytest.raises(RunError, match="already contains a run"):
        fit(recipe(steps=1), tmp_path / "run")


def test_rejects_invalid_recipes(tmp_path):
    with pytest.raises(TypeError, match="kind fit; got Recipe"):
        fit(load_recipe("digits"), tmp_path / "a")
    with pytest.raises(ValueError, match=r"unknown generator 'magnte'.*did you mean 'magnet'"):
        fit(recipe("magnte"), tmp_path / "b")
    with pytest.raises(ValueError, match=r"option 'hiden' of the generator 'magnet'.*did you mean 'hidden'"):
        fit(recipe(options={"hiden": 3}), tmp_path / "c")
    for changes in ({"steps": 0}, {"record_every": -1}, {"lr": float("nan")}, {"target": ""}):
        with pytest.raises(ValueError, match="must"):
            recipe(**changes)
    assert not list(tmp_path.iterdir())


# --- targets ----------------------------------------------------------------------------------------------------------


def test_gabor_targets_equal_those_of_the_authors():
    """The authors logged the errors of a function that is 0 everywhere."""
    errors = load_targets("gabor").values.square().mean((1, 2, 3)).tolist()
    assert errors == pytest.approx([2.1e-4, 1.37e-2, 2.01e-2, 2.01e-2], rel=0.02)


def test_random_target(tmp_path):
    own = load_targets("random", root=tmp_path)
    assert "our own" in own.note
    assert own.values.shape == (1, 1, 33, 33)
    assert torch.equal(own.values, load_targets("random", root=tmp_path).values)
    assert not torch.equal(own.values, load_targets("random", root=tmp_path, seed=1).values)
    (tmp_path / RANDOM_FILE).parent.mkdir()
    np.save(tmp_path / RANDOM_FILE, np.full((1, 33, 33), 0.25))
    theirs = load_targets("random", root=tmp_path)
    assert "authors" in theirs.note
    assert (theirs.values == 0.25).all()
    assert "our own" in load_targets("random", root=tmp_path, size=9).note


def test_alexnet_target(tmp_path):
    with pytest.raises(MissingDataError, match=r"torchvision\.models\.alexnet"):
        load_targets("alexnet", root=tmp_path)
    (tmp_path / ALEXNET_FILE).parent.mkdir()
    weight = np.random.default_rng(0).random((64, 3, 11, 11), np.float32)
    np.save(tmp_path / ALEXNET_FILE, weight)
    assert load_targets("alexnet", root=tmp_path).values.shape == (1, 1, 33, 33)
    native = load_targets("alexnet", root=tmp_path, index=5, channel=None, size=11)
    np.testing.assert_array_equal(native.values[0], weight[5])
    with pytest.raises(ValueError, match="got filter 64"):
        load_targets("alexnet", root=tmp_path, index=64)
    np.save(tmp_path / ALEXNET_FILE, weight[:2])
    with pytest.raises(DamagedDataError, match=r"\(2, 3, 11, 11\), expected"):
        load_targets("alexnet", root=tmp_path)


def test_image_target(photo):
    as_it_is = load_targets(str(photo))
    assert as_it_is.names == ("photo",)
    assert as_it_is.values.shape == (1, 3, 12, 18)
    assert as_it_is.values[0, 0, 3, 0] == 30 / 255
    assert load_targets(str(photo), mode="grey", size=(6, 9)).values.shape == (1, 1, 6, 9)


def test_rejects_invalid_targets(tmp_path, photo):
    with pytest.raises(ValueError, match=r"unknown target 'nothing\.png': choose one of 'gabor', .* or an image file"):
        load_targets("nothing.png")
    with pytest.raises(ValueError, match=r"option 'frequency' of target 'gabor'.*did you mean 'frequencies'"):
        load_targets("gabor", frequency=3)
    with pytest.raises(TypeError, match="frequencies must be a list; got 3"):
        load_targets("gabor", frequencies=3)
    with pytest.raises(ValueError, match=r"unknown mode 'gra'.*did you mean 'gray'"):
        load_targets(str(photo), mode="gra")
    with pytest.raises(MissingDataError, match="kodak is not in"):
        load_targets("kodak", root=tmp_path)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("kodak", 7363),
        ("kodak/gabor", 7110),
        ("kodak/gabor-init", 7110),
        ("kodak/fourier", 7403),
        ("kodak/siren", 7137),
    ],
)
def test_kodak_recipes_have_published_parameter_counts(name, count):
    """The table of the paper has 7.36 k, 7.11 k, 7.40 k and 7.14 k parameters."""
    loaded = load_recipe(name)
    make = generator_maker(loaded, Targets(("photo",), torch.zeros(1, 3, 2, 2), pictures=True))
    assert sum(p.numel() for p in make(0).parameters()) == count
