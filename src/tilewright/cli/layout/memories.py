"""`tilewright layout lanes`, `paged` and `sharded`: tensors in memories whose addresses have several axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.layout.draw import Made, viewed
from tilewright.cli.layout.show import sized_array, whole_numbers
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.layout import IndexMap, TensorLayout

_Shape = Annotated[str, typer.Argument(metavar="SHAPE", help="Element type and sizes, as f16[2,3,4,5]; - is stdin.")]
_At = Annotated[str | None, typer.Option("--at", metavar="X,Y,..", help="Say what lies at this place on the axes.")]


def _numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    return None if text is None else whole_numbers(text, option)


@viewed
def lanes(
    shape: _Shape,
    chip: Annotated[str | None, typer.Option("--chip", metavar="NAME", help="A target with lanes, as bm1684x.")] = None,
    count: Annotated[int | None, typer.Option("--lanes", metavar="X", help="NPUs, without a chip.")] = None,
    eu_bytes: Annotated[int | None, typer.Option("--eu-bytes", metavar="B", help="Bytes of an execution unit.")] = None,
    start: Annotated[int, typer.Option("--start", metavar="N", help="The NPU of channel 0.")] = 0,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            metavar="MODE",
            help="aligned, compact, row_aligned, strides N,C,H,W; matrix, matrix2 (two dims); weights (oc,ic,kh,kw).",
        ),
    ] = "aligned",
    columns: Annotated[
        int | None, typer.Option("--columns-per-npu", metavar="W", help="Of a matrix: neighbouring columns on one NPU.")
    ] = None,
    ic_parallel: Annotated[
        int | None, typer.Option("--ic-parallel", metavar="IC", help="Of weights: input channels of a byte together.")
    ] = None,
    npu: Annotated[int | None, typer.Option("--npu", metavar="N", help="With --offset: what lies there.")] = None,
    offset: Annotated[int | None, typer.Option("--offset", metavar="O", help="In elements, in that NPU.")] = None,
) -> Made:
    """Place a tensor (N, C, H, W) in the local memories of an NPU with lanes: facts, an element, a place, a picture."""
    memory = {"chip": chip, "lanes": count, "eu_bytes": eu_bytes}
    layout = lane_layout(sized_array(shape), memory, start, mode, columns, ic_parallel)
    if (npu is None) != (offset is None):
        raise UsageError("a place is an NPU and an offset", how="give both --npu and --offset")
    return layout, None if npu is None or offset is None else (npu, offset)


def lane_layout(
    array: TensorLayout,
    memory: dict[str, Any],
    start: int,
    mode: str,
    columns: int | None,
    ic_parallel: int | None = None,
) -> IndexMap:
    """The layout of an array by the name of its mode, as the command line and plan files have it."""
    from tilewright.layout import lane_matrix, lane_matrix2, lane_weights
    from tilewright.layout import lanes as make

    if ic_parallel is not None and mode != "weights":
        raise UsageError("--ic-parallel goes with --mode weights")
    if mode in ("matrix", "matrix2") and array.rank != 2:
        raise UsageError(f"a matrix has two sizes, {array} has {array.rank}")
    if (mode == "matrix") != (columns is not None):
        raise UsageError("--columns-per-npu goes with --mode matrix, and that mode needs it")
    if mode == "matrix" and columns is not None:
        return lane_matrix(array.shape[0], array.shape[1], array.dtype, **memory, start=start, columns_per_npu=columns)
    if mode == "matrix2":
        return lane_matrix2(array.shape[0], array.shape[1], array.dtype, **memory, start=start)
    if mode == "weights":
        if start:
            raise UsageError("weights begin at NPU 0", where="--start")
        return lane_weights(array.shape, array.dtype, **memory, ic_parallel=ic_parallel)
    strides = whole_numbers(mode, "--mode") if mode[:1].isdigit() or "," in mode else mode
    return make(array.shape, array.dtype, **memory, start=start, mode=strides)


@viewed
def paged(
    shape: _Shape,
    page: Annotated[str | None, typer.Option("--page", metavar="P,..", help="Page sizes, one per dim.")] = None,
    line: Annotated[str | None, typer.Option("--line", metavar="L,..", help="Cache line sizes, one per dim.")] = None,
    order: Annotated[str | None, typer.Option("--order", metavar="D,..", help="Dims, the fastest first.")] = None,
    start: Annotated[str | None, typer.Option("--start", metavar="I,..", help="The segment's first index.")] = None,
    at: _At = None,
) -> Made:
    """Cut a segment of a tensor into pages and cache lines: facts, an element, a place (PAGE,OFFSET), a picture."""
    from tilewright.layout import paged as make

    array = sized_array(shape)
    sizes = (_numbers(page, "--page"), _numbers(line, "--line"), _numbers(order, "--order"), _numbers(start, "--start"))
    layout = make(array.shape, array.dtype, *sizes)
    return layout, _numbers(at, "--at")


@viewed
def sharded(
    shape: Annotated[str, typer.Argument(metavar="SHAPE", help="The table, as f32[vocab,width]; - is stdin.")],
    shards: Annotated[int, typer.Option("--shards", metavar="S", help="Shards (SparseCores).")],
    rotation: Annotated[int, typer.Option("--rotation", metavar="R", help="Shards the table is turned by.")] = 0,
    row_offset: Annotated[int, typer.Option("--row-offset", metavar="O", help="Rows before it on every shard.")] = 0,
    at: _At = None,
) -> Made:
    """Shard an embedding table row by row: facts, an element, a place (SHARD,ROW,COLUMN), a picture."""
    from tilewright.layout import mod_sharded as make

    array = sized_array(shape)
    if array.rank != 2:
        raise UsageError(f"a table has two sizes, [vocab, width]; {array} has {array.rank}")
    vocab, width = array.shape
    layout = make(vocab, width, shards, rotation, row_offset, dtype=array.dtype)
    return layout, _numbers(at, "--at")
