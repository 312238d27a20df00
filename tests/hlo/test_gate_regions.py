"""Regions that hold what frees a reshape, and ways chosen by the count: x is f32[8,16,16,256] in (8, 128) tiles."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from tests.hlo.norms import normalised, struct
from tests.hlo.spellings import SPLIT, as_torch, as_torch_split, transposed
from tests.hlo.traffic import moved
from tilewright.hlo import from_jax, optimize, verify

X = struct(8, 16, 16, 256)
KIB = 1024


def spread(v):
    return jnp.broadcast_to(v[:, None, None, :, None], SPLIT)


def pixels_and_groups(x):
    return normalised(x.reshape(8, -1, 32), 1).reshape(x.shape)


def behind_another(x):
    return jnp.exp(x.reshape(SPLIT)).reshape(8, 256, 32, 8).sum((1, 3))


def full_operand(x, z):
    return (jnp.exp(x.reshape(SPLIT)) * z).reshape(x.shape)


CASES = {  # what, arguments, KiB that move as written and in the result
    "the front of a run": (lambda x: x.reshape(8, -1, 32).sum(1), [X], 10_240, 40),
    "all pixels": (lambda x: x.reshape(-1, 32).sum(0), [X], 10_240, 5),
    "a norm over pixels and groups": (pixels_and_groups, [X], 20_480, 160),
    "a scale of groups": (lambda x, y: (x.reshape(-1, 32) * y).reshape(x.shape), [X, struct(32)], 20_480, 5),
    "a broadcast": (lambda v: spread(v).reshape(X.shape), [struct(8, 32)], 34_816, 136),
    "a sum with a broadcast": (lambda x, v: x + spread(v).reshape(X.shape), [X, struct(8, 32)], 34_816, 136),
    "a tree of a broadcast": (lambda v: jnp.exp(spread(v)).reshape(X.shape), [struct(8, 32)], 34_816, 136),
    "behind another reshape": (behind_another, [X], 34_816, 136),
    "a norm, transposed and merged": (transposed, [X], 270_336, 544),
    "NHWC through NCHW": (as_torch, [X], 73_728, 544),
    "NHWC through NCHW, groups split": (as_torch_split, [X], 36_864, 544),
    "a transpose alone": (lambda x: x.transpose(1, 0, 2).sum((1, 2)), [struct(400, 64, 72)], 25_600, 0),
    "a full operand": (full_operand, [X, struct(*SPLIT)], 69_632, 34_816),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_frees_a_reshape_is_in_its_region(name):
    """The counts are Tilewright's and an independent one, which does not look into calls."""
    function, args, before, after = CASES[name]
    program = from_jax(function, *args)
    found = optimize(program, "vector8x128", rules=[])
    assert (found.moved_before, found.moved_after) == (before * KIB, after * KIB)
    if "call @" not in program.text:
        assert moved(program.text) == before * KIB
    assert moved(found.text) == after * KIB
    assert verify(program, found.program, inputs=["normal"], eager=False).ok
    again = optimize(found.program, "vector8x128", rules=[])
    assert again.moved_after == found.moved_after


def test_heads_gated_by_a_full_array_are_moved_once():
    """Four transposes and reshapes there and back become the two of the gate."""

    def gated(x, z):
        y = x.reshape(8, 128, 4, 64).transpose(0, 2, 1, 3) * z
        return y.transpose(0, 2, 1, 3).reshape(x.shape)

    args = struct(8, 128, 256), struct(8, 4, 128, 64)
    program = from_jax(gated, *args)
    found = optimize(program, "vector8x128", rules=[])
    by_hand = from_jax(lambda x, z: x * z.transpose(0, 2, 1, 3).reshape(x.shape), *args)
    assert found.moved_after == moved(found.text) == moved(by_hand.text) < found.moved_before
    assert verify(program, found.program, bit_exact=True, inputs=["normal"], eager=False).ok


@pytest.mark.parametrize("target", ["cpu", "tpu-v5e", "tenstorrent-wormhole"])
@pytest.mark.parametrize("name", ["a norm over pixels and groups", "NHWC through NCHW", "a full operand"])
def test_other_targets_never_move_more(name, target):
    function, args, _, _ = CASES[name]
    found = optimize(from_jax(function, *args), target, rules=[])
    assert found.moved_after <= found.moved_before
    assert found.explain()


def test_a_wide_region_does_not_swallow_its_neighbours():
    """Two norms are two regions although a reshape lies between them: together they gain no more than each alone."""

    def both(x):
        return pixels_and_groups(jnp.sin(pixels_and_groups(x)))

    found = optimize(from_jax(both, X), "vector8x128", rules=[])
    assert len(found.rewrites) == 2
    assert found.moved_after == 2 * 160 * KIB


def test_what_nothing_frees_is_left_alone_and_says_why():
    """Rows that a reverse keeps in their shape: neither of the two reshapes can go."""
    program = from_jax(lambda x: x.reshape(SPLIT)[:, :, :, ::-1].reshape(X.shape), X)
    found = optimize(program, "vector8x128", rules=[])
    assert found.text == program.text
    assert "no reduction or elementwise operation in it lets a reshape or a transpose pass" in found.explain()
