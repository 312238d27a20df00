"""`tilewright embed plan`: limits, buffers and memory of embedding tables, learnt from a log.

For pods: tables without a log, or a log that is counted in constant memory.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from tilewright import embed
from tilewright.cli.embed import model
from tilewright.cli.options import Files, this_command
from tilewright.cli.programs.report import PLAN
from tilewright.cli.streams import progress
from tilewright.errors import UsageError
from tilewright.render import Page, Step, Table, steps, table
from tilewright.render.compare import changes
from tilewright.render.delivery import Answer, Form, Line, Output, deliver, remark, show

_MANY = 1 << 26
"""Partitions of all tables from which a log is counted as a pod's."""


def plan(
    files: Annotated[list[str] | None, Argument(help="Logs: .parquet, CSV, TSV, .npz, Criteo's; - is stdin.")] = None,
    *,
    of: model.ModelOptions,
    quantile: Annotated[float, "Share of the partitions that the limits must hold."] = 1.0,
    headroom: Annotated[float, "Raise the limits by this share, rounded up to 8: 0.1 for busier days."] = 0.0,
    stacking: model.TableStacking = None,
    narrow_packing: model.NarrowPacking = None,
    bad_ids: model.BadIds = "error",
    init_args: model.InitArgs = None,
    rows: Annotated[int, "Rows to read at most (0: all), or to generate."] = 0,
    time: Annotated[str | None, "The column of times, over the file's: days judge the limits of those before."] = None,
    tables: Annotated[int | None, "Plan so many tables alike without a log, by memory and uniform ids."] = None,
    rows_per_table: Annotated[int, "Rows of each of --tables."] = 1_000_000,
    ids_per_sample: Annotated[int, "Ids of a sample in each of --tables."] = 1,
    hot: Annotated[float | None, "Hold ids above this share of a table's entries, as 0.01, on every device."] = None,
    engine: Annotated[str | None, "Count in constant memory, as large pods do: local, or ray (Ray Data)."] = None,
    workers: Annotated[int, "Processes of --engine ray (0: one a processor)."] = 0,
    apply: Annotated[
        str | None, "Findings to apply to --config, as 1,2 or all: planned again, before and after."
    ] = None,
    flags: Annotated[bool, "Print LIBTPU_INIT_ARGS and the limits file to paste, and no plan."] = False,
    to: Annotated[Output, Files(".json the limits file", ".html", ".toml the model, with --apply", stdout=False)],
) -> None:
    """Learn limits from a log, and say what its tables need on a chip.

    Without a log one is generated for Criteo's tables. Texts are hashed into the vocabularies. A last batch that is not
    full is left out; without --batch and --config a log of less than a batch is planned as one batch.
    """
    if apply is None:
        to.must_end_in(".json", ".html")
    if tables is not None and (files or of.config or of.vocab or of.scale):
        raise UsageError("--tables beside a log or a model", how="it plans tables alike, without a log")
    setup = of.configured(narrow_packing=narrow_packing, time=time)
    if tables is not None:
        setup = _like_tables(setup, tables, rows_per_table)
    if of.batch is None and of.config is None and tables is None:
        setup = model.fitted(setup, files, rows)
    knobs, others = setup.sparsecore.with_flags(init_args or "")
    setup = model.with_stacking(replace(setup, sparsecore=knobs), stacking)
    model.say_collisions(setup, files)
    partitions = setup.topology.sparsecores**2 * len({feature.table.name for feature in setup.features})
    shared: dict[str, Any] = {"headroom": headroom, "bad_ids": bad_ids}
    if hot is not None:
        setup = replace(setup, hot_rows=_hot(setup, files, hot)).checked("--hot")
    if tables is not None or engine is not None or partitions > _MANY:
        unkept = {"--quantile": quantile != 1.0, "--flags": flags, "-o .html": to.suffix == ".html"}
        unkept |= {"--time": time is not None, "--apply": apply is not None}
        if named := [option for option, is_given in unkept.items() if is_given]:
            raise UsageError(f"{named[0]} on a pod, whose partitions are not kept", how="leave it out")
        shared |= {"engine": engine or "local", "workers": workers, "ids_per_sample": ids_per_sample}
        planned = _plan_pod(setup, files, rows, tables is not None, shared)
    else:
        shared["quantile"] = quantile
        planned = _plan_log(setup, files, rows, shared)
    written, compared = "", None
    if apply is not None:
        changed, written, applied = _applied(setup, planned, apply, of.config)
        nothing = "nothing to apply: no finding of this plan changes the model's file, which stays as it is"
        remark("\n".join(applied) or nothing)
        if applied:
            before, setup = planned, model.with_stacking(changed, stacking)
            planned = _plan_log(setup, files, rows, shared)
            found = [each.line() for each in changes(PLAN, before.to_json(), planned.to_json())]
            compared = Table(("what", "before", "after", "change", ""), found, "before and after")
    if flags:
        show([setup.sparsecore.paste_text(others, planned.limits_json())])
        return

    diagnosis = embed.diagnose(planned.counters(setup.sparsecore))
    log = ", ".join(files or ()) or "a generated click log"

    def value() -> dict[str, Any]:
        findings = [finding.to_json() for finding in diagnosis.findings]
        return planned.to_json() | {"findings": findings, "counters": diagnosis.counters.to_json()}

    def lines() -> Iterator[Line]:
        yield from planned.lines()
        yield from ("", "findings", *diagnosis.lines(numbered=of.config is not None and apply is None))

    forms: dict[str, Form] = {
        ".json": planned.limits_json,
        ".toml": lambda: written,
        ".html": lambda: _page(planned, diagnosis, value(), log, of.config, compared),
    }
    if compared is not None and not to.as_json:
        show([compared])
    said = [planned.verdict]
    if planned.feeding is None and planned.confidence is not None:
        said.append(planned.confidence.sentence)
    deliver(Answer(value, lines), to, forms, said=said)


