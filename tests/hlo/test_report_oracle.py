"""Reports on real TPU dumps against an oracle of its own: every element's offset, enumerated with numpy."""

import re
from functools import cache
from math import prod

import numpy as np
import pytest

from tilewright.hlo import load, report

BITS = {"f32": 32, "s32": 32, "u32": 32, "bf16": 16, "s8": 8, "pred": 8}
SHAPE = re.compile(r"(\w+)\[([\d,]*)\]\{([\d,]*)(?::((?:T?\([\d,]+\))+))?")


def read(text):
    """(dtype, dims, minor_to_major, tiles) of a shape's text, by a reading of its own."""
    dtype, dims, order, tiles = SHAPE.match(text).groups()
    levels = [tuple(map(int, level.split(","))) for level in re.findall(r"\(([\d,]+)\)", tiles or "")]
    numbers = [tuple(map(int, part.split(","))) if part else () for part in (dims, order)]
    return dtype, *numbers, levels


@cache
def offsets(text):
    """(offset of every element in row-major order of the dims, number of slots)."""
    _, dims, order, levels = read(text)
    major_to_minor = order[::-1]
    digits = [index.astype(np.int64) for index in np.indices(dims, np.int32, sparse=True)]
    coordinates, extents = [digits[d] for d in major_to_minor], [dims[d] for d in major_to_minor]
    for tile in levels:
        missing = len(tile) - len(extents)
        coordinates, extents = [np.int64(0)] * missing + coordinates, [1] * max(0, missing) + extents
        k = len(extents) - len(tile)
        inner = [c % t for c, t in zip(coordinates[k:], tile)]
        coordinates = coordinates[:k] + [c // t for c, t in zip(coordinates[k:], tile)] + inner
        extents = extents[:k] + [-(-e // t) for e, t in zip(extents[k:], tile)] + list(tile)
    place = np.zeros(dims, np.int64)
    for coordinate, extent in zip(coordinates, extents):
        place = place * extent + coordinate
    return place.reshape(-1), prod(extents)


@cache
def size(text):
    places, slots = offsets(text)
    taken = np.zeros(slots, bool)
    taken[places] = True
    assert taken.sum() == places.size
    return slots * BITS[read(text)[0]] // 8


def box(text, dims):
    """The text of an array of other dims in the same layout."""
    return re.sub(r"\[[\d,]*\]", f"[{','.join(map(str, dims))}]", text, count=1)


def counted(row):
    """Bytes of one counted row by the rules of docs/report.md, with enumerated sizes."""
    written = size(row.to_layout)
    if row.op in ("copy", "copy-start", "reshape", "transpose", "broadcast"):
        return size(row.from_layout) + written
    if row.op in ("slice", "slice-start"):
        strides = re.findall(r"\[(\d+):(\d+)", row.reason)
        return size(box(row.from_layout, [int(high) - int(low) for low, high in strides])) + written
    raise AssertionError(f"{row.op} has no rule here")


@pytest.mark.parametrize("name", ["v5e_reshape_zoo", "v5e_patent_rb", "v5e_transformer2_grad"])
def test_totals_of_a_dump(data_folder, name):
    found = report(load(data_folder / f"hlo_tpu/{name}.after.hlo"))
    moving = [row for row in found.rows if row.moved_bytes]
    assert [row.moved_bytes for row in moving] == [counted(row) for row in moving]
    assert found.moved_bytes == sum(map(counted, moving)) > 0
    assert len(moving) >= 2


@pytest.mark.parametrize("name", ["v5e_reshape_zoo", "v5e_patent_rb", "v5e_transformer2_grad"])
def test_bitcasts_of_a_dump(data_folder, name):
    """Each reshape, transpose and copy, also inside fusions: is every element where it was?"""
    program = load(data_folder / f"hlo_tpu/{name}.after.hlo")
    found = report(program)
    permutations = {op.name: op.integers("dimensions") for _, op in program.operations() if op.opcode == "transpose"}
    seen = 0
    for row in found.rows:
        if row.op not in ("reshape", "transpose", "copy") or "(" in row.from_layout[:1]:
            continue
        before, slots = offsets(row.from_layout)
        if row.op == "transpose":
            before = before.reshape(read(row.from_layout)[1]).transpose(permutations[row.name]).reshape(-1)
        after, slots_after = offsets(row.to_layout)
        same = slots == slots_after and row.from_space == row.to_space and np.array_equal(before, after)
        assert row.bitcast == (same and row.op != "copy"), row
        seen += 1
    assert seen >= {"v5e_reshape_zoo": 6, "v5e_patent_rb": 0, "v5e_transformer2_grad": 15}[name]


def test_registers_are_what_the_bytes_fill(data_folder):
    """A register of a TPU holds 8 x 128 words: 4096 bytes."""
    found = report(load(data_folder / "hlo_tpu/v5e_reshape_zoo.after.hlo"))
    for row in found.rows:
        assert row.registers_before == -(-size(row.from_layout) // 4096)
        assert row.registers_after == -(-size(row.to_layout) // 4096)
