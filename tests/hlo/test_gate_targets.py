"""The gate on targets of every kind, a user's own TOML file among them, and what it tells."""

from __future__ import annotations

from functools import cache
from itertools import product

import jax
import pytest
from jax import export

from tests.hlo.norms import arguments, field_norm, group_norm, group_norm_minor, grouped_layer_norm, struct
from tilewright.errors import UnsupportedError, UsageError
from tilewright.hlo import catalogue, from_jax, load, optimize
from tilewright.hlo.cost import place
from tilewright.hlo.gating.regions import short_run_charge
from tilewright.hlo.graphs.graph import Block, Node
from tilewright.layout import preset
from tilewright.targets import target as find_target
from tilewright.targets.chips import parse_target

HEAD = 'name = "{name}"\ntitle = "A chip of mine"\nfamily = "{family}"\nlayout_rule = "{rule}"\nsource = "made up"\n'


@cache
def program_of(norm):
    return from_jax(norm, *arguments(norm))


def own(tmp_path, rule, more="", family="vector", name="mine"):
    path = tmp_path / f"{name}.toml"
    path.write_text(HEAD.format(name=name, family=family, rule=rule) + more)
    return str(path)


def test_a_users_own_tiles_decide(tmp_path):
    """Tiles of 4 x 32 words: [256,27,4,8] pads 8 to 32, fourfold, where (8, 128) pads 32-fold."""
    program = program_of(field_norm)
    small = own(tmp_path, "tpu_default_order", '[vector]\nsublanes = 4\nlanes = 32\nsource = "made up"\n')
    found = optimize(program, small)
    [verdict] = found.rewrites
    assert found.moved_before == 2 * (256 * 28 * 32 + 256 * 27 * 4 * 32) * 4
    assert found.moved_before < optimize(program, "vector8x128").moved_before / 5
    assert verdict.reason.endswith("on mine")
    assert "A chip of mine" in found.explain()


def test_the_patents_aligned_case_is_free_on_a_chip_with_short_vectors(tmp_path):
    """Two vectors of 4 lanes: [8] and [2,4] lie alike; [9] as [3,3] has to be moved, each row onto a vector of its own.

    Vectors of 8 x 128 words stay as on a TPU.
    """
    chip = own(tmp_path, "tpu_default_order", '[vector]\nsublanes = 1\nlanes = 4\nsource = "made up"\n')
    aligned = from_jax(lambda x: x.reshape(2, 4), struct(8))
    assert optimize(aligned, chip).moved_before == 0
    assert optimize(from_jax(lambda x: x.reshape(3, 3), struct(9)), chip).moved_before == (12 + 3 * 4) * 4
    target = find_target("vector8x128")
    for shape, dtype in product([(1,), (129,), (300,), (5000,)], ["f32", "bf16", "s8", "pred", "c64"]):
        assert place(shape, dtype, target) == preset("tpu", shape, dtype)


def test_sizes_that_are_not_known_are_said_to_be_so():
    (batch,) = export.symbolic_shape("batch")
    sums = jax.jit(lambda x: x.reshape(-1, 16, 16, 32, 8).sum((1, 2, 4)))
    text = export.export(sums)(struct(batch, 16, 16, 256)).mlir_module()
    found = optimize(load(text), "vector8x128")
    assert found.text == load(text).text
    assert "transposes of arrays whose sizes are not known before the program runs, 1 in all" in found.explain()
    assert "no other reshape or transpose in it moves anything" in found.explain()


def test_a_users_own_linear_memory(tmp_path):
    program = program_of(field_norm)
    free = optimize(program, own(tmp_path, "linear", name="free"))
    assert free.text == program.text
    assert "free already" in free.explain() or not free.refusals
    charged = own(tmp_path, "linear", "short_run_bytes = 4096\n", name="charged")
    assert optimize(program, charged).rewrites[0].charged_before == 3 * 256 * 27 * 32 * 4 * (4096 - 32) // 32


def test_a_users_own_compiler_that_normalises(tmp_path):
    vector = 'compiler_normalizes = true\n[vector]\nsublanes = 8\nlanes = 128\nsource = "made up"\n'
    program = program_of(group_norm)
    found = optimize(program, own(tmp_path, "tpu_default_order", vector))
    assert found.text == program.text
    assert "the compiler of mine performs these rewrites itself" in found.explain()
    assert found.to_json()["compiler_normalizes"] is True


def test_rules_that_know_no_whole_programs(tmp_path):
    program = program_of(field_norm)
    with pytest.raises(UnsupportedError, match="knows no whole programs"):
        optimize(program, own(tmp_path, "lanes", family="npu"))
    with pytest.raises(UsageError, match="expected a whole number, got a text"):
        optimize(program, own(tmp_path, "linear", 'short_run_bytes = "many"\n'))
    with pytest.raises(UsageError, match="expected true or false, got a whole number"):
        optimize(program, own(tmp_path, "linear", "compiler_normalizes = 1\n"))
    with pytest.raises(UsageError, match="cannot read it: No such file"):
        optimize(program, str(tmp_path / "none.toml"))


