"""Estimates read from compiled programs, and how the TPU compiler is asked; the real one where it is installed."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from tests.hlo.norms import arguments, gradient, group_norm
from tilewright.child import ChildDied, ChildLate
from tilewright.errors import UnsupportedError, UsageError
from tilewright.hlo import compare_on_tpu, compile_for_tpu, from_jax, load, optimize, partition, sharded
from tilewright.hlo.proving import tpu as compare
from tilewright.hlo.proving.tpu import cycles_per_byte, estimate, judge_on_tpu
from tilewright.layout import Mesh

COST = 'backend_config={{"window_config":{{"estimated_cycles":"{}"}}}}'
TILED = "{1,0:T(8,128)}"
STREAM = f"""HloModule stream
ENTRY e {{
  p = f32[16,128]{TILED} parameter(0)
  ROOT n = f32[16,128]{TILED} negate(p), {COST.format(4096)}
}}
"""
COMPILED = f"""HloModule compiled
body {{
  t = (s32[], f32[8,100]{TILED}) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  x = f32[8,100]{TILED} get-tuple-element(t), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one), {COST.format(10)}
  y = f32[8,100]{TILED} negate(x), {COST.format(500)}
  ROOT r = (s32[], f32[8,100]{TILED}) tuple(j, y)
}}
condition {{
  t = (s32[], f32[8,100]{TILED}) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(7)
  ROOT c = pred[] compare(i, n), direction=LT, {COST.format(1)}
}}
ENTRY e {{
  p = f32[8,100]{TILED} parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[8,100]{TILED}) tuple(zero, p)
  loop = (s32[], f32[8,100]{TILED}) while(start), condition=condition, body=body
  x = f32[8,100]{TILED} get-tuple-element(loop), index=1
  near = f32[8,100]{{1,0:T(8,128)S(1)}} copy(x), {COST.format(300)}
  ROOT out = f32[800]{{0:T(1024)}} reshape(near)
}}
"""


def test_an_estimate_by_hand():
    """The loop runs 7 times (its condition 8), 4096 bytes padded; the reshape has no estimate and is filled."""
    found = estimate(load(COMPILED), rate=0.25)
    filled = round((4096 + 4096) * 0.25)
    assert found.cycles == 7 * (10 + 500) + 8 * 1 + 300 + filled
    assert (found.filled_cycles, found.filled, found.operations) == (filled, 1, 5)
    assert found.filled_share == filled / found.cycles
    scalars = 7 * 3 * 4 + 8 * (2 * 4 + 1)  # s32[] additions, and comparisons that give a pred[]
    assert found.hbm_bytes == pytest.approx(7 * 2 * 4096 + 4096 + 4096 + scalars, rel=0.05)


def test_what_is_filled_in_is_what_an_operation_touches():
    """512 rows of a table of 4,096 are read and written; an array fetched in slices is there already."""
    rows = f"""HloModule rows
picked {{
  table = f32[4096,128]{TILED} parameter(0)
  index = s32[512]{{0:T(512)}} parameter(1)
  ROOT rows = f32[512,128]{TILED} gather(table, index), offset_dims={{1}}, slice_sizes={{1,128}}
}}
ENTRY e {{
  a = f32[2048,128]{TILED} parameter(0)
  b = f32[2048,128]{TILED} parameter(1)
  index = s32[512]{{0:T(512)}} parameter(2)
  table = f32[4096,128]{TILED} custom-call(a, b), custom_call_target="ConcatBitcast"
  ROOT rows = f32[512,128]{TILED} fusion(table, index), kind=kCustom, calls=picked
}}
"""
    found = estimate(load(rows), rate=1.0)
    assert found.cycles == found.filled_cycles == 2 * 512 * 128 * 4 + 512 * 4
    assert found.operations == 1


def test_a_row_put_in_place_is_filled_in_as_a_row():
    rows = f"""HloModule rows
