"""What was found broken once: zero bytes of padding, numbers of thousands of digits, tangled strides, deep tiles."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import within
from tilewright.errors import ParseError, UnsupportedError, UsageError
from tilewright.layout import from_onednn_tag, from_strides, global_memory, lanes, parse, relayout, summary, tiled
from tilewright.layout.explain import explain_place


@pytest.mark.parametrize("tail", ["T(2,2)", "T(8,128)(4,1)", "T(2,2)L(64)"])
def test_padding_of_a_type_without_zero_is_zero_bytes(tail):
    layout, dense = parse(f"f8e8m0fnu[3,5]{{1,0:{tail}}}"), parse("f8e8m0fnu[3,5]")
    array = np.ones((3, 5), layout.numpy_dtype)
    out = np.full(layout.num_slots, 7, np.uint8).view(layout.numpy_dtype)
    for buffer in (layout.pack(array), layout.pack(array, out=out), layout.pack(array, out=out)):
        assert np.bincount(buffer.view(np.uint8)).nonzero()[0].tolist() == [0, 127]
    moved = relayout(dense, layout).apply(dense.pack(array))
    assert np.array_equal(moved.view(np.uint8), out.view(np.uint8))
    assert np.array_equal(layout.unpack(moved), array)


def test_thousands_of_digits_are_one_clear_error():
    with pytest.raises(ParseError, match="a block of 5000 digits"):
        from_onednn_tag("nChw" + "9" * 5000 + "c", (2, 40, 3, 5), "f32")
    with pytest.raises(UsageError, match=r"above 2\*\*63 - 1"):
        from_onednn_tag("nchw", (2, 40, 3, 10**5000), "f32")


def test_tangled_strides_are_settled_at_once():
    with within(1):
        assert not from_strides((1000,) * 4, (4000, 4, 8, 4936), "f32").injective  # more elements than places
        assert not from_strides((300,) * 4, (40028, 4036, 404, 44), "f32").injective
        assert not lanes((300, 300, 300, 300), "f32", lanes=1, eu_bytes=64, mode=(10007, 1009, 101, 11)).injective
        assert from_strides((3, 5), (4, 12), "f32").injective


def test_an_explanation_of_a_deep_tile_is_short():
    layout = parse("f32[64,64]{1,0:T" + "(2,2)" * 500 + "}")
    with within(2):
        text = layout.explain(3, 5)
    assert "steps more, not written out" in text
    assert f"= {layout.offset(3, 5)}" in text
    padded = parse("f32[3]{0:T" + "(3)(2)" * 40 + "}")
    assert "would be outside" in explain_place(padded, padded.num_slots - 1)
    with pytest.raises(ParseError, match="more than 10000 dims"):
        parse("f32[3]{0:T" + "(3)" * 20000 + "}")
    with pytest.raises(UnsupportedError, match=r"more than 2\*\*4096 places"):
        parse("f32[3]{0:T(" + ",".join(["4611686018427387904"] * 70) + ")}")


def test_strides_of_global_memory_are_seen():
    assert global_memory((2, 2, 3, 2), "f32").strides == (12, 6, 2, 1)  # the document's example
    assert summary(global_memory((2, 2, 3, 2), "f32"))["strides"] == [12, 6, 2, 1]
    assert parse("f32[2,1,3]{0,2,1}").strides == (1, 6, 2)
    assert parse("f32[]").strides == ()
    assert parse("f32[8,256]{1,0:T(8,128)}").strides is None
    assert parse("f32[8,128]{1,0:T(8,128)}").strides == (128, 1)
    assert from_strides((3, 5), (80, 8), "f32").strides == (20, 2)
    assert lanes((2, 3, 4, 5), "f16", lanes=4, eu_bytes=64).strides == (32, 32, 5, 1)


def test_strides_give_the_offsets():
    for text in ("f32[5,3,4]{0,2,1}", "f32[4,3,8]{2,1,0:T(*,8)}", "f32[3,7]{0,1:T(4,3)}", "f32[16,128]{1,0:T(8,128)}"):
        layout = parse(text)
        if layout.strides is not None:
            every = layout.indices_of(np.arange(layout.num_elements))
            assert np.array_equal(layout.offsets(every), every @ np.array(layout.strides))


def test_the_mark_that_combines_dims_is_read_in_all_its_forms():
    combined = parse("f32[3,4,8]{2,1,0:T(*,2)}")
    assert tiled((3, 4, 8), "f32", tiles=[("*", 2)]) == tiled((3, 4, 8), "f32", tiles=[(-1, 2)]) == combined
    assert tiled((3, 4, 8), "f32", tiles=[(np.int64(-(2**63)), 2)]) == combined  # JAX's Layout.tiling
    assert parse("f32[3,4,8]{2,1,0:T(-1,2)}") == parse("f32[3,4,8]{2,1,0:T(-9223372036854775808,2)}") == combined
    with pytest.raises(UsageError, match="invalid tiles"):
        tiled((3, 4, 8), "f32", tiles=[(2, "*")])
    with pytest.raises(UsageError):
        tiled((3, 4, 8), "f32", tiles=[3])


def test_a_sparse_array_is_never_taken_for_a_dense_one():
    sparse = parse("f32[3,4]{1,0:D(D,C+)S(2)}")
    facts = summary(sparse)
    assert facts["sparse_levels"] == ["D", "C+"]
    assert "size_bytes" not in facts
    for ask in (lambda: sparse.offset(0, 0), lambda: sparse.size_bytes, lambda: sparse.pack(np.zeros((3, 4), "f4"))):
        with pytest.raises(UnsupportedError, match=r"sparse, D\(D,C\+\)"):
            ask()
    assert parse("f32[3,4]{1,0:D(D,D)}").size_bytes == 48
