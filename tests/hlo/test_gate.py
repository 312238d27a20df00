"""The gate: which regions are rewritten on which target, with what modelled cost, and what is told about the others."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import pytest

from tests.conftest import by_night
from tests.hlo.norms import (
    arguments,
    attention,
    field_norm,
    ghost_batch_norm,
    gradient,
    group_norm,
    group_norm_minor,
    group_norm_rest,
    grouped_layer_norm,
    normalised,
    struct,
)
from tests.hlo.stablehlo_values import big_reshapes
from tilewright.errors import UnsupportedError, UsageError
from tilewright.hlo import from_jax, load, optimize, verify


@cache
def program(norm, backward=False):
    """A norm at the sizes of the reference figures, or its gradient."""
    return from_jax(gradient(norm) if backward else norm, *arguments(norm))


def done(fn, args, target, **options):
    return optimize(from_jax(fn, *args), target, **options)


def test_group_norm_moves_what_the_reference_figures_say():
    found = optimize(program(group_norm), "vector8x128")
    [verdict] = found.rewrites
    assert verdict.name == "reduce-of-reshape + reshape-of-elementwise"
    # [8,32,32,256] is 8.39 MB and [8,32,32,32,8] padded 134.2 MB, there and back again.
    assert found.moved_before == verdict.moved_before == 2 * (8 * 32 * 32 * 256 + 8 * 32 * 32 * 32 * 128) * 4
    # What remains are four reshapes between [8,256] and [8,32,8].
    assert found.moved_after == verdict.moved_after == 4 * (8 * 256 + 8 * 32 * 128) * 4
    assert str(verdict.source).rpartition("/")[2].startswith("norms.py:")
    assert big_reshapes(found.text, 8 * 32 * 32 * 256) == 0


def test_norm_over_fields_moves_what_the_reference_figures_say():
    found = optimize(program(field_norm), "vector8x128")
    assert found.moved_before == 65_011_712
    assert found.moved_after == 4_718_592 <= 9_400_000


@pytest.mark.parametrize(
    ("norm", "target"),
    [
        (group_norm, "vector8x128"),
        (group_norm_minor, "vector8x128"),
        (field_norm, "vector8x128"),
        (group_norm, "cpu"),
        (field_norm, "cpu"),
    ],
)
def test_gradients_are_one_region_and_keep_no_big_reshape(norm, target):
    found = optimize(program(norm, True), target)
    assert len(found.rewrites) == 1
    assert found.rewrites[0].gain > 0
    assert big_reshapes(found.text, arguments(norm)[0].size) == 0


@pytest.mark.parametrize("norm", [group_norm, group_norm_minor, field_norm, grouped_layer_norm, ghost_batch_norm])
@pytest.mark.parametrize("target", ["tpu-v5e", pytest.param("tpu-v5p", marks=pytest.mark.nightly)])
def test_a_compiler_that_normalises_gains_nothing(norm, target):
    """By day: one of the chips of that compiler."""
    original = program(norm, True)
    found = optimize(original, target)
    assert found.text == original.text
    assert not found.rewrites
    assert found.moved_before == found.moved_after
    assert all(word in found.explain() for word in ("left alone", "; moves ", target))


@pytest.mark.parametrize("target", ["vector8x128", "cpu", "tpu-v5e"])
@pytest.mark.parametrize("norm", [grouped_layer_norm, ghost_batch_norm, attention])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "gradient"])
def test_refused_regions_leave_the_text_identical(norm, backward, target):
    original = program(norm, backward)
    found = optimize(original, target)
    if (norm, backward, target) == (attention, True, "vector8x128"):
        # Two transposes of the gradient cancel behind a sum, and the softmax's drops a unit dim.
        regions = [verdict.region.partition(":")[0] for verdict in found.rewrites]
        assert regions == ["f32[8,512,16,64]", "f32[8,16,512,1]"]
        return
    assert found.text == original.text
    assert found.program is original
    assert found.diff() == ""


def test_long_runs_are_not_charged_on_linear_memory():
    """Kept runs of 128 bytes fill a CPU's vectors: nothing to gain (measured), so nothing is touched."""
    found = optimize(program(group_norm_minor), "cpu")
    assert not found.rewrites
    short = optimize(program(group_norm), "cpu").rewrites[0]
    assert short.charged_before == 3 * (8 * 32 * 32 * 256 * 4) * (256 - 32) // 32
    assert short.charged_after < short.charged_before / 100


def test_the_reason_names_the_reshape_that_stays():
    found = optimize(program(grouped_layer_norm), "vector8x128")
    [refusal] = [r for r in found.refusals if r.name.startswith("reshape-of")]  # beside what a rule says of it
    assert "reshape f32[8,512,1024] -> f32[8,512,16,64] is still needed by reduce" in refusal.reason
    free = optimize(program(ghost_batch_norm), "vector8x128")
    assert "bitcasts" in free.refusals[0].reason


