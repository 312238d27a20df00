"""Memory that is used again is nobody else's, and comes back at any moment."""

import gc
import sys

import numpy as np
import pytest

from tilewright.embed.host.arrays import recycled
from tilewright.isa import MatrixUnitConfig, matmul


@pytest.fixture(autouse=True)
def only_its_own_garbage():
    """Collecting that of all tests before would take most of the time."""
    gc.freeze()


@pytest.mark.parametrize("size", [0, 1000, (1 << 18) + 8, (3 << 20) + 16, 40 << 20])
def test_memory_that_somebody_has_does_not_come_back(size):
    kept = []
    for turn in range(6):
        array = recycled(size // 8, np.int64)
        assert array.shape == (size // 8,)
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


def test_memory_may_come_back_at_any_moment(monkeypatch):
    """Garbage is collected in the midst of anything, giving memory back included."""
    failed = []
    monkeypatch.setattr(sys, "unraisablehook", failed.append)
    before = gc.get_threshold()
    try:
        for turn in range(400):
            gc.set_threshold(1 + turn % 20)
            plain, other = (recycled(1 << 16, np.int64) for _ in range(2))
            plain[:] = turn
            other[:] = -1
            assert (plain == turn).all()
            circle = [other]
            circle.append(circle)
            del other, circle  # comes back with the garbage, by chance while the next one does
            del plain
    finally:
        gc.set_threshold(*before)
    assert failed == []
