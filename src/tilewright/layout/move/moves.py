"""Moves between arrays and layouts: plans are made once per pair of address maps and kept, then run by threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.move.blocks import LINE, NO_GAPS
from tilewright.layout.move.calls import MovePlan, run_plan
from tilewright.layout.move.nest import Box, array_terms, boxes_of, layout_terms, line_up
from tilewright.layout.move.plan import clipped, left_over, plan_moves

Array = np.ndarray[Any, Any]
_KEPT = 64


def aligned_empty(count: int, dtype: np.dtype[Any]) -> Array:
    """An uninitialised array that starts on a cache line, so that whole lines can be streamed into it."""
    raw = np.empty(count * dtype.itemsize + LINE, np.uint8)
    first = -raw.ctypes.data % LINE
    return raw[first : first + count * dtype.itemsize].view(dtype)


# -- plans -------------------------------------------------------------------------------------------------------------


def _layout_to_array(
    layout: AddressMap, shape: tuple[int, ...], strides: Sequence[int], slot: int, packing: bool
) -> list[Box] | None:
    tiled = layout_terms(layout, slot)
    if tiled is None:
        return None
    array, (base, terms) = array_terms(strides), tiled
    if packing:
        return boxes_of(line_up(shape, array, shape, terms), (0, base))
    return boxes_of(line_up(shape, terms, shape, array), (base, 0))


def _padding(boxes: Sequence[Box], size: int, total: int) -> Array | None:
    """int64[n, 2]: first byte and bytes of what no box writes; None where there is so much that a fill is faster."""
    starts, lengths = [np.array([total])], [np.array([0])]
    for box in boxes:
        extent, places = size, box.targets
        loops = sorted(box.loops, key=lambda x: x.target)
        inner = 0
        while inner < len(loops) and loops[inner].target == extent:
            extent *= loops[inner].count
            inner += 1
        count = len(places)
        for loop in loops[inner:]:
            count *= loop.count
        if count > total // 512 + 64:
            return None
        for loop in loops[inner:]:
            places = (places[:, None] + np.arange(loop.count) * loop.target).reshape(-1)
        starts.append(places)
        lengths.append(np.full(len(places), extent))
    begin, length = np.concatenate(starts), np.concatenate(lengths)
    order = np.argsort(begin, kind="stable")
    ends = np.concatenate([[0], (begin + length)[order]])[:-1]
    bytes_left = begin[order] - ends
    gaps: Array = np.stack([ends, bytes_left], axis=-1)[bytes_left > 0]
    return gaps


def _filled_plan(boxes: Sequence[Box], slot: int, total: int, aligned: bool) -> tuple[MovePlan, bool] | None:
    """A plan that writes padding too, and whether there is so much of it that the target is filled beforehand."""
    gaps = _padding(boxes, slot, total)
    whole, gaps = gaps is None, NO_GAPS if gaps is None else gaps
    plan = plan_moves(boxes, slot, total, by_target=True, aligned=aligned, gaps=gaps)
    return None if plan is None else (replace(plan, pads=left_over(plan, gaps)), whole)


@lru_cache(maxsize=_KEPT)
def pack_plan(layout: AddressMap, strides: tuple[int, ...], slot: int, aligned: bool) -> tuple[MovePlan, bool] | None:
    """How an array of these strides (in bytes) goes into a buffer of ``slot``-byte slots; None without boxes."""
    total = layout.num_slots * slot
    boxes = _layout_to_array(layout, layout.shape, strides, slot, packing=True)
    return _filled_plan(boxes, slot, total, aligned) if boxes else None


@lru_cache(maxsize=_KEPT)
def unpack_plan(layout: AddressMap, strides: tuple[int, ...], slot: int, aligned: bool) -> MovePlan | None:
    """How a buffer of ``slot``-byte slots goes into an array of these strides (in bytes); None without boxes."""
    total = layout.num_elements * slot
    boxes = _layout_to_array(layout, layout.shape, strides, slot, packing=False)
    if not boxes:
        return None
    return _ragged_rows(layout, strides, slot, aligned) or plan_moves(boxes, slot, total, False, aligned)


def _ragged_rows(layout: AddressMap, strides: tuple[int, ...], slot: int, aligned: bool) -> MovePlan | None:
    """How to unpack ragged rows as if they ended with their last tile; None where that does not help.

    The padding behind a row's end is read and goes no further than the scratch memory. All tiles are alike then, and
    a row that is written piece by piece has no seam where its last, narrow tile begins.
    """
    sizes = [n for n in layout.shape[:-1] if n > 1]
    steps = [step for n, step in zip(layout.shape[:-1], strides, strict=False) if n > 1]
    terms = layout_terms(layout, slot)
    if not sizes or strides[-1] != slot or terms is None:
        return None
    row, pitch = layout.shape[-1] * slot, min(steps)
    whole = max((mark for term in terms[1][-1] for mark in term.marks if mark < layout.shape[-1]), default=1)
    beyond = -layout.shape[-1] % whole
    if not beyond or pitch < row or any(step % pitch for step in steps):
        return None
    shape = (*layout.shape[:-1], layout.shape[-1] + beyond)
    boxes = _layout_to_array(layout, shape, strides, slot, packing=False)
    if not boxes or any(box.reach[0] < 0 or box.reach[1] + slot > layout.num_slots * slot for box in boxes):
        return None
    plan = plan_moves(boxes, slot, layout.num_elements * slot, False, aligned)
    return None if plan is None else clipped(plan, row, beyond * slot, pitch)


@lru_cache(maxsize=_KEPT)
def relayout_plan(
    a: AddressMap, b: AddressMap, order: tuple[int, ...], slot: int, aligned: bool
) -> tuple[MovePlan, bool] | None:
    """How a buffer of layout ``a`` goes into one of layout ``b`` = reshape(transpose(a, order)); None without boxes."""
    boxes = relayout_boxes(a, b, order, slot)
    return _filled_plan(boxes, slot, b.num_slots * slot, aligned) if boxes else None


def relayout_boxes(a: AddressMap, b: AddressMap, order: Sequence[int], slot: int) -> list[Box] | None:
    """The boxes of a move from layout to layout."""
    ours, theirs = layout_terms(a, slot), layout_terms(b, slot)
    if ours is None or theirs is None:
        return None
    shape, terms = tuple(a.shape[d] for d in order), tuple(ours[1][d] for d in order)
    return boxes_of(line_up(shape, terms, b.shape, theirs[1]), (ours[0], theirs[0]))


# -- padding -----------------------------------------------------------------------------------------------------------


def padding_of(fill: Any, dtype: np.dtype[Any]) -> int | None:
    """8 bytes of elements ``fill``, as the kernel takes them; None for a complex one whose halves differ."""
    words = np.full(max(1, 8 // dtype.itemsize), fill, dtype).view(np.int64)
    return int(words[0]) if (words == words[0]).all() else None


def run_filled(filled_plan: tuple[MovePlan, bool], target: Array, source: Array, fill: Any) -> None:
    """Move the data and put ``fill`` (a value of the target's type) into all padding."""
    plan, whole = filled_plan
    value = padding_of(fill, target.dtype)
    if whole or value is None:
        target[:] = fill
        run_plan(replace(plan, pads=NO_GAPS) if len(plan.pads) else plan, target, source)
    else:
        run_plan(plan, target, source, value)
