"""Kernels with copies and semaphores of their own: values as Pallas' interpreter of TPUs has them, and faults found."""

import linecache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from jax.experimental.pallas.ops.tpu.ragged_paged_attention.kernel import ref_ragged_paged_attention

from tests.conftest import by_night
from tilewright.errors import UnsupportedError
from tilewright.hlo.pallas.run import run_kernels

ANY = pl.BlockSpec(memory_space=pl.ANY)
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR
copy = pltpu.make_async_copy


def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def numbers(*shape, dtype=np.float32):
    return np.random.default_rng(len(shape)).integers(-8, 8, shape).astype(dtype)


def by_tpu_interpreter(made, *sizes):
    """Results of a kernel that is made while calls go to the interpreter of TPUs."""
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
        call, arrays = made(*sizes)
        return [np.asarray(one) for one in jax.tree.leaves(call(*arrays))]


def piped(rows, columns, blocks, buffers, dtype=jnp.float32, fault=""):
    """Blocks of rows brought in, doubled and sent out by copies of the kernel's own; and their array."""

    def body(x, o, came, goes, ins, outs):
        def bring(k):
            slot = 0 if fault == "overlap" else k % buffers
            first = k * rows + (fault == "beyond")
            half = rows // 2 if fault == "half" else rows
            semaphore = ins.at[0 if fault == "shared" else k % buffers]
            return copy(x.at[pl.ds(first, half)], came.at[slot, pl.ds(0, half)], semaphore)

        def send(k):
            return copy(goes.at[k % buffers], o.at[pl.ds(k * rows, rows)], outs.at[k % buffers])

        for k in range(min(buffers - 1, blocks) if fault != "no start" else 0):
            bring(k).start()

        def step(k, _):
            @pl.when(k + buffers - 1 < blocks)
            def _():
                bring(k + buffers - 1).start()  # begins

            if fault != "no wait":
                bring(k).wait()  # waits for what comes
            if fault == "two waits":
                bring(k).wait()

            @pl.when(k >= (buffers if fault != "early" else blocks))
            def _():
                send(k - buffers).wait()

            if fault == "written":
                came[(k + 1) % buffers] = jnp.zeros((rows, columns), dtype)  # writes where a copy comes
            read = x[pl.ds(k * rows, rows)] if fault == "far" else came[k % buffers]  # reads
            goes[k % buffers] = read * 2  # writes

            @pl.when(k > (0 if fault == "gap" else -1))
            def _():
                send(k).start()  # sends

        jax.lax.fori_loop(0, blocks, step, None)
        for k in range(max(fault == "gap", blocks - buffers), blocks if fault != "left" else 0):
            send(k).wait()

    x = numbers(blocks * rows, columns, dtype=dtype)
    buffer = pltpu.VMEM((buffers, rows, columns), dtype)
    scratch = [buffer, buffer, DMA((buffers,)), DMA((buffers,))]
    call = pl.pallas_call(body, in_specs=[ANY], out_specs=ANY, out_shape=like(x), scratch_shapes=scratch)
    return call, [x]


@pytest.mark.parametrize(
    ("fault", "kind", "line"),
    [
        ("no wait", "read under a copy", "# reads"),
        ("no wait", "never waited for", ""),
        ("early", "write under a copy", "# writes"),
        ("left", "never waited for", ""),
        ("no start", "waits for ever", "# waits for what comes"),
        ("no start", "unwritten read", "# reads"),
        ("two waits", "waits for ever", "bring(k).wait()"),
        ("overlap", "copies overlap", "# begins"),
        ("beyond", "copy out of bounds", "# begins"),
        ("half", "unwritten read", "# reads"),
        ("shared", "read under a copy", "# reads"),
        ("written", "write under a copy", "# writes where a copy comes"),
        ("far", "not brought in", "# reads"),
        ("gap", "unwritten output", ""),
    ],
)
def test_faults_of_a_pipeline_are_found_with_their_line(fault, kind, line):
    call, arrays = piped(8, 128, 4, 2, fault=fault)
    found = [each for each in run_kernels(call, *arrays).faults if each.kind == kind]
    assert found, kind
    assert not line or any(line in text_at(each.line) for each in found), found


def text_at(line):
    file, _, number = line.rpartition(":")
    return linecache.getline(file, int(number))


