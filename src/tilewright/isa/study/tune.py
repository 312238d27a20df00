"""autotune: the fastest way to make a matrix product on a machine, by the machine's own clock, and why it is.

The product is not computed. Closed forms give cycles that no run can stay below; choices are taken in that order and
run with the values left out (``values=False``: the same program, the same clock, the same caches), until what is left
cannot be faster than the best so far. So the choice is the best of all considered, not of those tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from tilewright.errors import UsageError
from tilewright.isa.chip.segments import ELEMENT_TYPES
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.counts import Counts
from tilewright.isa.language.errors import MatrixUnitError, whole
from tilewright.isa.multiply.expected import expected_counts
from tilewright.isa.study.choices import Choice, Problem, choices
from tilewright.layout import paged

_MOST_ELEMENTS = 1 << 27


@dataclass(frozen=True)
class Tuned:
    """One choice, timed or not.

    ``cycles``: None where it was left out, because ``bound`` (cycles no run can stay below) was enough, or where
    ``refused`` says why it cannot run. ``limit``: the unit behind the bound. ``math_cycles``, ``stalls``, ``queue`` and
    ``counts`` are those of the run; ``utilisation``: multiplications made of those all threads could make in its
    cycles; ``energy_pj`` is modelled. ``scaled``: timed on three row blocks, the others taken to cost what the third
    does.
    """

    choice: Any
    bound: int
    limit: str
    cycles: int | None = None
    math_cycles: int = 0
    utilisation: float = 0.0
    energy_pj: float = 0.0
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

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: what is known of the choice."""
        plain: dict[str, Any] = {"choice": str(self.choice), "options": self.choice.options, "bound": self.bound}
        plain |= {"limit": self.limit, "cycles": self.cycles}
        if self.counts is None:
            return plain | ({"refused": self.refused} if self.refused else {})
        plain |= {
            "energy_pj": self.energy_pj,
            "math_cycles": self.math_cycles,
            "utilisation": self.utilisation,
            "stall": self.stall,
        }
        plain |= {"stalls": self.stalls, "queue": self.queue, "counts": self.counts.to_dict()}
        return plain | {"buffering": self.buffering, "scaled": self.scaled}


