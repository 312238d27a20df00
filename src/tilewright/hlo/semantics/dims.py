"""What operations say of their dims: products and convolutions as products, gathers, updates in place, exchanges."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Protocol

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import COLLECTIVES, WRITES_IN_PLACE
from tilewright.hlo.program import Computation, Operation, Program

_WINDOW = re.compile(r"(\w+)=([-\dx_]+)")
_INTEGERS = re.compile(r"[su][248]\b")
_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")
_GROUPS = re.compile(r"\{\{([\d,]+)\}")
_IOTA = re.compile(r"\[(\d{1,9}),(\d{1,9})\]<=")
_TENSOR = re.compile(r"tensor<(\d{1,9})x(\d{1,9})xi64>")
_MESH = re.compile(r"mesh\[([^\[\]]*)\](?:, device_ids=\(.*\))? ?\{([^{}]*)\}")
_SIZE = re.compile(r"'([^']*)'=(\d{1,9})")
_AXIS = re.compile(r"'([^']*)'(?::\(\d+\)(\d{1,9}))?")
"""An axis of a mesh, or as ``'a':(2)4`` a part of one: how many come before it, and its size."""


class Shaped(Protocol):
    """An array of which the sizes are known."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def matrix_type(op: Operation) -> str:
    """Which peak of the matrix unit an operation's two operands have: ``int8``, ``fp8`` or ``bf16``, all others.

    Of two types that differ the slower counts; wider ones pass as bf16, once at the least.
    """
    kinds = {"int8" if _INTEGERS.match(s) else "fp8" if s[:2] == "f8" else "bf16" for s in op.operand_shapes[:2]}
    return kinds.pop() if len(kinds) == 1 else "bf16"


def gathered_rows(op: Operation, indices: Shaped, result: Shaped) -> int:
    """How many slices a gather takes: by the sizes of a slice, or where they are not said, by its indices."""
    sizes = op.integers("slice_sizes")
    if sizes and all(sizes):
        return max(1, prod(result.shape) // prod(sizes))
    return max(1, prod(indices.shape))


def product_sizes(op: Operation, operands: Sequence[Shaped], result: Shaped) -> tuple[int, int, int, int] | None:
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


def _numbers(text: str, spatial: int, default: int) -> list[int]:
    """``2x1``, one number a spatial dim; ``default`` for each where the text does not say them."""
    numbers = [int(word) for word in text.split("x") if word.lstrip("-").isdigit()]
    return numbers if len(numbers) == spatial else [default] * spatial


def _convolution(
    labels: str, window: str, operands: Sequence[Shaped], result: Shaped
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
    words: Mapping[str, str] = dict(_WINDOW.findall(window))
    strides, holes, spread = (
        _numbers(words.get(key, ""), len(digits), 1) for key in ("stride", "lhs_dilate", "rhs_dilate")
    )
    pads = _numbers(re.sub("_[-0-9]*", "", words.get("pad", "")), len(digits), 0)
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


def written_into(body: Computation) -> int | None:
    """Which operand a fusion writes into, where it ends in a dynamic-update-slice of one."""
    named = {op.name: op for op in body.operations}
    op = body.root or body.operations[-1]
    seen_update = False
    while op.operands and op.operands[0] in named and (op.opcode == "bitcast" or op.opcode in WRITES_IN_PLACE):
        seen_update = seen_update or op.opcode != "bitcast"
        op = named[op.operands[0]]
    return op.parameter_number if seen_update else None


# Exchanges between chips.


def group_size(op: Operation, devices: int = 0) -> int:
    """Chips that take part together, from ``replica_groups``: of groups that differ in size those of the first.

    Groups that name none are all ``devices`` (0: not known, which counts as 2).

    >>> group_size(Operation("g", "all-gather", "", attributes={"replica_groups": "mesh['a'=4,'b'=2] {'b'}"}))
    2
    """
    text = op.attributes.get("replica_groups", "")
    if match := _IOTA.search(text) or _TENSOR.search(text):
        return int(match[2]) or devices or 2
    if match := _GROUPS.search(text):
        return match[1].count(",") + 1
    if match := _MESH.search(text):
        sizes = {name: int(size) for name, size in _SIZE.findall(match[1])}
        return prod(int(part) if part else sizes.get(name, 1) for name, part in _AXIS.findall(match[2]))
    return devices or 2


def devices_of(program: Program) -> int:
    """The devices that a module is for, as its header says; 0 where it says nothing."""
    numbers = [program.attributes.get(key, "") for key in ("num_partitions", "replica_count")]
    known = [int(number) for number in numbers if number.isdecimal() and len(number) < 10]
    return prod(known) if known else 0


def parts_in_fusions(program: Program) -> Counter[str]:
    """``channel_id`` -> how many fused operations show the exchange.

    One that the compiler spreads over fusions that compute (``AsyncCollectiveStart``, parts, ``AsyncCollectiveDone``)
    stands whole in each of them, and goes over the links once.
    """
    fused = (op for name in program.fused for op in program.by_name[name].operations)
    known = (op for op in fused if plain_opcode(op.opcode) in COLLECTIVES and "channel_id" in op.attributes)
    return Counter(op.attributes["channel_id"] for op in known)
