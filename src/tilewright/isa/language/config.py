"""Every number of the machine, and every reading of an ambiguous paragraph, as a named field."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tilewright.errors import UsageError, true_or_false
from tilewright.isa.language.dram import DRAMS
from tilewright.isa.language.errors import shown
from tilewright.targets import SimtCore, target


def _constants() -> SimtCore:
    chip = target("simt").simt
    assert chip is not None
    return chip


_SIMT = _constants()


@dataclass(frozen=True)
class Reading:
    """One ambiguity: the question, and the choices this machine performs.

    The first choice is the default. ``least`` not None: any whole number from there is a choice too.
    """

    question: str
    choices: tuple[Any, ...]
    least: int | None = None


READINGS: dict[str, Reading] = {
    "disjoint_sets": Reading("are loaders and compute threads different threads?", (False, True)),
    "group_order": Reading("which threads form a group of ka * kb?", ("consecutive", "strided")),
    "ka_split": Reading("which columns does a thread of a ka group hold?", ("blocked", "interleaved")),
    "kb_acc": Reading("which thread of a kb group adds and keeps the sum?", ("first", "last")),
    "kb_mode": Reading("what does kb divide: each thread's chunk or the group's work?", ("split", "chunk")),
    "pred_scope": Reading("what does a false predicate stop?", ("loader", "compute", "both")),
    "column_numbering": Reading("do skipped columns leave a gap in the product registers?", ("gap", "compact")),
    "on_error": Reading("what happens after an error, when the in-range work is done?", ("record", "raise", "warn")),
    "offset_mode": Reading("a multi-dimensional offset: one register per dim, or one?", ("registers", "linear")),
    "page_addresses": Reading(
        "does an entry of the page table have its page's address, or the distance from another page's?",
        ("absolute", "relative"),
    ),
    "overflow": Reading("integer accumulation beyond 32 bits", ("wrap", "saturate")),
    "float_order": Reading("the order of float additions", ("chunk", "fma", "exact")),
    "retention": Reading(
        "t1: a cache set is full of retained lines; off: none is retained", ("bypass", "evict", "off")
    ),
    "slice_order": Reading("the order of folded slices of B (contract)", ("y-major", "z-major")),
    "uninitialized": Reading("what do registers hold at first?", ("zero", "poison")),
    "math_issue": Reading("does math begin when a step's columns are there, or all of them?", ("step", "instruction")),
    "columns_per_step": Reading("columns of one part in one step", (1,), least=1),
    "kb_add_cycles": Reading("cycles of a kb transfer", (0,), least=0),
    "vector_rate": Reading("registers of a thread that the vector unit works on in a cycle", (1,), least=1),
    "special_cycles": Reading("cycles of the vector unit for one exp, log, ... or division", (4,), least=1),
}


_LATENCIES = ("l1_latency", "l2_latency", "dram_latency", "dma_latency", "alu_latency")
_RATES = ("l1_ports", "l2_bytes_per_cycle", "dram_bytes_per_cycle", "macs_per_thread_cycle")
RANGES: dict[str, tuple[int, int]] = {
    "pes": (1, 512),
    "threads": (1, 1 << 16),
    "registers": (1, 1 << 16),
    "predicates": (1, 1 << 10),
    "uniform_registers": (1, 1 << 16),
    "loaders": (1, 1 << 16),
    "a_bytes": (4, 64),
    "line_bytes": (4, 4096),
    "l1_bytes": (1, 1 << 40),
    "l2_bytes": (0, 1 << 32),
    "l1_ways": (0, 1 << 34),
    "l2_ways": (0, 1 << 34),
    **dict.fromkeys(_LATENCIES, (0, 1 << 30)),
    **dict.fromkeys(_RATES, (1, 1 << 30)),
    **dict.fromkeys(("bus_bytes_per_cycle", "host_bytes_per_cycle", "host_latency"), (0, 1 << 30)),
    **dict.fromkeys(("fetch_cycles", "page_hit_cycles", "page_miss_cycles", "page_entries"), (0, 1 << 16)),
    "bcast_depth": (1, 1 << 16),
    "max_instructions": (1, 1 << 40),
    "max_errors": (1, 10_000_000),
    "columns_per_step": (1, 1 << 16),
    "kb_add_cycles": (0, 1 << 16),
    "vector_rate": (1, 1 << 16),
    "special_cycles": (1, 1 << 16),
}
"""Least and most of every number: far beyond any machine, and within what can be simulated and counted in 64 bits."""
NAMED = {"arbitration": ("round_robin", "slots"), "dram": ("flat", *DRAMS)}
"""Fields of the memory system that are names, and which; the first is the default."""
_MAY_BE_NONE = ("macs_per_thread_cycle", "loaders")


@dataclass(frozen=True)
class MatrixUnitConfig:
    """The machine: sizes, latencies (cycles) and readings; :data:`READINGS` says what each reading decides.

    ``pes``: processing elements, each with its own L1. ``loaders``: columns of one instruction until ``setmm`` says
    otherwise (None: as many as threads); with ``disjoint_sets`` the first so many threads load and the others compute
    (None: half of them).
    ``a_bytes`` of A per thread and instruction: one register (4), two, four, ... ``l2_bytes`` 0: no second level; every
    line comes from device memory, over the same bus.
    ``acc_window``: (low, high) of the registers that may hold products; None: from rC to the first of the instruction's
    own source registers above it, or the end of the file. ``macs_per_thread_cycle``: None means a whole chunk of A.
    ``max_instructions`` and ``max_errors``: what a processing element may execute and record before a run is stopped.
    Costs of which the source is silent, all 0, which is free: ``bus_bytes_per_cycle``, the width of the bus on which
    columns of B are broadcast, one after the other; ``fetch_cycles``, for which the queue stands still after every
    issue; ``page_hit_cycles`` and ``page_miss_cycles``, for which the load-store unit translates each page that an
    instruction reaches, which is a hit among the ``page_entries`` (0: all) that were translated last;
    ``host_bytes_per_cycle`` and ``host_latency`` of the host's link, over which tensors come and go.
    ``dram``: flat, or a name of :data:`tilewright.isa.language.dram.DRAMS`, whose banks and rows device memory then has
    beside ``dram_latency`` (of an open row). ``arbitration``: how several elements share the buses of L2 and device
    memory: round_robin, by need, an instruction of each in turn; slots: every element and DMA have a part of their own.
    ``loads_through_l1``: per-thread loads pass through L1 too (they are never in its counters). ``values=False`` leaves
    the products out: registers keep what they held, counts and cycles are the same (:func:`autotune` runs so).
    Raises :class:`UsageError` for a value out of range, also for a reading it does not know.

    >>> MatrixUnitConfig(threads=64).chunk(element_bytes=2)
    4
    """

    pes: int = 1
    threads: int = _SIMT.threads
    registers: int = _SIMT.registers
    predicates: int = _SIMT.predicates
    uniform_registers: int = _SIMT.uniform_registers
    loaders: int | None = None
    a_bytes: int = _SIMT.a_bytes
    acc_window: tuple[int, int] | None = None
    line_bytes: int = _SIMT.line_bytes
    l1_bytes: int = _SIMT.l1_bytes
    l2_bytes: int = _SIMT.l2_bytes
    l1_ways: int = _SIMT.l1_ways
    l2_ways: int = _SIMT.l2_ways
    loads_through_l1: bool = False
    l1_latency: int = _SIMT.l1_latency
    l2_latency: int = _SIMT.l2_latency
    dram_latency: int = _SIMT.dram_latency
    dma_latency: int = _SIMT.dma_latency
    alu_latency: int = _SIMT.alu_latency
    l1_ports: int = _SIMT.l1_ports
    l2_bytes_per_cycle: int = _SIMT.l2_bytes_per_cycle
    dram_bytes_per_cycle: int = _SIMT.dram_bytes_per_cycle
    bus_bytes_per_cycle: int = 0
    fetch_cycles: int = 0
    page_hit_cycles: int = 0
    page_miss_cycles: int = 0
    page_entries: int = 0
    host_bytes_per_cycle: int = 0
    host_latency: int = 0
    dram: str = "flat"
    arbitration: str = "round_robin"
    bcast_depth: int = _SIMT.bcast_depth
    macs_per_thread_cycle: int | None = None
    max_instructions: int = 10_000_000
    max_errors: int = 1_000_000
    values: bool = True
    disjoint_sets: bool = False
    group_order: str = "consecutive"
    ka_split: str = "blocked"
    kb_acc: str = "first"
    kb_mode: str = "split"
    pred_scope: str = "loader"
    column_numbering: str = "gap"
    on_error: str = "record"
    offset_mode: str = "registers"
    page_addresses: str = "absolute"
    overflow: str = "wrap"
    float_order: str = "chunk"
    retention: str = "bypass"
    slice_order: str = "y-major"
    uninitialized: str = "zero"
    math_issue: str = "step"
    columns_per_step: int = 1
    kb_add_cycles: int = 0
    vector_rate: int = 1
    special_cycles: int = 4

    def __post_init__(self) -> None:
        """Refuse what the machine cannot be, and readings it does not know."""
        for name, (least, most) in RANGES.items():
            if name not in READINGS and not (name in _MAY_BE_NONE and getattr(self, name) is None):
                self._within(name, least, most)
        through = true_or_false(self.loads_through_l1, "loads_through_l1", "config")
        object.__setattr__(self, "loads_through_l1", through)
        if self.disjoint_sets and not 1 <= self.default_columns < self.threads:
            raise UsageError(f"loaders = {self.default_columns} of {self.threads} threads leaves none to compute")
        if self.loaders is not None and not 1 <= self.loaders <= self.threads:
            raise UsageError(f"loaders = {self.loaders} is not within 1..{self.threads} (threads)", where="config")
        if self.a_bytes % 8 and self.a_bytes != 4:
            raise UsageError(f"a_bytes = {self.a_bytes} is not 4, 8, 16, 24, ... 64", where="config")
        if not 4 <= self.line_bytes <= 4096 or self.line_bytes & (self.line_bytes - 1):
            raise UsageError(f"line_bytes = {self.line_bytes} is not a power of two from 4 to 4096", where="config")
        if self.pes * self.threads * (self.registers + self.predicates) > 1 << 28:
            pes = f"{self.pes} processing elements of " if self.pes > 1 else ""
            size = f"{pes}{self.threads} threads of {self.registers} registers and {self.predicates} predicates"
            raise UsageError(f"{size} are too many to simulate", where="config")
        for level in ("l1", "l2"):
            lines, ways = getattr(self, f"{level}_bytes") // self.line_bytes, getattr(self, f"{level}_ways")
            if level == "l2" and not self.l2_bytes:
                continue  # there is none
            if lines < 1 or (ways and lines % ways):
                how = "give whole sets of whole lines"
                raise UsageError(f"{level}: {lines} lines do not make sets of {ways or lines}", where="config", how=how)
        if (window := self.acc_window) is not None:
            pair = isinstance(window, tuple) and len(window) == 2 and all(type(end) is int for end in window)
            if not pair or not 0 <= window[0] <= window[1] <= self.registers:
                raise UsageError(
                    f"acc_window {shown(window)} is not (low, high) within 0..{self.registers}", where="config"
                )
        for name, known in NAMED.items():
            if getattr(self, name) not in known:
                how = f"one of {', '.join(known)}"
                raise UsageError(f"{name} = {shown(getattr(self, name))} is not known", where="config", how=how)
        for name, reading in READINGS.items():
            _check_reading(name, getattr(self, name), reading)

    def _within(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"{name} = {shown(value)} is not an integer of at least {least}", where="config")
        if value > most:
            raise UsageError(
                f"{name} = {shown(value)}, too many to simulate: no room for more than {most}", where="config"
            )

    @property
    def slowing(self) -> tuple[str, ...]:
        """Fields with which loops are run instruction by instruction, many times slower, and not by one kernel call."""
        usual = {"pred_scope": "loader", "column_numbering": "gap", "uninitialized": "zero", "math_issue": "step"}
        usual |= {"offset_mode": "registers", "overflow": "wrap", "float_order": "chunk"}
        names = [name for name, value in usual.items() if getattr(self, name) != value]
        names += [name for name in ("page_hit_cycles", "page_miss_cycles") if getattr(self, name)]
        names += ["loads_through_l1"] * self.loads_through_l1 + ["bcast_depth"] * (self.bcast_depth > 64)
        return tuple(names)

    @property
    def slow(self) -> str:
        """What to say of :attr:`slowing`; "" where loops are run by one call."""
        return f"{', '.join(self.slowing)}: loops run instruction by instruction, many times slower" * bool(
            self.slowing
        )

    @property
    def slots(self) -> int:
        """Parts of every bus, one for each element and one for DMA; 1 where the buses are shared by need."""
        return self.pes + 1 if self.arbitration == "slots" and self.pes > 1 else 1

    def column_cycles(self, element_bytes: int, kb: int = 1) -> int:
        """Cycles of a column on the broadcast bus, whole or not; 0: it is as wide as it must be.

        >>> MatrixUnitConfig(bus_bytes_per_cycle=16, kb_mode="chunk").column_cycles(1, kb=16)
        8
        """
        width = self.bus_bytes_per_cycle
        return -(-self.depth(element_bytes, kb) * element_bytes // width) if width else 0

    def link_cycles(self, size: int) -> int:
        """Cycles of so many bytes over the host's link; 0 where that is free."""
        rate = self.host_bytes_per_cycle
        return self.host_latency + (-(-size // rate) if rate else 0)

    @property
    def a_registers(self) -> int:
        """Registers of A per thread and instruction: rA, rA+1 by default."""
        return self.a_bytes // 4

    @property
    def default_columns(self) -> int:
        """Columns of an ``mm`` before any ``setmm``."""
        if self.loaders is not None:
            return self.loaders
        return max(1, self.threads // 2) if self.disjoint_sets else self.threads

    @property
    def loader_threads(self) -> int:
        """Threads that may load a column: the most columns an ``mm`` can have."""
        return self.default_columns if self.disjoint_sets else self.threads

    @property
    def first_compute(self) -> int:
        """The first thread of the compute set."""
        return self.loader_threads if self.disjoint_sets else 0

    @property
    def compute_threads(self) -> int:
        """Threads of the compute set."""
        return self.threads - self.first_compute

    def chunk(self, element_bytes: int, kb: int = 1) -> int:
        """Elements of A per thread and instruction: Le / kb, Le being 8, 4 or 2; Le with ``kb_mode='chunk'``.

        >>> MatrixUnitConfig().chunk(1, kb=2), MatrixUnitConfig(kb_mode="chunk").chunk(1, kb=2)
        (4, 8)
        """
        whole = self.a_bytes // element_bytes
        return -(-whole // kb) if self.kb_mode == "split" else whole

    def depth(self, element_bytes: int, kb: int = 1) -> int:
        """Elements of k one instruction covers: Le, or kb * Le with ``kb_mode='chunk'``."""
        return self.a_bytes // element_bytes * (1 if self.kb_mode == "split" else kb)

    def a_registers_read(self, element_bytes: int, kb: int = 1) -> int:
        """Registers of A that every thread reads for one instruction."""
        return -(-self.chunk(element_bytes, kb) * element_bytes // 4)

    def step_cycles(self, element_bytes: int, kb: int = 1) -> int:
        """Cycles of one math issue, transfers between the threads of a kb group included."""
        chunk = self.chunk(element_bytes, kb)
        rate = self.macs_per_thread_cycle or self.chunk(element_bytes)
        return -(-chunk // rate) + self.kb_add_cycles * (kb - 1)


@cache
def _default() -> MatrixUnitConfig:
    return MatrixUnitConfig()


def checked_config(config: Any) -> MatrixUnitConfig:
    """The configuration a function was given, or the default for None."""
    if config is None:
        return _default()
    if not isinstance(config, MatrixUnitConfig):
        raise UsageError(f"config is {type(config).__name__}", how="give a MatrixUnitConfig, or nothing")
    return config


def _check_reading(name: str, value: Any, reading: Reading) -> None:
    # Compared with the type: 1 == True must not pass for a choice.
    if any(type(value) is type(choice) and value == choice for choice in reading.choices):
        return
    most = RANGES[name][1] if reading.least is not None else 0
    if reading.least is not None and type(value) is int and reading.least <= value <= most:
        return
    how = f"this machine performs {', '.join(map(repr, reading.choices))}"
    how += f" and whole numbers up to {most}" if most else ""
    raise UsageError(f"{name} = {shown(value)} is not a known reading ({reading.question})", where="config", how=how)


# Every question the source leaves open, with the paragraphs it comes from, and how this machine answers it.


@dataclass(frozen=True)
class Ambiguity:
    """``paragraphs`` of the source, the question, the answer, and the fields that give another (none: a slip of it).

    ``ours``: the text says nothing of it; what stands here is this machine's own.
    """

    paragraphs: str
    question: str
    answer: str
    fields: tuple[str, ...] = ()
    ours: bool = False


AMBIGUITIES = (
    Ambiguity(
        "5, 94, 102", "are loaders and compute threads different threads?", "roles; may overlap", ("disjoint_sets",)
    ),
    Ambiguity("94", "the first set broadcasts, and the first set computes?", "a slip: the second computes"),
    Ambiguity("10, 113, 115", "is a group's further thread of the first set or the second?", "the second, computing"),
    Ambiguity("12, 120, 136", "which group of registers takes the fourth dot product?", "that of the keeping thread"),
    Ambiguity("115", "columns 1 to 127 and 128 to 256?", "a slip: halves of 128; ceil(n / ka) in general"),
    Ambiguity("115, 121", "which columns does a thread of a ka group hold?", "blocks of neighbours", ("ka_split",)),
    Ambiguity("118, 119", "which thread of a kb group adds and keeps?", "the first", ("kb_acc",)),
    Ambiguity(
        "106, 118-121",
        "does kb divide each thread's chunk?",
        "yes: 8 of int8 are 4 and 4 [121]; with `chunk` the group covers kb whole chunks",
        ("kb_mode",),
    ),
    Ambiguity("10, 112", "which threads form a group?", "neighbours, qb the fastest", ("group_order",)),
    Ambiguity("95, 97, 105", "what does a false predicate stop?", "its loader, and so its column", ("pred_scope",)),
    Ambiguity(
        "100", "where do product registers end?", "at the first own source register, or the file", ("acc_window",)
    ),
    Ambiguity("100, 22", "does an error end the program?", "no: in-range work, then a record", ("on_error",)),
    Ambiguity("60, 95", "one register for an offset of several dims?", "one per dim", ("offset_mode",)),
    Ambiguity("95, 59", "is rf290 a register of each thread?", "yes: loaders have their own addresses; urN is shared"),
    Ambiguity("106", "how many registers of A for other types?", "two, 8 bytes, for every type", ("a_bytes",)),
    Ambiguity(
        "-",
        "overflow, and the order of float additions?",
        "modulo 2^32; float32, chunk by chunk",
        ("overflow", "float_order"),
        ours=True,
    ),
    Ambiguity("77, 64", "in which order do pages and lines lie?", "d1 fastest; pages at the ends are whole"),
    Ambiguity("125", "what if all of a cache set is retained?", "the miss passes by", ("retention",)),
    Ambiguity("128", "in which order are folded slices stacked?", "the first folded dim slowest", ("slice_order",)),
    Ambiguity("98, 99", "how many math issues has an mm?", "one per step", ("math_issue",)),
    Ambiguity("37, 56, 124", "does one loader fetch the rows of t1?", "each its own column's; L1 shares the lines"),
    Ambiguity("118", "what does a kb transfer cost?", "counted, no cycles", ("kb_add_cycles",)),
    Ambiguity("109, 102", "several columns of a thread at once?", "one per part and step", ("columns_per_step",)),
    Ambiguity("97, 105", "do skipped columns close up in the registers?", "no: a gap", ("column_numbering",)),
    Ambiguity("87", "what do registers hold before a program clears them?", "zeros", ("uninitialized",)),
    Ambiguity("60, 95", "does urS hold a segment's base address?", "a handle of its descriptor, which `segbase` moves"),
    Ambiguity("60, 95", "which dim does imm belong to?", "d1, the contiguous one"),
    Ambiguity("57, 59", "is there one L1, or one for each processing element?", "one each; L2 is everyone's"),
    Ambiguity(
        "77", "do a thread's own loads come by whole lines through L1?", "exact bytes past it", ("loads_through_l1",)
    ),
    Ambiguity("107", "how is an element without sa, ua, sb or ub read?", "as the segment's own type has it"),
    Ambiguity("7, 103", "to as many threads as there are rows, or to half of them?", "to all that have a row"),
    Ambiguity("125", "is a released line gone?", "it may be evicted, and stays until its place is wanted"),
    Ambiguity(
        "15, 125",
        "when is a line that was used up retained again?",
        "when a program starts, a page comes, a product (`clr`, `setmm`) begins over columns already used",
    ),
    Ambiguity(
        "97, 105, 125",
        "does a line wait for columns that are off?",
        "where several are on, for those; where one is, for those after it; no longer than until a product begins over "
        "another segment",
    ),
    Ambiguity("56, 57", "is L2's room for pages and for lines the same?", "yes, one capacity; there may be none (0)"),
    Ambiguity(
        "56, 58, 98, 102",
        "what do the broadcast bus, instruction fetch and the host's link cost?",
        "nothing",
        ("bus_bytes_per_cycle", "fetch_cycles", "host_bytes_per_cycle", "host_latency"),
    ),
    Ambiguity(
        "61, 63",
        "what does the translation of an address cost?",
        "nothing",
        ("page_hit_cycles", "page_miss_cycles", "page_entries"),
    ),
    Ambiguity(
        "63",
        "does an entry of the page table have its page's own address?",
        "yes; with `relative` the distance from the first page that has an entry in the same memory",
        ("page_addresses",),
    ),
    Ambiguity("129, 130", "is the storage unit 906 or 908?", "a slip; no number of a figure matters here"),
    Ambiguity(
        "87, 96, 102", "how does an mm know its columns and rows?", "`setmm`, an instruction", ("loaders",), ours=True
    ),
    Ambiguity(
        "65, 69, 75",
        "which instructions move pages and make entries?",
        "`dmain`, `dmaout`, `dmawait`, `dmastat`, `ptmap`, `ptdel`; the host may, too",
        ours=True,
    ),
    Ambiguity(
        "60, 69, 74",
        "which instructions describe segments?",
        "`segment`, `segdef`, `segbase`, `segsize`, `segget`; the host may, too",
        ours=True,
    ),
    Ambiguity(
        "-",
        "who adds a bias, rounds, or takes the exponential of a product?",
        "a vector unit of every thread, over runs of its registers; and broadcast loads",
        ("vector_rate", "special_cycles"),
        ours=True,
    ),
)
"""In the order of the specification, then what an audit of every sentence found; the last are ours."""
