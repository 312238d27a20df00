"""Constants that are not splats: laid out anew at compile time, element for element, whatever their type."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import tilewright
from tests.hlo.stablehlo_values import module, values
from tilewright.hlo import from_jax, optimize, verify


@pytest.mark.parametrize("inner", [pytest.param(2, marks=pytest.mark.nightly), 3, 100])
def test_booleans_keep_every_element(inner):
    """Eight and fewer, more than eight, and so many that MLIR prints them as raw bytes. By day: twelve and many."""
    mask = np.random.default_rng(3).integers(0, 2, (2, 2, inner)).astype(bool)
    mask[0, 0, 0], mask[-1, -1, -1] = True, False

    def shifted(x):
        y = x.reshape(2, 2, inner)
        return jnp.where(mask, y + 1, y - 1).reshape(2, 2 * inner)

    fast = tilewright.optimize(shifted, target="vector8x128")
    x = jnp.zeros((2, 2 * inner))
    assert fast.fallback(x) == ""
    np.testing.assert_array_equal(fast(x), np.where(mask, 1, -1).reshape(2, -1))


TYPES = {
    "bf16": jnp.bfloat16, "f16": jnp.float16, "f8E4M3FN": jnp.float8_e4m3fn, "i4": jnp.int4, "ui8": jnp.uint8,
    "complex<f32>": jnp.complex64,
}  # fmt: skip


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(TYPES[k], id=k, marks=[pytest.mark.nightly] if k in ("f16", "ui8") else []) for k in TYPES],
)
def test_every_element_type_is_laid_out_anew(dtype):
    """Sinking takes the reshape away, and the constant has the same elements in another shape; few and many of them.

    By day: floats and integers of other widths, here and in test_legality_trees.py.
    """
    rng = np.random.default_rng(3)
    weights = [rng.integers(0, 8, (2, 2, inner)).astype(dtype) for inner in (3, 40)]

    def weighted(*xs):
        return [(x.reshape(each.shape) * each).reshape(x.shape) for x, each in zip(xs, weights)]

    xs = [rng.integers(-1, 1, (2, 2 * inner)).astype(dtype) for inner in (3, 40)]
    program = from_jax(weighted, *xs)
    found = optimize(program, "vector8x128")
    assert len(found.rewrites) == 2
    assert found.moved_after == 0
    assert "stablehlo.reshape" not in found.text
    proof = verify(program, found.program, xs, eager=False)
    assert proof.bit_equal
    assert (proof.reference == "StableHLO's interpreter") == (dtype not in (jnp.int4, jnp.complex64))


@pytest.mark.parametrize("kind", ["bf16", "complex<f32>", "f16", "f8E4M3FN"])
@pytest.mark.parametrize("count", [3, 120])
def test_the_reference_reads_constants_of_every_floating_type(kind, count):
    wrap = "({}.0,-1.0)" if "complex" in kind else "{}.0"
    listed = ", ".join(wrap.format(k % 5) for k in range(count))
    line = f"%y = stablehlo.constant dense<[{listed}]> : tensor<{count}x{kind}>"
    found = values(module({}, line, {"y": f"tensor<{count}x{kind}>"}))[0]
    np.testing.assert_array_equal(found, np.arange(count) % 5 - (1j if "complex" in kind else 0))
