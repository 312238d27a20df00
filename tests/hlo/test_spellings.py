"""Forty programs as people write them: bytes moved on vector8x128 at or below the form by hand, values right in all."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.conftest import by_night
from tests.hlo.spellings import SPELLINGS
from tests.hlo.traffic import moved
from tilewright.hlo import from_jax, optimize, verify


def test_there_are_forty():
    assert len(SPELLINGS) == 40


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (k % 4 > 0)) for k, name in enumerate(SPELLINGS)]
)
def test_a_spelling_moves_what_its_form_by_hand_moves(name):
    """Bytes by an independent count, values by ``verify`` (by day of every eighth); without rules.

    By day every fourth; random programs are held to as much in test_random_programs, texts in test_normal_form.
    """
    written, by_hand, *args = SPELLINGS[name]
    program, best = from_jax(written, *args), from_jax(by_hand, *args)
    found = optimize(program, "vector8x128", rules=[])
    assert found.moved_after == moved(found.text) <= found.moved_before
    assert found.moved_after <= moved(best.text)
    if list(SPELLINGS).index(name) % 8 == 0 or by_night():
        assert verify(program, found.program, inputs=["normal"], eager=False).ok


@pytest.mark.nightly
@pytest.mark.parametrize("name", SPELLINGS)
def test_the_form_by_hand_computes_the_same(name):
    """By day: ``verify`` on what Tilewright made, which the form by hand only sets a bound for."""
    written, by_hand, *args = SPELLINGS[name]
    rng = np.random.default_rng(3)
    given = [rng.normal(size=arg.shape).astype(arg.dtype) for arg in args]
    for ours, theirs in zip(jax.tree.leaves(jax.jit(written)(*given)), jax.tree.leaves(jax.jit(by_hand)(*given))):
        np.testing.assert_allclose(np.float32(ours), np.float32(theirs), rtol=2e-2, atol=1e-3)
