"""What a StableHLO text moves in (8, 128) tiles, counted without Tilewright: jaxlib reads, numpy places elements."""

from __future__ import annotations

import math
from functools import cache

import ml_dtypes
import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir

_TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "i32": np.int32, "i1": np.bool_}


def _shape(value):
    kind = ir.RankedTensorType(value.type)
    return tuple(kind.shape), np.dtype(_TYPES[str(kind.element_type)]).itemsize


@cache
def padded(shape, width):
    """Bytes in tiles of 8 x 128 words; of vectors in rows of 128 words. A scalar is none."""
    if not shape:
        return 0
    if len(shape) == 1:
        return -(-shape[0] * width // 512) * 512
    *outer, rows, columns = shape
    return math.prod(outer) * -(-rows // 8) * 8 * -(-columns // 128) * 128 * width


@cache
def _addresses(shape):
    """Where each element lies, in row-major order."""
    if len(shape) < 2:
        return np.arange(math.prod(shape))
    *outer, rows, columns = shape
    down, across = -(-rows // 8), -(-columns // 128)
    r, c = np.arange(rows)[:, None], np.arange(columns)
    one = (r // 8 * across + c // 128) * 1024 + r % 8 * 128 + c % 128
    each = np.arange(math.prod(outer))[:, None, None] * (down * across * 1024)
    return (each + one).reshape(-1)


def _moves(op):
    (source, width), (target, _) = _shape(op.operands[0]), _shape(op.results[0])
    if op.name == "stablehlo.transpose":
        order = [int(d) for d in op.attributes["permutation"]]
        before = _addresses(source).reshape(source).transpose(order).reshape(-1)
    else:
        before = _addresses(source)
    if np.array_equal(before, _addresses(target)):
        return 0
    return padded(source, width) + padded(target, width)


def _operations(text):
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(text)
        for function in module.body.operations:
            for op in function.regions[0].blocks[0].operations:
                yield op.operation


def moved(text):
    """Bytes that reshapes and transposes read and write; none where every element stays in its place."""
    return sum(_moves(op) for op in _operations(text) if op.name in ("stablehlo.reshape", "stablehlo.transpose"))


def read_and_written(text):
    """Bytes that all operations read and write where nothing is fused; reshapes and transposes only if they move."""
    total = 0
    for op in _operations(text):
        if op.name in ("stablehlo.reshape", "stablehlo.transpose"):
            total += _moves(op)
        elif op.name.startswith("stablehlo."):
            total += sum(padded(*_shape(value)) for value in (*op.operands, *op.results))
    return total
