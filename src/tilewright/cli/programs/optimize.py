"""`tilewright optimize`: rewrite a StableHLO program where it pays on a target, and say where it does not and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.programs.argument import PROGRAM_HELP, ArgOption, ModuleOption, load_program
from tilewright.cli.programs.passes import changes_table, is_folder, list_passes, print_after, run_passes, stages
from tilewright.cli.streams import emit_json, emit_text, progress, remark, write_file
from tilewright.errors import CheckFailed, UnsupportedError, UsageError

if TYPE_CHECKING:
    from tilewright.hlo import Optimized


def _optimize(
    program: Annotated[str | None, typer.Argument(metavar="PROGRAM", help=PROGRAM_HELP, show_default=False)] = None,
    target: Annotated[str | None, typer.Option("--target", "-t", help="The chip whose layouts decide.")] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Write the result; - is stdout; a folder takes --print-after-all too."),
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Print what changed, and which passes changed nothing.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print every verdict, with its reason.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    bit_exact: Annotated[
        bool, typer.Option("--bit-exact", help="Keep to rewrites that give the same bits (no float sums taken apart).")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run both programs on random inputs; exit 1 if they differ.")
    ] = False,
    passes: Annotated[
        str | None,
        typer.Option(
            "--passes",
            help="The rewrites to use, such as 'inline,reduce-of-reshape{allow_reassociation=false}'. Without --target "
            "they run on the whole program, without any gate.",
        ),
    ] = None,
    print_after_all: Annotated[
        bool,
        typer.Option("--print-after-all", help="Print the program after every pass: to stderr, or into -o FOLDER/."),
    ] = False,
    list_all: Annotated[
        bool, typer.Option("--list-passes", help="Print the rewrites there are, with their options.")
    ] = False,
    arg: ArgOption = None,
    module: ModuleOption = None,
) -> None:
    """Cut the data a program moves for layout's sake, where the modelled cost on the target falls."""
    if list_all:
        list_passes(as_json)
        return
    if program is None:
        raise UsageError("no program given", how="name a StableHLO file, model.py:function, or - for stdin")
    if bit_exact and passes is not None:
        how = "write reduce-of-reshape{allow_reassociation=false}"
        raise UsageError("--bit-exact and --passes do not go together", how=how)
    if passes is not None and target is None:
        run_passes(_stablehlo(program, arg, module), passes, output, diff, print_after_all, as_json)
        return
    if target is None:
        raise UsageError("no target given", where=program, how="add --target, such as --target vector8x128")
    found = _load_and_optimize(program, arg, module, target, bit_exact, passes)
    _write(found, output, print_after_all)
    if output != "-":
        _print(found, diff, explain, as_json)
    if found.target.compiler_normalizes:
        remark(
            f"note: XLA:TPU performs these rewrites itself, so on {found.target.name} a gain is claimed only where it "
            "remains after normalising both programs"
        )
    if verify:
        _verify(found, bit_exact)


def _load_and_optimize(
    program: str, arg: list[str] | None, module: str | None, target: str, bit_exact: bool, passes: str | None
) -> Optimized:
    from tilewright.hlo import optimize
    from tilewright.targets import target as find_target

    chip = find_target(target)
    loaded = load_program(program, arg, module)
    return optimize(loaded, chip, allow_reassociation=not bit_exact, passes=passes)


def _stablehlo(program: str, arg: list[str] | None, module: str | None) -> str:
    loaded = load_program(program, arg, module)
    if loaded.kind != "stablehlo":
        raise UnsupportedError("rewrites work on StableHLO, and this is HLO text", where=program)
    return loaded.text


def _write(found: Optimized, output: str | None, print_after_all: bool) -> None:
    """The result, and with --print-after-all the stages it went through."""
    text = found.text if found.text.endswith("\n") else found.text + "\n"
    if print_after_all:
        print_after(stages(found), output)
    if output and not is_folder(output):
        write_file(output, text)
    elif output and not print_after_all:
        raise UsageError("it is a folder", where=output, how="name a file, or add --print-after-all")
    if output and output != "-" and not is_folder(output):
        remark(f"wrote {output}")


def _print(found: Optimized, diff: bool, explain: bool, as_json: bool) -> None:
    if as_json:
        emit_json(found.to_json())
        return
    if explain or not diff:
        emit_text(found.explain())
    if diff:
        emit_text(f"{changes_table(found.changes)}\n{found.diff()}" if found.rewrites else "no change")


def _verify(found: Optimized, bit_exact: bool) -> None:
    from tilewright.hlo import verify

    with progress("verify") as advance:
        proof = verify(found.original, found.program, bit_exact=bit_exact, advance=advance)
    if not proof.ok:
        raise CheckFailed(f"the rewritten program differs: {proof.reason}")
    remark(f"verified on random inputs: {proof}")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("optimize")(_optimize)
