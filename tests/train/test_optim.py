"""Parameter groups, schedule and kernel norm are those of the paper."""

import math

import pytest
import torch
from torch import nn

from flexconv import FlexConv2d, create_model
from flexconv.nn import SIREN
from flexconv.train.optim import Schedule, kernel_norm, make_optimizer, parameter_groups
from flexconv.train.recipe import OptimRecipe, ScheduleRecipe


@pytest.fixture
def model():
    return create_model("flexnet3", in_channels=1, num_classes=3, image_size=8, widths=[3, 4])


@pytest.mark.parametrize(("column", "base"), [(0, 0.01), (2, 0.001)])
def test_schedule_equals_that_of_the_authors(golden, column, base):
    file = golden("lr_schedule")
    warm = Schedule(ScheduleRecipe(warmup_epochs=2), steps_per_epoch=5, epochs=6)
    assert [warm.rate(i, base) for i in range(31)] == pytest.approx(
        file["warmup_cosine"][:, column].tolist(), rel=1e-12
    )
    cold = Schedule(ScheduleRecipe(warmup_epochs=0), steps_per_epoch=5, epochs=6)
    assert [cold.rate(i, base) for i in range(30)] == pytest.approx(file["cosine"][:, column].tolist(), rel=1e-12)


def test_constant_schedule_after_warm_up():
    schedule = Schedule(ScheduleRecipe(name="constant", warmup_epochs=1), steps_per_epoch=4, epochs=5)
    assert [schedule.rate(i, 0.1) for i in (0, 2, 4, 5, 19)] == pytest.approx([0.0, 0.05, 0.1, 0.1, 0.1])


def test_rate_stays_low_after_the_end():
    schedule = Schedule(ScheduleRecipe(warmup_epochs=0), steps_per_epoch=2, epochs=2)
    assert schedule.rate(100, 0.1) == pytest.approx(1e-6)


def test_every_parameter_is_in_exactly_one_group(model):
    groups = parameter_groups(model, OptimRecipe(lr=0.01, weight_decay=0.1))
    found = [id(p) for group in groups for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in model.parameters())
    by_name = {group["name"]: group for group in groups}
    assert by_name["masks"]["lr"] == pytest.approx(0.001)
    assert by_name["masks"]["weight_decay"] == 0
    assert len(by_name["masks"]["params"]) == 2 * sum(isinstance(m, FlexConv2d) for m in model.modules())


def test_omega_0_has_its_own_rate():
    model = nn.Sequential(FlexConv2d(1, 1, 5, generator=lambda *a, **k: SIREN(*a, learn_omega_0=True, **k)))
    groups = {group["name"]: group for group in parameter_groups(model, OptimRecipe(lr=0.01, omega_factor=50))}
    assert groups["omega_0"]["lr"] == pytest.approx(0.5)
    assert [p.shape for p in groups["omega_0"]["params"]] == [model[0].generator.omega_0.shape]


def test_features_have_their_own_rate_and_do_not_decay(model):
    groups = parameter_groups(model, OptimRecipe(lr=0.01, weight_decay=0.1, feature_factor=0.1))
    by_name = {group["name"]: group for group in groups}
    assert by_name["features"]["lr"] == pytest.approx(0.001)
    assert by_name["features"]["weight_decay"] == 0
    generator = next(m for m in model.modules() if isinstance(m, FlexConv2d)).generator
    own = {id(p) for p in by_name["features"]["params"]}
    assert id(generator.frequency) in own
    assert not own & {id(p) for p in generator.output.parameters()}


def test_schedule_sets_the_rate_of_every_group(model):
    optimizer = make_optimizer(model, OptimRecipe(lr=0.01))
    schedule = Schedule(ScheduleRecipe(warmup_epochs=1), steps_per_epoch=10, epochs=2)
    for step in (3, 7, 5):
        schedule.apply(optimizer, step)
        rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
        assert rates == pytest.approx({"rest": 0.01 * step / 10, "masks": 0.001 * step / 10})


def test_kernel_norm_equals_its_formula(model):
    layers = [m for m in model.modules() if isinstance(m, FlexConv2d)]
    for layer in layers:
        nn.init.normal_(layer.bias)
    expected = sum(layer.kernel().norm() + layer.bias.norm() for layer in layers)
    assert kernel_norm(model).item() == pytest.approx(expected.item(), rel=1e-6)
    kernel_norm(model).backward()
    assert all(math.isfinite(p.grad.sum()) for layer in layers for p in layer.mask.parameters())


def test_rejects_kernel_norm_without_kernels():
    with pytest.raises(ValueError, match="no FlexConv"):
        kernel_norm(nn.Linear(2, 2))


def test_kernel_norm_of_zero_bias_has_finite_gradient(model):
    kernel_norm(model).backward()
    assert all(torch.isfinite(m.bias.grad).all() for m in model.modules() if isinstance(m, FlexConv2d))


def test_sgd_uses_nesterov_momentum_and_decays_only_weights(model):
    optimizer = make_optimizer(model, OptimRecipe(name="sgd", lr=0.1, weight_decay=5e-4))
    assert isinstance(optimizer, torch.optim.SGD)
    by_name = {group["name"]: group for group in optimizer.param_groups}
    assert all(group["momentum"] == 0.9 and group["nesterov"] for group in by_name.values())
    assert (by_name["rest"]["weight_decay"], by_name["masks"]["weight_decay"]) == (5e-4, 0)


def test_rejects_unknown_optimizer():
    with pytest.raises(ValueError, match=r"'sdg'.*did you mean 'sgd'"):
        OptimRecipe(name="sdg")
