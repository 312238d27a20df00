"""`tilewright lint`: what the rules would change in model functions, one line each, like any linter."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from enum import StrEnum
from typing import Annotated

from typer import Argument

from tilewright import hlo, targets
from tilewright.cli.options import Json
from tilewright.cli.programs.program import ArgOption, AssumeOption, MeshOptions, ProgramOptions, assumptions
from tilewright.errors import CheckFailed, UsageError
from tilewright.extras import need
from tilewright.render.delivery import Answer, Line, deliver, json_text, remark
from tilewright.render.formats import counted, place_text

#: What `--target` and `--threshold` are where nobody says.
TARGET, THRESHOLD = "tpu-v5e", 1.05


_Format = StrEnum("_Format", "LINES GITHUB SARIF")


def lint(
    programs: Annotated[list[str], Argument(help="model.py (all its functions), model.py:function, or StableHLO.")],
    target: Annotated[str, "--target", "-t", "The chip that the factors are for."] = TARGET,
    threshold: Annotated[float, "Exit 1 if a finding's factor is at least this."] = THRESHOLD,
    exit_zero: Annotated[bool, "Exit 0 whatever is found."] = False,
    assume_finite: Annotated[bool, "No value is NaN or infinite, so suggestions need not mention it."] = False,
    style: Annotated[_Format, "--format", "github: annotations in a workflow; sarif: a log."] = _Format.LINES,
    arg: ArgOption = None,
    assume: AssumeOption = None,
    *,
    meshed: MeshOptions,
    to: Json,
) -> None:
    """Name the lines of a model that a rule would make faster, by how much, and what to write instead."""
    if arg and len(programs) > 1:
        how = "lint one at a time, or let the files say it: step_example_args, or EXAMPLES"
        raise UsageError("--arg goes with one function", how=how)
    targets.target(target)  # a name that there is not is no function's fault
    found: dict[str, list[hlo.Suggestion]] = {}
    of, assumed = ProgramOptions(**vars(meshed), arg=arg), assumptions(assume)
    for program in programs:
        found |= _by_function(program, target, assume_finite, of, assumed)
    ranked = [each for some in found.values() for each in some]
    ranked.sort(key=lambda each: (-(each.saved_us or 0.0), -(each.factor or 0.0)))
    failing = [each for each in ranked if fails(each, threshold)]

    def lines() -> Iterator[Line]:
        if style is _Format.SARIF:
            yield json_text(hlo.suggestions_sarif(ranked, target), own=False)
            return
        told: set[str] = set()
        for each in ranked:
            yield _annotation(each, threshold) if style is _Format.GITHUB else line(each)
            if style is _Format.LINES and each.rule not in told:
                yield from (f"    {code}" for code in _instead(each))
            told.add(each.rule)

    keys = ("rule", "factor", "kind", "saved_us", "what", "how", "op", "basis")
    rows = [
        {"program": program, "file": path, "line": number, "column": each.column + 1}
        | {key: getattr(each, key) for key in keys}
        | {"write": "\n".join(_instead(each))}
        for program, some in found.items()
        for each in some
        for path, number in [_path_and_line(each)]
    ]
    value = {"target": target, "threshold": threshold, "failing": len(failing), "findings": rows}
    deliver(Answer(lambda: value, lines), to)
    remark(f"{counted(len(ranked), 'finding')}, {len(failing)} of a factor of {threshold:g} or more, on {target}")
    if failing and not exit_zero:
        raise CheckFailed(f"{counted(len(failing), 'line')} could be at least {threshold:g} times as fast on {target}")


def _by_function(
    program: str, target: str, assume_finite: bool, of: ProgramOptions, assumed: Mapping[str, float]
) -> dict[str, list[hlo.Suggestion]]:
    """The findings of a program, or of each function of a Python file; those left out are named on stderr."""
    if not program.endswith(".py"):
        return {program: findings(program, target, assume_finite, of, assumed)}
    need("jax", "jaxlib", what="`lint`")
    with redirect_stdout(sys.stderr):
        functions = hlo.functions_in(program, of.arg or ())
    linted: dict[str, list[hlo.Suggestion]] = {}
    for name, why in functions.items():
        each = f"{program}:{name}"
        try:
            if not why:
                linted[each] = findings(each, target, assume_finite, of, assumed)
        except UsageError as error:  # tracing it fails
            why = str(error)
        if why:
            remark(f"left out: {each}: {why}")
    if not linted:
        how = f"add --arg f32[8,128] for each argument, or EXAMPLES = {{NAME: (arguments,)}} to {program}"
        raise UsageError("it has no function that can be linted", where=program, how=how)
    names = ", ".join(name.rpartition(":")[2] for name in linted)
    remark(f"linted {counted(len(linted), 'function')} of {program}: {names}")
    return linted


def findings(
    program: str,
    target: str,
    assume_finite: bool = False,
    of: ProgramOptions | None = None,
    assumed: Mapping[str, float] | None = None,
) -> list[hlo.Suggestion]:
    """What the rules say about one program; UsageError for one that carries its compiler's layouts already."""
    need("jax", "jaxlib", what="`lint`")  # without them no rule can look, and nothing found would be a false all-clear
    chip = targets.target(target)  # before the program is loaded for it
    loaded = (of or ProgramOptions()).load(program)
    if loaded.kind != "stablehlo":
        raise UsageError("a compiler's dump is no model", where=program, how="lint the function, or its StableHLO")
    return [*hlo.suggest(loaded, chip, assume_finite, assumed), *hlo.sharding_advice(loaded, chip)]


def fails(finding: hlo.Suggestion, threshold: float) -> bool:
    """Whether it is worth stopping for; what has no factor never is."""
    return finding.factor is not None and finding.factor >= threshold


def line(finding: hlo.Suggestion) -> str:
    """``model.py:41:8 grouped-query-attention 57.8x predicted, saves 2 ms: keys ...; reshape ...``."""
    basis = f" [{finding.basis}]" if finding.basis else ""
    place = f"{place_text(finding.source)}:{finding.column + 1}" if finding.source else finding.op
    return f"{place} {finding.rule} {_factor(finding)}: {finding.what}; {finding.how}{basis}"


def _instead(finding: hlo.Suggestion) -> list[str]:
    """Python to paste, with the names and sizes of one's own."""
    rule = hlo.catalogue().get(finding.rule)
    return rule.instead if rule is not None else []


def _path_and_line(finding: hlo.Suggestion) -> tuple[str, int]:
    path, _, number = place_text(finding.source).rpartition(":")
    return path, int(number or 0)


def _factor(finding: hlo.Suggestion) -> str:
    saves = f", saves {finding.saved}" if finding.saved_us else ""
    return "unpriced" if finding.factor is None else f"{finding.factor:.3g}x {finding.kind}{saves}"


def _annotation(finding: hlo.Suggestion, threshold: float) -> str:
    """A finding as GitHub's workflow command, which marks the line in a pull request."""
    level = "warning" if fails(finding, threshold) else "notice"
    path, number = _path_and_line(finding)
    where = f"file={path},line={number},col={finding.column + 1}," if path else ""
    text = f"{_factor(finding)}: {finding.what}; {finding.how}"
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{level} {where}title={finding.rule}::{escaped}"
