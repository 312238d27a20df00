"""The changes that pay most: a rule's suggestions, the report's own findings, and how they are ranked and shown."""

import re

import jax
import jax.numpy as jnp
import pytest

from tests.cli.conftest import completed
from tests.hlo.norms import group_norm
from tilewright.hlo import (
    Suggestion,
    from_jax,
    load,
    optimize,
    report,
    suggest,
    suggest_rewrites,
)
from tilewright.targets import target

TURNS = """HloModule turns
ENTRY e {
  w = f32[16384,4096]{1,0:T(8,128)} parameter(0), metadata={op_name="params['table']"}
  q = f32[8,128]{1,0:T(8,128)} parameter(1)
  turned = f32[16384,4096]{0,1:T(8,128)} copy(w), metadata={source_file="model.py" source_line=8}
  same = f32[8,128]{1,0:T(8,128)} copy(q), metadata={source_file="model.py" source_line=9}
  ROOT r = (f32[16384,4096]{0,1:T(8,128)}, f32[8,128]{1,0:T(8,128)}) tuple(turned, same)
}"""


@pytest.fixture(scope="module")
def program():
    return load(TURNS)


def test_what_a_report_finds_itself(program):
    found = report(program, "tpu-v6e")
    first = found.suggestions[0]
    assert (first.op, first.rule, first.source, first.kind) == ("turned", "argument-order", "model.py:8", "modelled")
    assert first.what == "copy turned of the argument params['table']"
    assert first.saved_us == pytest.approx(next(row for row in found.rows if row.name == "turned").modelled_us)
    assert len(found.suggestions) == 1  # the small copy is less than a hundredth of the step
    by_bytes = report(program).suggestions
    assert [(each.rule, each.saved_us) for each in by_bytes] == [("argument-order", None)]


def test_a_rule_takes_the_place_of_the_finding(program):
    rule = Suggestion("turned", "store-turned", 4.0, "confirmed", "write w.T (line 8)")
    found = report(program, "tpu-v6e", [rule])
    (only,) = found.suggestions
    time = next(row for row in found.rows if row.name == "turned").modelled_us
    assert (only.rule, only.source, only.saved_us) == ("store-turned", "model.py:8", pytest.approx(time * 0.75))
    text = "\n".join(line for _, line in found.ranking_lines("time"))
    assert "store-turned, 4.00× confirmed: write w.T (line 8)" in text
    assert type(found).from_json(found.to_json()) == found


def test_the_largest_saving_comes_first(program):
    rules = [
        Suggestion("x", "slow", 2.0, "modelled", "do this", saved_us=1.0),
        Suggestion("y", "unknown", None, "unpriced", "or this"),
        Suggestion("same", "fast", 1.5, "modelled", "or that", saved_us=9000.0),
    ]
    names = [each.rule for each in report(program, "tpu-v6e", rules).suggestions]
    assert names == ["fast", "argument-order", "slow"]  # what saves nothing known is no advice


def test_three_stand_at_the_head(program, tmp_path):
    rules = [Suggestion("turned", f"rule-{k}", 2.0, "modelled", "how", saved_us=1000.0 * k) for k in range(1, 6)]
    found = report(program, "tpu-v6e", rules)
    lines = [line for _, line in found.change_lines()]
    assert list(dict.fromkeys(re.findall(r"rule-\d", "\n".join(lines)))) == [f"rule-{n}" for n in (5, 4, 3)]
    page = found.to_html()
    assert page.index("What to do") < page.index("Summary")
    assert page.index("rule-3,") < page.index("2 more") < page.index("rule-1,")
    file = tmp_path / "turns.hlo"
    file.write_text(program.text)
    assert b"what pays most" in completed("report", file, "-t", "tpu-v6e").stdout


def test_nothing_to_do_says_nothing():
    still = load("HloModule m\nENTRY e { ROOT p = f32[8,128]{1,0:T(8,128)} parameter(0) }")
    found = report(still, "tpu-v6e")
    assert not found.suggestions
    assert not list(found.change_lines())
    assert "What pays most" not in found.to_html()


