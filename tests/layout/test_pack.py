"""Packing against the addresses themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from tests.layout.oracle import all_indices
from tests.layout.strategies import any_layouts
from tilewright.errors import UsageError
from tilewright.layout import lanes, parse
from tilewright.layout.index.types import TYPE_BITS


def sample(layout, seed=0):
    raw = np.random.default_rng(seed).integers(0, 100, layout.shape)
    return np.asarray(raw).astype(layout.numpy_dtype)


@given(any_layouts())
def test_every_element_lies_at_its_address(layout):
    if not layout.injective:
        with pytest.raises(UsageError):
            layout.pack(sample(layout))
        return
    values = sample(layout)
    buffer = layout.pack(values)
    expected = np.zeros(tuple(axis.extent for axis in layout.axis_terms), layout.numpy_dtype)
    for index in all_indices(layout.shape):
        moved = [i + o for i, o in zip(index, layout.origin or (0,) * layout.rank, strict=True)]
        expected[tuple(layout.address(*moved).values())] = values[index]
    assert np.array_equal(buffer, expected.reshape(-1))
    assert np.array_equal(layout.unpack(buffer), values)


@pytest.mark.parametrize("dtype", [name for name in TYPE_BITS if name not in ("token", "opaque")])
def test_every_type(dtype):
    layout = parse(f"{dtype}[5,70]{{0,1:T(4,4)}}")
    values = np.random.default_rng(3).integers(0, 1 << min(TYPE_BITS[dtype], 7), (5, 70)).astype(layout.numpy_dtype)
    packed = layout.pack(values)
    assert packed.nbytes == layout.size_bytes
    assert layout.unpack(packed).tobytes() == values.tobytes()
    strided = np.zeros((10, 140), layout.numpy_dtype)[::2, ::-2]
    strided[...] = values
    for other in (np.asfortranarray(values), strided):
        assert layout.pack(other).tobytes() == packed.tobytes()
        out = np.zeros_like(other)
        assert layout.unpack(packed, out=out) is out
        assert out.tobytes() == values.tobytes()


@pytest.mark.parametrize("dtype", ["s4", "u4", "s2", "u2"])
def test_sub_byte_types_pack_low_bits_first(dtype):
    bits = int(dtype[1])
    layout = parse(f"{dtype}[3,5]{{1,0:T(2,4)E({bits})}}")
    low, high = (-(1 << bits - 1), (1 << bits - 1)) if dtype[0] == "s" else (0, 1 << bits)
    values = np.random.default_rng(1).integers(low, high, (3, 5)).astype(layout.numpy_dtype)
    buffer = layout.pack(values)
    assert buffer.dtype == np.uint8
    assert buffer.nbytes == layout.size_bytes
    whole = int.from_bytes(buffer.tobytes(), "little")
    for index in all_indices((3, 5)):
        stored = whole >> layout.offset(*index) * bits & (1 << bits) - 1
        assert stored == int(values[index]) % (1 << bits)
    assert np.array_equal(layout.unpack(buffer), values)


def test_strided_input_fill_and_out():
    layout = parse("f32[4,6]{1,0:T(4,4)}")
    base = np.arange(48, dtype=np.float32).reshape(6, 8)
    view = base.T[::2]
    out = np.empty(32, np.float32)
    assert layout.pack(view, out=out, fill=-1.0) is out
    assert np.array_equal(layout.unpack(out), view)
    assert (out == -1).sum() == 8
    target = np.zeros((4, 6), np.float32)
    assert layout.unpack(out, out=target) is target
    assert np.array_equal(target, view)


def test_lanes_lie_npu_by_npu():
    layout = lanes((1, 3, 2, 2), "f16", lanes=2, eu_bytes=16)
    values = np.arange(12, dtype=np.float16).reshape(1, 3, 2, 2)
    buffer = layout.pack(values).reshape(layout.physical_shape)
    assert buffer[0].tolist() == [0, 1, 2, 3, 0, 0, 0, 0, 8, 9, 10, 11, 0, 0, 0, 0]
    assert buffer[1].tolist() == [4, 5, 6, 7] + [0] * 12


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 3), np.float32), "shape"),
        (np.zeros((2, 3), np.float64), "float64"),
    ],
)
def test_wrong_arrays(array, message):
    layout = parse("f32[2,3]{1,0}")
    with pytest.raises(UsageError, match=message):
        layout.pack(array)
    with pytest.raises(UsageError, match="buffer must be"):
        layout.unpack(np.zeros(5, np.float32))
