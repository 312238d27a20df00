"""Other notations: converting and evaluating gives the same offset for every index."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.layout.oracle import all_indices
from tests.layout.strategies import any_layouts, tiled_layouts
from tilewright.errors import ParseError, UnsupportedError, UsageError
from tilewright.layout import (
    from_cute,
    from_linalg_pack,
    from_onednn_tag,
    from_strides,
    is_bitcast,
    lanes,
    mod_sharded,
    parse,
    preset,
    relayout,
    tiled,
    to_cute,
    to_linalg_pack,
    to_numpy_view,
    to_onednn_tag,
)
from tilewright.layout.convert.linalg import LinalgPack


def same_offsets(a, b):
    assert a.shape == b.shape
    for index in all_indices(a.shape):
        assert a.offset(*index) == b.offset(*index)


# -- numpy -------------------------------------------------------------------------------------------------------------


@st.composite
def arrays(draw):
    """A strided view of a larger array, never reversed."""
    shape = draw(st.lists(st.integers(1, 6), min_size=0, max_size=4))
    base = np.arange(math.prod(shape), dtype=draw(st.sampled_from(["i2", "f4", "f8"]))).reshape(shape)
    view = base.transpose(draw(st.permutations(range(len(shape)))))
    steps = tuple(slice(draw(st.integers(0, n - 1)), None, draw(st.integers(1, 3))) for n in view.shape)
    return view[steps]


@given(arrays())
def test_numpy_strides(array):
    layout = from_strides(array.shape, array.strides, array.dtype)
    for index in all_indices(array.shape):
        assert layout.offset(*index) * array.itemsize == sum(i * s for i, s in zip(index, array.strides, strict=True))
    buffer = layout.pack(array)
    assert np.array_equal(layout.unpack(buffer), array)
    view = to_numpy_view(layout, buffer)
    assert view.shape == array.shape
    assert np.array_equal(view, array)
    assert np.shares_memory(view, buffer)


def test_dense_arrays_become_xla_layouts():
    array = np.zeros((3, 5, 7), np.float32)
    for order in itertools.permutations(range(3)):
        turned = array.transpose(order)
        layout = from_strides(turned.shape, turned.strides, turned.dtype)
        assert str(layout).startswith("f32[")
        assert layout == tiled(turned.shape, "f32", sorted(range(3), key=lambda d: turned.strides[d]))
    assert str(from_strides((3, 1, 5), (20, 4, 4), "f32")) == "f32[3,1,5]{2,1,0}"
    assert from_strides((0, 3), (12, 4), "f32").size_bytes == 0


def test_broadcast_arrays_are_not_injective():
    layout = from_strides((3, 4), (0, 4), "f32")
    assert not layout.injective
    assert layout.size_bytes == 16


@given(any_layouts())
@example(tiled((3, 2, 1, 1), "s32", (0, 1, 2, 3), [(-1, 2)]))  # no digit form, yet linear: the tile divides the whole
@example(tiled((3, 5), "s32", None, [(-1, 2)]))
def test_a_view_is_the_array_or_there_is_none(layout):
    assume(layout.injective)
    values = np.arange(layout.num_elements).reshape(layout.shape).astype(layout.numpy_dtype)
    buffer = layout.pack(values)
    try:
        view = to_numpy_view(layout, buffer)
    except UnsupportedError:
        assert not _has_strides(layout)
        return
    assert np.array_equal(view, values)
    assert view.size == 0 or np.shares_memory(view, buffer)


def _has_strides(layout):
    """By enumeration: whether one stride per dim describes the flat slots."""
    extents = [axis.extent for axis in layout.axis_terms]
    first = layout.origin or (0,) * layout.rank
    slots = np.zeros(layout.shape, np.int64)
    for index in all_indices(layout.shape):
        moved = [i + o for i, o in zip(index, first, strict=True)]
        slots[index] = np.ravel_multi_index(tuple(layout.address(*moved).values()), extents)
    return all(len(np.unique(np.diff(slots, axis=d))) <= 1 for d in range(slots.ndim))


@pytest.mark.parametrize("dtype", ["f8e5m2", "f8e4m3fn", "bf16", "s4", "pred", "c128"])
def test_views_of_every_type(dtype):
    layout = parse(f"{dtype}[3,4]{{0,1:T(8,8)}}")
    buffer = layout.pack(np.arange(12).reshape(3, 4).astype(layout.numpy_dtype))
    view = to_numpy_view(layout, buffer)
    assert (view.dtype, view.shape) == (layout.numpy_dtype, (3, 4))
    assert np.shares_memory(view, buffer)
    view[2, 3] = 1
    assert buffer[layout.offset(2, 3)] == 1
    buffer.setflags(write=False)
    assert not to_numpy_view(layout, buffer).flags.writeable


def test_views_of_whole_registers():
    layout = parse("f32[32,128]{1,0:T(8,128)}")  # tiles as wide as the array
    buffer = np.arange(32 * 128, dtype=np.float32)
    view = to_numpy_view(layout, buffer)
    view[9, 3] = -1
    assert buffer[layout.offset(9, 3)] == -1
    with pytest.raises(UnsupportedError, match="dim 0 is cut"):
        to_numpy_view(parse("f32[32,256]{1,0:T(8,128)}"), np.zeros(8192, np.float32))
    with pytest.raises(UnsupportedError, match="4-bit"):
        to_numpy_view(parse("s4[4]{0:E(4)}"), np.zeros(2, np.uint8))
    with pytest.raises(UnsupportedError, match="not a sum"):
        to_numpy_view(parse("s8[3,5]{1,0:T(*,2)(2,1)}"), np.zeros(16, np.int8))
    with pytest.raises(UnsupportedError, match="too large to look at"):
        to_numpy_view(parse("s8[1025,1025]{1,0:T(*,2)}"), np.zeros(1050626, np.int8))
    with pytest.raises(UsageError, match="buffer must be"):
        to_numpy_view(layout, np.zeros(3, np.float32))
    one_round = lanes((2, 3, 4, 5), "bf16", lanes=4, eu_bytes=64)
    data = np.arange(120).reshape(2, 3, 4, 5).astype(ml_dtypes.bfloat16)
    assert np.array_equal(to_numpy_view(one_round, one_round.pack(data)), data)
    with pytest.raises(UnsupportedError, match="dim 1 is cut"):
        to_numpy_view(lanes((2, 5, 1, 1), "s8", lanes=4, eu_bytes=1), np.zeros(16, np.int8))


def test_a_view_of_a_large_array_does_not_enumerate():
    layout = parse("s8[20000000]{0:T(8)}")
    assert to_numpy_view(layout, np.zeros(20_000_000, np.int8)).strides == (1,)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (((3,), (-4,), "f32"), UnsupportedError, "negative strides"),
        (((3,), (6,), "f32"), UnsupportedError, "not multiples of the 4 bytes"),
        (((3,), (4, 4), "f32"), UsageError, "2 strides for 1 dims"),
        (((-3,), (4,), "f32"), UsageError, "negative size"),
    ],
)
def test_refused_strides(arguments, kind, message):
    with pytest.raises(kind, match=message):
        from_strides(*arguments)


# -- CuTe --------------------------------------------------------------------------------------------------------------


def cute_offset(modes, index):
    """CuTe's rule, plainly: inside a mode the first part counts fastest."""
    total = 0
    for parts, i in zip(modes, index, strict=True):
        for size, stride in parts:
            total += i % size * stride
            i //= size
    return total


