"""Changes to partitioned programs: the cases of public threads, an optimizer's state, and a search over shardings."""

import math
import re
from collections import Counter

import numpy as np
import pytest

from tilewright.errors import UsageError
from tilewright.hlo import (
    collectives,
    estimate,
    from_jax,
    load,
    partition,
    search_shardings,
    sharded,
    sharding_advice,
)
from tilewright.hlo.advice import groups_of, title_of
from tilewright.hlo.execute import flat_callable
from tilewright.hlo.reading.sharded import Place, places
from tilewright.hlo.semantics.partitioning import by_shardy, in_blocks

pytest.importorskip("jaxlib._hlo")

THREAD = """\
#loc1 = loc("model.py":14:8)
#loc2 = loc("jit(f)/add"(#loc1))
module @jit_f {
  sdy.mesh @mesh = <["x"=4, "y"=2]>
  func.func public @main(%arg0: tensor<512x512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>} loc("a"), %arg1: tensor<512x512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>} loc("b"), %arg2: tensor<512x512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>} loc("c")) -> (tensor<512x512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<512x512x512xf32> loc(#loc2)
    %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x", "y"}, {}]> : tensor<512x512x512xf32>
    %2 = stablehlo.add %arg2, %1 : tensor<512x512x512xf32>
    return %2 : tensor<512x512x512xf32>
  }
}
"""  # noqa: E501
"""github.com/jax-ml/jax/issues/21562 and github.com/openxla/xla/issues/15207, with arrays of 512 MB."""
WARNED = """\
#loc1 = loc("model.py":7:4)
#loc2 = loc("jit(g)/tanh"(#loc1))
module @jit_g {
  sdy.mesh @mesh = <["a"=64, "b"=4]>
  func.func public @main(%arg0: tensor<8192x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b"}, {}]>} loc("x")) -> (tensor<8192x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"a"}]>}) {
    %0 = stablehlo.tanh %arg0 : tensor<8192x8192xf32> loc(#loc2)
    return %0 : tensor<8192x8192xf32>
  }
}
"""  # noqa: E501
"""The shardings of the message in github.com/jax-ml/jax/issues/18591: 256 x 1 to 1 x 64, with copies."""
CASES = {
    "jax 21562, xla 15207": (THREAD, "model.py:14", "P('y', 'x', None)"),
    "jax 18591": (WARNED, "", "P(None, ('a', 'b'))"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name == "jax 18591" else name for name in CASES]
)
def test_what_public_threads_ask_is_answered(name):
    """The line, the constraint to write, and that the gather of the whole array is gone when it is written."""
    text, line, spec = CASES[name]
    assert partition(load(text), "tpu-v5e").replicated
    first = sharding_advice(load(text), "tpu-v5e")[0]
    assert (first.rule, first.source) == ("put-whole", line)
    assert f"with_sharding_constraint(x, {spec})" in first.how
    assert "arrays put whole on every device 1 -> 0" in first.how
    before, after = map(float, re.search(r"sent by a device ([\d.]+) MiB -> ([\d.]+) MiB", first.how).groups())
    assert after < before / 4
    assert first.saved_us > 1000


def test_shardys_own_passes_are_a_second_opinion():
    """On the thread's program two all-to-alls, as its advice says; what ends their process is said to."""
    ours, shardys = partition(load(THREAD), "tpu-v5e").opinions()
    assert (ours["exchanges"], shardys["exchanges"]) == ("all-gather 2", "all-to-all 2")
    assert shardys["sent_bytes"] == (48 + 32) << 20  # 3/4 and 1/2 of 64 MB
    assert shardys["arguments_bytes"] == ours["arguments_bytes"]
    assert {str(each.source) for each in collectives(by_shardy(load(THREAD))[0])} == {"model.py:14"}
    assert "Shardy's own passes send 80.0 MiB a device" in sharding_advice(load(THREAD), "tpu-v5e")[0].how
    ours, shardys = partition(sharded(load(SUMS), {"d": 4}, {"x": "d,-", "result": "d,-"}), "tpu-v5e").opinions()
    assert ours["exchanges"] == "all-gather 1, collective-permute 1"
    assert "refused: Shardy's own passes do not cut it" in shardys["exchanges"]


