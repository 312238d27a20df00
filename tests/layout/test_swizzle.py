"""CuTe's swizzles and layouts of threads and values, and their bank conflicts."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import TilewrightError
from tilewright.layout import bank_conflicts, from_cute, is_bitcast, parse, relayout
from tilewright.layout.explain import explain_place

ATOM = "Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)"


def by_definition(x, b, m, s):
    """CuTe's own: the bits above are shifted down and xored."""
    return x ^ ((x & (((1 << b) - 1) << (m + s))) >> s)


def test_a_swizzled_atom_is_read_in_elements():
    layout = from_cute(ATOM)
    assert (layout.dtype, layout.shape, layout.num_slots) == ("f16", (8, 64), 512)
    every = layout.indices_of(np.arange(512))
    expected = by_definition(every @ [64, 1], 3, 3, 3)  # 4 of bytes is 3 of 16-bit elements
    assert np.array_equal(layout.offsets(every), expected)
    assert [layout.offset(*index) for index in every[::37].tolist()] == expected[::37].tolist()
    assert np.array_equal(layout.indices(expected), every)
    assert layout.index(72) == (1, 0)
    assert layout.injective
    assert layout.strides is layout.digits is None


@pytest.mark.parametrize(
    "text",
    [
        "Sw<3,3,3> o _0 o (_8,_64):(_64,_1)",
        "smem_ptr[16b](0x7f8f00000c00) o Sw<3,3,3> o _0 o (8,64):(64,1)",
        "S<3,3,3> o 0 o (8,64):(64,1)",
        "tensor<ptr<f16, smem, align<1024>, S<3,4,3>> o (8,64):(64,1)>",
    ],
)
def test_every_way_to_print_it_is_the_same(text):
    a, b = from_cute(text, "f16"), from_cute(ATOM)
    every = a.indices_of(np.arange(512))
    assert np.array_equal(a.offsets(every), b.offsets(every))


def test_data_words_and_pictures_of_a_swizzle():
    layout = from_cute(ATOM)
    array = np.arange(512, dtype=np.float16).reshape(8, 64)
    packed = layout.pack(array)
    assert packed[layout.offset(3, 5)] == array[3, 5]
    assert np.array_equal(layout.unpack(packed), array)
    assert np.array_equal(relayout(layout, parse("f16[8,64]")).apply(packed), array.reshape(-1))
    assert "(1*64+0) xor 8 = 72" in layout.explain(1, 0)
    assert "element (1,0)" in explain_place(layout, 72)
    assert ">72<" in layout.to_svg()
    assert ">64<" in layout.to_svg()  # where a run ends another begins


def test_a_swizzle_is_no_bitcast_of_what_it_swizzles():
    plain = parse("f16[8,64]")
    assert not is_bitcast(from_cute(ATOM), plain)
    assert not is_bitcast(plain, from_cute(ATOM))
    assert is_bitcast(from_cute(ATOM), from_cute("smem_ptr[16b](0x7f8f00000c00) o Sw<3,3,3> o _0 o (8,64):(64,1)"))


def test_bank_conflicts_are_counted():
    rows = from_cute("(8,8):(1,8)", "f16")  # ldmatrix: eight threads, 16 bytes of a row each
    plain, swizzled = from_cute("(8,64):(64,1)", "f16"), from_cute(ATOM)
    assert (bank_conflicts(plain, rows).ways, bank_conflicts(plain, rows).conflicts) == (8, 7)
    assert (bank_conflicts(swizzled, rows).ways, bank_conflicts(swizzled, rows).conflicts) == (1, 0)
    columns = from_cute("(32,1):(1,0)", "f32")  # a warp down a column of 32 by 32
    assert bank_conflicts(from_cute("(32,32):(32,1)", "f32"), columns).ways == 32
    assert bank_conflicts(from_cute("(32,32):(33,1)", "f32"), columns).ways == 1
    with pytest.raises(TilewrightError, match="names element"):
        bank_conflicts(plain, from_cute("(32,32):(1,32)", "f16"))


def test_threads_and_values():
    threads = from_cute("((4,8),(2,2)):((32,1),(16,8))", "f16")  # an accumulator of 16 by 8
    assert threads.shape == (32, 4)
    assert threads.offset(5, 3) == 32 + 1 + 16 + 8
    assert sorted(threads.offsets(threads.indices_of(np.arange(128))).tolist()) == list(range(128))


@pytest.mark.parametrize(
    "text", ["Sw<3,4> o 0 o 8:1", "Sw<5,0,2> o 0 o 8:1", "Sw<3,4,3> o", "Sw<3,4,3> 8:1", "tensor<8:1"]
)
def test_what_is_no_swizzle(text):
    with pytest.raises(TilewrightError):
        from_cute(text)
