"""`tilewright embed diagnose`: what holds a run back, from its counters, from a log and a model, or from both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.embed import model as _embed_model
from tilewright.cli.streams import emit_json, emit_text, progress, remark
from tilewright.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from tilewright.embed import Counters, EmbedConfig, Limits

_COUNTED = (".toml", ".json")


def _diagnose(
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
    narrow_packing: Annotated[
        bool | None,
        typer.Option(
            "--narrow-packing/--no-narrow-packing", help="Rows of 1 to 4 floats share lines, over the file's."
        ),
    ] = None,
    bad_ids: Annotated[str, typer.Option(help="Ids outside a table: error, clip or drop.")] = "error",
    init_args: Annotated[
        str | None, typer.Option(envvar="LIBTPU_INIT_ARGS", help="Flags in use: the guide's knobs among them count.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Rows of the log to read at most (0: all).")] = 0,
    template: Annotated[bool, typer.Option("--template", help="Print a counters file to fill in, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
) -> None:
    """Find every bottleneck of the SparseCore guide: its numbers, its cause, and what to change to which value.

    Exit code 1 when a finding is severe.
    """
    from tilewright.embed import diagnose, read_counters
    from tilewright.embed.diagnosis.faces import diagnosis_text
    from tilewright.embed.diagnosis.sources import TEMPLATE

    if template:
        emit_text(TEMPLATE)
        return
    if file is None and counters is None:
        raise UsageError("nothing to judge", how="name a log or a counters file; --template prints one to fill in")
    tables = {"vocab": vocab, "scale": scale, "width": width, "optimizer": optimizer}
    where = {"target": target, "chips": chips, "batch": batch, "narrow_packing": narrow_packing}
    found: Counters | None = None
    if file is not None and file.endswith(_COUNTED):
        given = [name for name, value in {**where, **tables, "config": config, "limits": limits}.items() if value]
        if given:
            raise UsageError(
                f"--{given[0].replace('_', '-')} beside a counters file", where=file, how="they belong to a log"
            )
        found = _with_flags(read_counters(file), init_args)
    elif file is not None:
        made = _embed_model.model(config, **where, **tables)  # type: ignore[arg-type]
        made = _embed_model.settled(made, file, rows, limits, batch, free=config is None)
        knobs, _ = made.sparsecore.with_flags(init_args or "")
        found = _of_log(replace(made, sparsecore=knobs), file, limits, bad_ids, rows)
    if counters is not None:
        measured = read_counters(counters)
        found = measured if found is None else found.merged(measured)
    assert found is not None
    diagnosis = diagnose(found)
    if as_json:
        emit_json(diagnosis.to_json())
    else:
        emit_text(diagnosis_text(diagnosis))
    if diagnosis.severe:
        worst = diagnosis.findings[0]
        raise CheckFailed(worst.bottleneck, where=file or counters or "", how=worst.advice[0])


def _with_flags(found: Counters, init_args: str | None) -> Counters:
    """Flags of the environment count where the file says nothing of knobs."""
    if not init_args or found.sparsecore is not None:
        return found
    return replace(found, sparsecore=found.knobs.with_flags(init_args)[0])


def _of_log(made: EmbedConfig, file: str, limits: str | None, bad_ids: str, rows: int) -> Counters:
    from tilewright.embed.diagnosis.sources import log_counters

    bounds: dict[str, Limits] | None = None
    if limits is not None:
        from tilewright.embed import read_limits

        bounds = read_limits(limits, made.topology)
    log, total = _embed_model.batches(made, file, rows)
    with _embed_model.options_named(), progress("batches") as advance:
        found = log_counters(
            (part.features for part in log), made, bounds, bad_ids=bad_ids, progress=lambda n: advance(n, total)
        )
    many = "1 batch" if found.steps == 1 else f"{found.steps} batches"
    remark(f"{file}: {many} on {found.shards} SparseCores ({made.target})")
    return found


def add_to(group: typer.Typer) -> None:
    """Register the command in its group."""
    group.command("diagnose")(_diagnose)