put {{
  table = f32[4096,128]{TILED} parameter(0)
  row = f32[8,128]{TILED} parameter(1)
  k = s32[] parameter(2)
  zero = s32[] constant(0)
  ROOT out = f32[4096,128]{TILED} dynamic-update-slice(table, row, k, zero)
}}
ENTRY e {{
  table = f32[4096,128]{TILED} parameter(0)
  row = f32[8,128]{TILED} parameter(1)
  k = s32[] parameter(2)
  ROOT out = f32[4096,128]{TILED} fusion(table, row, k), kind=kLoop, calls=put
}}
"""
    assert estimate(load(rows), rate=1.0).cycles == pytest.approx(3 * 8 * 128 * 4, rel=0.1)


def test_the_rate_is_cycles_over_padded_bytes():
    assert cycles_per_byte(load(STREAM)) == 4096 / (2 * 16 * 128 * 4)


def test_without_the_compiler(monkeypatch):
    monkeypatch.setattr(compare, "find_spec", lambda name: None)
    program = from_jax(lambda x: x + 1, arguments(group_norm, small=True)[0])
    with pytest.raises(UnsupportedError, match=r"not installed; pip install 'jax\[tpu\]=="):
        compare_on_tpu(program, program)
    with pytest.raises(UsageError, match=r"known: v4, v5e"):
        compare_on_tpu(program, program, "v5q")


@pytest.fixture
def program(monkeypatch):
    monkeypatch.setattr(compare, "find_spec", lambda name: object())
    monkeypatch.setattr(compare.time, "sleep", lambda seconds: None)
    return from_jax(lambda x: x + 1, arguments(group_norm, small=True)[0])


VERSIONS = {"libtpu": "1.2", "jax": "3.4", "chip": "TPU v5 lite"}


def compiler(monkeypatch, answer):
    """The process of the compiler, whose answers to a topology and a text are ``answer``'s; what was asked."""
    asked = []

    class Process:
        def __init__(self, home, environment):
            pass

        def ask(self, question, seconds):
            asked.append(json.loads(question))
            made = answer(len(asked), asked[-1]["program"])
            if isinstance(made, Exception):
                raise made
            compiled = (
                {"text": made, "sizes": {"argument": 192, "temp": 5}} if made.startswith("Hlo") else {"error": made}
            )
            return json.dumps({"versions": VERSIONS, **compiled}).encode()

        def close(self):
            pass

    monkeypatch.setattr(compare, "Child", Process)
    return asked


def test_the_lock_is_waited_for_and_the_version_stamped(monkeypatch, program):
    locked = ChildDied("ABORTED: Internal error when accessing libtpu multi-process lockfile.")
    asked = compiler(monkeypatch, lambda time, text: locked if time < 3 else STREAM if time == 3 else COMPILED)
    found = compare_on_tpu(program, program, "tpu-v5e")
    assert [each["topology"] for each in asked] == ["v5e:2x2"] * 4
    assert found.compiler == "libtpu 1.2, jax 3.4"
    assert found.ratio == 1
    assert found.before == found.after == estimate(load(COMPILED), found.rate, 5)
    assert "A takes 1.00 times the cycles of B" in str(found)
    assert found.to_json()["before"]["filled_share"] == found.before.filled_share


def test_a_pair_that_ends_the_compiler_leaves_the_others_their_answers(monkeypatch, program):
    """Programs 1 and 2 compile, 3 does not, 4 aborts the process, 5 compiles in the next and 6 never ends."""
    programs = [replace(program, text=f"// {n}\n{program.text}") for n in range(1, 7)]
    one, two, three, four, five, six = programs
    outcomes = [STREAM, COMPILED, STREAM, "Boom: no such operation", ChildDied("Fatal Error: abort"), COMPILED]
    asked = compiler(monkeypatch, lambda time, text: [*outcomes, ChildLate("stopped")][time - 1])
    found = judge_on_tpu([(one, two), (one, three), (four, one), (one, five), (two, six)])
    assert [each["program"] for each in asked[1:]] == [each.text for each in programs]
    assert found[0].before == found[3].before == found[3].after == estimate(load(COMPILED), found[0].rate, 5)
    assert found[0].after.operations == 1
    assert [str(found[n]) for n in (1, 2)] == [
        "Boom: no such operation",
        "the TPU compiler failed (Fatal Error: abort)",
    ]
    assert "did not finish in time" in str(found[4])
    assert judge_on_tpu([]) == []


