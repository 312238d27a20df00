"""`tilewright report` and `diff`: what a program moves and pads, why and from which line; how two programs differ."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from typer import Argument, Option

from tilewright import hlo, targets
from tilewright.cli.options import Files
from tilewright.cli.programs import program as programs
from tilewright.cli.streams import read_text
from tilewright.errors import CheckFailed, TilewrightError, UnsupportedError, UsageError
from tilewright.extras import installed
from tilewright.reading import parse
from tilewright.render.compare import Change, Comparison, Quantity, Statement, changes, matched, value_at
from tilewright.render.delivery import Answer, Form, Line, Output, deliver, json_text, remark, show, write_file
from tilewright.render.formats import Kind

_TargetOption = Annotated[str | None, "--target", "-t", "The chip; needed for StableHLO, whose layouts it predicts."]
_GRAPH = ".modelexplorer.json"
_SIDE = f"{programs.PROGRAM_HELP[:-1]}; or a report written with -o REPORT.json."


def make_report(
    program: hlo.Program, chip: targets.Target | None, where: str, assumed: Mapping[str, float] | None = None
) -> hlo.MovementReport:
    """The report of a loaded program; UsageError where its layouts must be predicted and no target is named."""
    if program.kind == "stablehlo" and chip is None:
        raise UsageError(
            "a StableHLO program carries no layouts, so a target must predict them",
            where=where,
            how="add --target, such as --target tpu-v5e",
        )
    suggested: tuple[Any, ...] = ()
    with suppress(TilewrightError):  # no JAX, a target that optimize does not take, an old text: a report does
        if chip is not None:  # what optimize would change
            suggested = (*hlo.suggest(program, chip, assume=assumed), *hlo.suggest_rewrites(program, chip))
            suggested += tuple(hlo.sharding_advice(program, chip, every=False))
    movement = replace(hlo.report(program, chip, suggested, assumed), source=where)
    if program.kind == "stablehlo" and not (installed("jax") and installed("jaxlib")):
        why = "no rule looks at the program, and it is taken as it was written, not as a compiler normalises it"
        remark(f"note: without jax {why}; pip install 'tilewright[jax]'")
    if program.kind == "hlo" and chip is not None and movement.time is None:
        remark(f"note: a dump has layouts of its own; {chip.name} does not change them")
    return movement


def _read_report(path: str) -> hlo.MovementReport:
    """A report that `tilewright report X -o OLD.json` (or --json) wrote."""
    return hlo.MovementReport.from_json(parse(read_text(path), "JSON", path), where=path)


def _share(text: str) -> float:
    """``5%`` or ``0.05`` as a share. Raises UsageError for anything else."""
    number = text.strip().removesuffix("%")
    with suppress(ValueError):
        if 0 <= (value := float(number)) < float("inf"):
            return value / 100 if number != text.strip() else value
    raise UsageError(f"'{text}' is not a share", where="--fail-on", how="write a percentage such as 5%")


def terminal_width() -> int:
    """Columns to fill: the terminal's, or at least 100 where there is none."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else max(console.width, 100)


_Only = StrEnum("_Only", "RELAYOUT TRANSFER DUPLICATE REPEAT PART FUSED COMPUTE")
_By = StrEnum("_By", "MOVED PADDING TIME")


