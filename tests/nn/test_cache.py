"""In evaluation a kernel is sampled once, and again after whatever may have changed it. Never part of the state."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacfwd, jvp, stack_module_state, vmap

from flexconv import FlexConv1d, GaussianMask, at_resolution
from flexconv.nn import MAGNet
from tests.conftest import relative_error


def make(**options):
    kernel = partial(MAGNet, hidden=4, layers=1)
    layer = FlexConv1d(2, 3, 17, **({"generator": kernel, "mask": GaussianMask(1, sigma=0.3)} | options))
    return layer.eval()


class Count:
    """How often a layer's generator has run."""

    def __init__(self, layer):
        self.calls = 0
        layer.generator.register_forward_hook(self.count)

    def count(self, *_):
        self.calls += 1


@pytest.fixture
def x():
    return torch.randn(2, 2, 30)


def fresh(layer, x):
    """What a layer without a cache gives."""
    with torch.no_grad():
        return copy.deepcopy(layer)(x)


# --- hits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quiet", [torch.no_grad, torch.inference_mode])
def test_a_kernel_is_sampled_once(x, quiet):
    layer = make()
    count = Count(layer)
    with quiet():
        results = [layer(x) for _ in range(3)]
        layer(x[:1, :, :20])
        layer(x[0])
    assert count.calls == 1
    assert all(torch.equal(result, results[0]) for result in results)
    assert torch.equal(results[0], fresh(layer, x))


def test_with_gradients_nothing_is_kept(x):
    layer = make()
    count = Count(layer)
    for _ in range(2):
        layer(x).sum().backward()
    assert count.calls == 2
    assert layer._provider._cache._entry is None
    with torch.no_grad():
        layer(x)
    layer.zero_grad()
    layer(x).sum().backward()  # what the cache holds has no history
    assert layer.mask.sigma.grad is not None
    layer.train()
    with torch.no_grad():
        layer(x)
        layer(x)
    assert count.calls == 6


def test_precisions_and_inference_mode_take_turns(x):
    layer = make()
    with torch.inference_mode():
        first = layer(x)
    with torch.no_grad():
        second = layer(x)
    assert torch.equal(first, second)
    y = layer(x.requires_grad_())  # gradients after inference mode
    y.sum().backward()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        low = layer(x)
    assert low.dtype == torch.bfloat16
    with torch.no_grad():
        assert torch.equal(layer(x), second)


def test_parameters_made_in_inference_mode_are_not_trusted(x):
    with torch.inference_mode():
        layer = make()
        before = layer(x)
        layer.generator.output.weight.mul_(2)  # no version counts this
        assert relative_error(layer(x), before) > 0.1


# --- misses -----------------------------------------------------------------------------------------------------------


def step(layer, make_optimiser):
    layer.train()
    optimiser = make_optimiser(layer.parameters(), lr=0.1)
    layer(torch.randn(1, 2, 30)).square().sum().backward()
    optimiser.step()
    layer.eval()


def step_in_eval(layer, make_optimiser):
    optimiser = make_optimiser(layer.parameters(), lr=0.1)
    layer(torch.randn(1, 2, 30)).square().sum().backward()
    optimiser.step()


def swap_data(layer):
    layer.generator.output.weight.data = layer.generator.output.weight.data * 2


