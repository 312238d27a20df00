"""Checks of Pallas kernels: the verdict, vector memory, movement, another order of the grid, the time."""

import re
import time

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewright.hlo import check_kernels, estimate, from_jax, kernels

MIB = 1 << 20
SIZES = {"m": 2048, "k": 2048, "n": 2048}


def product(dtype=jnp.bfloat16, order="mnk", bm=512, bk=512, bn=512, **params):
    """A tiled product over a grid in some order, and its arguments."""
    cut = {"m": bm, "k": bk, "n": bn}
    at = {letter: place for place, letter in enumerate(order)}

    def pick(*letters):
        return lambda *ids: tuple(ids[at[letter]] for letter in letters)

    def body(x, y, o, acc):
        step = pl.program_id(at["k"])

        @pl.when(step == 0)
        def _():
            acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(x[...], y[...], preferred_element_type=acc.dtype)

        @pl.when(step == pl.num_programs(at["k"]) - 1)
        def _():
            o[...] = acc[...].astype(o.dtype)

    call = pl.pallas_call(
        body,
        grid=tuple(SIZES[letter] // cut[letter] for letter in order),
        in_specs=[pl.BlockSpec((bm, bk), pick("m", "k")), pl.BlockSpec((bk, bn), pick("k", "n"))],
        out_specs=pl.BlockSpec((bm, bn), pick("m", "n")),
        out_shape=jax.ShapeDtypeStruct((2048, 2048), jnp.int32 if dtype == jnp.int8 else dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.int32 if dtype == jnp.int8 else jnp.float32)],
        compiler_params=pltpu.CompilerParams(**params),
    )
    return call, [jax.ShapeDtypeStruct((2048, 2048), dtype)] * 2


def checked(target="tpu-v5e", **settings):
    call, arrays = product(**settings)
    (check,) = check_kernels(call, *arrays, target=target)
    return check


@pytest.mark.parametrize(
    ("settings", "ok", "said"),  # what libtpu 0.0.42.1 says of such products: bytes of vector memory
    [
        ({"bm": 128, "bk": 128, "bn": 128}, True, 262144),
        ({"bm": 256, "bk": 512, "bn": 256}, True, 1650688),
        ({"dtype": jnp.float32, "bm": 512, "bk": 1024, "bn": 1024}, False, 18874368),
    ],
)
def test_vector_memory_is_the_compilers(settings, ok, said):
    check = checked(**settings)
    assert check.ok is ok
    assert check.vmem_bytes == pytest.approx(said, rel=0.15)
    assert check.vmem_limit == 16 * MIB
    assert check.vmem_bytes >= check.scratch_bytes + sum(window.held for window in check.windows)


def test_too_much_vector_memory_is_mended_by_what_is_suggested():
    check = checked(dtype=jnp.float32, bm=512, bk=1024, bn=1024)
    (problem,) = check.problems
    assert problem.kind == "vector memory"
    assert "vmem_limit_bytes=20 << 20" in problem.suggestion
    mended = checked(dtype=jnp.float32, bm=512, bk=1024, bn=1024, vmem_limit_bytes=20 << 20)
    assert mended.ok
    assert mended.vmem_limit == 20 * MIB


def test_rows_that_cut_tiles_of_bytes():
    check = checked(dtype=jnp.int8, bm=8)
    assert [problem.kind for problem in check.problems] == ["tiling"]
    assert "(32, 512)" in check.problems[0].suggestion


def test_what_jax_refuses_is_a_problem_with_its_line():
    check = checked(bm=4)
    assert (check.ok, check.name, check.problems[0].kind) == (False, "body", "block")
    assert "test_kernel_check.py:" in check.problems[0].line
    assert "(8, 512)" in check.problems[0].suggestion


def test_every_fetch_is_counted_and_a_better_order_named():
    plain, worse = checked(bk=2048), checked(bk=2048, bm=256)
    block = 512 * 2048 * 2
    assert [(w.fetches, w.bytes, w.least) for w in plain.windows][:2] == [
        (4, 4 * block, 4 * block),
        (16, 16 * block, 4 * block),
    ]
    assert plain.least_hbm_bytes == 3 * 2048 * 2048 * 2
    assert [w.fetches for w in worse.windows] == [8, 32, 32]
    (advice,) = [text for text in worse.advice if "another order" in text]
    assert "32.0 MiB less" in advice
    assert advice.endswith("1, 0, 2")
    assert worse.hbm_bytes - checked(bk=2048, bm=256, order="nmk").hbm_bytes == 32 * MIB


