"""An allocator message, explained: the entrance to this folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import TilewrightError, UsageError
from tilewright.hlo.allocation.advice import advice, meaning
from tilewright.hlo.allocation.fixes import Explained, Fix, find_fixes, together
from tilewright.hlo.allocation.message import Allocation, AllocatorMessage
from tilewright.hlo.allocation.reading import read_messages
from tilewright.hlo.allocation.shape import PaddedShape, padded_shape
from tilewright.hlo.allocation.size import StatedSize


@dataclass(frozen=True)
class AllocationReport:
    """One message, explained.

    =============  ==========================================================================================
    ``message``    what it says
    ``meaning``    what happened, in a sentence
    ``shapes``     number of the allocation -> its shape, recomputed
    ``fixes``      changes to arrays, by bytes saved
    ``advice``     what else helps
    ``unread``     what is in the text but could not be read, or is not as the layouts say
    =============  ==========================================================================================
    """

    message: AllocatorMessage
    meaning: str
    shapes: dict[int, PaddedShape]
    fixes: tuple[Fix, ...]
    advice: tuple[str, ...]
    unread: tuple[str, ...]

    @property
    def padding_bytes(self) -> int:
        """Bytes without data in all allocations that are listed."""
        return sum(shape.padding for shape in self.shapes.values())

    @property
    def saved_together(self) -> int:
        """Bytes that the best fix of every allocation saves."""
        return together(self.fixes)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        message = self.message
        return {
            "kind": message.kind.value,
            "space": message.space,
            "code": message.code,
            "meaning": self.meaning,
            "used": _size(message.used),
            "limit": _size(message.limit),
            "excess_bytes": message.excess,
            "free": _size(message.free),
            "reservable": _size(message.reservable),
            "largest_free": _size(message.largest_free),
            "sparsecores": _size(message.sparsecores),
            "program": message.program,
            "instruction": message.instruction.name,
            "totals": {name: _size(size) for name, size in message.totals},
            "requirement": _size(message.requirement),
            "parts": {name: _size(size) for name, size in message.parts},
            "utilization": message.utilization,
            "fragmentation": message.fragmented,
            "output": _size(message.output),
            "output_shared": _size(message.shared),
            "allocations": [self._allocation(each) for each in message.allocations],
            "padding_bytes": self.padding_bytes,
            "fixes": [fix.to_json() for fix in self.fixes],
            "saved_together_bytes": self.saved_together,
            "advice": list(self.advice),
            "unread": list(self.unread),
        }

    def _allocation(self, each: Allocation) -> dict[str, Any]:
        shape = self.shapes.get(each.number)
        return {
            "number": each.number,
            "size": _size(each.size),
            "unpadded": _size(each.unpadded),
            "shape": each.shape,
            "op_type": each.op_type,
            "op_name": each.op_name,
            "source": each.source,
            "instruction": each.label.name,
            "opcode": each.label.opcode,
            "label": each.label.text,
            "type": each.type,
            "tag": each.tag,
            "layout": shape.to_json() if shape else None,
        }


def _size(size: StatedSize | None) -> dict[str, Any] | None:
    return None if size is None else {"text": size.text, "bytes": size.bytes}


def explain_allocation(text: str) -> tuple[AllocationReport, ...]:
    """Every TPU allocator message in a text (pasted, or a whole log), explained, each once.

    Raises :class:`UsageError` where there is none.

    >>> found = explain_allocation('''Ran out of memory in memory space hbm. Used 41.74G of 16.00G hbm.
    ...   Largest program allocations in hbm:
    ...   1. Size: 32.00G
    ...      Shape: s32[8388608,8,4]{2,1,0:T(8,128)}
    ...      Unpadded size: 1.00G
    ...      Allocation type: HLO temp''')[0]
    >>> found.shapes[1].bytes, found.fixes[0].after, found.fixes[0].saved
    (34359738368, 's32[8,4,8388608]{2,1,0:T(4,128)}', 33285996544)
    """
    messages = read_messages(text)
    if not messages:
        raise UsageError(
            "no TPU allocator message in the text",
            where="explain-error",
            how='paste it from "Ran out of memory", "Attempting to allocate" or "Largest program allocations" on',
        )
    return tuple(_explain(message) for message in messages)


def _explain(message: AllocatorMessage) -> AllocationReport:
    explained: list[Explained] = []
    notes = [*message.unread, *_disagreeing_head(message)]
    seen: set[int] = set()
    largest = 0
    renumbered = []
    for each in message.allocations:  # a list pasted twice over: numbers name one allocation each
        number = each.number if each.number not in seen else largest + 1
        seen.add(number)
        largest = max(largest, number)
        renumbered.append(each if number == each.number else replace(each, number=number))
    message = replace(message, allocations=tuple(renumbered))
    for each in message.allocations:
        if not each.shape:
            continue
        try:
            shape = padded_shape(each.shape, each.size, each.windows)
        except TilewrightError as error:
            notes.append(f"allocation {each.number}: the shape {each.shape[:80]!r}: {error.what}")
            continue
        explained.append((each, shape))
        notes += _disagreeing(each, shape)
    shapes = {allocation.number: shape for allocation, shape in explained}
    fixes = find_fixes(explained, message.space)
    return AllocationReport(message, meaning(message), shapes, fixes, advice(message, explained), tuple(notes))


def _disagreeing(each: Allocation, shape: PaddedShape) -> Iterator[str]:
    """Where the message and the layout do not come to the same bytes."""
    for name, stated, count in (
        ("Size", each.size, shape.bytes),
        ("Unpadded size", each.unpadded, shape.data_bytes),
        ("Extra memory due to padding", each.padding, shape.padding),
    ):
        if stated is not None and not stated.covers(count):
            yield f"allocation {each.number}: {name} says {stated.text}, {shape.shape} comes to {count:,} bytes"


def _disagreeing_head(message: AllocatorMessage) -> Iterator[str]:
    used, limit, over = message.used, message.limit, message.over
    if used and limit and over and not used.low - limit.high - 2**20 <= over.bytes <= used.high - limit.low + 2**20:
        yield f"the head: {used.text} of {limit.text} is not {over.text} too much"