def _applied(
    setup: embed.EmbedConfig, plan: embed.Plan, which: str, config: str | None
) -> tuple[embed.EmbedConfig, str, list[str]]:
    """The model with findings' changes, its file's text, and lines that say which were made."""
    if config is None:
        raise UsageError("--apply without --config", how="name the model's file, which it changes")
    findings = dict(enumerate(embed.diagnose(plan.counters(setup.sparsecore)).findings, 1))
    named = [k for k, finding in findings.items() if finding.change] if which == "all" else which.split(",")
    text, lines = Path(config).read_text(encoding="utf-8"), list[str]()
    for word in named:
        number = int(word) if str(word).strip().isdecimal() else 0
        if number not in findings or not findings[number].change:
            can = ", ".join(str(k) for k, finding in findings.items() if finding.change)
            how = f"give all, or some of {can}" if can else "no finding of this plan is a change of the file"
            raise UsageError(f"no finding {word} that can be written", where="--apply", how=how)
        change = findings[number].change
        setup, text = setup.changed(change), setup.changed_text(text, change)
        lines.append(f"applied: {findings[number].bottleneck}: {findings[number].written}")
    return setup, text, lines


def _like_tables(setup: embed.EmbedConfig, tables: int, rows: int) -> embed.EmbedConfig:
    """The model of so many tables alike, one feature each; width and optimizer are those of the options."""
    if tables < 1:
        raise UsageError(f"--tables {tables}", how="give a whole number of at least 1")
    first = setup.features[0].table
    named = [embed.Table(f"t{k}", rows, first.width, optimizer=first.optimizer) for k in range(tables)]
    return replace(setup, features=tuple(embed.Feature(table.name, table) for table in named), columns={})


