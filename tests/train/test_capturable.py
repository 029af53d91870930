"""No training step synchronizes with the host, which a CUDA graph cannot contain."""

import pytest
import torch

from flexconv._fast.blocks import fused_blocks
from flexconv._fast.capture_windows import CaptureWindows
from flexconv._fast.kernel_sampler import KernelSampler
from flexconv.bench.steps import noise
from flexconv.train import RunFolder, Trainer, build_model, build_recipe, make_fabric
from flexconv.train.display import Display

from ..host_syncs import HostSyncs
from .test_engine import NETWORKS


def synchronisations_in_a_step(tmp_path, monkeypatch, tree, shape):
    """Return the synchronisations in the second step, without the optimizer, which is capturable only on GPUs.

    The step is that of the graph engine, without compilation.
    """
    recipe = build_recipe({"data": {"name": "digits"}, "batch_size": 8, **tree})
    images = noise(shape, 16)
    fabric, display = make_fabric(recipe, "cpu"), Display(None, epochs=1, steps_per_epoch=1)
    trainer = Trainer(build_model(recipe, images), images, recipe, RunFolder(tmp_path), fabric, display)
    monkeypatch.setattr(trainer.optimizer, "step", lambda *_, **__: None)
    for group in trainer.optimizer.param_groups:
        group["base_lr"] = recipe.optim.lr
    windows = CaptureWindows(trainer.model, [trainer.optimizer])
    trainer.forward_model.train()
    syncs = HostSyncs()
    for number, batch in enumerate(trainer.train_batches.iterate(epoch=0)):
        windows.hold()
        kernels = KernelSampler(trainer.model)
        if number == 0:
            with fused_blocks(trainer.model), kernels.ahead():
                trainer.engine.compute(batch, 0.5)
        else:
            with syncs, fused_blocks(trainer.model), kernels.ahead():
                trainer.engine.compute(batch, 0.5)
    return syncs.found


def test_synchronisations_are_detected():
    with HostSyncs() as syncs:
        torch.ones(3).sum().item()
        torch.tensor([1.0, 2.0])
    assert syncs.found == ["_local_scalar_dense", "lift_fresh"]


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_do_not_synchronise(name, tmp_path, monkeypatch):
    shape = (3, 64) if "tcn" in name else (3, 16, 16)
    assert synchronisations_in_a_step(tmp_path, monkeypatch, {"model": {"name": name}}, shape) == []


@pytest.mark.parametrize("generator", ["gabor", "fourier", "siren", "nsiren", "mlp"])
def test_generators_do_not_synchronise(generator, tmp_path, monkeypatch):
    tree = {"model": {"name": "flexnet3", "generator": generator}}
    assert synchronisations_in_a_step(tmp_path, monkeypatch, tree, (3, 16, 16)) == []


@pytest.mark.parametrize("shape", [(3, 64), (3, 16, 16)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": "per_channel", "mask_options": {"largest_sigma": 0.5}, "small_kernel": 3},
        {"mix": "glu", "dropout": 0.1, "dropout_in": 0.1, "drop_path": 0.2},
        {"mask_channel": True, "train_features": True},
    ],
    ids=str,
)
def test_separable_networks_do_not_synchronise(options, shape, tmp_path, monkeypatch):
    tree = {"model": {"name": "sepflexnet_tiny", "width": 8, "depth": 2, **options}, "optim": {"kernel_norm": 1e-4}}
    assert synchronisations_in_a_step(tmp_path, monkeypatch, tree, shape) == []


@pytest.mark.parametrize(
    "tree",
    [
        {"alias": {"mask": True}},
        {"alias": {"formula": "exact", "mask": True, "method": "per_kernel"}},
        {"optim": {"clip": 0.1, "kernel_norm": 1e-4}},
        {"optim": {"name": "sgd"}},
        {"label_smoothing": 0.1},
        {"model": {"name": "flexnet3", "dropout_in": 0.2}},
        {"precision": "bf16"},
    ],
    ids=str,
)
def test_settings_do_not_synchronise(tree, tmp_path, monkeypatch):
    tree = {"model": {"name": "flexnet3"}, **tree}
    assert synchronisations_in_a_step(tmp_path, monkeypatch, tree, (3, 16, 16)) == []
