"""verify tries edge values and both ways of running, and tells what differs where."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import by_night
from tests.hlo.norms import struct
from tilewright.errors import UnsupportedError, UsageError
from tilewright.hlo import from_jax, load, optimize, verify
from tilewright.hlo.graphs.graph import Value
from tilewright.hlo.proving.reference import XlaValues
from tilewright.hlo.proving.trials import INPUTS, may_never_end, trial_inputs
from tilewright.hlo.proving.verify import _main

X = struct(16, 8)


def kinds(proof, **wanted):
    return {t.inputs for t in proof.trials if all(getattr(t, name) == value for name, value in wanted.items())}


@pytest.mark.parametrize(
    ("right", "wrong", "shown"),
    [
        (lambda x: x, lambda x: jnp.where(jnp.isnan(x), 0, x), {"special"}),
        (lambda x: x, lambda x: jnp.clip(x, -1e30, 1e30), {"special", "large", "lowest"}),
        (lambda x: 1 / x > 0, lambda x: 1 / jnp.abs(x) > 0, {"normal", "wide", "zeros", "denormal", "special"}),
        (lambda x: x.max(1), lambda x: x.max(1, initial=0.0), {"lowest"}),
        pytest.param(lambda x: x.min(1), lambda x: x.min(1, initial=9.0), {"large"}, marks=pytest.mark.nightly),
        (lambda x: x * 0, lambda x: jnp.where(x > 0, 0.0, -0.0), {"special"}),
    ],
)
def test_edge_values_show_what_ordinary_ones_hide(right, wrong, shown):
    """By day: of the extremes the maximum."""
    proof = verify(from_jax(right, X), from_jax(wrong, X), eager=False)
    assert kinds(proof, ok=False) == shown
    assert proof.reason


def test_integers_of_every_size():
    x = struct(64, dtype=jnp.int32)
    doubled, wrong = from_jax(lambda x: x + x, x), from_jax(lambda x: jnp.where(x > 2**29, x, x + x), x)
    proof = verify(doubled, wrong, eager=False)
    assert kinds(proof, ok=False) == {"wide", "large"}
    assert verify(doubled, from_jax(lambda x: x * 2, x), eager=False).bit_equal


def test_every_branch_of_a_small_conditional_is_taken():
    """By day the first and the last are tried."""

    def program(replaced):
        ways = [jnp.sin, jnp.cos, jnp.tanh]
        if replaced is not None:
            ways[replaced] = jnp.negative
        return from_jax(lambda i, x: jax.lax.switch(i, ways, x), struct(dtype=jnp.int32), X)

    original = program(None)
    assert verify(original, original, eager=False).ok
    for branch in range(3) if by_night() else (0, 2):
        assert not verify(original, program(branch), eager=False).ok


@pytest.mark.parametrize("predicate", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_both_branches_of_a_conditional_are_taken(predicate):
    """By day: one of the two; every branch of a switch above."""
    ways = [jnp.sin, jnp.cos]
    other = [jnp.negative if predicate else jnp.sin, jnp.cos if predicate else jnp.negative]
    a, b = (from_jax(lambda p, x, w=w: jax.lax.cond(p, *w, x), struct(dtype=jnp.bool_), X) for w in (ways, other))
    assert not verify(a, b, eager=False).ok


def test_both_ways_of_running_and_the_worst_element():
    original = from_jax(lambda x: jnp.sin(x).sum(1), X)
    proof = verify(original, from_jax(lambda x: jnp.sin(x).sum(1).at[3].add(1.0), X))
    assert kinds(proof, run="jit") == kinds(proof, run="op by op") == set(INPUTS)
    assert not any(trial.ok for trial in proof.trials if trial.inputs in ("normal", "wide", "zeros"))
    assert proof.worst.difference.index == (3,)
    given = proof.trials[0].arguments(original)[0]
    expected = np.sin(given.astype(np.float64)).sum(1)[3]
    shown = proof.trials[0].difference
    assert float(shown.before) == pytest.approx(expected, abs=1e-5)
    assert float(shown.after) == pytest.approx(expected + 1, abs=1e-5)
    assert float(shown.reference) == pytest.approx(expected, abs=1e-12)
    assert "THEY DIFFER in 14 trials" in str(proof)
    assert not proof.to_json()["ok"]


def test_bits_are_asked_for_where_a_rewrite_promises_them():
    sums = from_jax(lambda x: x.reshape(16, 9, 4, 8).sum((1, 3)), struct(16, 9, 32))
    other = optimize(sums, "vector8x128").program
    assert verify(sums, other, eager=False).ok
    proof = verify(sums, other, bit_exact=True, eager=False)
    assert not proof.ok
    assert "bit_exact asks for the same" in proof.reason
    tops = from_jax(lambda x: x.reshape(16, 9, 4, 8).max((1, 3)), struct(16, 9, 32))
    assert verify(tops, optimize(tops, "vector8x128").program, bit_exact=True, eager=False).ok


def test_what_xla_itself_loses_is_left_out_and_told():
    """XLA's CPU backend drops NaN where it reduces a maximum; which number remains depends on the order."""
    tops = from_jax(lambda x: x.reshape(64, 9, 4, 8).max((1, 3)), struct(64, 9, 32))
    proof = verify(tops, optimize(tops, "vector8x128").program, eager=False)
    given = proof.trials[-1].arguments(tops)[0]
    kept = np.isnan(jax.jit(lambda x: x.reshape(64, 9, 4, 8).max((1, 3)))(given)).sum()
    lost = int(np.isnan(given.reshape(64, 9, 4, 8).max((1, 3))).sum() - kept)
    assert proof.ok
    assert any(f"{lost} elements are left out" in remark for remark in proof.remarks) == bool(lost)