CHANGES = {
    "sgd": partial(step, make_optimiser=torch.optim.SGD),
    "sgd, in eval mode": partial(step_in_eval, make_optimiser=torch.optim.SGD),
    "foreach": partial(step_in_eval, make_optimiser=partial(torch.optim.Adam, foreach=True)),
    "fused": partial(step_in_eval, make_optimiser=partial(torch.optim.Adam, fused=True)),
    "load_state_dict": lambda layer: layer.load_state_dict(make().state_dict()),
    "load_state_dict, assigned": lambda layer: layer.load_state_dict(make().state_dict(), assign=True),
    "in place": lambda layer: layer.generator.output.weight.mul_(2),
    "in place, the mask": lambda layer: layer.mask.sigma.mul_(1.01),
    "in place, through data": lambda layer: layer.generator.output.weight.data.mul_(2),
    "in place, detached": lambda layer: layer.generator.output.weight.detach().mul_(2),
    "another tensor in data": swap_data,
    "another parameter": lambda layer: setattr(layer.generator.output, "weight", nn.Parameter(torch.randn(6, 4))),
    "another generator": lambda layer: setattr(layer, "generator", make().generator),
    "no mask": lambda layer: setattr(layer, "mask", None),
    "scale": lambda layer: setattr(layer, "grid", layer.grid._replace(scale=0.5)),
    "reset_parameters": lambda layer: layer.reset_parameters(),
    "vector_to_parameters": lambda layer: nn.utils.vector_to_parameters(
        torch.randn(sum(p.numel() for p in layer.parameters())), layer.parameters()
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_noticed(name, x):
    layer = make()
    with torch.no_grad():
        before = layer(x)
    with torch.set_grad_enabled("sgd" in name or name in ("foreach", "fused")):
        CHANGES[name](layer)
    with torch.no_grad():
        after = layer(x)
    assert relative_error(after, before) > 1e-4
    torch.testing.assert_close(after, fresh(layer, x), rtol=1e-6, atol=1e-6)


def test_another_precision(x):
    layer = make()
    with torch.no_grad():
        before = layer(x)
        after = layer.double()(x.double())
    assert after.dtype == torch.float64
    assert relative_error(before, after) < 1e-6


def test_train_and_eval_sample_anew(x):
    layer = make()
    count = Count(layer)
    with torch.no_grad():
        layer(x)
        layer.train().eval()(x)
    assert count.calls == 2


def test_another_resolution_has_a_kernel_of_its_own(x):
    layer = make()
    with torch.no_grad():
        before = layer(x)
        for keep in (True, False):
            other = at_resolution(layer, 2, copy=keep)
            torch.testing.assert_close(other(x), fresh(other, x))
            assert relative_error(other(x), before) > 1e-3
        assert torch.equal(layer(x), before)


# --- functional -------------------------------------------------------------------------------------------------------


def test_functional_call_uses_the_parameters_given(x):
    layer, another = make(), make()
    with torch.no_grad():
        mine, theirs = layer(x), another(x)
        for _ in range(2):
            assert torch.equal(functional_call(layer, dict(another.named_parameters()), (x,)), theirs)
            assert torch.equal(layer(x), mine)


def test_vmap_over_parameters_and_over_inputs(x):
    layers = [make() for _ in range(3)]
    parameters, _ = stack_module_state(layers)
    with torch.no_grad():
        alone = torch.stack([layer(x) for layer in layers])
        together = vmap(lambda p: functional_call(layers[0], p, (x,)))(parameters)
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(vmap(layers[0])(x), alone[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layers[0](x), alone[0])


def test_derivatives_without_grad_mode(x):
    layer = make()
    parameters = dict(layer.named_parameters())
    tangents = {name: torch.randn_like(p) for name, p in parameters.items()}

    def function(p):
        return functional_call(layer, p, (x,))

    _, expected = jvp(function, (parameters,), (tangents,))
    with torch.no_grad():
        layer(x)
        _, quiet = jvp(function, (parameters,), (tangents,))
        torch.testing.assert_close(quiet, expected)
        before = layer(x)
        jacfwd(layer)(x[:1, :, :5])
        assert torch.equal(layer(x), before)
        assert torch.equal(layer(x), fresh(layer, x))


def test_compiled_code_has_no_cache(x):
    layer = make()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), fresh(layer, x))
            layer.generator.output.weight.mul_(2)
    assert layer._provider._cache._entry is None


# --- never state ------------------------------------------------------------------------------------------------------


def test_it_is_not_saved_copied_or_pickled(x):
    layer = make()
    keys, size = list(layer.state_dict()), len(pickle.dumps(layer))
    with torch.no_grad():
        layer(x)
    assert layer._provider._cache._entry is not None
    assert list(layer.state_dict()) == keys
    assert len(pickle.dumps(layer)) <= size + 200  # the sizes in use are; a kernel would take more
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(file, weights_only=False)):
        assert again._provider is not layer._provider
        assert again._provider._cache._entry is None
        with torch.no_grad():
            again.generator.output.weight.mul_(2)
            torch.testing.assert_close(again(x), fresh(again, x))


def test_a_shallow_copy_is_not_confused(x):
    layer = make()
    with torch.no_grad():
        before = layer(x)
        shallow = copy.copy(layer)
        shallow.grid = shallow.grid._replace(scale=0.5)
        torch.testing.assert_close(shallow(x), before / 2)
        assert torch.equal(layer(x), before)


# --- threads ----------------------------------------------------------------------------------------------------------


def test_threads_do_not_get_each_others_kernels(x):
    """One thread in float32, one under autocast, one that clears the cache all the time: three keys for one entry."""
    layer = make()
    with torch.no_grad():
        expected = layer(x)
        with torch.autocast("cpu", torch.bfloat16):
            lowered = layer(x)
    failures = []

    def evaluate(low):
        try:
            for _ in range(100):
                with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=low):
                    y = layer(x)
                if not torch.equal(y, lowered if low else expected):
                    failures.append(low)
        except Exception as error:
            failures.append(error)

    def clear():
        for _ in range(300):
            layer.eval()

    threads = [threading.Thread(target=evaluate, args=(low,)) for low in (True, False)] + [
        threading.Thread(target=clear)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