def _plan_log(
    setup: embed.EmbedConfig, files: Sequence[str] | None, rows: int, options: Mapping[str, Any]
) -> embed.Plan:
    log, total = model.batches(setup, files, rows)
    days: list[str] = []

    def features() -> Iterator[dict[str, Any]]:
        for part in log:
            days.append(part.day)
            yield part.features

    with model.options_named(), progress("batches", total) as advance:
        return embed.plan(
            features(),
            setup.features,
            setup.topology,
            stacking=setup.stacking(),
            narrow_packing=setup.narrow_packing,
            **setup.plan_options,
            progress=lambda n: advance(n, total, "batches that are run again" if n == total else ""),
            days=days,
            **options,
        )


def _plan_pod(
    setup: embed.EmbedConfig, files: Sequence[str] | None, rows: int, uniform: bool, options: Mapping[str, Any]
) -> embed.Plan:
    """The plan of a log (without files: a generated one), or that of ``uniform`` ids."""
    ray = options["engine"] == "ray"
    if setup.narrow_packing:
        raise UsageError("--narrow-packing on a pod", how="plan without it: narrow tables then have lines of their own")
    source: Any = None
    if not uniform and ray and not files:
        raise UsageError("--engine ray without a log", how="name one, in a file that every worker can read")
    if files and ray:
        if rows:
            raise UsageError("--rows beside --engine ray", how="give the log that is meant")
        logs = [embed.read_log(name, setup.in_log, setup.batch, setup.columns) for name in files]
        source = embed.LogBatches(logs, setup.hashed)
    elif not uniform:
        source = (part.features for part in model.batches(setup, files, rows)[0])
    with model.options_named(), progress("batches") as advance:
        return embed.plan_pod(
            source,
            setup.features,
            setup.topology,
            setup.batch,
            table_stacking=not setup.sparsecore.disable_table_stacking,
            stacks=setup.stacks,
            rotation=setup.rotation,
            activation_bytes=setup.activation_bytes,
            **setup.plan_options,
            progress=lambda done, total: advance(done, total or None),
            **options,
        )


def _hot(setup: embed.EmbedConfig, files: Sequence[str] | None, share: float) -> Mapping[str, Any]:
    if not files or "-" in files:
        raise UsageError("--hot without a log in a file", how="name one: hot rows are those of a log")
    batches = (part.features for part in model.batches(replace(setup, hot_rows={}), files, 0)[0])
    with model.options_named():
        return embed.hot_rows(batches, setup.features, share)


def _page(
    plan: embed.Plan,
    diagnosis: embed.Diagnosis,
    value: dict[str, Any],
    source: str,
    config: str | None,
    compared: Table | None,
) -> str:
    topology, chips = plan.stacking.topology, plan.stacking.topology.chips
    facts = [("target", plan.target), ("chips", str(chips)), ("SparseCores", str(topology.sparsecores))]
    facts += [("batches", str(plan.batches)), ("samples a batch", f"{plan.batch:,}")]
    page = Page("Embedding plan", f"learnt from {source}", facts=facts)
    if compared is not None:
        page.section("applied", "What the changes brought", table(compared.columns, compared.rows))
    target = f" --target {plan.target}" if plan.target else ""
    of = f" --config {shlex.quote(config)}" if config else f"{target} --chips {chips} --batch {plan.batch}"
    twice = this_command("--chips", str(2 * chips), "--json", without=["--chips"])
    both = f"{this_command('--json')} > before.json\n{twice} > after.json\n"
    both += "tilewright diff before.json after.json -o diff.html"
    todo = [
        Step("Write the limits file that the program reads.", this_command("-o", "limits.json")),
        Step(
            "Hold another day's log against the limits: what it costs.", f"tilewright embed check LOG limits.json{of}"
        ),
        Step("Compare with another plan: here twice the chips; another width, another log.", both),
    ]
    page.section("findings", "What to do", plan.html("head"), diagnosis.html(), steps(todo))
    page.section("plan", "The plan behind it", plan.html("body"))
    page.data("embedding-plan", value)
    return page.html()
