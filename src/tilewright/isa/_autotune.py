"""autotune: the fastest way to make a matrix product on a machine, by the machine's own clock, and why it is.

The product is not computed. Closed forms give cycles that no run can stay below; choices are taken in that order and
run with the values left out (``values=False``: the same program, the same clock, the same caches), until what is left
cannot be faster than the best so far. So the choice is the best of all considered, not of those tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa._checks import whole
from tilewright.isa._config import MatrixUnitConfig
from tilewright.isa._counts import Counts
from tilewright.isa._errors import MatrixUnitError
from tilewright.isa._expected import expected_counts
from tilewright.isa._matmul import MatmulResult, matmul
from tilewright.isa._segments import ELEMENT_TYPES
from tilewright.isa._tune_bound import busy
from tilewright.isa._tune_space import Choice, Problem, choices
from tilewright.layout import paged

__all__ = ["Tuned", "Tuning", "autotune"]

_MOST_ELEMENTS = 1 << 27
_MOST_LOADS = 1 << 20
"""Columns loaded by a run that is timed as a whole; of larger ones three row blocks are, if there are more."""


@dataclass(frozen=True)
class Tuned:
    """One choice, timed or not.

    ``cycles``: None where it was left out, because ``bound`` (cycles no run can stay below) was enough, or where
    ``refused`` says why it cannot run. ``limit``: the unit behind the bound. ``math_cycles``, ``stalls``, ``queue`` and
    ``counts`` are those of the run; ``utilisation``: multiplications made of those all threads could make in its
    cycles. ``scaled``: timed on three row blocks, the others taken to cost what the third does.
    """

    choice: Choice
    bound: int
    limit: str
    cycles: int | None = None
    math_cycles: int = 0
    utilisation: float = 0.0
    stalls: dict[str, int] | None = None
    queue: dict[str, int] | None = None
    counts: Counts | None = None
    buffering: str = ""
    scaled: bool = False
    refused: str = ""

    @property
    def stall(self) -> str:
        """What the math unit waited for most; "" where it never did."""
        stalls = self.stalls or {}
        return max(stalls, key=lambda name: stalls[name]) if any(stalls.values()) else ""


@dataclass(frozen=True)
class Tuning:
    """``best`` and ``default``, every choice in ``ranking`` (timed ones first, the fastest first), and ``why``.

    ``proved``: no choice that was left out can be faster (by more than ``within``); ``best_left`` is the least bound
    among them.
    ``options`` are the keywords for :func:`matmul`.
    """

    problem: Problem
    dtype: str
    best: Tuned
    default: Tuned
    ranking: tuple[Tuned, ...]
    proved: bool
    within: float
    best_left: int | None

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of :func:`matmul` for the best choice."""
        return self.best.choice.options

    @property
    def timed(self) -> tuple[Tuned, ...]:
        """The choices whose cycles are known, the fastest first."""
        return tuple(each for each in self.ranking if each.cycles is not None)

    @property
    def speedup(self) -> float:
        """How many times fewer cycles than by default."""
        return (self.default.cycles or 0) / (self.best.cycles or 1)

    @property
    def why(self) -> str:
        """Why the best is better than the default, in the math unit's account of all cycles."""
        from tilewright.isa._tune_why import why

        return why(self)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        from tilewright.isa._tune_why import to_dict

        return to_dict(self)


def autotune(
    m: int,
    n: int,
    k: int,
    dtype: str = "s8",
    config: MatrixUnitConfig | None = None,
    most: int = 96,
    within: float = 0.0,
    watch: Callable[[int, int], None] | None = None,
    **fixed: Any,
) -> Tuning:
    """The options of :func:`matmul` that take the fewest modelled cycles for C[m, n] = A[m, k] B[k, n].

    Chosen: ``ka`` and ``kb`` (powers of two, and as many threads as there are for a row), ``order``, ``transpose_b``,
    ``columns``, ``line`` and ``page`` of B, ``split`` over several processing elements, ``segments`` where B is larger
    than L2; an option that is given keeps its value. ``dtype``: s8, u8, ... f32. ``most``: choices timed at most;
    ``within``: a share of the cycles not worth looking for (0.02: nothing considered is faster by more than 2 percent);
    ``watch(done, most)`` is told. Cycles are those the machine would count, exactly, unless ``scaled``. Raises
    :class:`UsageError` for empty products and options it does not know.

    >>> tuning = autotune(16, 64, 64, config=MatrixUnitConfig(threads=64), line=None, columns=None)
    >>> print(tuning.best.choice, tuning.best.cycles, tuning.default.cycles, tuning.proved)
    ka1 kb4 k_outer t0 888 1514 True
    """
    config = config or MatrixUnitConfig()
    if dtype not in ELEMENT_TYPES:
        raise UsageError(f"no element type called {dtype!r} for matrices", how=f"one of {', '.join(ELEMENT_TYPES)}")
    kind = paged((1,), dtype).numpy_dtype
    m, n, k = whole("m", m, 1), whole("n", n, 1), whole("k", k, 1)
    problem = Problem(m, n, k, kind.itemsize, config)
    if max(m * n, m * k, n * k) > _MOST_ELEMENTS:
        raise UsageError(f"a matrix of more than {_MOST_ELEMENTS} elements", how="tune a part of it")
    fixed = _fixed(problem, fixed)
    if not 0 <= within < 1:
        raise UsageError(f"within = {within!r}", how="a share from 0 to less than 1")
    return _search(problem, dtype, choices(problem, fixed), whole("most", most, 1), float(within), watch)


