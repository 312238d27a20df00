"""Reading files: up to a bound, unpacked, as text, and TOML and JSON as typed values.

What is wrong with one is a single error that names file, entry and key.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import stat
import tomllib
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

from tilewright.errors import UsageError
from tilewright.files import names_open_file

T = TypeVar("T")


def text_limit() -> int:
    """Most bytes of a text, unpacked: 256 MiB, or as many MiB as the environment variable TILEWRIGHT_TEXT_MIB says."""
    word = os.environ.get("TILEWRIGHT_TEXT_MIB", "")
    return (int(word) if word.isdecimal() and int(word) else 256) << 20


def open_bytes(path: str | Path, where: str = "") -> BinaryIO:
    """A file to read from: a regular one, or one that this process has open already (``/dev/stdin``, ``<(...)``).

    Raises :class:`UsageError` for one that cannot be read, and for devices and pipes, which may never end. ``where``:
    what the error calls it, the path by default.
    """
    where = where or str(path)
    try:
        if names_open_file(path):
            return open(path, "rb")
        # Without O_NONBLOCK, opening a pipe would wait for somebody to write.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        raise UsageError(f"cannot read it: {getattr(error, 'strerror', None) or error}", where=where) from None
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise UsageError(f"cannot read it: {os.strerror(errno.EISDIR)}", where=where)
    raise UsageError("neither a file nor standard input", where=where, how="pipe what it holds into standard input")


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """What a file holds, that of a gzip or xz file unpacked: at most ``most`` bytes (:func:`text_limit`).

    Raises :class:`UsageError` as :func:`open_bytes` does, for a damaged packed file, and for more than that.
    """
    with open_bytes(path) as file:
        return unpacked(read_stream(file, str(path), most), str(path), most)


def read_stream(file: BinaryIO, where: str, most: int | None = None) -> bytes:
    """What is left in an open file, or in standard input: :class:`UsageError` for more than ``most`` bytes."""
    try:
        return _joined(iter(lambda: file.read(_PIECE), b""), where, most)
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror or error}", where=where) from None


def _joined(pieces: Iterable[bytes], where: str, most: int | None) -> bytes:
    """The pieces, taken one by one, so that what never ends is left at the bound."""
    kept, size, most = list[bytes](), 0, text_limit() if most is None else most
    for piece in pieces:
        kept.append(piece)
        size += len(piece)
        if size > most:
            raise too_long(where, most)
    return kept[0] if len(kept) == 1 else b"".join(kept)


_PIECE = 1 << 24


def too_long(where: str, most: int) -> UsageError:
    """The error for a text of more than ``most`` bytes."""
    how = "the environment variable TILEWRIGHT_TEXT_MIB allows more: TILEWRIGHT_TEXT_MIB=1024 up to 1 GiB"
    return UsageError(f"more than {most / 2**20:,.0f} MiB of text", where=where, how=how)


def unpacked(raw: bytes, where: str, most: int | None = None) -> bytes:
    """Bytes as they are, or what a gzip or xz file holds, unpacked piece by piece until it is ``most`` bytes."""
    if raw.startswith(_XZ):
        return _joined(_xz_pieces(raw, where), where, most)
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
            return _joined(iter(lambda: stream.read(_PIECE), b""), where, most)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"a damaged gzip file: {error}", where=where) from None


_XZ, _XZ_MEMORY = b"\xfd7zXZ\x00", 1 << 28
"""How an xz file begins, and the bytes that unpacking may need: a damaged header can ask for gigabytes."""


def _xz_pieces(raw: bytes, where: str) -> Iterator[bytes]:
    try:
        import lzma  # here: Python can be built without it
    except ImportError:
        raise UsageError("this Python cannot read xz files", where=where, how="unpack it: xz -d") from None
    try:
        while raw.startswith(_XZ):  # several streams may follow each other
            stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY)
            while not stream.eof:
                piece = stream.decompress(raw, _PIECE)
                if not piece and stream.needs_input and not stream.eof:
                    raise UsageError("a damaged xz file: it ends too early", where=where)
                raw = b""
                yield piece
            raw = stream.unused_data.lstrip(b"\0")
    except lzma.LZMAError as error:
        raise UsageError(f"a damaged xz file: {error}", where=where) from None


def check_archive(archive: zipfile.ZipFile, where: str) -> None:
    """:class:`UsageError` for a zip archive that holds more than a text may; no more than it says is unpacked of it."""
    if sum(member.file_size for member in archive.infolist()) > text_limit():
        raise too_long(where, text_limit())


def read_text(path: str | Path, most: int | None = None) -> str:
    """The UTF-8 text of a file, as :func:`read_bytes` reads it."""
    return text_of(read_bytes(path, most), str(path))


def text_of(raw: bytes, where: str) -> str:
    """Bytes as UTF-8 text; :class:`UsageError` where they are none."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8 text (byte {error.start})", where=where) from None


