"""The form of a mask follows the parametrization of its layer, unless it is stated."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from flexconv import FlexConv1d, FlexConv2d, GaussianMask, RotatedGaussianMask

MASKS = {"gaussian": GaussianMask, "rotated": RotatedGaussianMask}
FORMS = {"paper": "guarded", "scaled": "scaled"}


def make_mask(kind, **options):
    return MASKS[kind](2, **({"mean": (0.1, -0.2), "sigma": (0.3, -0.4)} | options))


def saved_and_loaded(module):
    torch.save(module, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("parametrization", FORMS)
def test_form_follows_the_layer(kind, parametrization):
    mask = make_mask(kind)
    assert mask.form == "guarded"
    layer = FlexConv2d(2, 3, 15, mask=mask, parametrization=parametrization)
    assert layer.mask is mask
    assert mask.form == FORMS[parametrization]
    assert mask.mean.tolist() == pytest.approx([0.1, -0.2])
    assert mask.sigma.tolist() == pytest.approx([0.3, -0.4])


def test_default_is_scaled():
    assert FlexConv2d(16, 32, 15, mask=GaussianMask(2, sigma=0.3)).mask.form == "scaled"
    assert FlexConv1d(1, 1, 33, padding="causal", mask=GaussianMask(1)).mask.mean.tolist() == [1.0]
    assert FlexConv2d(1, 1, 9, mask=GaussianMask(2)).mask.sigma.tolist() == FlexConv2d(1, 1, 9).mask.sigma.tolist()


@pytest.mark.parametrize("kind", MASKS)
def test_parameters_are_those_of_a_mask_with_stated_form(kind):
    layers = [FlexConv2d(2, 3, 15, mask=make_mask(kind, form=form)) for form in (None, "scaled")]
    followed, stated = ([(name, p.tolist()) for name, p in layer.mask.state_dict().items()] for layer in layers)
    assert followed == stated  # in the same order, so that states of optimizers fit
    assert layers[0].mask.damping == layers[1].mask.damping < 1
    assert repr(layers[0].mask) == repr(layers[1].mask)


@pytest.mark.parametrize("parametrization", FORMS)
@pytest.mark.parametrize("form", ["guarded", "scaled", "authors"])
def test_stated_form_is_kept(form, parametrization):
    mask = GaussianMask(2, sigma=0.3, form=form)
    parameters = list(mask.parameters())
    FlexConv2d(1, 1, 15, mask=mask, parametrization=parametrization)
    assert mask.form == form
    assert all(new is old for new, old in zip(mask.parameters(), parameters, strict=True))


@pytest.mark.parametrize(("first", "second"), [("paper", "scaled"), ("scaled", "paper"), ("scaled", "scaled")])
def test_shared_mask_keeps_its_first_form(first, second):
    mask = GaussianMask(2, sigma=0.3)
    layers = [FlexConv2d(1, 1, 15, mask=mask, parametrization=first)]
    parameters = list(mask.parameters())
    layers.append(FlexConv2d(1, 1, 15, mask=mask, parametrization=second))
    assert mask.form == FORMS[first]
    assert all(new is old for new, old in zip(mask.parameters(), parameters, strict=True))
    mask.set_(sigma=0.1)
    assert layers[0].extent == layers[1].extent == (3, 3)


@pytest.mark.parametrize("parametrization", FORMS)
def test_form_of_an_assigned_mask_follows_the_layer(parametrization):
    layer = FlexConv2d(1, 1, 33, parametrization=parametrization)
    layer.mask = GaussianMask(2, sigma=0.3)
    assert layer.mask.form == FORMS[parametrization]
    assert layer.extent == (21, 21)
    parameters = list(layer.mask.parameters())
    layer.grid = layer.grid._replace(scale=2.0)
    assert all(new is old for new, old in zip(layer.mask.parameters(), parameters, strict=True))


def test_values_set_before_the_layer_are_kept():
    mask = GaussianMask(2)
    with torch.no_grad():
        mask.sigma.fill_(0.4)
    FlexConv2d(1, 1, 15, mask=mask)
    assert mask.sigma.tolist() == pytest.approx([0.4, 0.4])


def test_parametrized_width_is_kept():
    mask = GaussianMask(2, sigma=0.3)
    parametrize.register_parametrization(mask, "sigma", nn.Softplus())
    layer = FlexConv2d(1, 1, 15, mask=mask)
    assert mask.form == "guarded"
    layer(torch.randn(1, 1, 15, 15)).sum().backward()
    assert mask.parametrizations.sigma.original.grad is not None


def test_dtype_device_and_frozen_parameters_are_kept():
    mask = RotatedGaussianMask(sigma=0.3, dtype=torch.float64)
    mask.sigma.requires_grad_(False)
    angle = mask.angle
    FlexConv2d(1, 1, 15, mask=mask, dtype=torch.float64)
    assert [t.dtype for t in mask.state_dict().values()] == [torch.float64] * 4
    assert {name: p.requires_grad for name, p in mask.named_parameters()} == {
        "shift": True,
        "growth": False,
        "angle": True,
    }
    assert mask.angle is angle
    assert not mask.start.requires_grad
    meta = FlexConv2d(1, 1, 15, mask=GaussianMask(2, device="meta"), device="meta").mask
    assert all(t.is_meta for t in meta.state_dict().values())


def test_optimizer_made_after_the_layer_trains_the_mask():
    torch.manual_seed(0)
    net = nn.Sequential(FlexConv2d(1, 4, 15, mask=GaussianMask(2, sigma=0.3)), nn.ReLU())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    assert {id(p) for p in net[0].mask.parameters()} <= {id(p) for p in optimizer.param_groups[0]["params"]}
    before = net[0].mask.sigma.detach()
    net(torch.randn(2, 1, 16, 16)).square().sum().backward()
    optimizer.step()
    change = (net[0].mask.sigma.detach() / before).log().abs()
    torch.testing.assert_close(change, torch.full((2,), 0.04), rtol=0.01, atol=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), saved_and_loaded])
@pytest.mark.parametrize("kind", MASKS)
def test_copies(kind, copied):
    layer = FlexConv2d(2, 3, 15, mask=make_mask(kind))
    with torch.no_grad():
        layer.mask.growth.add_(0.05)
    twin = copied(layer)
    assert twin.mask.form == "scaled"
    assert torch.equal(twin.kernel(), layer.kernel())
    free = copied(make_mask(kind))  # a mask that is in no layer is still free to follow one
    assert FlexConv2d(2, 3, 15, mask=free).mask.form == "scaled"


@pytest.mark.parametrize("form", [None, "guarded"])
@pytest.mark.parametrize("kind", MASKS)
def test_states_of_both_forms_are_loaded(kind, form):
    torch.manual_seed(0)
    source, target = (FlexConv2d(2, 3, 15, mask=make_mask(kind, form=f, sigma=0.3)) for f in (form, None))
    source.mask.set_(mean=0.3, sigma=0.2)
    assert target.load_state_dict(source.state_dict()) == ([], [])
    assert target.extent == source.extent
    torch.testing.assert_close(target.kernel(), source.kernel())


@pytest.mark.parametrize(("form", "name"), [("scaled", "sigma"), ("guarded", "growth")])
def test_incomplete_states_of_the_other_form_are_reported(form, name):
    layer = FlexConv1d(2, 3, 15, mask=GaussianMask(1, form=form))
    state = {f"mask.{name}": torch.zeros(1)}
    assert layer.load_state_dict(state, strict=False).unexpected_keys == [f"mask.{name}"]
    with pytest.raises(RuntimeError, match=f"mask.{name}"):
        layer.load_state_dict(state)
