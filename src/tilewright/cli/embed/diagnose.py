"""`tilewright embed check`, `diagnose`, `explain-error` and `stats`: what exceeds limits, bottlenecks, compiler errors.

`stats` reads, writes and compares statistics, limits and plans in the forms of other tools.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from typer import Argument

from tilewright import embed, trace
from tilewright.cli.embed import model
from tilewright.cli.options import Files, Json
from tilewright.cli.streams import progress, read_text
from tilewright.errors import CheckFailed, UsageError
from tilewright.reading import read_file
from tilewright.render.delivery import Answer, Form, Line, Output, deliver, json_text, remark, show
from tilewright.render.formats import bytes_text, counted
from tilewright.render.tables import Heading, Table

T = TypeVar("T")
Error = Annotated[str, Argument(help="The error's text, a file that holds it (a whole log may), or - (stdin).")]


@dataclass(frozen=True)
class StackOptions:
    """The options that say what an error about SparseCore memory leaves out."""

    width: Annotated[int | None, "Floats per row of the stack the error is about."] = None
    max_ids: Annotated[int | None, "Its max_ids_per_partition."] = None
    sparsecores: Annotated[int, "SparseCores in all: below 16 there is a second lookup program."] = 16


def diagnose(
    file: Annotated[str | None, Argument(help="Counters (.toml; .json of a plan or run), a profile, or a log.")] = None,
    counters: Annotated[str | None, "Measured counters (.toml, .json or a profile) on top of what a log says."] = None,
    limits: Annotated[str | None, "The limits file in use, over those of --config. None: the log's maxima."] = None,
    *,
    of: model.ModelOptions,
    narrow_packing: model.NarrowPacking = None,
    bad_ids: model.BadIds = "error",
    init_args: model.InitArgs = None,
    rows: model.Rows = 0,
    template: Annotated[bool, "Print a counters file to fill in, and stop."] = False,
    to: Json,
) -> None:
    """Find every bottleneck of the SparseCore guide: its numbers, its cause, and what to change to which value.

    Exit code 1 when a finding is severe.
    """
    if template:
        show([embed.COUNTERS_TEMPLATE])
        return
    if file is None and counters is None:
        raise UsageError("nothing to judge", how="name a log or a counters file; --template prints one to fill in")
    known: embed.Counters | None = None
    if file is not None and (file.endswith((".toml", ".json")) or trace.is_profile(file)):
        log_options = vars(of) | {"narrow_packing": narrow_packing, "limits": limits}
        if of_log := [name for name, value in log_options.items() if value]:
            option = of_log[0].replace("_", "-")
            raise UsageError(f"--{option} beside a counters file", where=file, how="they belong to a log")
        known = embed.read_counters(file)
        if init_args and known.sparsecore is None:  # flags count where the file says nothing of knobs
            known = replace(known, sparsecore=known.knobs.with_flags(init_args)[0])
    elif file is not None:
        setup = of.configured(narrow_packing=narrow_packing)
        setup = model.settled(setup, of, file, rows, limits)
        knobs, _ = setup.sparsecore.with_flags(init_args or "")
        known = _of_log(replace(setup, sparsecore=knobs), file, limits, bad_ids, rows)
    if counters is not None:
        measured = embed.read_counters(counters)
        known = measured if known is None else known.merged(measured)
    assert known is not None
    diagnosis = embed.diagnose(known)
    deliver(Answer(diagnosis.to_json, lambda: [diagnosis.text()]), to)
    if diagnosis.severe:
        worst = diagnosis.findings[0]
        raise CheckFailed(worst.bottleneck, where=file or counters or "", how=worst.advice[0])


def _of_log(setup: embed.EmbedConfig, file: str, limits: str | None, bad_ids: str, rows: int) -> embed.Counters:
    bounds = None if limits is None else embed.read_limits(limits, setup.topology)
    log, total = model.batches(setup, file, rows)
    with model.options_named(), progress("batches", total) as advance:
        inputs = (part.features for part in log)
        found = embed.log_counters(inputs, setup, bounds, bad_ids=bad_ids, progress=lambda n: advance(n, total))
    remark(f"{file}: {counted(found.steps or 0, 'batch', 'batches')} on {found.shards} SparseCores ({setup.target})")
    return found


def explain_error(error: Error, stack: StackOptions, to: Json) -> None:
    """Read a TPU compiler's error about SparseCore memory: what was too large, and the changes that compile."""
    found = explained(error, lambda text: embed.explain_error(text, **vars(stack)))
    value = {"kind": "explained_errors", "errors": [explanation.to_json() for explanation in found]}
    shown = "\n\n".join(map(explanation_text, found))
    deliver(Answer(lambda: value, lambda: [shown]), to)


