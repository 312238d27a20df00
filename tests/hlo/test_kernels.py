"""Pallas kernels in programs: what is read of them, and the first time that is made of it."""

import base64
import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewright.errors import UnsupportedError, UsageError
from tilewright.hlo import estimate, load
from tilewright.hlo.jaxlib_child import ask
from tilewright.hlo.reading import kernels
from tilewright.hlo.reading.kernels import kernel_of, read_kernel
from tilewright.targets import target

M, K, N = 1024, 2048, 512
BM, BK, BN = 256, 512, 256


def lowered(function, *shapes):
    """The StableHLO for a TPU of a function of arrays (shape, type)."""
    given = [jax.ShapeDtypeStruct(shape, kind) for shape, kind in shapes]
    return jax.jit(function).trace(*given).lower(lowering_platforms=("tpu",)).as_text()


def product(a, b, cost=None):
    """A tiled product whose result is an exponential, made in the last of the steps along the depth."""

    def body(a_ref, b_ref, o_ref, sums):
        @pl.when(pl.program_id(2) == 0)
        def _():
            sums[...] = jnp.zeros_like(sums)

        sums[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == K // BK - 1)
        def _():
            o_ref[...] = jnp.exp(sums[...]).astype(o_ref.dtype)

    return pl.pallas_call(
        body,
        grid=(M // BM, N // BN, K // BK),
        in_specs=[pl.BlockSpec((BM, BK), lambda i, j, k: (i, k)), pl.BlockSpec((BK, BN), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((BM, BN), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), a.dtype),
        scratch_shapes=[pltpu.VMEM((BM, BN), jnp.float32)],
        cost_estimate=cost,
    )(a, b)


ARRAYS = ((M, K), jnp.bfloat16), ((K, N), jnp.bfloat16)


@pytest.fixture(scope="module")
def text():
    return lowered(product, *ARRAYS)


def row_of(text, chip="tpu-v6e", assume=None):
    (row,) = (row for row in estimate(load(text), chip, assume).rows if row.op == "custom_call")
    return row


def config_of(text):
    (op,) = (op for _, op in load(text).operations() if op.opcode == "custom_call")
    return op.attributes["backend_config"].replace('": ', '":')


def test_products_branches_and_windows_are_counted_over_the_grid(text):
    kernel = read_kernel(config_of(text))
    steps = (M // BM) * (N // BN) * (K // BK)
    assert (kernel.steps, kernel.flops) == (steps, 2 * M * K * N)
    assert kernel.elements["exp"] == M * N  # in the last step along the depth alone
    assert kernel.elements["addf"] == steps * BM * BN
    assert not kernel.assumed
    a, b, result = kernel.windows
    assert (a.fetches, b.fetches, result.fetches) == (steps, steps, steps // (K // BK))
    assert a.megabytes == pytest.approx(M * K * 2 * (N // BN) / 1e6)
    assert result.megabytes == pytest.approx(M * N * 2 / 1e6)


def test_a_kernel_has_a_first_time_that_says_what_it_is(text):
    row = row_of(text)
    assert row.flops == 2 * M * K * N
    assert row.bytes == 2 * (M * K * (N // BN) + K * N * (M // BM) + M * N)
    assert row.note == "kernel: from its grid and products"
    assert (row.kind, row.seen) == ("pallas bf16", "not measured in this range")  # a kernel of a few microseconds
    assert row.seconds >= row.flops / target("tpu-v6e").matrix.bf16_ops_per_second
    assert row.seconds >= row.bytes / target("tpu-v6e").memory("hbm").bytes_per_second


def test_where_nothing_is_assumed_the_body_is_believed_before_its_author():
    said = pl.CostEstimate(flops=7, bytes_accessed=7, transcendentals=0)
    assert row_of(lowered(partial(product, cost=said), *ARRAYS)).flops == 2 * M * K * N


def masked(mask, x, cost=None):
    """One product in each block that a table asks for."""

    def body(mask_ref, x_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref)

        @pl.when(mask_ref[pl.program_id(0), pl.program_id(1)] != 0)
        def _():
            o_ref[...] = jnp.dot(x_ref[...], x_ref[...].T, preferred_element_type=jnp.float32)

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=mask.shape,
        in_specs=[pl.BlockSpec((128, 128), lambda i, j, table: (i, 0))],
        out_specs=pl.BlockSpec((128, 128), lambda i, j, table: (i, j)),
    )
    out = jax.ShapeDtypeStruct((128 * mask.shape[0], 128 * mask.shape[1]), jnp.float32)
    return pl.pallas_call(body, grid_spec=grid, out_shape=out, cost_estimate=cost)(mask, x)


def test_blocks_that_a_table_leaves_out_are_those_of_a_causal_mask():
    arrays = ((4, 8), jnp.int32), ((512, 128), jnp.bfloat16)
    row = row_of(lowered(masked, *arrays))
    assert row.flops == (2 + 4 + 6 + 8) * 2 * 128**3
    assert "its mask taken as causal: 62% of its blocks" in row.note
    said = pl.CostEstimate(flops=5 * 2 * 128**3, bytes_accessed=1, transcendentals=0)
    bounded = row_of(lowered(partial(masked, cost=said), *arrays))
    assert bounded.flops == 5 * 2 * 128**3
    assert "no more flops than its cost estimate" in bounded.note


# What cannot be read.

CALL = """HloModule m, is_scheduled=true
ENTRY %e {
  %a = bf16[1024,1024]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %k = bf16[1024,1024]{1,0} custom-call(%a), custom_call_target="tpu_custom_call", backend_config=SAID
}
"""


@pytest.mark.parametrize("body", ["", "AAAA", "A", "TUzvUgFNTElSMjMuMC4wZ2l0AAE=", "A" * (5 << 20)])
def test_a_body_that_cannot_be_read_is_a_row_that_says_so(body):
    (row,) = estimate(load(CALL.replace("SAID", f'{{"custom_call_config":{{"body":"{body}"}}}}')), "tpu-v6e").rows
    assert row.unpriced.startswith("a custom call of tpu_custom_call: ")
    said = '"cost_estimate":{"bytes_accessed":"16","flops":"4294967296","transcendentals":"0"}'
    (row,) = estimate(
        load(CALL.replace("SAID", f'{{"custom_call_config":{{"body":"{body}",{said}}}}}')), "tpu-v6e"
    ).rows
    assert (row.unpriced, row.flops, row.bytes) == ("", 2**32, 2**22)  # its arrays pass, whatever its author says
    assert row.note == "kernel: from its cost estimate"


def test_damaged_texts_of_kernels_end_in_our_error(text):
    match = re.search(r'"body":"([^"]+)"', config_of(text))
    generic = ask(b"k", base64.b64decode(match[1]), 5).decode()
    assert kernel_of(generic).flops == 2 * M * K * N
    for at in range(0, len(generic), 211):
        for damaged in (generic[:at] + generic[at + 40 :], generic[:at] + "7" + generic[at:]):
            try:
                kernel_of(damaged)
            except (ValueError, IndexError, KeyError, OverflowError, TypeError):  # read_kernel makes one error of these
                continue
    with pytest.raises(UnsupportedError, match="does not carry"):
        read_kernel("{}")


# Attention over pages.

SEQUENCES, PAGES, PAGE, HEADS, KV_HEADS, DEPTH = 32, 128, 16, 32, 8, 128
CACHE = 2 * KV_HEADS * 4096 * PAGE * DEPTH * 2


@pytest.fixture(scope="module")
def paged():
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    cache = (KV_HEADS, 4096, PAGE, DEPTH), jnp.bfloat16
    tables = ((SEQUENCES,), jnp.int32), ((SEQUENCES, PAGES), jnp.int32)
    return lowered(
        partial(paged_attention, pages_per_compute_block=8),
        *(((SEQUENCES, HEADS, DEPTH), jnp.bfloat16), cache, cache),
        *tables,
    )


@pytest.mark.parametrize("length", [256, 1024, 2048])
def test_attention_over_pages_takes_what_its_lengths_say(paged, length):
    step = estimate(load(paged), "tpu-v6e", {"kv_len": length})
    (row,) = (row for row in step.rows if row.op == "custom_call")
    assert row.flops == 4 * SEQUENCES * HEADS * DEPTH * length
    streamed = 2 * SEQUENCES * length * KV_HEADS * DEPTH * 2
    assert streamed <= row.bytes <= min(streamed, CACHE) + 4 * SEQUENCES * HEADS * DEPTH * 8
    assert f"{SEQUENCES} sequences of {length:,} tokens in the cache as stated" in step.notes
    assert row.seconds >= streamed / target("tpu-v6e").memory("hbm").bytes_per_second


def test_lengths_that_nobody_states_are_assumed_and_named(paged):
    step = estimate(load(paged), "tpu-v6e")
    # the cache has room for just these sequences, so it is taken as full
    assert any("32 sequences of 2,048 tokens in the cache assumed: state kv_len" in note for note in step.notes)
    stated = estimate(load(paged), "tpu-v6e", {"kv_len": 2048})
    assert step.seconds == stated.seconds


@pytest.mark.parametrize("assume", [{"kv_length": 5}, {"kv_len": 0}, {"kv_len": float("nan")}])
def test_what_cannot_be_assumed_is_refused(paged, assume):
    with pytest.raises(UsageError, match="kv_len"):
        estimate(load(paged), "tpu-v6e", assume)


def test_loops_that_never_end_are_refused_in_time(monkeypatch):
    monkeypatch.setattr(kernels, "_MOST_WORK", 4000)
    loop = '"t.enqueue_dma"(%a) : (memref<8x128xf32, #tpu.memory_space<hbm>>) -> ()\n'.replace("t.", "tpu.", 1)
    for depth in range(12):
        loop = (
            '%l = "arith.constant"() {value = 0 : i32} : () -> i32\n'
            '%h = "arith.constant"() {value = 1000000 : i32} : () -> i32\n'
            '%s = "arith.constant"() {value = 3 : i32} : () -> i32\n'
            f'%r{depth} = "scf.for"(%l, %h, %s, %s) ({{\n^bb0(%i{depth}: i32, %x{depth}: i32):\n'
            f'%y{depth} = "arith.muli"(%x{depth}, %x{depth}) : (i32, i32) -> i32\n{loop}'
            f'"scf.yield"(%y{depth}) : (i32) -> ()\n}}) : (i32, i32, i32, i32) -> i32\n'
        )
    main = f'"func.func"() ({{\n^bb0(%g: i32, %a: memref<8x128xf32, #tpu.memory_space<hbm>>):\n{loop}'
    main += '}) {iteration_bounds = array<i64: 1099511627776>, sym_name = "main"} : () -> ()\n'
    with pytest.raises(ValueError, match="too long to follow"):
        kernel_of(f'"builtin.module"() ({{\n{main}}}) : () -> ()\n')
