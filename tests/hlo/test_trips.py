"""Trip counts and runs: against XLA's own, against a simulation, and over all callers."""

import re

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.hlo import estimate, from_jax, load, report
from tilewright.hlo.graphs.graph import trip_count
from tilewright.hlo.semantics.runs import count_runs

COMPARE = {
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
    "NE": lambda a, b: a != b,
}


def simulate(start, step, direction, bound):
    for trips in range(200):
        if not COMPARE[direction](start, bound):
            return trips
        start += step
    return None


@given(st.integers(-20, 20), st.integers(-5, 5).filter(bool), st.sampled_from(list(COMPARE)), st.integers(-20, 20))
def test_counting_against_a_simulation(start, step, direction, bound):
    assert trip_count(start, step, direction, bound) == simulate(start, step, direction, bound)


def loops(x):
    """A counted loop, a loop on data, and a scan, with movement in each."""
    import jax
    import jax.numpy as jnp

    y = jax.lax.fori_loop(0, 7, lambda i, v: (v * 2).reshape(16, 8).T.reshape(8, 16), x)
    z = jax.lax.while_loop(lambda v: v.sum() < 3, lambda v: v.T.reshape(8, 16) + 1, y)
    return jax.lax.scan(lambda c, t: (c + t.reshape(4, 32).T.sum(), t.T), z.sum(), jnp.stack([y] * 5))


@pytest.fixture(scope="module")
def compiled():
    import jax
    import jax.numpy as jnp

    return jax.jit(loops).lower(jnp.ones((8, 16))).compile().as_text()


def test_the_pattern_agrees_with_xla(compiled):
    """XLA writes known_trip_count; without these words the pattern finds the same in its fused conditions."""
    told, unknown = count_runs(load(compiled))
    bare = re.sub(r"known_trip_count", "gone", compiled)
    assert bare != compiled
    found, unknown_too = count_runs(load(bare))
    assert found == told
    assert unknown == unknown_too
    assert len(unknown) == 1
    assert sorted({runs.trips for runs in told.values()}, key=str) == [(), (5,), (7,), (None,)]


def test_stablehlo_loops_are_counted():
    import jax.numpy as jnp

    found = report(from_jax(loops, jnp.ones((8, 16))), "vector8x128")
    by_trips = {row.trips: row for row in found.rows if row.trips and row.op in ("reshape", "transpose")}
    assert {trips: (row.runs, row.runs_known) for trips, row in by_trips.items()} == {
        (7,): (7, True),
        (5,): (5, True),
        (None,): (1, False),
    }
    (loop,) = found.unknown_loops
    assert f"loops without a known trip count are counted once: {loop}" in found.notes
    assert found.moved_bytes == sum(row.moved_bytes * row.runs for row in found.rows)


def while_text(condition="LT", start="0", step="constant(2)", bound="9", extra=""):
    return f"""HloModule m
body {{
  p = (s32[], f32[4,2]{{1,0}}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[4,2]{{1,0}} get-tuple-element(p), index=1
  s = s32[] {step}
  j = s32[] add(i, s)
  c = f32[4,2]{{0,1}} copy(x)
  d = f32[4,2]{{1,0}} copy(c)
  ROOT t = (s32[], f32[4,2]{{1,0}}) tuple(j, d)
}}
cond {{
  p = (s32[], f32[4,2]{{1,0}}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant({bound})
  ROOT r = pred[] compare(i, n), direction={condition}
}}
twice {{
  p = (s32[], f32[4,2]{{1,0}}) parameter(0)
  w = (s32[], f32[4,2]{{1,0}}) while(p), condition=cond, body=body
  ROOT v = (s32[], f32[4,2]{{1,0}}) while(w), condition=cond, body=body{extra}
}}
ENTRY e {{
  x = f32[4,2]{{1,0}} parameter(0)
  z = s32[] constant({start})
  t = (s32[], f32[4,2]{{1,0}}) tuple(z, x)
  ROOT w = (s32[], f32[4,2]{{1,0}}) while(t), condition=cond, body=body
}}
"""


@pytest.mark.parametrize(
    ("options", "runs", "known"),
    [
        ({}, 5, True),
        ({"condition": "LE", "bound": "8"}, 5, True),
        ({"condition": "NE", "bound": "8"}, 4, True),
        ({"condition": "NE"}, 1, False),
        ({"condition": "GT", "start": "9", "step": "constant(-3)", "bound": "0"}, 3, True),
        ({"start": "9"}, 0, True),
        ({"step": "constant(-1)"}, 1, False),
        ({"step": "constant(0)"}, 1, False),
        ({"step": "get-tuple-element(p), index=0"}, 1, False),
        ({"bound": "{...}"}, 1, False),
    ],
)
def test_plain_hlo(options, runs, known):
    text = while_text(**options)
    text = text[: text.index("twice")] + text[text.index("ENTRY") :]
    row = report(load(text)).rows[0]
    assert (row.runs, row.runs_known, row.trips) == (runs, known, (runs if known else None,))
    assert row.path == "e > body"


