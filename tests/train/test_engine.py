"""Compiled and captured steps compute the same as eager ones."""

import io
import math
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn

from flexconv import train
from flexconv._fast.capture import GraphEngine
from flexconv._fast.capture_windows import CaptureWindows
from flexconv.bench.steps import noise
from flexconv.nn import GaussianMask
from flexconv.train import RunFolder, build_model, build_recipe, load_data, loop, make_fabric
from flexconv.train import engine as engines
from flexconv.train.display import Display
from flexconv.train.engine import EagerEngine, fastest

from ..conftest import no_synchronization
from ..fake_graph import RunsOnce
from .tiny import tiny_recipe

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def trainer_of(tmp_path, **changes):
    recipe = tiny_recipe(batch_size=50, **changes)
    data = load_data(recipe)
    fabric = make_fabric(recipe, "auto")
    display = Display(None, epochs=1, steps_per_epoch=1)
    return train.Trainer(build_model(recipe, data), data, recipe, RunFolder(tmp_path), fabric, display)


def losses_of(trainer, epochs=2):
    """Losses of the first steps, without dropout: engines draw different random numbers for it."""
    losses = []
    for module in trainer.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    trainer.forward_model.train()
    for epoch in range(epochs):
        trainer.progress.batch = 0
        for batch in trainer.train_batches.iterate(epoch=epoch):
            before = trainer.sums[0].item()
            trainer.step(batch)
            losses.append(trainer.sums[0].item() - before)
    return losses


