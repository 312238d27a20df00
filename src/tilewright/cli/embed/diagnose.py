"""`tilewright embed check`, `diagnose`, `explain-error`: limits that overflow, bottlenecks, compiler errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from tilewright import embed, trace
from tilewright.cli.embed import model
from tilewright.cli.streams import Json, progress, read_text
from tilewright.errors import CheckFailed, UsageError
from tilewright.render.delivery import Answer, Line, Output, deliver, remark, show
from tilewright.render.tables import Heading, Table

Error = Annotated[str, typer.Argument(help="The error's text, a file that holds it (a whole log may), or - (stdin).")]


@dataclass(frozen=True)
class StackOptions:
    """The options that say what an error about SparseCore memory leaves out."""

    width: Annotated[int | None, "Floats per row of the stack the error is about."] = None
    max_ids: Annotated[int | None, "Its max_ids_per_partition."] = None
    sparsecores: Annotated[int, "SparseCores in all: below 16 there is a second lookup program."] = 16


_COUNTED = (".toml", ".json")


def diagnose(
    file: Annotated[
        str | None,
        typer.Argument(
            help="Counters (.toml or .json, such as `embed plan --json` or a run's report.json), a profile (a folder, "
            ".xplane.pb, .trace.json.gz), or a log."
        ),
    ] = None,
    counters: Annotated[str | None, "Measured counters (.toml, .json or a profile) on top of what a log says."] = None,
    limits: Annotated[str | None, "The limits file in use, over those of --config. None: the log's maxima."] = None,
    *,
    of: model.ModelOptions,
    narrow_packing: model.NarrowPacking = None,
    bad_ids: model.BadIds = "error",
    init_args: model.InitArgs = None,
    rows: model.Rows = 0,
    template: Annotated[bool, "Print a counters file to fill in, and stop."] = False,
    as_json: Json = False,
) -> None:
    """Find every bottleneck of the SparseCore guide: its numbers, its cause, and what to change to which value.

    Exit code 1 when a finding is severe.
    """
    if template:
        show([embed.COUNTERS_TEMPLATE])
        return
    if file is None and counters is None:
        raise UsageError("nothing to judge", how="name a log or a counters file; --template prints one to fill in")
    counted: embed.Counters | None = None
    if file is not None and (file.endswith(_COUNTED) or trace.is_profile(file)):
        log_options = vars(of) | {"narrow_packing": narrow_packing, "limits": limits}
        if of_log := [name for name, value in log_options.items() if value]:
            option = of_log[0].replace("_", "-")
            raise UsageError(f"--{option} beside a counters file", where=file, how="they belong to a log")
        counted = embed.read_counters(file)
        if init_args and counted.sparsecore is None:  # flags count where the file says nothing of knobs
            counted = replace(counted, sparsecore=counted.knobs.with_flags(init_args)[0])
    elif file is not None:
        setup = of.configured(narrow_packing=narrow_packing)
        setup = model.settled(setup, file, rows, limits, of.batch, free=of.config is None)
        knobs, _ = setup.sparsecore.with_flags(init_args or "")
        counted = _of_log(replace(setup, sparsecore=knobs), file, limits, bad_ids, rows)
    if counters is not None:
        measured = embed.read_counters(counters)
        counted = measured if counted is None else counted.merged(measured)
    assert counted is not None
    diagnosis = embed.diagnose(counted)
    deliver(Answer(diagnosis.to_json, lambda: [diagnosis.text()]), Output(as_json=as_json))
    if diagnosis.severe:
        worst = diagnosis.findings[0]
        raise CheckFailed(worst.bottleneck, where=file or counters or "", how=worst.advice[0])


def _of_log(setup: embed.EmbedConfig, file: str, limits: str | None, bad_ids: str, rows: int) -> embed.Counters:
    bounds: dict[str, embed.Limits] | None = None
    if limits is not None:
        bounds = embed.read_limits(limits, setup.topology)
    log, total = model.batches(setup, file, rows)
    with model.options_named(), progress("batches", total) as advance:
        counters = embed.log_counters(
            (part.features for part in log), setup, bounds, bad_ids=bad_ids, progress=lambda n: advance(n, total)
        )
    many = "1 batch" if counters.steps == 1 else f"{counters.steps} batches"
    remark(f"{file}: {many} on {counters.shards} SparseCores ({setup.target})")
    return counters


def explain_error(error: Error, stack: StackOptions, as_json: Json = False) -> None:
    """Read a TPU compiler's error about SparseCore memory: what was too large, and the changes that compile."""
    text = error_text(error)
    try:
        explained = embed.explain_error(text, **vars(stack))
    except UsageError as problem:
        raise no_such_file(error, problem) from None
    value = {"kind": "explained_errors", "errors": [explanation.to_json() for explanation in explained]}
    shown = "\n\n".join(map(explanation_text, explained))
    deliver(Answer(lambda: value, lambda: [shown]), Output(as_json=as_json))


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


