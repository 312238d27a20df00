"""The one way out: a result goes to the terminal, to stdout as JSON, or to a file in the form that its suffix names."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tilewright.errors import UsageError
from tilewright.extras import need
from tilewright.files import write_whole
from tilewright.render.formats import visible
from tilewright.render.tables import Table, print_table

if TYPE_CHECKING:
    from rich.text import Text

Line: TypeAlias = "str | tuple[str, str] | Table | Callable[[int], Text]"
"""What a terminal shows: a text, (rich style, text), a table, or a drawing: a function of the columns there are."""
Form: TypeAlias = Callable[[], "str | bytes | Mapping[str, Any]"]
"""What a file holds: text, bytes, or plain values that are written as JSON."""

_METHODS = {".json": "to_json", ".html": "page", ".svg": "to_svg", ".csv": "to_csv"}
"""Suffix -> the method of a result that makes a file's content."""

_NO_TERMINAL = 120
"""Columns of a drawing where there is no terminal."""


class Result(Protocol):
    """What a command answers. A result that can be a page has a ``page()`` (an HTML document) beside these two."""

    def to_json(self) -> Mapping[str, Any]:
        """Plain values; ``schema_version`` is added where there is none."""
        ...

    def lines(self) -> Iterable[Line]:
        """What the terminal shows."""
        ...


@dataclass(frozen=True)
class Answer:
    """A result whose forms are made by functions at hand."""

    to_json: Callable[[], Mapping[str, Any]]
    lines: Callable[[], Iterable[Line]]


class Output:
    """Where a result goes: ``-o PATH`` (``-`` is stdout), ``--json``, and otherwise the terminal.

    Made before the work begins: :class:`UsageError` for a name that ends in none of ``suffixes``, for ``-`` beside
    ``--json`` and for ``-`` where ``stdout`` is False; and for a form whose package is not installed.

    >>> Output("plan.HTML", False, ".json", ".html").suffix, Output("-", False, ".json").suffix, Output().suffix
    ('.html', '.json', '')
    """

    def __init__(self, path: str | None = None, as_json: bool = False, *suffixes: str, stdout: bool = True) -> None:
        self.path, self.as_json, self.suffix = path, as_json, ""
        if path == "-" and as_json:
            raise UsageError("-o - and --json both want stdout", how="write to a file")
        if path == "-" and stdout:
            self.suffix = suffixes[0]
        elif path is not None:
            name = re.sub(r"\.htm$", ".html", path.lower())
            self.suffix = max((suffix for suffix in suffixes if name.endswith(suffix)), key=len, default="none")
            self.must_end_in(*suffixes)
            if self.suffix == ".pftrace":
                need("perfetto", what=f"writing {path}")

    @property
    def is_file(self) -> bool:
        """Whether a file is written."""
        return self.path not in (None, "-")

    def must_end_in(self, *suffixes: str) -> None:
        """Raise UsageError for a file whose name ends in none of these, of those that the command writes."""
        if self.path is not None and self.suffix not in suffixes:
            raise UsageError(f"no writer for {self.path!r}", where="-o", how=f"end the name in {' or '.join(suffixes)}")


def deliver(
    result: Result,
    output: Output,
    forms: Mapping[str, Form] | None = None,
    *,
    said: Iterable[str] | None = None,
    wrote: str = "",
    notes: Iterable[str] = (),
) -> None:
    """Write the result to the output's file, if there is one, with a remark; then JSON, or the terminal's lines.

    ===========  ================================================================================
    ``forms``    suffix -> what makes the file's content, for forms that are no method of the result
    ``said``     remarks that stand for the terminal's lines where a file is written
    ``wrote``    what the remark says of the file
    ``notes``    remarks that go with the terminal's lines
    ===========  ================================================================================
    """
    if output.path is not None:
        form: Form = (forms or {}).get(output.suffix) or getattr(result, _METHODS[output.suffix])
        content = form()
        for text in (said or ()) if output.is_file else ():
            remark(text)
        write_file(output.path, json_text(content) if isinstance(content, Mapping) else content, wrote)
    if output.as_json:
        write_file("-", json_text(result.to_json()))
    elif output.path is None or (output.is_file and said is None):
        show(result.lines())
        for text in notes:
            remark(f"note: {text}")


def show(lines: Iterable[Line]) -> None:
    """Lines on stdout, with nothing in them that steers a terminal; texts are not folded."""
    for line in lines:
        if isinstance(line, Table):
            print_table(line.columns, line.rows, title=line.title)
        elif isinstance(line, str):
            text = visible(line)
            sys.stdout.write(text if text.endswith("\n") else text + "\n")
        else:
            _print_styled(line)


def _print_styled(line: tuple[str, str] | Callable[[int], Text]) -> None:
    from rich.console import Console
    from rich.text import Text

    if isinstance(line, tuple):
        Console().print(Text(visible(line[1]), style=line[0]), soft_wrap=True)
        return
    console = Console(width=None if sys.stdout.isatty() else _NO_TERMINAL, highlight=False)
    console.print(line(console.width), soft_wrap=True)


def remark(text: str) -> None:
    """Something worth knowing that is not the data, on stderr."""
    print(visible(text), file=sys.stderr)


def write_file(path: str, data: str | bytes, note: str | None = "") -> None:
    """Write to a file (whole or not at all) and remark it, with a note (None: no remark); or to stdout for ``-``."""
    if path != "-":
        write_whole(path, data)
        if note is not None:
            remark(f"wrote {path}{note and f': {note}'}")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data.encode("utf-8") if isinstance(data, str) else data)
    sys.stdout.buffer.flush()


def json_text(value: Mapping[str, Any], *, own: bool = True) -> str:
    """Indented JSON. ``own``: in our schema, so with a ``schema_version``; False for another tool's format."""
    if own and "schema_version" not in value:
        value = {"schema_version": 1, **value}
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
