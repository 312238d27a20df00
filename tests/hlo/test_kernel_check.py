"""Checks of Pallas kernels: the verdict, vector memory, movement, another order of the grid, the time."""

import json
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import tilewright.hlo.pallas.check as pallas_check
from tilewright.hlo import check_kernels, estimate, from_jax, kernels
from tilewright.targets import target

ROOT = Path(__file__).parents[2]
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


def test_rows_that_cut_tiles_of_bytes_are_a_problem_of_older_compilers(monkeypatch):
    """libtpu 0.0.42, which comes with JAX 0.10.2, refuses them; 0.0.50 took all of 35 such kernels."""
    monkeypatch.setattr(pallas_check, "version", lambda package: "0.10.2")
    check = checked(dtype=jnp.int8, bm=8)
    assert [problem.kind for problem in check.problems] == ["tiling"]
    assert "(32, 512)" in check.problems[0].suggestion
    monkeypatch.setattr(pallas_check, "version", lambda package: "0.12.0.1")
    check = checked(dtype=jnp.int8, bm=8)
    assert check.ok
    assert any("libtpu 0.0.42" in note for note in check.notes)


def test_buffers_that_a_kernel_opens_count_while_they_are_open():
    """Those inside others beside them, those one after another once: 4.03 MiB in libtpu 0.0.42.1."""

    def call(x):
        def body(x, o):
            def add(rows):
                def use(a, done):
                    pltpu.async_copy(x.at[pl.ds(0, rows)], a, done).wait()
                    o[...] += a[...][:8]

                pl.run_scoped(use, pltpu.VMEM((rows, 1024), jnp.float32), pltpu.SemaphoreType.DMA)

            def outer(a, done):
                pltpu.async_copy(x.at[pl.ds(0, 512)], a, done).wait()
                add(512)
                add(256)
                o[...] += a[...][:8]

            pl.run_scoped(outer, pltpu.VMEM((512, 1024), jnp.float32), pltpu.SemaphoreType.DMA)

        far, out = pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec((8, 1024), lambda: (0, 0))
        return pl.pallas_call(body, in_specs=[far], out_specs=out, out_shape=jax.ShapeDtypeStruct((8, 1024), x.dtype))(
            x
        )

    (check,) = check_kernels(call, jax.ShapeDtypeStruct((4096, 1024), jnp.float32), target="tpu-v5e")
    assert (check.scratch_bytes, check.vmem_bytes) == (4 * MIB, 4 * MIB + 8 * 1024 * 4)


@pytest.mark.parametrize(("always", "said"), [(True, 8), (False, 10)])
def test_a_buffer_that_every_step_writes_before_it_reads_takes_no_memory(always, said):
    """MiB in libtpu 0.0.42.1; under a condition that the compiler does not fold it does."""

    def call(x):
        def body(x, o, sums):
            def clear():
                sums[...] = jnp.zeros_like(sums)

            clear() if always else pl.when(pl.program_id(0) >= 0)(clear)
            sums[...] += x[...]
            o[...] = sums[...] * 2

        block, out = pl.BlockSpec((512, 1024), lambda i: (i, 0)), jax.ShapeDtypeStruct((4096, 1024), jnp.float32)
        scratch = [pltpu.VMEM((512, 1024), jnp.float32)]
        return pl.pallas_call(
            body, grid=(8,), in_specs=[block], out_specs=block, out_shape=out, scratch_shapes=scratch
        )(x)

    (check,) = check_kernels(call, jax.ShapeDtypeStruct((4096, 1024), jnp.float32), target="tpu-v5e")
    assert check.vmem_bytes == said * MIB
    block = 512 * 1024
    assert check.kernel.elements["load"] == 8 * (block if always else 3 * block)  # no store reads what it writes over