DECODE = """func.func @main(%q: tensor<8x1x32x64xbf16>, %k: tensor<8x1024x8x64xbf16>) -> tensor<8x32x1x1024xbf16> {
  %0 = stablehlo.broadcast_in_dim %k, dims = [0, 1, 2, 4] : (tensor<8x1024x8x64xbf16>) -> tensor<8x1024x8x4x64xbf16> loc("model.py":23:4)
  %1 = stablehlo.reshape %0 : (tensor<8x1024x8x4x64xbf16>) -> tensor<8x1024x32x64xbf16> loc("model.py":23:4)
  %2 = stablehlo.dot_general %q, %1, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<8x1x32x64xbf16>, tensor<8x1024x32x64xbf16>) -> tensor<8x32x1x1024xbf16> loc("model.py":24:4)
  return %2 : tensor<8x32x1x1024xbf16>
}
"""  # noqa: E501


def test_the_rules_of_optimize_stand_in_the_report(tmp_path):
    program = load(DECODE)
    (said,) = suggest(program, "tpu-v5e")
    assert (said.rule, said.op, said.source) == ("grouped-query-attention", "%0", "model.py:23")
    assert said.how.endswith("or run tilewright optimize --target tpu-v5e")
    found = report(program, "tpu-v5e", [said])
    (only,) = found.suggestions  # the broadcast's own finding gives way
    repeated = next(row for row in found.rows if row.moved_bytes)
    assert only.saved_us == said.saved_us
    assert found.suggestion_of(repeated) == only
    file = tmp_path / "decode.mlir"
    file.write_text(DECODE)
    out = completed("report", file, "-t", "tpu-v5e").stdout.decode()
    assert out.count("grouped-query-attention") == 2  # at the head, and at the row
    assert not suggest(load(TURNS), "tpu-v5e")


def test_what_would_be_fused_is_no_finding():
    program = from_jax(lambda x: group_norm(x, 1.0, 0.0), jnp.zeros((1, 8, 8, 256)))
    found = report(program, "vector8x128")  # counts every operation by itself
    assert found.moved_by_op["broadcast_in_dim"]
    assert {each.rule for each in found.suggestions} == {"cut-by-tile", "argument-order"}


def test_rewrites_are_suggested_by_their_bytes():
    def norms(x):
        return group_norm(group_norm(x, 1.0, 0.0), 1.0, 0.0)

    program, chip = from_jax(norms, jnp.zeros((1, 8, 8, 256))), target("vector8x128")
    said = suggest_rewrites(program, chip)
    found = report(program, chip, said)
    (only,) = found.suggestions  # the reshapes of its other lines go, too
    assert only.how.startswith("run tilewright optimize --target vector8x128 (reshapes and transposes move")
    assert only.saved_bytes == sum(each.gain for each in optimize(program, chip, rules=[]).rewrites)
    assert all(found.suggestion_of(row) == only for row in found.ranked() if row.op == "reshape")
    assert suggest_rewrites(program, target("tpu-v5e")) == ()
    assert suggest_rewrites(load(TURNS), chip) == ()


def test_a_region_in_a_loop_saves_its_bytes_at_every_trip():
    """One in a function that is called several times is counted at every call by optimize itself."""

    def turned(v):
        return (v.transpose(1, 0, 2) * 2).transpose(1, 0, 2)

    def steps(x):
        return jax.lax.fori_loop(0, 12, lambda i, v: turned(v), x)

    def calls(x):
        once = jax.jit(turned)
        return once(once(once(x)) + 1)

    for function, times in ((steps, 12), (calls, 3)):
        program = from_jax(function, jax.ShapeDtypeStruct((64, 24, 128), "float32"))
        found = report(program, "vector8x128", suggest_rewrites(program, target("vector8x128")))
        assert max(each.saved_bytes for each in found.suggestions) == times * 4 * 64 * 24 * 128 * 4
