"""What a kernel asks of the units, counted from its operations, and how long the units take that work side by side."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tilewright.errors import UnsupportedError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import ELEMENTWISE, MOVES_ONLY, PRODUCTS, TRANSCENDENTAL, WRITTEN_OUT
from tilewright.hlo.program import Operation
from tilewright.hlo.semantics.dims import (
    gathered_rows,
    is_of_vectors,
    matrix_passes,
    matrix_type,
    product_flops,
    product_sizes,
)
from tilewright.hlo.semantics.tiles import Tiles
from tilewright.targets import TimeConstants

FIRST_WINDOW = 0.35
"""Share of a window's transfer that nothing hides, at a kernel's begin and end (fitted)."""
_ITERATIONS = re.compile(r'"iteration_bounds":\[([^\]]{1,200})\]')
_MASKED = re.compile(r'"mask_dim_to_iteration_index":\["(\d{1,2})","(\d{1,2})"\]')
_NUMBER = re.compile(r"\d{1,9}")
SCALAR_MB = 0.001
"""Megabytes below which a kernel is taken to touch no HBM."""
HBM, NEAR, COMMON, HOST = 0, 1, 3, 5
"""Memories, as a layout's S(n) numbers them: NEAR is vector memory, COMMON what two cores of v4 share."""
AFTER = 2
"""The place of what is no operand of a product: behind it, or in a kernel without one."""

REGISTER_MB = 0.002048
"""Megabytes of one tile (8, 128) of a type of two bytes."""


