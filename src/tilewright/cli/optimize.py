"""`tilewright optimize`: rewrite a StableHLO program where it pays on a target, and say where it does not and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli._io import emit_json, emit_text, read_bytes, remark, write_file
from tilewright.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from tilewright.hlo import Optimized, Program

__all__ = ["add_to"]


def _optimize(
    file: Annotated[str | None, typer.Argument(help="StableHLO text, plain or gzipped; - is stdin.")] = None,
    target: Annotated[str | None, typer.Option("--target", "-t", help="The chip whose layouts decide.")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Write the result; - is stdout.")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Print the text's changes.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print every verdict, with its reason.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    bit_exact: Annotated[
        bool, typer.Option("--bit-exact", help="Keep to rewrites that give the same bits (no float sums taken apart).")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run both programs on random inputs; exit 1 if they differ.")
    ] = False,
    passes: Annotated[
        str | None, typer.Option("--passes", help="Run these rewrites instead, without any gate, and print the result.")
    ] = None,
    list_passes: Annotated[bool, typer.Option("--list-passes", help="Print the rewrites there are.")] = False,
) -> None:
    """Cut the data a program moves for layout's sake, where the modelled cost on the target falls."""
    if list_passes:
        _list_passes(as_json)
        return
    if file is None:
        raise UsageError("no program given", how="name a StableHLO file, or - for stdin")
    if passes is not None:
        _run_passes(file, passes, output or "-")
        return
    if target is None:
        raise UsageError("no target given", where=file, how="add --target, such as --target vector8x128")
    found = _load_and_optimize(file, target, bit_exact)
    if output:
        write_file(output, found.text if found.text.endswith("\n") else found.text + "\n")
    if output and output != "-":
        remark(f"wrote {output}")
    if output != "-":
        _print(found, diff, explain, as_json)
    if found.target.compiler_normalizes:
        remark(
            f"note: XLA:TPU performs these rewrites itself, so on {found.target.name} a gain is claimed only where it "
            "remains after normalising both programs"
        )
    if verify:
        _verify(found)


def _load_and_optimize(file: str, target: str, bit_exact: bool) -> Optimized:
    from tilewright.hlo import optimize
    from tilewright.targets import target as find_target

    chip = find_target(target)
    return optimize(_load(file), chip, allow_reassociation=not bit_exact)


def _load(file: str) -> Program:
    from pathlib import Path

    from tilewright.hlo import load

    return load(read_bytes(file) if file == "-" else Path(file))


def _print(found: Optimized, diff: bool, explain: bool, as_json: bool) -> None:
    if as_json:
        emit_json(found.to_json())
        return
    if explain or not diff:
        emit_text(found.explain())
    if diff:
        emit_text(found.diff() or "no change")


def _verify(found: Optimized) -> None:
    from tilewright.hlo import verify

    proof = verify(found.original, found.program)
    equal = "bit for bit" if proof.bit_equal else f"to {proof.max_difference:.2g} of the largest element"
    if not proof.ok:
        raise CheckFailed(f"the rewritten program differs, equal only {equal}: {proof.reason}")
    error = "" if proof.error_after is None else f"; error against float64 {proof.error_after:.2g}"
    remark(f"verified on random inputs: equal {equal}{error}")


def _run_passes(file: str, passes: str, output: str) -> None:
    from tilewright.hlo.rewrites import parse_pipeline, run_pipeline

    steps = parse_pipeline(passes)
    text, counts = run_pipeline(_load(file).text, steps)
    write_file(output, text if text.endswith("\n") else text + "\n")
    for step in steps:
        remark(f"{step}: {counts[step.name]} changes")


def _list_passes(as_json: bool) -> None:
    from tilewright.hlo.rewrites import DEFAULT_PIPELINE, REWRITES

    if as_json:
        emit_json(
            {"passes": [{"name": n, "summary": r.summary} for n, r in REWRITES.items()], "default": DEFAULT_PIPELINE}
        )
        return
    width = max(map(len, REWRITES))
    emit_text("\n".join(f"{name:{width}}  {rewrite.summary}" for name, rewrite in REWRITES.items()))


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("optimize")(_optimize)
