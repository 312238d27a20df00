"""`tilewright embed export`, `embed quantise`: tables for serving, and what a model loses by their few bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.streams import Heading, Json, emit_json, emit_text, progress, remark, show_table
from tilewright.extras import need

if TYPE_CHECKING:
    from tilewright.embed import Exported
    from tilewright.machine import Quantised

Dtype = Annotated[str, typer.Option(help="int8, int4 or bf16.")]
ScalePer = Annotated[str, typer.Option(help="One scale for every row, or for the table.")]
Step = Annotated[int | None, typer.Option(help="The step of the checkpoint (the last finished one).")]


def export(
    checkpoint: Annotated[str, typer.Argument(help="A folder of checkpoints.")],
    out: Annotated[str, typer.Option("-o", "--out", help="The file to write.")],
    step: Step = None,
    dtype: Dtype = "int8",
    scale_per: ScalePer = "row",
    as_json: Json = False,
) -> None:
    """Write a checkpoint's tables for serving: quantised rows in one file that is mapped into memory."""
    need("jax", "orbax", what="`embed export`")
    from tilewright.embed import Topology, restore, saved_features, stack
    from tilewright.embed import export as write

    features = saved_features(checkpoint, step)
    with progress("restore") as advance:
        state = restore(checkpoint, stack(features, Topology(1, 1)), step, slots=False)
        made = write(out, state, dtype, scale=scale_per, progress=lambda n, total: advance(n, total, "rows"))
    if as_json:
        emit_json({"kind": "embedding_export", **made.to_json()})
        return
    _print_tables(made)
    remark(f"wrote {out}")


def quantise(
    model: Annotated[str, typer.Argument(help="The model file the checkpoint was trained with.")],
    checkpoint: Annotated[str, typer.Option(help="A folder of checkpoints.")],
    data: Annotated[
        str | None, typer.Option(help="A log to judge by, not the one it was trained on. None: a generated click log.")
    ] = None,
    step: Step = None,
    dtype: Dtype = "int8",
    scale_per: ScalePer = "row",
    rows: Annotated[int, typer.Option(help="Rows to judge by, at most.")] = 65536,
    batch: Annotated[int, typer.Option(help="Rows that are judged at a time.")] = 512,
    scale: Annotated[float, typer.Option(help="Given to the model's features(scale).")] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of the generated log.")] = 1,
    as_json: Json = False,
    out: Annotated[str | None, typer.Option("-o", "--out", help="Keep the export here.")] = None,
) -> None:
    """Quantise a checkpoint's tables: the error of every table, and the model's AUC and loss before and after."""
    need("jax", "orbax", what="`embed quantise`")
    from tilewright.machine import QuantiseJob
    from tilewright.machine import quantise as judge

    job = QuantiseJob(model, checkpoint, data, step, dtype, scale_per, out, rows, batch, scale, seed)
    with progress("quantise") as advance:
        made = judge(job, lambda stage: advance(0, None, stage))
    if as_json:
        emit_json(made.to_json())
        return
    _print_tables(made.exported)
    _print_judged(made)
    if out is not None:
        remark(f"wrote {out}")


def _print_tables(made: Exported) -> None:
    from tilewright.render import bytes_text

    share = made.file_bytes / made.float_bytes
    emit_text(f"{made.dtype}: {bytes_text(made.file_bytes)}, {share:.2f} of float32")
    headings: list[Heading] = ["table", ("rows", "count"), ("width", "count"), "scale", ("bytes", "bytes")]
    headings += ["largest error", "relative"]
    lines = [
        (t.name, t.vocab, t.width, t.encoding, t.file_bytes, f"{t.largest_error:.2g}", f"{t.relative_error:.2%}")
        for t in made.tables
    ]
    show_table(headings, lines)


def _print_judged(made: Quantised) -> None:
    before, after = made.before, made.after
    change = after.auc / before.auc - 1
    emit_text(
        f"AUC of {made.rows:,} rows: {before.auc:.3f} before, {after.auc:.3f} after ({change:+.3%})\n"
        f"loss: {before.loss:.3f} before, {after.loss:.3f} after"
    )
