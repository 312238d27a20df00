"""verify finds what is wrong, and the float64 reference agrees with numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.hlo.norms import struct
from tilewright.errors import UsageError
from tilewright.hlo import from_jax, verify


def test_a_wrong_program_is_found():
    x = struct(64, 32)
    right, wrong = from_jax(lambda x: x.sum(0), x), from_jax(lambda x: x.sum(0) * 1.001, x)
    proof = verify(right, wrong)
    assert not proof.ok
    assert not proof.bit_equal
    assert proof.max_difference == pytest.approx(1e-3, rel=0.01)
    assert proof.error_after > 100 * proof.error_before
    assert verify(right, right).bit_equal


def test_integers_must_agree_exactly():
    x = struct(64, dtype=jnp.int32)
    assert not verify(from_jax(lambda x: x, x), from_jax(lambda x: x + (x == 2), x)).ok


def test_a_result_that_is_not_a_number_on_one_side_is_found():
    x = struct(8)
    proof = verify(from_jax(lambda x: x, x), from_jax(lambda x: x / jnp.where(x > 0, 1.0, 0.0), x))
    assert not proof.ok
    assert proof.max_difference == float("inf")


def test_where_numpy_stops_xla_in_float64_goes_on():
    def mixed(x, half):
        return jnp.sort(x, 0) @ x.T, jnp.where(half > 0, half, -jnp.inf).max(0), jnp.cumsum(half, 0)

    program = from_jax(mixed, struct(64, 48), struct(64, dtype=jnp.bfloat16))
    proof = verify(program, program)
    assert proof.ok
    assert proof.reference == "XLA in float64"
    assert 1e-8 < proof.error_before < 0.05


def test_without_a_reference_the_two_are_compared_with_each_other():
    def bits(x):
        return jax.lax.bitcast_convert_type(jnp.sort(x), jnp.int32)

    proof = verify(from_jax(bits, struct(16)), from_jax(bits, struct(16)))
    assert proof.ok
    assert proof.error_before is None
    assert proof.reference.startswith("none: the float64 reference does not know")


def test_programs_of_different_types_are_refused():
    with pytest.raises(UsageError, match="different types"):
        verify(from_jax(jnp.sin, struct(3)), from_jax(jnp.sin, struct(4)))


def test_the_reference_evaluates_what_users_write():
    def mixture(x, n):
        y = jnp.where(x > 0, jnp.log1p(jnp.abs(x)), jnp.tanh(x)) + jnp.arange(5.0)
        return y.max(0), jnp.clip(x, -0.5, 0.5).T, (n // 3) % 2, (x * 1j).imag, jnp.exp(-(x**2)) / jnp.sqrt(1 + x**2)

    program = from_jax(mixture, struct(4, 5), struct(6, dtype=jnp.int32))
    x, n = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32), np.arange(-3, 3, dtype=np.int32)
    proof = verify(program, program, [x, n])
    assert proof.reference == "numpy"
    assert proof.error_before < 1e-6
