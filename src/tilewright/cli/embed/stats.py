"""`tilewright embed stats`: statistics, limits and plans in the forms of other tools, read, written and compared."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright import embed
from tilewright.cli.embed import model
from tilewright.cli.streams import Json, progress
from tilewright.errors import UsageError
from tilewright.files import write_whole as write_file
from tilewright.reading import read_file
from tilewright.render.delivery import Answer, Line, Output, deliver, remark
from tilewright.render.formats import bytes_text
from tilewright.render.tables import Heading, Table

_HOW = "end it in .npz or .csv (FDO), .json (a limits file) or .torchrec.json (a sharding plan)"


def stats(
    source: Annotated[
        str,
        typer.Argument(
            help="FDO statistics of jax-tpu-embedding (.npz, .csv or their folder), a limits file or a TorchRec plan "
            "(.json); with --config a log."
        ),
    ],
    config: Annotated[str | None, "The model (TOML): count SOURCE, a log; or put its plan beside TorchRec's."] = None,
    batch: model.Batch = None,
    rows: model.Rows = 0,
    bad_ids: model.BadIds = "error",
    out: Annotated[
        str | None, "-o", "--out", "Write .npz or .csv (FDO), .json (limits), .torchrec.json (a sharding plan)."
    ] = None,
    as_json: Json = False,
) -> None:
    """Read or count what partitions hold, and write it for jax-tpu-embedding, for training here, or for TorchRec.

    An FDO file has one record per batch; limits are the largest counts of all records.
    """
    if out is not None and not out.endswith((".npz", ".csv", ".json")):
        raise UsageError("not a name for statistics, limits or a plan", where=out, how=_HOW)
    if config is None and (out or "").endswith(".torchrec.json"):
        raise UsageError("a sharding plan is of a model", where=out or "", how="name the model with --config")
    if source.endswith(".json"):
        value = read_file(source, "JSON")
        if isinstance(value, dict) and isinstance(value.get("plan"), dict):
            _compare(source, config, out, as_json)
            return
    setup = None if config is None else model.ModelOptions(config, batch=batch).configured()
    counted = _counted(source, setup, rows, bad_ids)
    if out is not None:
        _write(out, counted, setup, source)
    stacks = counted.summary()
    value = {"kind": "embedding_statistics", "stacks": stacks}
    deliver(Answer(lambda: value, lambda: [_table(stacks)]), Output(as_json=as_json))
    if out is not None:
        remark(f"wrote {out}")


def _counted(source: str, setup: embed.EmbedConfig | None, rows: int, bad_ids: str) -> embed.FdoStats:
    if setup is None and source.endswith(".json"):
        return embed.FdoStats.of_limits(embed.read_limits(source))
    if setup is None:
        return embed.read_fdo(source)
    stacking = setup.stacking()
    log, total = model.batches(setup, source, rows)
    with model.options_named(), progress("batches", total) as advance:

        def preprocessed() -> Any:
            for number, part in enumerate(log):
                yield embed.preprocess(setup.narrow.batch(part.features, bad_ids), stacking, bad_ids=bad_ids)
                advance(number + 1, total)

        return embed.FdoStats.of_batches(preprocessed())


def _write(out: str, counted: embed.FdoStats, setup: embed.EmbedConfig | None, source: str) -> None:
    if out.endswith((".npz", ".csv")):
        counted.write(out)
        return
    if out.endswith(".torchrec.json"):
        assert setup is not None
        stacking = setup.stacking()
        value = embed.torchrec_plan(stacking)
    else:
        facts: dict[str, Any] = {"source": Path(source).name}
        if setup is not None:
            topology = setup.topology
            shape = {"chips": topology.chips, "sparsecores_per_chip": topology.sparsecores_per_chip}
            facts |= {"topology": shape, "batch": setup.batch, "narrow_packing": setup.narrow_packing}
        value = counted.limits_json(**facts)
    write_file(out, json.dumps(value, indent=2) + "\n")


def _table(stacks: dict[str, dict[str, Any]]) -> Table:
    headings: list[Heading] = [("stack", "code"), ("records", "count"), ("max ids", "count"), ("max unique", "count")]
    headings += [("buffer of a SparseCore", "count"), ("dropped, most", "count"), "fullest shard"]
    lines = []
    for name, known in stacks.items():
        *counts, imbalance = ("" if value is None else value for value in known.values())
        lines.append((name, *counts, imbalance and f"{imbalance:.2f} x"))
    return Table(headings, lines)


def _compare(source: str, config: str | None, out: str | None, as_json: bool) -> None:
    """A TorchRec plan's tables, and its ranks' bytes beside those of our chips."""
    if out is not None:
        raise UsageError("a TorchRec plan is read, not written again", where=out, how="leave -o away")
    tables = embed.read_torchrec(source)
    ranks = Counter[int]()
    for table in tables.values():
        ranks.update(table.rank_bytes)
    ours = None
    if config is not None:
        setup = model.ModelOptions(config).configured()
        ours = setup.stacking().chip_bytes
    shapes = {t.name: {"sharding_type": t.sharding_type, "shards": len(t.shards)} for t in tables.values()}
    bytes_of = {"rank_bytes": {str(rank): size for rank, size in sorted(ranks.items())}, "chip_bytes": ours}
    value = {"kind": "torchrec_plan", "tables": shapes, **bytes_of}
    headings: list[Heading] = [("table", "code"), "sharding", "kernel", ("shards", "count"), ("largest shard", "bytes")]
    lines = [
        (
            name,
            t.sharding_type,
            t.compute_kernel,
            len(t.shards),
            max((4 * s.rows * s.columns for s in t.shards), default=0),
        )
        for name, t in tables.items()
    ]
    shown: list[Line] = [Table(headings, lines)]
    if ranks:
        low, high = bytes_text(min(ranks.values())), bytes_text(max(ranks.values()))
        shown.append(f"rows of a rank, {len(ranks)} ranks: {low} to {high}")
    if ours is not None:
        shown.append(f"rows of a chip, planned here: {bytes_text(ours)} on each, padding included")
    deliver(Answer(lambda: value, lambda: shown), Output(as_json=as_json))
