"""Files are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tilewright.errors import UsageError


@contextmanager
def writing_whole(path: Path | str, *, durable: bool = False) -> Iterator[BinaryIO]:
    """A file beside its place, moved there when the block ends well: a reader sees the old one or the new one.

    ``durable``: it is on disk before it is moved, so that a machine that stops leaves one of the two as well. Raises
    UsageError where the file cannot be written; whatever ends the block, nothing half written is left.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with open(partial, "w+b") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(target)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UsageError(f"cannot write it: {error.strerror or error}", where=str(path)) from None
        raise


def write_whole(path: Path | str, data: str | bytes) -> None:
    """Write a file as :func:`writing_whole` does. Text is written as UTF-8."""
    with writing_whole(path) as file:
        file.write(data.encode("utf-8") if isinstance(data, str) else data)