def report(
    program: programs.ProgramArgument,
    target: _TargetOption = None,
    top: Annotated[int, Option(min=1, help="How many entries of each ranking to print.")] = 10,
    by: Annotated[_By | None, "Print this ranking only."] = None,
    only: Annotated[list[_Only] | None, "Rank operations of this category only, such as relayout."] = None,
    transfers: Annotated[bool, "List prefetches and write-backs one by one, too."] = False,
    profile: Annotated[str | None, "Join measured times: an .xplane.pb or .trace.json.gz, or its folder."] = None,
    baseline: Annotated[str | None, "Compare with this report, written earlier with -o OLD.json."] = None,
    fail_on: Annotated[str | None, "Exit 1 if bytes moved, padding or peak grew by more than 5%, say."] = None,
    compiled: Annotated[bool, "--compile", "Report on what an installed libtpu makes of StableHLO."] = False,
    assume: programs.AssumeOption = None,
    *,
    of: programs.ProgramOptions,
    to: Annotated[Output, Files(".json", ".html", ".sarif for code review", f"{_GRAPH} a graph", stdout=None)],
) -> None:
    """Rank a program's operations by modelled time (by bytes moved without a chip), and its tensors by padding."""
    if fail_on is not None and baseline is None:
        raise UsageError("--fail-on needs something to compare with", how="add --baseline OLD.json")
    chip, allowed = targets.target(target) if target else None, _share(fail_on or "0%")
    old = _read_report(baseline) if baseline else None
    loaded = of.load(program)
    if compiled and chip is not None and loaded.kind != "hlo":
        loaded = hlo.compile_for_tpu(loaded, chip.name)
    movement = make_report(loaded, chip, program, programs.assumptions(assume))
    if profile:
        movement = movement.with_profile(loaded, profile)
    if by is _By.TIME and movement.time is None and profile is None:
        how = "add --profile PROFILE.xplane.pb (measured), or a --target whose time is modelled, such as tpu-v6e"
        raise UsageError("--by time needs times", where=program, how=how)
    ranked = ["time", "moved"] if profile else ["time"] if movement.time is not None else ["moved"]
    rankings = [by.value] if by is not None else [*ranked, "padding"]
    lines = _lines(movement, rankings, top, [category.value for category in only or ()], transfers)
    forms: dict[str, Form] = {
        ".html": movement.to_html,
        ".sarif": lambda: json_text(movement.to_sarif(), own=False),
        _GRAPH: lambda: json_text(movement.model_explorer(loaded), own=False),
    }
    deliver(Answer(movement.to_json, lambda: lines), to, forms, said=(), notes=movement.notes)
    if to.path is not None and to.suffix == _GRAPH:  # beside the graph a file for each figure of its nodes
        for figure, data in movement.model_explorer_data(loaded).items():
            write_file(f"{to.path[: -len(_GRAPH)]}.{figure}.nodedata.json", json_text(data, own=False))
    if old is not None:
        _compare(old, movement, allowed, quiet=to.as_json)


def _lines(
    movement: hlo.MovementReport, rankings: list[str], top: int, only: list[str], transfers: bool
) -> Iterator[Line]:
    width = terminal_width()
    for text in movement.head_lines():
        yield from (("", line) for line in textwrap.wrap(text, width, subsequent_indent="  "))
    if changes := list(movement.change_lines(width=width)):
        yield ""
        yield from changes
    for ranking in rankings:
        yield ""
        yield from movement.ranking_lines(ranking, top, width, only, transfers)


def _compare(old: hlo.MovementReport, new: hlo.MovementReport, allowed: float, quiet: bool) -> None:
    """The difference from the baseline; CheckFailed where it grew by more than is allowed."""
    layouts = [f"predicted for {side.target}" if side.predicted else "the dump's own" for side in (old, new)]
    for name, before, after in (("layouts", *layouts), ("kind of program", old.kind, new.kind)):
        if before != after:
            problem = f"the baseline's {name}: {before}; this report's: {after}"
            raise UsageError(problem, where="--baseline", how="make the baseline anew, from the same kind of program")
    difference = hlo.diff_reports(old, new)
    if not quiet:
        show(["", ("bold", "against the baseline"), *difference.lines(10, terminal_width())])
    if failed := difference.regressions(allowed):
        raise CheckFailed("; ".join(failed), how=f"--fail-on allows {allowed:.1%}")


def diff(
    before: Annotated[str, Argument(help=_SIDE)],
    after: Annotated[str, Argument(help="The same, of the other side.")],
    target: _TargetOption = None,
    top: Annotated[int, Option(min=1, help="How many rows to print.")] = 20,
    arg: programs.ArgOption = None,
    module: programs.ModuleOption = None,
    *,
    to: Annotated[Output, Files(".json", ".html", stdout=None)],
) -> None:
    """Compare two programs: movement new, gone and changed; of two dumps on a TPU also time, with line and cause.

    Two runs (report.json, of a recommender, or of any program on a target) and two embedding plans (embed plan --json)
    are compared by their figures.
    """
    if reports := both_reports(before, after):
        compare_reports(reports, (before, after), to, top)
        return
    chip, sides, loaded = targets.target(target) if target else None, list[hlo.MovementReport](), list[hlo.Program]()
    for side in (before, after):  # a report's JSON is read, anything else is loaded and reported on
        if Path(side).suffix.lower() == ".json":
            sides.append(_read_report(side))
        else:
            loaded.append(programs.load_program(side, arg, module))
            sides.append(make_report(loaded[-1], chip, side))
    difference, upgrade = hlo.diff_reports(sides[0], sides[1]), None
    if target is not None and [program.kind for program in loaded] == ["hlo", "hlo"]:
        with suppress(UnsupportedError):  # a target without a time model
            upgrade = hlo.diagnose_upgrade(loaded[0], loaded[1], target)

    def lines() -> Iterator[Line]:
        if upgrade is not None:
            yield from (("", line) for line in (*upgrade.lines(top, terminal_width()), ""))
        yield from difference.lines(top, terminal_width())

    plain = difference.to_json() | ({"time": upgrade.to_json()} if upgrade else {})
    deliver(Answer(lambda: plain, lines), to, {".html": lambda: difference.to_html(upgrade)}, said=())


