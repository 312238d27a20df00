"""What operations say of their dims: products and convolutions as products, gathers, updates in place, exchanges."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod
from typing import Protocol

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.inlining import dims_of
from tilewright.hlo.opcodes import COLLECTIVES
from tilewright.hlo.program import Operation, Program

_WINDOW = re.compile(r"(\w+)=([-\dx_]+)")
_INTEGERS = re.compile(r"[sui][248]\b")
_SUBLANES = 8
_STEPS = re.compile(r":\d+:(?!1\])|_-?\d+_[1-9]")  # of a slice's part, of a pad's
_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")


class Shaped(Protocol):
    """An array of which the sizes are known."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def matrix_type(op: Operation) -> str:
    """Which peak of the matrix unit an operation's two operands have: ``int8``, ``fp8`` or ``bf16``, all others.

    Of two types that differ the slower counts; wider ones pass as bf16, once at the least.
    """
    kinds = {matrix_kind(shape) for shape in op.operand_shapes[:2]}
    return kinds.pop() if len(kinds) == 1 else "bf16"


def matrix_kind(shape: str) -> str:
    """The same of a shape or an element type, XLA's or MLIR's."""
    return "int8" if _INTEGERS.match(shape) else "fp8" if shape.startswith("f8") else "bf16"


def matrix_passes(op: Operation) -> int:
    """How often a product passes the matrix unit: of float32 3 times where HIGH precision is asked for, HIGHEST 6.

    Such a product is made of those of its operands' parts in bfloat16; by default the first parts alone count. One of
    complex numbers is made of products of reals.
    """
    asked = op.attributes.get("operand_precision", "")
    if not asked or not all(shape.startswith(("f32", "c64")) for shape in op.operand_shapes[:2]):
        return real_products(op)
    return real_products(op) * (6 if "highest" in asked else 3 if "high" in asked else 1)


def real_products(op: Operation) -> int:
    """Of how many of reals a product is made: 3 of complex ones (modules of v6e); a Fourier transform says its own."""
    return 3 if op.opcode != "fft" and op.operand_shapes and op.operand_shapes[0].startswith("c") else 1


