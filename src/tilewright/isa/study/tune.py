"""The search for the fastest way to make a product or a convolution on a machine, by the machine's own clock.

Nothing is multiplied. Closed forms give cycles that no run can stay below; choices are taken in that order and run with
the values left out (``values=False``: the same program, the same clock, the same caches), until what is left cannot be
faster than the best so far. So the choice is the best of all considered, not of those tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from tilewright.errors import UsageError, check_known
from tilewright.isa.execute.operands import numpy_type
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.counts import Counts
from tilewright.isa.language.errors import MatrixUnitError, whole
from tilewright.isa.language.instructions import ELEMENT_TYPES
from tilewright.isa.multiply.expected import expected_counts
from tilewright.isa.study.choices import Choice, ConvChoice, ConvProblem, Problem

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

    @property
    def account(self) -> dict[str, int]:
        """Every cycle of a run, by what the math unit did."""
        waits = {"columns of B": "waiting for columns of B", "A": "waiting for A", "no mm": "no mm issued"}
        waits["after"] = "after the last mm"
        return {"multiplying": self.math_cycles} | {waits.get(name, name): n for name, n in (self.stalls or {}).items()}

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"choice": str(self.choice), "options": self.choice.options, "bound": self.bound}
        plain |= {"limit": self.limit, "cycles": self.cycles}
        if self.counts is None:
            return plain | ({"refused": self.refused} if self.refused else {})
        known = ("energy_pj", "math_cycles", "utilisation", "stall", "stalls", "queue", "counts", "buffering", "scaled")
        return plain | {name: getattr(self, name) for name in known} | {"counts": self.counts.to_dict()}


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
        before, after = default.account, best.account
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
        """Sizes, the choice, the reason and every choice with its numbers, for JSON."""
        plain: dict[str, Any] = {**self.problem.sizes, "dtype": self.dtype, "best": self.best.to_dict()}
        plain |= {"default": self.default.to_dict(), "speedup": self.speedup, "proved": self.proved}
        plain |= {"best_left": self.best_left, "why": self.why, "how": self.certainty}
        return plain | {"ranking": [tuned.to_dict() for tuned in self.ranking]}


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
    e = element_bytes(dtype)
    m, n, k = whole("m", m, 1), whole("n", n, 1), whole("k", k, 1)
    problem = Problem(m, n, k, e, checked_config(config))
    if max(m * n, m * k, n * k) > _MOST_ELEMENTS:
        raise UsageError(f"a matrix of more than {_MOST_ELEMENTS} elements", how="tune a part of it")
    _check_names(Choice, fixed)
    fixed = {name: tuple(value) if isinstance(value, list) else value for name, value in fixed.items()}
    if fixed.get("segments") is not None:
        fixed["segments"] = min(whole("segments", fixed["segments"], 1), problem.n)
    formulas = ("ka", "kb", "transpose_b", "order", "columns", "tail_kb")
    expected_counts(m, n, k, problem.config, e, **{name: fixed[name] for name in formulas if name in fixed})  # refuses
    return search(problem, dtype, fixed, most, within, watch)


def autotune_conv2d(
    x: Sequence[int],
    w: Sequence[int],
    dtype: str = "s8",
    config: MatrixUnitConfig | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "NHWC",
    most: int = 48,
    within: float = 0.0,
    watch: Callable[[int, int], None] | None = None,
    **fixed: Any,
) -> Tuning:
    """The options of :func:`conv2d` that take the fewest modelled cycles, for images and weights of these shapes.

    Chosen: ``ka``, ``kb``, ``columns``, ``block_a``, ``buffers``, ``stream``, and ``split`` over several elements; one
    that is given keeps its value. The other arguments are those of :func:`autotune` and :func:`conv2d`.

    >>> tuning = autotune_conv2d((1, 4, 4, 64), (3, 3, 64, 32), padding=1, config=MatrixUnitConfig(threads=64))
    >>> print(tuning.best.choice, tuning.best.cycles, tuning.default.cycles)
    ka2 kb1 A by 8 weights by DMA 4645 11454
    """
    config, e = checked_config(config), element_bytes(dtype)
    _check_names(ConvChoice, fixed)
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": layout}
    problem = ConvProblem(tuple(x), tuple(w), tuple(how.items()), e, config)
    if problem.shape.empty:
        raise UsageError("nothing to multiply", how="sizes of at least 1")
    return search(problem, dtype, fixed, most, within, watch)


def element_bytes(dtype: str) -> int:
    """Bytes of an element of a matrix. Raises :class:`UsageError` for a type the machine has not."""
    check_known(dtype, ELEMENT_TYPES, f"no element type called {dtype!r} for matrices")
    return int(numpy_type(dtype).itemsize)


def _check_names(kind: type[Choice] | type[ConvChoice], options: Mapping[str, Any]) -> None:
    known = sorted(f.name for f in fields(kind))
    for name in options:
        check_known(name, known, f"no option called {name!r}")


def search(
    problem: Problem | ConvProblem,
    dtype: str,
    fixed: Mapping[str, Any] | None = None,
    most: int = 96,
    within: float = 0.0,
    watch: Callable[[int, int], None] | None = None,
) -> Tuning:
    """Time the problem's choices, those with the least bound first and the default before all; see :func:`autotune`."""
    if not 0 <= within < 1:
        raise UsageError(f"within = {within!r}", how="a share from 0 to less than 1")
    most, within = whole("most", most, 1), float(within)
    first, *others = (bounded(problem, choice) for choice in problem.choices(fixed or {}))
    default = timed(problem, dtype, first)
    done, best, left = [default], default, []
    for candidate in sorted(others, key=_order):
        if best.cycles is not None and (candidate.bound >= best.cycles * (1 - within) or len(done) >= most):
            left.append(candidate)
            continue
        done.append(timed(problem, dtype, candidate))
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
    return tuned.bound, late, tuned.choice.non_defaults, str(tuned.choice)