def test_a_reshaped_result_that_escapes_gains_nothing():
    def with_escape(x):
        y = x.reshape(256, 27, 4, 8)
        return y, y.sum((1, 3))

    program = from_jax(with_escape, struct(256, 27, 32))
    found = optimize(program, "vector8x128")
    assert found.text == program.text
    assert "still needed by the rest of the program" in found.refusals[0].reason


def test_all_users_of_a_reshape_go_together():
    def two_sums(x):
        y = x.reshape(256, 27, 4, 8)
        return y.sum((1, 3)), (y * y).max((1, 2))

    found = done(two_sums, [struct(256, 27, 32)], "vector8x128")
    assert len(found.rewrites) == 1
    assert big_reshapes(found.text, 256 * 27 * 32) == 0


def test_only_the_region_that_pays_is_touched():
    def both(x, z, s, b):
        return field_norm(x, s, b), grouped_layer_norm(z, 1.0, 0.0)

    found = done(both, [struct(256, 27, 32), struct(8, 512, 1024), struct(32), struct(32)], "vector8x128")
    assert [verdict.region.partition(":")[0] for verdict in found.rewrites] == ["f32[256,27,4,8]"]
    assert "stablehlo.reshape %arg1 : (tensor<8x512x1024xf32>) -> tensor<8x512x16x64xf32>" in found.text
    assert big_reshapes(found.text, 8 * 512 * 1024) == 2


@pytest.mark.parametrize(("groups", "before", "after"), [(32, 276_824_064, 0), (16, 142_606_336, 81_920)])
def test_as_many_groups_as_channels(groups, before, after):
    """[2,64,64,32] -> [2,64,64,32,1] only adds a unit dim, and pads it to 128."""
    x = struct(2, 64, 64, 32)
    found = done(lambda x, s, b: group_norm(x, s, b, groups), [x, struct(32), struct(32)], "vector8x128")
    assert (found.moved_before, found.moved_after) == (before, after)
    assert big_reshapes(found.text, x.size) == 0


@pytest.mark.parametrize(
    ("norm", "x", "groups"),
    [
        (group_norm, (2, 4, 5, 16), 4),
        pytest.param(group_norm, (2, 4, 5, 16), 16, marks=pytest.mark.nightly),
        pytest.param(group_norm_rest, (2, 16, 4, 5), 4, marks=pytest.mark.nightly),
        (group_norm_rest, (2, 16, 4, 5), 16),
    ],
)
def test_groups_and_the_rest_keep_their_values(norm, x, groups):
    """By day: each norm with one number of groups, on normal inputs."""
    args = [struct(*x), struct(16), struct(16)]
    program = from_jax(gradient(lambda x, s, b: norm(x, s, b, groups)), *args)
    found = optimize(program, "vector8x128")
    assert found.moved_after < found.moved_before / 3
    assert big_reshapes(found.text, args[0].size) == 0
    assert verify(program, found.program, inputs=None if by_night() else ["normal"], eager=False).ok


@pytest.mark.parametrize("groups", [32, 8])
def test_groups_and_the_rest_move_what_is_left_of_the_statistics(groups):
    """[4,32,24,40] -> [4,8,3840] is no bitcast and went there and back; four of [4,32] and [4,8,4] remain."""
    args = [struct(4, 32, 24, 40), struct(32), struct(32)]
    found = done(lambda x, s, b: group_norm_rest(x, s, b, groups), args, "vector8x128")
    rest = {32: 1024, 8: 3840}[groups]  # 960 and 3840 in lanes of 128
    assert found.moved_before == 2 * (4 * 32 * 24 * 128 + 4 * groups * rest) * 4
    assert found.moved_after == (0 if groups == 32 else 4 * (8 * 128 + 4 * 8 * 128) * 4)
    of_one = jax.vmap(lambda x: normalised(x.reshape(groups, -1), 1).reshape(x.shape))
    assert done(of_one, args[:1], "vector8x128").moved_after == found.moved_after


def test_a_bitcast_does_not_take_a_norms_reshapes():
    """Both have arrays of one size; a region that began at the bitcast would hold one side of the norm's reshape."""

    def block(x, s, b, w):
        y = (x @ w).reshape(2, 16, 24, 32) * 2
        return y + group_norm(y, s, b, 16)

    args = [struct(2, 384, 32), struct(32), struct(32), struct(32, 32)]
    found = done(block, args, "vector8x128")
    assert found.moved_after == 81_920
    assert big_reshapes(found.text.replace("tensor<2x384x32xf32>) -> tensor<2x16x24x32xf32>", ""), 2 * 384 * 32) == 0


