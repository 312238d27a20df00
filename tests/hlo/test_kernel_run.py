"""Kernels run block by block: values as Pallas' interpreter has them, and every planted fault found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tests.conftest import by_night
from tilewright.hlo.pallas.run import run_kernels

SHAPES = ((128, "product"), (256, "product"), (128, "sum"), (256, "sum"), (384, "sum"))
BY_NIGHT = [pytest.param(name, marks=pytest.mark.nightly) for name in ("skipped", "outside", "beyond", "order")]
FAULTS = ["place", "started", "race", "edge", *BY_NIGHT]
KINDS = {
    "place": {"unwritten output"},
    "skipped": {"unwritten output"},
    "started": {"unwritten read"},
    "race": {"race"},
    "edge": {"padding"},
    "outside": {"out of window"},
    "beyond": {"out of array"},
    "order": {"unwritten read", "revisited output"},
}


def kernel(m, n, k, rows, columns, depth, op, dtype, fault="", parallel=True):
    """A tiled product or a sum of tiles, [m, k] with [k, n], in blocks, with one fault or none; and its arguments."""
    grid = m, n, k
    order = (2, 0, 1) if fault == "order" else (0, 1, 2)  # the depth outermost: blocks of results come back
    where = {axis: place for place, axis in enumerate(order)}

    def at(*axes):
        return lambda *ids: tuple(ids[where[axis]] for axis in axes)

    def body(a, b, o, acc):
        step, last = pl.program_id(where[2]), k - 1
        if fault == "order":
            o[...] += jnp.dot(a[...], b[...], preferred_element_type=jnp.float32).astype(o.dtype)
            return

        if fault != "started":

            @pl.when(step == 0)
            def _():
                acc[...] = jnp.zeros_like(acc)

        if op == "product":
            acc[...] += jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)
        else:
            acc[...] += jnp.sum(a[...].astype(jnp.float32), axis=1, keepdims=True)
            acc[...] = jnp.maximum(acc[...], jnp.max(b[...].astype(jnp.float32), axis=0)[None])
        if fault == "outside":
            acc[pl.ds(pl.program_id(0) + 1, rows), :] = acc[...]

        @pl.when((step == last) & (pl.program_id(0) > 0 if fault == "skipped" else True))
        def _():
            o[...] = acc[...].astype(o.dtype)

    result = at(0, 1)
    if fault == "place":
        result = lambda *ids: (ids[0], 0)  # noqa: E731
    if fault == "beyond":
        result = lambda *ids: (ids[0] + 1, ids[1])  # noqa: E731
    short = depth // 2 if fault == "edge" else 0
    words = ["parallel" if parallel else "arbitrary"] * 2 + ["parallel" if fault == "race" else "arbitrary"]
    call = pl.pallas_call(
        body,
        grid=tuple(grid[axis] for axis in order),
        in_specs=[pl.BlockSpec((rows, depth), at(0, 2)), pl.BlockSpec((depth, columns), at(2, 1))],
        out_specs=pl.BlockSpec((rows, columns), result),
        out_shape=jax.ShapeDtypeStruct((m * rows, n * columns), dtype),
        scratch_shapes=[pltpu.VMEM((rows, columns), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=["arbitrary"] * 3 if fault == "order" else words,
        ),
    )
    random = np.random.default_rng(m + 10 * n + 100 * k)
    return call, [
        random.integers(-4, 5, (m * rows, k * depth - short)).astype(dtype),
        random.integers(-4, 5, (k * depth - short, n * columns)).astype(dtype),
    ]


def cases(least):
    small = st.integers(least, 2)
    sizes = st.tuples(small, small, small, st.sampled_from((8, 16)), st.sampled_from((128, 256)), st.just(128))
    return st.tuples(sizes, st.sampled_from(("product", "sum")), st.sampled_from((jnp.float32, jnp.bfloat16)))


@settings(max_examples=350 if by_night() else 2)  # 150 more in test_kernel_copies.py
@given(cases(1), st.booleans())
def test_values_are_the_interpreters(case, parallel):
    sizes, op, dtype = case
    call, arrays = kernel(*sizes, op, dtype, parallel=parallel)
    run = run_kernels(call, *arrays)
    assert run.difference == 0
    assert not run.faults


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault):
    for columns, op in SHAPES if by_night() else SHAPES[:1]:
        call, arrays = kernel(2, 2, 2, 8, columns, 128, op, jnp.float32, fault)
        assert KINDS[fault] <= {found.kind for found in run_kernels(call, *arrays).faults}


def row_sums(rows, columns, blocks, fault=""):
    """Sums along rows that are added up in the result itself, block by block; and their array."""

    def body(x, o):
        step = pl.program_id(1)

        if fault != "started":

            @pl.when(step == 0)
            def _():
                o[...] = jnp.zeros_like(o)

        o[...] += jnp.sum(x[...], axis=1, keepdims=True)

    short = columns // 2 if fault == "edge" else 0
    place = (lambda i, j: (0, 0)) if fault == "place" else (lambda i, j: (i, 0))
    words = ["arbitrary", "parallel" if fault == "race" else "arbitrary"]
    call = pl.pallas_call(
        body,
        grid=(2, blocks),
        in_specs=[pl.BlockSpec((rows, columns), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows, 1), place),
        out_shape=jax.ShapeDtypeStruct((2 * rows, 1), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=words),
    )
    return call, [np.ones((2 * rows, blocks * columns - short), np.float32)]


def picked_rows(rows, columns, blocks, fault=""):
    """Blocks of rows that a table names, each to its place; the table and the array."""

    def body(table, x, o):
        if fault == "skipped":

            @pl.when(pl.program_id(0) > 0)
            def _():
                o[...] = x[...] * 2

        else:
            o[...] = x[...] * 2

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(blocks,),
        in_specs=[pl.BlockSpec((rows, columns), lambda i, table: (table[i], 0))],
        out_specs=pl.BlockSpec((rows, columns), lambda i, table: (i // 2 if fault == "place" else i, 0)),
    )
    table = np.arange(blocks, dtype=np.int32)[::-1] + (fault == "beyond")
    array = np.ones((blocks * rows, columns), np.float32)
    out = jax.ShapeDtypeStruct(array.shape, array.dtype)
    return pl.pallas_call(body, grid_spec=spec, out_shape=out), [table, array]


@pytest.mark.parametrize(
    "sizes", [(8, 128, 2), (16, 128, 3), (8, 256, 4), (16, 256, 2)] if by_night() else [(8, 128, 2)]
)
@pytest.mark.parametrize(
    ("family", "fault"),
    [(row_sums, fault) for fault in (("", "started", "place", "race", "edge") if by_night() else ("started", "edge"))]
    + [(picked_rows, fault) for fault in (("", "skipped", "place", "beyond") if by_night() else ("beyond",))],
)
def test_planted_faults_of_sums_in_the_result_and_of_tables_are_found(family, fault, sizes):
    call, arrays = family(*sizes, fault)
    found = {each.kind for each in run_kernels(call, *arrays).faults}
    assert KINDS[fault] <= found if fault else not found


def test_loops_and_scopes_are_followed():
    def body(x, o):
        def scoped(kept):
            kept[...] = x[...] * 2
            o[...] = jax.lax.fori_loop(0, 3, lambda k, sums: sums + kept[pl.ds(k, 1), :] * k, jnp.zeros((1, 128)))

        pl.run_scoped(scoped, pltpu.VMEM((8, 128), jnp.float32))

    x = np.arange(1024, dtype=np.float32).reshape(8, 128)
    (result,) = run_kernels(pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((1, 128), jnp.float32)), x).results
    np.testing.assert_allclose(result, 2 * x[1:2] + 4 * x[2:3])


def test_padding_that_is_multiplied_by_nought_is_found():
    """What lies beyond an edge may be no number, and nought times that is none."""

    def body(x, o):
        inside = jax.lax.broadcasted_iota(jnp.int32, (8, 128), 1) + 128 * pl.program_id(0) < 200
        o[...] = x[...] * inside if multiplied else jnp.where(inside, x[...], 0)

    block = pl.BlockSpec((8, 128), lambda i: (0, i))
    out = jax.ShapeDtypeStruct((8, 256), jnp.float32)
    for multiplied in (True, False):
        call = pl.pallas_call(body, grid=(2,), in_specs=[block], out_specs=block, out_shape=out)
        faults = run_kernels(call, np.ones((8, 200), np.float32)).faults
        assert [fault.kind for fault in faults] == ["padding"] * multiplied
        assert all("test_kernel_run.py:" in fault.line for fault in faults)


def test_windows_by_element_overlap_and_results_that_nobody_uses_may_be_raced():
    def body(x, o, last):
        o[...] = x[...] * 2
        last[...] = x[...]

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    call = pl.pallas_call(
        body,
        grid=(3,),
        in_specs=[pl.BlockSpec((pl.Element(8), 128), lambda i: (4 * i, 0))],
        out_specs=[block, pl.BlockSpec((8, 128), lambda i: (0, 0))],
        out_shape=[jax.ShapeDtypeStruct((24, 128), jnp.float32), jax.ShapeDtypeStruct((8, 128), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=["parallel"]),
    )
    x = np.arange(2048, dtype=np.float32).reshape(16, 128)
    run = run_kernels(lambda x: call(x)[0], x)
    assert not run.faults
    np.testing.assert_array_equal(run.results[0], np.concatenate([x[at : at + 8] for at in (0, 4, 8)]) * 2)
    assert {fault.kind for fault in run_kernels(call, x).faults} == {"race"}


@pytest.mark.parametrize("aliased", [False, True])
def test_blocks_that_come_back_and_blocks_that_no_step_sees_are_told(aliased):
    """The grid's first dim changes nothing: blocks of the result go out and come back; two blocks are unread."""

    def body(x, kept, o):
        o[...] = x[...] + kept[...] * 0

    block = pl.BlockSpec((8, 128), lambda turn, i: (i, 0))
    out = jax.ShapeDtypeStruct((16, 128), jnp.float32)
    aliases = {1: 0} if aliased else {}
    call = pl.pallas_call(
        *(body, out), grid=(2, 2), in_specs=[block, block], out_specs=block, input_output_aliases=aliases
    )
    run = run_kernels(call, np.ones((32, 128), np.float32), np.ones((16, 128), np.float32))
    assert {fault.kind for fault in run.faults} == (set() if aliased else {"revisited output"})
    assert run.notes == ("2 blocks of x of body are in no step",)