@pytest.mark.parametrize("bit_exact", [False, True])
@pytest.mark.parametrize("target", ["tpu-v5e", "tpu-v6e"])
def test_on_a_tpu_both_sides_are_in_normal_form(target, bit_exact):
    """f32[256,27,8,4] is no bitcast of f32[256,27,32] under a TPU's layouts: as written the rewrite gains."""
    program = from_jax(lambda x, s, b: field_norm(x, s, b, groups=8), *arguments(field_norm))
    found = optimize(program, target, allow_reassociation=not bit_exact)
    assert found.text == program.text
    if not bit_exact:
        [refusal] = [each for each in found.refusals if "normal form" in each.reason]
        assert refusal.moved_after < refusal.moved_before
        assert "XLA:TPU performs these rewrites itself" in refusal.reason
    assert "XLA:TPU performs these rewrites itself: a gain is claimed only where it remains" in found.explain()
    assert "XLA:TPU" not in optimize(program, "vector8x128").explain()


def charge(shape, dims, target):
    body = Block()
    x, init = body.add_argument(shape, "f32"), body.add_argument((), "f32")
    op = body.append(Node("reduce", [x, init], {"dims": dims, "monoid": "add"}))
    op.add_result(tuple(n for d, n in enumerate(shape) if d not in dims), "f32")
    return short_run_charge(op, parse_target(HEAD.format(name="m", family="cpu", rule="linear") + target))


@pytest.mark.parametrize(
    ("shape", "dims", "factor"),
    [
        ((4, 8, 16), (0, 2), 3),  # a run of 64 bytes, reduced: 256 / 64 - 1
        ((4, 8, 16), (1, 2), 0),  # 512 bytes, reduced
        ((4, 16, 8), (1,), 1),  # 32 bytes, kept: 64 / 32 - 1
        ((4, 8, 16), (0, 1), 0),  # 64 bytes, kept
        ((4, 8, 16, 1), (0, 2), 3),  # unit dims are no runs
        ((4, 4, 4), (0, 1, 2), 0),  # 256 bytes, all reduced
        ((1, 1), (0,), 0),
        ((), (), 0),
    ],
)
def test_reduced_and_kept_runs_have_lengths_of_their_own(shape, dims, factor):
    size = 4
    for n in shape:
        size *= n
    assert charge(shape, dims, "short_run_bytes = 256\nshort_kept_run_bytes = 64\n") == factor * size
    assert charge(shape, dims, "") == 0


@pytest.mark.parametrize(("run", "taken"), [(4, True), (8, True), (32, True), (64, False), (128, False)])
def test_reduced_runs_pay_below_256_bytes_on_a_cpu(run, taken):
    program = from_jax(lambda x: x.reshape(8, 32, 32, 256 // run, run).sum((1, 2, 4)), struct(8, 32, 32, 256))
    assert bool(optimize(program, "cpu").rewrites) == taken


@pytest.mark.parametrize(("groups", "taken"), [(4, True), (8, True), (16, False), (32, False)])
def test_kept_runs_pay_below_64_bytes_on_a_cpu(groups, taken):
    """Measured: a norm that keeps runs of 64 bytes gets slower when its reshapes go."""
    args = arguments(group_norm_minor)
    program = from_jax(lambda x, s, b: group_norm_minor(x, s, b, groups), *args)
    assert bool(optimize(program, "cpu").rewrites) == taken


def layers(count):
    def model(x, s, b, w):
        for _ in range(count):
            x = x + field_norm(x, s, b) @ w
        return x

    return model


def test_alike_regions_are_told_once_with_their_places():
    width = struct(32, 32)
    program = from_jax(layers(5), *arguments(field_norm), width)
    found = optimize(program, "vector8x128")
    assert len(found.rewrites) == 5
    assert "rewritten 5 times: f32[256,27,4,8]" in found.explain()
    assert found.moved_after == 5 * 4_718_592


def test_alike_regions_are_tried_once_and_different_ones_are_not_mixed_up(monkeypatch):
    from tilewright.hlo import verify
    from tilewright.hlo.gating import gate as _gate

    tried = []
    real = _gate.take_out
    monkeypatch.setattr(_gate, "take_out", lambda region: tried.append(region) or real(region))

    def model(x, s, b, w):
        for k in range(6):
            y = x.reshape(64, 9, 4, 8)
            y = jax.numpy.where(y > y.mean((1, 3), keepdims=True), y, 0) * (k // 3 + 1.5)
            x = y.reshape(x.shape) @ w
            y = x.reshape(64, 9, 4, 8)
            x = jax.numpy.where(y < y.mean((1, 3), keepdims=True), y, 0).reshape(x.shape) @ w
        return x * s + b

    program = from_jax(model, struct(64, 9, 32), struct(32), struct(32), struct(32, 32))
    found = optimize(program, "vector8x128")
    assert len(found.rewrites) == 12
    assert len(set(tried)) == 3  # y > mean times 1.5, times 2.5, and y < mean
    assert verify(program, found.program, eager=False).ok


def test_a_refused_region_is_refused_everywhere():
    def model(x):
        for k in range(4):
            x = grouped_layer_norm(x, 1.0 + k, 0.0) @ jax.numpy.ones((64, 64))
        return x

    program = from_jax(model, struct(4, 8, 64))
    found = optimize(program, "vector8x128")
    assert found.text == program.text
    assert len([each for each in found.refusals if each.name and each.name not in catalogue()]) == 4


@pytest.mark.parametrize(("trips", "accepted"), [(2, True), (1000, False)])
def test_reshapes_go_into_a_loop_only_where_its_trips_pay_for_them(trips, accepted):
    def centred(x):
        groups = x.reshape(256, 27, 4, 8)
        return jax.lax.fori_loop(0, trips, lambda _, y: y - y.sum((1, 3), keepdims=True), groups).reshape(x.shape)

    found = optimize(from_jax(centred, struct(256, 27, 32)), target="vector8x128")
    assert (found.moved_after < found.moved_before) == accepted