SUMS = """\
module @m {
  func.func public @main(%x: tensor<8192x512xf32> loc("x")) -> tensor<8192x512xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = "stablehlo.reduce_window"(%x, %zero) <{padding = dense<[[8191, 0], [0, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 8192, 1>, window_strides = array<i64: 1, 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }) : (tensor<8192x512xf32>, tensor<f32>) -> tensor<8192x512xf32> loc("jit(f)/cumsum"("model.py":5:4))
    return %0 : tensor<8192x512xf32>
  }
}
"""  # noqa: E501
"""``jnp.cumsum(x, 0)`` as JAX lowers it for a TPU."""


def test_long_running_sums_exchange_what_blocks_come_to():
    """64 blocks' rows, as in the TPU compiler's module (libtpu 0.0.50), and their shift by one; not the whole array."""
    part = partition(sharded(load(SUMS), {"d": 4}, {"x": "d,-", "result": "d,-"}), "tpu-v5e")
    assert {each.op: each.bytes for each in part.collectives} == {
        "all-gather": 64 * 512 * 4 * 3 // 4,
        "collective-permute": 512 * 4,
    }
    assert {str(each.source) for each in part.collectives} == {"model.py:5"}


WINDOWS = {
    "sums": ((1024, 3), 0.0, "add", (1024, 1), (1, 1), ((1023, 0), (0, 0)), True),
    "backwards": ((2, 256, 3), -np.inf, "max", (1, 256, 1), (1, 1, 1), ((0, 0), (0, 255), (0, 0)), True),
    "one dim": ((384,), 1.0, "mul", (384,), (1,), ((383, 0),), True),
    "twice": ((32768,), 0.0, "add", (32768,), (1,), ((0, 32767),), True),
    "a part": ((256, 2), 0.0, "add", (128, 1), (1, 1), ((127, 0), (0, 0)), False),
    "steps": ((256, 2), 0.0, "add", (256, 1), (2, 1), ((255, 0), (0, 0)), False),
    "both sides": ((256, 2), 0.0, "add", (256, 1), (1, 1), ((128, 127), (0, 0)), False),
    "no whole blocks": ((200, 2), 0.0, "add", (200, 1), (1, 1), ((199, 0), (0, 0)), False),
    "along two": ((256, 256), 0.0, "add", (256, 256), (1, 1), ((255, 0), (255, 0)), False),
}


BY_DAY = ("sums", "backwards", "a part", "steps")


@pytest.mark.parametrize(
    "name", [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.nightly) for name in WINDOWS]
)
def test_running_sums_of_blocks_are_the_same_sums(name):
    """Four by day."""
    shape, start, op, window, strides, padding, changed = WINDOWS[name]

    def f(x):
        return jax.lax.reduce_window(x, np.float32(start), getattr(jax.lax, op), window, strides, padding)

    jax = pytest.importorskip("jax")
    arrays = np.random.default_rng(1).integers(-1, 2, shape).astype(np.float32)
    lowered = jax.jit(f).lower(arrays)
    text = in_blocks(lowered.as_text())
    assert (text != lowered.as_text()) == changed
    if changed:
        (given,), given_back = [jax.ShapeDtypeStruct(shape, np.float32)], lowered.out_info
        np.testing.assert_array_equal(flat_callable(text, [given], [given_back])(arrays)[0], f(arrays))


EXCHANGES = """\
HloModule jit_argmax, is_scheduled=true, num_partitions=64

ENTRY %main (p0: s32[1024], p1: f32[1024]) -> (s32[8,1,1024], f32[8,1,1024]) {
  %p0 = s32[1024]{0:T(1024)} parameter(0)
  %p1 = f32[1024]{0:T(1024)} parameter(1)
  %b0 = s32[1,1,1024]{2,1,0:T(1,128)} bitcast(%p0)
  %g0 = s32[8,1,1024]{2,1,0:T(1,128)} all-gather(%b0), channel_id=2, replica_groups=[8,8]<=[64], dimensions={0}, use_global_device_ids=true
  %b1 = f32[1,1,1024]{2,1,0:T(1,128)} bitcast(%p1)
  %g1 = f32[8,1,1024]{2,1,0:T(1,128)} all-gather(%b1), channel_id=1, replica_groups=[8,8]<=[64], dimensions={0}, use_global_device_ids=true
  ROOT %t = (s32[8,1,1024]{2,1,0:T(1,128)}, f32[8,1,1024]{2,1,0:T(1,128)}) tuple(%g0, %g1)
}
"""  # noqa: E501
"""The exchanges of ``jnp.argmax`` over 8 x 8 chips, as the TPU's compiler (libtpu 0.0.42.1) leaves them."""


