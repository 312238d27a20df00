"""`tilewright warm`: compile the kernels before they are needed."""

from __future__ import annotations

from tilewright.cli.streams import Json, emit_json, progress, remark, show_table


def warm(as_json: Json = False) -> None:
    """Compile all kernels, or load them from the cache, so that a first use does not wait."""
    from tilewright.embed import warm as warm_embed
    from tilewright.isa import warm as warm_isa
    from tilewright.kernels import cache_text, compiled
    from tilewright.layout import warm as warm_layout

    kernels: list[tuple[str, str, float]] = []
    with progress("compiling kernels") as advance:
        for room, warm_room in (("layout", warm_layout), ("isa", warm_isa), ("embed", warm_embed)):

            def report(name: str, seconds: float, room: str = room) -> None:
                kernels.append((room, name, seconds))
                advance(len(kernels), note=f"{room}: {name}")

            warm_room(report)
    anew = sum(compiled().values())
    if as_json:
        rows = [{"room": room, "name": name, "seconds": round(seconds, 4)} for room, name, seconds in kernels]
        emit_json({"folder": cache_text(), "compiled": anew, "kernels": rows})
        return
    show_table(("for", "kernels", ("time", "seconds")), kernels)
    kept = f"kept in {cache_text()}" if cache_text() else "kept nowhere: the cache folder cannot be written"
    remark(f"{anew} compiled, the others were there; {kept}")
