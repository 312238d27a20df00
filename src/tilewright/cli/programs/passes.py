"""Faces of the rewrites as passes: which there are, what each did, the program after each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.cli.streams import emit_json, emit_text, remark, write_file

if TYPE_CHECKING:
    from tilewright.hlo import Optimized
    from tilewright.hlo.rewrites import PassRun


def list_passes(as_json: bool) -> None:
    """Every rewrite with one line, its options below it, and the default pipeline."""
    from tilewright.hlo.rewrites import DEFAULT_PIPELINE, REWRITES, options

    if as_json:
        emit_json({"passes": [_described(name) for name in REWRITES], "default": DEFAULT_PIPELINE})
        return
    width = max(map(len, REWRITES))
    lines = []
    for name, rewrite in REWRITES.items():
        lines.append(f"{name:{width}}  {rewrite.summary}")
        lines += [
            f"{'':{width}}    {option.name}={option.default}  {option.summary} ({option.kind})"
            for option in options(rewrite)
        ]
    emit_text("\n".join([*lines, "", "by default all of them, in this order, until none changes anything:"]))
    emit_text(DEFAULT_PIPELINE)


def _described(name: str) -> dict[str, Any]:
    from tilewright.hlo.rewrites import REWRITES, options

    chosen = [vars(option) for option in options(REWRITES[name])]
    return {"name": name, "summary": REWRITES[name].summary, "options": chosen}


def run_passes(text: str, passes: str, output: str | None, diff: bool, print_after_all: bool, as_json: bool) -> None:
    """Run a pipeline without any gate; the result goes to ``output``, what each pass did to stdout or stderr."""
    from tilewright.hlo.rewrites import format_pipeline, parse_pipeline, record_passes, run_pipeline

    steps = parse_pipeline(passes)
    if not (diff or print_after_all or as_json):
        result, counts = run_pipeline(text, steps)
        write_file(output or "-", result)
        for step in steps:
            remark(f"{step}: {counts[step.name]} changes")
        return
    runs = record_passes(text, steps)
    if print_after_all:
        print_after(runs, output)
    if output and not is_folder(output):
        write_file(output, runs[-1].after)
    if as_json:
        emit_json({"pipeline": format_pipeline(steps), "passes": [_run_as_json(run) for run in runs]})
    elif diff:
        emit_text(diffs(runs))


def _run_as_json(run: PassRun) -> dict[str, object]:
    return {"pass": run.step, "round": run.round, "changes": run.changes, "diff": run.diff()}


def is_folder(output: str) -> bool:
    """Whether ``-o`` names a folder: one that is there, or a name that ends in a slash."""
    return output.endswith("/") or Path(output).is_dir()


def print_after(runs: Sequence[PassRun], output: str | None) -> None:
    """The program after every pass that changed it: a file each in a folder, else on stderr."""
    if not output or not is_folder(output):
        for run in runs:
            remark(f"// ----- after {_heading(run)}")
            if run.changes:
                remark(run.after)
        return
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(runs, 1):
        if run.changes:
            write_file(str(folder / f"{number:02d}-{_file_name(run.step)}.mlir"), run.after)
    write_file(str(folder / "result.mlir"), runs[-1].after)
    remark(f"wrote {sum(run.changes > 0 for run in runs) + 1} files to {folder}")


def _file_name(step: str) -> str:
    return "regions" if " " in step else step.partition("{")[0]


def stages(found: Optimized) -> list[PassRun]:
    """A gated run: the passes work on copies of regions, so there is the program with calls inlined, and the result."""
    from tilewright.hlo.rewrites import PassRun, parse_pipeline, record_passes, run_pipeline

    inlined = record_passes(found.original.text, parse_pipeline("inline"))[0]
    result = run_pipeline(found.text, ())[0]
    fired = {name: count for name, count in found.changes.items() if count and name != "inline"}
    step = f"the accepted regions ({', '.join(fired) or 'none'})"
    return [inlined, PassRun(step, 1, sum(fired.values()), inlined.after, result)]


def diffs(runs: Sequence[PassRun]) -> str:
    """What each pass changed, one diff after the other; those that changed nothing are marked."""
    parts = []
    for run in runs:
        parts.append(f"# {_heading(run)}")
        if run.changes:
            parts.append(run.diff())
    return "\n".join(parts)


def _heading(run: PassRun) -> str:
    return f"round {run.round}, {run.step}: {_count(run.changes)}"


def _count(changes: int) -> str:
    return "unchanged" if not changes else f"{changes} change{'s' * (changes != 1)}"


def changes_table(changes: Mapping[str, int]) -> str:
    """How often each pass of a pipeline fired, in its order; those that never did are marked."""
    width = max(map(len, changes), default=0)
    return "\n".join(f"# {name:{width}}  {_count(count)}" for name, count in changes.items())
