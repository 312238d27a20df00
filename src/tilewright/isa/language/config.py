"""Every number of the machine, and every reading of an ambiguous paragraph, as a field with its range or choices.

The questions that the source leaves open, with their paragraphs and answers, stand in docs/matrix_unit.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, cast

from tilewright.errors import UsageError, true_or_false
from tilewright.targets import SimtCore, target


@dataclass(frozen=True)
class Dram:
    """One kind of device memory; times in nanoseconds, which are cycles at 1 GHz.

    ``row_bytes``: what a bank holds open; ``banks`` of all ``channels`` together. ``rcd``: from a row's opening to its
    first column, ``rp``: closing a row, ``ras``: least time a row is open. ``bytes_per_ns``: the published peak.
    """

    banks: int
    channels: int
    row_bytes: int
    rcd: float
    rp: float
    ras: float
    bytes_per_ns: float
    source: str

    def cycles(self, name: str) -> int:
        """The time called ``name`` (rcd, rp, ras) in whole cycles, rounded up."""
        return -int(-getattr(self, name) // 1)


DRAMS = {
    "ddr4_3200": Dram(
        banks=16,
        channels=1,
        row_bytes=8192,
        rcd=13.75,
        rp=13.75,
        ras=32.5,
        bytes_per_ns=25.6,
        source="JEDEC JESD79-4 speed bin 3200AA (22-22-22, tRAS 52 at 0.625 ns), as in DRAMsim3 DDR4_8Gb_x8_3200.ini",
    ),
    "hbm2": Dram(
        banks=128,
        channels=8,
        row_bytes=1024,
        rcd=14,
        rp=14,
        ras=34,
        bytes_per_ns=256,
        source="JEDEC JESD235 at 2 Gb/s a pin (14-14, tRAS 34 at 1 ns), as in DRAMsim3 HBM2_8Gb_x128.ini",
    ),
}
"""By the name that ``MatrixUnitConfig.dram`` gives; ``flat`` has no rows and no banks."""


_SIMT = cast(SimtCore, target("simt").simt)


@dataclass(frozen=True)
class Reading:
    """One ambiguity: the question, and the choices this machine performs.

    The first choice is the default. ``least`` not None: any whole number from there is a choice too.
    """

    question: str
    choices: tuple[Any, ...]
    least: int | None = None


# A field says which values it may have: numbers far beyond any machine, within what can be counted in 64 bits.


def _number(default: int | None, least: int, most: int) -> Any:
    return field(default=default, metadata={"range": (least, most)})


def _name(*names: str) -> Any:
    return field(default=names[0], metadata={"names": names})


def _reading(question: str, *choices: Any) -> Any:
    return field(default=choices[0], metadata={"reading": Reading(question, choices)})


def _counted(question: str, default: int, least: int) -> Any:
    """A reading that is a number: the default, or any other from ``least`` on."""
    return field(default=default, metadata={"reading": Reading(question, (default,), least), "range": (least, 1 << 16)})


def shown(value: Any) -> str:
    """A value for an error, cut where it is very long."""
    try:
        text = repr(value)
    except ValueError:  # more digits than Python writes
        return "a number of very many digits"
    return text if len(text) <= 200 else f"{text[:200]}..."


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
    ``dram``: flat, or a name of :data:`DRAMS`, whose banks and rows device memory then has beside ``dram_latency`` (of
    an open row). ``arbitration``: how several elements share the buses of L2 and device
    memory: round_robin, by need, an instruction of each in turn; slots: every element and DMA have a part of their own.
    ``loads_through_l1``: per-thread loads pass through L1 too (they are never in its counters). ``values=False`` leaves
    the products out: registers keep what they held, counts and cycles are the same (:func:`autotune` runs so).
    Raises :class:`UsageError` for a value out of range, also for a reading it does not know.

    >>> MatrixUnitConfig(threads=64).chunk(element_bytes=2)
    4
    """

    pes: int = _number(1, 1, 512)
    threads: int = _number(_SIMT.threads, 1, 1 << 16)
    registers: int = _number(_SIMT.registers, 1, 1 << 16)
    predicates: int = _number(_SIMT.predicates, 1, 1 << 10)
    uniform_registers: int = _number(_SIMT.uniform_registers, 1, 1 << 16)
    loaders: int | None = _number(None, 1, 1 << 16)
    a_bytes: int = _number(_SIMT.a_bytes, 4, 64)
    acc_window: tuple[int, int] | None = None
    line_bytes: int = _number(_SIMT.line_bytes, 4, 4096)
    l1_bytes: int = _number(_SIMT.l1_bytes, 1, 1 << 40)
    l2_bytes: int = _number(_SIMT.l2_bytes, 0, 1 << 32)
    l1_ways: int = _number(_SIMT.l1_ways, 0, 1 << 34)
    l2_ways: int = _number(_SIMT.l2_ways, 0, 1 << 34)
    loads_through_l1: bool = False
    l1_latency: int = _number(_SIMT.l1_latency, 0, 1 << 30)
    l2_latency: int = _number(_SIMT.l2_latency, 0, 1 << 30)
    dram_latency: int = _number(_SIMT.dram_latency, 0, 1 << 30)
    dma_latency: int = _number(_SIMT.dma_latency, 0, 1 << 30)
    alu_latency: int = _number(_SIMT.alu_latency, 0, 1 << 30)
    l1_ports: int = _number(_SIMT.l1_ports, 1, 1 << 30)
    l2_bytes_per_cycle: int = _number(_SIMT.l2_bytes_per_cycle, 1, 1 << 30)
    dram_bytes_per_cycle: int = _number(_SIMT.dram_bytes_per_cycle, 1, 1 << 30)
    bus_bytes_per_cycle: int = _number(0, 0, 1 << 30)
    fetch_cycles: int = _number(0, 0, 1 << 16)
    page_hit_cycles: int = _number(0, 0, 1 << 16)
    page_miss_cycles: int = _number(0, 0, 1 << 16)
    page_entries: int = _number(0, 0, 1 << 16)
    host_bytes_per_cycle: int = _number(0, 0, 1 << 30)
    host_latency: int = _number(0, 0, 1 << 30)
    dram: str = _name("flat", *DRAMS)
    arbitration: str = _name("round_robin", "slots")
    bcast_depth: int = _number(_SIMT.bcast_depth, 1, 1 << 16)
    macs_per_thread_cycle: int | None = _number(None, 1, 1 << 30)
    max_instructions: int = _number(10_000_000, 1, 1 << 40)
    max_errors: int = _number(1_000_000, 1, 10_000_000)
    values: bool = True
    disjoint_sets: bool = _reading("are loaders and compute threads different threads?", False, True)
    group_order: str = _reading("which threads form a group of ka * kb?", "consecutive", "strided")
    ka_split: str = _reading("which columns does a thread of a ka group hold?", "blocked", "interleaved")
    kb_acc: str = _reading("which thread of a kb group adds and keeps the sum?", "first", "last")
    kb_mode: str = _reading("what does kb divide: each thread's chunk or the group's work?", "split", "chunk")
    pred_scope: str = _reading("what does a false predicate stop?", "loader", "compute", "both")
    column_numbering: str = _reading("do skipped columns leave a gap in the product registers?", "gap", "compact")
    on_error: str = _reading("what happens after an error, when the in-range work is done?", "record", "raise", "warn")
    offset_mode: str = _reading("a multi-dimensional offset: one register per dim, or one?", "registers", "linear")
    page_addresses: str = _reading(
        "does an entry of the page table have its page's address, or the distance from another page's?",
        "absolute",
        "relative",
    )
    overflow: str = _reading("integer accumulation beyond 32 bits", "wrap", "saturate")
    float_order: str = _reading("the order of float additions", "chunk", "fma", "exact")
    retention: str = _reading(
        "t1: a cache set is full of retained lines; off: none is retained", "bypass", "evict", "off"
    )
    slice_order: str = _reading("the order of folded slices of B (contract)", "y-major", "z-major")
    uninitialized: str = _reading("what do registers hold at first?", "zero", "poison")
    math_issue: str = _reading(
        "does math begin when a step's columns are there, or all of them?", "step", "instruction"
    )
    columns_per_step: int = _counted("columns of one part in one step", 1, 1)
    kb_add_cycles: int = _counted("cycles of a kb transfer", 0, 0)
    vector_rate: int = _counted("registers of a thread that the vector unit works on in a cycle", 1, 1)
    special_cycles: int = _counted("cycles of the vector unit for one exp, log, ... or division", 4, 1)

    @classmethod
    def from_settings(cls, settings: Iterable[str], **usual: Any) -> MatrixUnitConfig:
        """The machine of texts such as ``threads=64`` or ``acc_window=4:4``; ``usual``: fields with another default."""
        known = sorted(each.name for each in fields(cls))
        for text in settings:
            name, equals, value = text.partition("=")
            if not equals or name not in known:
                raise UsageError(f"unknown field in --set {text}", how=f"known: {', '.join(known)}")
            usual[name] = cls.read_value(value)
        return cls(**usual)

    @staticmethod
    def read_value(text: str) -> Any:
        """A field's value as a text has it: true, none, 64, 4:4 or a word."""
        plain = {"true": True, "false": False, "none": None}
        if text.lower() in plain:
            return plain[text.lower()]
        parts = text.split(":")
        if not all(re.fullmatch("-?[0-9]{1,18}", part) for part in parts):
            return text
        numbers = tuple(map(int, parts))
        return numbers[0] if len(numbers) == 1 else numbers

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            optional = name in ("loaders", "macs_per_thread_cycle") and getattr(self, name) is None
            if name not in READINGS and not optional:
                self._check_range(name, least, most)
        through = true_or_false(self.loads_through_l1, "loads_through_l1", "config")
        object.__setattr__(self, "loads_through_l1", through)
        if self.disjoint_sets and not 1 <= self.default_columns < self.threads:
            raise UsageError(f"loaders = {self.default_columns} of {self.threads} threads leaves none to compute")
        if self.loaders is not None and not 1 <= self.loaders <= self.threads:
            raise UsageError(f"loaders = {self.loaders} is not within 1..{self.threads} (threads)", where="config")
        if self.a_bytes % 8 and self.a_bytes != 4:
            raise UsageError(f"a_bytes = {self.a_bytes} is not 4, 8, 16, 24, ... 64", where="config")
        if self.line_bytes & (self.line_bytes - 1):
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
                what = f"acc_window {shown(window)} is not (low, high) within 0..{self.registers}"
                raise UsageError(what, where="config")
        for name, known in _NAMES.items():
            if getattr(self, name) not in known:
                how = f"one of {', '.join(known)}"
                raise UsageError(f"{name} = {shown(getattr(self, name))} is not known", where="config", how=how)
        for name, reading in READINGS.items():
            _check_reading(name, getattr(self, name), reading)

    def _check_range(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"{name} = {shown(value)} is not an integer of at least {least}", where="config")
        if value > most:
            what = f"{name} = {shown(value)}, too many to simulate: no room for more than {most}"
            raise UsageError(what, where="config")

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
        """A sentence about :attr:`slowing`; "" where loops are run by one kernel call."""
        fields = ", ".join(self.slowing)
        return f"{fields}: loops run instruction by instruction, many times slower" if fields else ""

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


def _metadata(key: str) -> dict[str, Any]:
    return {f.name: f.metadata[key] for f in fields(MatrixUnitConfig) if key in f.metadata}


RANGES: dict[str, tuple[int, int]] = _metadata("range")
"""Least and most of every number."""
READINGS: dict[str, Reading] = _metadata("reading")
_NAMES: dict[str, tuple[str, ...]] = _metadata("names")


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


_DEFAULT = MatrixUnitConfig()


def checked_config(config: Any) -> MatrixUnitConfig:
    """The configuration a function was given, or the default for None."""
    if config is None:
        return _DEFAULT
    if not isinstance(config, MatrixUnitConfig):
        raise UsageError(f"config is {type(config).__name__}", how="give a MatrixUnitConfig, or nothing")
    return config
