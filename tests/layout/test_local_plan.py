"""The planner of an NPU's local memory against a byte-by-byte oracle."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.layout.oracle import all_indices
from tilewright.errors import UsageError
from tilewright.layout import (
    LocalMemoryError,
    LocalTensor,
    lane_matrix,
    lane_weights,
    lanes,
    plan_local_memory,
)
from tilewright.targets import LaneMemory

SMALL = LaneMemory(npu_num=3, eu_bytes=8, local_bytes=512, banks=4, ic_parallel=4)


def owned(layout, base, indices=None):
    """Every (NPU, byte) that an element lies in, one element after the other."""
    found = set()
    for index in all_indices(layout.shape) if indices is None else indices:
        npu, offset = layout.address(*index).values()
        first = base * 8 + offset * layout.element_bits
        found |= {(npu, bit // 8) for bit in range(first, first + layout.element_bits)}
    return found


@st.composite
def layouts(draw):
    dtype = draw(st.sampled_from(["s8", "f16", "f32", "s4"]))
    start = draw(st.integers(0, 2))
    mode = draw(
        st.sampled_from(["aligned", "compact", "row_aligned"]) | st.tuples(*(st.integers(0, 9) for _ in "NCHW"))
    )
    shape = draw(st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3)))
    rule = draw(st.sampled_from(["with_start", "without_start"]))
    return lanes(shape, dtype, SMALL, start=start, mode=mode, n_stride=rule)


@st.composite
def tensors(draw, based):
    found = []
    for name in "abcd"[: draw(st.integers(1, 4))]:
        layout = draw(layouts())
        unit = 8 if layout.needs_aligned_base else max(1, layout.element_bits // 8)
        base = draw(st.integers(0, 200 // unit)) * unit if draw(based) else None
        found.append(LocalTensor(name, layout, base))
    return found


def collide(placed):
    """Whether any two tensors own a byte together."""
    return any(owned(a.layout, a.base) & owned(b.layout, b.base) for a, b in combinations(placed, 2))


@given(tensors(st.just(True)))
def test_fixed_bases_collide_exactly_where_bytes_do(given_tensors):
    clash = collide(given_tensors)
    over = [t for t in given_tensors if t.base + t.layout.bytes_per_npu > 512]
    try:
        plan = plan_local_memory(given_tensors, SMALL)
    except LocalMemoryError as error:
        assert error.tensor in [t.name for t in over]
    except UsageError as error:
        assert clash, error
    else:
        assert not clash
        assert not over
        assert [t.base for t in plan.tensors] == [t.base for t in given_tensors]


@given(tensors(st.booleans()), st.lists(st.sets(st.sampled_from("abcd"), min_size=2, max_size=3), max_size=3))
def test_a_plan_is_true_byte_by_byte(given_tensors, instructions):
    names = {t.name for t in given_tensors}
    instructions = [sorted(operands & names) for operands in instructions]
    try:
        plan = plan_local_memory(given_tensors, SMALL, instructions)
    except UsageError:
        assume(False)
    assert not collide(plan.tensors)
    size = SMALL.bank_bytes
    banks = {t.name: {byte // size for _, byte in owned(t.layout, t.base)} for t in plan.tensors}
    for tensor in plan.tensors:
        mine = owned(tensor.layout, tensor.base)
        assert set(tensor.banks) == banks[tensor.name]
        assert all(tensor.base <= byte < tensor.end <= 512 for _, byte in mine)
        if tensor.layout.injective:
            bits = tensor.layout.element_bits
            held = [0, 0, 0]
            for index in all_indices(tensor.layout.shape):
                held[tensor.layout.address(*index)["npu"]] += bits
            assert tensor.data_bytes_per_npu == tuple(-(-h // 8) for h in held)
            if bits >= 8:
                holes = tensor.start_hole + tensor.tail_hole + tensor.inside_hole
                assert holes == 3 * tensor.layout.bytes_per_npu - len(mine)
    expected = {
        (number, a, b): banks[a] & banks[b]
        for number, operands in enumerate(instructions)
        for a, b in combinations(operands, 2)
        if banks[a] & banks[b]
    }
    assert {(c.instruction, c.first, c.second): set(c.banks) for c in plan.conflicts} == expected
    used = [range(t.base, t.end) for t in plan.tensors]
    free = [b for b in range(plan.bytes_used) if not any(b in r for r in used)]
    assert free == [b for first, end in plan.gaps for b in range(first, end)]
    assert plan.bytes_free == 512 - plan.bytes_used


@given(tensors(st.just(False)))
def test_chosen_bases_are_the_lowest(given_tensors):
    """Without instructions the first fit: no lower aligned base was free when the tensor was placed."""
    try:
        plan = plan_local_memory(given_tensors, SMALL)
    except LocalMemoryError as error:
        assert error.bytes_short > 0
        return
    for k, tensor in enumerate(plan.tensors):
        unit = 8 if tensor.layout.needs_aligned_base else max(1, tensor.layout.element_bits // 8)
        assert tensor.base % unit == 0  # line 26 of the text: an aligned tensor begins at a multiple of EU_BYTE
        taken = [range(t.base, t.end) for t in plan.tensors[:k] if t.end > t.base]
        size = tensor.layout.bytes_per_npu
        for base in range(0, tensor.base, unit):
            assert any(base < r.stop and r.start < base + size for r in taken)


def test_holes_of_the_start_index():
    layout = lanes((2, 3, 2, 2), "f16", SMALL, start=2)  # NPUs 2, 0, 1: two rows of 8 bytes per batch
    tensor = plan_local_memory([LocalTensor("x", layout)], SMALL)["x"]
    assert layout.bytes_per_npu == 32
    assert (tensor.start_hole, tensor.tail_hole, tensor.inside_hole) == (2 * 2 * 8, 2 * 8, 0)
    assert tensor.data_bytes_per_npu == (16, 16, 16)


def test_operands_are_kept_in_banks_of_their_own():
    layout = lanes((1, 3, 1, 16), "s8", SMALL)  # 16 bytes
    operands = [LocalTensor(n, layout) for n in "abc"]
    plan = plan_local_memory(operands, SMALL, [("a", "b"), ("b", "c")])
    assert [(t.base, t.banks) for t in plan.tensors] == [(0, (0,)), (128, (1,)), (16, (0,))]
    assert plan.conflicts == ()
    assert plan.gaps == ((32, 128),)
    crowded = plan_local_memory([LocalTensor(n, lanes((1, 3, 1, 120), "s8", SMALL)) for n in "abcd"], SMALL)
    assert crowded.bytes_used == 480
    pair = [LocalTensor("a", layout, 0), LocalTensor("b", layout, 16)]
    (conflict,) = plan_local_memory(pair, SMALL, [("a", "b", "a")]).conflicts
    assert (conflict.first, conflict.second, conflict.banks) == ("a", "b", (0,))


def test_the_rest_of_the_family_and_json():
    weights = LocalTensor("w", lane_weights((4, 5, 3, 3), "s8", SMALL))
    matrix = LocalTensor("m", lane_matrix(4, 7, "f16", SMALL, columns_per_npu=2))
    plan = plan_local_memory([weights, matrix], SMALL, [("w", "m")])
    assert plan["w"].data_bytes_per_npu == (90, 45, 45)
    assert sum(plan["m"].data_bytes_per_npu) == 4 * 7 * 2
    assert plan.data_bytes_per_npu[0] == 90 + plan["m"].data_bytes_per_npu[0]
    value = json.loads(json.dumps(plan.to_dict()))
    assert value["tensors"][0] == {
        "name": "w",
        "layout": str(weights.layout),
        "base": 0,
        "end": 144,
        "bytes_per_npu": 144,
        "banks": [0, 1],
        "start_hole": 0,
        "tail_hole": 144,
        "inside_hole": 4 * 27,
    }
    with pytest.raises(UsageError, match="no tensor called"):
        plan["x"]


def test_overflow_names_the_tensor_and_the_bytes_short():
    big = lanes((4, 64, 112, 112), "f32", "bm1684x")
    with pytest.raises(
        LocalMemoryError, match=r"x: 200704 bytes per NPU at base 100352 overflow .* by 38912 bytes"
    ) as e:
        plan_local_memory(
            [LocalTensor("y", lanes((2, 64, 112, 112), "f32", "bm1684x")), LocalTensor("x", big)], "bm1684x"
        )
    assert (e.value.tensor, e.value.bytes_short) == ("x", 38912)


ALIGNED = lanes((1, 3, 1, 4), "f16", SMALL)


@pytest.mark.parametrize(
    ("given_tensors", "message"),
    [
        ([LocalTensor("x", ALIGNED, 12)], "x: base 12 is not a multiple of 8 bytes; use 16"),
        ([LocalTensor("x", ALIGNED, -8)], "x: base -8 is not a multiple"),
        ([LocalTensor("x", lanes((1, 3, 1, 4), "f16", SMALL, mode="compact"), 3)], "not a multiple of 2 bytes; use 4"),
        ([LocalTensor("x", ALIGNED), LocalTensor("x", ALIGNED)], "two tensors"),
        ([LocalTensor("x", lanes((1, 3, 1, 4), "f16", "bm1684x"))], "not of this chip"),
        ([LocalTensor("x", ALIGNED, 0), LocalTensor("y", ALIGNED, 0)], "NPU 0 byte 0 belongs to x already"),
    ],
)
def test_refused_plans(given_tensors, message):
    with pytest.raises(UsageError, match=message):
        plan_local_memory(given_tensors, SMALL)


def test_refused_chips_and_instructions():
    with pytest.raises(UsageError, match="no lane memories"):
        plan_local_memory([], "tpu-v4")
    with pytest.raises(UsageError, match="no size"):
        plan_local_memory([], LaneMemory(3, 8, 0, 1))
    with pytest.raises(UsageError, match="the operand 'z' of instruction 0"):
        plan_local_memory([LocalTensor("x", ALIGNED)], SMALL, [("x", "z")])
    assert plan_local_memory([], SMALL).bytes_used == 0