def test_falls_back_to_eager_without_a_gpu(tmp_path, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    said = []
    monkeypatch.setattr(Display, "say", lambda _, text: said.append(text))
    results = train.train(tiny_recipe(engine="graph", epochs=1), tmp_path / "graph")
    assert any("needs a GPU" in text for text in said)
    assert results["test_accuracy"] == train.train(tiny_recipe(epochs=1), tmp_path / "eager")["test_accuracy"]


def test_falls_back_to_eager_without_a_compiler(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(Display, "say", lambda _, text: said.append(text))

    def fail(*_, **__):
        raise RuntimeError("no compiler was found\nmore of this")

    monkeypatch.setattr(torch, "compile", fail)
    trainer = trainer_of(tmp_path, engine="compiled")
    assert isinstance(trainer.engine, EagerEngine)
    assert any("(no compiler was found)" in text for text in said)


@pytest.mark.parametrize("engine", ["compiled", "graph"])
def test_trains_eagerly_without_the_fast_engines(engine, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(Display, "say", lambda _, text: said.append(text))
    monkeypatch.setattr(engines, "_missing_for_a_graph", lambda *_: None)
    monkeypatch.setattr(engines, "fast_version", lambda _: None)
    trainer = trainer_of(tmp_path, engine=engine)
    assert isinstance(trainer.engine, EagerEngine)
    assert any(f"engine: {engine}" in text and "flexconv._fast" in text for text in said)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("quick_compiler")
def test_compiled_losses_equal_eager_losses(tmp_path):
    eager, compiled = (losses_of(trainer_of(tmp_path / engine, engine=engine)) for engine in ("eager", "compiled"))
    assert compiled[:10] == pytest.approx(eager[:10], rel=1e-4)
    assert compiled == pytest.approx(eager, rel=0.05)


def test_capture_windows_have_room_to_grow(tmp_path):
    trainer = trainer_of(tmp_path)
    (group,) = [group for group in trainer.optimizer.param_groups if group["name"] == "masks"]
    group["base_lr"] = 1e-4
    windows = CaptureWindows(trainer.model, [trainer.optimizer])
    windows.hold()
    assert [layer.window for layer, _ in windows.layers] == windows._windows
    layer, source = windows.layers[1]
    in_force = windows._windows[1]

    def fits(sigma):
        source.set_(sigma=sigma)
        bounds = windows._bounds(windows._packed())[1]
        return windows._fits(layer.axes, bounds, in_force, windows._room(source, bounds))

    room = windows._room(source, [])

    reach = math.sqrt(2 * math.log(10))
    width = in_force[0][1] - in_force[0][0]
    outside = (width + 1) / 2 * layer.axes[0].spacing / reach  # the mask reaches the first tap outside the window
    assert not fits(outside)
    assert not fits(outside - 0.5 * room / reach)  # and may do so before the next check
    assert fits(outside - 1.5 * room / reach)
    assert fits(source.initial_sigma[0])


@pytest.mark.usefixtures("quick_compiler")
def test_capture_uses_the_windows_of_its_warm_up(tmp_path, monkeypatch):
    """Other shapes would be compiled, and constants created for them, during the capture."""
    trainer = trainer_of(tmp_path)
    for group in trainer.optimizer.param_groups:
        group["base_lr"] = 1e-4
    masks = [module for module in trainer.model.modules() if isinstance(module, GaussianMask)]
    used = []

    def compute(*_):
        used.append([layer.window for layer, _ in engine.windows.layers])
        for mask in masks:  # more than a training step could
            mask.set_(sigma=0.4 if len(used) % 2 else 0.05)

    engine = GraphEngine(trainer.model, trainer.optimizer, compute, 50, recorder=RunsOnce)
    batch = next(iter(trainer.train_batches.iterate(epoch=0)))
    for _ in range(3):
        engine.step(batch, 0.02)
    assert engine.captures == 1
    assert used[0] == used[1] == used[2]
    looks = iter([False, True])
    monkeypatch.setattr(engine.windows, "still_fit", lambda: next(looks))
    for _ in range(6):
        engine.step(batch, 0.02)
    assert engine.captures == 2
    assert used[2] != used[3] == used[4]


def test_windows_fit_before_the_first_full_batch(tmp_path):
    trainer = trainer_of(tmp_path)
    windows = CaptureWindows(trainer.model, [trainer.optimizer])
    assert windows.still_fit()  # starts a copy
    assert windows.still_fit()


def test_bounds_of_grouped_layers_equal_those_of_each(tmp_path):
    trainer = trainer_of(tmp_path)
    windows = CaptureWindows(trainer.model, [trainer.optimizer])
    for number, (_, source) in enumerate(windows.layers):
        source.set_(sigma=0.1 + 0.1 * number)
    for (layer, source), bounds in zip(windows.layers, windows._bounds(windows._packed()), strict=True):
        expected = source.bounds([p.detach() for p in source.size_parameters()], layer.axes)
        torch.testing.assert_close(torch.tensor(bounds), expected.cpu())


def test_layers_are_grouped_by_settings_not_by_parameters(tmp_path, monkeypatch):
    monkeypatch.setattr(GaussianMask, "extra_repr", lambda _: pytest.fail("reads parameters from the device"))
    trainer = trainer_of(tmp_path)
    masks = [module for module in trainer.model.modules() if isinstance(module, GaussianMask)]
    assert len(CaptureWindows(trainer.model, [trainer.optimizer])._groups) == 1
    masks[0].threshold = 0.2
    for mask in masks:
        mask.set_(sigma=0.3)
    windows = CaptureWindows(trainer.model, [trainer.optimizer])
    assert windows._groups == [[0], list(range(1, len(masks)))]
    first, second, *_ = windows._bounds(windows._packed())
    assert first[0][1] - first[0][0] < second[0][1] - second[0][0]  # the threshold is 0.2 instead of 0.1


@gpu
def test_checking_windows_does_not_synchronise(tmp_path):
    trainer = trainer_of(tmp_path, engine="graph")
    losses_of(trainer, epochs=1)
    windows = trainer.engine.windows
    windows.still_fit()
    torch.cuda.synchronize()
    with no_synchronization():
        assert windows.still_fit()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
def test_seed_equals_torch_manual_seed(device):
    def drawn():
        return torch.rand(4), torch.rand(4, device=device)

    torch.manual_seed(12345)
    expected = drawn()
    assert not all(map(torch.equal, drawn(), expected))
    loop._seed(12345, torch.device(device))
    assert all(map(torch.equal, drawn(), expected))


@pytest.mark.parametrize(
    ("expected", "device", "processes", "steps", "changes"),
    [
        ("graph", "cuda", 1, 1000, {}),
        ("graph", "cuda", 1, 1000, {"precision": "bf16"}),
        ("compiled", "cuda", 2, 1000, {}),
        ("compiled", "cuda", 1, 1000, {"precision": "fp16"}),
        ("eager", "cuda", 1, 999, {}),
        ("eager", "cuda", 1, 10**6, {"deterministic": True}),
        ("eager", "cpu", 1, 10**6, {}),
    ],
)
def test_auto_selects_the_fastest_engine(expected, device, processes, steps, changes):
    fabric = SimpleNamespace(device=torch.device(device), world_size=processes)
    assert fastest(tiny_recipe(**changes), fabric, steps) == expected


@pytest.mark.usefixtures("quick_compiler")
def test_failed_compilation_suggests_the_eager_engine(tmp_path):
    def fail(*_):
        raise RuntimeError("backend='inductor' raised:\nCompileError: no such kernel\nmore of this")

    trainer = trainer_of(tmp_path)
    engine = GraphEngine(trainer.model, trainer.optimizer, fail, 50, recorder=RunsOnce)
    batch = next(iter(trainer.train_batches.iterate(epoch=0)))
    with pytest.raises(RuntimeError, match=r"cannot be compiled \(CompileError: no such kernel\).*engine=eager"):
        engine.step(batch, 0.02)


def test_compiler_messages_are_not_markup(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("[/usr/bin/ld] not found")

    monkeypatch.setattr(torch, "compile", fail)
    file = io.StringIO()
    recipe = tiny_recipe(engine="compiled", epochs=1)
    train.train(recipe, tmp_path, device="cpu", console=Console(file=file, width=200))
    assert "([/usr/bin/ld] not found)" in file.getvalue()


def test_results_state_the_engine(tmp_path):
    results = train.train(tiny_recipe(epochs=1), tmp_path, device="cpu")
    assert RunFolder(tmp_path).read_recipe().engine == "auto"
    assert results["engine"] == RunFolder(tmp_path).read_machines()[0]["engine"] == "eager"


def test_rejects_unknown_engine():
    with pytest.raises(ValueError, match="did you mean 'graph'"):
        tiny_recipe(engine="graf")


@gpu
def test_captured_losses_equal_eager_losses(tmp_path):
    eager, graph = (losses_of(trainer_of(tmp_path / engine, engine=engine)) for engine in ("eager", "graph"))
    assert graph[:10] == pytest.approx(eager[:10], rel=1e-4)
    assert graph == pytest.approx(eager, rel=0.05)


@gpu
def test_captures_again_if_a_mask_leaves_its_window(tmp_path):
    trainer = trainer_of(tmp_path, engine="graph")
    engine = trainer.engine
    losses_of(trainer, epochs=1)
    assert engine.captures == 1
    for module in trainer.model.modules():
        if isinstance(module, GaussianMask):
            module.set_(sigma=0.6)
    losses_of(trainer, epochs=2)
    assert engine.captures == 2
    assert all(layer.extent == (9, 9) for layer, _ in engine.windows.layers)


@gpu
def test_masks_can_change_between_warm_up_and_capture(tmp_path):
    trainer = trainer_of(tmp_path, engine="graph", precision="bf16")
    masks = [module for module in trainer.model.modules() if isinstance(module, GaussianMask)]
    for number, batch in enumerate(trainer.train_batches.iterate(epoch=0)):
        if number < 4:
            for mask in masks:
                mask.set_(sigma=(0.1, 0.3, 0.2, 0.3)[number])
            trainer.step(batch)
    assert trainer.engine.captures == 1


@gpu
def test_captured_run_with_a_smaller_last_batch(tmp_path):
    recipe = tiny_recipe(engine="graph", batch_size=50)
    results = train.train(recipe, tmp_path / "run")
    assert results["steps"] == 3 * 23


NETWORKS = [
    "cifar_resnet20",
    "cifar_resnet44_ckconv3",
    "cifar_resnet44_flexconv",
    "ckcnn3",
    "flexnet3",
    "flexnet5_njet",
]
NETWORKS += ["flexnet7_conv3", "cktcn2", "flextcn2", "sepflexnet_tiny"]


@gpu
@pytest.mark.parametrize("optim", [{"lr": 0.02, "clip": 0.1}, {"lr": 0.02, "name": "sgd"}], ids=["clipped", "sgd"])
def test_captures_steps_with_clipping_and_sgd(tmp_path, optim):
    eager, graph = (losses_of(trainer_of(tmp_path / way, engine=way, optim=optim)) for way in ("eager", "graph"))
    assert graph[:10] == pytest.approx(eager[:10], rel=1e-3)


@gpu
@pytest.mark.parametrize("generator", ["magnet", "gabor", "fourier", "siren", "mlp"])
def test_captures_every_generator(generator, tmp_path):
    eager, graph = (noisy_losses(tmp_path / engine, engine, "flexnet3", generator) for engine in ("eager", "graph"))
    assert graph == pytest.approx(eager, rel=0.02)


@gpu
@pytest.mark.parametrize("name", NETWORKS)
def test_captures_every_network(name, tmp_path):
    eager, graph = (noisy_losses(tmp_path / engine, engine, name) for engine in ("eager", "graph"))
    assert graph == pytest.approx(eager, rel=0.02)


def noisy_losses(folder, engine, name, generator=None):
    """Return the losses of five steps on noise: two warm-up steps, then captured ones."""
    model = {"name": name} | ({} if generator is None else {"generator": generator})
    recipe = build_recipe({"model": model, "data": {"name": "digits"}, "batch_size": 8, "engine": engine})
    images = noise((3, 64) if "tcn" in name else (3, 16, 16), 40)
    fabric = make_fabric(recipe, "auto")
    display = Display(None, epochs=1, steps_per_epoch=1)
    return losses_of(
        train.Trainer(build_model(recipe, images), images, recipe, RunFolder(folder), fabric, display), epochs=1
    )
