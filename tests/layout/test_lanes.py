"""The lane family: tensors, matrices, weights and int4 over an NPU's local memories."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layout.oracle import all_indices, lane_matrix_address, lane_weights_address
from tests.layout.strategies import lane_layouts, lane_matrices, weight_layouts
from tilewright.errors import UsageError
from tilewright.layout import global_memory, lane_matrix, lane_matrix2, lane_weights, lanes, tiled
from tilewright.targets import LaneMemory


@given(lane_matrices())
def test_matrices_follow_the_formula(layout):
    rows, columns = layout.shape
    memory = (layout.lane_count, layout.start, layout.eu_bytes)
    for row, column in all_indices(layout.shape):
        if layout.mode == "matrix":
            expected = lane_matrix_address((row, column), columns, layout.tensor[3], *memory)
        else:  # (1, rows, 1, columns): one column block per row
            expected = lane_matrix_address((0, row * columns + column), rows * columns, columns, *memory)
        assert tuple(layout.address(row, column).values()) == expected


@given(weight_layouts())
def test_weights_follow_the_formula(layout):
    for index in all_indices(layout.shape):
        expected = lane_weights_address(index, layout.shape, layout.lane_count, layout.tensor[3])
        assert tuple(layout.address(*index).values()) == expected


@given(lane_layouts() | lane_matrices() | weight_layouts())
def test_every_lane_layout_has_digits_and_whole_rows(layout):
    assert layout.digits is not None
    offsets = [layout.address(*index)["offset"] for index in all_indices(layout.shape)]
    extent = layout.axis_terms[1].extent
    assert extent * layout.element_bits == layout.bytes_per_npu * 8
    assert layout.num_slots == extent * layout.lane_count
    if layout.mode == "free":
        rows = -(-(layout.start + layout.shape[1]) // layout.lane_count)
        reach = sum(
            (n - 1) * s for n, s in zip((layout.shape[0], rows, *layout.shape[2:]), layout.strides, strict=True)
        )
        assert max(offsets) <= extent - 1 == reach
    else:
        rows = -(-(layout.start + layout.tensor[1]) // layout.lane_count)
        assert max(offsets) < extent == (layout.tensor[0] - 1) * layout.strides[0] + rows * layout.strides[1]


def test_int4_packs_two_to_a_byte_low_nibble_first():
    compact = lanes((2, 3, 1, 5), "s4", lanes=2, eu_bytes=4, mode="compact")
    assert compact.element_bits == 4
    assert compact.strides == (10, 5, 5, 1)  # 5 nibbles to a channel, not rounded to bytes
    aligned = lanes((2, 3, 1, 5), "s4", lanes=2, eu_bytes=4)
    assert aligned.strides == (16, 8, 5, 1)  # eight nibbles are 4 bytes
    values = np.arange(30).reshape(2, 3, 1, 5) % 16 - 8
    values = values.astype(compact.numpy_dtype)
    for layout in (compact, aligned):
        buffer = layout.pack(values).reshape(2, layout.bytes_per_npu)
        for n, c, h, w in all_indices(layout.shape):
            npu, offset = layout.address(n, c, h, w).values()
            byte = int(buffer[npu, offset // 2])
            nibble = byte >> 4 if offset % 2 else byte & 15
            assert nibble == int(values[n, c, h, w]) % 16
        assert np.array_equal(layout.unpack(buffer.reshape(-1)), values)


def test_an_odd_number_of_nibbles_ends_on_a_byte():
    layout = lanes((1, 2, 1, 3), "u4", lanes=2, eu_bytes=4, mode="compact")
    assert layout.bytes_per_npu == 2
    values = np.array([1, 2, 3, 4, 5, 6]).reshape(1, 2, 1, 3).astype(layout.numpy_dtype)
    assert layout.pack(values).tolist() == [0x21, 0x03, 0x54, 0x06]


def test_int4_weights_have_twice_the_channels_side_by_side():
    weights = {d: lane_weights((1, 1, 1, 1), d, "bm1684x").tensor[3] for d in ("s4", "u8", "bf16", "f32")}
    assert weights == {"s4": 128, "u8": 64, "bf16": 32, "f32": 1}


@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 1))
def test_cv180x_leaves_the_start_out_of_the_n_stride(batch, channels, start):
    layout = lanes((batch, channels, 3, 5), "s8", "cv180x", start=start)
    assert layout.strides[1] == 16
    assert layout.strides[0] == -(-channels // 2) * 16
    assert layout.injective
    places = [tuple(layout.address(*index).values()) for index in all_indices(layout.shape)]
    assert len(set(places)) == len(places)
    assert [layout.index(*place) for place in places] == list(all_indices(layout.shape))
    with_start = lanes((batch, channels, 3, 5), "s8", "cv180x", start=start, n_stride="with_start")
    assert with_start.strides[0] == -(-(start + channels) // 2) * 16


def test_two_channels_more_than_npus():
    """Lines 20 to 22 and 34 of the text: one to each NPU, two from the first again; a batch begins at its start NPU."""
    layout = lanes((2, 66, 7, 7), "f16", lanes=64, eu_bytes=64)
    for batch in range(2):
        assert [layout.address(batch, c, 0, 0)["npu"] for c in range(66)] == [*range(64), 0, 1]
    small = lanes((2, 3, 4, 5), "f16", lanes=4, eu_bytes=64, start=2)
    assert [small.address(0, c, 0, 0)["npu"] for c in range(3)] == [2, 3, 0]
    assert small.address(1, 0, 0, 0) == {"npu": 2, "offset": 64}  # two rows of 32 elements


@pytest.mark.parametrize(("mode", "unit"), [("aligned", 64), ("row_aligned", 64), ("compact", 2), ((9, 9, 3, 1), 2)])
def test_a_base_address(mode, unit):
    """Line 26 of the text: an aligned tensor's start address is divisible by EU_BYTE."""
    layout = lanes((1, 5, 3, 3), "f16", lanes=4, eu_bytes=64, mode=mode)
    assert layout.base_unit == unit
    for index in all_indices(layout.shape):
        place = layout.address(*index)
        found = layout.byte_address(*index, base=3 * unit)
        assert found == {"npu": place["npu"], "byte": 3 * unit + 2 * place["offset"]}
    for base in (unit - 1, -unit):
        with pytest.raises(UsageError, match="cannot begin at byte"):
            layout.byte_address(0, 0, 0, 0, base=base)