# Two reports written as JSON: embedding plans, runs of a recommender, runs of a program on a target.

Plain = Mapping[str, Any]

PLAN = (
    Quantity("HBM a chip", "bytes", "less", "hbm_per_chip.total_bytes"),
    Quantity("tables a chip", "bytes", "less", "hbm_per_chip.tables_bytes"),
    Quantity("optimizer slots a chip", "bytes", "less", "hbm_per_chip.slots_bytes"),
    Quantity("buffers of a batch, one device", "bytes", "less", "stacks.*.buffer_bytes_per_device", sum),
    Quantity("max ids per partition, all stacks", "count", "less", "stacks.*.limits.max_ids_per_partition", sum),
    Quantity("wait, largest", "ratio", "less", "stacks.*.wait", max),
    Quantity("imbalance, largest", "ratio", "less", "stacks.*.imbalance", max),
    Quantity("entries dropped, largest share", "percent", "less", "stacks.*.drop_rate", max),
    Quantity("batches over the limits", "percent", "less", "batches_over"),
    Quantity("bytes a step moves, a chip", "bytes", "less", "feeding.step_bytes_per_chip"),
    Quantity("a step's lookups and updates, modelled", "seconds", "less", "step_per_chip.waited"),
    Quantity("chips", "count", "neither", "topology.chips"),
    Quantity("samples a batch", "count", "neither", "batch"),
)


def _step_seconds(parts: Plain) -> float | None:
    return max(parts.get("dense_seconds") or 0.0, parts.get("sparse_seconds") or 0.0) or None


_RUN = (
    Quantity("a step, modelled", "seconds", "less", "modelled_step", _step_seconds),
    Quantity("TensorCore, modelled", "seconds", "less", "modelled_step.dense_seconds"),
    Quantity("SparseCores, modelled", "seconds", "less", "modelled_step.sparse_seconds"),
    Quantity("AUC after training", "number", "more", "auc_after"),
    Quantity("loss after training", "number", "less", "loss_after"),
    Quantity("largest difference of the proof", "number", "less", "max_difference"),
    Quantity("steps", "count", "neither", "steps"),
    Quantity("peak memory of this machine", "bytes", "less", "peak_rss_bytes"),
    *(replace(quantity, path=f"plan.{quantity.path}") for quantity in PLAN),
)
_PROGRAM_RUN = (
    Quantity("a step, cycles", "count", "less", "machine.cycles"),
    Quantity("a step, modelled", "seconds", "less", "step.device_seconds"),
    Quantity("the call beside it", "seconds", "less", "step.call_seconds"),
    Quantity("bytes through HBM", "bytes", "less", "step.bytes"),
    Quantity("math units busy", "percent", "more", "machine.math_utilisation"),
    Quantity("bytes through L1", "bytes", "less", "machine.bytes.l1.*", sum),
    Quantity("bytes through L2", "bytes", "less", "machine.bytes.l2.*", sum),
    Quantity("bytes through DRAM", "bytes", "less", "machine.bytes.dram.*", sum),
    Quantity("energy, pJ", "number", "less", "machine.energy_pj"),
    Quantity("left to XLA", "percent", "less", "machine.fallback_share"),
    Quantity("moved, as written", "bytes", "less", "moved.before"),
    Quantity("moved, as run", "bytes", "less", "moved.after"),
    Quantity("layers cut into slices", "count", "less", "layers", lambda of: len(value_at(of, "*.cut") or ())),
    Quantity("memory asked for at once", "bytes", "less", "memory.need"),
    Quantity("memory there is", "bytes", "neither", "memory.capacity"),
    Quantity("tensors or layers without room", "count", "less", "memory.misfits", len),
    Quantity("checks that failed", "count", "less", "verification", lambda of: sum(not check["ok"] for check in of)),
    Quantity("loss after a step", "number", "less", "embeddings.loss_after"),
    *(replace(quantity, path=f"embeddings.plan.{quantity.path}") for quantity in PLAN),
)
_KINDS = {
    "run": ("a run", "Two runs", _RUN),
    "embedding_plan": ("an embedding plan", "Two embedding plans", PLAN),
    "program_run": ("a program's run on a target", "Two runs of programs", _PROGRAM_RUN),
}


