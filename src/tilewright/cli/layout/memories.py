"""`tilewright layout lanes`, `paged`, `sharded` and `plan`: tensors in memories whose addresses have several axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from tilewright import layout as layouts
from tilewright.cli.layout.draw import View
from tilewright.cli.layout.show import Out, exact_bytes, sized_array, whole_numbers
from tilewright.cli.streams import Json, read_text
from tilewright.errors import CheckFailed, UsageError
from tilewright.reading import parse, typed
from tilewright.render.delivery import Answer, Line, Output, deliver
from tilewright.render.tables import Heading, Table

if TYPE_CHECKING:
    from tilewright.layout.convert.tpu_mlir import LayerGroup

_Shape = Annotated[str, Argument(metavar="SHAPE", help="Element type and sizes, as f16[2,3,4,5]; - is stdin.")]
_At = Annotated[str | None, "--at X,Y,..", "Say what lies at this place on the axes."]


def _numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    return None if text is None else whole_numbers(text, option)


def lanes(
    shape: _Shape,
    chip: Annotated[str | None, "--chip NAME", "A target with lanes, as bm1684x."] = None,
    lanes: Annotated[int | None, "--lanes X", "NPUs, without a chip."] = None,
    eu_bytes: Annotated[int | None, "--eu-bytes B", "Bytes of an execution unit."] = None,
    start: Annotated[int, "--start N", "The NPU of channel 0."] = 0,
    mode: Annotated[
        str,
        "--mode MODE",
        "aligned, compact, row_aligned, strides N,C,H,W; matrix, matrix2 (two dims); weights (oc,ic,kh,kw); "
        "global: the one memory that all NPUs share.",
    ] = "aligned",
    columns_per_npu: Annotated[
        int | None, "--columns-per-npu W", "Of a matrix: neighbouring columns on one NPU."
    ] = None,
    ic_parallel: Annotated[int | None, "--ic-parallel IC", "Of weights: input channels of a byte together."] = None,
    npu: Annotated[int | None, "--npu N", "With --offset: what lies there."] = None,
    offset: Annotated[int | None, "--offset O", "In elements, in that NPU."] = None,
    *,
    view: View,
) -> None:
    """Place a tensor (N, C, H, W) in an NPU's memories, local or global: facts, an element, a place, a picture."""
    memory = {"chip": chip, "lanes": lanes, "eu_bytes": eu_bytes}
    layout = _lane_layout(sized_array(shape), memory, start, mode, columns_per_npu, ic_parallel)
    if mode == "global" and npu is not None:
        raise UsageError("the global memory belongs to no NPU", where="--npu")
    if mode != "global" and (npu is None) != (offset is None):
        raise UsageError("a place is an NPU and an offset", how="give both --npu and --offset")
    view.show(layout, offset if npu is None or offset is None else (npu, offset))


def _lane_layout(
    array: layouts.TensorLayout,
    memory: dict[str, Any],
    start: int,
    mode: str,
    columns: int | None,
    ic_parallel: int | None = None,
) -> layouts.IndexMap:
    """The layout of an array by the name of its mode, as the command line and plan files have it."""
    if ic_parallel is not None and mode != "weights":
        raise UsageError("--ic-parallel goes with --mode weights")
    if mode in ("matrix", "matrix2") and array.rank != 2:
        raise UsageError(f"a matrix has two sizes, {array} has {array.rank}")
    if (mode == "matrix") != (columns is not None):
        raise UsageError("--columns-per-npu goes with --mode matrix, and that mode needs it")
    if mode == "matrix" and columns is not None:
        return layouts.lane_matrix(
            array.shape[0], array.shape[1], array.dtype, **memory, start=start, columns_per_npu=columns
        )
    if mode == "matrix2":
        return layouts.lane_matrix2(array.shape[0], array.shape[1], array.dtype, **memory, start=start)
    if mode == "weights":
        if start:
            raise UsageError("weights begin at NPU 0", where="--start")
        return layouts.lane_weights(array.shape, array.dtype, **memory, ic_parallel=ic_parallel)
    if mode == "global":
        if start:
            raise UsageError("the global memory has no start NPU", where="--start")
        return layouts.global_memory(array.shape, array.dtype)
    strides = whole_numbers(mode, "--mode") if mode[:1].isdigit() or "," in mode else mode
    return layouts.lanes(array.shape, array.dtype, **memory, start=start, mode=strides)


