"""The cost of one operation: against a slow count of offsets, and the words that explain it."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.errors import UnsupportedError, UsageError
from tilewright.hlo.cost import check_shapes, movement, permutation_of, place, plain_opcode
from tilewright.hlo.reporting.rows import relayout_reason
from tilewright.layout import parse
from tilewright.layout.index.types import xla_dtype
from tilewright.targets import target


def slow_padded_bytes(text):
    """Bytes of a tiled array by rounding up the physical dims; right where later tiles add no padding."""
    layout = parse(text)
    physical = [layout.shape[d] for d in reversed(layout.minor_to_major)]
    if layout.tiles:
        tile = layout.tiles[0]
        physical = [1] * (len(tile) - len(physical)) + physical
        for k in range(1, len(tile) + 1):
            physical[-k] = -(-physical[-k] // tile[-k]) * tile[-k]
    return prod(physical) * np.dtype("f4").itemsize


def slow_bitcast(a, b, permutation):
    """Does every element keep its offset? By listing them all."""
    order = permutation or range(a.rank)
    places = np.array([a.offset(*index) for index in product(*map(range, a.shape))]).reshape(a.shape)
    after = np.array([b.offset(*index) for index in product(*map(range, b.shape))])
    same_bytes = a.size_bytes == b.size_bytes
    return same_bytes and np.array_equal(places.transpose(order).reshape(-1), after)


@st.composite
def laid_out(draw, shape):
    order = draw(st.permutations(range(len(shape))))
    tile = draw(st.sampled_from(["", ":T(2,4)", ":T(8)", ":T(4,2)", ":T(2,4)(2,1)"]))
    return f"f32[{','.join(map(str, shape))}]{{{','.join(map(str, order))}{tile if shape else ''}}}"


@st.composite
def rearrangements(draw):
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=3))
    permutation = tuple(draw(st.permutations(range(len(shape)))))
    name = draw(st.sampled_from(["reshape", "transpose", "broadcast"]))
    if name == "transpose":
        result = [shape[dim] for dim in permutation]
    elif name == "broadcast":
        result = [shape[permutation.index(dim)] for dim in range(len(shape))]
    else:
        total = prod(shape)
        first = draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
        result = [first, total // first]
    dimensions = None if name == "reshape" else permutation
    return name, draw(laid_out(shape)), draw(laid_out(result)), dimensions


@settings(max_examples=tries(40))
@given(rearrangements())
def test_rearrangements_against_a_slow_count(case):
    name, before, after, dimensions = case
    a, b = parse(before), parse(after)
    cost = movement(name, [a], b, dimensions)
    free = slow_bitcast(a, b, permutation_of(name, dimensions))
    assert cost.bitcast == free
    assert cost.moved_bytes == (0 if free else slow_padded_bytes(before) + slow_padded_bytes(after))
    reason = relayout_reason(a, b, permutation_of(name, dimensions), free)
    assert reason.startswith("a bitcast") == free


def test_other_operations_read_and_write():
    a, b = parse("f32[3,5]{1,0:T(8,128)}"), parse("f32[6,5]{1,0:T(8,128)}")
    assert movement("concatenate", [a, a], b, (0,)).bytes_read == 2 * 4096
    assert movement("stablehlo.broadcast_in_dim", [parse("f32[5]{0:T(128)}")], a, (1,)).moved_bytes == 512 + 4096
    assert movement("copy", [a], a).moved_bytes == 2 * 4096
    assert movement("bitcast", [a], a).moved_bytes == 0


def test_a_memory_space_is_a_move():
    a, b = parse("f32[8,128]{1,0:T(8,128)}"), parse("f32[8,128]{1,0:T(8,128)S(1)}")
    assert movement("reshape", [a], b).moved_bytes == 8192
    assert movement("reshape", [b], b).moved_bytes == 0


def test_the_head_split_of_the_specification():
    """f32[8,512,16,64]: one copy [8,512,1024]{2,1,0} -> {1,2,0}, and then a bitcast."""
    chip = target("tpu-v5e")
    split = place((8, 512, 16, 64), "f32", chip)
    assert str(split) == "f32[8,512,16,64]{1,3,2,0:T(8,128)}"
    assert not movement("reshape", [place((8, 512, 1024), "f32", chip)], split).bitcast
    assert movement("reshape", [parse("f32[8,512,1024]{1,2,0:T(8,128)}")], split).bitcast


def test_places_by_the_targets_rule():
    assert str(place((1048576, 1), "f32", target("tpu-v4"))) == "f32[1048576,1]{0,1:T(1,128)}"
    assert str(place((300, 1), "f32", target("vector8x128"))).startswith("f32[300,1]{1,0:T(8,128)}")
    assert str(place((300, 1), "bf16", target("cpu"))) == "bf16[300,1]{1,0}"
    with pytest.raises(UnsupportedError, match="lanes"):
        place((300, 1), "f32", target("bm1684x"))


def test_group_norm_figures_of_the_specification():
    """[8,32,32,256] with 32 groups under T(8,128): the split of the channels pads 8 to 128."""
    chip = target("vector8x128")
    big = movement("reshape", [place((8, 32, 32, 256), "f32", chip)], place((8, 32, 32, 32, 8), "f32", chip))
    assert big.moved_bytes == 8 * 32 * 32 * 256 * 4 + 8 * 32 * 32 * 32 * 128 * 4


@pytest.mark.parametrize(
    ("before", "after", "permutation", "words"),
    [
        (
            "f32[336,50]{1,0:T(8,128)}",
            "f32[16800]{0:T(1024)}",
            None,
            "dims 0 (336) and 1 (50) merge into dim 0 (16800), but dim 1 (50) is cut by the tile 128",
        ),
        (
            "f32[50,336]{1,0:T(8,128)}",
            "f32[50,2,168]{2,1,0:T(2,128)}",
            None,
            "dim 1 (336) splits into dims 1 (2) and 2 (168), but dim 2 (168) of the result is cut by the tile 128",
        ),
        (
            "f32[12,10]{1,0:T(8,128)}",
            "f32[8,15]{1,0:T(8,128)}",
            None,
            "dims 0 (12) and 1 (10) regroup into dims 0 (8) and 1 (15), but dim 1 (10) is cut by the tile 128"
            " and dim 1 (15) of the result is cut by the tile 128",
        ),
        (
            "f32[8,128]{1,0}",
            "f32[128,8]{1,0}",
            (1, 0),
            "the order of the elements changes: dim 1 (128) was the fastest, dim 1 (8) is now",
        ),
        (
            "f32[8,4,2]{2,1,0}",
            "f32[8,4,2]{2,0,1}",
            None,
            "the slower dims change places: dims 0, 1, 2 from major to minor, dims 1, 0, 2 now",
        ),
        (
            "f32[8,4,3,2]{3,2,1,0}",
            "f32[8,3,4,2]{3,2,1,0}",
            (0, 2, 1, 3),
            "the slower dims change places: dims 0, 1, 2, 3 from major to minor, dims 0, 2, 1, 3 now",
        ),
        ("f32[8,128]{1,0:T(8,128)}", "f32[8,128]{1,0:T(4,128)}", None, "the tiles change from T(8,128) to T(4,128)"),
        (
            "f32[8,128]{1,0:T(8,128)}",
            "f32[8,1,128]{2,1,0:T(8,128)}",
            None,
            "the padding changes: 4096 bytes become 32768; dim 1 (1) of the result fills part of the tile 8",
        ),
        ("f32[8]{0}", "f32[8]{0:L(16)}", None, "the padding changes: 32 bytes become 64"),
        ("f32[0,4]{1,0}", "f32[4,0]{1,0:T(8)}", None, "an array without elements"),
        (
            "f32[48,7,50]{2,0,1:T(8,128)}",
            "f32[48,350]{1,0:T(8,128)}",
            None,
            "dims 1 (7) and 2 (50) merge into dim 1 (350), which do not lie side by side in order in the layout before,"
            " {2,0,1}",
        ),
    ],
)
def test_reasons(before, after, permutation, words):
    assert relayout_reason(parse(before), parse(after), permutation, False) == words


@pytest.mark.parametrize(
    ("name", "operands", "result", "dimensions", "reason"),
    [
        ("transpose", ["f32[4,6]"], "f32[6,4]", (1, 7), "not an order"),
        ("transpose", ["f32[4,6]"], "f32[4,6]", (1, 0), r"are \[6,4\]"),
        ("broadcast", ["f32[4]"], "f32[4,2]", (1,), "cannot become dim 1"),
        ("broadcast", ["f32[4]"], "f32[4,2]", (0, 1), "do not name one dim"),
        ("broadcast", ["f32[4]"], "f32[4,2]", (-1,), "cannot become"),
        ("concatenate", ["f32[4]", "f32[3]"], "f32[6]", (0,), "adds up to 7"),
        ("concatenate", ["f32[4,1]", "f32[3,2]"], "f32[7,2]", (0,), "do not join"),
        ("concatenate", ["f32[4]"], "f32[4]", None, "the one dim to join"),
        ("copy", ["f32[4]"], "f32[5]", None, "the operand is"),
        ("slice", ["f32[4]"], "f32[5,1]", None, "has 1 dims"),
    ],
)
def test_shapes_that_contradict_each_other(name, operands, result, dimensions, reason):
    with pytest.raises(UsageError, match=reason):
        check_shapes(name, [parse(text) for text in operands], parse(result), dimensions)


def test_names():
    assert plain_opcode("copy-start") == "copy-start"
    assert [xla_dtype(name) for name in ("ui32", "i4", "complex<f64>", "bf16")] == ["u32", "s4", "c128", "bf16"]