def explained(argument: str, explain: Callable[[str], T]) -> T:
    """What ``explain`` makes of a text: that of a file, of stdin for ``-``, or the argument itself."""
    with suppress(OSError):  # a text may be too long to be a name
        if argument == "-" or Path(argument).is_file():
            return explain(read_text(argument))
    try:
        return explain(argument)
    except UsageError:
        # Something short without blanks was meant as a file's name.
        if len(argument) < 200 and not any(c.isspace() for c in argument) and not Path(argument).exists():
            how = "check the file's name"
            raise UsageError("neither a file nor an error's text", where=argument, how=how) from None
        raise


def explanation_text(explanation: embed.ErrorExplanation) -> str:
    programs = {"forward": "lookup", "backward": "update", "host": "preprocessing on the host"}
    head = ", ".join(filter(None, (explanation.target, programs.get(explanation.program, "program"))))
    lines = [f"{head} ({explanation.basis}): {explanation.meaning}"]
    lines += [f"  {name}: {value:,}" for name, value in explanation.figures.items()]
    lines += ["what to change:", *(f"  - {line}" for line in explanation.advice)]
    return "\n".join(lines)


def check(
    file: Annotated[str, Argument(help="The batches: Parquet, CSV, TSV, .npz, or Criteo's format (- is stdin).")],
    limits: Annotated[str | None, Argument(help="The limits file; without it those of --config are used.")] = None,
    *,
    of: model.ModelOptions,
    stacking: model.TableStacking = None,
    narrow_packing: model.NarrowPacking = None,
    bad_ids: model.BadIds = "error",
    rows: model.Rows = 0,
    to: Json,
) -> None:
    """Hold the batches of a file against limits, without a chip: what is asked of each, where, and what it costs.

    Exit code 1 when a partition, table or sample exceeds its limit.
    """
    setup = model.with_stacking(of.configured(narrow_packing=narrow_packing), stacking)
    bounds = _limits(limits, setup, file)
    setup = model.settled(setup, of, file, rows, limits)
    stacked, where = setup.stacking(), limits or "--config"
    if other := [name for name in bounds if name not in stacked.stacks]:
        how = f"the stacks are {', '.join(stacked.stacks)}: plan again for this model, batch and topology"
        raise UsageError(f"limits of {other[0]!r}, which is not a stack", where=where, how=how)
    if unbound := [name for name in stacked.stacks if name not in bounds]:
        raise UsageError(f"no limits of stack {unbound[0]!r}", where=where, how="plan again for this model")
    log, total = model.batches(setup, file, rows)
    with model.options_named(), progress("batches", total) as advance:
        inputs = (part.features for part in log)
        knobs = setup.sparsecore if of.config is not None else None
        told = partial(advance, total=total)
        checked = embed.check_batches(inputs, stacked, bounds, knobs, bad_ids, told, setup.narrow)
    diagnosis = embed.diagnose(embed.check_counters(checked, stacked, setup.target))
    value = {**checked.to_json(), "findings": [finding.to_json() for finding in diagnosis.findings]}
    deliver(Answer(lambda: value, lambda: _lines(checked, diagnosis)), to)
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


def _lines(checked: embed.Check, diagnosis: embed.Diagnosis) -> Iterator[Line]:
    columns: list[Heading] = [("of", "code"), ("limit", "code"), ("allowed", "count"), ("observed", "count")]
    rows = [(e.what, e.knob, e.limit, e.observed, e.place, "no" if e.over else "yes") for e in checked.limits]
    title = f"{counted(checked.batches, 'batch', 'batches')} against the limits"
    yield Table((*columns, "where the most was seen", "holds"), rows, title)
    if diagnosis.findings:
        yield from ("", "findings", *diagnosis.lines(notes=True))


# Statistics in the forms of other tools.


