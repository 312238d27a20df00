"""Constants that are not splats: laid out anew at compile time, element for element, whatever their type."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import tilewright


@pytest.mark.parametrize("inner", [2, 3, 100])
def test_booleans_keep_every_element(inner):
    """Eight and fewer, more than eight, and so many that MLIR prints them as raw bytes."""
    mask = np.random.default_rng(3).integers(0, 2, (2, 2, inner)).astype(bool)
    mask[0, 0, 0], mask[-1, -1, -1] = True, False

    def shifted(x):
        y = x.reshape(2, 2, inner)
        return jnp.where(mask, y + 1, y - 1).reshape(2, 2 * inner)

    fast = tilewright.optimize(shifted, target="vector8x128")
    x = jnp.zeros((2, 2 * inner))
    assert fast.fallback(x) == ""
    np.testing.assert_array_equal(fast(x), np.where(mask, 1, -1).reshape(2, -1))
