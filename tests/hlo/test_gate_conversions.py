"""Narrow floats are accumulated in f32, and where nothing fuses the gate counts what that reads and writes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from tests.hlo.norms import struct
from tests.hlo.traffic import moved, read_and_written
from tilewright.hlo import from_jax, optimize, verify


def narrow_sum(*groups, dtype=jnp.bfloat16):
    x = struct(64, 16, 1024, dtype=dtype)
    zero = jnp.zeros((), dtype)
    return from_jax(lambda x: jax.lax.reduce(x.reshape(64, 16, *groups), zero, jax.lax.add, (1, 3)), x)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_conversions_that_cost_more_than_the_reshape_are_refused(dtype):
    """4 MiB of a reshape would become 512 KiB, but x in f32 is 2 MiB read, 4 written and 4 instead of 2 summed."""
    program = narrow_sum(8, 128, dtype=dtype)
    found = optimize(program, "vector8x128", rules=[])
    assert found.text == program.text
    assert "move 512 KiB instead of 4.00 MiB, conversions add 8.05 MiB" in found.explain()


def test_a_compiler_that_fuses_adds_nothing():
    """XLA's CPU backend computes the conversion inside the sum."""
    [verdict] = optimize(narrow_sum(128, 8), "cpu", rules=[]).rewrites
    assert "conversions" not in verdict.reason


def test_conversions_that_cost_less_are_named_in_the_reason():
    program = narrow_sum(32, 32)
    found = optimize(program, "vector8x128", rules=[])
    [verdict] = found.rewrites
    assert "move 1.25 MiB instead of 10.0 MiB, conversions add 8.05 MiB" in verdict.reason
    assert (verdict.moved_before, verdict.moved_after) == (moved(program.text), moved(found.text))
    assert 0 < verdict.gain == verdict.moved_before - verdict.moved_after - verdict.added
    assert read_and_written(found.text) < read_and_written(program.text)
    assert verify(program, found.program, inputs=["normal"], eager=False).ok


def test_what_the_program_converts_itself_is_on_both_sides():
    """jnp.sum of a narrow float converts before it sums: nothing is added."""
    program = from_jax(lambda x: x.reshape(64, 16, 8, 128).sum((1, 3)), struct(64, 16, 1024, dtype=jnp.bfloat16))
    found = optimize(program, "vector8x128", rules=[])
    [verdict] = found.rewrites
    assert verdict.added == 0
    assert "conversions" not in verdict.reason
    assert read_and_written(found.text) < read_and_written(program.text)
