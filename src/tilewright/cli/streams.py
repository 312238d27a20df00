"""Conventions every command keeps: ``-`` is stdin, progress is shown on stderr, and only on a terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from tilewright import reading
from tilewright.render.deliver import Output, json_text, show
from tilewright.render.deliver import remark as remark
from tilewright.render.deliver import write_file as write_file
from tilewright.render.tables import Heading as Heading
from tilewright.render.tables import Table

if TYPE_CHECKING:
    import numpy as np

Json = Annotated[bool, Option("--json", help="Print JSON.")]


def read_bytes(path: str, most: int | None = None) -> bytes:
    """The bytes of a file (a gzip or xz file's unpacked), or of stdin for ``-``: at most a text's, or ``most``."""
    if path == "-":
        return reading.unpacked(reading.read_stream(sys.stdin.buffer, "stdin", most), "stdin", most)
    return reading.read_bytes(path, most)


def read_text(path: str) -> str:
    """The UTF-8 text of a file, or of stdin for ``-``."""
    return reading.text_of(read_bytes(path), path)


def npy_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """The array as an .npy file; never a pickle."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def writer_of(out: str | None, *suffixes: str, as_json: bool = False, stdout: bool = True) -> str:
    return Output(out, as_json, *suffixes, stdout=stdout).suffix


def emit_text(text: str) -> None:
    show([text])


def emit_json(value: Mapping[str, Any], path: str = "-") -> None:
    write_file(path, json_text(value))


def show_table(columns: Iterable[Heading], rows: Iterable[Sequence[object]], title: str = "") -> None:
    show([Table([*columns], rows, title)])


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
    from tilewright.kernels.cache import before_compiling

    def say() -> None:
        if sys.stderr.isatty():
            remark("compiling kernels, once; later runs find them (`tilewright warm` compiles all beforehand)")

    before_compiling[:] = [say]
