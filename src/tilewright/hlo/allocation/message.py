"""What a TPU allocator's message says, as records; nothing is computed here but what a rounded size stands for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from tilewright.render import bytes_text

SIZE = r"-?\d[\d,]{0,24}(?:\.\d{1,6})?\s?(?:[KMGTPE](?:i?B)?|B(?![a-z])|bytes)?"
"""A size in a larger pattern (no group of its own)."""

_PARTS = re.compile(r"(-?)(\d[\d,]*)(?:\.(\d+))?\s?([KMGTPE]?)")
_UNITS = {unit: 1 << (10 * power) for power, unit in enumerate(("", "K", "M", "G", "T", "P", "E"))}


@dataclass(frozen=True)
class StatedSize:
    """A size as written.

    >>> size = read_size("41.74G")
    >>> size.bytes, size.covers(44_818_000_000), size.covers(44_000_000_000)
    (44817983733, True, False)
    """

    text: str  # as written, without blanks at its ends
    bytes: int  # the nearest byte count
    low: int  # the smallest byte count that is written so
    high: int  # the largest

    def covers(self, count: int) -> bool:
        """Whether ``count`` bytes are written so."""
        return self.low <= count <= self.high

    def __str__(self) -> str:
        """As written, where it is written with a unit."""
        return self.text if self.text[-1:].isalpha() and len(self.text) < 12 else bytes_text(self.bytes)


def read_size(text: str) -> StatedSize | None:
    """The size at the start of ``text``; None where there is none."""
    found = _PARTS.match(text.strip())
    if found is None:
        return None
    sign, whole, fraction, letter = found.groups()
    unit = _UNITS[letter]
    number = Decimal(f"{whole.replace(',', '')}.{fraction or '0'}")
    half = Decimal(1).scaleb(-len(fraction or "")) / 2 if letter else Decimal(0)
    # From megabytes up the writer drops what is below a 1024th of the unit before it rounds.
    dropped = unit // 1024 if unit > 1024 else 0
    low, near, high = (int((number + part) * unit) for part in (-half, Decimal(0), half))
    if sign:
        low, near, high = -high, -near, -low
    return StatedSize(text.strip(), near, low, high + dropped)


class Kind(StrEnum):
    """What did not fit, and who said so."""

    PROGRAM = "program"  # the compiler: all buffers of a program in one memory space
    STACK = "stack"  # the compiler: what one instruction needs at once, its scoped memory
    SINGLE = "single"  # the compiler: one allocation is larger than the memory
    TEMPORARIES = "temporaries"  # the compiler: the intermediate values alone
    CORES = "cores"  # the compiler: TensorCore and SparseCores together
    ESTIMATE = "estimate"  # the compiler gave up early
    LOAD = "load"  # the runtime: a compiled program and its scratch memory
    BUFFER = "buffer"  # the runtime: an array
    LISTING = "listing"  # a list of allocations without its beginning


@dataclass(frozen=True)
class Label:
    """The instruction an allocation belongs to, as far as its label says."""

    text: str = ""  # the whole label
    name: str = ""  # ``copy.40488``, without the ``%``
    opcode: str = ""  # ``copy``, ``fusion``; "" where the label is no instruction or is cut
    operand: str = ""  # the first operand's shape, "" where the label names no shapes


@dataclass(frozen=True)
class Allocation:
    """One entry of the list of the largest allocations; None or "" where it says nothing."""

    number: int  # its place in the list
    size: StatedSize | None = None  # bytes with padding
    unpadded: StatedSize | None = None  # bytes without
    padding: StatedSize | None = None  # what padding adds
    expansion: float | None = None  # size over unpadded, as printed (one digit after the point)
    shape: str = ""  # its shape with its layout
    op_type: str = ""  # ``OneHot``
    op_name: str = ""  # what the framework calls it
    source: str = ""  # ``file.py:12``
    label: Label = field(default_factory=Label)  # its instruction
    type: str = ""  # ``HLO temp``, ``scoped``
    tag: str = ""  # what scoped memory is for, such as a kernel's window
    windows: int = 1  # copies of the shape it holds at once (2: double buffered)

    @property
    def spills(self) -> bool:
        """Whether it holds what found no register."""
        return "spill slots" in self.label.text

    @property
    def what(self) -> str:
        """The shortest thing that says where it comes from."""
        return self.op_name or self.label.name or self.label.text or self.tag


@dataclass(frozen=True)
class AllocatorMessage:
    """One message; None, "" or empty where it says nothing."""

    kind: Kind  # what did not fit
    space: str = "hbm"  # ``hbm``, ``vmem``, ``smem`` ...
    code: str = ""  # ``E1000``, where the message has one (or the name that belongs to one)
    used: StatedSize | None = None  # what is needed: by the program, the instruction or the request
    limit: StatedSize | None = None  # what there is
    over: StatedSize | None = None  # what is too much, as stated
    free: StatedSize | None = None  # the runtime: bytes that are free
    reservable: StatedSize | None = None  # the runtime: of those, the ones at the bottom
    largest_free: StatedSize | None = None  # the runtime: the largest free block
    sparsecores: StatedSize | None = None  # the SparseCores' part of ``used``, where they and TensorCores do not fit
    program: str = ""  # the program the runtime was loading
    instruction: Label = field(default_factory=Label)  # the instruction whose scoped memory is too small
    totals: tuple[tuple[str, StatedSize | None], ...] = ()  # "Total hbm usage": name -> size, None for "unknown size"
    requirement: StatedSize | None = None  # "Program hbm requirement"
    parts: tuple[tuple[str, StatedSize | None], ...] = ()  # name -> size of the requirement's parts
    utilization: float | None = None  # share of the temporaries that is data
    fragmented: float | None = None  # share of the temporaries that is holes
    output: StatedSize | None = None  # the outputs
    shared: StatedSize | None = None  # how much of the outputs lies in arguments
    allocations: tuple[Allocation, ...] = ()  # the list of the largest
    unread: tuple[str, ...] = ()  # what the text has but could not be read

    @property
    def excess(self) -> int | None:
        """Bytes that must go: as stated, else what is needed less what there is; None where neither is said."""
        if self.over is not None:
            return self.over.bytes
        runtime = [size.bytes for size in (self.free, self.reservable, self.largest_free) if size is not None]
        limit = None if self.limit is None else self.limit.bytes
        available = min(runtime) if runtime else limit
        return None if self.used is None or available is None else max(0, self.used.bytes - available)

    def total(self, name: str) -> StatedSize | None:
        """A size of "Total hbm usage" by its name."""
        return dict(self.totals).get(name)