_SHARES = {"JSON": 8, "TOML": 64}
"""A value takes twenty times its text and more, and TOML is read slowly: the share of a text's bytes they may have."""


def read_file(path: str | Path, kind: Literal["JSON", "TOML"]) -> Any:
    """The value a file holds.

    Raises :class:`UsageError` that names the file: no such file, too long, not UTF-8, not JSON or TOML.
    """
    return parse(read_text(path, text_limit() // _SHARES[kind]), kind, str(path))


def parse(text: str, kind: Literal["JSON", "TOML"], where: str) -> Any:
    """The value of a text; :class:`UsageError` where it is not JSON or TOML, or has a number beyond 64 bits."""
    try:
        value = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not {kind}: {error}", where=where) from None
    _check_numbers(value, where)
    return value


def _check_numbers(value: Any, where: str) -> None:
    """Whole numbers are of 64 bits, as TOML says: a larger one counts nothing, and is more than a float can hold."""
    open_ = [(value, "")]
    while open_:
        entry, name = open_.pop()
        if isinstance(entry, dict):
            open_ += [(own, f"{name}.{key}" if name else str(key)) for key, own in entry.items()]
        elif isinstance(entry, list):
            open_ += [(own, name) for own in entry]
        elif isinstance(entry, int) and not -(1 << 63) <= entry < 1 << 64:
            raise UsageError(f"{name or 'it'} has a number of more than 64 bits", where=where)


def table_of(value: Any, where: str, how: str = "") -> Mapping[str, Any]:
    """``value`` where it is a table of keys and values."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{_shown(value)} is not a table of values", where=where, how=how)
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_keys(entry: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """:class:`UsageError` for a key that is not ``known``, with the nearest one that is."""
    names = list(known)
    for key in entry:
        if key not in names:
            near = get_close_matches(key, names, n=1)
            how = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(names)}"
            raise UsageError(f"unknown key {key!r}", where=where, how=how)


def typed(value: Any, kind: type[T], where: str, hints: Mapping[str, str] | None = None) -> T:
    """``value`` as the dataclass ``kind``: its keys are known, none it needs is missing, each value has its type.

    ``hints``: key -> what to write there, for the error.

    >>> from tilewright.embed.model.tables import Limits
    >>> typed({"max_ids_per_partition": 4, "max_unique_ids_per_partition": 2}, Limits, "limits").max_ids_per_partition
    4
    """
    import msgspec  # here: only who reads a file waits for it

    entry = table_of(value, where)
    known: Any = fields(kind)  # type: ignore[arg-type]
    check_keys(entry, [field.name for field in known], where)
    needed = [field.name for field in known if field.default is field.default_factory is MISSING]
    if missing := [name for name in needed if name not in entry]:
        raise UsageError(f"{' and '.join(missing)} missing", where=where)
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).rstrip("`").partition(" - at `$.")
        named = f"{place} = {_shown(entry[place])}" if place in entry else place
        key = re.split(r"\W", place)[0]
        raise UsageError(f"{named}: {_plain(problem)}", where=where, how=(hints or {}).get(key, "")) from None


_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _plain(problem: str) -> str:
    """msgspec's error message in words that the file's author knows: ``int`` is "a whole number"."""

    def named(types: re.Match[str]) -> str:
        return " or ".join(_NAMES.get(name, name) for name in types[1].split(" | ") if name != "null")

    plain = re.sub(r"`([^`]*)`", named, problem).replace("Expected", "expected")
    plain = re.sub(r" <= (\d+)(\.0)?", lambda most: f" of at most {int(most[1]):,}", plain)
    return re.sub(r" >= (\d+)(\.0)?", r" of at least \1", plain)
