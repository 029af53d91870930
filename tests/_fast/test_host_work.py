"""How much the host does for one layer in an eager training step, counted without a GPU."""

import pytest

pytest.importorskip("triton")

from benchmarks.eager_loop import VIEWS, Operations
from benchmarks.host_overhead import Case, as_on_a_gpu, calls, microseconds
from flexconv._fast import fused_sampler, sampler_launches

#: calls of Python functions forward and backward, and operations of torch, launches included; about a quarter more
#: than now. Before `_fast/eager.py` there were 598 and 71 calls for "scaled direct"
LIMITS = {
    ("scaled", "direct"): (125, 60, 8),
    ("paper", "direct"): (115, 80, 9),
    ("scaled", "fft"): (130, 85, 38),
    ("paper", "fft"): (115, 105, 38),
}


@pytest.fixture(autouse=True)
def _gpu():
    """Launches that do nothing must not be used by other tests."""
    kept = [
        sampler_launches._features_launch, sampler_launches._features_backward_launch, sampler_launches._mask_launch,
        sampler_launches._mask_backward_launch,
    ]  # fmt: skip
    for each in kept:
        each.cache_clear()
    with as_on_a_gpu():
        yield
    for each in kept:
        each.cache_clear()
    fused_sampler._constant_features.clear()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("kind", "algorithm"), LIMITS)
def test_calls_and_operations_of_a_training_step(kind, algorithm, half):
    case = Case(kind, algorithm, half=half)
    microseconds(case, 3)
    forward_limit, backward_limit, operations_limit = LIMITS[kind, algorithm]
    forward, y = calls(case.forward)
    assert forward <= forward_limit
    backward, _ = calls(lambda: y.backward(case.gradient))
    assert backward <= backward_limit
    case.update()
    with Operations() as counted:
        case.forward().backward(case.gradient)
    # conversions between precisions are those of autocast
    free = {*VIEWS, "_to_copy", "convolution", "convolution_backward", "empty_like", "new_empty", "add_", "add", "sum"}
    assert sum(number for name, number in counted.counts.items() if name not in free) <= operations_limit
    assert case.layer._provider._cache.path.supported