def scoped(fault="left"):
    """A copy into scratch of a scope, which ends before the copy was waited for."""

    def body(x, o, semaphore):
        def scope(kept):
            pltpu.async_copy(x, kept, semaphore)

        pl.run_scoped(scope, pltpu.VMEM((8, 128), jnp.float32))
        copy(x, o, semaphore).wait()

    x = numbers(8, 128)
    return pl.pallas_call(body, in_specs=[ANY], out_specs=ANY, out_shape=like(x), scratch_shapes=[DMA]), [x]


def stepped(fault=""):
    """Blocks that the grid's pipeline brings in, each sent on by a copy of the kernel's own."""

    def body(x, o, semaphore):
        step = pl.program_id(0)
        place = pl.ds((step // 2 if fault == "race" else step) * 8, 8)
        started = pltpu.async_copy(x, o.at[place], semaphore)
        if fault == "left":

            @pl.when(step == 3)
            def _():
                for _ in range(4):
                    started.wait()

        else:
            started.wait()

    x = numbers(32, 128)
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    semantics = pltpu.CompilerParams(dimension_semantics=["parallel" if fault == "race" else "arbitrary"])
    call = pl.pallas_call(
        *(body, like(x)),
        grid=(4,),
        in_specs=[block],
        out_specs=ANY,
        scratch_shapes=[DMA],
        compiler_params=semantics,
    )
    return call, [x]


def signalled(fault=""):
    """A regular semaphore that is signalled and waited for in every step."""

    def body(x, o, semaphore):
        pl.semaphore_signal(semaphore, 2)
        counted = pl.semaphore_read(semaphore) if fault == "read" else 0  # the interpreter of TPUs has none
        o[...] = x[...] + counted
        pl.semaphore_wait(semaphore, {"left": 1, "too many": 3}.get(fault, 2))

    x = numbers(8, 128)
    return pl.pallas_call(body, out_shape=like(x), scratch_shapes=[REGULAR]), [x]


def on_cores(cores=2, fault=""):
    """``pl.kernel``: each core of a mesh brings in its rows, adds its number and sends them out."""
    x = numbers(16 * cores, 128)
    mesh = pltpu.create_tensorcore_mesh("core", num_cores=cores)

    @pl.kernel(out_type=like(x), mesh=mesh, scratch_types=[pltpu.VMEM((16, 128), jnp.float32), DMA])
    def call(x, o, kept, semaphore):
        core = jax.lax.axis_index("core")
        pltpu.async_copy(x.at[pl.ds(core * 16, 16)], kept, semaphore).wait()
        kept[...] += core.astype(jnp.float32)
        pltpu.async_copy(kept, o.at[pl.ds(core * (8 if fault else 16), 16)], semaphore).wait()

    return call, [x]


@pytest.mark.parametrize(
    ("made", "fault", "kind"),
    [
        (scoped, "left", "left under a copy"),
        (stepped, "left", "left under a copy"),
        (stepped, "race", "race"),
        (signalled, "left", "never waited for"),
        (signalled, "too many", "waits for ever"),
        (lambda fault: on_cores(2, fault), "race", "race"),
    ],
)
def test_faults_of_scopes_steps_signals_and_cores_are_found(made, fault, kind):
    call, arrays = made(fault)
    assert kind in {each.kind for each in run_kernels(call, *arrays).faults}


def emitted():
    """``emit_pipeline`` over arrays in HBM."""

    def body(x, o):
        def double(x, o):
            o[...] = x[...] * 2

        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(double, grid=(4,), in_specs=[block], out_specs=[block])(x, o)

    x = numbers(32, 128)
    return pl.pallas_call(body, in_specs=[ANY], out_specs=ANY, out_shape=like(x)), [x]


def in_place():
    """Rows of an array that are changed where they lie."""

    def body(x, o, kept, semaphore):
        pltpu.async_copy(o.at[pl.ds(0, 8)], kept, semaphore).wait()
        kept[...] += 1
        pltpu.async_copy(kept, o.at[pl.ds(8, 8)], semaphore).wait()

    x = numbers(32, 128)
    call = pl.pallas_call(
        *(body, like(x)),
        in_specs=[ANY],
        out_specs=ANY,
        input_output_aliases={0: 0},
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), DMA],
    )
    return call, [x]