@dataclass(frozen=True)
class Tuning:
    """``best`` and ``default``, every choice in ``ranking`` (timed ones first, the fastest first), and ``why``.

    ``proved``: no choice that was left out can be faster (by more than ``within``); ``best_left`` is the least bound
    among them.
    ``options`` are the keywords for :func:`matmul`.
    """

    problem: Any
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
        return dict(self.best.choice.options)

    @property
    def timed(self) -> tuple[Tuned, ...]:
        """The choices whose cycles are known, the fastest first."""
        return tuple(tuned for tuned in self.ranking if tuned.cycles is not None)

    @property
    def speedup(self) -> float:
        """How many times fewer cycles than by default."""
        return (self.default.cycles or 0) / (self.best.cycles or 1)

    @property
    def why(self) -> str:
        """Why the best is better than the default: cycles, then the math unit's account, the largest change first."""
        best, default = self.best, self.default
        limit = f"its {best.limit} is busy for {best.bound:,} of them"
        if default.cycles is None:
            return f"{best.choice} takes {best.cycles:,} cycles; {limit}. The default cannot run: {default.refused}."
        if best is default:
            return f"The default, {best.choice}, is the fastest: {best.cycles:,} cycles; {limit}."
        before, after = _account(default), _account(best)
        changed = sorted(before, key=lambda name: -abs(before[name] - after[name]))
        changes = (f"{name} {before[name]:,} -> {after[name]:,}" for name in changed if before[name] != after[name])
        faster = f"{best.choice} takes {best.cycles:,} cycles, {self.speedup:.3g} times fewer than the default's"
        return f"{faster} {default.cycles:,}: {', '.join(changes)}; {limit}."

    @property
    def certainty(self) -> str:
        """How the choice was made, and how sure it is."""
        timed, considered = len(self.timed), len(self.ranking)
        text = f"{considered:,} choices, {timed} of them timed"
        if self.proved:
            more = f" by more than {100 * self.within:.3g} percent" if self.within else ""
            sure = f"; no other can be faster{more} (closed forms: some unit alone is busy for longer)"
            text += sure * (timed < considered)
        else:
            text += f"; one that was left out may take {self.best_left:,} cycles: raise most"
        if self.best.scaled:
            text += "; timed on three row blocks, the others taken to cost what the third does"
        return text

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: sizes, the choice, the reason, every choice with its numbers."""
        sizes: dict[str, Any] = {**self.problem.sizes, "dtype": self.dtype}
        chosen = {"best": self.best.to_dict(), "default": self.default.to_dict(), "speedup": self.speedup}
        sure: dict[str, Any] = {
            "proved": self.proved,
            "best_left": self.best_left,
            "why": self.why,
            "how": self.certainty,
        }
        return {**sizes, **chosen, **sure, "ranking": [tuned.to_dict() for tuned in self.ranking]}


_WAITS = {
    "columns of B": "waiting for columns of B",
    "A": "waiting for A",
    "no mm": "no mm issued",
    "after": "after the last mm",
}


def _account(tuned: Tuned) -> dict[str, int]:
    """Every cycle of a run, by what the math unit did."""
    return {"multiplying": tuned.math_cycles} | {_WAITS.get(name, name): n for name, n in (tuned.stalls or {}).items()}


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
    than L2 or comes ahead, ``block_a``; an option that is given keeps its value. ``dtype``: s8, u8, ... f32.
    ``most``: choices timed at most; ``within``: a share of the cycles not worth looking for (0.02: nothing considered
    is faster by more than 2 percent); ``watch(done, most)`` is told. Cycles are those the machine would count,
    exactly, unless ``scaled``. Raises
    :class:`UsageError` for empty products and options it does not know.

    >>> tuning = autotune(16, 64, 64, config=MatrixUnitConfig(threads=64), line=None, columns=None)
    >>> print(tuning.best.choice, tuning.best.cycles, tuning.default.cycles, tuning.proved)
    ka2 kb1 k_outer t0 A by 8 1143 1514 True
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
    return search(problem, dtype, choices(problem, fixed), whole("most", most, 1), float(within), watch)


def _fixed(problem: Problem, options: dict[str, Any]) -> dict[str, Any]:
    """Options that keep their value, or one clear error."""
    known = sorted(f.name for f in fields(Choice))
    for name in options:
        if name not in known:
            raise UsageError(f"no option called {name!r}", how=f"one of {', '.join(known)}")
    fixed = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    if fixed.get("segments") is not None:
        fixed["segments"] = min(whole("segments", fixed["segments"], 1), problem.n)
    shared: dict[str, Any] = {
        name: fixed[name] for name in ("ka", "kb", "transpose_b", "order", "columns", "tail_kb") if name in fixed
    }
    expected_counts(problem.m, problem.n, problem.k, problem.config, problem.element_bytes, **shared)  # refuses
    return fixed


def search(
    problem: Any,
    dtype: str,
    space: Sequence[Any],
    most: int,
    within: float,
    watch: Callable[[int, int], None] | None,
) -> Tuning:
    """Best first by the bounds, the default (the first of ``space``) before all.

    ``problem``: a :class:`Problem`, or another with its methods; choices likewise.
    """
    bounded = [_bounded(problem, choice) for choice in space]
    waiting = sorted(bounded[1:], key=_order)
    default = _timed(problem, dtype, bounded[0])
    done, best, left = [default], default, []
    for candidate in waiting:
        if best.cycles is not None and (candidate.bound >= best.cycles * (1 - within) or len(done) >= most):
            left.append(candidate)
            continue
        done.append(_timed(problem, dtype, candidate))
        if watch is not None:
            watch(len(done), most)
        best = min(best, done[-1], key=_rank)
    if best.cycles is None:
        raise UsageError(f"nothing considered can run; the default: {default.refused}", how="fix fewer options")
    ranking = (*sorted(done, key=_rank), *left)
    least = min((candidate.bound for candidate in left), default=None)
    proved = least is None or least >= best.cycles * (1 - within)
    return Tuning(problem, dtype, best, default, ranking, proved, within, least)


def _order(tuned: Tuned) -> tuple[Any, ...]:
    """The least bound first; of equals one that brings data early, then the plainest."""
    late = not (getattr(tuned.choice, "stream", False) or getattr(tuned.choice, "segments", None))
    return tuned.bound, late, tuned.choice.settings, str(tuned.choice)


def _rank(tuned: Tuned) -> tuple[Any, ...]:
    dram = tuned.counts.dram_bytes if tuned.counts else 0
    return tuned.cycles is None, tuned.cycles or 0, dram, tuned.choice.settings, str(tuned.choice)


def _bounded(problem: Any, choice: Any) -> Tuned:
    units = problem.busy(choice)
    limit = max(units, key=lambda unit: units[unit])
    return Tuned(choice, units[limit], limit)


def _timed(problem: Any, dtype: str, tuned: Tuned) -> Tuned:
    """Run it without its values; where it is long, three of its row blocks."""
    try:
        runs, weights = problem.runs(dtype, tuned.choice)
    except (UsageError, MatrixUnitError) as error:
        return replace(tuned, refused=str(error))
    if runs[0].errors:
        return replace(tuned, refused=str(runs[0].errors[0]))
    c, p = problem.config, problem
    cycles = _sum([run.cycles for run in runs], weights)
    rate = (c.macs_per_thread_cycle or c.chunk(p.element_bytes)) * c.threads * c.pes
    counted = [run.counts.to_dict() for run in runs]
    return replace(
        tuned,
        cycles=cycles,
        energy_pj=sum(run.energy_pj * weight for run, weight in zip(runs, weights, strict=True)),
        math_cycles=_sum([run.math_cycles for run in runs], weights),
        utilisation=p.macs / (cycles * rate),
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
