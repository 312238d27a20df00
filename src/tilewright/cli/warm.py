"""`tilewright warm`: compile the kernels before they are needed."""

from __future__ import annotations

import typer

from tilewright.cli.layout.show import Json
from tilewright.cli.streams import emit_json, progress, remark

__all__ = ["add_to"]


def _warm(as_json: Json = False) -> None:
    """Compile all kernels, or load them from the cache, so that a first use does not wait."""
    from tilewright.embed.warming import warm as warm_embed
    from tilewright.isa.warming import warm as warm_isa
    from tilewright.kernels import cache_text, compiled
    from tilewright.layout import warm as warm_layout
    from tilewright.render import Column, print_table

    found: list[tuple[str, str, float]] = []
    with progress("compiling kernels") as advance:
        for room, warm in (("layout", warm_layout), ("isa", warm_isa), ("embed", warm_embed)):

            def report(name: str, seconds: float, room: str = room) -> None:
                found.append((room, name, seconds))
                advance(len(found), note=f"{room}: {name}")

            warm(report)
    anew = sum(compiled().values())
    if as_json:
        kernels = [{"room": room, "name": name, "seconds": round(seconds, 4)} for room, name, seconds in found]
        emit_json({"folder": cache_text(), "compiled": anew, "kernels": kernels})
        return
    print_table([Column("for"), Column("kernels"), Column("time", "seconds")], found)
    kept = f"kept in {cache_text()}" if cache_text() else "kept nowhere: the cache folder cannot be written"
    remark(f"{anew} compiled, the others were there; {kept}")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("warm")(_warm)