def views():
    """Numbers of 16 bits that are read as words, row by row, from a part of a buffer that a copy fills."""

    def body(x, o, kept, semaphore):
        pltpu.async_copy(x, kept.at[1], semaphore).wait()
        words = kept.at[1].reshape(16, 128).bitcast(jnp.uint32)
        o[...] = words[1::2, :]

    x = numbers(2, 8, 128, dtype=jnp.bfloat16)
    out = jax.ShapeDtypeStruct((4, 128), jnp.uint32)
    scratch = [pltpu.VMEM((2, 2, 8, 128), jnp.bfloat16), DMA]
    return pl.pallas_call(body, in_specs=[ANY], out_shape=out, scratch_shapes=scratch), [x]


def casts(fault=""):
    """Words copied over pairs of rows of a buffer of 16 bits, through a part that is reshaped; then its rows."""

    def body(x, o, kept, semaphores):
        low = kept.at[pl.ds(0, 16)].bitcast(jnp.uint32)
        high = kept.at[pl.ds(16, 16)].reshape(2, 8, 128).at[1].bitcast(jnp.uint32)
        copies = [copy(x.at[pl.ds(0, 8)], low, semaphores.at[0]), copy(x.at[pl.ds(8, 4)], high, semaphores.at[1])]
        for one in copies:
            one.start()
        copies[0].wait()
        if fault != "early":
            copies[1].wait()
        kept.at[pl.ds(16, 8)].bitcast(jnp.uint32)[...] = jnp.full((4, 128), 3, jnp.uint32)
        o[...] = kept[...]
        if fault == "early":
            copies[1].wait()

    x = np.random.default_rng(0).integers(0, 1 << 32, (12, 128), dtype=np.uint32)
    out = jax.ShapeDtypeStruct((32, 128), jnp.uint16)
    scratch = [pltpu.VMEM((32, 128), jnp.uint16), DMA((2,))]
    return pl.pallas_call(body, in_specs=[ANY], out_shape=out, scratch_shapes=scratch), [x]


def test_copies_into_casts_fill_the_rows_that_a_word_packs():
    call, (x,) = casts()
    run = run_kernels(call, x)
    assert not run.faults
    words = np.concatenate([x[:8], np.full((4, 128), 3, np.uint32), x[8:]])
    np.testing.assert_array_equal(run.results[0], np.stack([words & 0xFFFF, words >> 16], 1).reshape(32, 128))
    call, arrays = casts("early")
    assert "read under a copy" in {fault.kind for fault in run_kernels(call, *arrays).faults}


@pytest.mark.parametrize(
    ("made", "sizes"),
    [
        (piped, (8, 128, 4, 2)),
        (piped, (16, 128, 3, 3)),
        (stepped, ()),
        (signalled, ()),
        (on_cores, (1,)),
        (in_place, ()),
    ],
)
def test_values_are_the_interpreters_of_tpus(made, sizes):
    call, arrays = made(*sizes)
    run = run_kernels(call, *arrays)
    assert not run.faults
    for result, interpreted in zip(run.results, by_tpu_interpreter(made, *sizes), strict=True):
        np.testing.assert_array_equal(result, interpreted)


@settings(max_examples=150 if by_night() else 2)
@given(
    st.tuples(st.sampled_from((8, 16)), st.sampled_from((128, 256)), st.integers(1, 5), st.integers(2, 3)),
    st.sampled_from((jnp.float32, jnp.bfloat16)),
)
def test_random_pipelines_have_the_interpreters_values(sizes, dtype):
    call, arrays = piped(*sizes, dtype)
    run = run_kernels(call, *arrays)
    assert not run.faults
    assert not run.uncompared
    assert run.difference == 0


def test_pipelines_that_jax_emits_cores_and_views_are_followed():
    call, (x,) = emitted()
    run = run_kernels(call, x)
    assert not run.faults
    assert not run.uncompared
    assert run.difference == 0
    np.testing.assert_array_equal(run.results[0], x * 2)
    call, (x,) = on_cores(2)
    np.testing.assert_array_equal(run_kernels(call, x).results[0], x + np.repeat([[0.0], [1.0]], 16, axis=0))
    call, (x,) = signalled("read")
    np.testing.assert_array_equal(run_kernels(call, x).results[0], x + 2)
    call, (x,) = views()
    pairs = x.reshape(8, 2, 128)[1::2].view(np.uint16).astype(np.uint32)
    np.testing.assert_array_equal(run_kernels(call, x).results[0], pairs[:, 0] | pairs[:, 1] << 16)


