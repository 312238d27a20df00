"""Bytes that are padding: rows up to 8 floats, vocabularies up to 8 rows on every shard."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.embed._diagnose_counters import Counters, TableCounters
from tilewright.embed._diagnose_types import Finding, Rule
from tilewright.embed._formulas import padded_table_bytes
from tilewright.render import bytes_text, percent_text

__all__ = ["RULES"]

_SHARE = 0.1
"""Padding worth a finding: this share of all tables' bytes; of HBM a hundredth is a warning."""
_WARNING = 0.01


def _by_width(counters: Counters) -> Iterator[Finding]:
    shards = max(1, counters.shards)
    lost = {name: _width_loss(table, shards) for name, table in counters.tables.items()}
    total = sum(table.padded_bytes(shards) for table in counters.tables.values())
    worst = sorted((name for name in lost if lost[name]), key=lambda name: -lost[name])
    if not worst or sum(lost.values()) < _SHARE * total:
        return
    table = counters.tables[worst[0]]
    wider, packs = table.padded_width, 8 // table.width if table.width < 8 else 1
    advice = []
    if packs > 1:
        advice.append(
            f"let {packs} rows of {table.width} floats share each 32-byte line instead of one (narrow_packing)"
        )
    if table.width % 8:
        many = "" if len(worst) == 1 else f" (and {len(worst) - 1} more tables)"
        advice.append(f"make {worst[0]} {wider} wide{many}: the model learns {wider / table.width:.2f} times as much")
    yield _padding(counters, "padding-of-width", sum(lost.values()), total, worst, tuple(advice), packs)


def _width_loss(table: TableCounters, shards: int) -> int:
    padded = table.padded_bytes(shards)
    return padded - padded * table.width // table.padded_width


def _by_vocabulary(counters: Counters) -> Iterator[Finding]:
    shards = max(1, counters.shards)
    tables = counters.tables
    lost = {n: t.padded_bytes(shards) - 4 * t.vocab * t.padded_width for n, t in tables.items()}
    total = sum(table.padded_bytes(shards) for table in tables.values())
    worst = sorted((name for name in lost if lost[name]), key=lambda name: -lost[name])
    if not worst or sum(lost.values()) < _SHARE * total:
        return
    joined = _joined(counters, worst, shards)
    advice = [f"join the small vocabularies into one table of offset ids: {bytes_text(joined)} of padding are left"]
    if len(worst) == 1:
        advice = ["hold so small a table in the dense model: a product with one-hot rows costs less than a lookup"]
    yield _padding(counters, "padding-of-vocabulary", sum(lost.values()), total, worst, tuple(advice), 1)


def _joined(counters: Counters, names: list[str], shards: int) -> int:
    """Padding left if the tables of each width were one."""
    rows: dict[int, int] = {}
    for name in names:
        table = counters.tables[name]
        rows[table.padded_width] = rows.get(table.padded_width, 0) + table.vocab
    return sum(padded_table_bytes(vocab, width, shards) - 4 * vocab * width for width, vocab in rows.items())


def _padding(
    counters: Counters, name: str, lost: int, total: int, worst: list[str], advice: tuple[str, ...], packs: int
) -> Finding:
    per_chip, capacity = lost / counters.chips, counters.hbm.capacity or 0
    table = counters.tables[worst[0]]
    what = "rows are padded to 8 floats" if name == "padding-of-width" else "vocabularies are padded to 8 rows a shard"
    others = "" if len(worst) == 1 else f" and {len(worst) - 1} others"
    effect = f"up to {bytes_text(lost)} of HBM, all chips together"
    return Finding(
        name,
        "warning" if capacity and per_chip >= _WARNING * capacity else "note",
        f"{what}, which is {percent_text(lost / total)} of the tables' bytes: {worst[0]} "
        f"({table.vocab:,} x {table.width}){others}",
        advice,
        subject=worst[0] if len(worst) == 1 else "",
        evidence={
            "bytes of padding": lost,
            "share of the tables": round(lost / total, 4),
            "tables concerned": len(worst),
            **({"rows a line": packs} if packs > 1 else {}),
        },
        effect=effect,
    )


RULES = (
    Rule(
        "padding-of-width",
        "guide section 10, padding overhead",
        ("tables",),
        "a tenth of the tables' bytes pads rows to 8 floats (a hundredth of HBM: a warning)",
        _by_width,
    ),
    Rule(
        "padding-of-vocabulary",
        "guide section 10, padding overhead",
        ("tables", "sparsecores|target"),
        "a tenth of the tables' bytes pads vocabularies (a hundredth of HBM: a warning)",
        _by_vocabulary,
    ),
)
