"""In eval mode without gradients, a layer caches its kernel until something may have changed it."""

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


def make_layer(**options):
    generator = partial(MAGNet, hidden=4, layers=1)
    layer = FlexConv1d(2, 3, 17, **({"generator": generator, "mask": GaussianMask(1, sigma=0.3)} | options))
    return layer.eval()


class CountSamples:
    """Counts how often a layer's generator is called."""

    def __init__(self, layer):
        self.calls = 0
        layer.generator.register_forward_hook(self.count)

    def count(self, *_):
        self.calls += 1


@pytest.fixture
def x():
    return torch.randn(2, 2, 30)


def without_cache(layer, x):
    """Return the output of a copy of the layer, whose cache is empty."""
    with torch.no_grad():
        return copy.deepcopy(layer)(x)


# --- when the cache is used -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_kernel_is_sampled_once(x, mode):
    layer = make_layer()
    count = CountSamples(layer)
    with mode():
        results = [layer(x) for _ in range(3)]
        layer(x[:1, :, :20])
        layer(x[0])
    assert count.calls == 1
    assert all(torch.equal(result, results[0]) for result in results)
    assert torch.equal(results[0], without_cache(layer, x))


def test_kernel_is_not_cached_with_gradients_or_in_training(x):
    layer = make_layer()
    count = CountSamples(layer)
    for _ in range(2):
        layer(x).sum().backward()
    assert count.calls == 2
    assert layer._provider._cache._entry is None
    with torch.no_grad():
        layer(x)
    layer.zero_grad()
    layer(x).sum().backward()  # the cached kernel has no autograd history
    assert layer.mask.growth.grad is not None
    layer.train()
    with torch.no_grad():
        layer(x)
        layer(x)
    assert count.calls == 6


def test_cache_is_correct_with_alternating_dtypes_and_inference_mode(x):
    layer = make_layer()
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


def test_kernel_of_inference_tensors_is_not_cached(x):
    with torch.inference_mode():
        layer = make_layer()
        before = layer(x)
        layer.generator.output.weight.mul_(2)  # inference tensors have no version counter
        assert relative_error(layer(x), before) > 0.1


# --- when the kernel is sampled again ---------------------------------------------------------------------------------


def step_in_training(layer, make_optimizer):
    layer.train()
    optimizer = make_optimizer(layer.parameters(), lr=0.1)
    layer(torch.randn(1, 2, 30)).square().sum().backward()
    optimizer.step()
    layer.eval()


def step_in_eval(layer, make_optimizer):
    optimizer = make_optimizer(layer.parameters(), lr=0.1)
    layer(torch.randn(1, 2, 30)).square().sum().backward()
    optimizer.step()


def replace_data(layer):
    layer.generator.output.weight.data = layer.generator.output.weight.data * 2


