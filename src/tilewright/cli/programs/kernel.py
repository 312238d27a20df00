"""`tilewright kernel check`, `time`, `explain`, `run`: does a Pallas kernel compile, how long is it, is it right."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, NamedTuple

from typer import Argument

from tilewright import hlo, targets
from tilewright.cli.options import Files, swept
from tilewright.cli.programs.program import PROGRAM_HELP, ArgOption, ProgramArgument, load_program
from tilewright.errors import CheckFailed, UsageError
from tilewright.render.delivery import Line, Output, deliver, remark
from tilewright.render.formats import counted
from tilewright.render.tables import Column, Table

_ToJson = Annotated[Output, Files(".json")]
_MOST = 256
_SHOWN = 16
"""Rows of a search, the fastest first."""


class _Trial(NamedTuple):
    """The kernels of a function that was given these parameters."""

    given: dict[str, Any]
    checks: list[hlo.KernelCheck]

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.given.items())

    @property
    def seconds(self) -> float:
        """Of kernels that all compile and all have a time; infinite for others."""
        timed = all(check.ok and check.seconds for check in self.checks)
        return sum(check.seconds for check in self.checks) if timed else math.inf

    def row(self, best: float) -> tuple[object, ...]:
        """What it takes, and why it does not compile or what bounds it."""
        problem = next((problem for check in self.checks for problem in check.problems), None)
        vmem, moved = max(check.vmem_bytes for check in self.checks), sum(check.hbm_bytes for check in self.checks)
        bound = max(self.checks, key=lambda check: check.seconds).bound
        said = "fastest" if self.seconds == best < math.inf else problem.kind if problem else bound
        seconds = self.seconds if self.seconds < math.inf else 0.0
        return (*self.given.values(), "no" if problem else "yes", vmem, moved, seconds, said)


@dataclass(frozen=True)
class _Trials:
    """One trial or many, the error of the model where tilings were searched, and which account the terminal shows."""

    tried: Sequence[_Trial]
    target: str
    error: float = 0.0
    shown: str = "lines"

    def to_json(self) -> dict[str, Any]:
        rows = [{"parameters": t.given, "kernels": [check.to_json() for check in t.checks]} for t in self.tried]
        return {"kernels": rows[0]["kernels"]} if len(rows) == 1 and not self.tried[0].given else {"sweep": rows}

    def lines(self) -> Iterator[Line]:
        best = min(self.tried, key=lambda trial: trial.seconds)
        if len(self.tried) > 1:
            sizes = Column("vector memory", "bytes"), Column("HBM", "bytes"), Column("time", "seconds")
            rows = [trial.row(best.seconds) for trial in self.tried]
            yield Table((*best.given, "compiles", *sizes, "bound or why not"), rows[:_SHOWN] if self.error else rows)
            if best.seconds == math.inf:
                return
            yield f"fastest, as modelled: {best}"
        if len(self.tried) > 1 and self.error:
            near = [t for t in self.tried if t.seconds <= best.seconds * (1 + self.error) and t is not best]
            yield f"the model is off by {self.error:.0%} on kernels it was not fitted on, more than what sets apart"
            yield (f"{len(near)} others of {len(self.tried)} tried" + ": " * bool(near) + "; ".join(map(str, near[:8])))
        for check in best.checks:
            yield from getattr(check, self.shown)()

    def page(self) -> str:
        """Of the first trial."""
        first, *others = self.tried[0].checks
        return first.to_html(self.target, others)


@dataclass(frozen=True)
class Kernels:
    """The options that say which kernels, and for which chip."""

    program: ProgramArgument
    target: Annotated[str, "--target", "-t", "The chip the kernel is for."] = "tpu-v6e"
    arg: ArgOption = None

    def tried(self, given: dict[str, Any] | None = None) -> _Trial:
        """The kernels; ``given``: parameters of the function."""
        if hlo.names_python(self.program):
            with redirect_stdout(sys.stderr):
                checks = hlo.check_kernels(self.program, *(self.arg or []), target=self.target, **(given or {}))
        else:
            checks = hlo.check_kernels(load_program(self.program, self.arg), target=self.target)
        if not checks:
            how = "leave interpret=True out"
            raise UsageError("there is no Pallas kernel for a TPU in it", where=self.program, how=how)
        return _Trial(given or {}, checks)


def check(
    of: Kernels,
    sweep: Annotated[list[str] | None, "NAME=128,256: a parameter takes each value, in all combinations."] = None,
    tune: Annotated[str, "BM,BN: search tilings, these parameters of the function by powers of two that divide."] = "",
    *,
    to: _ToJson,
) -> None:
    """Check Pallas kernels without a TPU: whether they compile, vector memory, what is fetched how often, the time."""
    if (sweep or tune) and not hlo.names_python(of.program):
        raise UsageError("a sweep needs a Python function", where=of.program, how="name one: model.py:function")
    tried: list[_Trial] = []
    for given in _combinations(sweep or []):
        names = [name for name in tune.split(",") if name]
        tried += _tuned(of, given, names) if tune else [of.tried(given)]
    error = targets.target("tpu-v6e").time["pallas"].error  # seen on all chips together
    deliver(_Trials(tried, of.target, error if tune else 0.0), to)
    bad = [trial for trial in tried if not all(check.ok for check in trial.checks)]
    if len(bad) == len(tried):
        raise CheckFailed("no kernel compiles" if len(tried) > 1 else "a kernel does not compile", where=of.program)
    if bad:
        remark(f"note: {len(bad)} of {len(tried)} do not compile")


def time(of: Kernels, to: _ToJson) -> None:
    """Time Pallas kernels, modelled: the steps of each grid by what bounds them, and the steps that take most of it."""
    deliver(_Trials([of.tried()], of.target, shown="times"), to)


def explain(of: Kernels, to: Annotated[Output, Files(".json", ".html")]) -> None:
    """Explain Pallas kernels: what moves again, what the time goes to, what to do; as a page with pictures."""
    deliver(_Trials([of.tried()], of.target, shown="movement"), to)


def run(
    program: Annotated[str, Argument(metavar="MODEL.PY:FN", help=PROGRAM_HELP)],
    arg: ArgOption = None,
    seed: Annotated[int, "--seed", "Of the random numbers that its arrays hold."] = 0,
    *,
    to: _ToJson,
) -> None:
    """Run Pallas kernels block by block: what is read or left unwritten, races, padding in results, copies at fault."""
    if not hlo.names_python(program):
        raise UsageError("only a Python function can be run", where=program, how="name one: model.py:function")
    with redirect_stdout(sys.stderr):
        ran = hlo.run_kernels(program, *(arg or []), seed=seed)
    deliver(ran, to)
    if ran.faults:
        raise CheckFailed(counted(len(ran.faults), "fault"), where=program)


def _tuned(of: Kernels, given: dict[str, Any], names: Sequence[str]) -> list[_Trial]:
    """Tilings from 128 on by powers of two that divide a side of an array: one parameter or two are doubled or halved
    as long as that is better. What was tried, the fastest first."""
    if not all(map(str.isidentifier, names)):
        raise UsageError(f"'{','.join(names)}' names no parameters", where="--tune", how="write bm,bn")
    best = of.tried(dict.fromkeys(names, 128) | given)
    tried, before = {str(best): best}, None
    sides = {side for check in best.checks for w in check.windows for side in w.array}
    values = [1 << n for n in range(3, 14) if not sides or any(side % (1 << n) == 0 for side in sides)]
    moves = [move for move in product((0, -1, 1), repeat=len(names)) if 0 < sum(map(abs, move)) < 3]
    while before is not best and len(tried) < _MOST:
        before = best
        for move in moves:
            at = [values.index(n) + by if (n := best.given[name]) in values else -1 for name, by in zip(names, move)]
            some = _Trial(best.given | {name: values[k] for name, k in zip(names, at) if 0 <= k < len(values)}, [])
            if str(some) not in tried and len(tried) < _MOST:
                tried[str(some)] = of.tried(some.given)
        best = min(tried.values(), key=lambda trial: trial.seconds)
    return sorted(tried.values(), key=lambda trial: trial.seconds)


def _combinations(sweeps: Sequence[str]) -> list[dict[str, Any]]:
    """Every choice of one value for each name."""
    values: dict[str, list[Any]] = {
        name: [int(word) if re.fullmatch(r"[+-]?\d{1,15}", word) else word for word in words]
        for name, words in swept(sweeps, "--sweep", "bm=128,256,512").items()
    }
    made = [dict(zip(values, chosen)) for chosen in product(*values.values())]
    if len(made) > _MOST:
        raise UsageError(f"{len(made)} combinations", where="--sweep", how=f"at most {_MOST}: fewer values")
    return made
