"""Suggestions: what a rule would change, named as the report's rows are, with line, factor and command."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from tilewright.hlo import estimate, from_jax, load, optimize, report, suggest

BF16 = jnp.bfloat16
Q = jax.ShapeDtypeStruct((8, 64, 64), BF16)
K = jax.ShapeDtypeStruct((8, 2048, 8, 64), BF16)


def scores(q, k):
    keys = jnp.repeat(k, 8, axis=2)
    return jnp.einsum("bhd,bkhd->bhk", q, keys)


@pytest.fixture(scope="module")
def program():
    return from_jax(scores, Q, K)


def test_a_suggestion_names_the_row_the_line_and_the_command(program):
    (found,) = suggest(program, "tpu-v5e")
    movement = report(program, "tpu-v5e", [found])
    (row,) = [row for row in movement.rows if row.name == found.op and row.path == found.path]
    assert row.op == "broadcast_in_dim"
    assert movement.suggestion_of(row).rule == found.rule == "grouped-query-attention"
    assert found.kind == "predicted"
    assert found.factor > 3
    assert found.saved_us > 1
    line = scores.__code__.co_firstlineno + 1
    assert found.source.endswith(f"test_suggest.py:{line}")
    assert f"(test_suggest.py:{line}), or run tilewright optimize --target tpu-v5e" in found.how
    assert found.column == 11


def test_other_targets_count_bytes_or_go_by_what_was_measured(program):
    assert suggest(program, "vector8x128")[0].kind == "counted"
    assert suggest(program, "cpu")[0].kind == "confirmed"


def test_of_one_rule_on_one_line_there_is_one_suggestion():
    both = from_jax(lambda q, p, k: (scores(q, k), scores(p, k)), Q, Q, K)
    (found,) = suggest(both, "tpu-v5e")
    assert found.what.endswith("(2 times)")
    before, after = (estimate(each, "tpu-v5e").device_seconds for each in (both, optimize(both, "tpu-v5e").program))
    assert found.saved_us == pytest.approx(1e6 * (before - after), rel=1e-6)  # of both: K passes once for the two
    alone = suggest(from_jax(scores, Q, K), "tpu-v5e")[0].saved_us
    assert alone < found.saved_us < 2 * alone


def test_rows_of_called_functions_and_of_loops_are_met():
    inner = jax.jit(scores)

    def steps(q, k):
        return jax.lax.fori_loop(0, 5, lambda _, s: s + inner(q, k + s[0, 0, 0]), scores(q, k))

    program = from_jax(steps, Q, K)
    found = suggest(program, "tpu-v5e")
    movement = report(program, "tpu-v5e", found)
    repeated = [row for row in movement.rows if row.to_layout.startswith("bf16[8,2048,8,8,64]")]
    assert [row.path for row in repeated] == ["main", "main > main/%3.body"]
    assert {movement.suggestion_of(row).op for row in repeated} == {each.op for each in found} == {"%0", "scores/%0"}
    after = optimize(program, "tpu-v5e", rules=["grouped-query-attention"]).program
    whole = 1e6 * (estimate(program, "tpu-v5e").device_seconds - estimate(after, "tpu-v5e").device_seconds)
    assert [each.saved_us for each in found] == pytest.approx([5 / 6 * whole, whole / 6], rel=0.01)


def test_a_guard_is_named():
    x = jax.ShapeDtypeStruct((8, 2048, 1024), jnp.float32)
    program = from_jax(lambda x: x.reshape(8, 512, 4, 1024).mean(2), x)
    guarded = [each for each in suggest(program, "tpu-v5e") if each.rule == "window-sum"]
    assert all("--assume-finite" in each.how for each in guarded)
    assert guarded
    told = [each for each in suggest(program, "tpu-v5e", assume_finite=True) if each.rule == "window-sum"]
    assert "--assume-finite" not in told[0].how


def test_what_has_layouts_of_its_own_has_none(program):
    dump = load("HloModule m\nENTRY e { ROOT p = f32[4,2]{1,0:T(8,128)} parameter(0) }")
    assert suggest(dump, "tpu-v5e") == []
    damaged = load(program.text.replace("stablehlo.dot_general", "stablehlo.dot_generous"))
    assert suggest(damaged, "tpu-v5e") == []
