"""`tilewright layout plan`: tensors in the local memories of an NPU, from a TOML file."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.layout.draw import check_picture, write_picture
from tilewright.cli.layout.memories import lane_layout
from tilewright.cli.layout.show import Json, Out, exact_bytes, sized_array
from tilewright.cli.streams import emit_json, read_text
from tilewright.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from tilewright.layout import LocalPlan, LocalTensor

_File = Annotated[str, typer.Argument(metavar="FILE", help="Tensors and instructions, as TOML; - is stdin.")]
_Chip = Annotated[str | None, typer.Option("--chip", metavar="NAME", help="Instead of the file's chip.")]
_Fail = Annotated[bool, typer.Option("--fail-on-conflict", help="Exit with 1 where operands share a bank.")]
_KEYS = {"name": str, "shape": str, "base": int, "start": int, "mode": (str, list), "columns_per_npu": int}


def plan(
    file: _File, chip: _Chip = None, out: Out = None, fail_on_conflict: _Fail = False, as_json: Json = False
) -> None:
    """Place tensors in an NPU's local memories: bases, holes, bank conflicts; overflow is an error.

    The file says `chip = "bm1684x"`, `instructions = [["x", "w", "y"]]`, and for every tensor `[[tensor]]` with `name`,
    `shape = "f16[1,64,28,28]"` and, as wanted, `start`, `mode`, `columns_per_npu` and `base`.
    """
    from tilewright.layout import plan_local_memory

    check_picture(out, as_json)
    value = _read(file)
    name = chip or value.get("chip")
    if not isinstance(name, str):
        raise UsageError("no chip is named", where=file, how='write chip = "bm1684x" or pass --chip')
    tensors = [_tensor(entry, name, file) for entry in _entries(value, file)]
    found = plan_local_memory(tensors, name, _instructions(value, file))
    if out is not None:
        from tilewright.layout import plan_svg

        write_picture(out, plan_svg(found))
    if as_json:
        emit_json({"chip": name, **found.to_dict()})
    elif out != "-":
        _print(found, name)
    if fail_on_conflict and found.conflicts:
        raise CheckFailed(f"{len(found.conflicts)} pairs of operands share a bank", where=file)


def _read(file: str) -> dict[str, Any]:
    try:
        value = tomllib.loads(read_text(file))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not TOML: {error}", where=file) from None
    if unknown := sorted(set(value) - {"chip", "instructions", "tensor"}):
        raise UsageError(f"unknown key {unknown[0]!r}", where=file, how="known: chip, instructions, tensor")
    return value


def _entries(value: dict[str, Any], file: str) -> list[dict[str, Any]]:
    entries = value.get("tensor", [])
    if not isinstance(entries, list) or not entries or not all(isinstance(e, dict) for e in entries):
        raise UsageError("no tensors are given", where=file, how="write [[tensor]] with a name and a shape")
    return entries


def _tensor(entry: dict[str, Any], chip: str, file: str) -> LocalTensor:
    from tilewright.layout import LaneLayout, LocalTensor

    where = f"{file}: tensor {entry.get('name', '?')}"
    for key, each in entry.items():
        kind = _KEYS.get(key)
        if kind is None:
            raise UsageError(f"unknown key {key!r}", where=where, how=f"known: {', '.join(_KEYS)}")
        if not isinstance(each, kind) or isinstance(each, bool):  # type: ignore[arg-type]
            raise UsageError(f"{key} = {each!r} is of the wrong kind", where=where)
    if "name" not in entry or "shape" not in entry:
        raise UsageError("a tensor needs a name and a shape", where=where)
    mode = entry.get("mode", "aligned")
    if isinstance(mode, list):
        mode = ",".join(map(str, mode))
    memory = {"chip": chip, "lanes": None, "eu_bytes": None}
    layout = lane_layout(sized_array(entry["shape"]), memory, entry.get("start", 0), mode, entry.get("columns_per_npu"))
    assert isinstance(layout, LaneLayout)
    return LocalTensor(entry["name"], layout, entry.get("base"))


def _instructions(value: dict[str, Any], file: str) -> list[list[str]]:
    found = value.get("instructions", [])
    if not isinstance(found, list) or not all(
        isinstance(i, list) and all(isinstance(n, str) for n in i) for i in found
    ):
        raise UsageError('instructions are lists of names, as [["x", "w", "y"]]', where=file)
    return found


def _print(found: LocalPlan, chip: str) -> None:
    from tilewright.render import Column, print_table

    columns = [Column(chip), Column("layout"), Column("bytes per NPU", "count")]
    columns += [Column("base", "count"), Column("end", "count"), Column("banks")]
    columns += [Column(name, "count") for name in ("start hole", "tail hole", "inside hole")]
    print_table(
        columns,
        [
            (t.name, str(t.layout), t.layout.bytes_per_npu, t.base, t.end, _span(t.banks), *holes)
            for t in found.tensors
            for holes in [(t.start_hole, t.tail_hole, t.inside_hole)]
        ],
    )
    print()
    rows = [("used", exact_bytes(found.bytes_used)), ("free", exact_bytes(found.bytes_free))]
    rows += [("gap", f"bytes {low} to {high - 1}") for low, high in found.gaps]
    rows += [
        (f"instruction {c.instruction}", f"{c.first} and {c.second} share bank {_span(c.banks)}")
        for c in found.conflicts
    ]
    if not found.conflicts:
        rows.append(("conflicts", "no operands of one instruction share a bank"))
    print_table([Column("on every NPU"), Column(f"of {exact_bytes(found.memory.local_bytes)}")], rows)


def _span(banks: tuple[int, ...]) -> str:
    """Bank numbers, neighbours joined: 0-3, 7."""
    runs: list[list[int]] = []
    for bank in banks:
        if runs and runs[-1][-1] == bank - 1:
            runs[-1].append(bank)
        else:
            runs.append([bank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