def test_strides_in_bytes():
    assert lanes((2, 3, 4, 5), "bf16", "cv180x").byte_strides == (96, 48, 10, 2)
    with pytest.raises(UsageError, match="whole bytes"):
        _ = lanes((2, 3, 4, 5), "s4", "bm1684x").byte_strides


def test_global_memory_is_one_row_major_array():
    assert global_memory((2, 2, 3, 2), "f32") == tiled((2, 2, 3, 2), "f32")
    assert [global_memory((2, 2, 3, 2), "f32").offset(*i) for i in np.eye(4, dtype=int).tolist()] == [12, 6, 2, 1]


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0)])
@pytest.mark.parametrize("mode", ["aligned", "compact", "row_aligned", (0, 0, 0, 0)])
def test_empty_tensors(shape, mode):
    layout = lanes(shape, "f16", lanes=2, eu_bytes=16, start=1, mode=mode)
    assert (layout.size_bytes, layout.injective, layout.padding_ratio) == (0, True, 1.0)
    assert layout.pack(np.zeros(shape, np.float16)).size == 0
    assert lane_weights(shape, "s8", "bm1684x").size_bytes == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lanes((1, 2, 3), "f16", "bm1684x"), "four sizes"),
        (lambda: lanes((1, 2, 3, 4), "f16"), "needs chip="),
        (lambda: lanes((1, 2, 3, 4), "f16", "tpu-v4"), "no lane memories"),
        (lambda: lanes((1, 2, 3, 4), "f16", "bm1684x", start=64), "outside 0..63"),
        (lambda: lanes((1, 2, 3, 4), "f16", "bm1684x", mode="diagonal"), "no lane mode"),
        (lambda: lanes((1, 2, 3, 4), "f16", "bm1684x", mode=(1, 2, 3)), "four whole numbers"),
        (lambda: lanes((1, 2, 3, 4), "f16", "bm1684x", n_stride="maybe"), "no rule"),
        (lambda: lanes((1, 2, 3, 4), "f32", lanes=2, eu_bytes=2), "not a multiple"),
        (lambda: lane_matrix(4, 4, "s8", "bm1684x", columns_per_npu=0), "below 1"),
        (lambda: lane_matrix2(-1, 4, "s8", "bm1684x"), "sizes from 0 up"),
        (lambda: lane_weights((1, 2, 3), "s8", "bm1684x"), "four sizes"),
        (lambda: lane_weights((1, 2, 3, 4), "s8", "bm1684"), "no IC_PARALLEL"),
        (lambda: lane_weights((1, 2, 3, 4), "c128", "bm1684x"), "128 bits"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_a_memory_of_ones_own():
    own = LaneMemory(npu_num=4, eu_bytes=64, local_bytes=4096, banks=4)
    assert lanes((2, 3, 4, 5), "f16", own).strides == lanes((2, 3, 4, 5), "f16", lanes=4, eu_bytes=64).strides
