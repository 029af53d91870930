"""Direct launches of compiled kernels. Without a GPU, Triton is simulated."""

import pytest
import torch

from flexconv._fast import launches
from flexconv._fast.launches import Launch

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Compiled:
    """What Triton returns from a launch. It records how it is launched again."""

    function, packed_metadata = 7, (4, 1, 0)

    def __init__(self, kernel):
        self.kernel = kernel

    def run(self, *arguments):
        if self.kernel.broken:
            raise TypeError("function takes exactly 3 arguments")
        self.kernel.direct.append(arguments)

    def __getitem__(self, grid):
        return lambda *arguments, stream: self.run(*grid, stream, *arguments)


class Kernel:
    """A function with the decorator `triton.jit`."""

    arg_names = ("x", "y", "n", "scale", "BLOCK", "FLAG")

    def __init__(self):
        self.ordinary, self.direct, self.broken = [], [], False

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.ordinary.append((grid, arguments, options))
            return Compiled(self)

        return launch


@pytest.fixture(autouse=True)
def _simulate(monkeypatch):
    monkeypatch.setattr(launches, "ENABLED", True)
    monkeypatch.setattr(launches, "_current_device", lambda: -1)
    monkeypatch.setattr(launches, "_current_stream", lambda _: 99)
    monkeypatch.setattr(launches, "_triton_version", lambda: "3.6.0")
    monkeypatch.setattr(launches, "_is_observed", lambda: False)


def make(**constants):
    kernel = Kernel()
    return kernel, Launch(kernel, (3,), (5, 0.5), {"FLAG": True, "BLOCK": 16, **constants}, num_warps=2)


def test_launches_after_the_first_are_direct():
    kernel, launch = make()
    x = torch.zeros(8)
    launch(x, None)
    assert kernel.ordinary == [((3, 1, 1), (x, None, 5, 0.5), {"FLAG": True, "BLOCK": 16, "num_warps": 2})]
    launch(x, None)
    assert len(kernel.ordinary) == 1
    # grid, stream, function and metadata, then nothing for hooks, and the arguments in the order of the signature
    assert kernel.direct == [(3, 1, 1, 99, 7, (4, 1, 0), None, None, None, x.data_ptr(), None, 5, 0.5, 16, True)]


def test_other_versions_of_triton_are_called_by_their_own_method(monkeypatch):
    monkeypatch.setattr(launches, "_triton_version", lambda: "3.7.0")
    kernel, launch = make()
    x = torch.zeros(8)
    launch(x, None)
    launch(x, None)
    assert kernel.direct == [(3, 1, 1, 99, x.data_ptr(), None, 5, 0.5, 16, True)]


def test_tensors_that_are_not_aligned_are_launched_in_the_ordinary_way():
    kernel, launch = make()
    x = torch.zeros(8)
    launch(x[1:], x)
    launch(x, x)
    launch(x, x[1:])
    assert len(kernel.ordinary) == 3
    assert not kernel.direct
    launch(x, x)
    assert len(kernel.direct) == 1


def test_other_devices_are_launched_in_the_ordinary_way(monkeypatch):
    kernel, launch = make()
    x = torch.zeros(8)
    launch(x, None)
    monkeypatch.setattr(launches, "_current_device", lambda: 1)
    launch(x, None)
    assert len(kernel.ordinary) == 2


def test_hooks_of_profilers_are_called_by_triton(monkeypatch):
    kernel, launch = make()
    x = torch.zeros(8)
    launch(x, None)
    monkeypatch.setattr(launches, "_is_observed", lambda: True)
    launch(x, None)
    assert len(kernel.ordinary) == 2


def test_a_version_that_cannot_be_called_is_not_tried_again():
    kernel, launch = make()
    kernel.broken = True
    x = torch.zeros(8)
    for _ in range(3):
        launch(x, None)
    assert len(kernel.ordinary) == 3
    assert not launches.ENABLED
    assert not launch._direct


def test_can_be_turned_off(monkeypatch):
    monkeypatch.setattr(launches, "ENABLED", False)
    kernel, launch = make()
    for _ in range(2):
        launch(torch.zeros(8), None)
    assert len(kernel.ordinary) == 2


@pytest.mark.parametrize("missing", ["run", "arg_names"])
def test_unknown_objects_are_launched_in_the_ordinary_way(monkeypatch, missing):
    monkeypatch.delattr(Compiled if missing == "run" else Kernel, missing)
    kernel, launch = make()
    for _ in range(2):
        launch(torch.zeros(8), None)
    assert len(kernel.ordinary) == 2


def test_constants_must_be_the_last_arguments():
    kernel, launch = make(x=1)
    for _ in range(2):
        launch(torch.zeros(8), None)
    assert len(kernel.ordinary) == 2


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@gpu
def test_direct_launches_on_a_gpu(monkeypatch):
    from flexconv._fast.sampler_launches import _mask_launch
    from tests._fast.test_fused_sampler import GENERATORS, compare

    monkeypatch.undo()
    _mask_launch.cache_clear()
    from flexconv import FlexConv2d

    started = []
    original = launches._familiar_start

    def recorded(compiled, others):
        start = original(compiled, others)

        def count(*arguments):
            started.append(compiled)
            start(*arguments)

        return count

    monkeypatch.setattr(launches, "_familiar_start", recorded)
    layer = FlexConv2d(2, 3, 13, generator=GENERATORS["magnet"], parametrization="paper")
    for _ in range(3):
        compare(layer, ((2, 11), (2, 11)))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        compare(layer, ((2, 11), (2, 11)))
    torch.cuda.synchronize()
    assert started or not launches._triton_version().startswith(launches.FAMILIAR)