def test_arrays_that_lie_in_another_order_are_copied_for_a_kernel():
    """An argument of 2,880 columns lies by columns, with less padding: libtpu 0.0.50 turns it before and behind."""

    def call(x):
        def body(a, o):
            o[...] = a[...] * 2

        block = pl.BlockSpec((256, x.shape[1]), lambda i: (i, 0))
        grid, out = (x.shape[0] // 256,), jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(body, grid=grid, in_specs=[block], out_specs=block, out_shape=out)(x)

    def rows(width):
        program = from_jax(call, jax.ShapeDtypeStruct((65536, width), jnp.bfloat16))
        return [(row.op, row.bytes) for row in estimate(program, target("tpu-v6e")).rows if row.bytes]

    assert [op for op, _ in rows(3072)] == ["custom_call"]
    size = 65536 * 2880 * 2
    (before, kernel, behind) = rows(2880)
    copies = before, behind
    assert kernel[0] == "custom_call"
    assert [(op, size * 1.9 < moved < size * 2.2) for op, moved in copies] == [("copy", True)] * 2


def test_a_result_that_is_returned_twice_is_copied():
    """libtpu 0.0.50 does; a public library's grouped products with residuals were timed so."""
    call, arrays = product()

    def twice(x, y):
        result = call(x, y)
        return result, result

    once, step = (estimate(from_jax(fn, *arrays), target("tpu-v6e")) for fn in (call, twice))
    (copy,) = [row for row in step.rows if row.name.endswith(".copy")]
    assert (copy.bound, copy.bytes) == ("hbm", 2 * 2048 * 2048 * 2)
    assert step.device_seconds == pytest.approx(once.device_seconds + copy.seconds)


@pytest.mark.parametrize(("sizes", "said"), [((2048, 2048, 128), 8.89), ((2048, 2048, 1024), 17.88)])
def test_rounds_that_wait_for_what_others_stored_are_held_in_turn(sizes, said):
    """Splash attention's rounds over keys, unrolled: MiB in libtpu 0.0.50."""
    wanted = dict(zip(("bq", "bk", "compute"), sizes))
    (check,) = check_kernels(f"{ROOT}/examples/pallas_of_jax.py:splash", target="tpu-v6e", **wanted)
    assert check.vmem_bytes / MIB == pytest.approx(said, rel=0.25)


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


sys.path.insert(0, str(ROOT / "benchmarks"))
ROWS = [json.loads(line) for line in (ROOT / "benchmarks/data/kernel_verdicts.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", ROWS[3::61], ids=lambda row: f"{row['family']}-{row['chip']}-{row['ok']}")
def test_verdicts_are_the_compilers(row):
    """One in 61; benchmarks/kernel_verdicts.py compares all of them."""
    import kernel_verdicts

    call, arrays = kernel_verdicts.made(row["family"], row["params"])
    (check,) = check_kernels(call, *arrays, target=row["chip"])
    assert check.ok == row["ok"], (check.problems, row["text"])
    if row["ok"] and row["vmem"] and check.vmem_bytes and row["chip"] != "tpu-7x":  # other arrays lie near there
        assert check.vmem_bytes == pytest.approx(row["vmem"], rel=0.3, abs=1 << 16)


@pytest.mark.nightly
def test_verdicts_agree_in_97_of_100(capsys):
    import kernel_verdicts

    kernel_verdicts.compare(kernel_verdicts.ROWS)
    said = capsys.readouterr().out
    (agree,) = re.findall(r"verdicts agree \(([\d.]+)%\)", said)
    (refused,) = re.findall(r"are refused \(([\d.]+)%\)", said)
    near, sized = map(int, re.findall(r"within 15 % in (\d+) of (\d+)", said)[0])
    assert float(agree) >= 97
    assert float(refused) <= 1
    assert near >= 0.85 * sized
    assert said.rstrip().endswith("below windows and scratch in 0")


@pytest.mark.parametrize(("kind", "ok"), [("int8", False), ("int16", True)])
def test_arithmetic_of_bytes_is_refused_as_the_compiler_does(kind, ok):
    def body(x, y, o):
        o[...] = x[...] + y[...]

    x = jax.ShapeDtypeStruct((512, 512), kind)
    (check,) = check_kernels(pl.pallas_call(body, out_shape=x), x, x, target="tpu-v6e")
    assert [problem.kind for problem in check.problems] == ([] if ok else ["operation"])


def test_rounds_that_wait_for_one_another_hold_no_more_than_one():
    """Rounds unrolled, each with its own softmax: behind one another by what they keep, or side by side."""

    def body(rounds, chained, x, o, kept):
        for at in range(rounds):
            here = x[at] + kept[...] if chained else x[at]
            e = jnp.exp(here - here.max(-1, keepdims=True))
            kept[...] = e / e.sum(-1, keepdims=True)
        o[...] = kept[...]

    def spilled(rounds, chained):
        x, o = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((rounds, 256, 1024), (256, 1024)))
        scratch = [pltpu.VMEM((256, 1024), jnp.float32)]
        call = pl.pallas_call(partial(body, rounds, chained), out_shape=o, scratch_shapes=scratch)
        (check,) = check_kernels(call, x, target="tpu-v6e")
        return check.spilled_bytes

    assert spilled(8, True) == spilled(2, True) > 0
    assert spilled(8, True) < spilled(8, False) <= 8 * (spilled(1, False) + (1 << 18))


def test_a_loop_by_data_passes_its_arrays_once():
    """A pipeline as long as a number in memory says is taken to bring in each block once."""
    most = 64

    def inner(x, o):
        o[...] = jnp.exp(x[...])

    def body(count, x, o):
        blocks = pl.BlockSpec((128, 512), lambda i: (i, 0))
        pltpu.emit_pipeline(inner, grid=(count[0],), in_specs=[blocks], out_specs=[blocks])(x, o)

    far, x = pl.BlockSpec(memory_space=pl.ANY), jax.ShapeDtypeStruct((most * 128, 512), jnp.float32)
    call = pl.pallas_call(body, in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), far], out_specs=far, out_shape=x)
    (check,) = check_kernels(call, jax.ShapeDtypeStruct((1,), jnp.int32), x, target="tpu-v6e")
    assert max(check.kernel.passing.values()) == most
    assert check.kernel.elements["exp"] == most * 128 * 512
    least = 2 * most * 128 * 512 * 4 / target("tpu-v6e").memory("hbm").bytes_per_second
    assert least <= check.seconds <= 4 * least + 1e-5


