"""`tilewright run`: a whole model on a target, from its rows to one report."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli.streams import emit_json, remark
from tilewright.errors import CheckFailed

__all__ = ["add_to"]


def _run(
    model: Annotated[str, typer.Argument(help="A model file, such as examples/dlrm.py.")],
    target: Annotated[str, typer.Option(help="The chip to plan for; it needs SparseCores.")] = "tpu-v5p",
    chips: Annotated[int, typer.Option(help="Number of chips.")] = 1,
    data: Annotated[str | None, typer.Option(help="Criteo TSV or CSV; without it a log is generated.")] = None,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 100,
    batch: Annotated[int, typer.Option(help="Samples per step, over all chips.")] = 512,
    out: Annotated[str, typer.Option(help="Folder of report.html, report.json and trace.pftrace.")] = "out",
    scale: Annotated[float, typer.Option(help="Share of Criteo's published vocabularies to keep.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of data, parameters and tables.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json instead of the summary.")] = False,
) -> None:
    """Plan, rewrite, prove, train and count a model; write one report."""
    from tilewright.cli.run_view import StageView, print_summary
    from tilewright.machine import make_folder, run

    make_folder(out)  # a folder that cannot be written to is better known now than after the run
    with StageView() as view:
        report = run(model, target, chips, steps, batch, data=data, scale=scale, seed=seed, watch=view.watch)
        view.watch("report", 0, 0)
        written = report.write(out)
    if as_json:
        emit_json(report.to_json())
    else:
        print_summary(report)
    remark(f"wrote {', '.join(str(path) for path in written)}")
    if report.failures:
        raise CheckFailed("; ".join(report.failures), where=model)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("run")(_run)