def paged(
    shape: _Shape,
    page: Annotated[str | None, "--page P,..", "Page sizes, one per dim."] = None,
    line: Annotated[str | None, "--line L,..", "Cache line sizes, one per dim."] = None,
    order: Annotated[str | None, "--order D,..", "Dims, the fastest first."] = None,
    start: Annotated[str | None, "--start I,..", "The segment's first index."] = None,
    at: _At = None,
    *,
    view: View,
) -> None:
    """Cut a segment of a tensor into pages and cache lines: facts, an element, a place (PAGE,OFFSET), a picture."""
    array = sized_array(shape)
    sizes = (_numbers(page, "--page"), _numbers(line, "--line"), _numbers(order, "--order"), _numbers(start, "--start"))
    layout = layouts.paged(array.shape, array.dtype, *sizes)
    view.show(layout, _numbers(at, "--at"))


def sharded(
    shape: Annotated[str, Argument(metavar="SHAPE", help="The table, as f32[vocab,width]; - is stdin.")],
    shards: Annotated[int, "--shards S", "Shards (SparseCores)."],
    rotation: Annotated[int, "--rotation R", "Shards the table is turned by."] = 0,
    row_offset: Annotated[int, "--row-offset O", "Rows before it on every shard."] = 0,
    at: _At = None,
    *,
    view: View,
) -> None:
    """Shard an embedding table row by row: facts, an element, a place (SHARD,ROW,COLUMN), a picture."""
    array = sized_array(shape)
    if array.rank != 2:
        raise UsageError(f"a table has two sizes, [vocab, width]; {array} has {array.rank}")
    vocab, width = array.shape
    layout = layouts.mod_sharded(vocab, width, shards, rotation, row_offset, dtype=array.dtype)
    view.show(layout, _numbers(at, "--at"))


_File = Annotated[
    str, Argument(metavar="FILE", help="Tensors and instructions as TOML, or tpu-mlir's final.mlir; - is stdin.")
]
_Chip = Annotated[str | None, "--chip NAME", "Instead of the file's chip."]
_Group = Annotated[str | None, "--group NAME", "Of a final.mlir this layer group only, as %9."]
_Fail = Annotated[bool, "Exit with 1 where operands share a bank."]
_HINTS = {
    "tensor": "write [[tensor]] with a name and a shape",
    "instructions": 'write lists of names, as [["x", "w", "y"]]',
}


def plan(
    file: _File,
    chip: _Chip = None,
    group: _Group = None,
    out: Out = None,
    fail_on_conflict: _Fail = False,
    as_json: Json = False,
) -> None:
    """Place tensors in an NPU's local memories, or read where a compiler did: bases, holes, bank conflicts.

    The file says `chip = "bm1684x"`, `instructions = [["x", "w", "y"]]`, and for every tensor `[[tensor]]` with `name`,
    `shape = "f16[1,64,28,28]"` and, as wanted, `start`, `mode`, `columns_per_npu` and `base`. Of the `final.mlir` of
    tpu-mlir every layer group is shown as it was placed. What overflows is an error.
    """
    from tilewright.layout.convert.tpu_mlir import is_tpu_mlir

    where, text = Output(out, as_json, ".svg"), read_text(file)
    if is_tpu_mlir(text):
        groups = _chosen(layouts.read_tpu_mlir(text, chip, file), group, file)
        shown = max(groups, key=lambda each: each.plan.bytes_used).plan
        conflicts = [conflict for each in groups for conflict in each.plan.conflicts]
        result = Answer(lambda: {"groups": [_group_value(each) for each in groups]}, lambda: _groups_lines(groups))
        notes = []
        for each in groups:
            sizes = "takes other bytes than the sizes of its slices do; its region is shown as bytes"
            notes += [f"{name} {sizes}" for name in each.open]
            notes += [f"{second} is written over {one}, which is still read behind it" for one, second in each.shared]
    else:
        if group is not None:
            raise UsageError("--group goes with a final.mlir of tpu-mlir", where=file)
        shown, name = _planned(text, chip, file)
        conflicts, notes = list(shown.conflicts), []
        result = Answer(lambda: {"chip": name, **shown.to_dict()}, lambda: _plan_lines(shown, name))
    deliver(result, where, {".svg": lambda: f"{layouts.plan_svg(shown)}\n"}, notes=notes)
    if fail_on_conflict and conflicts:
        raise CheckFailed(f"{len(conflicts)} pairs of operands share a bank", where=file)


