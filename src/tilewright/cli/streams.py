"""Conventions every command keeps: ``-`` is stdin or stdout, data on stdout, remarks on stderr, stable JSON."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tilewright.errors import UsageError
from tilewright.extras import need
from tilewright.files import write_whole

if TYPE_CHECKING:
    import numpy as np
    from rich.text import Text

    from tilewright.render import Kind

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Heading: TypeAlias = "str | tuple[str, Kind] | tuple[str, Kind, str]"
"""A column of :func:`show_table`: its heading, the kind of its values (text by default), a note."""


def writer_of(out: str | None, *suffixes: str, as_json: bool = False, stdout: bool = True) -> str:
    """The one of ``suffixes`` in which the file name of ``-o`` ends; the first for ``-``, "" where there is no ``-o``.

    Refuses other names, ``-`` beside ``--json``, and ``-`` where ``stdout`` is False; and a writer not installed.
    """
    if out is None:
        return ""
    if out == "-" and as_json:
        raise UsageError("-o - and --json both want stdout", how="write to a file")
    if out == "-" and stdout:
        return suffixes[0]
    for suffix in suffixes:
        if out.lower().endswith(suffix):
            if suffix == ".pftrace":
                need("perfetto", what=f"writing {out}")
            return suffix
    raise UsageError(f"no writer for {out!r}", where="-o", how=f"end the name in {' or '.join(suffixes)}")


def read_bytes(path: str, most: int | None = None) -> bytes:
    """The bytes of a file (a gzip or xz file's unpacked), or of stdin for ``-``: at most a text's, or ``most``."""
    from tilewright import reading

    if path == "-":
        return reading.unpacked(reading.read_stream(sys.stdin.buffer, "stdin", most), "stdin", most)
    return reading.read_bytes(path, most)


def read_text(path: str) -> str:
    """The UTF-8 text of a file, or of stdin for ``-``."""
    from tilewright import reading

    return reading.text_of(read_bytes(path), path)


def write_file(path: str, data: str | bytes) -> None:
    """Write to a file (made whole or not at all), or to stdout for ``-``."""
    if path != "-":
        write_whole(path, data)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data.encode("utf-8") if isinstance(data, str) else data)
    sys.stdout.buffer.flush()


def npy_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """The array as an .npy file; never a pickle."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def emit_text(text: str) -> None:
    """Text for stdout, ending in one newline, with nothing in it that steers a terminal."""
    from tilewright.render import visible

    text = visible(text)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def emit_json(value: Mapping[str, Any], path: str = "-") -> None:
    """One JSON object with its ``schema_version``, to stdout or a file."""
    if "schema_version" not in value:
        value = {"schema_version": 1, **value}
    write_file(path, plain_json(value))


def plain_json(value: Mapping[str, Any]) -> str:
    """Another tool's JSON, which has no place for our ``schema_version``."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def show_table(columns: Iterable[Heading], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table on stdout."""
    from tilewright.render import Column, print_table

    print_table([Column(c) if isinstance(c, str) else Column(*c) for c in columns], rows, title=title)


def show_drawing(draw: Callable[[int], Text]) -> None:
    """What ``draw`` makes for so many columns, on stdout: the terminal's, 120 where there is none."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(draw(console.width), soft_wrap=True)


def remark(text: str) -> None:
    """Something worth knowing that is not the data: stderr."""
    from tilewright.render import visible

    print(visible(text), file=sys.stderr)


def done_text(done: float, total: float | None) -> str:
    """``12/96``, or ``12`` where nobody knows of how many, or nothing before anything is done."""
    return f"{done:,.0f}/{total:,.0f}" if total else f"{done:,.0f}" if done else ""


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Any]:
    """A rich progress bar on stderr, shown only on a terminal; yields ``advance(done, total, note="")``.

    ``total``: how much there will be, where that is known from the beginning.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total or None, count=done_text(0, total))

        def advance(done: int, total: int | None = None, note: str = "") -> None:
            of = total or bar.tasks[task].total
            bar.update(task, completed=done, total=of, description=note or description, count=done_text(done, of))

        yield advance


def tell_of_compiling() -> None:
    """On a terminal, one remark when the first kernel is compiled that a later start will find."""
    from tilewright.kernels.kept import before_compiling

    def say() -> None:
        if sys.stderr.isatty():
            remark("compiling kernels, once; later runs find them (`tilewright warm` compiles all beforehand)")

    before_compiling[:] = [say]