@pytest.mark.parametrize("fill", INPUTS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64", "complex<f32>", "i8", "ui32", "i1", "i4", "f8E4M3FN"])
def test_inputs_are_repeatable_and_of_their_type(fill, dtype):
    values = [Value((8, 16), dtype), Value((), dtype)]
    first, again = (trial_inputs(values, fill, 3) for _ in range(2))
    assert [each.shape for each in first] == [(8, 16), ()]
    assert all(a.tobytes() == b.tobytes() and a.dtype == b.dtype for a, b in zip(first, again))
    other = trial_inputs(values, fill, 4)
    assert fill == "zeros" or first[0].tobytes() != other[0].tobytes()


def test_the_inputs_hold_what_their_names_say():
    (special,) = trial_inputs([Value((64, 64), "f32")], "special", 0)
    assert np.isnan(special).any()
    assert np.isposinf(special).any()
    assert np.isneginf(special).any()
    assert np.isfinite(special[:48]).all()
    (zeros,) = trial_inputs([Value((64,), "f32")], "zeros", 0)
    assert (zeros == 0).all()
    assert 0 < np.signbit(zeros).sum() < 64
    (tiny,) = trial_inputs([Value((64, 8), "f16")], "denormal", 0)
    assert ((tiny != 0) & (np.abs(tiny) < np.finfo(np.float16).smallest_normal)).any()
    (lowest,) = trial_inputs([Value((64,), "i8")], "lowest", 0)
    assert set(lowest.tolist()) == {-128, -127}
    (large,) = trial_inputs([Value((64,), "i8")], "large", 0)
    assert {-128, 127} <= set(large.tolist())
    with pytest.raises(UsageError, match="no kind of inputs called 'huge'"):
        verify(from_jax(jnp.sin, X), from_jax(jnp.sin, X), inputs=["huge"])


def test_loops_that_may_never_end_get_ordinary_inputs_only():
    def until(x):
        return jax.lax.while_loop(lambda c: jnp.abs(c).sum() < 1e9, lambda c: c * 3, x)

    def counted(x):
        return jax.lax.fori_loop(0, 5, lambda _, c: c * 3, x)

    assert may_never_end(_main(from_jax(until, X)))
    assert not may_never_end(_main(from_jax(counted, X)))
    program = from_jax(until, X)
    proof = verify(program, program)
    assert kinds(proof) == {"normal"}
    assert "until a condition on values holds" in proof.remarks[0]
    program = from_jax(counted, X)
    assert kinds(verify(program, program)) == set(INPUTS)


def test_op_by_op_runs_loops_branches_and_what_they_capture():
    def both(x, s):
        y = jax.lax.scan(lambda c, _: (jnp.tanh(c * s), c.sum()), x, None, 3)
        return jax.lax.cond(x[0, 0] > 0, lambda: y[0] * s, lambda: y[0] + s), y[1], jnp.sort(x, 0), jnp.argmax(x)

    body = _main(from_jax(both, X, struct(8)))
    given = trial_inputs(body.arguments, "normal", 1)
    runner = XlaValues()
    runner.prepare(body)
    found, expected = runner.run(body, given), jax.tree.leaves(jax.jit(both)(*given))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_too_many_operations_are_not_run_one_by_one():
    def chain(x):
        for k in range(40):
            x = jnp.sin(x) * k
        return x

    with pytest.raises(UnsupportedError, match="more than the 20"):
        XlaValues().prepare(_main(from_jax(chain, X)), most=20)


def test_programs_of_other_types_are_refused():
    with pytest.raises(UsageError, match=r"f32\[16,8\] in one is f32\[8,8\] in the other"):
        verify(from_jax(jnp.sin, X), from_jax(jnp.sin, struct(8, 8)))
    hlo = load("HloModule m\nENTRY e {\n  ROOT p = f32[3,5] parameter(0)\n}")
    with pytest.raises(UnsupportedError, match="HLO text"):
        verify(hlo, hlo)
