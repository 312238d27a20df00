"""How often each computation runs in one run of the program: over all its callers, times the trips of its loops."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.hlo._program import Computation, Operation, Program
from tilewright.hlo.reporting._trips import Trips

__all__ = ["Runs", "callers_first", "count_runs"]

_MOST = 10**18


@dataclass(frozen=True, slots=True)
class Runs:
    """``count`` runs; ``known`` unless a loop of unknown trip count (counted as one trip) is among the callers.

    ``trips``: the loops on the path of first callers, outermost first, None where unknown.
    """

    count: int = 1
    known: bool = True
    trips: tuple[int | None, ...] = ()


def count_runs(program: Program) -> tuple[dict[str, Runs], tuple[str, ...]]:
    """Computation -> its runs, and the names of the loops whose trip count is not known.

    A branch of a conditional counts as taken; a reducer counts once for each operation that uses it.
    """
    trips = Trips(program)
    loops = {id(op): trips.of(c.name, op) for c, op in program.operations() if op.opcode == "while"}
    unknown = tuple(op.name for _, op in program.operations() if loops.get(id(op), 0) is None)
    found: dict[str, Runs] = {}
    for computation in callers_first(program):
        calls = program.callers[computation.name]
        found[computation.name] = Runs() if computation.entry or not calls else _over(calls, found, loops, computation)
    return found, unknown


def _over(
    calls: tuple[tuple[str, Operation], ...],
    found: dict[str, Runs],
    loops: dict[int, int | None],
    computation: Computation,
) -> Runs:
    """The sum over the calling operations; callers not counted yet (a circle) count as one run."""
    count, known = 0, True
    first: tuple[int | None, ...] | None = None
    for caller, op in calls:
        outer = found.get(caller, Runs())
        trips = loops.get(id(op), 1)
        is_condition = op.opcode == "while" and op.calls[0] == computation.name
        count += outer.count * ((1 if trips is None else trips) + (is_condition and trips is not None))
        known = known and outer.known and trips is not None
        if first is None:
            first = (*outer.trips, trips) if op.opcode == "while" else outer.trips
    return Runs(min(count, _MOST), known, first or ())


def callers_first(program: Program) -> list[Computation]:
    """Computations so that each comes after all that call it; those in circles come last, in the text's order."""
    waiting = {name: len(calls) for name, calls in program.callers.items()}
    named = {c.name: c for c in program.computations}
    ready = [c for c in program.computations if not waiting[c.name]]
    done: list[Computation] = []
    while ready:
        computation = ready.pop()
        done.append(computation)
        for op in computation.operations:
            for callee in op.calls:
                waiting[callee] -= 1
                if not waiting[callee]:
                    ready.append(named[callee])
    return done + [c for c in program.computations if waiting[c.name]]
