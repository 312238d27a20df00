"""`tilewright warm`: compile the kernels before they are needed."""

from __future__ import annotations

import typer

from tilewright.cli._io import emit_json, progress
from tilewright.cli._layout_show import Json

__all__ = ["add_to"]


def _warm(as_json: Json = False) -> None:
    """Compile the kernels of the layout package, or load them from the cache, so that a first use does not wait."""
    from tilewright.layout import warm
    from tilewright.render import Column, print_table

    found: list[tuple[str, float]] = []
    with progress("compiling") as advance:

        def report(name: str, seconds: float) -> None:
            found.append((name, seconds))
            advance(len(found), note=name)

        warm(report)
    if as_json:
        emit_json({"kernels": [{"name": name, "seconds": round(seconds, 4)} for name, seconds in found]})
    else:
        print_table([Column("kernels"), Column("time", "seconds")], found)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("warm")(_warm)
