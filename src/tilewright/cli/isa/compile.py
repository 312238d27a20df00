"""`tilewright isa compile`: a model's program as programs of this machine, run whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.isa import machine
from tilewright.cli.programs.program import ArgOption, load_program
from tilewright.cli.streams import Json, emit_json, emit_text, progress, remark, write_file, writer_of

if TYPE_CHECKING:
    from tilewright.isa import Compiled, MachineReport


def compile(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="model.py:function, or StableHLO in any form; - is stdin.")
    ],
    arg: ArgOption = None,
    run: Annotated[
        bool, typer.Option("--run", help="Run it with its example arguments and hold every layer against XLA.")
    ] = False,
    listing: Annotated[bool, typer.Option("--listing", help="Print every layer's tables and programs.")] = False,
    settings: machine.Settings = None,
    out: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="FILE.html: a page; FILE.json; FILE.tasm: the listing; FILE.bundle: for `isa run`.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Compile a model for the matrix unit: every layer with its cycles, bytes, and why it is not on the machine."""
    from tilewright import isa
    from tilewright.render import print_table

    suffix = writer_of(out, ".html", ".json", ".tasm", ".bundle", as_json=as_json)
    config = machine.configured(settings, kb_mode="chunk")
    compiled = isa.compile(load_program(program, arg), config=config)
    if out is not None and suffix == ".bundle":
        compiled.save(out)
        remark(f"wrote {out}")
        out = None
    report = _run(compiled, program, run)
    if out is not None:
        plain = json.dumps(report.to_json(), indent=2)
        text = report.to_html() if suffix == ".html" else compiled.listing if suffix == ".tasm" else plain
        write_file(out, text + "\n")
        if out != "-":
            remark(f"wrote {out}")
        else:
            return 0
    if as_json:
        emit_json(report.to_json())
    elif listing:
        emit_text(compiled.listing)
    else:
        print_table(*report.table())
        emit_text(f"\n{report}")
        if run:
            emit_text("every layer's values are XLA's")
    return 0


def _run(compiled: Compiled, program: str, values: bool) -> MachineReport:
    with progress(program) as bar:
        return compiled.check(watch=bar) if values else compiled.estimate(bar)
