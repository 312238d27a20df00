"""What is passed wrongly ends in a TilewrightError that says so, before numpy or the machine's memory says worse."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import TilewrightError, UsageError
from tilewright.layout import (
    from_cute,
    from_linalg_pack,
    from_onednn_tag,
    is_bitcast,
    lane_matrix,
    lanes,
    mod_sharded,
    paged,
    parse,
    plan_local_memory,
    predict,
    preset,
    relayout,
    tiled,
    to_cute,
    to_linalg_pack,
    to_numpy_view,
    to_onednn_tag,
)

ONE = np.zeros(1, np.float32)
FREE = (2**62,) * 4

ABSURD = {
    "a tile beyond memory": lambda: parse("f32[1]{0:T(9000000000000)}").pack(ONE),
    "tiles beyond 64 bits": lambda: parse("f32[1,1]{1,0:T(4000000000,4000000000)}").pack(ONE[None]),
    "one byte per half byte": lambda: parse("s4[1]{0:T(9000000000000)E(4)}").pack(np.zeros(1, ml_dtypes.int4)),
    "a broadcast array": lambda: parse(f"s8[{2**62}]").pack(np.broadcast_to(np.int8(0), (2**62,))),
    "a broadcast buffer": lambda: parse(f"s8[{2**62}]").unpack(np.broadcast_to(np.int8(0), (2**62,))),
    "huge free strides": lambda: lanes((1, 2, 3, 4), "f32", "bm1684x", mode=FREE).pack(np.zeros((1, 2, 3, 4), "f4")),
    "huge pages": lambda: paged((4, 4), "f32", page=(2**40, 2**40)).pack(np.zeros((4, 4), np.float32)),
    "too many shards": lambda: mod_sharded(10, 4, 10**12).pack(np.zeros((10, 4), np.float32)),
}
WRONG = {
    "an array that is ragged": lambda: parse("s64[3]").pack([[1], 2, 3]),
    "indices that are ragged": lambda: parse("f32[3,5]").offsets([[1, 2], [3]]),
    "an index beyond int64": lambda: parse("f32[3,5]").offsets(np.array([[2**63 + 5, 2]], np.uint64)),
    "a fraction of a size": lambda: tiled((3.5,), "f32"),
    "a fraction of a lane size": lambda: lanes((1, 2, 3, 4.5), "f32", "bm1684x"),
    "a fraction of a stride": lambda: lanes((1, 2, 3, 4), "f32", "bm1684x", mode=(1, 1, 1.5, 1)),
    "a fraction of an NPU": lambda: lanes((1, 2, 3, 4), "f32", "bm1684x", start=1.5),
    "a fraction of a row": lambda: lane_matrix(1.5, 2, "f32", "bm1684x", columns_per_npu=1),
    "a fraction of a page": lambda: paged((4, 4), "f32", page=(1.5, 2)),
    "a fraction of a shard": lambda: mod_sharded(10, 4, 2.5),
    "a size below 0": lambda: preset("tpu", (-1, 3), "f32"),
    "an array that no text can name": lambda: predict("tpu", (2**62, 2**62), "f32"),
    "a tile that no text can name": lambda: tiled((3,), "f32", tiles=[(2**64,)]),
    "a permutation in letters": lambda: is_bitcast(parse("f32[3]"), parse("f32[3]"), "a"),
    "a fraction of a dim": lambda: is_bitcast(parse("f32[3]"), parse("f32[3]"), (0.5,)),
    "a number for a permutation": lambda: relayout(parse("f32[3]"), parse("f32[3]"), 0),
    "a tuple": lambda: is_bitcast(parse("(f32[3])"), parse("f32[3]")),
    "a text for a layout": lambda: relayout(parse("f32[3]"), "f32[3]"),
    "no type": lambda: tiled((2,), None),
    "a text in CuTe": lambda: to_cute("f32[2]"),
    "a text in linalg": lambda: to_linalg_pack("f32[2]"),
    "a text in oneDNN": lambda: to_onednn_tag("f32[2]"),
    "a text viewed": lambda: to_numpy_view("f32[2]", np.zeros(2)),
    "a tuple in CuTe": lambda: to_cute(parse("(f32[2])")),
    "a number for CuTe": lambda: from_cute(5, "f32"),
    "nothing for a tag": lambda: from_onednn_tag(None, (2,), "f32"),
    "a fraction of a tile": lambda: from_linalg_pack((5, 7), "f32", inner_dims_pos=[0], inner_tiles=[2.5]),
    "no dims to pack": lambda: from_linalg_pack((5, 7), "f32", inner_dims_pos=None, inner_tiles=[2]),
    "a layout for a tensor of a plan": lambda: plan_local_memory([parse("f32[3]")], "bm1684x"),
    "nothing for a text": lambda: parse(None),
    "a list for a text": lambda: parse(["f32[3]"]),
}


@pytest.mark.parametrize("name", ABSURD)
def test_what_no_machine_holds_is_refused_at_once(name):
    with pytest.raises(UsageError, match=r"takes .* and this machine has .*; take a slice"):
        ABSURD[name]()


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    with pytest.raises(TilewrightError):
        WRONG[name]()


@pytest.mark.parametrize("fill", ["a", None, [1, 2], 300, -129, 1.5, 1j])
def test_fill_is_a_value_of_the_type(fill):
    with pytest.raises(UsageError, match="fill"):
        parse("s8[3]{0:T(4)}").pack(np.zeros(3, np.int8), fill=fill)


@pytest.mark.parametrize(
    ("dtype", "fill", "bits"),
    [
        ("s4", -8, 8),
        ("s4", ml_dtypes.int4(-1), 15),
        ("u4", 15, 15),
        ("f4e2m1fn", 1.0, 2),
        ("f4e2m1fn", -6, 15),
        ("s2", -1, 3),
        ("pred", True, 1),
    ],
)
def test_fill_of_less_than_a_byte_is_its_bits(dtype, fill, bits):
    width = 1 if dtype == "pred" else int(dtype[1])
    plain, narrow = parse(f"{dtype}[3]{{0:T(8)}}"), parse(f"{dtype}[3]{{0:T(8)E({width})}}")
    array = np.zeros(3, plain.numpy_dtype)
    wide = plain.pack(array, fill=fill).view(np.uint8) & ((1 << width) - 1)
    assert wide.tolist() == [0] * 3 + [bits] * 5
    everything = int.from_bytes(narrow.pack(array, fill=fill).tobytes(), "little")
    assert [everything >> (width * k) & ((1 << width) - 1) for k in range(8)] == wide.tolist()


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3fn", "f16", "f64", "c64", "u64", "s64"])
def test_fill_of_every_width(dtype):
    layout = parse(f"{dtype}[3]{{0:T(4)}}")
    buffer = layout.pack(np.zeros(3, layout.numpy_dtype), fill=3)
    assert buffer[3] == np.array(3).astype(layout.numpy_dtype)
    assert not buffer[:3].any()


def test_metadata_in_front_of_the_data_moves_every_byte():
    plain, prefixed = parse("f32[<=8]{0}"), parse("f32[<=8]{0:M(4)}")
    assert prefixed.metadata_prefix == 4
    assert (plain.size_bytes, prefixed.size_bytes) == (32, 32)
    assert not is_bitcast(plain, prefixed)
    assert is_bitcast(prefixed, prefixed)
    assert "M(0)" in relayout(plain, prefixed).reason