def test_small_exchanges_that_could_be_one_are_told_with_what_one_would_save():
    """In a dump: one of both arrays saves as much by the model. None where one waits for the other."""
    (found,) = sharding_advice(load(EXCHANGES), "tpu-v5e")
    joined = EXCHANGES.replace("1,1,1024", "1,2,1024").replace("8,1,1024", "8,2,1024")
    lines = [line for line in joined.splitlines() if not re.match(r"  (%b1|%g1|ROOT)", line)]
    lines[-2] = lines[-2].replace("%g0", "ROOT %g0")
    joined = "\n".join(lines).replace("(s32[8,2,1024], f32[8,2,1024])", "s32[8,2,1024]").replace("[1024]", "[2048]")
    steps = [estimate(load(text), "tpu-v5e").device_seconds * 1e6 for text in (EXCHANGES, joined)]
    assert found.saved_us == pytest.approx(steps[0] - steps[1])
    assert found.factor == pytest.approx(steps[0] / steps[1])
    waits = EXCHANGES.replace("bitcast(%p1)", "slice(%g0), slice={[0:1],[0:1],[0:1024]}")
    assert not sharding_advice(load(waits), "tpu-v5e")


@pytest.mark.nightly
def test_small_exchanges_of_a_jax_function_are_told_from_source():
    """By day those of a dump, above."""
    jax = pytest.importorskip("jax")
    program = from_jax(lambda x: jax.numpy.argmax(x, -1), jax.ShapeDtypeStruct((8192, 65536), np.float32))
    (found,) = sharding_advice(sharded(program, {"d": 8, "m": 8}, {"0": "d,m"}), "tpu-v5e")
    assert (found.rule, "2 all-gathers" in found.what) == ("small-exchanges", True)


def training(mark: str, more: str) -> str:
    def given(name: str, at: int) -> str:
        return f'%arg{at}: tensor<2048x2048xf32> {{tf.aliasing_output = {at} : i32{mark}}} loc("{name}")'

    arguments = f'{given("params", 0)}, {given("state", 1)}, %arg2: tensor<4096x2048xf32> {{{more}}} loc("x")'
    body = [
        "%0 = stablehlo.dot_general %arg2, %arg2, contracting_dims = [0] x [0]"
        " : (tensor<4096x2048xf32>, tensor<4096x2048xf32>) -> tensor<2048x2048xf32>",
        "%1 = stablehlo.add %arg1, %0 : tensor<2048x2048xf32>",
        "%2 = stablehlo.add %arg0, %1 : tensor<2048x2048xf32>",
        "return %2, %1 : tensor<2048x2048xf32>, tensor<2048x2048xf32>",
    ]
    results = "tensor<2048x2048xf32>, tensor<2048x2048xf32>"
    lines = "\n    ".join(body)
    return f"module @t {{\n  func.func public @main({arguments}) -> ({results}) {{\n    {lines}\n  }}\n}}\n"


@pytest.mark.nightly
def test_state_in_copies_is_cut_over_the_data_axis():
    program = sharded(load(training("", "")), {"data": 8}, {"x": "data,-", "params": "-", "state": "-"})
    found = {each.rule: each for each in sharding_advice(program, "tpu-v5e")}
    assert "arguments 36.0 MiB -> 8.00 MiB a device" in found["copies-of-state"].how


@pytest.mark.nightly
def test_a_search_finds_what_fits_and_is_fastest():
    """Every candidate is what partitioning with its options gives; the best is no worse than any."""
    program, mesh = load(training("", "")), {"data": 4, "model": 2}
    found = search_shardings(program, "tpu-v5e", mesh, most=25)
    assert 3 < len(found.tried) <= 25
    best = found.best
    assert all(best.rank <= each.rank for each in found.tried)
    again = partition(sharded(program, mesh, {name: cut for name, cut in best.shardings.items() if cut}), "tpu-v5e")
    assert math.isclose(again.step.device_seconds, best.seconds)
    assert best.seconds < found.tried[0].seconds
    assert [place.name for place in places(program) if place.argument] == ["params", "state", "x"]
    with pytest.raises(UsageError, match="no HBM"):
        search_shardings(program, "cpu", mesh)


