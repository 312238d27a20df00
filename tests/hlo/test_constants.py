"""Constants that are not splats: laid out anew at compile time, element for element, whatever their type."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import tilewright
from tests.hlo.stablehlo_values import module, values
from tilewright.hlo import from_jax, optimize, verify


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


TYPES = {
    "bf16": jnp.bfloat16, "f16": jnp.float16, "f8E4M3FN": jnp.float8_e4m3fn, "i4": jnp.int4, "ui8": jnp.uint8,
    "complex<f32>": jnp.complex64,
}  # fmt: skip


@pytest.mark.parametrize("inner", [3, 40])
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES.keys())
def test_every_element_type_is_laid_out_anew(dtype, inner):
    """P2 takes the reshape away, and the constant has the same elements in another shape; few and many of them."""
    weights = jnp.asarray(np.random.default_rng(3).integers(0, 8, (2, 2, inner)), dtype)

    def weighted(x):
        return (x.reshape(2, 2, inner) * weights).reshape(2, 2 * inner)

    x = jnp.asarray(np.random.default_rng(4).integers(-1, 1, (2, 2 * inner)), dtype)
    program = from_jax(weighted, x)
    found = optimize(program, "vector8x128")
    assert found.rewrites
    assert found.moved_after == 0
    assert "stablehlo.reshape" not in found.text
    proof = verify(program, found.program, [x], eager=False)
    assert proof.bit_equal
    assert (proof.reference == "numpy") == (dtype != jnp.int4)


@pytest.mark.parametrize("kind", ["bf16", "complex<f32>", "f16", "f8E4M3FN"])
@pytest.mark.parametrize("count", [3, 120])
def test_the_reference_reads_constants_of_every_floating_type(kind, count):
    wrap = "({}.0,-1.0)" if "complex" in kind else "{}.0"
    listed = ", ".join(wrap.format(k % 5) for k in range(count))
    line = f"%y = stablehlo.constant dense<[{listed}]> : tensor<{count}x{kind}>"
    found = values(module({}, line, {"y": f"tensor<{count}x{kind}>"}))[0]
    np.testing.assert_array_equal(found, np.arange(count) % 5 - (1j if "complex" in kind else 0))
