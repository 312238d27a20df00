"""What an operation asks of the units: passes of the matrix unit, vector registers, rotations, gathered rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import prod

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.program import Operation
from tilewright.hlo.timing.mechanisms.products import matrix_us
from tilewright.hlo.timing.mechanisms.tiles import Tiles
from tilewright.targets import TimeConstants

REGISTER = 1024
"""Elements of a vector register: 8 sublanes of 128 lanes."""

TRANSCENDENTAL = {
    **dict.fromkeys(("exponential", "tanh", "rsqrt", "sqrt", "log", "divide", "cbrt", "sine", "cosine"), 1),
    **dict.fromkeys(("exponential-minus-one", "log-plus-one", "exp", "logistic-minus-one"), 1),
    **dict.fromkeys(("logistic", "tan", "atan2"), 2),
    **dict.fromkeys(("erf", "power", "remainder"), 3),
}
"""Operations of the transcendental unit, and how often they pass it."""

WRITTEN_OUT = {
    "erfc": (3, 58),
    "erf-inv": (2, 37),
    "lgamma": (13, 42),
    "digamma": (22, 54),
    "asin": (3, 5),
    "acos": (3, 3),
    "atan": (2, 0),
    "sinh": (4, 9),
    "cosh": (2, 3),
    "asinh": (4, 10),
    "acosh": (4, 7),
    "atanh": (2, 4),
}
"""Functions that the compiler writes out: operations of the transcendental and of the vector unit, counted in modules
that it made.
"""

ELEMENTWISE = frozenset(
    {"abs", "add", "and", "ceil", "clamp", "compare", "complex", "convert", "count-leading-zeros", "floor", "imag"}
    | {"is-finite", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "real", "reduce-precision"}
    | {"round-nearest-afz", "round-nearest-even", "select", "shift-left", "shift-right-arithmetic", "sign", "square"}
    | {"shift-right-logical", "stochastic-convert", "subtract", "xor", *TRANSCENDENTAL, *WRITTEN_OUT}
)
"""Operations that take each element by itself."""

_REGISTER_BY_REGISTER = ELEMENTWISE | {"map", "reverse", "reduce-window", "select-and-scatter", "set-dimension-size"}
"""Operations that are priced by the registers of their result."""

MOVES_ONLY = frozenset(
    {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "iota", "reshape", "slice", "pad", "concatenate"}
    | {"copy", "dynamic-slice", "dynamic-update-slice", "gather", "scatter", "custom-call", "fusion", "broadcast"}
    | {"transpose", "return", "bitcast-convert", "after-all", "optimization-barrier", "opt-barrier", "partition-id"}
)
"""Operations inside a fusion that compute nothing: their cost is at the fusion's border."""

_WINDOW = re.compile(r"(\w+)=([-\dx_]+)")
_INTEGERS = re.compile(r"[su][248]\b")
_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")


@dataclass
class Work:
    """What one kernel asks of the units.

    ==================  ==============================================================================
    ``matrix_us``       microseconds of passes on the matrix unit
    ``products``        type on the matrix unit -> multiplications and additions
    ``registers``       registers through the vector unit, operation by operation
    ``transcendental``  registers through the transcendental unit
    ``rotations``       registers turned across lanes
    ``rows``            rows gathered or scattered one by one
    ``link_us``         microseconds of exchanges with other chips
    ``unknown``         why operations have no price
    ==================  ==============================================================================
    """

    matrix_us: float = 0.0
    products: Counter[str] = field(default_factory=Counter)
    registers: float = 0.0
    transcendental: float = 0.0
    rotations: float = 0.0
    rows: int = 0
    link_us: float = 0.0
    unknown: tuple[str, ...] = ()

    def include(self, other: Work) -> None:
        """Add what ``other`` asks for."""
        for part in fields(self):
            setattr(self, part.name, getattr(self, part.name) + getattr(other, part.name))

    def vector_us(self, constants: TimeConstants) -> float:
        """Microseconds of the vector unit; its slots for arithmetic and for transcendentals work side by side."""
        arithmetic = self.registers * constants["vector_ns"]
        special = self.transcendental * constants["transcendental_ns"]
        return (max(arithmetic, special) + self.rotations * constants["rotation_ns"]) / 1e3


def add_operation(
    work: Work, constants: TimeConstants, op: Operation, operands: Sequence[Tiles], result: Tiles
) -> None:
    """Add what ``op`` asks of the units to ``work``."""
    name = plain_opcode(op.opcode)
    if name in ("convolution", "dot", "dot-general"):
        sizes = product_sizes(op, operands, result)
        if sizes is None:
            work.unknown += (f"{name} does not say its dims",)
            return
        batch, rows, columns, depth = sizes
        work.matrix_us += batch * matrix_us(constants, rows, columns, depth) / constants["efficiency"]
        work.products[matrix_type(op)] += 2 * batch * rows * columns * depth
    elif name in ("gather", "scatter"):
        indices = operands[1] if len(operands) > 1 else result
        work.rows += gathered_rows(op, indices, result)
    elif name in MOVES_ONLY:
        return
    elif name == "reduce":
        operand = operands[0] if operands else result
        work.registers += operand.elements / REGISTER
        reduced = set(op.integers("dimensions"))
        if operand.minor_to_major and operand.minor_to_major[0] in reduced:
            length = max(operand.shape[operand.minor_to_major[0]], 128)
            work.rotations += operand.elements / length / 8
    elif name not in _REGISTER_BY_REGISTER:
        work.unknown += (f"no mechanism for {name} is known",)
    else:
        registers = max((t.elements for t in (result, *operands[:1])), default=0) / REGISTER
        passes, more = WRITTEN_OUT.get(name, (TRANSCENDENTAL.get(name, 0), 0))
        work.transcendental += registers * passes
        per_register = more + constants["transcendental_ops"] * (passes if more else 1) if passes else 1.0
        work.registers += registers * (constants["convert_ops"] if name == "convert" else per_register)