def both_reports(before: str, after: str) -> tuple[Plain, Plain] | None:
    """The contents of two files that hold runs or plans; None where the first is something else."""
    if (first := _report(before)) is None:
        return None
    if (second := _report(after)) is None or first["kind"] != second["kind"]:
        problem = f"the one is {_KINDS[first['kind']][0]}, the other is not"
        raise UsageError(problem, where=after, how="compare two files of one kind")
    return first, second


def _report(path: str) -> Plain | None:
    with suppress(UsageError):
        value = parse(read_text(path), "JSON", path) if path.endswith(".json") else None
        return value if isinstance(value, dict) and value.get("kind") in _KINDS else None
    return None


def compare_reports(sides: tuple[Plain, Plain], names: tuple[str, str], to: Output, top: int) -> None:
    """Print the comparison, of its rows the first ``top``, or write it as a page or as JSON."""
    kind, notes = sides[0]["kind"], tuple[str, ...]()
    try:
        if kind == "program_run":
            notes = tuple(_caveats(*sides))
            of_layers: dict[str, Any] = {"groups": ("figure", "layer"), "notes": notes, "top": top}
            of_layers |= {"rows": layers(*sides), "said": _statements(*sides)}
        else:
            of_layers = {"rows": _rows(kind, *sides)}
        compared = Comparison(kind, _KINDS[kind][1], *names, _changes(kind, *sides), **of_layers)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem, how = "one of the two is no whole report of a run", "write it with tilewright run PROGRAM --json"
        raise UsageError(problem, where=" ".join(names), how=how) from error
    for text in notes:
        remark(f"note: {text}")
    deliver(compared, to, said=[compared.sentence])


def _changes(kind: str, *sides: Plain) -> tuple[Change, ...]:
    """Every quantity that a side has, and what was moved for layout, or rewritten, for each target."""
    # A matrix unit's step is drawn from its cycles and has no seconds of its own.
    sides = tuple({k: v for k, v in side.items() if k != "step" or "machine" not in side} for side in sides)
    key = "rewrites" if kind == "program_run" else "moved"
    found = list(changes(_KINDS[kind][2], *sides))
    for target in dict.fromkeys(name for side in sides for name in side.get(key, {})):
        of = [side.get(key, {}).get(target) for side in sides]
        if kind == "program_run":
            found.append(Change(f"rewrites for {target}", "count", "neither", *of))
        else:
            moved = [value_at(each, "moved_after") for each in of]
            found.append(Change(f"moved by reshapes and transposes on {target}", "bytes", "less", *moved))
    return tuple(found)


def _rows(kind: str, before: Plain, after: Plain) -> tuple[tuple[str, Change], ...]:
    """Tables whose memory differs, and the stages of a run."""
    plans = [side.get("plan") or side for side in (before, after)]
    tables = [{t["name"]: t["padded_bytes"] for t in plan.get("tables", ())} for plan in plans]
    stages = [side.get("stages", {}) if kind == "run" else {} for side in (before, after)]
    rows = [("table", Change(name, "bytes", "less", *two)) for name, *two in _differing(*tables)]
    rows += [("stage", Change(name, "seconds", "less", *two)) for name, *two in _differing(*stages)]
    return tuple(sorted(rows, key=lambda row: (row[0], -row[1].difference)))


def _differing(before: Plain, after: Plain) -> Iterator[tuple[str, Any, Any]]:
    """Names whose values differ, and both; None where a side has none."""
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield name, before.get(name), after.get(name)


# Runs of programs on targets.


def _caveats(before: Plain, after: Plain) -> Iterator[str]:
    """What to know of two sides that differ in program or chip; UsageError where nothing of them can be compared."""
    one, other = (_measured(side) for side in (before, after))
    targets = before.get("target"), after.get("target")
    if one != other:
        raise UsageError(
            f"{targets[0]} {one}, {targets[1]} {other}: times, layers, bytes and memory have no counterpart",
            how="run both programs on one target",
        )
    if targets[0] != targets[1]:
        yield f"two chips, {targets[0]} and {targets[1]}: what differs may be theirs, not the program's"
    if before.get("model") != after.get("model"):
        names = f"{before.get('model')} and {after.get('model')}"
        yield f"two programs, {names}: totals are of different work; layers are paired by what they compute"


def _measured(side: Plain) -> str:
    """What a report of this kind of target measures, in words."""
    if "machine" in side:
        return "counts cycles of layers and pages of L2"
    if "layers" in side:
        return "counts bytes in local memories and no time"
    return "models seconds of operations and HBM"


