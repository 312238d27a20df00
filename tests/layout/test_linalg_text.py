"""linalg.pack as MLIR prints it: what is written is read back, what is wrong has a column, nothing else happens."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.layout.strategies import tiled_layouts
from tilewright.errors import ParseError, TilewrightError, UnsupportedError, UsageError
from tilewright.layout import from_linalg_pack, parse, parse_linalg_pack, to_linalg_pack
from tilewright.layout.convert.linalg import LinalgPack

GOOD = (
    "%packed = linalg.pack %source padding_value(%zero : f32) outer_dims_perm = [0, 1] inner_dims_pos = [0, 1] "
    "inner_tiles = [8, 128] into %empty : tensor<9x129xf32> -> tensor<2x2x8x128xf32>"
)


@given(tiled_layouts(combine=False))
@example(parse("c64[9,129]{0,1:T(8,128)(2,1)}"))
def test_what_is_written_is_read_back(layout):
    try:
        packs = to_linalg_pack(layout)
    except UnsupportedError:
        return
    body = "\n".join(f"  %{k} = {pack} loc(#loc{k})" for k, pack in enumerate(packs))
    assert parse_linalg_pack(f"func.func @f() {{\n{body}\n  return\n}}") == packs


def test_the_order_may_be_left_out():
    text = GOOD.replace("outer_dims_perm = [0, 1] ", "").replace("linalg.pack", "tensor.pack")
    assert parse_linalg_pack(text) == parse_linalg_pack(GOOD)
    assert parse_linalg_pack(GOOD)[0] == LinalgPack("f32", (9, 129), (0, 1), (8, 128), (0, 1))


def test_a_column_of_what_is_wrong():
    for old, new, message, what in (
        ("[8, 128]", "[8, %c4]", "inner_tiles is not a list of whole numbers", "8, %c4"),
        ("2x2x8x128xf32", "2x3x8x128xf32", "the packed tensor has the sizes 2x2x8x128", "2x3x8"),
        ("9x129xf32", "9x129xq7", "no element type called 'q7'", "9x129xq7"),
        ("9x129xf32", "9x129xcomplex<i8>", "no element type called 'complex<i8>'", "9x129xc"),
        (": tensor<9x129xf32>", "", "expected the types", " %source"),
        ("inner_dims_pos = [0, 1] ", "", "expected inner_dims_pos", " %source"),
        ("linalg.pack", "linalg.unpack", "expected linalg.pack", "%packed"),
    ):
        text = GOOD.replace(old, new, 1)
        with pytest.raises(ParseError, match=message) as caught:
            parse_linalg_pack(text)
        assert caught.value.column == text.index(what)


def test_what_the_text_does_not_tell_is_refused():
    with pytest.raises(UnsupportedError, match="dims without a size"):
        parse_linalg_pack(GOOD.replace("9x129", "?x129"))
    for kind, more in (("memref", ", strided<[200, 1]>"), ("tensor", ", #encoding")):
        text = GOOD.replace("tensor<9x129xf32>", f"{kind}<9x129xf32{more}>")
        with pytest.raises(UnsupportedError, match="has a memory layout of its own"):
            parse_linalg_pack(text)
    for old, new, message in (
        ("outer_dims_perm = [0, 1]", "outer_dims_perm = [0, 0]", "not a permutation"),
        ("inner_dims_pos = [0, 1]", "inner_dims_pos = [0, 2]", "names a dim twice, or one that does not exist"),
        ("inner_tiles = [8, 128]", "inner_tiles = [8, 0]", "do not match"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_linalg_pack(GOOD.replace(old, new))


def test_operations_behind_each_other_make_one_layout():
    packs = to_linalg_pack(parse("bf16[9,129]{1,0:T(8,128)(2,1)}"))
    first, *more = parse_linalg_pack(" ".join(map(str, packs)))
    there = from_linalg_pack((9, 129), "bf16", first.inner_dims_pos, first.inner_tiles, first.outer_dims_perm, *more)
    assert there.offset(8, 128) == parse("bf16[9,129]{1,0:T(8,128)(2,1)}").offset(8, 128)


PIECES = (
    *GOOD.split(),
    "linalg.pack",
    "inner_tiles",
    "=",
    "[",
    "]",
    "tensor<",
    ">",
    "->",
    ":",
    "x",
    "?",
    "9" * 30,
    "ü",
)


@given(
    st.one_of(
        st.text(), st.lists(st.sampled_from(PIECES)).map(" ".join), st.lists(st.sampled_from(PIECES)).map("".join)
    )
)
@example(GOOD.replace("9x129", "99999999999999999999x129"))
def test_any_text_ends_in_operations_or_one_error(text):
    with contextlib.suppress(TilewrightError):
        assert all(isinstance(pack, LinalgPack) for pack in parse_linalg_pack(text))


@given(st.data())
def test_a_text_cut_and_glued_ends_the_same_way(data):
    a, b = sorted(data.draw(st.tuples(st.integers(0, len(GOOD)), st.integers(0, len(GOOD)))))
    text = GOOD[:a] + data.draw(st.sampled_from(["", "0", "[", "x", "<", ">", "%a", "inner_tiles"])) + GOOD[b:]
    with contextlib.suppress(TilewrightError):
        parse_linalg_pack(text)