def matrix_type(op: Operation) -> str:
    """Which peak of the matrix unit an operation's two operands have: ``int8``, ``fp8`` or ``bf16``, all others.

    Of two types that differ the slower counts; wider ones pass as bf16, once at the least.
    """
    kinds = {
        "int8" if _INTEGERS.match(shape) else "fp8" if shape[:2] == "f8" else "bf16" for shape in op.operand_shapes[:2]
    }
    return kinds.pop() if len(kinds) == 1 else "bf16"


def gathered_rows(op: Operation, indices: Tiles, result: Tiles) -> int:
    """How many slices a gather takes: by the sizes of a slice, or where they are not said, by its indices."""
    sizes = op.integers("slice_sizes")
    if sizes and all(sizes):
        return max(1, prod(result.shape) // prod(sizes))
    return max(1, prod(indices.shape))


def product_sizes(op: Operation, operands: Sequence[Tiles], result: Tiles) -> tuple[int, int, int, int] | None:
    """(batch, rows, columns, depth) of a product or convolution; None where the text does not say enough."""
    if len(operands) < 2:
        return None
    if "dim_labels" in op.attributes:
        return _convolution(op.attributes["dim_labels"], op.attributes.get("window", ""), operands, result)
    a, b = operands[0].shape, operands[1].shape
    batch_dims, depth_dims = op.integers("lhs_batch_dims"), op.integers("lhs_contracting_dims")
    if any(d >= len(a) for d in (*batch_dims, *depth_dims)):
        return None
    batch, depth = prod(a[d] for d in batch_dims), prod(a[d] for d in depth_dims)
    shared = max(1, batch * depth)
    return batch, prod(a) // shared, prod(b) // shared, depth


def _window(text: str, key: str, spatial: int, default: int) -> list[int]:
    words: Mapping[str, str] = dict(_WINDOW.findall(text))
    if key not in words:
        return [default] * spatial
    numbers = [int(word) for word in words[key].split("x") if word.lstrip("-").isdigit()]
    return numbers if len(numbers) == spatial else [default] * spatial


def _pads(text: str, spatial: int) -> list[int]:
    words: Mapping[str, str] = dict(_WINDOW.findall(text))
    lows = [part.partition("_")[0] for part in words.get("pad", "").split("x")]
    return [int(low) for low in lows] if len(lows) == spatial and all(lows) else [0] * spatial


def _convolution(
    labels: str, window: str, operands: Sequence[Tiles], result: Tiles
) -> tuple[int, int, int, int] | None:
    """A convolution as products. Each spatial dim is found to be a batch, more rows, more columns or more depth.

    The TPU compiler writes products as convolutions whose windows pair every element with one partner; the pairs that
    meet real elements (neither padding nor holes of a dilation) tell which dim of the product a spatial dim is.
    """
    match = _LABELS.fullmatch(labels.strip())
    if match is None:
        return None
    left, right, out = match.groups()
    a, b, y = operands[0].shape, operands[1].shape, result.shape
    if (len(left), len(right), len(out)) != (len(a), len(b), len(y)) or "f" not in left or "o" not in right:
        return None
    digits = sorted(label for label in out if label.isdigit())
    if any(label not in left or label not in right for label in digits) or "b" not in left:
        return None
    strides, holes = _window(window, "stride", len(digits), 1), _window(window, "lhs_dilate", len(digits), 1)
    spread, pads = _window(window, "rhs_dilate", len(digits), 1), _pads(window, len(digits))
    batch, rows, columns, depth = 1, a[left.index("b")], b[right.index("o")], a[left.index("f")]
    for k, digit in enumerate(digits):
        size, taps, outputs = a[left.index(digit)], b[right.index(digit)], y[out.index(digit)]
        pairs = _pairs(size, taps, outputs, strides[k], holes[k], spread[k], pads[k])
        if taps > 1 and size == 1 and pairs == taps == outputs:
            columns *= taps
        elif outputs == 1:
            depth *= max(1, pairs)
        elif taps > 1 and size == taps == outputs == pairs:
            batch *= outputs
        else:
            rows *= outputs
            depth *= max(1, round(pairs / max(1, outputs)))
    return batch, rows, columns, depth


@lru_cache(maxsize=4096)
def _pairs(size: int, taps: int, outputs: int, stride: int, hole: int, spread: int, pad: int) -> int:
    """Pairs (output, tap) that meet an element; for very large windows, every pair."""
    if taps * outputs > 65_536:
        return taps * outputs
    last = (size - 1) * max(1, hole)
    pairs = 0
    for tap in range(taps):
        base = tap * spread - pad
        pairs += sum(
            1 for o in range(outputs) if 0 <= base + o * stride <= last and (base + o * stride) % max(1, hole) == 0
        )
    return pairs
