"""A pasted text -> the allocator messages in it, whatever else stands on their lines.

Nothing is taken from a line's beginning, so any log's prefix may stand there: a section or a field begins at its own
words, and its value ends with the line or where the next one begins. One pass of one pattern finds them all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from itertools import pairwise
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.layout import TensorLayout
from tilewright.layout.kinds.tiled import parse_prefix
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
    flag: str = ""  # the option that the message itself names
    instruction: Label = field(default_factory=Label)  # the instruction whose scoped memory is too small
    totals: tuple[tuple[str, StatedSize | None], ...] = ()  # "Total hbm usage": name -> size, None for "unknown size"
    requirement: StatedSize | None = None  # "Program hbm requirement"
    parts: tuple[tuple[str, StatedSize | None], ...] = ()  # name -> size of the requirement's parts
    utilization: float | None = None  # share of the temporaries that is data
    fragmentation: float | None = None  # share of the temporaries that is holes
    output: StatedSize | None = None  # the outputs
    output_shared: StatedSize | None = None  # how much of the outputs lies in arguments
    allocations: tuple[Allocation, ...] = ()  # the list of the largest
    flags: tuple[str, ...] = ()  # options that the message itself names: ``--xla_...=VALUE``
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


_FLAG = re.compile(r"--[a-z]\w{2,100}=[\w.-]{1,100}")


#: What a message consists of: how each part begins and what it says, by the fields of :class:`AllocatorMessage` that it
#: fills (and ``all``, ``dense``). A blank stands for any blanks, line ends too; of a field said twice the later counts.
_SAYS = {
    "ran": (
        r"Ran out of memory in memory space (?P<space>\w+)",
        rf"Used (?P<used>{SIZE}) of (?P<limit>{SIZE})",
        rf"Exceeded \w+ capacity by (?P<over>{SIZE})",
    ),
    "temporaries": (
        r"Ran out of memory on HBM",
        rf"temporaries \((?P<used>{SIZE})\) exceeds available HBM \((?P<limit>{SIZE})\)",
    ),
    "cores": (
        r"TensorCore Hbm usage:",
        rf"(?P<dense>{SIZE}), SparseCore Hbm usage:? (?P<sparsecores>{SIZE}), "
        rf"exceeding available bytes: (?P<limit>{SIZE})",
    ),
    "ask": (
        rf"Attempting to (?:reserve|allocate) (?P<used>{SIZE})",
        rf"There are (?P<free>{SIZE}) free",
        rf"(?P<reservable>{SIZE}) reservable",
        rf"largest contiguous region of free memory is (?P<largest_free>{SIZE})",
    ),
    "request": (
        rf"Failed to allocate request for (?P<used>{SIZE})",
        rf"Failed to allocate request for {SIZE}\s*\((?P<used>\d{{1,25}}B)\)",
    ),
    "single": (r"Allocation \(size=(?P<used>\d{1,25})\) would exceed memory \(size=(?P<limit>\d{1,25})\)",),
    "early": (
        r"Aborting compilation early",
        rf"Requires (?P<used>{SIZE}), has (?P<limit>{SIZE}) available",
        r"(?P<flag>--xla_\w{1,80}(?:=-?\w{1,20})?)",
    ),
    "scoped": (
        rf"Scoped allocation with size (?P<used>{SIZE}) and limit (?P<limit>{SIZE}) exceeded scoped (?P<space>\w+) "
        rf"limit(?: by (?P<over>{SIZE}))?",
    ),
    "total": (rf"Total (?P<space>\w+) usage (?:>= |&gt;= )?(?P<all>{SIZE}):?",),
    "program": (
        rf"Program (?P<space>\w+) requirement (?P<requirement>{SIZE}):?",
        r"(?<![\d.])(?P<utilization>\d{1,4}(?:\.\d{1,4})?)% utilization",
        r"(?<![\d.])(?P<fragmentation>\d{1,4}(?:\.\d{1,4})?)% fragmentation",
    ),
    "output": (rf"Output size (?:(?P<output>{SIZE})|unknown)", rf"shares (?P<output_shared>{SIZE}) with arguments"),
    "capacity": (rf"HBM capacity (?P<limit>{SIZE})",),
    "largest": (r"Largest program allocations in (?P<space>\w+)",),
}
_PATTERNS = {kind: [re.compile(each.replace(" ", r"\s+")) for each in several] for kind, several in _SAYS.items()}
_BEGINS = [f"(?P<{kind}>{re.sub('[?]P<[a-z_]+>', '?:', first.pattern)})" for kind, (first, *_) in _PATTERNS.items()]
_FIELD = (
    r"(?P<field>(?<!\S)(?:(?P<number>\d{1,4})\\?\.\s{1,4}(?=Size:))?"
    r"(?P<name>Size|Operator|Shape|Unpadded size|Extra memory due to padding|XLA label|Allocation type|Tag):)"
)
#: Whatever begins with none of these letters is passed over quickly.
_EVENT = re.compile(rf"(?=[AEFHLOPRSTUX\d])(?:{'|'.join((*_BEGINS, _FIELD))})")
_HEADS = {
    "ran": Kind.PROGRAM,
    "temporaries": Kind.TEMPORARIES,
    "cores": Kind.CORES,
    "ask": Kind.BUFFER,
    "request": Kind.BUFFER,
    "single": Kind.SINGLE,
    "early": Kind.ESTIMATE,
}
"""The parts that a message begins with, and what did not fit then."""
_FAR = 4000
"""Characters between two parts of one message, at most; what comes later belongs to something else."""

_CODES = {
    "RuntimeBufferAllocationFailure": "E0100",
    "RuntimeProgramAllocationFailure": "E0101",
    "CompileTimeHbmOom": "E1000",
    "CompileTimeScopedVmemOom": "E1001",
}
_CODE = re.compile(rf"\b(E\d{{4}}):|\b({'|'.join(_CODES)})\b")
_LOADING = re.compile(r"Error\s+loading\s+program(?:\s+'([^'\n]{1,400})')?")
_PART = re.compile(rf"(?:^|(?<=\s\s))([A-Za-z][\w ()/.-]{{0,60}}?)\s{{2,}}({SIZE}|unknown size)", re.M)
_KNOWN_PART = re.compile(
    rf"\b((?:reserved|heap allocations)(?:\s?\([^)\n]{{0,60}}\))?|program|arguments|global|scoped|HLO temp|overlays)\s+"
    rf"({SIZE}|unknown size)"
)
_ALLOCATION = re.compile(
    r"#allocation\w*\s*\[shape = '([^'\n]*)'(?:, space=(\w+))?(?:, size = \w+)?(, scoped)?(?:, tag = '([^'\n]*)')?"
)
_WINDOW = re.compile(r"The window shape is\s+([^\s,]+\[[\d,]*\](?:\{[^}\s]*\})?)")
_QUOTED = r'="((?:[^"\\]|\\.)*)'
_OPERATOR = re.compile(rf"\b(op_type|op_name|source_file){_QUOTED}|\b(source_line)=(\d{{1,9}})")
_INSTRUCTION = re.compile(r"%?([\w.\-]+)\s+=\s+")
_OPCODE = re.compile(r"([a-z][a-z0-9_-]*)\(")
_ESCAPED = re.compile(r"\\n\s*(?:\d{1,4}\. Size:|Total \w+ usage|Program \w+ requirement|Largest program allocations)")
_ESCAPE = re.compile(r"\\([nrt\"'\\])")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def read_messages(text: str) -> tuple[AllocatorMessage, ...]:
    """Every TPU allocator message in a text, in its order, each once. A list without its beginning counts where nothing
    better is there; () where there is none.

    >>> found = read_messages("Ran out of memory in memory space hbm. Used 41.74G of 16.00G hbm.")[0]
    >>> found.space, str(found.used), str(found.limit)
    ('hbm', '41.74G', '16.00G')
    """
    plain = _plain(text)
    drafts: list[_Draft] = []
    events = [*_EVENT.finditer(plain), None]
    for event, after in pairwise(events):
        assert event is not None
        end = after.start() if after else len(plain)
        _read_part(drafts, _Event(plain, event, end))
    return _distinct([draft.message() for draft in drafts])


def _plain(text: str) -> str:
    """Without colours, and with line ends where the text is one quoted string."""
    plain = _COLOUR.sub("", text) if "\x1b" in text else text
    for _ in range(3):
        if not _ESCAPED.search(plain):
            break
        plain = _ESCAPE.sub(lambda found: {"n": "\n", "r": "\r", "t": "\t"}.get(found[1], found[1]), plain)
    return plain


_VALUES: dict[str, Callable[[str], Any]] = {
    "space": str.lower,
    "flag": str,
    **dict.fromkeys(("utilization", "fragmentation"), lambda words: float(words) / 100),
}
"""What the words of fields mean that are no sizes."""


@dataclass(frozen=True)
class _Event:
    """Where a part begins, and how far its value may reach."""

    text: str
    match: re.Match[str]
    end: int

    @property
    def kind(self) -> str:
        return str(self.match.lastgroup)

    @property
    def rest(self) -> str:
        """What follows, as far as one part reaches."""
        return self.text[self.match.end() : min(self.end, self.match.end() + _FAR)]

    @property
    def line(self) -> str:
        return self.text[self.match.end() : self.end].partition("\n")[0].strip()

    def says(self) -> dict[str, Any]:
        """The fields of a message that this part fills."""
        found, text = dict[str, Any](), self.match[0] + self.rest
        for match in (pattern.search(text) for pattern in _PATTERNS[self.kind]):
            for name, words in match.groupdict().items() if match else ():
                if words is not None:
                    found[name] = _VALUES.get(name, read_size)(words)
        return found


@dataclass
class _Draft:
    """A message while it is read."""

    found: AllocatorMessage
    at: int
    parts: set[str] = field(default_factory=set)
    entries: list[dict[str, str]] = field(default_factory=list)
    known: list[Allocation] = field(default_factory=list)

    def update(self, **values: object) -> None:
        self.found = replace(self.found, **values)  # type: ignore[arg-type]

    def message(self) -> AllocatorMessage:
        notes = list(self.found.unread)
        found = self.found
        if found.used is None and found.kind is not Kind.LISTING:
            notes.append("how much is needed and how much there is: not in the text")
        read = [*self.known, *(_allocation(entry, notes) for entry in self.entries)]
        if "largest" in self.parts and not self.entries:
            notes.append("the list of the largest allocations: not in the text")
        for before, after in pairwise(read):
            first, last = before.number + 1, after.number - 1
            if first <= last:
                which = f"allocation {first}" if first == last else f"allocations {first} to {last}"
                notes.append(f"{which} of the list: not in the text")
        if self.entries and "Allocation type" not in self.entries[-1]:
            notes.append(f"the end of allocation {read[-1].number}: not in the text")
        return replace(found, allocations=tuple(read), unread=tuple(notes))


def _read_part(drafts: list[_Draft], event: _Event) -> None:
    kind = event.kind
    if kind == "field":
        _read_field(drafts, event)
        return
    draft, said = drafts[-1] if drafts and event.match.start() - drafts[-1].at <= _FAR else None, event.says()
    if kind in _HEADS:
        draft = _Draft(_head(event, said, drafts), event.match.end())
        drafts.append(draft)
        if kind == "single":
            _read_single(draft, event)
    else:
        of, space = Kind.STACK if kind == "scoped" else Kind.LISTING, said.pop("space", "")
        other = draft is not None and (draft.found.kind is not of if kind == "scoped" else space != draft.found.space)
        if draft is None or kind in draft.parts or (space and other):
            draft = _Draft(AllocatorMessage(of, space or "hbm"), event.match.end())
            drafts.append(draft)
        if kind == "scoped":  # figures of one instruction's stack, whatever the head says
            said.setdefault("over", None)
        elif kind == "program":
            said["parts"] = _parts(event.rest)
        elif kind == "total":
            whole = {"used": said.pop("all")}
            said |= {"totals": _parts(event.rest)} | (whole if draft.found.kind is Kind.LISTING else {})
        draft.update(**said)
    draft.parts.add(kind)
    flags = _FLAG.findall(event.text, event.match.end(), event.end)
    draft.update(flags=tuple(dict.fromkeys([*draft.found.flags, *flags])))
    draft.at = event.end if draft.found.kind is Kind.STACK else event.match.end()


def _head(event: _Event, said: dict[str, Any], drafts: list[_Draft]) -> AllocatorMessage:
    start, kind = event.match.start(), _HEADS[event.kind]
    before = event.text[max(0, start - 200, drafts[-1].at if drafts else 0) : start]
    codes = _CODE.findall(before)
    code = codes[-1][0] or _CODES[codes[-1][1]] if codes else ""
    if event.kind == "ran" and "while allocating on stack" in " ".join(event.rest[:80].split()):
        words = " ".join(event.text[event.match.end() : event.end].partition(" for ")[2].split())
        sizes = {"used": None, "limit": None, "instruction": _label(words.rstrip("."))}
        return AllocatorMessage(Kind.STACK, code=code, **said | sizes)
    if "dense" in said:
        dense, sparse = said.pop("dense"), said["sparsecores"]
        whole = dense.bytes + sparse.bytes
        said["used"] = StatedSize(str(whole), whole, dense.low + sparse.low, dense.high + sparse.high)
    loading = _LOADING.search(before) if event.kind == "ask" else None
    if loading or (event.kind == "ask" and "reserve" in event.match[0]):
        kind, said["program"] = Kind.LOAD, (loading[1] or "") if loading else ""
    return AllocatorMessage(kind, code=code, **said)


def _read_single(draft: _Draft, event: _Event) -> None:
    """The one allocation that is too large: its memory, its shape, or the window of a kernel that its tag names."""
    found = _ALLOCATION.search(event.rest)
    if not found:
        return
    tag = found[4] or ""
    window = _WINDOW.search(tag)
    copies = 2 if window and "double buffered" in tag else 1
    kind = "scoped" if found[3] or tag.startswith("scoped") else ""
    shape = window[1] if window else found[1]
    draft.known = [Allocation(1, draft.found.used, shape=shape, type=kind, tag=tag, windows=copies)]
    draft.update(space=(found[2] or "hbm").lower())


def _parts(rest: str) -> tuple[tuple[str, StatedSize | None], ...]:
    """``name   size`` lines; known names also where line ends were lost."""
    found: dict[str, StatedSize | None] = {}
    for pattern in (_PART, _KNOWN_PART):
        for name, size in pattern.findall(rest):
            found.setdefault(" ".join(name.split()), None if size == "unknown size" else read_size(size))
    return tuple(found.items())


# -- the list of allocations -------------------------------------------------------------------------------------------


def _read_field(drafts: list[_Draft], event: _Event) -> None:
    name, number, value = event.match["name"], event.match["number"], event.line
    near = bool(drafts) and event.match.start() - drafts[-1].at <= _FAR
    if not near and not (name == "Size" and number):
        return
    if not near:
        drafts.append(_Draft(AllocatorMessage(Kind.LISTING), event.match.end()))
    draft = drafts[-1]
    entry = draft.entries[-1] if draft.entries else {}
    begins = name == "Size" or (name == "XLA label" and (not entry or name in entry) and "largest" in draft.parts)
    if begins:
        entry = {"number": number or str(len(draft.entries) + 1)}
        draft.entries.append(entry)
    elif not entry or name in entry or ("Allocation type" in entry and name != "Tag"):
        return
    entry[name] = value
    draft.at = event.match.end() + len(value)


_SIZES = ("Size", "Unpadded size", "Extra memory due to padding")


def _allocation(entry: dict[str, str], notes: list[str]) -> Allocation:
    number = int(entry["number"])
    for name in _SIZES:
        if name in entry and read_size(entry[name]) is None:
            notes.append(f"allocation {number}: {name}: no size in {entry[name][:60]!r}")
    pairs = _OPERATOR.findall(entry.get("Operator", ""))
    operator = {quoted or plain: value or digits for quoted, value, plain, digits in pairs}
    place = operator.get("source_file", "")
    leading = (_LEADING_SIZE.match(entry.get(name, "")) for name in _SIZES)
    size, unpadded, padding = (found and read_size(found.group()) for found in leading)
    return Allocation(
        *(number, size, unpadded, padding),
        entry.get("Shape", ""),
        operator.get("op_type", ""),
        operator.get("op_name", ""),
        f"{place}:{operator['source_line']}" if place and "source_line" in operator else place,
        _label(entry.get("XLA label", "")),
        entry.get("Allocation type", "").partition("=")[0].strip(),
        entry.get("Tag", ""),
    )


_LEADING_SIZE = re.compile(SIZE)


def _label(text: str) -> Label:
    """An instruction's text, ``%copy.4 = f32[8]{0} copy(f32[8]{0} %x)``, with or without shapes, whole or cut."""
    found = _INSTRUCTION.match(text)
    if not found:
        return Label(text)
    at = _shape_at(text, found.end())[1]
    opcode = _OPCODE.match(text, at)
    operand = _shape_at(text, opcode.end())[0] if opcode and at > found.end() else None
    shape = str(operand) if isinstance(operand, TensorLayout) else ""
    return Label(text, found[1], opcode[1] if opcode else "", shape)


def _shape_at(text: str, at: int) -> tuple[object, int]:
    """A shape at ``at`` and the offset behind it; None and ``at`` where there is none."""
    try:
        return parse_prefix(text, at)
    except TilewrightError:
        return None, at


def _distinct(messages: list[AllocatorMessage]) -> tuple[AllocatorMessage, ...]:
    """Each once; one that only repeats another's head, or a list that no error goes with, is left out."""
    headed = [message for message in messages if message.kind is not Kind.LISTING]
    kept = list(dict.fromkeys(headed or [m for m in messages if m.allocations or m.totals or m.requirement]))
    longer = {_identity(m) for m in kept if m.allocations or m.totals}
    return tuple(m for m in kept if m.allocations or m.totals or _identity(m) not in longer)


def _identity(message: AllocatorMessage) -> tuple[object, ...]:
    return message.kind, message.space, message.used, message.limit
