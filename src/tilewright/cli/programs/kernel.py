"""`tilewright kernel check`, `time`, `explain`, `run`: does a Pallas kernel compile, how long is it, is it right."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from tilewright.cli.programs.program import PROGRAM_HELP, ArgOption, load_program
from tilewright.cli.streams import Json
from tilewright.errors import CheckFailed, UsageError
from tilewright.render.delivery import Line, Output, deliver, remark
from tilewright.render.tables import Column, Table

if TYPE_CHECKING:
    from tilewright.hlo import KernelCheck

TargetOption = Annotated[str, "--target", "-t", "The chip the kernel is for."]
_SWEEP = re.compile(r"([A-Za-z_]\w*)=([\w,.\s+-]+)")
_MOST = 256
_SHOWN = 16
"""Rows of a search, the fastest first."""


@dataclass(frozen=True)
class _Checks:
    """Checks by the parameters that they were made with."""

    made: Sequence[tuple[dict[str, Any], list[KernelCheck]]]
    error: float = 0.0  # of the model, where tilings were searched

    def to_json(self) -> dict[str, Any]:
        if len(self.made) == 1 and not self.made[0][0]:
            return {"kernels": [check.to_json() for check in self.made[0][1]]}
        rows = [{"parameters": given, "kernels": [check.to_json() for check in checks]} for given, checks in self.made]
        return {"sweep": rows}

    def lines(self) -> Iterator[Line]:
        if len(self.made) == 1:
            for check in self.made[0][1]:
                yield from check.lines()
            return
        names = list(self.made[0][0])
        best = min((seconds for _, checks in self.made if (seconds := _seconds(checks))), default=0.0)
        rows = []
        for given, checks in self.made:
            seconds, problem = _seconds(checks), next((p for check in checks for p in check.problems), None)
            vmem, moved = max(check.vmem_bytes for check in checks), sum(check.hbm_bytes for check in checks)
            bound = max(checks, key=lambda check: check.seconds).bound
            said = "fastest" if seconds and seconds == best else problem.kind if problem else bound
            rows.append((*(given[name] for name in names), "no" if problem else "yes", vmem, moved, seconds, said))
        sizes = Column("vector memory", "bytes"), Column("HBM", "bytes"), Column("time", "seconds")
        yield Table((*names, "compiles", *sizes, "bound or why not"), rows[:_SHOWN] if self.error else rows)
        if best:
            given, checks = min(((g, c) for g, c in self.made if _seconds(c)), key=lambda pair: _seconds(pair[1]))
            yield "fastest, as modelled: " + _named(given)
            near = [g for g, c in self.made if best <= _seconds(c) <= best * (1 + self.error) and g != given]
            if self.error:
                yield f"the model is off by {self.error:.0%} on kernels it was not fitted on, more than what sets apart"
                yield (
                    f"{len(near)} others of {len(self.made)} tried"
                    + ": " * bool(near)
                    + "; ".join(map(_named, near[:8]))
                )
            for check in checks:
                yield from check.lines()


@dataclass(frozen=True)
class _Explained:
    """Kernels, and which of their accounts the terminal shows."""

    checks: Sequence[KernelCheck]
    target: str
    shown: str

    def to_json(self) -> dict[str, Any]:
        return {"kernels": [check.to_json() for check in self.checks]}

    def lines(self) -> Iterator[Line]:
        for check in self.checks:
            yield from getattr(check, self.shown)()

    def page(self) -> str:
        return self.checks[0].to_html(self.target, self.checks[1:])


def _named(given: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in given.items())


def _seconds(checks: Sequence[KernelCheck]) -> float:
    """Of kernels that all compile and all have a time; 0 of others."""
    return sum(c.seconds for c in checks) if all(c.ok and c.seconds for c in checks) else 0.0


def check(
    program: Annotated[str, Argument(metavar="PROGRAM", help=PROGRAM_HELP, show_default=False)],
    target: TargetOption = "tpu-v6e",
    arg: ArgOption = None,
    sweep: Annotated[
        list[str] | None, "NAME=128,256: a parameter of the function takes each value; repeat it for all combinations."
    ] = None,
    tune: Annotated[str, "BM,BN: search tilings, these parameters of the function by powers of two that divide."] = "",
    output: Annotated[str | None, "--output", "-o", "Write a .json file."] = None,
    as_json: Json = False,
) -> None:
    """Check Pallas kernels without a TPU: whether they compile, vector memory, what is fetched how often, the time."""
    where = Output(output, as_json, ".json")
    from tilewright.hlo import names_python
    from tilewright.targets import target as find_target

    if (sweep or tune) and not names_python(program):
        raise UsageError("a sweep needs a Python function", where=program, how="name one: model.py:function")
    made: list[tuple[dict[str, Any], list[KernelCheck]]] = []
    for given in _combinations(sweep or []):
        asked = [(given, _checked(program, arg, target, given))]
        made += _tuned(program, arg, target, given, [name for name in tune.split(",") if name]) if tune else asked
    error = find_target("tpu-v6e").time["pallas"].error  # seen on all chips together
    deliver(_Checks(made, error if tune else 0.0), where)
    bad = [given for given, checks in made if not all(check.ok for check in checks)]
    if len(bad) == len(made):
        raise CheckFailed("no kernel compiles" if len(made) > 1 else "a kernel does not compile", where=program)
    if bad:
        remark(f"note: {len(bad)} of {len(made)} do not compile")


def time(
    program: Annotated[str, Argument(metavar="PROGRAM", help=PROGRAM_HELP, show_default=False)],
    target: TargetOption = "tpu-v6e",
    arg: ArgOption = None,
    output: Annotated[str | None, "--output", "-o", "Write a .json file."] = None,
    as_json: Json = False,
) -> None:
    """Time Pallas kernels, modelled: the steps of each grid by what bounds them, and the steps that take most of it."""
    where = Output(output, as_json, ".json")
    deliver(_Explained(_checked(program, arg, target), target, "times"), where)


def explain(
    program: Annotated[str, Argument(metavar="PROGRAM", help=PROGRAM_HELP, show_default=False)],
    target: TargetOption = "tpu-v6e",
    arg: ArgOption = None,
    output: Annotated[str | None, "--output", "-o", "Write a .html page or a .json file."] = None,
    as_json: Json = False,
) -> None:
    """Explain Pallas kernels: what moves again, what the time goes to, what to do; as a page with pictures."""
    where = Output(output, as_json, ".json", ".html")
    deliver(_Explained(_checked(program, arg, target), target, "movement"), where)


def run(
    program: Annotated[str, Argument(metavar="MODEL.PY:FN", help=PROGRAM_HELP, show_default=False)],
    arg: ArgOption = None,
    seed: Annotated[int, "--seed", "Of the random numbers that its arrays hold."] = 0,
    output: Annotated[str | None, "--output", "-o", "Write a .json file."] = None,
    as_json: Json = False,
) -> None:
    """Run Pallas kernels block by block: what is read or left unwritten, races, padding in results, copies at fault."""
    where = Output(output, as_json, ".json")
    from tilewright.hlo import names_python, run_kernels

    if not names_python(program):
        raise UsageError("only a Python function can be run", where=program, how="name one: model.py:function")
    with redirect_stdout(sys.stderr):
        ran = run_kernels(program, *(arg or []), seed=seed)
    deliver(ran, where)
    if ran.faults:
        raise CheckFailed(f"{len(ran.faults)} faults", where=program)


def _checked(program: str, arg: list[str] | None, target: str, given: Mapping[str, Any] | None = None) -> Any:
    from tilewright.hlo import check_kernels, names_python

    if names_python(program):
        with redirect_stdout(sys.stderr):
            checks = check_kernels(program, *(arg or []), target=target, **(given or {}))
    else:
        checks = check_kernels(load_program(program, arg), target=target)
    if not checks:
        raise UsageError("there is no Pallas kernel for a TPU in it", where=program, how="leave interpret=True out")
    return checks


def _tuned(
    program: str, arg: list[str] | None, target: str, given: dict[str, Any], names: Sequence[str]
) -> list[tuple[dict[str, Any], list[KernelCheck]]]:
    """Tilings from 128 on by powers of two that divide a side of an array: one parameter or two are doubled or halved
    as long as that is better. What was tried, the fastest first."""
    if not all(map(str.isidentifier, names)):
        raise UsageError(f"'{','.join(names)}' names no parameters", where="--tune", how="write bm,bn")
    best = dict.fromkeys(names, 128) | given
    tried = {_named(best): (best, _checked(program, arg, target, best))}
    sides = {side for check in tried[_named(best)][1] for w in check.windows for side in w.array}
    values = [1 << n for n in range(3, 14) if not sides or any(side % (1 << n) == 0 for side in sides)]
    moves = [move for move in product((0, -1, 1), repeat=len(names)) if 0 < sum(map(abs, move)) < 3]
    before = None
    while before != best and len(tried) < _MOST:
        before = best
        for move in moves:
            at = [values.index(best[name]) + by if best[name] in values else -1 for name, by in zip(names, move)]
            some = best | {name: values[k] for name, k in zip(names, at) if 0 <= k < len(values)}
            if _named(some) not in tried and len(tried) < _MOST:
                tried[_named(some)] = some, _checked(program, arg, target, some)
        found = [pair for pair in tried.values() if _seconds(pair[1])]
        best = min(found, key=lambda pair: _seconds(pair[1]))[0] if found else best
    return sorted(tried.values(), key=lambda pair: _seconds(pair[1]) or float("inf"))


def _combinations(sweeps: Sequence[str]) -> list[dict[str, Any]]:
    """Every choice of one value for each name."""
    values: dict[str, list[Any]] = {}
    for text in sweeps:
        match = _SWEEP.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"'{text}' is no sweep", where="--sweep", how="write bm=128,256,512")
        words = [word.strip() for word in match[2].split(",") if word.strip()]
        values[match[1]] = [int(word) if re.fullmatch(r"[+-]?\d{1,15}", word) else word for word in words]
    made = [dict(zip(values, chosen)) for chosen in product(*values.values())]
    if len(made) > _MOST:
        raise UsageError(f"{len(made)} combinations", where="--sweep", how=f"at most {_MOST}: fewer values")
    return made
