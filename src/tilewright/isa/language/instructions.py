"""The instruction set: every instruction with its suffixes, operands, unit, cost and width, in one table."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """One operand: kinds out of r, ur, p, imm, float, address, segment, label; ``access`` is read or write."""

    name: str
    kinds: tuple[str, ...]
    access: str = "read"
    optional: bool = False

    def __str__(self) -> str:
        """As the reference page shows it: ``rD|urD``."""
        text = "|".join(_SHOWN.get(kind, kind + self.name) for kind in self.kinds)
        return f"[{text}]" if self.optional else text


_SHOWN = {"address": "urS:rfO:imm", "segment": "$name", "label": "label", "imm": "imm", "float": "float"}


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


_DEST = OperandSpec("D", ("r", "ur"), "write")
_X, _Y, _Z = (OperandSpec(name, ("r", "ur", "imm")) for name in "XYZ")
_FX, _FY, _FZ = (OperandSpec(name, ("r", "ur", "float")) for name in "XYZ")
_FXY = tuple(OperandSpec(name, ("r", "ur", "imm", "float")) for name in "XY")
_PD, _PX, _PY = OperandSpec("D", ("p",), "write"), OperandSpec("X", ("p",)), OperandSpec("Y", ("p",))
_URD = OperandSpec("D", ("ur",), "write")
_ADDRESS = OperandSpec("", ("address",))
_COUNT = OperandSpec("N", ("imm", "ur", "r"), optional=True)
_SEGMENT = OperandSpec("S", ("ur",))
_PAGE = OperandSpec("P", ("imm", "ur"), optional=True)
_LABEL = OperandSpec("", ("label",))
_DIM, _WHOLE = OperandSpec("", ("imm",)), OperandSpec("X", ("imm", "ur"))
_ELEMENTS = Suffix("n", "n([0-9]{1,4})", "n{}", "0", "at most so many elements a thread (n0: as the registers hold)")
_WALK = (
    Suffix("t", "t([01])", "t{}", "0", "walk d1 (t0) or d2 (t1)"),
    Suffix("s", "s([0-9]{1,6})", "s{}", "1", "distance of consecutive elements along the walk"),
    _ELEMENTS,
)
_SIGNED = "the comparison of 32-bit integers: signed, or unsigned where it ends in u"
_CONDITION = Suffix("cond", f"({'|'.join(CONDITIONS)})", "{}", None, _SIGNED)
_FLOAT_CONDITION = Suffix("cond", "(eq|ne|lt|le|gt|ge)", "{}", None, "the comparison; with a NaN only ne is true")
_VALUE_TYPES = "(s32|u32|f32|f16|bf16)"
_CONVERSION = (
    Suffix("to", f"to_{_VALUE_TYPES}", "to_{}", None, "the type of D"),
    Suffix("from", f"from_{_VALUE_TYPES}", "from_{}", None, "the type of X"),
)
_PACKED = f"({'|'.join(ELEMENT_TYPES)})"
_ONE_Y = Suffix("y", "y([1n])", "y{}", "n", "Y is one register of each thread, the same for all N (y1), or N of them")
_RUN = OperandSpec("N", ("imm", "ur"))
_RD, _RX = OperandSpec("D", ("r",), "write"), OperandSpec("X", ("r",))
_REDUCTIONS = (
    Suffix("op", "(add|min|max)", "{}", None, "add, min or max"),
    Suffix("type", "(f32|s32)", "{}", None, "f32 or s32, float32 or signed integers"),
)
_MM_SUFFIXES = (
    Suffix("ka", "ka([0-9]{1,6})", "ka{}", "1", "threads that share a row, each with a part of its columns", True),
    Suffix("kb", "kb([0-9]{1,6})", "kb{}", "1", "threads that share every dot product, each with a part of k", True),
    Suffix("t", "t([01])", "t{}", "0", "elements of a column walk d1 (t0) or d2 with line retention (t1)", True),
    Suffix("a", "([su])a", "{}a", "s", "integers of A are signed (sa) or unsigned (ua)", True),
    Suffix("b", "([su])b", "{}b", "s", "integers of B are signed (sb) or unsigned (ub)", True),
)


def _alu(name: str, operands: tuple[OperandSpec, ...], doc: str, example: str, **more: object) -> InstructionSpec:
    settings = {"guard": True, "latency": "alu_latency", "width": "32", **more}
    return InstructionSpec(name, operands, "alu", doc, f"{name}{example}", **settings)  # type: ignore[arg-type]


def _binary(name: str, doc: str) -> InstructionSpec:
    return _alu(name, (_DEST, _X, _Y), f"D = {doc}", " r10, r11, 4")


def _float(name: str, doc: str, operands: int = 2) -> InstructionSpec:
    values = ("r11", "1.5", "r12")[:operands]
    return _alu(name, (_DEST, _FX, _FY, _FZ)[: operands + 1], f"D = {doc}", f" r10, {', '.join(values)}")


def _logic(name: str, doc: str, sources: int = 2) -> InstructionSpec:
    operands = (_PD, _PX, _PY)[: sources + 1]
    return _alu(name, operands, doc, f" p0, {', '.join(('p1', 'p2')[:sources])}", width="1")


def _control(
    name: str, operands: tuple[OperandSpec, ...], doc: str, example: str = "", **more: object
) -> InstructionSpec:
    settings = {"width": "32" if operands else "", **more}
    return InstructionSpec(name, operands, "control", doc, f"{name}{example}", **settings)  # type: ignore[arg-type]


def _memory(name: str, operands: tuple[OperandSpec, ...], doc: str, example: str, **more: object) -> InstructionSpec:
    settings = {
        "guard": True,
        "occupies": "ceil(lines / l1_ports)",
        "width": "8 to 32 an element, 32 a register",
        **more,
    }
    return InstructionSpec(name, operands, "lsu", doc, example, _WALK, **settings)  # type: ignore[arg-type]


def _dma(name: str, operands: tuple[OperandSpec, ...], doc: str, example: str, moves: bool = False) -> InstructionSpec:
    occupies = (
        "dma_latency + ceil(bytes / dram_bytes_per_cycle) a page, or over L2's bus if that is slower" if moves else "1"
    )
    return InstructionSpec(name, operands, "dma", doc, f"{name}{example}", width="a page", occupies=occupies)


def _vector(
    name: str,
    operands: tuple[OperandSpec, ...],
    doc: str,
    example: str,
    suffixes: tuple[Suffix, ...],
    occupies: str = "ceil(N / vector_rate)",
) -> InstructionSpec:
    how = {"occupies": occupies, "latency": "alu_latency", "width": "32 * N"}
    operands = (*operands, _RUN)
    return InstructionSpec(name, operands, "vector", doc, f"{name}{example}", suffixes, True, **how, ours=True)  # type: ignore[arg-type]


def _elementwise(name: str, operations: str, doc: str, ends: str = "r10, r20, r30, 8") -> InstructionSpec:
    """X op Y, register by register; ``operations``: their names."""
    floats, first = name.startswith("vf"), operations.split()[0]
    choice = Suffix("op", f"({'|'.join(operations.split())})", "{}", None, ", ".join(operations.split()))
    sources = (_FX, _FY) if floats else (_X, _Y)
    occupies = "ceil(N / vector_rate), division special_cycles * N" if floats else "ceil(N / vector_rate)"
    return _vector(name, (_RD, *sources), doc, f".{first} {ends}", (choice, _ONE_Y), occupies)


def _ours(*specs: InstructionSpec) -> tuple[InstructionSpec, ...]:
    return tuple(replace(spec, ours=True) for spec in specs)


_VOTE: dict[str, object] = {"guard": False, "width": "1", "reduces": True}
_TENSOR = (
    InstructionSpec(
        "mm",
        (OperandSpec("C", ("r",), "write"), _ADDRESS, OperandSpec("A", ("r",))),
        "math",
        "Tensor multiply: loader j fetches column j of B at its own address and broadcasts it; every active row adds "
        "the dot product of its A registers with the column to product register rC + i(j). TYPE (4, 8, 16, 32, "
        "f8e4m3fn, f8e5m2, f16, bf16, f32; absent: the segment's) follows the name; 4-bit integers have a byte each. "
        "Columns whose predicate is false or whose product register is out of range take no part. A NaN among the sums "
        "is 0x7fc00000",
        "@p1, mm8.ka1.kb1.t1.sa.sb r0, ur4:rf290:0x00, r256",
        _MM_SUFFIXES,
        guard=True,
        occupies="a step for every local column: ceil(elements of A / macs_per_thread_cycle)",
        latency="l1_latency",
        width="64 of A, 8 to 32 an element, 32 a product",
    ),
    *_ours(
        _control(
            "setmm",
            (_RUN, OperandSpec("M", ("imm", "ur"), optional=True)),
            "The following mm have N columns and, if M is given, M active rows (else as many as fit)",
            " 64, 16",
        )
    ),
)
_MEMORY = (
    _memory(
        "ld",
        (_RD, _ADDRESS, _COUNT),
        "Each thread loads consecutive elements, packed, low bytes first, into N registers (1) from rD. Elements "
        "outside the segment are not loaded: their bytes keep their value",
        "@p2, ld r256, ur3:rf294:0x00, 2",
        latency="l2_latency",
    ),
    _memory(
        "st",
        (OperandSpec("S", ("r",)), _ADDRESS, _COUNT),
        "Each thread stores the packed elements of N registers (1) from rS. Elements outside the segment are not "
        "stored; where threads store to one element the highest thread wins",
        "@p3, st r0, ur5:rf298:0x00, r285",
    ),
    _memory(
        "ldb",
        (_RD, _ADDRESS, OperandSpec("N", ("imm", "ur"), optional=True)),
        "Broadcast load: the elements at the coordinates of the first thread (whose predicate is true) go to N "
        "registers (1) of every thread (whose predicate is true), as a column of B does. Elements outside the segment "
        "are not loaded",
        "ldb r256, ur3:rf294:0x00, 16",
        latency="l2_latency",
        ours=True,
    ),
)
_MOVES = (
    _alu("mov", (_DEST, OperandSpec("X", ("r", "ur", "imm", "float"))), "D = X", " r10, 0x10"),
    _alu("clr", (_RD, _COUNT), "N registers (1) from rD become 0", " r0, 256", occupies="N"),
    _alu("tid", (_RD,), "D = the thread's number", " r280", guard=False),
    _alu("sel", (_DEST, _PX, _X, _Y), "D = X where the predicate is true, else Y", " r10, p1, r11, 4"),
    _alu("read", (_URD, _RX, _WHOLE), "D = rX of thread X", " ur7, r11, 3", guard=False, reduces=True),
)
_INTEGERS = (
    _binary("add", "X + Y modulo 2^32"),
    _binary("sub", "X - Y modulo 2^32"),
    _binary("mul", "X * Y modulo 2^32"),
    _alu("mad", (_DEST, _X, _Y, _Z), "D = X * Y + Z modulo 2^32", " r10, r11, 4, r12"),
    _binary("div", "X / Y, signed, towards zero; by zero: 0 and an error record"),
    _binary("rem", "X - Y * (X / Y), the sign of X; by zero: 0 and an error record"),
    _binary("min", "the lesser of X and Y, signed"),
    _binary("max", "the greater of X and Y, signed"),
    _binary("and", "X and Y, bit by bit"),
    _binary("or", "X or Y, bit by bit"),
    _binary("xor", "X exclusive or Y, bit by bit"),
    _alu("not", (_DEST, _X), "D = not X, bit by bit", " r10, r11"),
    _binary("shl", "X shifted left by the low five bits of Y"),
    _binary("shr", "X shifted right by the low five bits of Y, keeping the sign"),
    _binary("shru", "X shifted right by the low five bits of Y, filled with zeros"),
)
_FLOATS = (
    _float("fadd", "X + Y in float32, rounded once; every NaN is the one of 0x7fc00000"),
    _float("fsub", "X - Y in float32"),
    _float("fmul", "X * Y in float32"),
    _float("fma", "X * Y + Z in float32, rounded once", 3),
    _float("fdiv", "X / Y in float32"),
    _float("fsqrt", "the square root of X in float32", 1),
    _float("fmin", "the lesser of X and Y; of equal values X, of a NaN and a number the number"),
    _float("fmax", "the greater of X and Y; of equal values X, of a NaN and a number the number"),
    _alu(
        "cvt",
        (_DEST, OperandSpec("X", ("r", "ur", "imm"))),
        "D = X converted: to the nearest, ties to even; to integers towards zero, ending at the ends of the type, NaN "
        "to 0. f16 and bf16 are the low half of a register",
        ".to_f32.from_s32 r10, r11",
        suffixes=_CONVERSION,
    ),
)
_PREDICATES = (
    _alu(
        "cmp", (_PD, _X, _Y), "pD = X cond Y in every thread", ".lt p2, r281, ur10", suffixes=(_CONDITION,), width="32"
    ),
    _alu("fcmp", (_PD, _FX, _FY), "pD = X cond Y as float32", ".lt p2, r281, 0.5", suffixes=(_FLOAT_CONDITION,)),
    _logic("pand", "pD = pX and pY"),
    _logic("por", "pD = pX or pY"),
    _logic("pxor", "pD = pX exclusive or pY"),
    _logic("pnot", "pD = not pX", sources=1),
    _alu("pany", (_URD, _PX), "D = 1 if any thread's predicate is true, else 0", " ur7, p1", **_VOTE),
    _alu("pall", (_URD, _PX), "D = 1 if every thread's predicate is true, else 0", " ur7, p1", **_VOTE),
    _alu("pcount", (_URD, _PX), "D = the threads whose predicate is true", " ur7, p1", **_VOTE),
)
_VECTORS = (
    _elementwise(
        "vf",
        "add sub mul div min max",
        "N registers from rD become X op Y in float32, rounded once, register by register. X and Y are N registers, or "
        "one number for all; every NaN is the one of 0x7fc00000, min and max of a NaN are it, of equal values X",
    ),
    _elementwise(
        "vi",
        "add sub mul div rem min max minu maxu and or xor shl shr shru",
        "The same of 32-bit integers, modulo 2^32. Quotients go towards zero, by zero -1, and the remainder is X then; "
        "minu and maxu of unsigned numbers; shifts by the low five bits of Y",
    ),
    _vector(
        "vfun",
        (_RD, _RX),
        "N registers from rD become a function of those from rX in float32: the true value, and at most 0.51 units in "
        "the last place from it",
        ".exp r10, r20, 8",
        (Suffix("op", "(exp|log|tanh|rsqrt|sqrt|recip)", "{}", None, "exp, log, tanh, rsqrt, sqrt or recip"),),
        "special_cycles * N",
    ),
    _vector(
        "vcmp",
        (_RD, _X, _Y),
        "N registers from rD become 1 where X cond Y, else 0",
        ".lt r10, r20, 5, 8",
        (_CONDITION, _ONE_Y),
    ),
    _vector("vfcmp", (_RD, _FX, _FY), "The same of float32", ".lt r10, r20, 0.5, 8", (_FLOAT_CONDITION, _ONE_Y)),
    _vector(
        "vsel",
        (_RD, OperandSpec("M", ("r",)), _FXY[0], _FXY[1]),
        "N registers from rD become X where that of rM is not 0, else Y",
        " r10, r20, r30, 0.0, 8",
        (_ONE_Y,),
    ),
    _vector(
        "viota",
        (_RD, _X),
        "N registers from rD become X, X + 1, ... (X: one register, or one number)",
        " r10, 0, 8",
        (),
    ),
    _vector(
        "vcvt",
        (_RD, _RX),
        "N elements, packed from rX on, low bits first, are converted and packed from rD on. To fewer bits of a float "
        "to the nearest, ties to even; from a float to integers so or towards zero (rz), ending at the ends of the "
        "type, NaN to 0; from integers to narrower ones ending at the ends (sat) or modulo (wrap)",
        ".to_s8.from_s32 r10, r20, 8",
        (
            Suffix("to", f"to_{_PACKED}", "to_{}", None, "the type of D"),
            Suffix("from", f"from_{_PACKED}", "from_{}", None, "the type of X"),
            Suffix(
                "round",
                "r([nz])",
                "r{}",
                "n",
                "floats become the nearest integer, ties to even (rn), or towards zero (rz)",
            ),
            Suffix("end", "(sat|wrap)", "{}", "sat", "sat or wrap: integers that D cannot hold"),
        ),
    ),
    _vector(
        "vquant",
        (_RD, _RX, _FY, OperandSpec("Z", ("ur", "imm"))),
        "Requantise: N integers or float32 from rX on, times Y in float32, rounded to the nearest integer, ties to "
        "even, plus Z, ending at the ends of the type (NaN: 0), packed from rD on",
        ".to_s8.from_s32 r10, r20, 0.25, 3, 8",
        (
            Suffix("to", "to_(s4|u4|s8|u8|s16|u16|s32)", "to_{}", None, "the type of D"),
            Suffix("from", "from_(s32|f32)", "from_{}", None, "the type of X"),
            _ONE_Y,
        ),
        "2 * ceil(N / vector_rate)",
    ),
    _vector(
        "vred",
        (_RD, _RX),
        "rD = the sum, or the least or greatest, of N registers from rX on, by halves: as long as there are n > 1, "
        "number i of the first ceil(n / 2) takes in number i + ceil(n / 2). Of no registers nothing",
        ".add.f32 r10, r20, 8",
        _REDUCTIONS,
    ),
    _vector(
        "vthr",
        (_RD, _RX),
        "Across threads: N registers from rD become the sums (or least or greatest) of those from rX of all threads of "
        "a group, by halves, in every thread of it; threads whose predicate is false take no part",
        ".add.f32.g4 r10, r20, 8",
        (*_REDUCTIONS, Suffix("g", "g([0-9]{1,6})", "g{}", "0", "neighbouring threads of a group (g0: all of them)")),
        "ceil(N / vector_rate) * ceil(log2(threads of a group))",
    ),
)
_BRANCHES = (
    _control("jump", (_LABEL,), "Continue at the label", " again"),
    _control(
        "br",
        (OperandSpec("X", ("ur", "imm")), OperandSpec("Y", ("ur", "imm")), _LABEL),
        "Continue at the label if X cond Y; uniform registers only, so that all threads go the same way",
        ".lt ur2, 64, again",
        suffixes=(_CONDITION,),
    ),
    _control("loop", (_URD, _LABEL), "D = D - 1; continue at the label unless D is 0", " ur9, again"),
    _control(
        "bar",
        (OperandSpec("", ("imm",), optional=True),),
        "Barrier of all processing elements that run: wait until each is at the barrier of this number (0). A guard "
        "that is not the same in all threads is a divergent barrier: a record, and the PE waits all the same",
        " 1",
        guard=True,
        occupies="until all are there",
        width="",
    ),
    _control("peid", (_URD,), "D = the number of this processing element", " ur7"),
    _control("npe", (_URD,), "D = the processing elements of the machine", " ur7"),
    _control("nop", (), "Nothing, for a cycle"),
    _control("halt", (), "End of the program; so is running past its last instruction"),
)
_SEGMENTS = _ours(
    _control(
        "segment",
        (_URD, OperandSpec("", ("segment",))),
        "D = handle of the segment the host calls name (0 and an error record if there is none)",
        " ur4, $B",
    ),
    _control("segdef", (_URD, _SEGMENT), "D = handle of a new descriptor, at first equal to that of urS", " ur8, ur4"),
    _control("segbase", (_SEGMENT, _DIM, _WHOLE), "The segment begins at X along dim d1, d2, ... (1, 2)", " ur8, 1, 4"),
    _control("segsize", (_SEGMENT, _DIM, _WHOLE), "The segment has X elements along dim d1, d2, ...", " ur8, 1, 4"),
    _control(
        "segget",
        (_URD, _SEGMENT, _DIM),
        "D = where the segment begins, or how many elements it has, along dim d1, d2, ...",
        ".size ur7, ur4, 2",
        suffixes=(Suffix("what", "(base|size)", "{}", None, "which of the two"),),
    ),
)
_PAGES = _ours(
    _dma("ptmap", (_SEGMENT, _PAGE), "Make the entry of page P (all) without one: loaded, in device memory", " ur4"),
    _dma("ptdel", (_SEGMENT, _PAGE), "Delete the entry of page P (all); nothing is written back", " ur4, 0"),
    _dma(
        "dmain",
        (_SEGMENT, _PAGE),
        "Bring page P (all pages) of the segment from device memory to L2; the page-table entry is loading until done",
        " ur4",
        moves=True,
    ),
    _dma(
        "dmaout",
        (_SEGMENT, _PAGE),
        "Write page P (all pages) back to device memory if it was stored to, and delete its page-table entry",
        " ur5",
        moves=True,
    ),
    _dma("dmawait", (_SEGMENT,), "Wait until no page of the segment is loading", " ur4"),
    _dma(
        "dmastat",
        (_URD, _SEGMENT, _PAGE),
        "D = the state of page P (the least of all pages): 0 absent, 1 loading, 2 loaded; a 1 is followed by a 2",
        " ur7, ur4",
    ),
)
GROUPS: dict[str, tuple[InstructionSpec, ...]] = {
    "The tensor multiply": _TENSOR,
    "Loads and stores": _MEMORY,
    "Moves": _MOVES,
    "Integers": _INTEGERS,
    "Floats": _FLOATS,
    "Predicates": _PREDICATES,
    "Vectors": _VECTORS,
    "Branches and barriers": _BRANCHES,
    "Segment descriptors": _SEGMENTS,
    "Page tables and DMA": _PAGES,
}
INSTRUCTIONS: dict[str, InstructionSpec] = {spec.name: spec for group in GROUPS.values() for spec in group}
