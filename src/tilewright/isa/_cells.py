"""A table of 64-bit cells by its address, as numba intrinsics.

An array handed from kernel to kernel is counted as it comes and goes, with locked instructions that cost more than the
few cells a touch of a cache looks at; an address is a number. Whoever takes one keeps the array alive.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types

__all__ = ["cell", "put"]

intrinsic: Any = extending.intrinsic  # it changes signatures (the first parameter goes), which types cannot say
_CELL = ir.IntType(64)


def _at(builder: Any, table: Any, place: Any) -> Any:
    return builder.inttoptr(builder.add(table, builder.shl(place, ir.Constant(_CELL, 3))), ir.PointerType(_CELL))


@intrinsic  # type: ignore[untyped-decorator]
def cell(typing: Any, table: Any, place: Any) -> Any:
    """Cell ``place`` of the table at address ``table``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_at(builder, *args))

    return types.int64(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def put(typing: Any, table: Any, place: Any, value: Any) -> Any:
    """Write ``value`` to cell ``place`` of the table at address ``table``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _at(builder, args[0], args[1]))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), generate
