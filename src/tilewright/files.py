"""Files are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from tilewright.errors import UsageError


def write_whole(path: Path | str, data: str | bytes) -> None:
    """Write a file beside its place and move it there: a reader sees the old one or the new one.

    Text is written as UTF-8. Raises UsageError where the file cannot be written.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"cannot write it: {error.strerror or error}", where=str(path)) from None