def matrix_us(
    constants: TimeConstants, op: Operation, rows: int, columns: int, depth: int, fill: float | None = None
) -> float:
    """Microseconds of passes: squares of ``side`` x ``side`` weights; each streams rows, at least ``fill`` sides.

    The operand that makes fewer passes stands still. As many times as long as of bfloat16 takes ``op``, with its passes
    of float32 or at its type's quicker rate. ``fill`` is the chip's (``fill_rows``) unless it is given.
    """
    side, kind = int(constants["side"]), matrix_type(op)
    least = side * (constants["fill_rows"] if fill is None else fill)

    def passes(streamed: int, still: int) -> float:
        squares = -(-depth // side) * -(-still // side)
        return squares * max(-(-streamed // 8) * 8, least)

    cycles = min(passes(rows, columns), passes(columns, rows)) / constants["rows_per_cycle"] / constants["units"]
    times = matrix_passes(op) if kind == "bf16" else 1 / constants[f"{kind}_rate"]
    return cycles / constants["ghz"] / 1e3 / constants["efficiency"] * times


REGISTER = 1024
"""Elements of a vector register: 8 sublanes of 128 lanes."""

SORTS = frozenset({"sort", "top-k", "topk"})
"""Operations that are priced as a network that sorts; of the top ones too, all are sorted, with their places."""
_REGISTER_BY_REGISTER = ELEMENTWISE | {"map", "reverse", "reduce-window", "select-and-scatter", "set-dimension-size"}
"""Operations that are priced by the registers of their result."""
_MOVES = {
    **dict.fromkeys(("slice", "dynamic-slice", "pad"), "cut_ops"),
    **dict.fromkeys(("copy", "transpose"), "move_ops"),
    "broadcast": "repeat_ops",
}
"""Moves inside a fused kernel, and the constant that says how many vector operations a register of them takes."""


class NoTime(UnsupportedError):
    """An operation has no time; ``what`` says why, ``megabytes`` what it moves where that is less than its arrays."""

    def __init__(self, what: str, megabytes: float | None = None) -> None:
        super().__init__(what)
        self.megabytes = megabytes


@dataclass
class Work:
    """What one kernel asks of the units and memories."""

    matrix_us: float = 0.0  # microseconds of passes on the matrix unit
    products: Counter[str] = field(default_factory=Counter)  # type on the matrix unit -> multiplications and additions
    registers: float = 0.0  # registers through the vector unit, operation by operation
    transcendental: float = 0.0  # registers through the transcendental unit
    rotations: float = 0.0  # registers turned across lanes
    summed: float = 0.0  # registers that are summed, or reduced in another way; among ``registers``
    rows: int = 0  # rows gathered or scattered one by one
    elements: int = 0  # and of single elements
    apart_us: float = 0.0  # microseconds of rows that SparseCores gather, or that are scattered into what was written
    link_us: float = 0.0  # microseconds of exchanges with other chips
    # memory (HBM, NEAR ...) -> megabytes, each array once
    moved: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    again: float = 0.0  # megabytes of HBM that a product's windows read once more
    resident: float = 0.0  # megabytes of arguments that an earlier step may have left in vector memory
    steps: int = 0  # from one window of its arrays to the next
    starts: int = 0  # of other kernels that it needs beside its own
    scalar: bool = False  # whether it makes one number: on the scalar core, if it touches no HBM

    def include(self, other: Work) -> None:
        """Add what ``other`` asks of the units."""
        own = vars(self)
        for name, value in vars(other).items():
            if value:
                own[name] += value

    def times(self, share: float) -> Work:
        """The same where only a share of the result is wanted, or it is made several times: products are whole."""
        parts = ("registers", "transcendental", "rotations")
        return replace(self, **{part: getattr(self, part) * share for part in parts})

    def parts(self, constants: TimeConstants, stream_us: Callable[[float], float]) -> dict[str, float]:
        """Bound -> microseconds that the unit alone needs; ``stream_us``: those of megabytes through HBM.

        The vector unit's slots for arithmetic and for transcendentals work side by side. Of rows that are gathered one
        by one the bytes of some pass while others are asked for.
        """
        slots = self.registers * constants["vector_ns"], self.transcendental * constants["transcendental_ns"]
        vector = (max(slots) + self.rotations * constants["rotation_ns"]) / 1e3
        near = self.moved[NEAR] / constants["near_mb_per_us"]
        stream = stream_us(self.moved[HBM] + constants["restreamed"] * self.again)
        if self.moved[COMMON] and constants["common_mb_per_us"]:
            stream = max(stream, self.moved[COMMON] / constants["common_mb_per_us"])
        rows = self.rows * constants["gather_row_ns"] + self.elements * constants["gather_element_ns"]
        return {
            "matrix": self.matrix_us,
            "vmem" if near > vector else "vector": vector + near,
            "hbm": max(stream, rows / 1e3),
            "link": self.link_us,
        }

    def latency(self, constants: TimeConstants, hbm_us: float) -> float:
        """Microseconds that nothing hides: the start, the first and the last window, the steps between windows."""
        streams, others = self.moved[HBM] >= SCALAR_MB, self.starts * constants["near_launch_us"]
        if self.scalar and not streams:
            return constants["scalar_us"] + others
        start = constants["launch_us" if streams else "near_launch_us"] + others + self.apart_us
        windows = max(self.steps + 1, self.rows + self.elements)  # each row begins to pass by itself
        return start + hbm_us * FIRST_WINDOW / windows + self.steps * constants["step_us"]


def _gets_thin(operand: Tiles, result: Tiles) -> bool:
    """Whether a reshape makes, or ends, lanes or sublanes of a few elements, such as pairs: no view of the registers.

    Wherever they are taken apart in the fusion, each register of the denser side is turned once at least.
    """
    ends = [tiles.shape[-2:] for tiles in (operand, result)]  # a register has 8 sublanes
    return ends[0] != ends[1] and any(1 < size < 8 for size in (*ends[0], *ends[1]))


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


def _add_product_of_vectors(
    work: Work, constants: TimeConstants, op: Operation, operands: Sequence[Tiles], share: float
) -> None:
    """Add the multiplications of two arrays' elements and their sums, in float32: narrower types are widened for it.

    What one operand repeats along the lanes of the other is brought there, and sums along the lanes turn registers.
    """
    dims = [[*op.integers(f"{side}_batch_dims"), *op.integers(f"{side}_contracting_dims")] for side in ("lhs", "rhs")]
    (few, own), (many, theirs) = sorted(zip(operands, dims), key=lambda side: side[0].elements)
    pairs = share * many.elements
    widened = sum(not shape.startswith("f32") for shape in (*op.operand_shapes[:2], op.shape))
    work.registers += pairs / REGISTER * (1 + widened * constants["convert_ops"] + constants["sum_ops"])
    lanes, along = ([d for d in each.minor_to_major if each.shape[d] > 1][:1] for each in (many, few))
    if lanes != [theirs[own.index(d)] for d in along if d in own]:
        work.rotations += min(pairs / REGISTER, few.elements / 8)
    if lanes and lanes[0] in theirs[len(op.integers("lhs_batch_dims")) :]:
        work.rotations += pairs / max(many.shape[lanes[0]], 128) / 8


def add_operation(
    work: Work,
    constants: TimeConstants,
    op: Operation,
    operands: Sequence[Tiles],
    result: Tiles,
    share: float = 1.0,
    sums: bool = True,
    wide: bool = False,
) -> None:
    """Add what ``op`` asks of the units to ``work``, where a ``share`` of its result is wanted: products are whole.

    Raises :class:`NoTime` where nothing is known of it.
    ``sums``: a product with one row a batch is a sum of the vector unit. ``wide``: bfloat16 is computed in float32.
    """
    name, each = plain_opcode(op.opcode), share / REGISTER
    registers = result.elements * each
    if name in _REGISTER_BY_REGISTER:
        if operands and operands[0].elements > result.elements:
            registers = operands[0].elements * each
        passes, more = WRITTEN_OUT.get(name, (TRANSCENDENTAL.get(name, 0), 0))
        work.transcendental += registers * passes
        ops = more + constants["transcendental_ops"] * (passes if more else 1)
        if not passes and not more:
            narrow = constants["narrow_ops"] if op.shape.startswith("bf16") and not wide else 1.0
            ops = constants["convert_ops"] if name == "convert" else narrow
        work.registers += registers * ops
    elif name in PRODUCTS:
        dims = product_sizes(op, operands, result)
        if dims is None:
            raise NoTime(f"{name} does not say its dims")
        work.products[matrix_type(op)] += product_flops(op, operands, result)
        if sums and is_of_vectors(op, operands, result):
            _add_product_of_vectors(work, constants, op, operands, share)
        else:
            work.matrix_us += dims[0] * matrix_us(constants, op, *dims[1:])
    elif name in ("gather", "scatter"):
        rows = gathered_rows(op, operands[1] if len(operands) > 1 else result, result)
        sizes = op.integers("slice_sizes")
        single = bool(sizes) and prod(sizes) == 1
        if name == "scatter":
            work.apart_us += rows * constants["gather_element_ns" if single else "gather_row_ns"] / 1e3
        elif single:
            work.elements += rows
        else:
            work.rows += rows
    elif name in SORTS and operands:
        _add_sort(work, [*operands] + [operands[0]] * (name != "sort"), (op.integers("dimension") or (-1,))[0], each)
    elif name == "broadcast" and operands and not operands[0].shape:
        return  # one number stands in a register as it is
    elif name in _MOVES:
        if name == "broadcast" and operands:  # what lies along the lanes is brought elsewhere, or repeated along them
            lanes, own = ([d for d in each.minor_to_major if each.shape[d] > 1] for each in (result, operands[0]))
            goes = [op.integers("dimensions")[d : d + 1] for d in own[:2]]
            if own and goes[0] != (*lanes[:1],):  # eight of its numbers a register, or it is turned as it is
                together = REGISTER if goes[1:] == [(*lanes[:1],)] else 8
                work.rotations += min(registers, share * prod(operands[0].shape) / together)
        work.registers += registers * constants[_MOVES[name]]
    elif name == "concatenate":  # each part is padded to the whole, and the largest of them taken
        cut, widened = constants["cut_ops"], constants["convert_ops"] if wide and op.shape.startswith("bf16") else 0.0
        work.registers += registers * (cut + (len(operands) - 1) * (cut + 1 + widened))
    elif name == "reduce":
        operand = operands[0] if operands else result
        reduced, order = set(op.integers("dimensions")), operand.minor_to_major
        work.summed += operand.elements * each
        work.registers += operand.elements * each * constants["sum_ops"]
        if order and order[0] in reduced:
            work.rotations += share * operand.elements / max(operand.shape[order[0]], 128) / 8
    elif name == "reshape" and operands and _gets_thin(operands[0], result):
        work.rotations += min(operands[0].elements, result.elements) * each
    elif name not in MOVES_ONLY:
        raise NoTime(f"no mechanism for {name} is known")


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
    groups: int = 1
    visited: float = 1.0

    @classmethod
    def of(cls, op: Operation) -> Windows:
        """The windows of an operation; one where it says none."""
        config = op.attributes.get("backend_config", "")
        match = _ITERATIONS.search(config)
        counts = tuple(max(1, int(number)) for number in _NUMBER.findall(match[1] if match else ""))
        if (mask := _MASKED.search(config)) and max(dims := (int(mask[1]), int(mask[2]))) < len(counts) == 5:
            groups, blocks = (counts[dim] for dim in dims)
            return cls((counts[0], counts[2], counts[4]), groups, (groups + blocks - 1) / (groups * blocks))
        return cls(counts)

    @property
    def count(self) -> int:
        """Steps of the whole pass."""
        return max(1, round(prod(self.counts) * self.groups * self.visited))

    def passes(self, side: int) -> int:
        """How often an operand on one side of a product passes, and what is made for it: 0 left, 1 right."""
        if side == AFTER or len(self.counts) != 3:
            return 1
        columns, rows, depths = self.counts
        return columns if side == 0 else rows if depths > 1 else 1

    def visit(self, work: Work) -> Work:
        """What a grouped product asks whose kernel skips the blocks that a group has no row in."""
        products = Counter({kind: flops // self.groups for kind, flops in work.products.items()})
        return replace(work.times(self.visited), matrix_us=work.matrix_us * self.visited, products=products)
