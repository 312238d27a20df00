"""`embed plan` for pods: tables without a log, or a log that is counted in constant memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.cli.embed import model
from tilewright.cli.streams import progress
from tilewright.errors import UsageError
from tilewright.render.delivery import json_text, remark, show, write_file
from tilewright.render.tables import Heading, Table

if TYPE_CHECKING:
    from tilewright.embed import EmbedConfig, PodPlan, SparseCoreConfig

_MANY = 1 << 26
"""Partitions of all tables from which a log is counted as a pod's."""


def is_pod(setup: EmbedConfig) -> bool:
    """Whether the plan that looks at every partition would take too long."""
    tables = {feature.table.name for feature in setup.features}
    return setup.topology.sparsecores**2 * len(tables) > _MANY


def like_tables(setup: EmbedConfig, tables: int, rows: int) -> EmbedConfig:
    """The model of so many tables alike, one feature each; width and optimizer are those of the options."""
    from tilewright.embed import Feature, Table

    for option, value in (("--tables", tables), ("--rows-per-table", rows)):
        if value < 1:
            raise UsageError(f"{option} {value}", how="give a whole number of at least 1")
    first = setup.features[0].table
    named = [Table(f"t{k}", rows, first.width, optimizer=first.optimizer) for k in range(tables)]
    return replace(setup, features=tuple(Feature(table.name, table) for table in named), columns={})


def plan_pod(
    setup: EmbedConfig,
    files: Sequence[str] | None,
    rows: int,
    knobs: SparseCoreConfig,
    *,
    engine: str,
    workers: int,
    ids_per_sample: int,
    hot: float | None,
    uniform: bool,
    **options: Any,
) -> PodPlan:
    """The plan of a log (without files: a generated one), or that of ``uniform`` ids."""
    from tilewright.embed import LogBatches, read_log
    from tilewright.embed import plan_pod as make_plan

    if setup.narrow_packing:
        raise UsageError("--narrow-packing on a pod", how="plan without it: narrow tables then have lines of their own")
    source: Any = None
    if not uniform and engine == "ray" and not files:
        raise UsageError("--engine ray without a log", how="name one, in a file that every worker can read")
    if files and engine == "ray":
        if rows:
            raise UsageError("--rows beside --engine ray", how="give the log that is meant")
        logs = [read_log(name, setup.in_log, setup.batch, setup.columns) for name in files]
        source = LogBatches(logs, setup.hashed)
    elif not uniform:
        source = (part.features for part in model.batches(setup, files, rows)[0])
    if hot is not None:
        options["apart"] = _hot(setup, files, hot)
    with model.options_named(), progress("batches") as advance:
        return make_plan(
            source,
            setup.features,
            setup.topology,
            setup.batch,
            target=setup.target,
            engine=engine,
            workers=workers,
            ids_per_sample=ids_per_sample,
            stacks=setup.stacks,
            rotation=setup.rotation,
            prefetched_batches=knobs.maximum_parallel_iterations,
            pipelining=not knobs.disable_full_embedding_pipelining,
            serialized_tables=knobs.num_serialized_tables_to_optimize_hbm,
            progress=lambda done, total: advance(done, total or None),
            **options,
        )


def _hot(setup: EmbedConfig, files: Sequence[str] | None, share: float) -> Mapping[str, Any]:
    """The hot rows of a log's first batches."""
    from tilewright.embed import hot_rows

    if not files or "-" in files:
        raise UsageError("--hot without a log in a file", how="name one: hot rows are those of a log")
    batches = (part.features for part in model.batches(setup, files, 0)[0])
    return hot_rows(batches, setup.features, share)


def show_pod(planned: PodPlan, as_json: bool, out: str | None) -> None:
    """The plan on stdout, or its limits in a file."""
    if out is not None:
        planned.write_limits(out)
    if as_json:
        write_file("-", json_text(planned.to_json()))
    elif out is None:
        _print(planned)
    else:
        remark(planned.verdict)
        if planned.confidence is not None:
            remark(planned.confidence.sentence)
        remark(f"wrote {out}")


def _print(planned: PodPlan) -> None:
    from tilewright.render import bytes_text, count_text, seconds_text

    value, topology, heap = planned.to_json(), planned.stacking.topology, planned.heap
    tables, batch = value["tables"], count_text(planned.samples)
    show(
        [
            f"{count_text(tables['count'])} tables, {count_text(tables['parameters'])} parameters, in "
            f"{count_text(len(planned.stacks))} stacks on {count_text(topology.sparsecores)} SparseCores "
            f"({count_text(topology.chips)} chips), batch {batch}\n{planned.verdict}"
        ]
    )
    if planned.confidence is not None:
        show([f"limits hold all {count_text(planned.confidence.batches)} batches; {planned.confidence.sentence}"])
    else:
        show(["limits are those of uniform ids: a log says more"])
    headings: list[Heading] = ["stack", ("stacks", "count"), ("tables", "count"), ("width", "count")]
    headings += [("max ids", "count"), ("distinct", "count"), ("mean ids", "number"), ("buffers", "bytes")]
    shown = sorted(value["stacks"], key=lambda s: -s["limits"]["max_ids_per_partition"])
    lines = [
        (
            *(s["name"] if len(s["name"]) < 30 else s["name"][:27] + "...", s["count"], s["tables"], s["padded_width"]),
            *(s["limits"].values()),
            *("" if s["mean_ids"] is None else s["mean_ids"], s["buffer_bytes_per_device"]),
        )
        for s in shown
    ]
    show([Table(headings, lines[:_SHOWN])])
    if len(lines) > _SHOWN:
        show([f"... and {len(lines) - _SHOWN} more kinds of stacks: --json has all"])
    for name, ids in planned.hot.items():
        few = ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
        show([f"held on every device: {count_text(len(ids))} rows of {name}: {few}"])
    parts = {name: getattr(heap, name) for name in ("tables", "slots", "inputs", "exchange", "pipelined")}
    parts["stack"] = max(heap.forward_stack, heap.backward_stack)
    show(["HBM of one chip: " + ", ".join(f"{name} {bytes_text(size)}" for name, size in parts.items())])
    step = planned.traffic
    show(
        [
            f"a step of one chip, modelled: {bytes_text(round(step.hbm_bytes))} of HBM traffic, "
            f"{bytes_text(round(step.link_bytes))} over its links, {bytes_text(step.host_bytes)} from the host; "
            f"{seconds_text(step.seconds)} at least"
        ]
    )
    if heap.stack_basis == "modelled":
        show([f"the stack is modelled: {heap.stack_note}"])


_SHOWN = 20
