"""Memory from the system, and memory used again, is zeros and nobody else's."""

import gc
import sys

import numpy as np
import pytest

from tilewright.isa import MatrixUnitConfig, matmul
from tilewright.kernels.memory import fresh_zeros


@pytest.fixture(autouse=True)
def only_its_own_garbage():
    """Collecting that of all tests before would take most of the time."""
    gc.freeze()


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("size", [0, 1000, (1 << 18) + 8, (3 << 20) + 16, 40 << 20])
def test_zeros_however_often_memory_comes_back(size, filled):
    kept = []
    for turn in range(6):
        array = fresh_zeros(size // 8, np.int64, filled)
        assert array.shape == (size // 8,)
        assert not array.any()
        array[:] = turn + 1
        if turn % 2:
            kept.append(array[: len(array) // 2])  # a part of it is enough to keep it
        del array
        gc.collect()
    assert all((part == 2 * n + 2).all() for n, part in enumerate(kept))


def test_results_keep_their_machine():
    ones = np.ones((64, 64), np.int8)
    first = matmul(ones, ones, config=MatrixUnitConfig(pes=2))
    registers = first.pes[0].registers.copy()
    for _ in range(4):
        matmul(3 * ones, ones, config=MatrixUnitConfig(pes=2))
    assert np.array_equal(first.pes[0].registers, registers)
    assert registers.any()


def test_more_than_there_is_says_so():
    with pytest.raises((MemoryError, ValueError)):
        fresh_zeros(1 << 60, np.int64)


def test_memory_may_come_back_at_any_moment(monkeypatch):
    """Garbage is collected in the midst of anything, giving memory back included."""
    failed = []
    monkeypatch.setattr(sys, "unraisablehook", failed.append)
    before = gc.get_threshold()
    try:
        for turn in range(400):
            gc.set_threshold(1 + turn % 20)
            plain, other = (fresh_zeros(1 << 16, np.int64, filled=True) for _ in range(2))
            assert not plain.any()
            assert not other.any()
            plain[:] = other[:] = turn
            circle = [other]
            circle.append(circle)
            del other, circle  # comes back with the garbage, by chance while the next one does
            del plain
    finally:
        gc.set_threshold(*before)
    assert failed == []
