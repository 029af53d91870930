"""The cache of transform matrices: shared by threads, counted correctly, bounded, and useful for many lengths."""

from __future__ import annotations

import threading

import pytest
import torch

from flexconv import ops
from flexconv.ops import _dft_cache
from flexconv.ops._dft_cache import MatrixCache, cached_matrices, shared_spec
from flexconv.ops._dft_matrices import Positions, TransformSpec, build_matrices
from tests.conftest import relative_error

CPU = torch.device("cpu")


def transform(length, positions, *, kernel=False):
    return TransformSpec("single", (length,), (Positions(*positions),), kernel)


def held(cache):
    tensors = [matrix for matrices in cache._recent.values() for matrix in matrices]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


@pytest.fixture
def empty_cache(monkeypatch):
    cache = MatrixCache(limit=2**20)
    monkeypatch.setattr(_dft_cache, "on_cpu", cache)
    return cache


def test_count_is_right_with_many_threads(monkeypatch):
    """A thread that is interrupted between building and inserting leaves room for others to do the same."""
    cache, barrier = MatrixCache(limit=10_000), threading.Barrier(4, timeout=60)
    build = _dft_cache._build_tensors

    def slow_build(*key):
        barrier.wait()  # all threads build the same matrices
        return build(*key)

    monkeypatch.setattr(_dft_cache, "_build_tensors", slow_build)
    results, errors = [], []

    def work():
        try:
            for length in (16, 24, 32, 40, 48):
                results.append(cache(transform(length, (length, 0, 1)), torch.float64, CPU))
                barrier.wait()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(results) == 20
    assert cache.used == held(cache) <= cache.limit + 8 * 48 * 48


def test_threads_with_changing_lengths_get_right_results(empty_cache):
    errors = []

    def work(seed):
        random = torch.Generator().manual_seed(seed)
        for number in range(40):
            x = torch.randn(1, 1, 40 + 8 * ((7 * number + 3 * seed) % 30), generator=random, dtype=torch.float64)
            weight = torch.randn(1, 1, 9, generator=random, dtype=torch.float64)
            result = ops.conv1d(x, weight, algorithm="dft")
            errors.append(relative_error(result, ops.conv1d(x, weight, algorithm="direct")))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 160
    assert max(errors) < 1e-12
    assert empty_cache.used == held(empty_cache)


def test_many_lengths_share_few_matrices(empty_cache, monkeypatch):
    builds, build = [], _dft_cache._build_tensors
    monkeypatch.setattr(_dft_cache, "_build_tensors", lambda *key: builds.append(key) or build(*key))
    for length in range(200, 500):
        x = torch.randn(1, 1, length)
        ops.conv1d(x, torch.ones(1, 1, 9), algorithm="dft")
        assert empty_cache.used == held(empty_cache)
        assert empty_cache.used <= empty_cache.limit
    large = [key for key in builds if not key[0].kernel]
    assert len(large) <= 300 / 8 + 1


@pytest.mark.parametrize("number", [5, 12, 16])
def test_shared_matrix_contains_the_one_for_fewer_positions(number):
    spec = transform(16, (number, 0, 1))
    assert shared_spec(spec) == transform(16, (16, 0, 1))
    (matrix,) = cached_matrices(spec, torch.float64, CPU)
    torch.testing.assert_close(matrix, torch.from_numpy(build_matrices(spec)[0]), rtol=0, atol=0)


@pytest.mark.parametrize(
    "spec", [transform(16, (9, -4, 1), kernel=True), transform(16, (5, 0, 2)), transform(16, (5, 1, 1))]
)
def test_other_positions_have_matrices_of_their_own(spec):
    assert shared_spec(spec) == spec


def test_a_cpu_holds_less_than_a_gpu():
    assert _dft_cache.on_cpu.limit <= 2**28
    assert cached_matrices(transform(8, (8, 0, 1)), torch.float32, CPU)[0].shape == (8, 8)
    assert (transform(8, (8, 0, 1)), torch.float32, CPU) in _dft_cache.on_cpu._recent
