"""The instruction set: every instruction with its suffixes, operands, unit, cost and width, in one table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

TYPES = ("4", "8", "16", "32", "f8e4m3fn", "f8e5m2", "f16", "bf16", "f32")
ELEMENT_TYPES = (
    *("s4", "u4", "s8", "u8", "s16", "u16", "s32", "u32"),
    *("f8e4m3fn", "f8e5m2", "f16", "bf16", "f32"),
)
"""Of a tensor in memory. Of 4 bits, too, each element has a byte, whose other half is of no account."""
CONDITIONS = ("eq", "ne", "ltu", "leu", "gtu", "geu", "lt", "le", "gt", "ge")
UNITS = {
    "alu": "arithmetic",
    "math": "math",
    "vector": "vector",
    "lsu": "load-store",
    "control": "control",
    "dma": "dma",
}
"""Units, and the lane of the timeline each is drawn in."""


@dataclass(frozen=True)
class Suffix:
    """One ``.suffix``: ``pattern`` has one group, the value; ``form`` prints it. ``default`` None: it must be written.

    ``always``: printed even when it is the default.
    """

    key: str
    pattern: str
    form: str
    default: str | None
    doc: str
    always: bool = False


@dataclass(frozen=True)
class OperandSpec:
    """One operand: kinds out of r, ur, p, imm, float, address, segment, label; ``access`` is read or write.

    ``text``: as the reference page shows it, ``rD|urD``; ``name``: the letter in it.
    """

    text: str
    name: str
    kinds: tuple[str, ...]
    access: str = "read"
    optional: bool = False

    @classmethod
    def of(cls, text: str) -> OperandSpec:
        """From what the page shows: D and C are written, brackets mean optional.

        >>> OperandSpec.of("[imm|urN]").kinds
        ('imm', 'ur')
        """
        words = text.strip("[]").split("|")
        kinds = tuple(_KINDS.get(word) or word.rstrip(ascii_uppercase) for word in words)
        name = next((word[-1] for word in words if word not in _KINDS and word[-1] in ascii_uppercase), "")
        return cls(text, name, kinds, "write" if name in ("D", "C") else "read", text.startswith("["))

    def __str__(self) -> str:
        return self.text


_KINDS = {"urS:rfO:imm": "address", "$name": "segment"}


@dataclass(frozen=True)
class InstructionSpec:
    """One instruction.

    ``unit`` is where it executes. ``occupies``: cycles it keeps the unit (words where that depends on the operands).
    ``latency``: the configuration's field that says how many cycles later its result is there ("": it has none).
    ``width``: bits of what it works on, per thread. ``reduces``: it takes what threads have to one uniform register.
    ``ours``: the source has nothing of the kind; it is in its spirit, and a reading.
    """

    name: str
    operands: tuple[OperandSpec, ...]
    unit: str
    doc: str
    example: str
    suffixes: tuple[Suffix, ...] = ()
    guard: bool = False
    occupies: str = "1"
    latency: str = ""
    width: str = ""
    reduces: bool = False
    ours: bool = False

    @property
    def syntax(self) -> str:
        """The general form, suffixes and optional operands in brackets."""
        suffixes = "".join(
            f".{s.form.format('X')}" if s.default is None else f"[.{s.form.format('X')}]" for s in self.suffixes
        )
        operands = ", ".join(str(o) for o in self.operands)
        return f"{'[@[!]pN,] ' * self.guard}{self.name}{suffixes} {operands}".rstrip()


_SIGNED = "the comparison of 32-bit integers: signed, or unsigned where it ends in u"
_COPIED = "Y is one register of each thread, the same for all N (y1), or N of them"
_ELEMENTS = "at most so many elements a thread (n0: as the registers hold)"
_ROUNDED = "floats become the nearest integer, ties to even (rn), or towards zero (rz)"


def _one_of(key: str, words: str, doc: str = "") -> Suffix:
    """One of these words has to be written."""
    return Suffix(key, f"({words.replace(' ', '|')})", "{}", None, doc or words.replace(" ", ", "))


def _type(key: str, words: str) -> Suffix:
    """The type of D (``to``) or of X (``from``), one of these words."""
    return Suffix(key, f"{key}_({words.replace(' ', '|')})", f"{key}_{{}}", None, f"the type of {'XD'[key == 'to']}")


_SUFFIXES = {
    "ka": Suffix(
        "ka", "ka([0-9]{1,6})", "ka{}", "1", "threads that share a row, each with a part of its columns", True
    ),
    "kb": Suffix(
        "kb", "kb([0-9]{1,6})", "kb{}", "1", "threads that share every dot product, each with a part of k", True
    ),
    "t": Suffix("t", "t([01])", "t{}", "0", "elements of a column walk d1 (t0) or d2 with line retention (t1)", True),
    "a": Suffix("a", "([su])a", "{}a", "s", "integers of A are signed (sa) or unsigned (ua)", True),
    "b": Suffix("b", "([su])b", "{}b", "s", "integers of B are signed (sb) or unsigned (ub)", True),
    "walk": Suffix("t", "t([01])", "t{}", "0", "walk d1 (t0) or d2 (t1)"),
    "s": Suffix("s", "s([0-9]{1,6})", "s{}", "1", "distance of consecutive elements along the walk"),
    "n": Suffix("n", "n([0-9]{1,4})", "n{}", "0", _ELEMENTS),
    "to": _type("to", "s32 u32 f32 f16 bf16"),
    "from": _type("from", "s32 u32 f32 f16 bf16"),
    "vto": _type("to", " ".join(ELEMENT_TYPES)),
    "vfrom": _type("from", " ".join(ELEMENT_TYPES)),
    "qto": _type("to", "s4 u4 s8 u8 s16 u16 s32"),
    "qfrom": _type("from", "s32 f32"),
    "cond": _one_of("cond", " ".join(CONDITIONS), _SIGNED),
    "fcond": _one_of("cond", "eq ne lt le gt ge", "the comparison; with a NaN only ne is true"),
    "fop": _one_of("op", "add sub mul div min max"),
    "iop": _one_of("op", "add sub mul div rem min max minu maxu and or xor shl shr shru"),
    "fun": _one_of("op", "exp log tanh rsqrt sqrt recip"),
    "rop": _one_of("op", "add min max"),
    "type": _one_of("type", "f32 s32", "f32 or s32, float32 or signed integers"),
    "y": Suffix("y", "y([1n])", "y{}", "n", _COPIED),
    "round": Suffix("round", "r([nz])", "r{}", "n", _ROUNDED),
    "end": Suffix("end", "(sat|wrap)", "{}", "sat", "sat or wrap: integers that D cannot hold"),
    "g": Suffix("g", "g([0-9]{1,6})", "g{}", "0", "neighbouring threads of a group (g0: all of them)"),
    "what": _one_of("what", "base size", "which of the two"),
}
_OPERANDS = {
    "D": "rD|urD",
    "at": "urS:rfO:imm",
    "N": "imm|urN",
    "[N]": "[imm|urN|rN]",
    "[P]": "[imm|urP]",
    **{letter: f"r{letter}|ur{letter}|imm" for letter in "XYZ"},
    **{f"f{letter}": f"r{letter}|ur{letter}|float" for letter in "XYZ"},
    **{f"n{letter}": f"r{letter}|ur{letter}|imm|float" for letter in "XY"},
}
"""What stands in the table for operands that many instructions take."""
_USUAL = {
    "math": {"guard": "yes"},
    "alu": {"guard": "yes", "latency": "alu_latency", "width": "32"},
    "lsu": {"guard": "yes", "occupies": "ceil(lines / l1_ports)", "width": "8 to 32 an element, 32 a register"},
    "vector": {
        "guard": "yes",
        "occupies": "ceil(N / vector_rate)",
        "latency": "alu_latency",
        "width": "32 * N",
        "ours": "yes",
    },
    "control": {"width": "32"},
    "dma": {"width": "a page", "ours": "yes"},
}
"""Fields of most instructions of a unit."""
_TABLE = """\
## The tensor multiply: math
mm.ka.kb.t.a.b rC, at, rA ; @p1, mm8.ka1.kb1.t1.sa.sb r0, ur4:rf290:0x00, r256
    * occupies: a step for every local column: ceil(elements of A / macs_per_thread_cycle)
    * latency: l1_latency
    * width: 64 of A, 8 to 32 an element, 32 a product
    Tensor multiply: loader j fetches column j of B at its own address and broadcasts it; every active row adds the
    dot product of its A registers with the column to product register rC + i(j). TYPE (4, 8, 16, 32, f8e4m3fn,
    f8e5m2, f16, bf16, f32; absent: the segment's) follows the name; 4-bit integers have a byte each. Columns whose
    predicate is false or whose product register is out of range take no part. A NaN among the sums is 0x7fc00000
setmm N, [imm|urM] ; setmm 64, 16
    * unit: control
    * ours: yes
    The following mm have N columns and, if M is given, M active rows (else as many as fit)
## Loads and stores: lsu
ld.walk.s.n rD, at, [N] ; @p2, ld r256, ur3:rf294:0x00, 2
    * latency: l2_latency
    Each thread loads consecutive elements, packed, low bytes first, into N registers (1) from rD. Elements outside
    the segment are not loaded: their bytes keep their value
st.walk.s.n rS, at, [N] ; @p3, st r0, ur5:rf298:0x00, r285
    Each thread stores the packed elements of N registers (1) from rS. Elements outside the segment are not stored;
    where threads store to one element the highest thread wins
ldb.walk.s.n rD, at, [imm|urN] ; ldb r256, ur3:rf294:0x00, 16
    * latency: l2_latency
    * ours: yes
    Broadcast load: the elements at the coordinates of the first thread (whose predicate is true) go to N registers
    (1) of every thread (whose predicate is true), as a column of B does. Elements outside the segment are not
    loaded
## Moves: alu
mov D, nX ; mov r10, 0x10
    D = X
clr rD, [N] ; clr r0, 256
    * occupies: N
    N registers (1) from rD become 0
tid rD ; tid r280
    * guard: no
    D = the thread's number
sel D, pX, X, Y ; sel r10, p1, r11, 4
    D = X where the predicate is true, else Y
read urD, rX, imm|urX ; read ur7, r11, 3
    * guard: no
    * reduces: yes
    D = rX of thread X
## Integers: alu
add D, X, Y ; add r10, r11, 4
    D = X + Y modulo 2^32
sub D, X, Y ; sub r10, r11, 4
    D = X - Y modulo 2^32
mul D, X, Y ; mul r10, r11, 4
    D = X * Y modulo 2^32
mad D, X, Y, Z ; mad r10, r11, 4, r12
    D = X * Y + Z modulo 2^32
div D, X, Y ; div r10, r11, 4
    D = X / Y, signed, towards zero; by zero: 0 and an error record
rem D, X, Y ; rem r10, r11, 4
    D = X - Y * (X / Y), the sign of X; by zero: 0 and an error record
min D, X, Y ; min r10, r11, 4
    D = the lesser of X and Y, signed
max D, X, Y ; max r10, r11, 4
    D = the greater of X and Y, signed
and D, X, Y ; and r10, r11, 4
    D = X and Y, bit by bit
or D, X, Y ; or r10, r11, 4
    D = X or Y, bit by bit
xor D, X, Y ; xor r10, r11, 4
    D = X exclusive or Y, bit by bit
not D, X ; not r10, r11
    D = not X, bit by bit
shl D, X, Y ; shl r10, r11, 4
    D = X shifted left by the low five bits of Y
shr D, X, Y ; shr r10, r11, 4
    D = X shifted right by the low five bits of Y, keeping the sign
shru D, X, Y ; shru r10, r11, 4
    D = X shifted right by the low five bits of Y, filled with zeros
## Floats: alu
fadd D, fX, fY ; fadd r10, r11, 1.5
    D = X + Y in float32, rounded once; every NaN is the one of 0x7fc00000
fsub D, fX, fY ; fsub r10, r11, 1.5
    D = X - Y in float32
fmul D, fX, fY ; fmul r10, r11, 1.5
    D = X * Y in float32
fma D, fX, fY, fZ ; fma r10, r11, 1.5, r12
    D = X * Y + Z in float32, rounded once
fdiv D, fX, fY ; fdiv r10, r11, 1.5
    D = X / Y in float32
fsqrt D, fX ; fsqrt r10, r11
    D = the square root of X in float32
fmin D, fX, fY ; fmin r10, r11, 1.5
    D = the lesser of X and Y; of equal values X, of a NaN and a number the number
fmax D, fX, fY ; fmax r10, r11, 1.5
    D = the greater of X and Y; of equal values X, of a NaN and a number the number
cvt.to.from D, X ; cvt.to_f32.from_s32 r10, r11
    D = X converted: to the nearest, ties to even; to integers towards zero, ending at the ends of the type, NaN to
    0. f16 and bf16 are the low half of a register
## Predicates: alu
cmp.cond pD, X, Y ; cmp.lt p2, r281, ur10
    pD = X cond Y in every thread
fcmp.fcond pD, fX, fY ; fcmp.lt p2, r281, 0.5
    pD = X cond Y as float32
pand pD, pX, pY ; pand p0, p1, p2
    * width: 1
    pD = pX and pY
por pD, pX, pY ; por p0, p1, p2
    * width: 1
    pD = pX or pY
pxor pD, pX, pY ; pxor p0, p1, p2
    * width: 1
    pD = pX exclusive or pY
pnot pD, pX ; pnot p0, p1
    * width: 1
    pD = not pX
pany urD, pX ; pany ur7, p1
    * guard: no
    * width: 1
    * reduces: yes
    D = 1 if any thread's predicate is true, else 0
pall urD, pX ; pall ur7, p1
    * guard: no
    * width: 1
    * reduces: yes
    D = 1 if every thread's predicate is true, else 0
pcount urD, pX ; pcount ur7, p1
    * guard: no
    * width: 1
    * reduces: yes
    D = the threads whose predicate is true
## Vectors: vector
vf.fop.y rD, fX, fY, N ; vf.add r10, r20, r30, 8
    * occupies: ceil(N / vector_rate), division special_cycles * N
    N registers from rD become X op Y in float32, rounded once, register by register. X and Y are N registers, or
    one number for all; every NaN is the one of 0x7fc00000, min and max of a NaN are it, of equal values X
vi.iop.y rD, X, Y, N ; vi.add r10, r20, r30, 8
    The same of 32-bit integers, modulo 2^32. Quotients go towards zero, by zero -1, and the remainder is X then;
    minu and maxu of unsigned numbers; shifts by the low five bits of Y
vfun.fun rD, rX, N ; vfun.exp r10, r20, 8
    * occupies: special_cycles * N
    N registers from rD become a function of those from rX in float32: the true value, and at most 0.51 units in the
    last place from it
vcmp.cond.y rD, X, Y, N ; vcmp.lt r10, r20, 5, 8
    N registers from rD become 1 where X cond Y, else 0
vfcmp.fcond.y rD, fX, fY, N ; vfcmp.lt r10, r20, 0.5, 8
    The same of float32
vsel.y rD, rM, nX, nY, N ; vsel r10, r20, r30, 0.0, 8
    N registers from rD become X where that of rM is not 0, else Y
viota rD, X, N ; viota r10, 0, 8
    N registers from rD become X, X + 1, ... (X: one register, or one number)
vcvt.vto.vfrom.round.end rD, rX, N ; vcvt.to_s8.from_s32 r10, r20, 8
    N elements, packed from rX on, low bits first, are converted and packed from rD on. To fewer bits of a float to
    the nearest, ties to even; from a float to integers so or towards zero (rz), ending at the ends of the type, NaN
    to 0; from integers to narrower ones ending at the ends (sat) or modulo (wrap)
vquant.qto.qfrom.y rD, rX, fY, urZ|imm, N ; vquant.to_s8.from_s32 r10, r20, 0.25, 3, 8
    * occupies: 2 * ceil(N / vector_rate)
    Requantise: N integers or float32 from rX on, times Y in float32, rounded to the nearest integer, ties to even,
    plus Z, ending at the ends of the type (NaN: 0), packed from rD on
vred.rop.type rD, rX, N ; vred.add.f32 r10, r20, 8
    rD = the sum, or the least or greatest, of N registers from rX on, by halves: as long as there are n > 1, number
    i of the first ceil(n / 2) takes in number i + ceil(n / 2). Of no registers nothing
vthr.rop.type.g rD, rX, N ; vthr.add.f32.g4 r10, r20, 8
    * occupies: ceil(N / vector_rate) * ceil(log2(threads of a group))
    Across threads: N registers from rD become the sums (or least or greatest) of those from rX of all threads of a
    group, by halves, in every thread of it; threads whose predicate is false take no part
## Branches and barriers: control
jump label ; jump again
    Continue at the label
br.cond urX|imm, urY|imm, label ; br.lt ur2, 64, again
    Continue at the label if X cond Y; uniform registers only, so that all threads go the same way
loop urD, label ; loop ur9, again
    D = D - 1; continue at the label unless D is 0
bar [imm] ; bar 1
    * guard: yes
    * occupies: until all are there
    * width:
    Barrier of all processing elements that run: wait until each is at the barrier of this number (0). A guard that
    is not the same in all threads is a divergent barrier: a record, and the PE waits all the same
peid urD ; peid ur7
    D = the number of this processing element
npe urD ; npe ur7
    D = the processing elements of the machine
nop ; nop
    * width:
    Nothing, for a cycle
halt ; halt
    * width:
    End of the program; so is running past its last instruction
## Segment descriptors: control
segment urD, $name ; segment ur4, $B
    * ours: yes
    D = handle of the segment the host calls name (0 and an error record if there is none)
segdef urD, urS ; segdef ur8, ur4
    * ours: yes
    D = handle of a new descriptor, at first equal to that of urS
segbase urS, imm, imm|urX ; segbase ur8, 1, 4
    * ours: yes
    The segment begins at X along dim d1, d2, ... (1, 2)
segsize urS, imm, imm|urX ; segsize ur8, 1, 4
    * ours: yes
    The segment has X elements along dim d1, d2, ...
segget.what urD, urS, imm ; segget.size ur7, ur4, 2
    * ours: yes
    D = where the segment begins, or how many elements it has, along dim d1, d2, ...
## Page tables and DMA: dma
ptmap urS, [P] ; ptmap ur4
    Make the entry of page P (all) without one: loaded, in device memory
ptdel urS, [P] ; ptdel ur4, 0
    Delete the entry of page P (all); nothing is written back
dmain urS, [P] ; dmain ur4
    * occupies: dma_latency + ceil(bytes / dram_bytes_per_cycle) a page, or over L2's bus if that is slower
    Bring page P (all pages) of the segment from device memory to L2; the page-table entry is loading until done
dmaout urS, [P] ; dmaout ur5
    * occupies: dma_latency + ceil(bytes / dram_bytes_per_cycle) a page, or over L2's bus if that is slower
    Write page P (all pages) back to device memory if it was stored to, and delete its page-table entry
dmawait urS ; dmawait ur4
    Wait until no page of the segment is loading
dmastat urD, urS, [P] ; dmastat ur7, ur4
    D = the state of page P (the least of all pages): 0 absent, 1 loading, 2 loaded; a 1 is followed by a 2
"""
"""Groups with their unit; of an instruction its suffixes and operands ; an example, fields not as usual, and a doc."""


def _read_spec(unit: str, entry: str) -> InstructionSpec:
    head, *lines = entry.split("\n")
    form, _, example = head.partition(" ; ")
    (name, *suffixes), operands = form.partition(" ")[0].split("."), form.partition(" ")[2]
    texts = [_OPERANDS.get(text, text) for text in operands.split(", ") if text]
    own = dict(line[6:].split(":", 1) for line in lines if line.startswith("    * "))
    doc = " ".join(line.strip() for line in lines if not line.startswith("    * "))
    unit = own.pop("unit", unit).strip()
    more: dict[str, Any] = {key: value.strip() for key, value in (_USUAL[unit] | own).items()}
    more |= {key: more[key] == "yes" for key in ("guard", "reduces", "ours") if key in more}
    known = tuple(_SUFFIXES[suffix] for suffix in suffixes)
    return InstructionSpec(name, tuple(map(OperandSpec.of, texts)), unit, doc, example, known, **more)


def _read_groups(table: str) -> Iterator[tuple[str, tuple[InstructionSpec, ...]]]:
    for group in re.split("^## ", table, flags=re.MULTILINE)[1:]:
        head, *entries = re.split(r"\n(?=\S)", group.rstrip())
        title, unit = head.split(": ")
        yield title, tuple(_read_spec(unit, entry) for entry in entries)


GROUPS = dict(_read_groups(_TABLE))
INSTRUCTIONS: dict[str, InstructionSpec] = {spec.name: spec for group in GROUPS.values() for spec in group}