CHANGES = {
    "sgd": partial(step_in_training, make_optimizer=torch.optim.SGD),
    "sgd in eval mode": partial(step_in_eval, make_optimizer=torch.optim.SGD),
    "foreach adam": partial(step_in_eval, make_optimizer=partial(torch.optim.Adam, foreach=True)),
    "fused adam": partial(step_in_eval, make_optimizer=partial(torch.optim.Adam, fused=True)),
    "load_state_dict": lambda layer: layer.load_state_dict(make_layer().state_dict()),
    "load_state_dict with assign": lambda layer: layer.load_state_dict(make_layer().state_dict(), assign=True),
    "generator in place": lambda layer: layer.generator.output.weight.mul_(2),
    "mask in place": lambda layer: layer.mask.set_(sigma=1.01 * layer.mask.sigma),
    "data in place": lambda layer: layer.generator.output.weight.data.mul_(2),
    "detached in place": lambda layer: layer.generator.output.weight.detach().mul_(2),
    "data replaced": replace_data,
    "parameter replaced": lambda layer: setattr(layer.generator.output, "weight", nn.Parameter(torch.randn(6, 4))),
    "generator replaced": lambda layer: setattr(layer, "generator", make_layer().generator),
    "mask removed": lambda layer: setattr(layer, "mask", None),
    "scale of grid": lambda layer: setattr(layer, "grid", layer.grid._replace(scale=0.5)),
    "reset_parameters": lambda layer: layer.reset_parameters(),
    "vector_to_parameters": lambda layer: nn.utils.vector_to_parameters(
        torch.randn(sum(p.numel() for p in layer.parameters())), layer.parameters()
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_kernel_is_sampled_again_after_change(name, x):
    layer = make_layer()
    with torch.no_grad():
        before = layer(x)
    with torch.set_grad_enabled("sgd" in name or "adam" in name):
        CHANGES[name](layer)
    with torch.no_grad():
        after = layer(x)
    assert relative_error(after, before) > 1e-4
    torch.testing.assert_close(after, without_cache(layer, x), rtol=1e-6, atol=1e-6)


def test_kernel_is_sampled_again_in_another_dtype(x):
    layer = make_layer()
    with torch.no_grad():
        before = layer(x)
        after = layer.double()(x.double())
    assert after.dtype == torch.float64
    assert relative_error(before, after) < 1e-6


def test_train_and_eval_clear_cache(x):
    layer = make_layer()
    count = CountSamples(layer)
    with torch.no_grad():
        layer(x)
        layer.train().eval()(x)
    assert count.calls == 2


def test_layer_at_another_resolution_has_its_own_cache(x):
    layer = make_layer()
    with torch.no_grad():
        before = layer(x)
        for keep in (True, False):
            other = at_resolution(layer, 2, copy=keep)
            torch.testing.assert_close(other(x), without_cache(other, x))
            assert relative_error(other(x), before) > 1e-3
        assert torch.equal(layer(x), before)


# --- torch.func and torch.compile -------------------------------------------------------------------------------------


def test_functional_call_does_not_use_cache_of_layer(x):
    layer, another = make_layer(), make_layer()
    with torch.no_grad():
        mine, theirs = layer(x), another(x)
        for _ in range(2):
            assert torch.equal(functional_call(layer, another.state_dict(), (x,)), theirs)
            assert torch.equal(layer(x), mine)


def test_vmap_does_not_use_stale_cache(x):
    layers = [make_layer() for _ in range(3)]
    state = stack_module_state(layers)
    with torch.no_grad():
        expected = torch.stack([layer(x) for layer in layers])
        result = vmap(lambda *state: functional_call(layers[0], state, (x,)))(*state)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(vmap(layers[0])(x), expected[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layers[0](x), expected[0])


def test_forward_mode_derivatives_do_not_use_cache(x):
    layer = make_layer()
    parameters = dict(layer.named_parameters())
    tangents = {name: torch.randn_like(p) for name, p in parameters.items()}

    def function(p):
        return functional_call(layer, p, (x,))

    _, expected = jvp(function, (parameters,), (tangents,))
    with torch.no_grad():
        layer(x)
        _, result = jvp(function, (parameters,), (tangents,))
        torch.testing.assert_close(result, expected)
        before = layer(x)
        jacfwd(layer)(x[:1, :, :5])
        assert torch.equal(layer(x), before)
        assert torch.equal(layer(x), without_cache(layer, x))


def test_compiled_code_does_not_cache(x):
    layer = make_layer()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), without_cache(layer, x))
            layer.generator.output.weight.mul_(2)
    assert layer._provider._cache._entry is None


# --- state and copies -------------------------------------------------------------------------------------------------


def test_cache_is_not_saved_copied_or_pickled(x):
    layer = make_layer()
    keys, size = list(layer.state_dict()), len(pickle.dumps(layer))
    with torch.no_grad():
        layer(x)
    assert layer._provider._cache._entry is not None
    assert list(layer.state_dict()) == keys
    assert len(pickle.dumps(layer)) <= size + 200  # room for the extent, but not for a kernel
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(file, weights_only=False)):
        assert again._provider is not layer._provider
        assert again._provider._cache._entry is None
        with torch.no_grad():
            again.generator.output.weight.mul_(2)
            torch.testing.assert_close(again(x), without_cache(again, x))


def test_shallow_copy_does_not_change_cache_of_original(x):
    layer = make_layer()
    with torch.no_grad():
        before = layer(x)
        shallow = copy.copy(layer)
        shallow.grid = shallow.grid._replace(scale=0.5)
        torch.testing.assert_close(shallow(x), before / 2)
        assert torch.equal(layer(x), before)


# --- threads ----------------------------------------------------------------------------------------------------------


def test_cache_is_thread_safe(x):
    """One thread runs in float32, one under autocast, and one clears the cache repeatedly."""
    layer = make_layer()
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


@pytest.mark.parametrize("change", ["attribute", "list", "hook", "parameter"])
def test_change_between_two_quick_checks_is_noticed(change, x):
    """After the first passes, only identities of attributes and versions of tensors are compared."""
    layer = FlexConv1d(2, 3, 9, mask=GaussianMask(1, sigma=0.3)).eval()
    with torch.no_grad():
        before = layer(x)
        assert torch.equal(layer(x), before)
        assert layer._provider._cache._entry.state.unchanged(layer)
        if change == "attribute":
            layer.mask.threshold = 0.9
        elif change == "list":
            layer.mask.initial_sigma[0] *= 2  # no effect on the kernel, but it might have one in a subclass
        elif change == "hook":
            layer.generator.register_forward_hook(lambda *given: 2 * given[-1])
        else:
            layer.generator.output_map.weight.data.mul_(2)
        assert change == "parameter" or not layer._provider._cache._entry.state.unchanged(layer)
        after = layer(x)
        layer._provider.clear()
        assert torch.equal(after, layer(x))
        assert change == "list" or not torch.equal(after, before)


def test_kept_kernel_has_no_zeros_around_it(monkeypatch, x):
    from flexconv.nn import _conv

    layer = FlexConv1d(2, 3, 33, mask=GaussianMask(1, sigma=0.2)).eval()
    sizes = []
    original = _conv.conv_nd
    monkeypatch.setattr(_conv, "conv_nd", lambda *given: sizes.append(tuple(given[2].shape[2:])) or original(*given))
    with torch.no_grad():
        kept = layer(x)
    assert layer._provider._cache._entry.kernel.shape[2:] == layer.extent
    assert sizes in ([], [layer.extent])  # the fast version does not call this function
    sizes.clear()
    sampled = layer(x)
    (start, stop), *_ = layer.window
    assert sizes == [(stop - start,)]
    assert layer.extent[0] < stop - start
    assert relative_error(kept, sampled) < 1e-4  # sampled in another order
