"""`tilewright layout`: what a layout's text means, in words and as a picture."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli._io import emit_json, emit_text, read_text, remark, write_file
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.layout import TensorLayout, TupleLayout

__all__ = ["add_to"]

_Text = Annotated[str, typer.Argument(metavar="TEXT", help="XLA's shape text, as f32[3,5]{1,0:T(2,2)}; - is stdin.")]
_Index = Annotated[str | None, typer.Option("--index", metavar="I,J,..", help="Derive this element's offset.")]
_Offset = Annotated[int | None, typer.Option("--offset", metavar="O", help="Say what lies at this offset.")]
_Out = Annotated[
    str | None, typer.Option("-o", "--out", metavar="FILE", help="Write an SVG: FILE.svg, or - for stdout.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _read(text: str) -> TensorLayout | TupleLayout:
    from tilewright.layout import parse

    return parse(read_text("-").strip() if text == "-" else text)


def _one(text: str) -> TensorLayout:
    """A single array, as an index, an offset and a picture need it."""
    from tilewright.layout import TensorLayout

    layout = _read(text)
    if not isinstance(layout, TensorLayout):
        raise UsageError(f"{layout} is a tuple", how="name one of its elements")
    return layout


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        raise UsageError(f"{text!r} is not a list of whole numbers such as 2,3", where="--index") from None


def _explain(text: _Text, index: _Index = None, offset: _Offset = None, as_json: _Json = False) -> None:
    """Say what a layout's text means: its sizes, how one element gets its offset, or what lies at an offset."""
    if index is not None and offset is not None:
        raise UsageError("--index and --offset are two questions", how="ask one at a time")
    if index is not None:
        _explain_index(_one(text), _numbers(index), as_json)
    elif offset is not None:
        _explain_offset(_one(text), offset, as_json)
    else:
        _summarise(_read(text), as_json)


def _explain_index(layout: TensorLayout, index: Sequence[int], as_json: bool) -> None:
    from tilewright.layout._explain import derive

    found = derive(layout, index)
    if not as_json:
        emit_text(str(found))
        return
    offset = found.address["offset"]
    value: dict[str, Any] = {"layout": found.layout, "index": list(index), "offset": offset}
    value["expression"] = found.expressions["offset"]
    value["bit"] = offset * layout.element_bits
    value["coordinates"] = [{"name": c.label, "value": c.value, "size": c.size} for c in found.coordinates]
    emit_json(value)


def _explain_offset(layout: TensorLayout, offset: int, as_json: bool) -> None:
    from tilewright.layout._explain import explain_place

    if as_json:
        index = layout.index(offset)
        emit_json({"layout": str(layout), "offset": offset, "index": None if index is None else list(index)})
    else:
        emit_text(explain_place(layout, offset))


def _summarise(layout: TensorLayout | TupleLayout, as_json: bool) -> None:
    from tilewright.layout._summary import summary

    facts = summary(layout)
    if as_json:
        emit_json(facts)
    else:
        _print_facts(facts)


def _print_facts(facts: dict[str, Any]) -> None:
    from tilewright.render import Column, bytes_text, count_text, print_table, ratio_text

    if "elements" in facts:
        pointers = f"a table of {len(facts['elements'])} pointers, {bytes_text(facts['size_bytes'])}, and its elements:"
        print_table([Column("tuple"), Column(facts["layout"])], [("", pointers)])
        for element in facts["elements"]:
            print()
            _print_facts(element)
        return
    order = ", ".join(f"d{d}" for d in reversed(facts["minor_to_major"]))
    tiles = " then ".join(f"({','.join(map(str, tile))})" for tile in facts["tiles"])
    spaces = {0: "0, the default memory", 1: "1, vector memory on a TPU"}
    rows = [
        ("element type", f"{facts['dtype']}, {facts['element_bits']} bits each in memory"),
        ("shape", f"({','.join(map(str, facts['shape']))})"),
        ("order", f"{order}: major to minor" if order else "a single element"),
        ("tiles", tiles or "none"),
        ("memory space", spaces.get(facts["memory_space"], str(facts["memory_space"]))),
        ("physical shape", f"({','.join(map(str, facts['physical_shape']))})"),
        ("slots", f"{count_text(facts['slots'])}, of which {count_text(facts['padding_slots'])} are padding"),
        ("size in memory", _exact_bytes(facts["size_bytes"])),
        ("data alone", _exact_bytes(facts["data_bytes"])),
        ("padding ratio", ratio_text(facts["padding_ratio"])),
    ]
    print_table([Column("layout"), Column(facts["layout"])], rows)


def _exact_bytes(count: int) -> str:
    from tilewright.render import bytes_text, count_text

    return f"{count_text(count)} bytes" + (f" ({bytes_text(count)})" if count >= 1024 else "")


def _draw(text: _Text, out: _Out = None, as_json: _Json = False) -> None:
    """Draw a layout: tiles outlined, offsets as numbers, padding marked; in the terminal, or as an SVG with -o."""
    layout = _one(text)
    if out is not None and out != "-" and not out.endswith(".svg"):
        raise UsageError(f"no writer for {out!r}", where="-o", how="pictures are written as .svg")
    if as_json and out == "-":
        raise UsageError("-o - and --json both want stdout", how="write the picture to a file")
    if out is not None:
        write_file(out, layout.to_svg() + "\n")
        if out != "-":
            remark(f"wrote {out}")
    if as_json:
        _draw_json(layout)
    elif out is None:
        _draw_here(layout)


def _draw_json(layout: TensorLayout) -> None:
    from tilewright.layout._scene import make_scene

    scene = make_scene(layout)
    panels = [
        {"heading": p.heading, "cells": [list(row) for row in p.labels], "padding": p.padding.tolist()}
        for row in scene.panels
        for p in row
    ]
    levels = [{"name": v.name, "rows": v.row_period, "columns": v.column_period} for v in scene.levels]
    emit_json({"layout": scene.title, "cut": scene.cut, "levels": levels, "panels": panels})


def _draw_here(layout: TensorLayout) -> None:
    from rich.console import Console

    from tilewright.layout._terminal import terminal_drawing

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(terminal_drawing(layout, console.width), soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    """Register the group."""
    group = typer.Typer(help="Where every element lives: explain a layout's text, or draw it.", no_args_is_help=True)
    group.command("explain")(_explain)
    group.command("draw")(_draw)
    app.add_typer(group, name="layout")
