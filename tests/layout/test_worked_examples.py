"""Every worked example of the two documents on tiled layouts and on NPU memories, one assertion each."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import ParseError
from tilewright.layout import (
    global_memory,
    is_bitcast,
    lane_matrix,
    lane_matrix2,
    lane_weights,
    lanes,
    paged,
    parse,
    predict,
    preset,
    tiled,
)
from tilewright.layout.kinds.tiled import parse_prefix


def table(layout):
    """Offsets of all elements."""
    return layout.offsets(np.stack(np.indices(layout.shape), -1)).tolist()


# -- the text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("f32[16,256]{1,0:T(8,128)(2,1)S(1)}", None),
        ("f32[16,256] { 1 , 0 : T( 8 , 128 ) ( 2 , 1 ) S( 1 ) }", "f32[16,256]{1,0:T(8,128)(2,1)S(1)}"),
        ("f32[3]{0:M(0)}", "f32[3]{0}"),
        ("f32[3]{0:L(1)E(0)S(0)}", "f32[3]{0}"),
        ("f32[3,5]{1,0:D(D,D)T(2,2)}", "f32[3,5]{1,0:T(2,2)}"),
        ("f32[3,5]", "f32[3,5]{1,0}"),
        ("f32[?,784]", "f32[?,784]{1,0}"),
        ("token[]", "token[]"),
        ("opaque[]", "opaque[]"),
        ("f32[]", "f32[]"),
        ("f32[]{:T(128)}", "f32[]{:T(128)}"),
        ("F32[3,5]", "f32[3,5]{1,0}"),
        ("b(f32[3])", "b(f32[3]{0})"),
        ("f32[<=3,5]{1,0:T(*,2)L(8)#(u32)*(u16)E(64)S(5)SC(0:1)M(4)}", None),
        ("(" + ", ".join(["s32[]"] * 5) + ")", None),
        ("(" + ", ".join(["s32[]"] * 6) + ")", "(s32[], s32[], s32[], s32[], s32[], /*index=5*/s32[])"),
    ],
)
def test_canonical_text(text, canonical):
    assert str(parse(text)) == (canonical or text)
    assert parse(str(parse(text))) == parse(text)


def test_long_tuples_count_in_fives():
    text = str(parse("(" + ", ".join(["s32[]"] * 11) + ")"))
    assert text.index("/*index=5*/") < text.index("/*index=10*/")
    assert text.count("/*index=") == 2
    assert text.split(", ")[10] == "/*index=10*/s32[])"


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("f32[3,5]{1,0:S(1)T(2,2)}", 17),
        ("f32[3,5]{1,0:T(2,0)}", 17),
        ("f32[3,5]{1,0:T()}", 15),
        ("f32[3,5]{1,1}", 11),
        ("f32[3,5]{1,0:S(-1)}", 15),
        ("f32[3,5]{1,0:T(2,-2)}", 17),
        ("f32[3]{0:L(0)}", 11),
        ("f32[3]{0:L(-1)}", 11),
        ("f32[3,5]{1,0:T(2,*)}", 17),
        ("f32[3,5]{1,0:P(f32[])}", 13),
    ],
)
def test_refused_with_a_column(text, column):
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert caught.value.column == column


def test_a_brace_before_anything_but_a_number_or_a_colon_is_no_layout():
    assert parse_prefix("f32[3] {\n ROOT x = ...")[1] == 7
    assert str(parse_prefix("f32[] {:T(128)}")[0]) == "f32[]{:T(128)}"


def test_split_configurations():
    layout = parse("f32[150,200,100]{0,1,2:SC(0:30)(1:40,130)}")
    assert layout.max_split_sizes == (150, 90, 70)
    assert np.prod(layout.max_split_sizes) == 945_000
    whole = parse("f32[150,200,100]{0,1,2}")
    assert layout.size_bytes == whole.size_bytes
    assert is_bitcast(layout, whole)


# -- offsets and sizes -------------------------------------------------------------------------------------------------


def test_figure_1():
    layout = parse("F32[3,5]{1,0:T(2,2)}")
    assert table(layout) == [[0, 1, 4, 5, 8], [2, 3, 6, 7, 10], [12, 13, 16, 17, 20]]
    assert layout.num_slots == 24
    assert layout.offset(2, 3) == (1 * 3 + 1) * 4 + 1 == 17


def test_figure_2():
    expected = [[*range(0, 16, 2)], [*range(1, 16, 2)], [*range(16, 32, 2)], [*range(17, 32, 2)]]
    assert table(parse("F32[4,8]{1,0:T(2,4)(2,1)}")) == expected


def test_combining_dims():
    layout, two = parse("f32[2,7,8,11,10]{4,3,2,1,0:T(*,*,2,*,3)}"), parse("f32[112,110]{1,0:T(2,3)}")
    assert layout.num_slots == two.num_slots == 12_432
    assert layout.offset(1, 6, 7, 10, 9) == 12_430
    assert is_bitcast(layout, two)


@pytest.mark.parametrize(("dtype", "rows"), [("bf16", 2), ("s8", 4)])
def test_values_of_neighbouring_rows_share_a_word(dtype, rows):
    layout = parse(f"{dtype}[8,128]{{1,0:T(8,128)({rows},1)}}")
    for row in range(8):
        assert layout.offset(row, 5) // rows == layout.offset(row - row % rows, 5) // rows
        assert layout.offset(row, 5) % rows == row % rows


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[3,5]{1,0:T(2,2)L(32)}", 32 * 4),
        ("s4[5]{0}", 5),
        ("s4[5]{0:E(4)}", 3),
        ("pred[9]{0}", 9),
        ("pred[9]{0:E(1)}", 2),
        ("f32[3]{0:E(64)}", 24),
        ("f32[0,5]{1,0:T(8,128)}", 0),
        ("f32[<=3,5]", 60),
        ("(f32[1000], (s4[3], token[]))", 16),
        ("f32[4]{0:M(64)}", 16),
    ],
)
def test_sizes(text, size):
    assert parse(text).size_bytes == size


def test_untiled():
    assert parse("f32[4,8]{1,0:T(1,8)}").is_untiled
    assert parse("f32[4,8]{1,0:T(4,8)}").is_untiled
    assert not parse("f32[4,8]{1,0:T(2,4)}").is_untiled
    assert not parse("f32[3,8]{1,0:T(4,8)}").is_untiled


# -- what compilers choose, and what users report ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "f32[3,5]{1,0:T(4,128)}",
        "f32[9,129]{1,0:T(8,128)}",
        "bf16[1,300]{1,0:T(2,128)(2,1)}",
        "s8[8,128]{1,0:T(8,128)(4,1)}",
        "f32[130]{0:T(256)}",
        "bf16[1000]{0:T(1024)(128)(2,1)}",
        "f32[]{:T(128)}",
        "s4[3]{0:T(1024)(128)(8,1)E(4)}",
    ],
)
def test_default_tiles_of_a_tpu(text):
    layout = parse(text)
    assert str(preset("tpu", layout.shape, layout.dtype)) == text


@pytest.mark.parametrize("text", ["f32[300,1]{0,1:T(1,128)}", "f32[2,7,8,11,10]{3,2,4,1,0:T(8,128)}"])
def test_predicted_order_of_a_tpu(text):
    layout = parse(text)
    assert str(predict("tpu", layout.shape, layout.dtype)) == text


@pytest.mark.parametrize(
    ("text", "data", "memory"),
    [
        ("bf16[2048,1,2048,128]{0,1,3,2:T(4,128)(2,1)}", 1 << 30, 4 << 30),
        ("s32[2048,1,128,128,4]{4,3,2,0,1:T(8,128)}", 1 << 29, 1 << 34),
        ("s32[8388608,8,4]{2,1,0:T(8,128)}", 1 << 30, 1 << 35),
    ],
)
def test_padding_that_users_report(text, data, memory):
    assert (parse(text).data_bytes, parse(text).size_bytes) == (data, memory)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "tiled_as"),
    [
        ("ascend_nz", (100, 70), "f16", "f16[100,70]{1,0:T(112,16)}"),
        ("ascend_nz", (100, 70), "s8", "s8[100,70]{1,0:T(112,32)}"),
        ("ascend_nz", (100, 70), "f32", "f32[100,70]{1,0:T(112,8)}"),
        ("ascend_zz", (100, 70), "f16", "f16[100,70]{1,0:T(16,16)}"),
        ("nc1hwc0", (2, 20, 3, 5), "f16", "f16[2,20,3,5]{1,3,2,0:T(3,5,16)}"),
        ("nchw16c", (2, 20, 3, 5), "f32", "f32[2,20,3,5]{1,3,2,0:T(3,5,16)}"),
        ("tenstorrent", (70, 40), "bf16", "bf16[70,40]{1,0:T(32,32)(16,16)}"),
        ("hexagon_crouton", (1, 9, 5, 40), "f16", "f16[1,9,5,40]{3,2,1,0:T(8,4,32)(2,1)}"),
        ("hexagon_crouton", (1, 9, 5, 40), "u8", "u8[1,9,5,40]{3,2,1,0:T(8,8,32)}"),
    ],
)
def test_other_formats_are_tilings(name, shape, dtype, tiled_as):
    assert is_bitcast(preset(name, shape, dtype), parse(tiled_as))


# -- NPU memories ------------------------------------------------------------------------------------------------------

FOUR = {"lanes": 4, "eu_bytes": 64}


def test_global_memory():
    layout = global_memory((2, 2, 3, 2), "f32")
    assert [layout.offset(*(int(k == d) for k in range(4))) for d in range(4)] == [12, 6, 2, 1]


def test_start_0_and_start_2():
    assert lanes((2, 3, 4, 5), "f16", **FOUR).strides == (32, 32, 5, 1)
    second = lanes((2, 3, 4, 5), "f16", **FOUR, start=2)
    assert second.strides == (64, 32, 5, 1)
    assert second.address(0, 2, 0, 0) == {"npu": 0, "offset": 64 // 2}


def test_channels_of_one_unit_and_one_more():
    eu = 64 // 2
    assert lanes((1, 3, 4, eu // 4), "f16", **FOUR).strides[1] == eu
    assert lanes((1, 3, 1, eu + 1), "f16", **FOUR).strides[1] == 2 * eu


@pytest.mark.parametrize(
    ("mode", "strides"),
    [("aligned", (32, 32, 5, 1)), ("compact", (20, 20, 5, 1)), ("row_aligned", (128, 128, 32, 1))],
)
def test_modes(mode, strides):
    assert lanes((2, 3, 4, 5), "f16", **FOUR, mode=mode).strides == strides


def test_free_strides_are_as_given():
    assert lanes((2, 3, 4, 5), "f16", **FOUR, mode=(100, 50, 6, 1)).strides == (100, 50, 6, 1)


def test_matrices_are_tensors():
    r, c, w = 3, 10, 4
    matrix, tensor = lane_matrix(r, c, "f16", **FOUR, columns_per_npu=w), lanes((r, 3, 1, w), "f16", **FOUR)
    second, row = lane_matrix2(r, c, "f16", **FOUR), lanes((1, r, 1, c), "f16", **FOUR)
    for i in range(r):
        for j in range(c):
            assert matrix.address(i, j) == tensor.address(i, j // w, 0, j % w)
            assert second.address(i, j) == row.address(0, i, 0, j)


def test_int4_shares_bytes_and_is_not_rounded_per_channel():
    layout = lanes((1, 9, 1, 3), "s4", **FOUR, mode="compact")
    assert layout.strides == (9, 3, 3, 1)
    array = np.arange(27).reshape(1, 9, 1, 3) % 8
    buffer = layout.pack(array.astype(layout.numpy_dtype))
    assert buffer[0] == array[0, 0, 0, 0] | array[0, 0, 0, 1] << 4  # the low nibble first
    assert buffer[1] == array[0, 0, 0, 2] | array[0, 4, 0, 0] << 4  # channel 4 follows channel 0 at once


@pytest.mark.parametrize(("dtype", "side"), [("s8", 64), ("f16", 32), ("f32", 1), ("s4", 128)])
def test_weights(dtype, side):
    oc, ic, kh, kw = 130, 70, 2, 3
    layout = lane_weights((oc, ic, kh, kw), dtype, "bm1684x")
    rounded = -(-ic // side) * side
    for o, i, y, x in ((0, 0, 0, 0), (129, 69, 1, 2), (65, 33, 1, 0), (64, 64, 0, 2)):
        element = (o // 64) * rounded * kh * kw + (i // side) * side * kh * kw + y * kw * side + x * side + i % side
        assert layout.address(o, i, y, x) == {"npu": o % 64, "offset": element}


def test_cv180x_leaves_the_start_out():
    assert lanes((2, 2, 1, 16), "s8", "cv180x", start=1).strides[0] == 16
    assert lanes((2, 2, 1, 16), "s8", lanes=2, eu_bytes=16, start=1).strides[0] == 32


# -- segments, pages, cache lines --------------------------------------------------------------------------------------


def test_pages_are_a_tiling_of_two_levels():
    segment, text = paged((20, 30), "s8", page=(8, 16), line=(2, 4)), parse("s8[20,30]{1,0:T(8,16)(2,4)}")
    for index in np.ndindex(20, 30):
        place = segment.address(*index)
        assert place["page"] * 128 + place["offset"] == text.offset(*index)


def test_lines_are_64_bytes_along_d1_and_a_page_is_the_segment():
    segment = paged((3, 50), "f16")
    assert (segment.line, segment.page, segment.num_pages) == ((1, 32), (3, 64), 1)
    assert tiled((3, 50), "f16").data_bytes == 300
