"""`tilewright embed`: plan limits, buffers and memory of embedding tables; check batches; read compiler errors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.embed import check as _embed_check
from tilewright.cli.embed import diagnose as _embed_diagnose
from tilewright.cli.embed import explain as _embed_explain
from tilewright.cli.embed import model as _embed_model
from tilewright.cli.streams import emit_json, emit_text, progress, remark, write_file
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.embed import Diagnosis, Plan

_app = typer.Typer(name="embed", help="Sparse cores: plan embedding tables before renting chips.", no_args_is_help=True)


@_app.command("plan")
def _plan(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...",
            help="Logs: .parquet (or a folder), CSV or TSV with a header, .npz, Criteo's TSV (- is stdin). "
            "None: a generated one.",
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="The model: a TOML file of tables and features. None: Criteo's 26 tables.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The chip, over the file's (tpu-v5p).")] = None,
    chips: Annotated[int | None, typer.Option(help="How many chips, over the file's (1).")] = None,
    batch: Annotated[
        int | None, typer.Option(help="Samples of a batch on all chips together, over the file's (4096).")
    ] = None,
    vocab: Annotated[
        str | None, typer.Option(help="Rows per table: kaggle (the default), terabyte, a number, or 26 numbers.")
    ] = None,
    scale: Annotated[float | None, typer.Option(help="Factor on the vocabularies, above 0, at most 1 (1).")] = None,
    width: Annotated[int | None, typer.Option(help="Floats per row of every table (16).")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adagrad (adagrad).")] = None,
    quantile: Annotated[float, typer.Option(help="Share of the partitions that the limits must hold.")] = 1.0,
    headroom: Annotated[
        float, typer.Option(help="Raise the limits by this share, rounded up to 8: 0.1 for days busier than the log.")
    ] = 0.0,
    stacking: Annotated[
        bool | None, typer.Option("--stacking/--no-stacking", help="Stack tables, over the file's (stack).")
    ] = None,
    narrow_packing: Annotated[
        bool | None,
        typer.Option(
            "--narrow-packing/--no-narrow-packing", help="Rows of 1 to 4 floats share lines, over the file's."
        ),
    ] = None,
    bad_ids: Annotated[str, typer.Option(help="Ids outside a table: error, clip or drop.")] = "error",
    init_args: Annotated[
        str | None,
        typer.Option(envvar="LIBTPU_INIT_ARGS", help="Flags in use already: the guide's knobs among them count."),
    ] = None,
    rows: Annotated[int, typer.Option(help="Rows to read at most (0: all), or to generate.")] = 0,
    flags: Annotated[
        bool, typer.Option("--flags", help="Print LIBTPU_INIT_ARGS and the limits file to paste, and no plan.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    out: Annotated[
        str | None, typer.Option("-o", "--out", help="Write plan.html (the page) or limits.json (the limits file).")
    ] = None,
) -> None:
    """Learn limits from a log, and say what its tables need on a chip.

    Texts are hashed into the vocabularies. A last batch that is not full is left out; without --batch and --config a
    log of less than a batch is planned as one batch.
    """
    _check_out(out)
    tables = {"vocab": vocab, "scale": scale, "width": width, "optimizer": optimizer}
    where = {"target": target, "chips": chips, "batch": batch, "narrow_packing": narrow_packing}
    made = _embed_model.model(config, **where, **tables)  # type: ignore[arg-type]
    if batch is None and config is None:
        made = _embed_model.fitted(made, files, rows)
    knobs, others = made.sparsecore.with_flags(init_args or "")
    from tilewright.embed import diagnose, plan, plan_counters

    together = not knobs.disable_table_stacking if stacking is None else stacking
    by_hand = _embed_model.placed(made, together) if made.stacks else None
    log, total = _embed_model.batches(made, files, rows)
    with _embed_model.options_named(), progress("batches") as advance:
        planned = plan(
            (part.features for part in log),
            made.features,
            made.topology,
            quantile,
            headroom=headroom,
            target=made.target,
            stacking=by_hand,
            table_stacking=together,
            narrow_packing=made.narrow_packing,
            prefetched_batches=knobs.maximum_parallel_iterations,
            pipelining=not knobs.disable_full_embedding_pipelining,
            serialized_tables=knobs.num_serialized_tables_to_optimize_hbm,
            bad_ids=bad_ids,
            progress=lambda n: advance(n, total),
        )
    if flags:
        from tilewright.embed.model.knobs import paste_text
        from tilewright.embed.planning.types import limits_file

        emit_text(paste_text(knobs, others, limits_file(planned)))
        return
    found = diagnose(plan_counters(planned, knobs))
    _emit(planned, found, as_json, out, ", ".join(files or ()) or "a generated click log")


def _check_out(out: str | None) -> None:
    """Refuse an unknown kind of file before the work is done."""
    if out is not None and not out.endswith((".json", ".html")):
        raise UsageError("no writer for this name", where=out, how="end it in .json (limits) or .html (page)")


def _emit(made: Plan, found: Diagnosis, as_json: bool, out: str | None, source: str) -> None:
    if out is not None and out.endswith(".json"):
        made.write_limits(out)
    elif out is not None:
        write_file(out, _page(made, found, source))
    if as_json:
        emit_json(_json(made, found))
    elif out is None:
        _print(made, found)
    else:
        remark(made.verdict)
        remark(f"wrote {out}")


def _print(made: Plan, found: Diagnosis) -> None:
    from tilewright.embed import print_plan
    from tilewright.embed.diagnosis.faces import diagnosis_lines

    print_plan(made)
    sys.stdout.flush()
    emit_text("\n".join(["", "findings", *diagnosis_lines(found)]))


def _json(made: Plan, found: Diagnosis) -> dict[str, Any]:
    findings = [each.to_json() for each in found.findings]
    return {**made.to_json(), "findings": findings, "counters": found.counters.to_json()}


def _page(made: Plan, found: Diagnosis, source: str) -> str:
    from tilewright.embed import plan_html
    from tilewright.embed.diagnosis.faces import diagnosis_html
    from tilewright.render import Page

    topology = made.stacking.topology
    facts = [
        ("target", made.target),
        ("chips", str(topology.chips)),
        ("SparseCores", str(topology.sparsecores)),
        ("batches", str(made.batches)),
        ("samples a batch", f"{made.batch:,}"),
    ]
    page = Page("Embedding plan", f"learnt from {source}", facts=facts)
    page.section("plan", "Plan", plan_html(made))
    page.section("findings", "Findings", diagnosis_html(found))
    page.data("embedding-plan", _json(made, found))
    return page.html()


def add_to(app: typer.Typer) -> None:
    """Register the group."""
    _embed_check.add_to(_app)
    _embed_diagnose.add_to(_app)
    _embed_explain.add_to(_app)
    app.add_typer(_app)