def _fixed(problem: Problem, given: dict[str, Any]) -> dict[str, Any]:
    """Options that keep their value, or one clear error."""
    known = sorted(f.name for f in fields(Choice))
    for name in given:
        if name not in known:
            raise UsageError(f"no option called {name!r}", how=f"one of {', '.join(known)}")
    fixed = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    shared: dict[str, Any] = {
        name: fixed[name] for name in ("ka", "kb", "transpose_b", "order", "columns") if name in fixed
    }
    expected_counts(problem.m, problem.n, problem.k, problem.config, problem.element_bytes, **shared)  # refuses
    return fixed


def _search(
    problem: Problem,
    dtype: str,
    space: list[Choice],
    most: int,
    within: float,
    watch: Callable[[int, int], None] | None,
) -> Tuning:
    """Best first by the bounds, the default before all."""
    bounded = [_bounded(problem, choice) for choice in space]
    waiting = sorted(bounded[1:], key=lambda each: (each.bound, each.choice.settings, str(each.choice)))
    default = _timed(problem, dtype, bounded[0])
    done, best, left = [default], default, []
    for each in waiting:
        if best.cycles is not None and (each.bound >= best.cycles * (1 - within) or len(done) >= most):
            left.append(each)
            continue
        done.append(_timed(problem, dtype, each))
        if watch is not None:
            watch(len(done), most)
        best = min(best, done[-1], key=_rank)
    if best.cycles is None:
        raise UsageError(f"nothing considered can run; the default: {default.refused}", how="fix fewer options")
    ranking = (*sorted(done, key=_rank), *left)
    least = min((each.bound for each in left), default=None)
    proved = least is None or least >= best.cycles * (1 - within)
    return Tuning(problem, dtype, best, default, ranking, proved, within, least)


def _rank(each: Tuned) -> tuple[Any, ...]:
    dram = each.counts.dram_bytes if each.counts else 0
    return each.cycles is None, each.cycles or 0, dram, each.choice.settings, str(each.choice)


def _bounded(problem: Problem, choice: Choice) -> Tuned:
    units = busy(problem, choice)
    limit = max(units, key=lambda unit: units[unit])
    return Tuned(choice, units[limit], limit)


def _timed(problem: Problem, dtype: str, each: Tuned) -> Tuned:
    """Run it without its values; where it is long, three of its row blocks."""
    try:
        runs, weights = _runs(problem, dtype, each.choice)
    except (UsageError, MatrixUnitError) as error:
        return replace(each, refused=str(error))
    if runs[0].errors:
        return replace(each, refused=str(runs[0].errors[0]))
    c, p = problem.config, problem
    cycles = _sum([run.cycles for run in runs], weights)
    rate = (c.macs_per_thread_cycle or c.chunk(p.element_bytes)) * c.threads * c.pes
    counted = [run.counts.to_dict() for run in runs]
    return replace(
        each,
        cycles=cycles,
        math_cycles=_sum([run.math_cycles for run in runs], weights),
        utilisation=p.m * p.n * p.k / (cycles * rate),
        stalls=_sums([run.stalls for run in runs], weights),
        queue=_sums([run.queue for run in runs], weights),
        counts=Counts(**_sums(counted, weights)),
        buffering=runs[0].buffering,
        scaled=len(runs) > 1,
    )


def _sum(values: list[int], weights: tuple[int, ...]) -> int:
    return sum(value * weight for value, weight in zip(values, weights, strict=True))


def _sums(accounts: list[dict[str, int]], weights: tuple[int, ...]) -> dict[str, int]:
    return {name: _sum([account[name] for account in accounts], weights) for name in accounts[0]}


def _runs(problem: Problem, dtype: str, choice: Choice) -> tuple[list[MatmulResult], tuple[int, ...]]:
    """Results and what each counts: the whole run once, or three row blocks and, as often as more follow, the third."""
    config = problem.config
    fit = config.compute_threads // (choice.ka * choice.kb)
    share = 1 if choice.split == "columns" else config.pes
    blocks = problem.m // (fit * share)
    rounds = -(-problem.k // config.depth(problem.element_bytes, choice.kb))
    loads = -(-problem.m // fit) * problem.n * rounds * (1 if choice.order == "k_outer" else 64)
    if loads <= _MOST_LOADS or blocks <= 4:
        return [_run(problem, dtype, choice, problem.m)], (1,)
    m = problem.m - (blocks - 3) * fit * share
    return [_run(problem, dtype, choice, each) for each in (m, m - fit * share)], (blocks - 2, 3 - blocks)


def _run(problem: Problem, dtype: str, choice: Choice, m: int) -> MatmulResult:
    kind = paged((1,), dtype).numpy_dtype
    a, b = np.zeros((m, problem.k), kind), np.zeros((problem.k, problem.n), kind)
    plain: dict[str, Any] = {"on_error": "record", "overflow": "wrap", "float_order": "chunk", "uninitialized": "zero"}
    config = replace(problem.config, values=False, **plain)
    return matmul(a, b, config, **choice.options)