def gathered_rows(op: Operation, indices: Shaped, result: Shaped) -> int:
    """How many slices a gather takes: by the sizes of a slice, or where they are not said, by its indices."""
    sizes = op.integers("slice_sizes")
    if sizes and all(sizes):
        return max(1, prod(result.shape) // prod(sizes))
    return max(1, prod(indices.shape))


def product_sizes(op: Operation, operands: Sequence[Shaped], result: Shaped) -> tuple[int, int, int, int] | None:
    """(batch, rows, columns, depth) of a product or convolution; None where the text does not say enough.

    A convolution in groups is one dense product, as the matrix unit runs it: its flops are fewer (``product_flops``).
    """
    if len(operands) < 2:
        return None
    if "dim_labels" in op.attributes:
        found = _convolution(op, operands, result)
        return found.sizes() if found else None
    a, b = operands[0].shape, operands[1].shape
    batch_dims, depth_dims = op.integers("lhs_batch_dims"), op.integers("lhs_contracting_dims")
    if any(d >= len(a) for d in (*batch_dims, *depth_dims)):
        return None
    batch, depth = prod(a[d] for d in batch_dims), prod(a[d] for d in depth_dims)
    shared = max(1, batch * depth)
    ragged = plain_opcode(op.opcode) == "ragged-dot"
    if ragged and not depth_dims:
        return None
    if ragged and len(result.shape) == len(a) and len(operands) > 2:
        shared_columns = shared * max(1, prod(operands[2].shape[-1:]))  # the right operand has one matrix a group
        return batch, prod(a) // shared, prod(b) // shared_columns, depth
    return batch, prod(a) // shared, prod(b) // shared, depth


def is_of_vectors(op: Operation, operands: Sequence[Shaped], result: Shaped) -> bool:
    """Whether a batched product has one row or one column a batch: a multiplication and a sum of the vector unit."""
    sizes = product_sizes(op, operands, result) if op.integers("lhs_batch_dims") else None
    return sizes is not None and sizes[0] > 1 and 1 in sizes[1:3]


def product_flops(op: Operation, operands: Sequence[Shaped], result: Shaped) -> int:
    """Multiplications and additions of reals, as XLA counts them: none for padding or holes, or sizes unknown.

    >>> from types import SimpleNamespace as Shape
    >>> labels = {"dim_labels": "b01f_01io->b01f", "window": "{size=3x3 pad=1_1x1_1}", "feature_group_count": "8"}
    >>> image, kernel = Shape(shape=(1, 4, 4, 8)), Shape(shape=(3, 3, 1, 8))
    >>> product_flops(Operation("c", "convolution", "", attributes=labels), (image, kernel), image)
    1600
    """
    if "dim_labels" in op.attributes and len(operands) > 1:
        found = _convolution(op, operands, result)
        sizes = (found.batch, found.features, found.depth, *(d.pairs for d in found.dims)) if found else (0,)
    else:
        sizes = product_sizes(op, operands, result) or (0,)
    return 2 * real_products(op) * prod(sizes)


@dataclass(frozen=True)
class _Spatial:
    """One spatial dim of a convolution; ``pairs``: (output, tap) that meet an element, no padding and no hole."""

    size: int
    taps: int
    outputs: int
    pairs: int


@dataclass(frozen=True)
class _Convolution:
    """A convolution's dims: of its images the batch, of a group the depth, and all its output features."""

    batch: int
    features: int
    depth: int  # input features that one output sees
    groups: int
    dims: tuple[_Spatial, ...]

    def sizes(self) -> tuple[int, int, int, int]:
        """The same as products. Each spatial dim is a batch, more rows, more columns or more depth.

        The TPU compiler writes products as convolutions whose windows pair every element with one partner; the pairs
        that meet real elements tell which dim of the product a spatial dim is.
        """
        batch, rows, columns, depth = 1, self.batch, self.features, self.depth * self.groups
        for dim in self.dims:
            if dim.taps > 1 and dim.size == 1 and dim.pairs == dim.taps == dim.outputs:
                columns *= dim.taps
            elif dim.outputs == 1:
                depth *= max(1, dim.pairs)
            elif dim.taps > 1 and dim.size == dim.taps == dim.outputs == dim.pairs:
                batch *= dim.outputs
            else:
                rows *= dim.outputs
                depth *= max(1, round(dim.pairs / max(1, dim.outputs)))
        return batch, rows, columns, depth


def _numbers(text: str, spatial: int, default: int) -> list[int]:
    """``2x1``, one number a spatial dim; ``default`` for each where the text does not say them."""
    numbers = [int(word) for word in text.split("x") if word.lstrip("-").isdigit()]
    return numbers if len(numbers) == spatial else [default] * spatial


def _convolution(op: Operation, operands: Sequence[Shaped], result: Shaped) -> _Convolution | None:
    """The dims of a convolution, None where its labels do not fit its arrays."""
    match = _LABELS.fullmatch(op.attributes["dim_labels"].strip())
    if match is None:
        return None
    left, right, out = match.groups()
    a, b, y = operands[0].shape, operands[1].shape, result.shape
    if (len(left), len(right), len(out)) != (len(a), len(b), len(y)) or "f" not in left or "o" not in right:
        return None
    digits = sorted(label for label in out if label.isdigit())
    if any(label not in left or label not in right for label in digits) or "b" not in left:
        return None
    words: Mapping[str, str] = dict(_WINDOW.findall(op.attributes.get("window", "")))
    steps = (words.get(key, "") for key in ("stride", "lhs_dilate", "rhs_dilate"))
    strides, holes, spread = (_numbers(text, len(digits), 1) for text in steps)
    pads = _numbers(re.sub("_[-0-9]*", "", words.get("pad", "")), len(digits), 0)
    dims = []
    for k, digit in enumerate(digits):
        size, taps, outputs = a[left.index(digit)], b[right.index(digit)], y[out.index(digit)]
        pairs = _pairs(size, taps, outputs, strides[k], holes[k], spread[k], pads[k])
        dims.append(_Spatial(size, taps, outputs, pairs))
    groups = max(1, *(op.integers("feature_group_count") or (1,)))
    parts = max(1, *(op.integers("batch_group_count") or (1,)))
    batch, depth = a[left.index("b")] // parts, a[left.index("f")] // groups
    return _Convolution(batch, b[right.index("o")], depth, groups, tuple(dims))


def image_dims(op: Operation) -> dict[str, tuple[int, int]]:
    """Images of a convolution, its result among them -> the dims of their channels and their batch (columns if cut).

    The gradient of weights is a convolution of two images whose window is larger than what comes out.

    >>> given = ("x", "dy"), ("f32[32,56,56,64]", "f32[32,56,56,128]"), {"dim_labels": "f01b_i01o->01bf"}
    >>> image_dims(Operation("w", "convolution", "f32[3,3,64,128]", *given))
    {'x': (3, 0), 'dy': (3, 0)}
    """
    match = _LABELS.fullmatch(op.attributes.get("dim_labels", "").strip())
    left, right, out = match.groups() if match else ("", "", "")
    if len(op.operand_shapes) < 2 or not ({*"bf"} <= {*left} & {*out} and {*"io"} <= {*right}):
        return {}
    shapes = (right, op.operand_shapes[1]), (out, op.shape)
    window, made = (prod(n for d, n in zip(labels, dims_of(shape)) if d.isdigit()) for labels, shape in shapes)
    if window > made:
        return {
            op.operands[0]: (left.index("b"), left.index("f")),
            op.operands[1]: (right.index("o"), right.index("i")),
        }
    second = max(filter(str.isdigit, left)) if is_cut(op) else "b"
    return {op.operands[0]: (left.index("f"), left.index(second)), op.name: (out.index("f"), out.index(second))}


def is_cut(op: Operation) -> bool:
    """Whether a convolution has fewer images than there are sublanes: their columns are cut, as further images."""
    labels, sizes = op.attributes.get("dim_labels", "").split("_")[0], dims_of("".join(op.operand_shapes[:1]))
    return "0" in labels and "b" in labels and len(labels) == len(sizes) and sizes[labels.index("b")] < _SUBLANES


@lru_cache(maxsize=4096)
def _pairs(size: int, taps: int, outputs: int, stride: int, hole: int, spread: int, pad: int) -> int:
    """Pairs (output, tap) that meet an element; for very large windows, every pair."""
    if min(taps, outputs) > 65_536:
        return taps * outputs
    last, hole = (size - 1) * max(1, hole), max(1, hole)
    if taps <= outputs:
        return sum(_met(tap * spread - pad, stride, outputs, last, hole) for tap in range(taps))
    return sum(_met(output * stride - pad, spread, taps, last, hole) for output in range(outputs))


def _met(first: int, step: int, count: int, last: int, hole: int) -> int:
    """How many of ``first``, ``first + step`` ... (``count`` of them) are multiples of ``hole`` from 0 to ``last``."""
    if step < 1:
        return count if 0 <= first <= last and first % hole == 0 else 0
    shared = gcd(step, hole)
    if first % shared:
        return 0
    period = hole // shared
    begin, end = max(0, -(first // step)), min(count - 1, (last - first) // step)
    fits = -first // shared * pow(step // shared, -1, period) % period  # the first that is a multiple
    return max(0, (end - fits) // period - (begin - 1 - fits) // period)


def stepped(op: Operation) -> tuple[int, ...]:
    """The dims along which a slice leaves elements out, a pad puts some between, a reversal goes backwards.

    >>> stepped(Operation("s", "slice", "f32[8,4]", attributes={"slice": "{[0:8:1], [1:8:2]}"}))
    (1,)
    """
    if plain_opcode(op.opcode) == "reverse":
        return op.integers("dimensions")
    parts = re.split("[,x]", op.attributes.get("slice", "") + op.attributes.get("padding", ""))
    return tuple([dim for dim, part in enumerate(parts) if _STEPS.search(part)])


# Exchanges between chips.


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
