"""Tables by their addresses, as numba intrinsics: 64-bit cells, 32-bit words and bytes.

An array handed from kernel to kernel is seven numbers and is counted as it comes and goes, with locked instructions
that cost more than the few cells a touch of a cache looks at; a kernel of forty of them takes most of a minute to
compile. An address is one number. Whoever takes one keeps the array alive, and has looked at its type.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types

intrinsic: Any = extending.intrinsic  # it changes signatures (the first parameter goes), which types cannot say
_CELL, _WORD, _BYTE = (ir.IntType(bits) for bits in (64, 32, 8))


def _at(builder: Any, table: Any, place: Any, kind: Any) -> Any:
    moved = builder.mul(place, ir.Constant(_CELL, kind.width // 8))
    return builder.inttoptr(builder.add(table, moved), ir.PointerType(kind))


def _reader(kind: Any, signed: bool) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = builder.load(_at(builder, args[0], args[1], kind), align=kind.width // 8)
        if kind.width == 64:
            return found
        return builder.sext(found, _CELL) if signed else builder.zext(found, _CELL)

    return types.int64(types.int64, types.int64), generate


def _writer(kind: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = args[2] if kind.width == 64 else builder.trunc(args[2], kind)
        builder.store(value, _at(builder, args[0], args[1], kind), align=kind.width // 8)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def cell(typing: Any, table: Any, place: Any) -> Any:
    """The 64-bit number at ``place`` of the table at address ``table``."""
    return _reader(_CELL, True)


@intrinsic  # type: ignore[untyped-decorator]
def word(typing: Any, table: Any, place: Any) -> Any:
    """The signed 32-bit number at ``place``."""
    return _reader(_WORD, True)


@intrinsic  # type: ignore[untyped-decorator]
def byte(typing: Any, table: Any, place: Any) -> Any:
    """The byte, or boolean, at ``place``."""
    return _reader(_BYTE, False)


@intrinsic  # type: ignore[untyped-decorator]
def put(typing: Any, table: Any, place: Any, value: Any) -> Any:
    """Write a 64-bit number to ``place`` of the table at address ``table``."""
    return _writer(_CELL)


@intrinsic  # type: ignore[untyped-decorator]
def put_word(typing: Any, table: Any, place: Any, value: Any) -> Any:
    """Write the low 32 bits of ``value`` to ``place``."""
    return _writer(_WORD)


@intrinsic  # type: ignore[untyped-decorator]
def put_byte(typing: Any, table: Any, place: Any, value: Any) -> Any:
    """Write the low byte of ``value`` to ``place``."""
    return _writer(_BYTE)


@intrinsic  # type: ignore[untyped-decorator]
def copy(typing: Any, target: Any, source: Any) -> Any:
    """Eight bytes from address ``source`` to address ``target``, aligned or not."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, of = (builder.inttoptr(each, ir.PointerType(_CELL)) for each in args)
        builder.store(builder.load(of, align=1), to, align=1)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), generate
