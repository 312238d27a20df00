"""`tilewright layout`: what a layout's text means, in words and as a picture; what differs between two; data moved."""

from __future__ import annotations

import typer

from tilewright.cli.layout.compare import compare
from tilewright.cli.layout.convert import convert, cute, linalg, onednn
from tilewright.cli.layout.data import pack, unpack
from tilewright.cli.layout.draw import draw
from tilewright.cli.layout.memories import lanes, paged, sharded
from tilewright.cli.layout.plan import plan
from tilewright.cli.layout.predict import predict
from tilewright.cli.layout.preset import preset
from tilewright.cli.layout.show import Index, Json, Leaf, Offset, Text, answer, one_array, print_facts, read_layout


def _explain(text: Text, index: Index = None, offset: Offset = None, leaf: Leaf = None, as_json: Json = False) -> None:
    """Say what a layout's text means: its sizes, how one element gets its offset, or what lies at an offset."""
    from tilewright.layout import TupleLayout, summary

    whole = leaf is None and index is None and offset is None
    layout = read_layout(text) if whole else one_array(text, leaf)
    if isinstance(layout, TupleLayout):
        print_facts(summary(layout), as_json)
    else:
        answer(layout, index, None if offset is None else (offset,), as_json)


def add_to(app: typer.Typer) -> None:
    """Register the group."""
    group = typer.Typer(help="Where every element lives: in words, drawn, compared, packed.", no_args_is_help=True)
    group.command("explain")(_explain)
    for command in (
        draw,
        compare,
        convert,
        cute,
        linalg,
        onednn,
        pack,
        unpack,
        predict,
        preset,
        lanes,
        paged,
        sharded,
        plan,
    ):
        group.command(command.__name__)(command)
    app.add_typer(group, name="layout")