def _planned(text: str, chip: str | None, file: str) -> tuple[layouts.LocalPlan, str]:
    """The plan of a TOML file, and the chip's name."""
    value = typed(parse(text, "TOML", file), _PlanFile, file, _HINTS)
    name = chip or value.chip
    if not name:
        raise UsageError("no chip is named", where=file, how='write chip = "bm1684x" or pass --chip')
    if not value.tensor:
        raise UsageError("no tensors are given", where=file, how=_HINTS["tensor"])
    return layouts.plan_local_memory(
        [_tensor(entry, name, file) for entry in value.tensor], name, value.instructions
    ), name


def _chosen(groups: Sequence[LayerGroup], name: str | None, file: str) -> list[LayerGroup]:
    chosen = [group for group in groups if name in (None, group.name)]
    if not chosen:
        names = ", ".join(group.name for group in groups[:10]) + (", ..." if len(groups) > 10 else "")
        raise UsageError(f"no layer group is called {name!r}", where=file, how=f"there are {names}")
    return chosen


def _group_value(group: LayerGroup) -> dict[str, Any]:
    own = {"operations": dict(group.operations), "steps": list(group.steps), "open": list(group.open)}
    shared = {"shared": [list(pair) for pair in group.shared]}
    return {"group": group.name, "line": group.line, **group.plan.to_dict(), **own, **shared}


def _groups_lines(groups: Sequence[LayerGroup]) -> Iterator[Line]:
    for number, group in enumerate(groups):
        yield "\n" * bool(number) + f"layer group {group.name or '(none)'}, line {group.line}"
        yield from _plan_lines(group.plan, "tensor", group)


@dataclass(frozen=True)
class _PlanFile:
    """The keys of a plan file."""

    chip: str = ""
    instructions: list[list[str]] = field(default_factory=list)
    tensor: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _Entry:
    """The keys of a tensor in it."""

    name: str
    shape: str
    base: int | None = None
    start: int = 0
    mode: str | list[int | str] = "aligned"
    columns_per_npu: int | None = None


def _tensor(value: dict[str, Any], chip: str, file: str) -> layouts.LocalTensor:
    from tilewright.layout.kinds.lanes import LaneLayout

    entry = typed(value, _Entry, f"{file}: tensor {value.get('name', '?')}")
    mode = entry.mode if isinstance(entry.mode, str) else ",".join(map(str, entry.mode))
    memory = {"chip": chip, "lanes": None, "eu_bytes": None}
    layout = _lane_layout(sized_array(entry.shape), memory, entry.start, mode, entry.columns_per_npu)
    if not isinstance(layout, LaneLayout):
        raise UsageError(f"{entry.name} lies in global memory, which is not planned", where=file)
    return layouts.LocalTensor(entry.name, layout, entry.base)


def _plan_lines(plan: layouts.LocalPlan, heading: str, group: LayerGroup | None = None) -> Iterator[Line]:
    """Where every tensor is placed, and what is left; ``group``: the layer group that the plan is of."""
    columns: list[Heading] = [heading, *(["made by"] if group else []), "layout", ("bytes per NPU", "count")]
    columns += [("base", "count"), ("end", "count"), "banks"]
    columns += [("start hole", "count"), ("tail hole", "count"), ("inside hole", "count")]
    rows = []
    for t in plan.tensors:
        holes = (t.start_hole, t.tail_hole, t.inside_hole)
        made_by = (group.operations.get(t.name, ""),) if group else ()
        rows.append((t.name, *made_by, str(t.layout), t.layout.bytes_per_npu, t.base, t.end, _span(t.banks), *holes))
    yield from (Table(columns, rows), "")
    facts = [("used", exact_bytes(plan.bytes_used)), ("free", exact_bytes(plan.bytes_free))]
    facts += [("gap", f"bytes {low} to {high - 1}") for low, high in plan.gaps]
    for c in plan.conflicts:
        step = group.steps[c.instruction] if group else f"instruction {c.instruction}"
        facts.append((step, f"{c.first} and {c.second} share bank {_span(c.banks)}"))
    if not plan.conflicts:
        facts.append(("conflicts", "no operands of one instruction share a bank"))
    yield Table(("on every NPU", f"of {exact_bytes(plan.memory.local_bytes)}"), facts)


def _span(banks: tuple[int, ...]) -> str:
    """Bank numbers, neighbours joined: 0-3, 7."""
    runs: list[list[int]] = []
    for bank in banks:
        if runs and runs[-1][-1] == bank - 1:
            runs[-1].append(bank)
        else:
            runs.append([bank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
