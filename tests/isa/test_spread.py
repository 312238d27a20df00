"""matmul over several processing elements, and with B brought in by segments."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa import Counts, Machine, MatrixUnitConfig, Part, assemble, expected_counts, matmul

NAMES = ("instructions", "macs", "steps", "broadcast_elements", "a_bytes_loaded", "l1_touches", "kb_transfers")
orders = st.sampled_from(["k_outer", "k_outer", "column_outer"])
quick = settings(max_examples=tries(10))


def integers(rng, shape):
    return rng.integers(-128, 128, shape).astype(np.int8)


def together(parts):
    return Counts(**{f.name: sum(getattr(p, f.name) for p in parts) for f in fields(Counts)})


@quick
@given(
    st.integers(0, 2**32),
    st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    st.integers(2, 4),
    st.sampled_from(["rows", "columns", None]),
    st.booleans(),
    st.fixed_dictionaries({"ka": st.integers(1, 2), "kb": st.integers(1, 2), "order": orders}),
)
def test_several_elements_make_one_product(seed, mnk, pes, split, transpose_b, how):
    m, n, k = mnk
    rng = np.random.default_rng(seed)
    a, b = integers(rng, (m, k)), integers(rng, (k, n))
    config = MatrixUnitConfig(threads=16, pes=pes)
    result = matmul(a, b, config=config, split=split, transpose_b=transpose_b, **how)
    assert (result.value == a.astype(int) @ b.astype(int)).all()
    assert result.cycles == max(run.cycles for run in result.pes)
    if split:
        ends = [(m if split == "rows" else n) * pe // pes for pe in range(pes + 1)]
        sizes = [last - first for first, last in pairwise(ends) if last > first]
        parts = [(size, n) if split == "rows" else (m, size) for size in sizes]
        one = replace(config, pes=1)
        expected = together([expected_counts(*p, k, config=one, transpose_b=transpose_b, **how) for p in parts])
        for name in NAMES:
            assert getattr(result.counts, name) == getattr(expected, name), name


DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32")


@settings(max_examples=tries(15))
@given(
    st.integers(0, 2**32),
    st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    st.sampled_from(DTYPES),
    st.fixed_dictionaries(
        {
            "threads": st.sampled_from([16, 33]),
            "pes": st.integers(1, 5),
            "line_bytes": st.sampled_from([16, 64]),
            "a_bytes": st.sampled_from([8, 16]),
            "ka_split": st.sampled_from(["blocked", "interleaved"]),
            "group_order": st.sampled_from(["consecutive", "strided"]),
        }
    ),
    st.fixed_dictionaries(
        {
            "ka": st.integers(1, 3),
            "kb": st.integers(1, 3),
            "order": orders,
            "transpose_b": st.booleans(),
            "columns": st.sampled_from([None, 3, 16]),
        }
    ),
    st.sampled_from([None, "rows", "columns"]),
    st.one_of(st.none(), st.integers(1, 4)),
    st.data(),
)
def test_how_it_is_divided_and_stored_changes_no_value(seed, mnk, dtype, machine, how, split, segments, data):
    """Several elements, segments, lines and pages give the bits of one element; closed forms count all of them."""
    m, n, k = mnk
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    rng, config = np.random.default_rng(seed), MatrixUnitConfig(**machine)
    a, b = (some(rng, shape, dtype) for shape in ((m, k), (k, n)))
    per_line = config.line_bytes // dtype.itemsize
    tall = data.draw(st.sampled_from([each for each in (1, 2, 4, 16) if per_line % each == 0]))
    line = (tall, per_line // tall)
    page = tuple(each * data.draw(st.integers(1, 3)) for each in line)
    segments = None if split == "rows" and config.pes > 1 else segments
    result = matmul(a, b, config, line=line, page=page, split=split, segments=segments, **how)
    assert result.errors == ()
    if dtype.kind in "iu":
        assert (result.value.view(np.uint32) == (a.astype(np.int64) @ b.astype(np.int64)).astype(np.uint32)).all()
    assert result.value.tobytes() == matmul(a, b, replace(config, pes=1), **how).value.tobytes()
    expected = expected_counts(m, n, k, config, dtype.itemsize, line=line, split=split, segments=segments, **how)
    assert result.counts == expected  # nothing leaves caches as large as these
    if result.pes:
        assert result.counts == together([run.counts for run in result.pes])


def some(rng, shape, dtype):
    if dtype.kind not in "iu":
        return rng.normal(size=shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape, dtype=np.int64).astype(dtype)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"split": "diagonals"}, "rows or columns"),
        ({"line": (3, 5)}, "64 elements"),
        ({"line": 64}, "line"),
        ({"segments": 0}, "segments"),
        ({"split": "rows", "segments": 2}, "shared"),
    ],
)
def test_closed_forms_refuse_what_matmul_refuses(how, reason):
    a = np.ones((8, 8), np.int8)
    config = MatrixUnitConfig(threads=16, pes=2)
    with pytest.raises((UsageError, UnsupportedError), match=reason):
        expected_counts(8, 8, 8, config, **how)
    with pytest.raises((UsageError, UnsupportedError)):
        matmul(a, a, config, **how)


@quick
@given(
    st.integers(0, 2**32),
    st.tuples(st.integers(1, 20), st.integers(1, 60), st.integers(1, 40)),
    st.integers(1, 5),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
)
def test_segments_of_b_by_dma(seed, mnk, segments, pes, transpose_b, double):
    m, n, k = mnk
    rng = np.random.default_rng(seed)
    a, b = integers(rng, (m, k)), integers(rng, (k, n))
    config = MatrixUnitConfig(threads=16, pes=pes, l2_bytes=1 << 16)
    result = matmul(a, b, config=config, segments=segments, transpose_b=transpose_b, double_buffer=double)
    assert result.errors == ()
    assert (result.value == a.astype(int) @ b.astype(int)).all()
    assert result.counts.l2_misses == 0
    assert result.buffering == ("double" if double else "serial")
    assert result.dma_bytes % 64 == 0
    assert result.dma_bytes >= n * k
    chip = result.pes[0].state.chip
    assert chip.l2_pages == {}
    assert result.dma_bytes == sum(s.total_bytes for name, s in chip.storages.items() if name.startswith("B"))


def test_double_buffering_is_never_slower_and_equal_with_one_segment():
    rng = np.random.default_rng(1)
    a, b = integers(rng, (64, 64)), integers(rng, (64, 256))
    config = MatrixUnitConfig(threads=64, l2_bytes=1 << 15)
    times = {}
    for segments in (1, 4):
        for double in (False, True):
            result = matmul(a, b, config=config, segments=segments, double_buffer=double)
            times[segments, double] = result.cycles
    assert times[1, False] == times[1, True]
    assert times[4, True] < times[4, False]
    # Two segments must fit in L2 at once, or it is serial after all, and says so.
    small = MatrixUnitConfig(threads=64, l2_bytes=1 << 13)
    assert matmul(a, b, config=small, segments=3).buffering == "serial"


def test_tensors_larger_than_l2_need_segments():
    rng = np.random.default_rng(2)
    a, b = integers(rng, (16, 128)), integers(rng, (128, 512))
    config = MatrixUnitConfig(threads=16, l2_bytes=1 << 15)
    result = matmul(a, b, config=config, segments=8)
    assert (result.value == a.astype(int) @ b.astype(int)).all()
    with pytest.raises(UsageError, match="take 65536 bytes of L2 at once, which has room for 0 in pages of 65536"):
        matmul(a, b, config=config, segments=1)


@settings(max_examples=tries(15))
@given(
    st.integers(0, 2**32),
    st.tuples(st.integers(1, 20), st.integers(1, 40), st.integers(1, 40)),
    st.integers(1, 6),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([512, 1024, 2048, 8192]),
    st.sampled_from([None, (2, 64), (4, 128)]),
)
def test_segments_fit_in_l2_or_are_refused(seed, mnk, segments, pes, transpose_b, l2_bytes, page):
    """Rows are padded to lines, and segments need not be of one width: room is what pages take, holes included."""
    m, n, k = mnk
    rng = np.random.default_rng(seed)
    a, b = integers(rng, (m, k)), integers(rng, (k, n))
    config = MatrixUnitConfig(threads=16, pes=pes, l2_bytes=l2_bytes)
    try:
        result = matmul(a, b, config=config, segments=segments, transpose_b=transpose_b, page=page)
    except UsageError as error:
        assert "of L2 at once" in str(error)
        return
    assert result.errors == ()
    assert (result.value == a.astype(int) @ b.astype(int)).all()


def test_what_does_not_go_together():
    a = np.ones((4, 4), np.int8)
    config = MatrixUnitConfig(threads=16, pes=2)
    with pytest.raises(UsageError, match="rows or columns"):
        matmul(a, a, config=config, split="diagonals")
    with pytest.raises(UnsupportedError, match="do not wait"):
        matmul(a, a, config=config, split="rows", segments=2)
    with pytest.raises(UsageError, match="segments"):
        matmul(a, a, segments=0)


@pytest.mark.parametrize("segments", [None, 2])
def test_every_elements_program_can_be_saved_and_run_again(segments):
    rng = np.random.default_rng(3)
    a, b = integers(rng, (20, 24)), integers(rng, (24, 30))
    config = MatrixUnitConfig(threads=16, pes=2)
    result = matmul(a, b, config=config, split="columns", segments=segments)
    machine = Machine(config)
    machine.system |= {"A": a, "B": np.ascontiguousarray(b.T), "C": np.zeros((20, 30), np.int32)}
    machine.page_table("A", mapped=True)
    machine.page_table("C", mapped=True)
    for pe, program in enumerate(result.programs):
        first, windows = 15 * pe, {"A": Part((0, 0), (20, 24)), "C": Part((0, 15 * pe), (20, 15))}
        for s, width in enumerate((7, 8) if segments else (15,)):
            name = f"B{s}" if segments else "B"
            part = Part((first, 0), (width, 24))
            machine.page_table(f"{name}_{pe}", tensor="B", part=part, mapped=not segments)
            windows[name] = (f"{name}_{pe}", Part((0, 0), part.size))
            first += width
        machine.start(assemble(str(program), config), pe, segments=windows)
    runs = machine.run()
    assert (machine.tensor("C") == result.value).all()
    assert [run.counts for run in runs] == [run.counts for run in result.pes]
