"""`tilewright embed plan`: limits, buffers and memory of embedding tables, learnt from a log."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.embed import model, pods
from tilewright.cli.streams import Json, progress
from tilewright.errors import UsageError
from tilewright.files import write_whole
from tilewright.render.delivery import Output, json_text, remark, show, write_file

if TYPE_CHECKING:
    from tilewright.embed import Diagnosis, LogBatch, Plan
    from tilewright.render import Step


def plan(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...",
            help="Logs: .parquet (or a folder), CSV or TSV with a header, .npz, Criteo's TSV (- is stdin). "
            "None: a generated one.",
        ),
    ] = None,
    config: model.Config = None,
    target: model.Target = None,
    chips: model.Chips = None,
    batch: Annotated[
        int | None, typer.Option(help="Samples of a batch on all chips together, over the file's (4096).")
    ] = None,
    vocab: model.Vocab = None,
    scale: model.Scale = None,
    width: model.Width = None,
    optimizer: model.Optimizer = None,
    quantile: Annotated[float, typer.Option(help="Share of the partitions that the limits must hold.")] = 1.0,
    headroom: Annotated[
        float, typer.Option(help="Raise the limits by this share, rounded up to 8: 0.1 for days busier than the log.")
    ] = 0.0,
    stacking: model.TableStacking = None,
    narrow_packing: model.NarrowPacking = None,
    bad_ids: model.BadIds = "error",
    init_args: model.InitArgs = None,
    rows: Annotated[int, typer.Option(help="Rows to read at most (0: all), or to generate.")] = 0,
    time: Annotated[
        str | None,
        typer.Option(
            help="The column of the rows' times, over the file's: later days judge limits of the days before."
        ),
    ] = None,
    tables: Annotated[
        int | None, typer.Option(help="Plan so many tables alike without a log, by memory and uniform ids.")
    ] = None,
    rows_per_table: Annotated[int, typer.Option(help="Rows of each of --tables.")] = 1_000_000,
    ids_per_sample: Annotated[int, typer.Option(help="Ids of a sample in each of --tables.")] = 1,
    hot: Annotated[
        float | None,
        typer.Option(
            help="Hold ids above this share of their table's entries on every device, as 0.01: planned apart."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="Count in constant memory: local, or ray (Ray Data). Chosen for large pods by itself."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes of --engine ray (0: one a processor).")] = 0,
    flags: Annotated[
        bool, typer.Option("--flags", help="Print LIBTPU_INIT_ARGS and the limits file to paste, and no plan.")
    ] = False,
    as_json: Json = False,
    out: Annotated[
        str | None, typer.Option("-o", "--out", help="Write plan.html (the page) or limits.json (the limits file).")
    ] = None,
) -> None:
    """Learn limits from a log, and say what its tables need on a chip.

    Texts are hashed into the vocabularies. A last batch that is not full is left out; without --batch and --config a
    log of less than a batch is planned as one batch.
    """
    suffix = Output(out, False, ".json", ".html", stdout=False).suffix
    if tables is not None and (files or config or vocab or scale):
        raise UsageError("--tables beside a log or a model", how="it plans tables alike, without a log")
    options = {"target": target, "chips": chips, "batch": batch, "narrow_packing": narrow_packing, "time": time}
    of_tables = {"vocab": vocab, "scale": scale, "width": width, "optimizer": optimizer}
    setup = model.configured(config, options | of_tables)
    if tables is not None:
        setup = pods.like_tables(setup, tables, rows_per_table)
    if batch is None and config is None and tables is None:
        setup = model.fitted(setup, files, rows)
    knobs, others = setup.sparsecore.with_flags(init_args or "")
    from tilewright.embed import diagnose, plan_counters
    from tilewright.embed import plan as make_plan

    together = not knobs.disable_table_stacking if stacking is None else stacking
    model.say_collisions(setup, files)
    if tables is not None or engine is not None or hot is not None or pods.is_pod(setup):
        unkept = {
            "--quantile": quantile != 1.0,
            "--flags": flags,
            "-o .html": suffix == ".html",
            "--time": time is not None,
        }
        if named := [option for option, is_given in unkept.items() if is_given]:
            raise UsageError(f"{named[0]} on a pod, whose partitions are not kept", how="leave it out")
        planned_pod = pods.plan_pod(
            *(setup, files, rows, knobs),
            engine=engine or "local",
            workers=workers,
            ids_per_sample=ids_per_sample,
            hot=hot,
            uniform=tables is not None,
            headroom=headroom,
            table_stacking=together,
            bad_ids=bad_ids,
        )
        pods.show_pod(planned_pod, as_json, out)
        return
    by_hand = setup.stacking(together) if setup.stacks or setup.rotation else None
    log, total = model.batches(setup, files, rows)
    days: list[str] = []
    with model.options_named(), progress("batches", total) as advance:
        planned = make_plan(
            _noting_days(log, days),
            setup.features,
            setup.topology,
            quantile,
            headroom=headroom,
            target=setup.target,
            stacking=by_hand,
            table_stacking=together,
            narrow_packing=setup.narrow_packing,
            prefetched_batches=knobs.maximum_parallel_iterations,
            pipelining=not knobs.disable_full_embedding_pipelining,
            serialized_tables=knobs.num_serialized_tables_to_optimize_hbm,
            bad_ids=bad_ids,
            progress=lambda n: advance(n, total),
            days=days,
        )
    if flags:
        from tilewright.embed import paste_text

        show([paste_text(knobs, others, planned.limits_json())])
        return
    diagnosis = diagnose(plan_counters(planned, knobs))
    if out is not None and suffix == ".json":
        planned.write_limits(out)
    elif out is not None:
        write_whole(out, _page(planned, diagnosis, ", ".join(files or ()) or "a generated click log"))
    if as_json:
        write_file("-", json_text(_json(planned, diagnosis)))
    elif out is None:
        _print(planned, diagnosis)
    else:
        remark(planned.verdict)
        remark(f"wrote {out}")


def _noting_days(log: Iterator[LogBatch], days: list[str]) -> Iterator[dict[str, Any]]:
    """The features of every batch, whose day is noted as it passes."""
    for part in log:
        days.append(part.day)
        yield part.features


def _print(plan: Plan, diagnosis: Diagnosis) -> None:
    from tilewright.embed import diagnosis_lines, print_plan

    print_plan(plan)
    show(["\n".join(["", "findings", *diagnosis_lines(diagnosis)])])


def _json(plan: Plan, diagnosis: Diagnosis) -> dict[str, Any]:
    findings = [finding.to_json() for finding in diagnosis.findings]
    return {**plan.to_json(), "findings": findings, "counters": diagnosis.counters.to_json()}


def _page(plan: Plan, diagnosis: Diagnosis, source: str) -> str:
    from tilewright.embed import diagnosis_html, plan_head_html, plan_html
    from tilewright.render import Page, steps

    topology = plan.stacking.topology
    facts = [
        ("target", plan.target),
        ("chips", str(topology.chips)),
        ("SparseCores", str(topology.sparsecores)),
        ("batches", str(plan.batches)),
        ("samples a batch", f"{plan.batch:,}"),
    ]
    page = Page("Embedding plan", f"learnt from {source}", facts=facts)
    page.section("findings", "What to do", plan_head_html(plan), diagnosis_html(diagnosis), steps(_next_steps(plan)))
    page.section("plan", "The plan behind it", plan_html(plan, head=False))
    page.data("embedding-plan", _json(plan, diagnosis))
    return page.html()


def _next_steps(plan: Plan) -> list[Step]:
    """What this plan is for, as commands."""
    from tilewright.render import Step

    target = f" --target {plan.target}" if plan.target else ""
    of = f"{target} --chips {plan.stacking.topology.chips}"
    check = f"tilewright embed check LOG limits.json{of} --batch {plan.batch}"
    return [
        Step("Write the limits file that the program reads.", this_command("-o limits.json")),
        Step("Hold another day's log against the limits, and see what it costs.", check),
        Step(
            "Compare with another plan: fewer chips, another width, another log.",
            f"{this_command('--json')} > before.json\ntilewright diff before.json after.json -o diff.html",
        ),
    ]


def this_command(more: str) -> str:
    """The command that is running, without what it writes, and with ``more``."""
    words, kept = iter(sys.argv[1:]), []
    for word in words:
        if word in ("-o", "--out"):
            next(words, None)
        elif word != "--json" and not word.startswith("--out="):
            kept.append(word)
    if kept[:2] != ["embed", "plan"]:  # called from Python
        kept = ["embed", "plan"]
    return f"tilewright {shlex.join(kept)} {more}"