part = st.tuples(st.integers(1, 4), st.integers(0, 12))


@given(st.lists(st.lists(part, min_size=1, max_size=3), min_size=0, max_size=3))
def test_cute_is_read_by_its_rule(modes):
    sizes = ",".join("(" + ",".join(str(n) for n, _ in mode) + ")" for mode in modes)
    strides = ",".join("(" + ",".join(f"_{s}" for _, s in mode) + ")" for mode in modes)
    layout = from_cute(f"({sizes}) : ({strides})", "f32")
    assert layout.shape == tuple(math.prod(n for n, _ in mode) for mode in modes)
    offsets = [layout.offset(*index) for index in all_indices(layout.shape)]
    assert offsets == [cute_offset(modes, index) for index in all_indices(layout.shape)]
    assert layout.num_slots == max(offsets) + 1
    assert layout.injective == (len(set(offsets)) == len(offsets))


@given(tiled_layouts(max_rank=3))
def test_layouts_through_cute_and_back(layout):
    try:
        text = to_cute(layout)
    except UnsupportedError:
        assert layout.num_slots != layout.num_elements or layout.digits is None or len(layout.tiles) > 1
        return
    back = from_cute(text, layout.dtype)
    same_offsets(layout, back)
    assert back.num_slots == layout.num_slots
    assert to_cute(back) == text


