"""The fourteen tests of the specification (its section 14), by number, and what only all parts together can show.

 1  every example string parses and round-trips             test_assembler: canonical_text
 2  random products equal numpy modulo 2^32                 test_matmul: random_products_and_counts,
                                                            pages_and_lines_of_b_change_traffic_only; test_spread:
                                                            several_elements_make_one_product; here: everything_at_once
 3  counts equal the closed forms                           test_matmul: random_products_and_counts,
                                                            worked_numbers_of_256_threads, worked_numbers_of_64_threads
 4  columns that are off: old registers, no traffic         test_mm: integers; test_traffic:
                                                            columns_that_are_off_cause_no_traffic
 5  300 columns                                             test_matmul: 300_columns_leave_44_errors_and_256_columns,
                                                            a_survives_the_300_columns
 6  NaN and Inf in A beyond K                               test_mm: nothing_leaks_from_a_beyond_the_depth
 7  a pending load of A blocks the queue                    test_machine: a_pending_load_of_a_blocks_the_queue
 8  absent: fault; loading: stall; moved out: entry gone    test_machine: dma_states_faults_and_waiting,
                                                            pages_moved_out_write_back_and_fault
 9  the address map is injective and the layout's           test_machine: segment_tables_are_the_layouts_addresses,
                                                            figure_4_has_four_pages
10  double buffering is never slower                        test_spread:
                                                            double_buffering_is_never_slower_and_equal_with_one_segment;
                                                            here: double_buffering_of_anything
11  t1 with lines of 4: 4 fetches, 16 when discarded        test_traffic: four_by_four_with_lines_of_four
12  tensors of more dims equal einsum                       test_kernels: contract_is_einsum
13  a better memory is never slower                         test_matmul: a_better_memory_is_never_slower; here:
                                                            more_of_anything_is_never_slower
14  results do not depend on time                           test_matmul: time_does_not_touch_results
"""

from __future__ import annotations

import importlib
import re

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.isa import MatrixUnitConfig, expected_counts, matmul

few = settings(max_examples=tries(10))
sizes = st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))


def test_every_number_has_its_tests():
    rows = re.findall(r"^ ?(\d+) {2}.*?(?=^ ?\d+ {2}|\Z)", __doc__, re.MULTILINE | re.DOTALL)
    assert rows == [str(number) for number in range(1, 15)]
    named = 0
    for place, names in re.findall(r"(test_\w+|here):((?:\s+\w+,)*\s+\w+)", __doc__):
        module = importlib.import_module(f"tests.isa.{'test_acceptance' if place == 'here' else place}")
        for name in re.findall(r"\w+", names):
            assert callable(getattr(module, f"test_{name}")), (place, name)
            named += 1
    assert named >= 22