def test_a_parameter_and_its_moments_are_cut_alike_and_each_name_means_one_group():
    """Layers by their numbers, too; where shapes differ under one name, every array is named by itself."""
    names = {"p['w1']": 2, "s[0].mu['w1']": 2, "p['w2']": 3, "p['layers_0']['k']": 2, "p['layers_1']['k']": 2, "x": 1}
    arrays = [Place(name, k, (8,) * rank, 0, None) for k, (name, rank) in enumerate(names.items())]
    groups = groups_of(arrays)
    assert {title_of(some): [place.name for place in some] for some in groups} == {
        "p['w2']": ["p['w2']"],
        "*['w1']": ["p['w1']", "s[0].mu['w1']"],
        "*['layers_*']['k']": ["p['layers_0']['k']", "p['layers_1']['k']"],
        "x": ["x"],
    }
    for some in groups:
        assert [place for place in arrays if place.called(title_of(some))] == some


def test_links_carry_what_the_exchanges_send():
    """On 2 x 2 chips: both ways of all four links alike, along both dims, though these are of one size."""
    text = THREAD.replace('["x"=4, "y"=2]', '["x"=4, "y"=1]')
    part = partition(load(text), "tpu-v5p")
    assert [(each.op, each.bytes) for each in part.collectives] == [("all-to-all", 96 << 20)]
    assert sorted(Counter(dim for _, dim, _ in part.link_bytes).values()) == [4, 4]
    assert len(set(part.link_bytes.values())) == 1
    assert "torus" in part.to_html()
    assert part.head().startswith("a step ")


LOOP = """\
module @l {
  func.func public @main(%arg0: tensor<1024x1024xf32> loc("x"), %arg1: tensor<1024x1024xf32> loc("w")) -> tensor<1024x1024xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:3 = stablehlo.while(%a = %arg0, %i = %c, %w = %arg1) : tensor<1024x1024xf32>, tensor<i32>, tensor<1024x1024xf32>
     cond {
      %n = stablehlo.constant dense<8> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %1 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32> loc("model.py":3:4)
      %2 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %1, %2, %w : tensor<1024x1024xf32>, tensor<i32>, tensor<1024x1024xf32>
    }
    return %0#0 : tensor<1024x1024xf32>
  }
}
"""  # noqa: E501


@pytest.mark.nightly
def test_a_gather_of_the_same_in_every_trip_is_told():
    program = sharded(load(LOOP), {"d": 8}, {"x": "d,-", "w": "-,d", "result": "d,-"})
    found = [each for each in sharding_advice(program, "tpu-v5e") if each.rule == "gather-in-loop"]
    assert len(found) == 1
    gathered = next(row for row in partition(program, "tpu-v5e").step.rows if row.op == "all_gather")
    assert found[0].saved_us == pytest.approx(gathered.seconds * 1e6 * 7 / 8)


@pytest.mark.nightly
def test_the_axes_of_the_mesh_are_tried_in_another_order():
    """On 8 x 8 chips JAX gives the axis of 4 the whole dim that the axis of 16 would need, if it comes last."""
    text = TEXT_OF_SUMS
    program = sharded(load(text), {"m": 16, "d": 4}, {"x": "d,m", "w": "m,-", "result": "d,-"})
    found = {each.rule: each for each in sharding_advice(program, "tpu-v5e")}
    assert found["mesh-order"].how.startswith("make the mesh with its axes as d, m")
    turned = sharded(load(text), {"d": 4, "m": 16}, {"x": "d,m", "w": "m,-", "result": "d,-"})
    steps = [partition(each, "tpu-v5e").step.device_seconds for each in (program, turned)]
    assert found["mesh-order"].saved_us == pytest.approx((steps[0] - steps[1]) * 1e6)


TEXT_OF_SUMS = """\
module @s {
  func.func public @main(%arg0: tensor<8192x4096xf32> loc("x"), %arg1: tensor<4096x2048xf32> loc("w")) -> tensor<8192x2048xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8192x4096xf32>, tensor<4096x2048xf32>) -> tensor<8192x2048xf32>
    return %0 : tensor<8192x2048xf32>
  }
}
"""  # noqa: E501
