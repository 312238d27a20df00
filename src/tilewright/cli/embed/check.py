"""`tilewright embed check`: a file of batches against limits; exit code 1 when one overflows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.embed import model
from tilewright.cli.streams import Heading, Json, emit_json, emit_text, progress, show_table
from tilewright.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from tilewright.embed import Check, Diagnosis, EmbedConfig, Limits, Stacking


def check(
    file: Annotated[str, typer.Argument(help="The batches: Parquet, CSV, TSV, .npz, or Criteo's format (- is stdin).")],
    limits: Annotated[
        str | None, typer.Argument(help="The limits file; without it those of --config are used.")
    ] = None,
    config: model.Config = None,
    target: model.Target = None,
    chips: model.Chips = None,
    batch: model.Batch = None,
    vocab: model.Vocab = None,
    scale: model.Scale = None,
    width: model.Width = None,
    optimizer: model.Optimizer = None,
    stacking: model.TableStacking = None,
    narrow_packing: model.NarrowPacking = None,
    bad_ids: model.BadIds = "error",
    rows: model.Rows = 0,
    as_json: Json = False,
) -> None:
    """Hold the batches of a file against limits, without a chip: what is asked of each, where, and what it costs.

    Exit code 1 when a partition, table or sample exceeds its limit.
    """
    options = {"target": target, "chips": chips, "batch": batch, "narrow_packing": narrow_packing}
    tables = {"vocab": vocab, "scale": scale, "width": width, "optimizer": optimizer}
    setup = model.configured(config, options | tables)
    bounds = _limits(limits, setup, file)
    setup = model.settled(setup, file, rows, limits, batch, free=config is None)
    from tilewright.embed import check_batches, check_counters, diagnose

    stacked = model.placed(setup, not setup.sparsecore.disable_table_stacking if stacking is None else stacking)
    _check_names(bounds, stacked, limits or "--config")
    log, total = model.batches(setup, file, rows)
    with model.options_named(), progress("batches") as advance:
        inputs = (part.features for part in log)
        knobs = setup.sparsecore if config is not None else None
        checked = check_batches(inputs, stacked, bounds, knobs, bad_ids, lambda n: advance(n, total), setup.narrow)
    diagnosis = diagnose(check_counters(checked, stacked, setup.target))
    if as_json:
        emit_json({**checked.to_json(), "findings": [finding.to_json() for finding in diagnosis.findings]})
    else:
        _print(checked, diagnosis)
    if not checked.passed:
        worst = max(checked.limits, key=lambda limit: limit.observed / limit.limit)
        how = (
            f"set {worst.knob} of {worst.what!r} to at least {worst.observed}, or let the host cut up to "
            f"{checked.minibatches} mini-batches"
        )
        raise CheckFailed(f"{checked.batches_over} of {checked.batches} batches overflow", where=file, how=how)


def _limits(file: str | None, setup: EmbedConfig, batches: str) -> dict[str, Limits]:
    if file is not None:
        if batches.endswith(".json") and not file.endswith(".json"):
            how = "first the batches, then the limits: tilewright embed check LOG limits.json"
            raise UsageError("the limits stand where the batches should", where=batches, how=how)
        from tilewright.embed import read_limits

        return read_limits(file, setup.topology)
    if setup.limits is None:
        raise UsageError("no limits", how="name a limits file, or write [limits.STACK] into --config")
    return dict(setup.limits)


def _check_names(limits: dict[str, Limits], stacking: Stacking, where: str) -> None:
    """Limits of other stacks would pass unseen."""
    if other := [name for name in limits if name not in stacking.stacks]:
        how = f"the stacks are {', '.join(stacking.stacks)}: plan again for this model, batch and topology"
        raise UsageError(f"limits of {other[0]!r}, which is not a stack", where=where, how=how)
    if unbound := [name for name in stacking.stacks if name not in limits]:
        raise UsageError(f"no limits of stack {unbound[0]!r}", where=where, how="plan again for this model")


def _print(checked: Check, diagnosis: Diagnosis) -> None:
    from tilewright.embed import diagnosis_lines

    columns: list[Heading] = [("of", "code"), ("limit", "code"), ("allowed", "count"), ("observed", "count")]
    rows = [(e.what, e.knob, e.limit, e.observed, e.place, "no" if e.over else "yes") for e in checked.limits]
    many = "1 batch" if checked.batches == 1 else f"{checked.batches:,} batches"
    show_table((*columns, "where the most was seen", "holds"), rows, f"{many} against the limits")
    if diagnosis.findings:
        emit_text("\n".join(["", "findings", *diagnosis_lines(diagnosis, notes=True)]))