def explanation_text(explanation: embed.ErrorExplanation) -> str:
    program = {"forward": "lookup", "backward": "update", "host": "preprocessing on the host"}.get(
        explanation.program, "program"
    )
    head = ", ".join(filter(None, (explanation.target, program)))
    lines = [f"{head} ({explanation.basis}): {explanation.meaning}"]
    lines += [f"  {name}: {value:,}" for name, value in explanation.figures.items()]
    lines += ["what to change:", *(f"  - {line}" for line in explanation.advice)]
    return "\n".join(lines)


def check(
    file: Annotated[str, typer.Argument(help="The batches: Parquet, CSV, TSV, .npz, or Criteo's format (- is stdin).")],
    limits: Annotated[
        str | None, typer.Argument(help="The limits file; without it those of --config are used.")
    ] = None,
    *,
    of: model.ModelOptions,
    stacking: model.TableStacking = None,
    narrow_packing: model.NarrowPacking = None,
    bad_ids: model.BadIds = "error",
    rows: model.Rows = 0,
    as_json: Json = False,
) -> None:
    """Hold the batches of a file against limits, without a chip: what is asked of each, where, and what it costs.

    Exit code 1 when a partition, table or sample exceeds its limit.
    """
    setup = model.with_stacking(of.configured(narrow_packing=narrow_packing), stacking)
    bounds = _limits(limits, setup, file)
    setup = model.settled(setup, file, rows, limits, of.batch, free=of.config is None)

    stacked = setup.stacking()
    _check_names(bounds, stacked, limits or "--config")
    log, total = model.batches(setup, file, rows)
    with model.options_named(), progress("batches", total) as advance:
        inputs = (part.features for part in log)
        knobs = setup.sparsecore if of.config is not None else None
        checked = embed.check_batches(
            inputs, stacked, bounds, knobs, bad_ids, lambda n: advance(n, total), setup.narrow
        )
    diagnosis = embed.diagnose(embed.check_counters(checked, stacked, setup.target))
    value = {**checked.to_json(), "findings": [finding.to_json() for finding in diagnosis.findings]}
    deliver(Answer(lambda: value, lambda: _lines(checked, diagnosis)), Output(as_json=as_json))
    if not checked.passed:
        worst = max(checked.limits, key=lambda limit: limit.observed / limit.limit)
        how = f"set {worst.knob} of {worst.what!r} to at least {worst.observed}{_cut(checked)}"
        raise CheckFailed(f"{checked.batches_over} of {checked.batches} batches overflow", where=file, how=how)


def _cut(checked: embed.Check) -> str:
    """What mini-batches would help: nothing above a bound of a table or sample, which they do not cut."""
    if whole := [limit.knob for limit in checked.limits if limit.over and not limit.of_partition]:
        return f"; {whole[0]} does not bound partitions, so mini-batches do not help"
    if checked.uncut:
        return f"; mini-batches do not hold {checked.uncut} of them: {checked.uncut_because}"
    return f", or let the host cut up to {checked.minibatches} mini-batches"


def _limits(file: str | None, setup: embed.EmbedConfig, batches: str) -> dict[str, embed.Limits]:
    if file is not None:
        if batches.endswith(".json") and not file.endswith(".json"):
            how = "first the batches, then the limits: tilewright embed check LOG limits.json"
            raise UsageError("the limits stand where the batches should", where=batches, how=how)

        return embed.read_limits(file, setup.topology)
    if setup.limits is None:
        raise UsageError("no limits", how="name a limits file, or write [limits.STACK] into --config")
    return dict(setup.limits)


def _check_names(limits: dict[str, embed.Limits], stacking: embed.Stacking, where: str) -> None:
    """UsageError for limits of stacks that the model has not, and for stacks without limits."""
    if other := [name for name in limits if name not in stacking.stacks]:
        how = f"the stacks are {', '.join(stacking.stacks)}: plan again for this model, batch and topology"
        raise UsageError(f"limits of {other[0]!r}, which is not a stack", where=where, how=how)
    if unbound := [name for name in stacking.stacks if name not in limits]:
        raise UsageError(f"no limits of stack {unbound[0]!r}", where=where, how="plan again for this model")


def _lines(checked: embed.Check, diagnosis: embed.Diagnosis) -> Iterator[Line]:
    columns: list[Heading] = [("of", "code"), ("limit", "code"), ("allowed", "count"), ("observed", "count")]
    rows = [(e.what, e.knob, e.limit, e.observed, e.place, "no" if e.over else "yes") for e in checked.limits]
    many = "1 batch" if checked.batches == 1 else f"{checked.batches:,} batches"
    yield Table((*columns, "where the most was seen", "holds"), rows, f"{many} against the limits")
    if diagnosis.findings:
        yield from ("", "findings", *diagnosis.lines(notes=True))