def values(rng, shape, dtype):
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, shape, dtype=np.int64).astype(dtype)
    return rng.normal(size=shape).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def documented(a, b, chunk, depth):
    """Float products in the documented order: chunks of k ascending, the chunks of a group, then the register."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    sums = np.zeros((len(a), b.shape[1]), np.float32)
    for begin in range(0, a.shape[1], depth):
        parts, end = [], min(begin + depth, a.shape[1])
        for first in range(begin, end, chunk):
            part = None
            for k in range(first, min(first + chunk, end)):
                product = a[:, k, None] * b[None, k]
                part = product if part is None else part + product
            parts.append(part)
        dot = parts[0]
        for part in parts[1:]:
            dot = dot + part
        sums = sums + dot
    return sums


@few
@given(st.integers(0, 2**32), sizes, st.data())
def test_everything_at_once(seed, mnk, data):
    """Types, tails, ka, kb, t, orders, pages, lines, several elements, segments: all drawn for every product."""
    m, n, k = mnk
    rng = np.random.default_rng(seed)
    dtype = data.draw(st.sampled_from(["int8", "uint8", "int16", "int32", "uint32", "float16", "bfloat16", "float32"]))
    a, b = values(rng, (m, k), dtype), values(rng, (k, n), dtype)
    how = {name: data.draw(st.sampled_from([1, 2, 3])) for name in ("ka", "kb")}
    how |= {"transpose_b": data.draw(st.booleans()), "order": data.draw(st.sampled_from(["k_outer", "column_outer"]))}
    per_line = 32 // a.itemsize
    tall = data.draw(st.sampled_from([each for each in (1, 2, 4, 8) if per_line % each == 0]))
    line = (tall, per_line // tall)
    page = data.draw(st.sampled_from([None, tuple(2 * each for each in line)]))
    pes, segments = data.draw(st.sampled_from([(1, None), (3, None), (2, 2)]))
    mode = data.draw(st.sampled_from(["split", "chunk"]))
    config = MatrixUnitConfig(threads=24, pes=pes, line_bytes=32, l1_bytes=256, kb_mode=mode)
    split = "columns" if segments else data.draw(st.sampled_from(["rows", "columns"]))
    spread = {"split": split, "segments": segments} if pes > 1 else {}
    result = matmul(a, b, config, line=line, page=page, **how, **spread)
    assert result.errors == ()
    if a.dtype.kind in "iu":
        exact = a.astype(np.int64) @ b.astype(np.int64)
        assert (result.value == exact.astype(np.uint64).astype(np.uint32).view(np.int32)).all()
    else:
        assert (
            result.value == documented(a, b, *(f(a.itemsize, how["kb"]) for f in (config.chunk, config.depth)))
        ).all()
    if pes == 1:
        closed = expected_counts(m, n, k, config, a.itemsize, **how)
        for name in ("macs", "instructions", "steps", "broadcast_elements", "a_bytes_loaded", "column_loads"):
            assert getattr(result.counts, name) == getattr(closed, name)


@few
@given(
    st.integers(1, 12),
    st.tuples(st.integers(1, 30), st.integers(1, 80), st.integers(1, 40)),
    st.sampled_from([1, 8, 64]),
    st.sampled_from([1, 400]),
    st.booleans(),
)
def test_double_buffering_of_anything(segments, mnk, bandwidth, latency, transpose_b):
    m, n, k = mnk
    a, b = np.ones((m, k), np.int8), np.ones((k, n), np.int8)
    config = MatrixUnitConfig(threads=16, dram_bytes_per_cycle=bandwidth, dma_latency=latency)
    how = {"segments": segments, "transpose_b": transpose_b}
    double, serial = (matmul(a, b, config, double_buffer=each, **how) for each in (True, False))
    assert double.buffering == "double"
    assert double.dma_bytes == serial.dma_bytes
    if min(segments, n) == 1:
        assert double.cycles == serial.cycles
    else:
        # What starts the next transfer issues before the work and not after it: a cycle or two a segment, which shows
        # only where a transfer is as good as free.
        assert double.cycles <= serial.cycles + (2 * segments if latency == 1 else 0)


@few
@given(
    sizes,
    st.sampled_from(["l1_ports", "l2_bytes_per_cycle", "dram_bytes_per_cycle", "l1_bytes", "l2_bytes"]),
    st.integers(0, 3),
    st.fixed_dictionaries(
        {
            "ka": st.integers(1, 2),
            "kb": st.integers(1, 2),
            "transpose_b": st.booleans(),
            "order": st.sampled_from(["k_outer", "column_outer"]),
        }
    ),
)
def test_more_of_anything_is_never_slower(mnk, name, step, how):
    m, n, k = mnk
    a, b = np.ones((m, k), np.int8), np.ones((k, n), np.int8)
    low = {"l1_ports": 1, "l2_bytes_per_cycle": 4, "dram_bytes_per_cycle": 2, "l1_bytes": 128, "l2_bytes": 512}[name]
    base = {"threads": 16, "l1_bytes": 512, "l2_bytes": 2048}
    less, more = (MatrixUnitConfig(**base | {name: low << each}) for each in (step, step + 1))
    assert matmul(a, b, more, **how).cycles <= matmul(a, b, less, **how).cycles
