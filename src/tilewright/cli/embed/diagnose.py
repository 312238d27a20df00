"""`tilewright embed diagnose` and `explain-error`: what holds a run back; what a compiler's error means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.embed import model
from tilewright.cli.streams import Json, emit_json, emit_text, progress, read_text, remark
from tilewright.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from tilewright.embed import Counters, EmbedConfig, ErrorExplanation, Limits

Error = Annotated[str, typer.Argument(help="The error's text, a file that holds it (a whole log may), or - (stdin).")]
StackWidth = Annotated[int | None, typer.Option("--width", help="Floats per row of the stack the error is about.")]
MaxIds = Annotated[int | None, typer.Option("--max-ids", help="Its max_ids_per_partition.")]
SparseCores = Annotated[int, typer.Option(help="SparseCores in all: below 16 there is a second lookup program.")]

_COUNTED = (".toml", ".json")


def diagnose(
    file: Annotated[
        str | None,
        typer.Argument(help="Counters (.toml or .json, such as `embed plan --json` or a run's report.json), or a log."),
    ] = None,
    counters: Annotated[
        str | None, typer.Option(help="Measured counters (.toml or .json) on top of what a log says.")
    ] = None,
    limits: Annotated[
        str | None, typer.Option(help="The limits file in use, over those of --config. None: the log's maxima.")
    ] = None,
    config: model.Config = None,
    target: model.Target = None,
    chips: model.Chips = None,
    batch: model.Batch = None,
    vocab: model.Vocab = None,
    scale: model.Scale = None,
    width: model.Width = None,
    optimizer: model.Optimizer = None,
    narrow_packing: model.NarrowPacking = None,
    bad_ids: model.BadIds = "error",
    init_args: model.InitArgs = None,
    rows: model.Rows = 0,
    template: Annotated[bool, typer.Option("--template", help="Print a counters file to fill in, and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Find every bottleneck of the SparseCore guide: its numbers, its cause, and what to change to which value.

    Exit code 1 when a finding is severe.
    """
    from tilewright.embed import COUNTERS_TEMPLATE, diagnosis_text, read_counters
    from tilewright.embed import diagnose as find_bottlenecks

    if template:
        emit_text(COUNTERS_TEMPLATE)
        return
    if file is None and counters is None:
        raise UsageError("nothing to judge", how="name a log or a counters file; --template prints one to fill in")
    options: dict[str, object] = {"target": target, "chips": chips, "batch": batch, "narrow_packing": narrow_packing}
    options |= {"vocab": vocab, "scale": scale, "width": width, "optimizer": optimizer}
    counted: Counters | None = None
    if file is not None and file.endswith(_COUNTED):
        if of_log := [name for name, value in (options | {"config": config, "limits": limits}).items() if value]:
            option = of_log[0].replace("_", "-")
            raise UsageError(f"--{option} beside a counters file", where=file, how="they belong to a log")
        counted = _with_flags(read_counters(file), init_args)
    elif file is not None:
        setup = model.settled(model.configured(config, options), file, rows, limits, batch, free=config is None)
        knobs, _ = setup.sparsecore.with_flags(init_args or "")
        counted = _of_log(replace(setup, sparsecore=knobs), file, limits, bad_ids, rows)
    if counters is not None:
        measured = read_counters(counters)
        counted = measured if counted is None else counted.merged(measured)
    assert counted is not None
    diagnosis = find_bottlenecks(counted)
    if as_json:
        emit_json(diagnosis.to_json())
    else:
        emit_text(diagnosis_text(diagnosis))
    if diagnosis.severe:
        worst = diagnosis.findings[0]
        raise CheckFailed(worst.bottleneck, where=file or counters or "", how=worst.advice[0])


def _with_flags(counters: Counters, init_args: str | None) -> Counters:
    """Flags of the environment count where the file says nothing of knobs."""
    if not init_args or counters.sparsecore is not None:
        return counters
    return replace(counters, sparsecore=counters.knobs.with_flags(init_args)[0])


def _of_log(setup: EmbedConfig, file: str, limits: str | None, bad_ids: str, rows: int) -> Counters:
    from tilewright.embed import log_counters

    bounds: dict[str, Limits] | None = None
    if limits is not None:
        from tilewright.embed import read_limits

        bounds = read_limits(limits, setup.topology)
    log, total = model.batches(setup, file, rows)
    with model.options_named(), progress("batches") as advance:
        counters = log_counters(
            (part.features for part in log), setup, bounds, bad_ids=bad_ids, progress=lambda n: advance(n, total)
        )
    many = "1 batch" if counters.steps == 1 else f"{counters.steps} batches"
    remark(f"{file}: {many} on {counters.shards} SparseCores ({setup.target})")
    return counters


def explain_error(
    error: Error,
    width: StackWidth = None,
    max_ids: MaxIds = None,
    sparsecores: SparseCores = 16,
    as_json: Json = False,
) -> None:
    """Read a TPU compiler's error about SparseCore memory: what was too large, and the changes that compile."""
    from tilewright.embed import explain_error as explain

    text = error_text(error)
    try:
        explained = explain(text, width=width, max_ids=max_ids, sparsecores=sparsecores)
    except UsageError as problem:
        raise no_such_file(error, problem) from None
    if as_json:
        emit_json({"kind": "explained_errors", "errors": [explanation.to_json() for explanation in explained]})
    else:
        emit_text("\n\n".join(map(explanation_text, explained)))


def error_text(argument: str) -> str:
    """The text of a file, of stdin, or the argument itself."""
    if argument == "-":
        return read_text(argument)
    try:
        is_file = Path(argument).is_file()
    except OSError:  # a text too long to be a name
        is_file = False
    return read_text(argument) if is_file else argument


def no_such_file(argument: str, problem: UsageError) -> UsageError:
    """``problem``, or that there is no such file: something short without blanks was meant as one."""
    short = argument != "-" and len(argument) < 200 and not any(c.isspace() for c in argument)
    if short and not Path(argument).exists():
        return UsageError("neither a file nor an error's text", where=argument, how="check the file's name")
    return problem


def explanation_text(explanation: ErrorExplanation) -> str:
    """An explained SparseCore error as lines."""
    program = {"forward": "lookup", "backward": "update", "host": "preprocessing on the host"}.get(
        explanation.program, "program"
    )
    head = ", ".join(filter(None, (explanation.target, program)))
    lines = [f"{head} ({explanation.basis}): {explanation.meaning}"]
    lines += [f"  {name}: {value:,}" for name, value in explanation.figures.items()]
    lines += ["what to change:", *(f"  - {line}" for line in explanation.advice)]
    return "\n".join(lines)