def _rank(tuned: Tuned) -> tuple[Any, ...]:
    dram = tuned.counts.dram_bytes if tuned.counts else 0
    return tuned.cycles is None, tuned.cycles or 0, dram, tuned.choice.non_defaults, str(tuned.choice)


def bounded(problem: Problem | ConvProblem, choice: Any) -> Tuned:
    """A choice that is not timed yet: its bound is the cycles of the unit that is busy for longest."""
    limit, cycles = max(problem.busy(choice).items(), key=lambda unit: unit[1])
    return Tuned(choice, cycles, limit)


def timed(problem: Any, dtype: str, tuned: Tuned) -> Tuned:
    """Time a choice: run it without values, or three of its row blocks where it is long."""
    try:
        runs, weights = problem.runs(dtype, tuned.choice)
    except (UsageError, MatrixUnitError) as error:
        return replace(tuned, refused=str(error))
    if runs[0].errors:
        return replace(tuned, refused=str(runs[0].errors[0]))
    c = problem.config

    def total(accounts: Sequence[Mapping[str, int]]) -> dict[str, int]:
        return {
            name: sum(a[name] * weight for a, weight in zip(accounts, weights, strict=True)) for name in accounts[0]
        }

    sums = total([{"cycles": run.cycles, "math_cycles": run.math_cycles} for run in runs])
    rate = (c.macs_per_thread_cycle or c.chunk(problem.element_bytes)) * c.threads * c.pes
    return replace(
        tuned,
        cycles=sums["cycles"],
        math_cycles=sums["math_cycles"],
        energy_pj=sum(run.energy_pj * weight for run, weight in zip(runs, weights, strict=True)),
        utilisation=problem.macs / (sums["cycles"] * rate),
        stalls=total([run.stalls for run in runs]),
        queue=total([run.queue for run in runs]),
        counts=Counts(**total([run.counts.to_dict() for run in runs])),
        buffering=runs[0].buffering,
        scaled=len(runs) > 1,
    )
