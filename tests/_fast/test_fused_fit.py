"""The Triton kernels for fitting compute the gradients of autograd. Without a GPU, Triton interprets the kernels."""

import pytest
import torch

pytest.importorskip("triton")

from flexconv._fast import fused_fit, fused_parts
from flexconv._fast import fused_step as steps
from flexconv._fast.fit import fused_step
from flexconv.nn import GENERATORS
from flexconv.train.fit_group import FitGroup
from flexconv.train.recipe import FitRecipe, ModelRecipe

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXACT = 5e-5 if torch.cuda.is_available() else 1e-5  # sin and cos are less accurate on a GPU


CASES = {
    "magnet": ("magnet", {}),
    "gabor": ("gabor", {}),
    "gabor-init": ("gabor", {"anisotropic": True, "gamma_shape": "per_filter"}),
    "fourier": ("fourier", {"hidden": 25}),
    "shallow": ("magnet", {"hidden": 16, "layers": 1}),
    "wide": ("magnet", {"hidden": 40, "layers": 2}),
    "siren": ("siren", {"hidden": 29, "layers": 4}),
    "shallow siren": ("siren", {"hidden": 5, "layers": 2, "omega_0": 20.0}),
}
IMAGES = {
    "float32": ("float32", (7, 17), EXACT),
    "float32 wide": ("float32", (3, 70), EXACT),
    "bfloat16": ("bfloat16", (3, 70), 2e-2),
}
PAIRS = {  # the interpreter takes seconds for each, so it gets one of each kind for the other images
    f"{image}-{case}": (*CASES[case], *IMAGES[image])
    for image in IMAGES
    for case in CASES
    if DEVICE == "cuda" or image == "float32" or case in ("magnet", "siren")
}


@pytest.mark.parametrize(("name", "options", "kept", "size", "limit"), PAIRS.values(), ids=PAIRS.keys())
def test_loss_and_gradients_equal_those_of_autograd(name, options, kept, size, limit, monkeypatch):
    monkeypatch.setattr(fused_parts, "PROGRAMS", 4)  # two per image, with several blocks each
    for step in (fused_fit.FusedStep, fused_fit.FusedSirenStep):
        monkeypatch.setattr(step, "cut", (32, 2))  # several blocks per row, the last one not full
    monkeypatch.setattr(steps, "ROOM", 140_000)  # some of the rows at a time
    monkeypatch.setattr(fused_parts, "PRECISION", "tf32x3")  # float32 accuracy
    monkeypatch.setattr(fused_parts, "KEPT", getattr(torch, kept))
    torch.manual_seed(0)
    generators = [GENERATORS[name](2, 3, **({"hidden": 23, "layers": 3} | options)) for _ in range(2)]
    targets = torch.rand(2, 3, *size, device=DEVICE)
    group = FitGroup(generators, targets, FitRecipe(model=ModelRecipe(name=name), target="random"))
    loss = sum(group.squared_error(group.parameters, *part) for part in group.parts())
    loss.backward()
    expected = {key: p.grad for key, p in group.parameters.items()}
    step = fused_step(group, generators[0])
    assert step is not None
    assert step.at_once > step.programs
    for _ in range(2 if DEVICE == "cuda" or size == (3, 70) else 1):  # the second call must reset the sums of the first
        assert step().sum().item() == pytest.approx(loss.item(), rel=1e-5)
        for key, gradient in expected.items():
            got = group.parameters[key].grad
            assert got.shape == gradient.shape
            assert ((got - gradient).norm() / gradient.norm()).item() < limit, key


def test_does_not_support_other_generators():
    assert not fused_fit.can_fuse_siren(GENERATORS["nsiren"](2, 3))
    assert not fused_fit.can_fuse_siren(GENERATORS["siren"](2, 3, learn_omega_0=True))
    assert not fused_fit.can_fuse_siren(GENERATORS["siren"](2, 3, weight_norm=True))
    assert not fused_fit.can_fuse(GENERATORS["magnet"](1, 3))
    assert not fused_fit.can_fuse(GENERATORS["magnet"](2, 3, steerable=True))
    assert not fused_fit.can_fuse(GENERATORS["magnet"](2, 3, hidden=65))
    assert not fused_fit.can_fuse(GENERATORS["magnet"](2, 17))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_fit_on_a_gpu_uses_the_kernels():
    generators = [GENERATORS["magnet"](2, 3, hidden=23, layers=3).cuda()]
    recipe = FitRecipe(model=ModelRecipe(name="magnet"), target="random")
    group = FitGroup(generators, torch.rand(1, 3, 40, 30, device="cuda"), recipe)
    assert group._fast_gradients is not None
    before = group.errors()[0][0]
    for _ in range(50):
        group.step()
    assert group.errors()[0][0] < before
