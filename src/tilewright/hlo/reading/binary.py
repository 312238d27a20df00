"""Binary programs: told apart by their bytes, without jax, and turned into text in another process.

There are MLIR bytecode, what jax.export wraps around it, and HLO protos. A few flipped bytes abort jaxlib, and would
take the caller along (`jaxlib_child.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.errors import UnsupportedError, UsageError
from tilewright.hlo.jaxlib_child import Refused, ask

_BYTECODE = b"ML\xefR"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NAME, _COMPUTATIONS, _WRAPPED = 1, 3, 1  # HloModuleProto.name, HloModuleProto.computations, HloProto.hlo_module
_WRAPPERS = 3


def binary_form(raw: bytes) -> tuple[str, bytes] | None:
    """``("mlir", bytecode)`` or ``("hlo", HloModuleProto)`` taken out of what wraps them, None for neither.

    >>> binary_form(b"ML\\xefR\\x0dStableHLO_v1.17.0\\x00")[0], binary_form(b"HloModule m")
    ('mlir', None)
    """
    if raw.startswith(_BYTECODE):
        return "mlir", raw
    if (inner := _exported(raw)) is not None:
        return "mlir", inner
    for _ in range(_WRAPPERS):  # HloProto holds the module in field 1, HloSnapshot holds an HloProto in field 1
        fields = _fields(raw)
        if fields is None or _NAME not in fields:
            return None
        is_name = all(32 <= byte < 127 for byte in fields[_NAME])  # and not a message
        if is_name and _COMPUTATIONS in fields and _fields(fields[_COMPUTATIONS]) is not None:
            return "hlo", raw
        raw = fields[_WRAPPED]
    return None


def _exported(raw: bytes) -> bytes | None:
    """The bytecode in ``jax.export``'s flatbuffer: a vector of bytes, its length in the four bytes before it."""
    at = raw.find(_BYTECODE, 4)
    while at >= 0:
        length = int.from_bytes(raw[at - 4 : at], "little")
        if len(_BYTECODE) < length <= len(raw) - at:
            return raw[at : at + length]
        at = raw.find(_BYTECODE, at + 1)
    return None


def _fields(raw: bytes) -> dict[int, bytes] | None:
    """The last value of every length-delimited field of a protobuf message, None if it is no message."""
    try:
        return {number: value for number, kind, value in _walk(raw) if kind == _BYTES}
    except (IndexError, ValueError):
        return None


def _walk(raw: bytes) -> Iterator[tuple[int, int, bytes]]:
    """``(field number, wire type, bytes of the value)``; ValueError or IndexError where the wire format is broken."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, kind = tag >> 3, tag & 7
        if kind == _BYTES:
            length, at = _varint(raw, at)
        elif kind == _VARINT:
            length = _varint(raw, at)[1] - at
        else:
            length = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
        if length < 0 or not number or at + length > len(raw):
            raise ValueError(number)
        yield number, kind, raw[at : at + length] if kind == _BYTES else b""
        at += length


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(value)


_FORMS = {"mlir": (b"m", "MLIR bytecode"), "hlo": (b"h", "HLO proto")}


def seconds(size: int) -> int:
    """Processor time that reading ``size`` bytes may take; real files take a tenth of it."""
    return 4 + 2 * (size >> 20)


def to_text(form: str, payload: bytes, where: str = "") -> str:
    """The text of a ``mlir`` (bytecode, portable artifact) or ``hlo`` (HloModuleProto) program.

    Raises UsageError for a program that jaxlib refuses or dies of, MissingExtra where jaxlib is missing.
    """
    kind, title = _FORMS[form]
    try:
        return ask(kind, payload, seconds(len(payload))).decode("utf-8", errors="replace")
    except Refused as error:
        raise UsageError(f"a damaged {title}, or one of another version: {error.what}", where=where) from None
    except UnsupportedError as error:
        raise UnsupportedError(error.what, where=where) from None
