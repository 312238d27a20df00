"""Numbers of a Pallas kernel's scalar core: known for every step of the grid, chances of what data decides, or data."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tilewright.hlo.reading.kernel import Array, Block, Node

MET = "conditions on its data taken as met"


@dataclass(frozen=True)
class Chance:
    """A condition: for every step 0 or 1, or between them the share of what data decides."""

    share: float | Array
    assumed: str = ""  # what was taken for granted of the data


@dataclass(frozen=True)
class Data:
    """An integer that data decides: from a table of these sizes, and where in it it stands, if that is known."""

    table: tuple[int, ...] = ()
    place: int | Array | None = None


Number: TypeAlias = "int | Array | Chance | Data"
YES, NO, UNKNOWN = Chance(1.0), Chance(0.0), Data()


def _both(few: Callable[[int, int], int], many: Callable[[Array, Array], Array]) -> Callable[[Any, Any], Any]:
    return lambda a, b: few(a, b) if type(a) is int and type(b) is int else many(np.asarray(a), np.asarray(b))


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.minsi": _both(min, np.minimum),
    "arith.maxsi": _both(max, np.maximum),
    "arith.divsi": _both(lambda a, b: a // (b or 1), lambda a, b: np.floor_divide(a, np.where(b == 0, 1, b))),
    "arith.remsi": _both(lambda a, b: a % (b or 1), lambda a, b: np.remainder(a, np.where(b == 0, 1, b))),
}
for _same, _as in (("divui", "divsi"), ("floordivsi", "divsi"), ("remui", "remsi"), ("minui", "minsi")):
    ARITHMETIC[f"arith.{_same}"] = ARITHMETIC[f"arith.{_as}"]
_ORDERED = (operator.lt, operator.le, operator.gt, operator.ge)
_COMPARISONS = (operator.eq, operator.ne, *_ORDERED, *_ORDERED)
"""By the number of MLIR's predicate."""
SAME = frozenset({"arith.index_cast", "arith.extui", "arith.extsi", "arith.trunci", "arith.index_castui"})
SAME |= {"tpu.assume_multiple"}


def constant(node: Node) -> Number:
    value = node.constant
    return UNKNOWN if value is None else value if type(value) is int else YES if value else NO


def mean(weight: Any) -> float:
    return weight if type(weight) is float else float(np.mean(weight))


def plain(number: Any) -> int | Array:
    """An array of one number as that number."""
    return int(number) if np.size(number) == 1 else number


def as_integer(number: Number) -> Number:
    """A condition that is sure, as 0 or 1."""
    if isinstance(number, Chance) and not number.assumed:
        share = np.asarray(number.share)
        return plain(share.astype(np.int64)) if np.all((share == 0) | (share == 1)) else number
    return number


def chosen(condition: Number, yes: Number, no: Number) -> Number:
    if yes is no:
        return yes
    if isinstance(condition, Chance) and not condition.assumed:
        if type(condition.share) is float or np.size(condition.share) == 1:
            return yes if condition.share else no
        a, b = as_integer(yes), as_integer(no)
        if isinstance(a, int | np.ndarray) and isinstance(b, int | np.ndarray):
            return np.where(condition.share, a, b)
    return next((one for one in (yes, no) if isinstance(one, Data)), UNKNOWN)


def compared(predicate: int, given: Sequence[Number]) -> Number:
    a, b = given
    if isinstance(a, Chance) and isinstance(b, int) and b in (0, 1):
        if (b == 1) == (predicate == 0):  # a condition as an integer, against 0 or 1
            return a
        return Chance(1.0 - a.share, a.assumed)
    if isinstance(a, int | np.ndarray) and isinstance(b, int | np.ndarray):
        result = _COMPARISONS[predicate % len(_COMPARISONS)](a, b)
        return Chance(result.astype(float)) if isinstance(result, np.ndarray) else YES if result else NO
    wide = [one.table for one in (a, b) if isinstance(one, Data) and len([d for d in one.table if d > 1]) > 1]
    if predicate and wide:
        rows, columns = wide[0][-2:]
        kept = sum(-(-(row + 1) * columns // rows) for row in range(rows)) / (rows * columns)
        return Chance(kept, f"its mask taken as causal: {kept:.0%} of its blocks")
    return Chance(1.0, MET)


def combined(name: str, given: Sequence[Any]) -> Chance:
    """Two conditions together: and, or, either."""
    decides = {"arith.andi": 0.0, "arith.ori": 1.0}.get(name)
    if any(type(one.share) is float and one.share == decides and not one.assumed for one in given):
        return YES if decides else NO
    (a, first), (b, second) = ((one.share, one.assumed) for one in given)
    return Chance(a * b if name == "arith.andi" else a + b - (2 - (name == "arith.ori")) * a * b, first or second)


@dataclass(frozen=True)
class Ranges:
    """``blocks``: of tables that say which block of an array comes next, how many blocks that array has; ``lengths``:
    tables of one number that says how long a loop is."""

    blocks: Mapping[str, int]
    lengths: frozenset[str]


def ranges_of(body: Block, tables: set[str]) -> Ranges:
    """What the numbers of tables are used for, as far as the text says it."""
    blocks: dict[str, int] = {}
    lengths: set[str] = set()
    of: dict[str, tuple[str, int, bool]] = {}  # name -> (its table, times how much, whether nothing is added to it)
    constants: dict[str, int] = {}
    for node in body.all():
        name, operands = node.name, node.operands
        of.pop(node.result, None)
        constants.pop(node.result, None)
        if name == "arith.constant" and type(node.constant) is int:
            constants[node.result] = node.constant
        elif name == "memref.load" and operands[0] in tables:
            of[node.result] = operands[0], 1, True
        elif name in SAME or name in ("arith.select", "arith.addi", "arith.subi"):
            if source := next((of[operand] for operand in operands if operand in of), None):
                alone = all(operand in of or not constants.get(operand, 1) for operand in operands)
                of[node.result] = *source[:2], source[2] and alone
        elif name == "arith.muli":
            for a, b in (operands, operands[::-1]):
                if a in of and b in constants:
                    of[node.result] = of[a][0], of[a][1] * constants[b], of[a][2]
        elif name == "scf.for":
            lengths |= {of[operand][0] for operand in operands[1:2] if operand in of and of[operand][2]}
        elif name == "tpu.memref_slice" and node.shapes and "semaphore" not in node.signature:
            for size, operand in zip(node.shapes[0][0], operands[1:]):
                if operand in of and size > 0 and of[operand][1] > 0:
                    table, each, _ = of[operand]
                    blocks[table] = max(blocks.get(table, 0), -(-size // each))
    return Ranges(blocks, frozenset(lengths))


def ends_of(groups: int, rows: int) -> Array:
    """Where groups of rows end that are of different sizes, spread as evenly as a golden section does."""
    sizes = 0.5 + (np.arange(groups) * 0.6180339887) % 1
    return np.asarray(np.rint(np.concatenate([[0.0], np.cumsum(sizes) / sizes.sum()]) * rows), np.int64)


def merged(one: str, blocks: int, other: str, others: int) -> dict[str, Array]:
    """Two tables, of which in each step one goes on to its next block: tiles of rows, and groups that end in them."""
    ends = np.concatenate([np.arange(1, blocks) / blocks, ends_of(others, 1 << 30)[1:-1] / (1 << 30)])
    first = np.argsort(ends, kind="stable") < blocks - 1
    return {one: np.append(0, np.cumsum(first)), other: np.append(0, np.cumsum(~first))}
