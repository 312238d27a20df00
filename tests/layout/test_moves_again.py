"""Moves made again and again, by many threads, and come between: what could go wrong, and once did."""

from __future__ import annotations

import numpy as np
import pytest

from tests.layout.test_moves import expected, sample
from tilewright.layout import parse


@pytest.mark.parametrize("text", ["bf16[1024]{0:T(1024)(128)(2,1)}", "s32[16]{0:T(16)(4)(2,1)}", "f32[64]{0:T(64)}"])
def test_packing_is_not_taken_for_unpacking(text):
    """A 1-D array without padding and its buffer look alike."""
    layout, back_first = parse(text), parse(text)
    values = sample(layout)
    packed = expected(layout, values)
    for k in range(3):
        out, back = np.zeros_like(packed), np.zeros_like(values)
        assert np.array_equal(layout.pack(values, out=out), packed), k
        assert np.array_equal(layout.unpack(packed, out=back), values), k
        assert np.array_equal(back_first.unpack(packed, out=back), values), k
        assert np.array_equal(back_first.pack(values, out=out), packed), k
