"""`tilewright verify`: run two programs on the same inputs, edge values too, and compare every element."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from tilewright.cli.programs.program import ArgOption, load_program
from tilewright.cli.streams import Json, progress
from tilewright.errors import CheckFailed, UsageError
from tilewright.extras import need
from tilewright.render.deliver import Answer, Line, Output, deliver, remark, write_file
from tilewright.render.tables import Heading, Table

if TYPE_CHECKING:
    from tilewright.hlo import Program, TpuComparison, Trial, Verification

_WHAT = "StableHLO text, bytecode or a portable artifact, packed (.gz, .xz) or not, or model.py:function."


def verify(
    original: Annotated[str, Argument(metavar="A", help=f"The original: {_WHAT}", show_default=False)],
    rewritten: Annotated[str, Argument(metavar="B", help="What shall stand for it.", show_default=False)],
    seeds: Annotated[int, Option("--seeds", min=1, help="Try each kind of inputs this many times.")] = 1,
    inputs: Annotated[
        list[str] | None,
        Option(
            "--inputs", help="A kind of inputs (default: all): normal, wide, zeros, denormal, large, lowest, special."
        ),
    ] = None,
    bit_exact: Annotated[bool, Option("--bit-exact", help="The bits must be equal, not only the values.")] = False,
    eager: Annotated[bool, Option("--eager/--no-eager", help="Also run both one operation at a time.")] = True,
    save: Annotated[
        str | None, Option("--save", help="Write the inputs that show the worst case: a .npz file.")
    ] = None,
    tpu: Annotated[
        str | None,
        Option("--tpu", help="Also compile both for a TPU such as v5e, and compare cycles (needs jax[tpu])."),
    ] = None,
    timeout: Annotated[
        int, Option("--timeout", min=1, help="Seconds that a trial, and the TPU compiler, may take.")
    ] = 300,
    as_json: Json = False,
    arg: ArgOption = None,
) -> None:
    """Compare two programs on values: exit 0 where they agree, 1 where they differ."""
    if save and not save.endswith(".npz"):
        raise UsageError("inputs are written as .npz", where=save)
    need("jax", "jaxlib", what="`verify`")
    from tilewright.hlo import Verification, compare_on_tpu
    from tilewright.hlo import verify as verify_programs

    before, after = (
        load_program(source, arg if ".py" in source or ":" in source else None) for source in (original, rewritten)
    )
    # First: the TPU compiler may not be installed.
    compiled = compare_on_tpu(before, after, tpu, timeout=timeout) if tpu else None
    options: dict[str, Any] = {"bit_exact": bit_exact, "inputs": inputs, "eager": eager, "seconds": timeout}
    with progress("verify") as advance:
        parts = [verify_programs(before, after, None, seed, advance=advance, **options) for seed in range(seeds)]
    trials, remarks = (tuple(each for part in parts for each in getattr(part, name)) for name in ("trials", "remarks"))
    verification = Verification(trials, parts[0].reference, tuple(dict.fromkeys(remarks)))
    if save:
        _save(before, verification.worst, save)
    value = {**verification.to_json(), "tpu": compiled.to_json() if compiled else None}
    deliver(Answer(lambda: value, lambda: _lines(verification, compiled)), Output(as_json=as_json))
    if not verification.ok:
        raise CheckFailed(f"the programs differ: {verification.reason}" if as_json else "the programs differ")


def _save(program: Program, trial: Trial, path: str) -> None:
    import numpy as np

    from tilewright.hlo import trial_arguments

    buffer = io.BytesIO()
    arrays = {f"argument_{k}": array for k, array in enumerate(trial_arguments(program, trial))}
    np.savez(buffer, allow_pickle=False, **arrays)
    write_file(path, buffer.getvalue())
    remark(f"wrote {path}: {trial.inputs} inputs, seed {trial.seed}")


def _lines(verification: Verification, compiled: TpuComparison | None) -> Iterator[Line]:
    columns: list[Heading] = ["inputs", ("seed", "number"), "run", "verdict", "differ by", "error of A", "error of B"]
    rows = []
    for trial in verification.trials:
        verdict = "DIFFER" if not trial.ok else "same bits" if trial.bit_equal else "agree"
        errors = ["-" if error is None else f"{error:.2g}" for error in (trial.error_before, trial.error_after)]
        rows.append([trial.inputs, trial.seed, trial.run, verdict, f"{trial.max_difference:.2g}", *errors])
    yield from (Table(columns, rows), str(verification))
    if compiled:
        yield f"\n{compiled}"