@given(tiled_layouts(max_rank=3, combine=False))
def test_padded_arrays_in_cute(layout):
    try:
        text = to_cute(layout, padded=True)
    except UnsupportedError:
        return
    whole = from_cute(text, layout.dtype)
    assert whole.num_slots == whole.num_elements == layout.num_slots
    assert all(n <= m for n, m in zip(layout.shape, whole.shape, strict=True))
    for index in all_indices(layout.shape):
        assert whole.offset(*index) == layout.offset(*index)


def test_one_level_tilings_always_have_a_padded_cute():
    assert to_cute(parse("f32[3,5]{1,0:T(2,2)}"), padded=True) == "((2,2),(2,3)):((2,12),(1,4))"
    assert to_cute(parse("bf16[9,129]{1,0:T(8,128)(2,1)}"), padded=True) == (
        "((2,4,2),(128,2)):((1,256,2048),(2,1024))"
    )
    assert to_cute(parse("f32[8]")) == "8:1"
    assert to_cute(parse("f32[8]{0:T(4)(2)}")) == "8:1"
    assert from_cute("8:2", "f32").shape == (8,)
    assert from_cute("(8):(2)", "f32").shape == (8,)
    assert from_cute("((2,4)):((4,1))", "f32").shape == (8,)
    assert to_cute(from_cute("((2,4)):((4,1))", "f32")) == "((2,4)):((4,1))"
    assert to_cute(parse("f32[]")) == "():()"
    assert to_cute(parse("f32[4,6]{1,0:T(*,3)}")) == "(4,6):(6,1)"


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (parse("f32[3,5]{1,0:T(2,2)}"), "do not divide the 3 of dim 0"),
        (parse("f32[3,5]{1,0:T(*,2)}"), "does not divide"),
        (parse("f32[3,5]{1,0:L(8)}"), "1 slots of padding at its end"),
        (parse("f32[3,128]{1,0:T(8,128)}"), "640 slots of padding"),
        (lanes((1, 2, 3, 4), "f16", "bm1684x"), "axes npu, offset"),
        (mod_sharded(16, 8, 4), "axes"),
    ],
)
def test_what_cute_cannot_say(layout, reason):
    with pytest.raises(UnsupportedError, match=reason):
        to_cute(layout)


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (parse("f32[3,5]{1,0:T(*,2)}"), "merges|divide"),
        (parse("f32[3,5]{1,0:T(4,4)(3,1)}"), "inside its tiles|divide"),
        (parse("f32[5]{0:T(2,4)}"), "merges or adds"),
        (parse("f32[5]{0:L(8)}"), "no tiles"),
    ],
)
def test_what_has_no_padded_cute(layout, reason):
    with pytest.raises(UnsupportedError, match=reason):
        to_cute(layout, padded=True)


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("(2,3)", 5),
        ("(2,3):(1)", 6),
        ("(2,3):1", 6),
        ("((2,2),3):((1),3)", 10),
        ("(2,):(1)", 3),
        ("2:1 x", 4),
        ("a:1", 0),
    ],
)
def test_no_cute(text, column):
    with pytest.raises(ParseError) as caught:
        from_cute(text, "f32")
    assert caught.value.column == column


# -- linalg.pack -------------------------------------------------------------------------------------------------------


