"""`tilewright explore`: the local page on which layouts, programs and plans are walked through."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.streams import emit_text, read_bytes, remark
from tilewright.errors import UsageError
from tilewright.extras import need

if TYPE_CHECKING:
    from tilewright.explore import Explorer


def explore(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="A program (HLO, StableHLO, a dump folder, FILE.py:FUNCTION), a .tasm or a model's .toml; - is stdin.",
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Open a page that explores layouts, programs, matrix-unit programs and plans; nothing leaves this machine.

    The page's address is the first line of stdout. Only who has its token is answered, and only on this machine.
    Ctrl-C ends it.
    """
    need("starlette", "uvicorn", what="the explorer")
    from tilewright.explore import serve

    def opened(address: str) -> None:
        emit_text(address)
        remark("Ctrl-C ends it")
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(_explorer(file), port, opened)


def _explorer(file: str | None) -> Explorer:
    """The explorer of a file: nothing else is read later."""
    from tilewright.explore import Explorer
    from tilewright.hlo import names_python

    if file is None:
        return Explorer()
    if file == "-":
        return Explorer(given=("stdin", read_bytes("-")))
    if names_python(file):
        from tilewright.hlo import from_python

        remark(f"tracing {file}")
        program = from_python(file)
        texts = {str(op.source.file) for _, op in program.operations() if op.source}
        sources = {name: Path(name).read_text("utf-8", "replace") for name in texts if Path(name).is_file()}
        return Explorer(given=(f"{Path(file).name}.mlir", program.text.encode()), sources=sources)
    if not Path(file).exists():
        raise UsageError("no such file", where=file)
    return Explorer(Path(file))