def test_a_region_takes_what_stands_in_its_neighbours_place():
    """The first region's result is the second's input, and both are rewritten in one round."""

    def both(x, s, b):
        y = jnp.sin(x.reshape(*x.shape, 1) * 2).reshape(x.shape)
        return field_norm(y, s, b)

    args = [struct(16, 9, 32), struct(32), struct(32)]
    program = from_jax(both, *args)
    found = optimize(program, "vector8x128")
    assert [verdict.region.partition(":")[0] for verdict in found.rewrites] == ["f32[16,9,32,1]", "f32[16,9,4,8]"]
    assert verify(program, found.program, inputs=["normal"], eager=False).ok


def test_reshapes_that_cancel_need_no_reduction():
    def heads(x, w):
        y = x.reshape(4, 1024, 1, 64).transpose(0, 2, 1, 3)
        return jnp.einsum("bhld,de->bhle", y, w)

    found = done(heads, [struct(4, 1024, 64), struct(64, 64)], "vector8x128")
    [verdict] = found.rewrites
    assert verdict.name == "canonicalize"
    assert verdict.moved_after == 0 < verdict.moved_before


def test_unit_dims_of_small_arrays_are_no_gain():
    program = from_jax(lambda x, w: jnp.cumsum(x, 1) * w.reshape(1, 1, 256), struct(64, 32, 256), struct(256))
    found = optimize(program, "vector8x128")
    assert found.text == program.text
    assert found.moved_before > 0
    assert "unit dims of small arrays" in found.explain()
    assert "no reshape or transpose in it moves anything on cpu" in optimize(program, "cpu").explain()


def test_two_norms_in_a_row_are_two_regions():
    def twice(x, s, b):
        return field_norm(jnp.sin(field_norm(x, s, b)), s, b)

    found = done(twice, arguments(field_norm), "vector8x128")
    assert found.moved_after == 2 * 4_718_592


def test_without_reassociation_sums_stay_whole():
    sums = from_jax(lambda x: x.reshape(32, 9, 4, 8).sum((1, 3)), struct(32, 9, 32))
    tops = from_jax(lambda x: x.reshape(32, 9, 4, 8).max((1, 3)), struct(32, 9, 32))
    assert not optimize(sums, "vector8x128", allow_reassociation=False).rewrites
    assert optimize(tops, "vector8x128", allow_reassociation=False).rewrites
    assert verify(tops, optimize(tops, "vector8x128", allow_reassociation=False).program, eager=False).bit_equal


def test_rewriting_twice_changes_nothing_more():
    first = optimize(program(field_norm, True), "vector8x128")
    second = optimize(first.program, "vector8x128", rules=[])  # a rule may find what the first stage has left
    assert not second.rewrites
    assert second.moved_before == first.moved_after


def test_the_original_is_never_changed():
    lowered = jax.jit(field_norm).lower(*arguments(field_norm))
    before = lowered.as_text()
    found = optimize(load(before), "vector8x128")
    assert found.rewrites
    assert lowered.as_text() == before == found.original.text


def test_wrong_input():
    with pytest.raises(UnsupportedError, match="layouts assigned"):
        optimize(load("HloModule m\nENTRY e {\n  ROOT p = f32[3,5] parameter(0)\n}"), "cpu")
    with pytest.raises(UsageError, match="no target"):
        done(field_norm, arguments(field_norm), "tpu-v99")


def test_a_statistic_over_everything_comes_back_as_a_broadcast_scalar():
    """The region computes the scalar that one of its leaves broadcasts."""

    def centred(x, by):
        y = x.reshape(64, 9, 4, 8)
        z = (y - y.sum()) * (y.sum((1, 3), keepdims=True) * y.max())
        return z.reshape(x.shape) + by

    program = from_jax(centred, struct(64, 9, 32), struct(32))
    found = optimize(program, "vector8x128")
    assert found.rewrites
    assert big_reshapes(found.text, 64 * 9 * 32) == 0
    assert verify(program, found.program, inputs=["normal"], eager=False).ok


def test_regions_that_go_out_and_come_back_in():
    """A matmul takes a statistic of the region and feeds it again: everything must still be defined before its use."""

    def gated(x, w):
        y = x.reshape(64, 9, 4, 8)
        gate = jnp.tanh(y.sum((1, 3)) @ w)
        z = y * gate[:, None, :, None]
        return z.reshape(x.shape), z.sum((1, 3)) @ w

    program = from_jax(gated, struct(64, 9, 32), struct(4, 4))
    found = optimize(program, "vector8x128")
    assert found.rewrites
    assert verify(program, found.program, inputs=["normal"], eager=False).ok


def test_a_region_refused_for_its_bits_alone_says_so():
    sums = from_jax(lambda x: x.reshape(64, 9, 4, 8).sum((1, 3)), struct(64, 9, 32))
    (refused,) = optimize(sums, "vector8x128", allow_reassociation=False).refusals
    assert refused.reason.startswith("the bits must stay, so no floating sum may be taken apart; if one may")
    assert "on vector8x128" in refused.reason
    assert optimize(sums, "vector8x128").rewrites
