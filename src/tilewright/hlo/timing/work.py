"""What a kernel asks of the units, counted from its operations, and how long the units take that work side by side."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import ELEMENTWISE, MOVES_ONLY, PRODUCTS, TRANSCENDENTAL, WRITTEN_OUT
from tilewright.hlo.program import Operation
from tilewright.hlo.semantics.dims import gathered_rows, matrix_passes, matrix_type, product_flops, product_sizes
from tilewright.hlo.semantics.tiles import Tiles
from tilewright.targets import TimeConstants

FIRST_WINDOW = 0.35
"""Share of a window's transfer that nothing hides, at a kernel's begin and end (fitted)."""
_ITERATIONS = re.compile(r'"iteration_bounds":\[([^\]]{1,200})\]')
_MASKED = re.compile(r'"mask_dim_to_iteration_index":\["(\d{1,2})","(\d{1,2})"\]')
_NUMBER = re.compile(r"\d{1,9}")
_SCALAR_MB = 0.001
"""Megabytes below which a kernel is taken to touch no HBM."""
AFTER = 2
"""The place of what is no operand of a product: behind it, or in a kernel without one."""

REGISTER_MB = 0.002048
"""Megabytes of one tile (8, 128) of a type of two bytes."""


def matrix_us(constants: TimeConstants, rows: int, columns: int, depth: int, fill: float | None = None) -> float:
    """Microseconds of passes: squares of ``side`` x ``side`` weights; each streams rows, at least ``fill`` sides.

    The operand that makes fewer passes stands still. ``rows_per_cycle``, ``units`` and ``ghz`` are the chip's, and so
    is ``fill`` (``fill_rows``) unless it is given.
    """
    side = int(constants["side"])
    least = side * (constants["fill_rows"] if fill is None else fill)

    def passes(streamed: int, still: int) -> float:
        squares = -(-depth // side) * -(-still // side)
        return squares * max(-(-streamed // 8) * 8, least)

    cycles = min(passes(rows, columns), passes(columns, rows)) / constants["rows_per_cycle"] / constants["units"]
    return cycles / constants["ghz"] / 1e3


def passes_of(constants: TimeConstants, op: Operation) -> float:
    """How many times as long as one of bfloat16 a product takes: passes of float32, or the quicker ones of its type."""
    kind = matrix_type(op)
    return matrix_passes(op) if kind == "bf16" else 1 / constants[f"{kind}_rate"]


REGISTER, LANES = 1024, 128
"""Elements of a vector register: 8 sublanes of 128 lanes."""

SORTS = frozenset({"sort", "top-k", "topk"})
"""Operations that are priced as a network that sorts; of the top ones too, all are sorted, with their places."""
_REGISTER_BY_REGISTER = ELEMENTWISE | {"map", "reverse", "reduce-window", "select-and-scatter", "set-dimension-size"}
"""Operations that are priced by the registers of their result."""
_MOVES = {
    **dict.fromkeys(("slice", "dynamic-slice", "pad", "concatenate"), "cut_ops"),
    **dict.fromkeys(("copy", "transpose"), "move_ops"),
    "broadcast": "repeat_ops",
}
"""Moves inside a fused kernel, and the constant that says how many vector operations a register of them takes."""


@dataclass
class Work:
    """What one kernel asks of the units."""

    matrix_us: float = 0.0  # microseconds of passes on the matrix unit
    products: Counter[str] = field(default_factory=Counter)  # type on the matrix unit -> multiplications and additions
    registers: float = 0.0  # registers through the vector unit, operation by operation
    transcendental: float = 0.0  # registers through the transcendental unit
    rotations: float = 0.0  # registers turned across lanes
    summed: float = 0.0  # registers that are summed, or reduced in another way; among ``registers``
    rows: int = 0  # rows gathered or scattered one by one
    elements: int = 0  # and of single elements
    sparse_us: float = 0.0  # microseconds of rows that SparseCores gather
    link_us: float = 0.0  # microseconds of exchanges with other chips
    unknown: tuple[str, ...] = ()  # why operations have no price

    def include(self, other: Work) -> None:
        """Add what ``other`` asks for."""
        own = vars(self)
        for name, value in vars(other).items():
            if value:
                own[name] += value

    def times(self, share: float) -> Work:
        """The same where only a share of the result is wanted, or it is made several times: products are whole."""
        if share == 1.0:
            return self
        parts = ("registers", "transcendental", "rotations")
        return replace(self, **{part: getattr(self, part) * share for part in parts})

    def vector_us(self, constants: TimeConstants) -> float:
        """Microseconds of the vector unit; its slots for arithmetic and for transcendentals work side by side."""
        arithmetic = self.registers * constants["vector_ns"]
        special = self.transcendental * constants["transcendental_ns"]
        return (max(arithmetic, special) + self.rotations * constants["rotation_ns"]) / 1e3

    def rows_us(self, constants: TimeConstants) -> float:
        """Microseconds of rows and elements that are gathered or scattered one by one, or by SparseCores."""
        return self.sparse_us + self.rows * constants["gather_row_us"] + self.elements * constants["gather_element_us"]


def _across_lanes(dims: Sequence[int], operand: Tiles, result: Tiles) -> bool:
    """Whether a broadcast must bring what lies along the lanes elsewhere, or repeat along them."""
    lanes = next((d for d in result.minor_to_major if result.shape[d] > 1), None)
    own = next((d for d in operand.minor_to_major if operand.shape[d] > 1), None)
    return own is not None and (own >= len(dims) or dims[own] != lanes)


_EVERY_OTHER = re.compile(r":\d+:(?:[2-9]|\d{2,9})\]")


def _takes_every_other(op: Operation, operand: Tiles) -> bool:
    """Whether a slice takes every second, third ... of what lies along the lanes: registers are turned for that."""
    taken = op.attributes.get("slice", "").split(",")
    lanes = operand.minor_to_major[:1]
    return bool(lanes) and lanes[0] < len(taken) and _EVERY_OTHER.search(taken[lanes[0]]) is not None


def _gets_thin(operand: Tiles, result: Tiles) -> bool:
    """Whether a reshape makes, or ends, lanes or sublanes of a few elements, such as pairs: no view of the registers.

    Wherever they are taken apart in the fusion, each register of the denser side is turned once at least.
    """
    ends = [tiles.shape[-2:] for tiles in (operand, result)]
    return ends[0] != ends[1] and any(1 < size < _THIN for size in (*ends[0], *ends[1]))


_THIN = 8
"""Elements: as many sublanes as a register has."""


def _add_sort(work: Work, arrays: Sequence[Tiles], dim: int, each: float) -> None:
    """Add a bitonic network: log2(n) (log2(n) + 1) / 2 passes of a comparison and two choices over all registers.

    Partners nearer than a register's lanes (or sublanes) are brought together by turning it. Not measured.
    """
    shape = arrays[0].shape or (1,)
    levels = max(1, (shape[dim] - 1).bit_length())
    within = min(levels, 7 if arrays[0].minor_to_major[:1] == (dim % len(shape),) else 3)
    registers = sum(tiles.elements for tiles in arrays) * each
    work.registers += registers * (levels * (levels + 1) / 2) * 3
    work.rotations += registers * (within * (within + 1) / 2 + (levels - within) * within)


def add_operation(
    work: Work, constants: TimeConstants, op: Operation, operands: Sequence[Tiles], result: Tiles, share: float = 1.0
) -> None:
    """Add what ``op`` asks of the units to ``work``, where a ``share`` of its result is wanted: products are whole."""
    name, each = plain_opcode(op.opcode), share / REGISTER
    registers = result.elements * each
    if name in _REGISTER_BY_REGISTER:
        if operands and operands[0].elements > result.elements:
            registers = operands[0].elements * each
        passes, more = WRITTEN_OUT.get(name, (TRANSCENDENTAL.get(name, 0), 0))
        work.transcendental += registers * passes
        ops = more + constants["transcendental_ops"] * (passes if more else 1)
        if not passes:
            narrow = constants["narrow_ops"] if op.shape.startswith("bf16") else 1.0
            ops = constants["convert_ops"] if name == "convert" else narrow
        work.registers += registers * ops
    elif name in PRODUCTS:
        dims = product_sizes(op, operands, result)
        if dims is None:
            work.unknown += (f"{name} does not say its dims",)
            return
        batch, height, columns, depth = dims
        work.products[matrix_type(op)] += product_flops(op, operands, result) or 0
        if batch > 1 and 1 in (height, columns):  # a product and a sum of the vector unit
            work.registers += batch * height * columns * depth * each * (1 + constants["sum_ops"])
            return
        us = batch * matrix_us(constants, height, columns, depth) / constants["efficiency"]
        work.matrix_us += us * passes_of(constants, op)
    elif name in ("gather", "scatter"):
        rows = gathered_rows(op, operands[1] if len(operands) > 1 else result, result)
        sizes = op.integers("slice_sizes")
        single = bool(sizes) and prod(sizes) == 1
        work.elements += rows if single else 0
        work.rows += 0 if single else rows
    elif name in SORTS and operands:
        _add_sort(work, [*operands] + [operands[0]] * (name != "sort"), (op.integers("dimension") or (-1,))[0], each)
    elif name == "broadcast" and operands and not operands[0].shape:
        return  # one number stands in a register as it is
    elif name in _MOVES:
        if name == "slice" and operands and _takes_every_other(op, operands[0]):
            work.rotations += operands[0].elements * each
        elif name in ("slice", "concatenate") and operands:
            whole, part = (operands[0], result) if name == "slice" else (result, operands[0])
            if whole.shape[-1:] != part.shape[-1:] and 1 < whole.shape[-1] < _THIN:
                work.rotations += prod(whole.shape) * each
        if name == "broadcast" and operands and _across_lanes(op.integers("dimensions"), operands[0], result):
            work.rotations += min(registers, share * prod(operands[0].shape) / 8)  # eight of its numbers a register
        work.registers += registers * constants[_MOVES[name]]
    elif name in MOVES_ONLY:
        if name == "reshape" and operands and _gets_thin(operands[0], result):
            work.rotations += min(operands[0].elements, result.elements) * each
    elif name == "reduce":
        operand = operands[0] if operands else result
        reduced, order = set(op.integers("dimensions")), operand.minor_to_major
        work.summed += operand.elements * each
        work.registers += operand.elements * each * constants["sum_ops"] * (2 if {*order[1:2]} & reduced else 1)
        if order and order[0] in reduced:
            work.rotations += share * operand.elements / max(operand.shape[order[0]], 128) / 8
    else:
        work.unknown += (f"no mechanism for {name} is known",)


@dataclass(frozen=True)
class Windows:
    """How a kernel passes over its arrays, as the compiler's configuration of it says.

    ``columns``, ``rows``: into how many blocks a product's result is cut; ``depths``: and its sums. Every block of
    columns passes all of the left operand anew, every block of rows all of the right one, where its sums are cut. A
    grouped product steps over all rows for each of its ``groups``, and skips blocks that the group has no row in:
    ``visited`` is the share of those that are left, as many as there are blocks and one more for each group.

    >>> text = '"window_config":{"iteration_bounds":["99","13","4"]}'
    >>> Windows.of(Operation("f", "fusion", "", attributes={"backend_config": text})).passes(0)
    99
    """

    counts: tuple[int, ...] = ()
    known: bool = False
    groups: int = 1
    visited: float = 1.0

    @classmethod
    def of(cls, op: Operation) -> Windows:
        """The windows of an operation; one where it says none."""
        config = op.attributes.get("backend_config", "")
        match = _ITERATIONS.search(config)
        if match is None:
            return cls()
        counts = tuple(max(1, int(number)) for number in _NUMBER.findall(match[1]))
        if (mask := _MASKED.search(config)) and max(dims := (int(mask[1]), int(mask[2]))) < len(counts) == 5:
            groups, blocks = (counts[dim] for dim in dims)
            return cls((counts[0], counts[2], counts[4]), True, groups, (groups + blocks - 1) / (groups * blocks))
        return cls(counts, True)

    @property
    def count(self) -> int:
        """Steps of the whole pass."""
        return max(1, round(prod(self.counts) * self.groups * self.visited))

    def passes(self, side: int | None) -> int:
        """How often an operand on one side of a product passes: 0 left, 1 right, None neither."""
        if side is None or len(self.counts) != 3:
            return 1
        columns, rows, depths = self.counts
        return columns if side == 0 else rows if depths > 1 else 1


@dataclass
class Fused:
    """What a fusion asks of the units: made for a product's left operand, for its right one, and all else.

    ``sides``: the parameters that flow into a product, and on which side.
    """

    parts: tuple[Work, Work, Work] = field(default_factory=lambda: (Work(), Work(), Work()))
    sides: dict[int, int] = field(default_factory=dict)

    def work(self, windows: Windows) -> Work:
        """All of it; what is made for an operand is made in every pass of it."""
        whole = Work()
        for side, part in enumerate(self.parts):
            whole.include(part.times(windows.passes(side if side != AFTER else None)))
        if windows.groups > 1:
            whole = replace(whole.times(windows.visited), matrix_us=whole.matrix_us * windows.visited)
            whole.products = Counter({kind: flops // windows.groups for kind, flops in whole.products.items()})
        return whole


@dataclass
class Asked:
    """What one run of a kernel asks of the units and memories, in megabytes and counts."""

    work: Work
    windows: Windows
    far: float = 0.0  # megabytes through HBM, each array once
    again: float = 0.0  # megabytes that a product's windows read once more
    near: float = 0.0  # megabytes of arrays in vector memory
    common: float = 0.0  # and in the memory that two cores of v4 have in common
    scalar: bool = False  # one number, made by the scalar core

    def parts(self, constants: TimeConstants, stream_us: Callable[[float], float]) -> dict[str, float]:
        """Bound -> microseconds that the unit alone needs."""
        vector, near = self.work.vector_us(constants), self.near / constants["near_mb_per_us"]
        stream = stream_us(self.far + constants["restreamed"] * self.again)
        if self.common and constants["common_mb_per_us"]:
            stream = max(stream, self.common / constants["common_mb_per_us"])
        return {
            "matrix": self.work.matrix_us,
            "vmem" if near > vector else "vector": vector + near,
            "hbm": stream,
            "link": self.work.link_us,
        }

    def latency(self, constants: TimeConstants, hbm_us: float) -> float:
        """Microseconds that nothing hides: the start, the first and the last window, the steps between windows."""
        if self.scalar:
            return constants["scalar_us"]
        start = constants["launch_us" if self.far > _SCALAR_MB else "near_launch_us"]
        return start + hbm_us * FIRST_WINDOW / self.windows.count + (self.windows.count - 1) * constants["step_us"]
