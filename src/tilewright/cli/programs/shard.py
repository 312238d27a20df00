"""`tilewright shard`: what a device of a slice holds and sends, what to change, and which shardings are best."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from tilewright.cli.programs.program import (
    ArgOption,
    FramesOption,
    MeshOptions,
    ModuleOption,
    ProgramArgument,
    load_program,
)
from tilewright.cli.streams import Json, progress
from tilewright.errors import UsageError
from tilewright.render.delivery import Answer, Form, Output, deliver


def shard(
    program: ProgramArgument,
    target: Annotated[str, "--target", "-t", "The chip."] = "tpu-v5e",
    search: Annotated[bool, "Search the shardings of the arguments with the shortest step that fits."] = False,
    most: Annotated[int, Option(min=3, help="How many shardings --search tries.")] = 200,
    output: Annotated[str | None, "--output", "-o", "Write a .html (not with --search) or .json file."] = None,
    as_json: Json = False,
    top: Annotated[int, Option(min=1, help="How many entries to print.")] = 10,
    compiled: Annotated[bool, "--compile", "Ask an installed TPU compiler (libtpu) for the slice, too."] = False,
    *,
    meshed: MeshOptions,
    arg: ArgOption = None,
    module: ModuleOption = None,
    frames: FramesOption = None,
) -> None:
    """Partition a program over a mesh: the step, what a device holds and sends, the changes that pay most."""
    where = Output(output, as_json, ".json", *(() if search else (".html", ".htm")))
    from tilewright.hlo import partition, search_shardings, sharding_advice
    from tilewright.targets import target as find_target

    chip, loaded = find_target(target), load_program(program, arg, module, frames, meshed)
    if search:
        mesh = meshed.over()
        if mesh is None:
            raise UsageError("--search needs a mesh", how="add --mesh, as --mesh data=8,model=4")
        with progress("shardings tried", most) as advance:
            found = search_shardings(loaded, chip, mesh, most=most, told=advance)
        lines = [*found.lines(top), "", " ".join(["take it:", *found.options()])]
        deliver(Answer(found.to_json, lambda: iter(lines)), where, {".json": found.to_json})
        return
    part, changes = partition(loaded, chip), sharding_advice(loaded, chip)
    told = part.opinions(compiled)
    keys = ("rule", "what", "how", "source", "saved_us")
    plain = {key: getattr(part, key) for key in ("devices", "arguments_bytes", "outputs_bytes", "peak_bytes")}
    plain |= {"step": part.step.device_seconds, "exposed": part.step.exposed_seconds, "slice": str(part.slice or "")}
    plain["changes"] = [{key: getattr(each, key) for key in keys} for each in changes]
    plain["opinions"] = told
    plain["collectives"] = [
        {"op": each.op, "bytes": each.bytes, "groups": each.groups, "source": str(each.source or "")}
        for each in part.collectives
    ]
    forms: dict[str, Form] = {".json": lambda: plain, ".html": lambda: part.to_html(changes, told)}
    deliver(Answer(lambda: plain, lambda: part.lines(changes, top, told)), where, forms, notes=part.step.notes)