def stats(
    source: Annotated[str, Argument(help="FDO statistics, limits or a TorchRec plan (.json); with --config a log.")],
    config: Annotated[str | None, "The model (TOML): count SOURCE, a log; or put its plan beside TorchRec's."] = None,
    batch: model.Batch = None,
    rows: model.Rows = 0,
    bad_ids: model.BadIds = "error",
    *,
    to: Annotated[
        Output, Files(".npz FDO", ".csv FDO", ".json limits", ".torchrec.json a sharding plan", stdout=False)
    ],
) -> None:
    """Read or count what partitions hold, and write it for jax-tpu-embedding, for training here, or for TorchRec.

    An FDO file has one record per batch; limits are the largest counts of all records.
    """
    if config is None and to.suffix == ".torchrec.json":
        raise UsageError("a sharding plan is of a model", where=to.path or "", how="name the model with --config")
    value = read_file(source, "JSON") if source.endswith(".json") else None
    if isinstance(value, dict) and isinstance(value.get("plan"), dict):
        deliver(_torchrec(source, config, to.path), to)
        return
    setup = None if config is None else model.ModelOptions(config, batch=batch).configured()
    measured = _measured(source, setup, rows, bad_ids)
    facts: dict[str, Any] = {"source": Path(source).name}
    forms: dict[str, Form] = {".json": lambda: measured.limits_json(**facts)}
    if setup is not None:
        topology, stacking = setup.topology, setup.stacking()
        shape = {"chips": topology.chips, "sparsecores_per_chip": topology.sparsecores_per_chip}
        facts |= {"topology": shape, "batch": setup.batch, "narrow_packing": setup.narrow_packing}
        forms[".torchrec.json"] = lambda: json_text(embed.torchrec_plan(stacking), own=False)
    if to.path is not None and to.suffix in (".npz", ".csv"):
        remark(f"wrote {measured.write(to.path)}")
        to = Output(as_json=to.as_json)
    stacks = measured.summary()
    deliver(Answer(lambda: {"kind": "embedding_statistics", "stacks": stacks}, lambda: [_table(stacks)]), to, forms)


def _measured(source: str, setup: embed.EmbedConfig | None, rows: int, bad_ids: str) -> embed.FdoStats:
    if setup is None:
        of_limits = source.endswith(".json")
        return embed.FdoStats.of_limits(embed.read_limits(source)) if of_limits else embed.read_fdo(source)
    stacking = setup.stacking()
    log, total = model.batches(setup, source, rows)
    with model.options_named(), progress("batches", total) as advance:

        def preprocessed() -> Iterator[Any]:
            for number, part in enumerate(log):
                yield embed.preprocess(setup.narrow.batch(part.features, bad_ids), stacking, bad_ids=bad_ids)
                advance(number + 1, total)

        return embed.FdoStats.of_batches(preprocessed())


def _table(stacks: dict[str, dict[str, Any]]) -> Table:
    headings: list[Heading] = [("stack", "code"), ("records", "count"), ("max ids", "count"), ("max unique", "count")]
    headings += [("buffer of a SparseCore", "count"), ("dropped, most", "count"), "fullest shard"]
    lines = []
    for name, known in stacks.items():
        *counts, imbalance = ("" if value is None else value for value in known.values())
        lines.append((name, *counts, imbalance and f"{imbalance:.2f} x"))
    return Table(headings, lines)


def _torchrec(source: str, config: str | None, out: str | None) -> Answer:
    """A TorchRec plan's tables, and its ranks' bytes beside those of our chips."""
    if out is not None:
        raise UsageError("a TorchRec plan is read, not written again", where=out, how="leave -o away")
    tables = embed.read_torchrec(source)
    ranks = Counter[int]()
    for table in tables.values():
        ranks.update(table.rank_bytes)
    ours = None if config is None else model.ModelOptions(config).configured().stacking().chip_bytes
    shapes = {t.name: {"sharding_type": t.sharding_type, "shards": len(t.shards)} for t in tables.values()}
    bytes_of = {"rank_bytes": {str(rank): size for rank, size in sorted(ranks.items())}, "chip_bytes": ours}
    value = {"kind": "torchrec_plan", "tables": shapes, **bytes_of}

    def lines() -> Iterator[Line]:
        headings: list[Heading] = [("table", "code"), "sharding", "kernel", ("shards", "count")]
        largest = [max((4 * s.rows * s.columns for s in t.shards), default=0) for t in tables.values()]
        yield Table([*headings, ("largest shard", "bytes")], [
            (name, t.sharding_type, t.compute_kernel, len(t.shards), most)
            for (name, t), most in zip(tables.items(), largest)
        ])  # fmt: skip
        if ranks:
            low, high = bytes_text(min(ranks.values())), bytes_text(max(ranks.values()))
            yield f"rows of a rank, {len(ranks)} ranks: {low} to {high}"
        if ours is not None:
            yield f"rows of a chip, planned here: {bytes_text(ours)} on each, padding included"

    return Answer(lambda: value, lines)