OF_A_SLICE = """\
HloModule m, num_partitions=8, is_scheduled=true

ENTRY %e (a: f32[64,128]) -> f32[256,128] {
  %a = f32[64,128]{1,0:T(8,128)} parameter(0)
  ROOT %g = f32[256,128]{1,0:T(8,128)} all-gather(%a), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}
}
"""


def test_a_slice_is_asked_for_where_jax_puts_its_devices(monkeypatch, program):
    """The compiler's module and bytes beside those of the partitioners; what it refuses is a line of its own."""
    pytest.importorskip("jaxlib._hlo")
    cut = sharded(program, {"d": 4, "m": 2}, {"0": "-,-,-,d"})
    asked = compiler(monkeypatch, lambda time, text: OF_A_SLICE if time == 1 else "Boom: no such operation")
    ours, shardys, theirs = partition(cut, "tpu-v6e").opinions(compiled=True)
    assert (asked[0]["topology"], len(asked[0]["places"])) == ("v6e:2x4", 8)
    assert asked[0]["places"][:3] == [[0, 0, 0], [0, 1, 0], [0, 0, 1]]  # m over 2 chips, d over 4
    assert (theirs["by"], theirs["arguments_bytes"]) == ("compiled by libtpu 1.2, jax 3.4", 192)
    assert (theirs["peak_bytes"], theirs["exchanges"]) == (197, "all-gather 1")
    assert theirs["step"] > 0
    assert ours["arguments_bytes"] == shardys["arguments_bytes"]
    refused = {"by": "TPU's compiler", "exchanges": "refused: Boom: no such operation"}
    assert partition(cut, "tpu-v6e").opinions(compiled=True)[2] == refused
    line = sharded(program, Mesh({"d": 4}, "1x4"), {"0": "-,-,-,d"})
    asked = compiler(monkeypatch, lambda time, text: OF_A_SLICE)
    compile_for_tpu(line, "v5e")
    assert (asked[0]["topology"], asked[0]["more"]) == ("v5e:4x1", {"chips_per_host_bounds": [4, 1, 1]})
    several = sharded(program, Mesh({"d": 8}, "2*2x2"), {"0": "-,-,-,d"})
    compile_for_tpu(several, "v5e")
    assert (asked[1]["topology"], asked[1]["more"], asked[1]["places"][4][0]) == ("v5e:2x2", {"num_slices": 2}, 1)


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        ("sys.exit('some.Error: mosaic is unhappy')", r"some\.Error: mosaic is unhappy"),
        ("os.abort()", "the TPU compiler failed"),
        ("time.sleep(60)", "did not finish in time; give it longer"),
    ],
)
def test_a_compiler_that_dies_or_hangs_is_an_error_of_one_line(monkeypatch, tmp_path, program, does, problem):
    (tmp_path / "compiler_home.py").write_text(f"import os, sys, time\n\ndef main():\n    {does}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(compare, "_HOME", "compiler_home")
    with pytest.raises(UnsupportedError, match=problem):
        compare_on_tpu(program, program, timeout=0.5 if "sleep" in does else 600)


@pytest.mark.skipif(find_spec("libtpu") is None, reason="the TPU compiler is not installed")
def test_the_real_compiler_reaches_the_normal_form_of_a_group_norm_by_itself():
    original = from_jax(gradient(group_norm), *arguments(group_norm))
    found = compare_on_tpu(original, optimize(original, "vector8x128").program, "v5e")
    assert found.before.cycles > 10_000
    assert 0.8 < found.ratio < 1.5
    assert found.before.hbm_bytes >= 8 * 32 * 32 * 256 * 4


@pytest.mark.skipif(find_spec("libtpu") is None, reason="the TPU compiler is not installed")
def test_the_real_compiler_holds_the_arguments_that_are_said():
    cut = sharded(from_jax(lambda x: x @ x.T, np.zeros((512, 256), np.float32)), {"d": 4, "m": 2}, {"0": "d,m"})
    ours, _, theirs = partition(cut, "tpu-v5e").opinions(compiled=True)
    assert theirs["arguments_bytes"] == ours["arguments_bytes"]
    assert theirs["exchanges"]