@pytest.mark.parametrize(
    ("shape", "there"),
    [
        ((512, 1024), lambda x: jnp.swapaxes(jnp.swapaxes(x, 0, 1), 0, 1)),
        ((8, 64, 1024), lambda x: x.reshape(512, 1024)),
    ],
    ids=["transposes that undo one another", "a reshape that moves nothing"],
)
def test_what_moves_nothing_before_a_kernel_costs_nothing(shape, there):
    def double(x, o):
        o[...] = x[...] * 2

    def wrapped(x):
        return pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct((512, 1024), x.dtype))(there(x))

    step = estimate(from_jax(wrapped, jax.ShapeDtypeStruct(shape, jnp.float32)), "tpu-v6e")
    assert [row.op for row in step.rows if row.seconds] == ["custom_call"]


@pytest.mark.nightly
def test_a_search_finds_a_tiling_that_a_sweep_does_not_beat():
    """The search of three sides against every combination of four powers of two."""

    def made(*words):
        asked = [sys.executable, "-m", "tilewright", "kernel", "check", f"{ROOT}/examples/pallas_matmul.py:matmul"]
        done = subprocess.run([*asked, "--json", *words], capture_output=True, check=True, timeout=300)
        return json.loads(done.stdout)["sweep"]

    found = made("--tune", "bm,bn,bk")
    swept = made(*(f"--sweep={side}=256,512,1024,2048" for side in ("bm", "bn", "bk")))
    best = min(row["kernels"][0]["seconds"] for row in swept if row["kernels"][0]["ok"])
    assert found[0]["kernels"][0]["ok"]
    assert found[0]["kernels"][0]["seconds"] <= best * (1 + 1e-9)


def test_a_kernel_without_a_grid_brings_its_arrays_in_once():
    def whole(x):
        return pl.pallas_call(lambda x, o: o.__setitem__(..., x[...] * 2), out_shape=x)(x)

    def gridded(x):
        block = pl.BlockSpec(x.shape, lambda i: (0, 0))
        scaled = pl.pallas_call(
            lambda x, o: o.__setitem__(..., x[...] * 2), grid=(1,), in_specs=[block], out_specs=block, out_shape=x
        )
        return scaled(x)

    x = jax.ShapeDtypeStruct((512, 1024), jnp.float32)
    (one,), (other,) = (check_kernels(fn, x, target="tpu-v6e") for fn in (whole, gridded))
    assert one.hbm_bytes == other.hbm_bytes == 2 * 512 * 1024 * 4
    assert one.seconds == other.seconds
    assert not any("larger blocks" in text for text in one.advice)  # it has one step already


def test_a_kernel_that_does_not_compile_has_no_time_to_show():
    x = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)
    call = pl.pallas_call(lambda x, o: o.__setitem__(..., x[...] * 2), out_shape=x)
    (check,) = check_kernels(lambda x: call(x), x, target="tpu-v6e")
    assert [problem.kind for problem in check.problems] == ["vector memory"]
    assert [*check.times()] == [f"{check.name}: no time: it does not compile"]