def test_edges_move_what_is_inside():
    x = jax.ShapeDtypeStruct((1000, 1000), jnp.float32)
    block = pl.BlockSpec((256, 256), lambda i, j: (i, j))

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    call = pl.pallas_call(body, grid=(4, 4), in_specs=[block], out_specs=block, out_shape=x)
    (check,) = check_kernels(call, x, target="tpu-v6e")
    assert check.hbm_bytes == check.least_hbm_bytes == 2 * 1000 * 1024 * 4


def test_one_time_for_check_and_estimate():
    call, arrays = product()
    (check,), step = check_kernels(call, *arrays, target="tpu-v6e"), estimate(from_jax(call, *arrays), "tpu-v6e")
    assert check.seconds
    assert check.seconds == pytest.approx(step.device_seconds)
    (kernel,) = kernels(from_jax(call, *arrays))
    assert kernel.grid == (4, 4, 4)
    assert [window.block for window in kernel.windows] == [(512, 512)] * 3
    assert [sizes for sizes, _, _ in kernel.scratch] == [(512, 512)]


def test_a_step_is_the_longest_of_its_parts():
    check = checked("tpu-v6e")
    whole = check.pipeline
    steps = [step for step in whole.steps if not step.moment.alone]
    assert sum(step.moment.times for step in steps) == 64
    for step in steps:
        core = max(step.units.values(), default=0.0)
        assert step.us >= max(core, step.moved_us)
    alone = [step for step in whole.steps if step.moment.alone]
    assert len(alone) == 2  # the first blocks come in, the last result goes out
    assert whole.us >= sum(step.us * step.moment.times for step in whole.steps)
    moved = sum(megabytes * step.moment.times for step in whole.steps for _, megabytes, _ in step.moment.moved)
    assert moved * 1e6 == pytest.approx(check.hbm_bytes, rel=1e-3)


def test_a_million_steps_are_checked_within_a_second():
    call, _ = product()
    check_kernels(
        call, *[jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)] * 2, target="tpu-v6e"
    )  # loads what it needs
    block = pl.BlockSpec((8, 128), lambda i, j, k: (i, j + k))
    array = jax.ShapeDtypeStruct((8 * 128, 128 * 191), jnp.float32)

    def body(x, o):
        o[...] = jnp.where(pl.program_id(2) > 0, x[...], 0)

    begun = time.process_time()
    call = pl.pallas_call(body, grid=(128, 128, 64), in_specs=[block], out_specs=block, out_shape=array)
    (check,) = check_kernels(call, array, target="tpu-v6e")
    assert time.process_time() - begun < 1
    assert check.windows[0].fetches == 128 * 128 * 64
    assert check.windows[0].least == 1024 * 128 * 191 * 4
    assert check.bound == "latency"


def test_loops_that_start_transfers_are_pipelines_of_their_own():
    def outer(x_hbm, o_hbm):
        def body(x, o):
            o[...] = x[...] * 2

        block = pl.BlockSpec((8, 512), lambda i: (i, 0))
        pltpu.emit_pipeline(body, grid=(16,), in_specs=[block], out_specs=[block])(x_hbm, o_hbm)

    array = jax.ShapeDtypeStruct((128, 512), jnp.float32)
    spaces = pl.BlockSpec(memory_space=pl.ANY)
    (check,) = check_kernels(
        pl.pallas_call(outer, in_specs=[spaces], out_specs=spaces, out_shape=array), array, target="tpu-v6e"
    )
    assert check.hbm_bytes == 2 * 128 * 512 * 4
    trips = [m for m in check.kernel.moments if m.parts]
    assert sum(m.times for m in trips) == 16
    assert check.seconds > check.hbm_bytes / 1.64e12


def test_a_kernel_explained_as_a_page():
    check = checked("tpu-v6e", order="mnk", bk=2048, bm=256)
    text = check.to_html("tpu-v6e")
    for part in ("The first steps", "Blocks of window 1", "bytes of vector memory", "What to do"):
        assert part in text
    assert any("fetched again" in line for line in check.movement() if isinstance(line, str))


def test_what_saves_most_is_advised_first_and_saves_about_as_much():
    """Of 4,096 short steps their beginnings take most; of blocks 16 times as large they do not."""
    small, large = checked("tpu-v6e", bm=128, bk=128, bn=128), checked("tpu-v6e")
    first, *others = small.advice
    said = re.fullmatch(r"saves up to ([\d.]+) (ms|µs): larger blocks: beginning its 4,096 steps takes .*", first)
    assert said, first
    saved = float(said[1]) / {"ms": 1e3, "µs": 1e6}[said[2]]
    assert 0.8 * saved < small.seconds - large.seconds < 1.2 * saved
    assert [text.startswith("larger blocks along dim 1 of the grid: window 0") for text in others].count(True) == 1
    assert not any("beginning" in text for text in large.advice)