_FIGURES: dict[str, Kind] = {
    "cycles": "count", "time": "seconds", "bytes": "bytes", "memory": "bytes", "slices": "count"
}  # fmt: skip


class _Layer(NamedTuple):
    """A layer or operation: ``kind`` and ``work`` say what it computes, whatever number its name has."""

    name: str
    label: str
    kind: Hashable
    work: Hashable
    figures: dict[str, float]


_KEYS: tuple[Callable[[_Layer], Hashable], ...] = (
    lambda each: (each.name, each.kind, each.work),
    lambda each: (each.kind, each.work),
    lambda each: (each.name, each.kind),
    lambda each: each.kind,
)


def layers(before: Plain, after: Plain) -> tuple[tuple[str, Change], ...]:
    """The figures of layers that differ, those of time first, the largest change on top.

    Layers pair by name, kind and amount of work; what is left without the name, as numbers shift where a layer was
    added; then by name and kind, as another batch changes all amounts; then by kind.
    """
    rows: list[tuple[str, Change]] = []
    for one, other in matched(list(_layers(before)), list(_layers(after)), _KEYS):
        label = " now ".join(dict.fromkeys(each.label for each in (one, other) if each is not None))
        figures = [{} if each is None else each.figures for each in (one, other)]
        rows += [(name, Change(label, _FIGURES[name], "less", old, new)) for name, old, new in _differing(*figures)]
    order = list(_FIGURES)
    return tuple(sorted(rows, key=lambda row: (order.index(row[0]), -row[1].difference)))


def _layers(side: Plain) -> Iterator[_Layer]:
    memory = side.get("memory") or {}
    at_once = dict(zip(memory.get("steps", ()), memory.get("live", ())))
    if "machine" in side:
        for each in side["machine"].get("layers", ()):
            figures = {"cycles": each["cycles"], "bytes": sum(each["bytes"]["dram"].values())}
            if each["name"] in at_once:
                figures["memory"] = at_once[each["name"]]
            yield _Layer(each["name"], each["name"], _unnumbered(each["name"]), each["operations"], figures)
    elif "layers" in side:
        for each in side["layers"]:
            slices = 1 if each["cut"] is None else each["cut"]["slices"]
            figures = {"bytes": each["loads"] + each["stores"], "memory": each["need"], "slices": slices}
            yield _Layer(each["name"], each["name"], _unnumbered(each["name"]), each["alone"], figures)
    else:
        for each in value_at(side, "step.rows") or ():
            line = each["source"].replace("\\", "/").rpartition("/")[2]  # two checkouts of a program lie in two places
            label = f"{each['op']} {each['name']}" + (f", {line}" if line else "")
            figures = {"time": each["seconds"], "bytes": each["bytes"]}
            yield _Layer(each["name"], label, (each["op"], line), each["flops"], figures)


def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+", "", name)


def _statements(before: Plain, after: Plain) -> tuple[Statement, ...]:
    """Bottleneck, whether everything fits, how each check went, where tensors stand: what is said otherwise."""
    said = [_said(side, before.get("target") != after.get("target")) for side in (before, after)]
    if before.get("model") == after.get("model"):
        for side, places in zip(said, _places(before, after)):
            side |= {f"place: {name}": place for name, place in places.items()}
    order = ("bottleneck", "memory", "check", "no room", "place")
    found = sorted(_differing(*said), key=lambda three: order.index(three[0].partition(":")[0]))
    return tuple(Statement(*three) for three in found)


def _said(side: Plain, two_targets: bool) -> dict[str, Any]:
    """What a side says; of ``two_targets`` each side's own stands in the names of its checks, and is left out."""
    said = {"bottleneck": side.get("bottleneck"), "memory": value_at(side, "memory.sentence")}
    for check in side.get("verification", ()):
        what = check["what"].replace(str(side.get("target")), "the side's own target") if two_targets else check["what"]
        said[f"check: {what}"] = check["said"] if check["ok"] else f"FAILED: {check['said']}"
    return said | {f"no room: {each['name']}": each["why"] for each in value_at(side, "memory.misfits") or ()}


def _places(*sides: Plain) -> list[dict[str, str]]:
    """Where the tensors stand that both sides name, and that have one shape."""
    one, other = ({t["name"]: t["place"] for t in value_at(side, "memory.largest") or ()} for side in sides)
    shapes = [{name: place.partition("{")[0] for name, place in side.items() if "{" in place} for side in (one, other)]
    shared = [name for name in one if name in other and shapes[0].get(name) == shapes[1].get(name)]
    return [{name: side[name] for name in shared} for side in (one, other)]