def test_what_is_not_followed_is_said():
    def remote(x, o, semaphores):
        pltpu.make_async_remote_copy(x, o, semaphores.at[0], semaphores.at[1], device_id=0).start()

    x = numbers(8, 128)
    scratch = [DMA((2,))]
    call = pl.pallas_call(remote, in_specs=[ANY], out_specs=ANY, out_shape=like(x), scratch_shapes=scratch)
    with pytest.raises(UnsupportedError, match="another chip"):
        run_kernels(call, x)

    def drawn(x, o):
        pltpu.prng_seed(0)
        o[...] = x[...] + pltpu.prng_random_bits((8, 128))

    with pytest.raises(UnsupportedError, match="prng_seed has no meaning on the CPU"):
        run_kernels(pl.pallas_call(drawn, out_shape=like(x)), x)

    def begun(x, o, semaphore):
        copy(x, o, semaphore).start()

    outs = [like(x), DMA(())]
    specs = [ANY, pl.BlockSpec(memory_space=pltpu.SEMAPHORE)]
    with pytest.raises(UnsupportedError, match="from kernel to kernel"):
        run_kernels(pl.pallas_call(begun, in_specs=[ANY], out_specs=specs, out_shape=outs), x)

    def beyond(x, o, semaphore):
        copy(x.at[pl.ds(8, 8)], o, semaphore).start()

    call = pl.pallas_call(beyond, in_specs=[ANY], out_specs=ANY, out_shape=like(x), scratch_shapes=[DMA])
    with pytest.raises(UnsupportedError, match=r"test_kernel_copies.py:\d+: .*Out of bound slice"):
        run_kernels(call, x)  # JAX says so while it traces
    call, (x,) = stepped()
    with pytest.raises(UnsupportedError, match="not the whole array"):
        run_kernels(jax.vmap(call), np.stack([x, x]))


def test_paged_attention_of_jax_is_its_reference():
    """Two sequences of different lengths, whose pages lie in any order: every page is a copy of the kernel's own."""
    group, heads, depth, size, lengths = 8, 1, 128, 8, np.array([20, 9], np.int32)
    random = np.random.default_rng(0)
    k, v = (random.integers(-8, 8, (heads, 8, size, depth)).astype(np.float32) / 8 for _ in "kv")
    q = random.integers(-8, 8, (2, heads * group, depth)).astype(np.float32) / 64
    pages = random.permutation(8).reshape(2, 4).astype(np.int32)
    run = run_kernels(lambda *arrays: paged_attention(*arrays, pages_per_compute_block=2), q, k, v, lengths, pages)
    assert not run.faults
    assert not run.uncompared
    assert run.difference < 1e-5
    for one, length in enumerate(lengths):
        keys, values = (all_[0, pages[one]].reshape(-1, depth)[:length] for all_ in (k, v))
        weights = jax.nn.softmax(q[one] @ keys.T, axis=-1)
        np.testing.assert_allclose(run.results[0][one], weights @ values, rtol=2e-3, atol=2e-3)


@pytest.mark.nightly  # test_paged_attention_of_jax_is_its_reference has the same copies; this one views of words
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_ragged_paged_attention_of_jax_is_its_reference(dtype):
    random = np.random.default_rng(0)
    q = random.normal(size=(16, 4, 128)).astype(dtype)
    cache = random.normal(size=(8, 8, 4, 128)).astype(dtype)
    lengths, pages = np.array([10, 20], np.int32), np.arange(6, dtype=np.int32).reshape(2, 3)
    rest = lengths, pages, np.array([0, 4, 9], np.int32), np.array([2], np.int32)
    run = run_kernels(
        lambda *arrays: ragged_paged_attention(*arrays, num_kv_pages_per_block=2, num_queries_per_block=8),
        *(q, cache, *rest),
    )
    assert not run.faults
    reference = np.asarray(ref_ragged_paged_attention(q, cache, *rest), np.float32)
    near = 1e-4 if dtype == jnp.float32 else 2e-2
    np.testing.assert_allclose(run.results[0][:9].astype(np.float32), reference, atol=near)


@pytest.mark.nightly  # test_values_are_the_interpreters has its products; this one a grid whose length data decides
def test_grouped_products_of_jax_are_the_interpreters():
    random = np.random.default_rng(0)
    x, weights = random.normal(size=(64, 128)), random.normal(size=(3, 128, 128))
    run = run_kernels(
        lambda *arrays: gmm(*arrays, preferred_element_type=jnp.float32, tiling=(16, 128, 128)),
        *(x.astype(np.float32), weights.astype(np.float32), np.array([10, 30, 24], np.int32)),
    )
    assert not run.faults
    assert not run.uncompared
    assert run.difference == 0
