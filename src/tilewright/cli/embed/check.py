"""`tilewright embed check`: a file of batches against limits; exit code 1 when one overflows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.embed import model as _embed_model
from tilewright.cli.streams import emit_json, emit_text, progress
from tilewright.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from tilewright.embed import Check, Diagnosis, EmbedConfig, Limits, Stacking


def _check(
    file: Annotated[str, typer.Argument(help="The batches: Parquet, CSV, TSV, .npz, or Criteo's format (- is stdin).")],
    limits: Annotated[
        str | None, typer.Argument(help="The limits file; without it those of --config are used.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="The model: a TOML file. None: Criteo's 26 tables.")] = None,
    target: Annotated[str | None, typer.Option(help="The chip, over the file's (tpu-v5p).")] = None,
    chips: Annotated[int | None, typer.Option(help="How many chips, over the file's (1).")] = None,
    batch: Annotated[
        int | None, typer.Option(help="Samples of a batch (the limits file's, else the model's, else 4096).")
    ] = None,
    vocab: Annotated[str | None, typer.Option(help="Rows per table, as for plan (kaggle).")] = None,
    scale: Annotated[float | None, typer.Option(help="Factor on the vocabularies (1).")] = None,
    width: Annotated[int | None, typer.Option(help="Floats per row of every table (16).")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adagrad (adagrad).")] = None,
    stacking: Annotated[bool | None, typer.Option("--stacking/--no-stacking", help="Stack tables.")] = None,
    narrow_packing: Annotated[
        bool | None,
        typer.Option(
            "--narrow-packing/--no-narrow-packing", help="Rows of 1 to 4 floats share lines, over the file's."
        ),
    ] = None,
    bad_ids: Annotated[str, typer.Option(help="Ids outside a table: error, clip or drop.")] = "error",
    rows: Annotated[int, typer.Option(help="Rows to read at most (0: all).")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the check as JSON.")] = False,
) -> None:
    """Hold the batches of a file against limits, without a chip: what is asked of each, where, and what it costs.

    Exit code 1 when a partition, table or sample exceeds its limit.
    """
    tables = {"vocab": vocab, "scale": scale, "width": width, "optimizer": optimizer}
    where = {"target": target, "chips": chips, "batch": batch, "narrow_packing": narrow_packing}
    made = _embed_model.model(config, **where, **tables)  # type: ignore[arg-type]
    bounds = _limits(limits, made, file)
    made = _embed_model.settled(made, file, rows, limits, batch, free=config is None)
    from tilewright.embed import check_batches

    together = not made.sparsecore.disable_table_stacking if stacking is None else stacking
    placed = _embed_model.placed(made, together)
    _check_names(bounds, placed, limits or "--config")
    log, total = _embed_model.batches(made, file, rows)
    with _embed_model.options_named(), progress("batches") as advance:
        inputs = (part.features for part in log)
        knobs = made.sparsecore if config is not None else None
        found = check_batches(inputs, placed, bounds, knobs, bad_ids, lambda n: advance(n, total), made.narrow)
    from tilewright.embed import diagnose
    from tilewright.embed.diagnosis.sources import check_counters

    _emit(found, diagnose(check_counters(found, placed, made.target)), as_json, file)


def _limits(file: str | None, made: EmbedConfig, batches: str) -> dict[str, Limits]:
    if file is not None:
        if batches.endswith(".json") and not file.endswith(".json"):
            how = "first the batches, then the limits: tilewright embed check LOG limits.json"
            raise UsageError("the limits stand where the batches should", where=batches, how=how)
        from tilewright.embed import read_limits

        return read_limits(file, made.topology)
    if made.limits is None:
        raise UsageError("no limits", how="name a limits file, or write [limits.STACK] into --config")
    return dict(made.limits)


def _check_names(limits: dict[str, Limits], stacking: Stacking, where: str) -> None:
    """Limits of other stacks would pass unseen."""
    if other := [name for name in limits if name not in stacking.stacks]:
        how = f"the stacks are {', '.join(stacking.stacks)}: plan again for this model, batch and topology"
        raise UsageError(f"limits of {other[0]!r}, which is no stack", where=where, how=how)
    if unbound := [name for name in stacking.stacks if name not in limits]:
        raise UsageError(f"no limits of stack {unbound[0]!r}", where=where, how="plan again for this model")


def _emit(found: Check, judged: Diagnosis, as_json: bool, file: str) -> None:
    if as_json:
        emit_json({**found.to_json(), "findings": [each.to_json() for each in judged.findings]})
    else:
        _print(found)
        _print_findings(judged)
    if not found.passed:
        worst = max(found.limits, key=lambda each: each.observed / each.limit)
        what = f"{found.batches_over} of {found.batches} batches overflow"
        how = (
            f"set {worst.knob} of {worst.what!r} to at least {worst.observed}, or let the host cut up to "
            f"{found.minibatches} mini-batches"
        )
        raise CheckFailed(what, where=file, how=how)


def _print(found: Check) -> None:
    from rich.console import Console

    from tilewright.render import Column, print_table

    console = Console()
    columns = (
        Column("of", "code"),
        Column("limit", "code"),
        *(Column(name, "count") for name in ("allowed", "observed")),
        Column("where the most was seen"),
        Column("holds"),
    )
    rows = [(e.what, e.knob, e.limit, e.observed, e.place, "no" if e.over else "yes") for e in found.limits]
    many = "1 batch" if found.batches == 1 else f"{found.batches:,} batches"
    print_table(columns, rows, title=f"{many} against the limits", console=console)


def _print_findings(judged: Diagnosis) -> None:
    from tilewright.embed.diagnosis.faces import diagnosis_lines

    if judged.findings:
        sys.stdout.flush()
        emit_text("\n".join(["", "findings", *diagnosis_lines(judged, notes=True)]))


def add_to(group: typer.Typer) -> None:
    """Register the command in its group."""
    group.command("check")(_check)