def test_runs_add_up_over_callers():
    runs, unknown = count_runs(load(while_text(extra=', backend_config={"known_trip_count":{"n":"100"}}')))
    assert runs["body"].count == 1 + 100 + 5
    assert runs["cond"].count == 1 + 101 + 6
    assert not runs["body"].known
    assert unknown == ("w",)


def test_nested_loops_multiply():
    nest = """HloModule m
inner {
  p = (s32[], f32[4,2]{1,0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[4,2]{1,0} get-tuple-element(p), index=1
  c = f32[4,2]{1,0} copy(x)
  ROOT t = (s32[], f32[4,2]{1,0}) tuple(i, c)
}
cond {
  p = (s32[], f32[4,2]{1,0}) parameter(0)
  ROOT r = pred[] constant(true)
}
outer {
  p = (s32[], f32[4,2]{1,0}) parameter(0)
  ROOT w = (s32[], f32[4,2]{1,0}) while(p), condition=cond, body=inner, backend_config={"known_trip_count":{"n":"3"}}
}
ENTRY e {
  p = (s32[], f32[4,2]{1,0}) parameter(0)
  ROOT w = (s32[], f32[4,2]{1,0}) while(p), condition=cond, body=outer, backend_config={"known_trip_count":{"n":"4"}}
}
"""
    (row,) = report(load(nest)).rows
    assert (row.runs, row.trips, row.total_bytes, row.path) == (12, (4, 3), 12 * 64, "e > outer > inner")


def test_calls_that_go_round_end():
    """StableHLO functions may call each other in a circle: each counts once."""
    text = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @a(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @a(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @b(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @b(%x: tensor<4xf32>) -> tensor<4xf32> {
  %1 = stablehlo.reshape %x : (tensor<4xf32>) -> tensor<2x2xf32>
  %2 = stablehlo.reshape %1 : (tensor<2x2xf32>) -> tensor<4xf32>
  %0 = func.call @a(%2) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
    assert len(report(load(text), "cpu").rows) == 2


def test_doubling_calls_stay_finite():
    """Each function calls the next twice: 2**400 runs are capped, and still print."""
    parts = ["HloModule m", "f0 {\n p = f32[4,2]{1,0} parameter(0)\n ROOT c = f32[4,2]{0,1} copy(p)\n}"]
    for n in range(1, 400):
        parts.append(
            f"f{n} {{\n p = f32[4,2] parameter(0)\n a = f32[4,2]{{0,1}} call(p), to_apply=f{n - 1}\n"
            f" ROOT b = f32[4,2]{{0,1}} call(p), to_apply=f{n - 1}\n}}"
        )
    parts.append("ENTRY e {\n p = f32[4,2] parameter(0)\n ROOT a = f32[4,2]{0,1} call(p), to_apply=f399\n}")
    found = report(load("\n".join(parts)))
    assert found.rows[0].runs == 10**18
    assert found.to_json()["totals"]["moved_bytes"] == 64 * 10**18


@pytest.mark.parametrize("compiled", [False, True], ids=["source", "dump"])
def test_loops_whose_length_data_decides_run_as_often_as_is_stated(compiled):
    def shrunk(x):
        return jax.lax.while_loop(lambda x: jnp.abs(x).max() > 1, lambda x: x @ x, x)

    lowered = jax.jit(shrunk).lower(jax.ShapeDtypeStruct((512, 512), jnp.float32))
    program = load(lowered.compile().as_text() if compiled else lowered.as_text())
    once, some, many = (estimate(program, "tpu-v6e", assume) for assume in (None, {"trips": 10}, {"trips": 20}))
    assert once.priced < 1 == some.priced == many.priced
    assert many.flops == 2 * some.flops == 20 * 2 * 512**3
    assert any("20 times, as stated" in note for note in many.notes)


@pytest.mark.parametrize("assume", [None, {"trips": 7}])
def test_the_rows_of_a_loop_add_up_to_its_step(assume):
    def halved(x, least):
        return jax.lax.while_loop(lambda c: (c[0] > least) & (c[1] < 9), lambda c: (c[0] / 2, c[1] + 1), (x, 0))

    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    step = estimate(load(jax.jit(halved).lower(scalar, scalar).as_text()), "tpu-v6e", assume)
    assert sum(row.seconds for row in step.rows) == pytest.approx(step.device_seconds)
