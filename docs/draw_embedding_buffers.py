"""Draw docs/pictures/embedding-buffers.svg, a small batch in its buffers: ./run python docs/draw_embedding_buffers.py.

Every number comes from `preprocess`; a test keeps the file true.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tilewright.embed import Feature, HostBatch, Table, Topology, preprocess, stack
from tilewright.render.drawing import Drawing

PICTURE = Path(__file__).with_name("pictures") / "embedding-buffers.svg"
BATCH = {"clicks": [[0, 0, 0, 2, 4, 1], [1, 1, 3]]}
CELL, LEFT, SLOTS = 46, 128, 16


def batch() -> HostBatch:
    """The page's example: eight rows on two SparseCores, two samples."""
    plan = stack([Feature("clicks", Table("t", vocab=8, width=8))], Topology(chips=1, sparsecores_per_chip=2))
    return preprocess(BATCH, plan)


def row(d: Drawing, y: float, name: str, values: list[str], styles: list[str]) -> None:
    """One array's slice, a cell a slot."""
    d.text(LEFT - 10, y + 20, name, "mono small", anchor="end")
    for k, (value, style) in enumerate(zip(values, styles)):
        if style == "pad":
            d.padding(LEFT + CELL * k, y, CELL, 30)
        d.rect(LEFT + CELL * k, y, CELL, 30, f"cell {style}")
        d.text(LEFT + CELL * (k + 0.5), y + 20, value, "mono small", anchor="middle")


def source(d: Drawing, host: HostBatch, s: int, y: float) -> None:
    """One source SparseCore: its pointers, and its slice of the three buffers."""
    sample = ", ".join(map(str, BATCH["clicks"][s]))
    d.text(24, y, f"source SparseCore {s}: sample {s} = [{sample}]", "strong")
    pointers = host.row_pointers["t"][0, 8 * s : 8 * s + 8].tolist()
    styles = ["c0", "c2", *["pad"] * 6]
    row(d, y + 14, "row_pointers", [str(p) for p in pointers], styles)
    d.text(LEFT + CELL * 8 + 12, y + 34, "END of shard 0, of shard 1; then the last, rounded up to 8", "small soft")
    part = slice(SLOTS * s, SLOTS * s + SLOTS)
    arrays = [host.embedding_ids["t"][0, part], host.sample_ids["t"][0, part], host.gains["t"][0, part]]
    begins = [0, -(-pointers[0] // 8) * 8]
    looks = [style_of(k, begins, pointers) for k in range(SLOTS)]
    for k, (name, values) in enumerate(zip(("embedding_ids", "sample_ids", "gains"), arrays)):
        row(d, y + 60 + 30 * k, name, [text(value) for value in values], looks)
    for shard, begin in enumerate(begins):
        empty = " (that of shard 0 is empty)" if shard == 1 and not pointers[0] else ""
        if begin < pointers[shard]:
            d.text(LEFT + CELL * begin, y + 166, f"partition of shard {shard}, from slot {begin}{empty}", "small soft")


def style_of(slot: int, begins: list[int], ends: list[int]) -> str:
    """The partition's colour, or padding."""
    inside = [k for k in range(2) if begins[k] <= slot < ends[k]]
    return ("c0", "c2")[inside[0]] if inside else "pad"


def text(value: np.generic) -> str:
    """A slot's content; padding is INT_MAX, and NaN in the gains."""
    if np.isnan(value):
        return "NaN"
    return "MAX" if value == 2**31 - 1 else f"{value:g}"


def drawing() -> str:
    """The picture, as the file has it."""
    about = "Two source SparseCores, each with row pointers and 16 slots of embedding ids, sample ids and gains."
    d = Drawing(LEFT + CELL * SLOTS + 24, 404, title="A batch in its buffers", description=about, ground=True)
    host = batch()
    source(d, host, 0, 30)
    source(d, host, 1, 222)
    return f"{d.svg()}\n"


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