def packed(array, pack):
    """linalg.pack, by padding, reshaping and transposing in numpy."""
    widths, sizes, tiles = [], [], dict(zip(pack.inner_dims_pos, pack.inner_tiles, strict=True))
    for d, n in enumerate(array.shape):
        widths.append((0, -n % tiles.get(d, 1)))
    array = np.pad(array, widths, constant_values=-1) if widths else array
    for d, n in enumerate(array.shape):
        sizes += [n // tiles.get(d, 1), tiles.get(d, 1)]
    order = [2 * d for d in pack.outer_dims_perm] + [2 * d + 1 for d in pack.inner_dims_pos]
    rest = [2 * d + 1 for d in range(array.ndim) if d not in tiles]
    split = array.reshape(sizes).transpose(order + rest)
    return split.reshape(pack.packed_shape)


@given(tiled_layouts(combine=False))
def test_tilings_as_linalg_pack(layout):
    values = np.arange(layout.num_elements, dtype=np.int32).reshape(layout.shape)
    try:
        packs = to_linalg_pack(layout)
    except UnsupportedError:
        assert any(len(tile) > layout.rank for tile in layout.tiles)
        return
    result = values
    for pack in packs:
        assert pack.source_shape == result.shape
        assert pack.needs_padding == any(
            result.shape[d] % t for d, t in zip(pack.inner_dims_pos, pack.inner_tiles, strict=True)
        )
        result = packed(result, pack)
    assert np.array_equal(result.reshape(-1), layout.pack(values, fill=-1))
    first, *more = packs
    back = from_linalg_pack(layout.shape, "s32", first.inner_dims_pos, first.inner_tiles, first.outer_dims_perm, *more)
    same_offsets(layout, back)
    assert (back.num_slots, back.physical_shape) == (layout.num_slots, result.shape)


@given(st.data())
def test_any_linalg_pack(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    positions = data.draw(st.permutations(range(len(shape))))[: data.draw(st.integers(0, len(shape)))]
    tiles = [data.draw(st.integers(1, 4)) for _ in positions]
    perm = data.draw(st.permutations(range(len(shape))))
    layout = from_linalg_pack(shape, "s32", positions, tiles, perm)
    values = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    pack = LinalgPack("s32", shape, tuple(positions), tuple(tiles), tuple(perm))
    assert np.array_equal(packed(values, pack).reshape(-1), layout.pack(values, fill=-1))


def test_linalg_pack_prints_as_mlir_does():
    (pack,) = to_linalg_pack(parse("f32[9,129]{1,0:T(8,128)}"))
    assert str(pack) == (
        "linalg.pack %source padding_value(%pad : f32) outer_dims_perm = [0, 1] inner_dims_pos = [0, 1] "
        "inner_tiles = [8, 128] into %packed : tensor<9x129xf32> -> tensor<2x2x8x128xf32>"
    )
    types = {"pred": "i1", "s8": "i8", "u4": "ui4", "c64": "complex<f32>", "f8e4m3fn": "f8E4M3FN", "bf16": "bf16"}
    for ours, theirs in types.items():
        assert str(to_linalg_pack(parse(f"{ours}[4]{{0:T(2)}}"))[0]).endswith(
            f"tensor<4x{theirs}> -> tensor<2x2x{theirs}>"
        )


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: to_linalg_pack(parse("f32[3,5]{1,0:T(*,2)}")), UnsupportedError, "merges dims"),
        (lambda: to_linalg_pack(parse("f32[5]{0:T(2,2)}")), UnsupportedError, "tile of 2 dims over 1"),
        (lambda: to_linalg_pack(parse("f32[5]{0:L(4)}")), UnsupportedError, "L\\(4\\)"),
        (lambda: to_linalg_pack(lanes((1, 1, 1, 1), "s8", "bm1684x")), UnsupportedError, "does not tile"),
        (lambda: from_linalg_pack((4, 4), "f32", [0], [2, 2]), UsageError, "do not match"),
        (lambda: from_linalg_pack((4, 4), "f32", [0, 0], [2, 2]), UsageError, "twice"),
        (lambda: from_linalg_pack((4, 4), "f32", [0], [2], [0, 0]), UsageError, "not a permutation"),
        (
            lambda: from_linalg_pack((4, 4), "f32", [0], [2], None, LinalgPack("f32", (4,), (0,), (2,), (0,))),
            UsageError,
            "behind a tensor",
        ),
    ],
)
def test_refused_packs(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


# -- oneDNN ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 4), st.integers(1, 4), st.sampled_from([4, 8, 16]))
def test_blocked_channels(n, c, h, w, block):
    layout = from_onednn_tag(f"nChw{block}c", (n, c, h, w), "f32")
    blocks = -(-c // block)
    for b, k, y, x in all_indices(layout.shape):
        assert layout.offset(b, k, y, x) == (((b * blocks + k // block) * h + y) * w + x) * block + k % block
    assert layout.num_slots == n * blocks * block * h * w


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 3))
def test_weights_with_two_blocks(o, i, w):
    layout = from_onednn_tag("OIw4i16o4i", (o, i, w), "s8")
    for a, b, x in all_indices(layout.shape):
        outer = (a // 16 * -(-i // 16) + b // 16) * w + x
        assert layout.offset(a, b, x) == ((outer * 4 + b % 16 // 4) * 16 + a % 16) * 4 + b % 4


def test_tags_of_presets_and_plain_orders():
    shape = (2, 40, 3, 5)
    assert is_bitcast(from_onednn_tag("nChw16c", shape, "f32"), preset("nchw16c", shape, "f32"))
    assert is_bitcast(from_onednn_tag("nhwc", shape, "f32"), tiled(shape, "f32", (1, 3, 2, 0)))
    assert to_onednn_tag(preset("nc1hwc0", shape, "f32")) == "aBcd8b"
    assert to_onednn_tag(preset("ascend_zz", (32, 64), "f16")) == "AB16a16b"
    assert to_onednn_tag(preset("ascend_nz", (32, 64), "f16")) == "Ba16b"
    assert to_onednn_tag(parse("f32[3,1,5]")) == "abc"
    for other in ("goihw", "ldigo", "tnc", "ndhwc", "gOIdhw4o4i"):
        if other == "ldigo":
            with pytest.raises(ParseError):
                from_onednn_tag(other, (1,) * 5, "f32")
        else:
            from_onednn_tag(other, (2,) * len(set(other.lower()) - set("0123456789")), "f32")


@given(st.data())
def test_tags_there_and_back(data):
    rank = data.draw(st.integers(1, 4))
    order = data.draw(st.permutations(range(rank)))
    blocks = data.draw(st.lists(st.tuples(st.integers(0, rank - 1), st.integers(2, 4)), max_size=3))
    cut = {d for d, _ in blocks}
    tag = "".join("abcd"[d].upper() if d in cut else "abcd"[d] for d in order)
    tag += "".join(f"{n}{'abcd'[d]}" for d, n in blocks)
    shape = [data.draw(st.integers(2, 3)) * math.prod(n for e, n in blocks if e == d) for d in range(rank)]
    layout = from_onednn_tag(tag, shape, "f32")
    again = from_onednn_tag(to_onednn_tag(layout), shape, "f32")
    same_offsets(layout, again)
    assert math.prod(layout.physical_shape) == layout.num_slots == layout.num_elements


@pytest.mark.parametrize(
    "tag", ["", "nChw", "nchw16c", "nChw16C", "16cnChw", "nChw0c", "nnhw", "nxyz", "nc_hw", "nC16chw", "ab!", "bc"]
)
def test_no_tags(tag):
    with pytest.raises((ParseError, UsageError)):
        from_onednn_tag(tag, (2, 3, 4, 5)[: max(1, len(tag))], "f32")


@pytest.mark.parametrize(
    "layout",
    [
        lanes((1, 2, 3, 4), "f16", "bm1684x"),
        parse("f32[]"),
        parse("f32[3,5]{1,0:T(*,2)}"),
        preset("tpu", (3, 200), "f32"),
        from_cute("(4,4):(8,1)", "f32"),
    ],
)
def test_what_no_tag_says(layout):
    with pytest.raises(UnsupportedError, match="no oneDNN tag"):
        to_onednn_tag(layout)


@pytest.mark.parametrize(
    "layout",
    [
        from_cute("((2,2),8):((1,16),2)", "f32"),
        from_cute("():()", "f32"),
        from_strides((3, 4), (40, 8), "f32"),
        from_linalg_pack((6, 5), "s8", [1, 0], [2, 4]),
        from_onednn_tag("nChw4c", (1, 6, 2, 2), "f32"),
    ],
)
def test_converted_layouts_are_layouts_like_any(layout):
    last = tuple(n - 1 for n in layout.shape)
    assert f" = {layout.offset(*last)}" in layout.explain(*last) or not layout.rank
    assert layout.to_svg().startswith("<svg")
    assert set(layout._repr_mimebundle_()) >= {"text/plain"}
    assert is_bitcast(layout, layout)
    values = np.arange(layout.num_elements).reshape(layout.shape).astype(layout.numpy_dtype)
    row_major = tiled(layout.shape, layout.dtype)
    moved = relayout(layout, row_major).apply(layout.pack(values))
    assert np.array_equal(row_major.unpack(moved), values)
