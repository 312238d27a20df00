"""How often each computation runs in one run of the program: over all its callers, times the trips of its loops."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from tilewright.hlo.graphs.graph import FLIPPED, trip_count
from tilewright.hlo.program import Computation, Operation, Program

_KNOWN = re.compile(r'"?known_trip_count"?\s*:\s*\{\s*"?n"?\s*:\s*"?(\d{1,18})"?')
_INTEGER = re.compile(r"-?\d{1,18}$")
_SAME = frozenset({"bitcast", "convert", "copy", "optimization-barrier", "opt-barrier", "reshape", "copy-done"})
_DEEPEST = 40


class _Linear(NamedTuple):
    """``carried element + offset``; a constant where ``element`` is None, the whole carried tuple where it is -1."""

    element: int | None
    offset: int


_CARRIED: Final = _Linear(-1, 0)
_Arguments = tuple[_Linear | None, ...]


class Trips:
    """Trip counts of the loops of one program: what XLA says, or what the pattern of a counted loop gives.

    >>> from tilewright.hlo import load
    >>> program = load('''func.func @main(%x: tensor<i32>) -> tensor<i32> {
    ...   %c = stablehlo.constant dense<0> : tensor<i32>
    ...   %0:2 = stablehlo.while(%i = %c, %a = %x) : tensor<i32>, tensor<i32>
    ...   cond {
    ...     %n = stablehlo.constant dense<7> : tensor<i32>
    ...     %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    ...     stablehlo.return %1 : tensor<i1>
    ...   } do {
    ...     %s = stablehlo.constant dense<2> : tensor<i32>
    ...     %1 = stablehlo.add %i, %s : tensor<i32>
    ...     stablehlo.return %1, %a : tensor<i32>, tensor<i32>
    ...   }
    ...   return %0#1 : tensor<i32>
    ... }''')
    >>> Trips(program).of("main", next(op for op in program.entry.operations if op.opcode == "while"))
    4
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.values: dict[tuple[str, str, _Arguments], _Linear | None] = {}

    def of(self, computation: str, loop: Operation) -> int | None:
        """The trip count of a ``while`` in ``computation``, None where it is not known."""
        if known := _KNOWN.search(loop.attributes.get("backend_config", "")):
            return int(known[1])
        condition, body = _parts(loop)
        if condition not in self.program.by_name or body not in self.program.by_name:
            return None
        test = self._comparison(condition, self._carried(condition), 0)
        if test is None:
            return None
        element, first, direction, bound = test
        step = self._step(body, element)
        start = self._start(computation, loop, element)
        return trip_count(start + first, step, direction, bound) if step and start is not None else None

    def _carried(self, computation: str) -> _Arguments:
        """What a loop's computation gets: HLO's one tuple, or StableHLO's list of values."""
        parameters = [op for op in self.program.by_name[computation].operations if op.opcode == "parameter"]
        if len(parameters) == 1 and parameters[0].shape.startswith("("):
            return (_CARRIED,)
        return tuple(_Linear(number, 0) for number in range(len(parameters)))

    def _comparison(self, computation: str, arguments: _Arguments, depth: int) -> tuple[int, int, str, int] | None:
        """(carried element, its offset, direction, bound) of a condition's result."""
        root = self._result(computation)
        if root is None or depth > _DEEPEST:
            return None
        if root.opcode in ("fusion", "call") and len(root.calls) == 1:
            inner = tuple(self._value(computation, name, arguments, 0) for name in root.operands)
            return self._comparison(root.calls[0], inner, depth + 1)
        if root.opcode != "compare" or len(root.operands) != 2:
            return None
        a, b = (self._value(computation, name, arguments, 0) for name in root.operands)
        direction = root.attributes.get("direction", "")
        if a is None or b is None or direction not in FLIPPED:
            return None
        if a.element is None:
            a, b, direction = b, a, FLIPPED[direction]
        if a.element is None or a.element < 0 or b.element is not None:
            return None
        return a.element, a.offset, direction, b.offset

    def _step(self, body: str, element: int) -> int:
        """What the body adds to a carried element, 0 where it does something else."""
        arguments = self._carried(body)
        value = self._value(body, self._returned(body, element), arguments, 0)
        return value.offset if value is not None and value.element == element else 0

    def _start(self, computation: str, loop: Operation, element: int) -> int | None:
        """The constant a carried element starts from."""
        name = loop.operands[element] if element < len(loop.operands) else ""
        if len(loop.operands) == 1 and loop.operand_shapes[0].startswith("("):
            whole = self._origin(computation, loop.operands[0])
            if whole is None or whole[1].opcode != "tuple" or element >= len(whole[1].operands):
                return None
            computation, name = whole[0], whole[1].operands[element]
        value = self._value(computation, name, (), 0)
        return value.offset if value is not None and value.element is None else None

    def _origin(self, computation: str, name: str) -> tuple[str, Operation] | None:
        """The operation that makes ``name``: the caller's, where it is a parameter of what is called from one place."""
        for _ in range(_DEEPEST):
            place = self._find(computation, name)
            if place is None or place[1].opcode != "parameter":
                return place
            computation, op = place
            callers = self.program.callers[computation]
            number = self._number(computation, op)
            if len(callers) != 1 or callers[0][1].opcode != "call" or number >= len(callers[0][1].operands):
                return None
            computation, name = callers[0][0], callers[0][1].operands[number]
        return None

    def _result(self, computation: str) -> Operation | None:
        """The operation that computes a computation's one result."""
        place = self._find(computation, self._returned(computation, 0))
        return place[1] if place else None

    def _returned(self, computation: str, element: int) -> str:
        """The name of one element of a computation's result, "" if it has no such name."""
        root = self.program.by_name[computation].root
        if root is None:
            return ""
        if root.opcode in ("tuple", "return"):
            return root.operands[element] if element < len(root.operands) else ""
        return root.name if element == 0 and not root.shape.startswith("(") else ""

    def _find(self, computation: str, name: str) -> tuple[str, Operation] | None:
        """The operation called ``name`` here or, in nested regions, around here, with its computation."""
        for _ in range(_DEEPEST):
            if (found := self.program.by_name[computation].named.get(name)) is not None:
                return computation, found
            if self.program.kind != "stablehlo" or "/" not in computation:
                return None
            calls = self.program.callers[computation]
            computation = calls[0][0] if calls else ""
            if not computation:
                return None
        return None

    def _value(self, computation: str, name: str, arguments: _Arguments, depth: int) -> _Linear | None:
        """``name`` as a linear function of what the loop carries, None where it is none."""
        key = (computation, name, arguments)
        if key not in self.values:
            self.values[key] = None  # for the rare text whose calls go round
            place = self._find(computation, name) if name and depth < _DEEPEST else None
            if place is not None:
                at, op = place
                self.values[key] = self._operation(at, op, arguments if at == computation else (), depth + 1)
        return self.values[key]

    def _operation(self, computation: str, op: Operation, arguments: _Arguments, depth: int) -> _Linear | None:
        if op.opcode == "constant":
            literal = op.attributes.get("literal", "").strip()
            return _Linear(None, int(literal)) if _INTEGER.match(literal) else None
        if op.opcode == "parameter":
            number = self._number(computation, op)
            return arguments[number] if number < len(arguments) else None
        operands = [self._value(computation, name, arguments, depth) for name in op.operands]
        if op.opcode in _SAME and operands:
            return operands[0]
        if op.opcode == "get-tuple-element" and operands[:1] == [_CARRIED]:
            return _Linear(next(iter(op.integers("index")), -2), 0)
        if op.opcode in ("add", "subtract") and len(operands) == 2:
            return _sum(operands[0], operands[1], op.opcode == "subtract")
        if op.opcode in ("fusion", "call") and len(op.calls) == 1 and not op.shape.startswith("("):
            return self._value(op.calls[0], self._returned(op.calls[0], 0), tuple(operands), depth)
        return None

    def _number(self, computation: str, parameter: Operation) -> int:
        """Which parameter this is: HLO says it, StableHLO lists them in order."""
        if parameter.parameter_number is not None:
            return parameter.parameter_number
        parameters = [op.name for op in self.program.by_name[computation].operations if op.opcode == "parameter"]
        return parameters.index(parameter.name)


def _parts(loop: Operation) -> tuple[str, str]:
    """(condition, body) of a while."""
    names = [loop.attributes.get(key, "").lstrip("%") for key in ("condition", "body")]
    if all(names):
        return names[0], names[1]
    return (loop.calls[0], loop.calls[1]) if len(loop.calls) == 2 else ("", "")


def _sum(a: _Linear | None, b: _Linear | None, minus: bool) -> _Linear | None:
    if a is None or b is None or _CARRIED in (a, b):
        return None
    if b.element is not None and (minus or a.element is not None):
        return None
    offset = a.offset - b.offset if minus else a.offset + b.offset
    return _Linear(a.element if a.element is not None else b.element, offset)


_MOST = 10**18


@dataclass(frozen=True, slots=True)
class Runs:
    """``count`` runs; ``known`` unless a loop of unknown trip count (counted as one trip) is among the callers.

    ``trips``: the loops on the path of first callers, outermost first, None where unknown.
    """

    count: int = 1
    known: bool = True
    trips: tuple[int | None, ...] = ()


def count_runs(program: Program, stated: int | None = None) -> tuple[dict[str, Runs], tuple[str, ...]]:
    """Computation -> its runs, and the names of the loops whose trip count is not known, which is ``stated`` for them.

    A branch of a conditional counts as taken; a reducer counts once for each operation that uses it.
    """
    trips = Trips(program)
    loops = {(c.name, op.name): trips.of(c.name, op) for c, op in program.operations() if op.opcode == "while"}
    unknown = tuple(name for (_, name), count in loops.items() if count is None)
    loops = {loop: stated if count is None else count for loop, count in loops.items()}
    runs: dict[str, Runs] = {}
    for computation in callers_first(program):
        calls = program.callers[computation.name]
        runs[computation.name] = Runs() if computation.entry or not calls else _over(calls, runs, loops, computation)
    return runs, unknown


def _over(
    calls: tuple[tuple[str, Operation], ...],
    known_runs: dict[str, Runs],
    loops: dict[tuple[str, str], int | None],
    computation: Computation,
) -> Runs:
    """The sum over the calling operations; callers not counted yet (a circle) count as one run."""
    count, known = 0, True
    first: tuple[int | None, ...] | None = None
    for caller, op in calls:
        outer = known_runs.get(caller, Runs())
        trips = loops.get((caller, op.name), 1)
        is_condition = op.opcode == "while" and op.calls[0] == computation.name
        count += outer.count * ((1 if trips is None else trips) + (is_condition and trips is not None))
        known = known and outer.known and trips is not None
        if first is None:
            first = (*outer.trips, trips) if op.opcode == "while" else outer.trips
    return Runs(min(count, _MOST), known, first or ())


def callers_first(program: Program) -> list[Computation]:
    """Computations so that each comes after all that call it; those in circles come last, in the text's order."""
    waiting = {name: len(calls) for name, calls in program.callers.items()}
    ready = [c for c in program.computations if not waiting[c.name]]
    done: list[Computation] = []
    while ready:
        computation = ready.pop()
        done.append(computation)
        for op in computation.operations:
            for callee in op.calls:
                waiting[callee] -= 1
                if not waiting[callee]:
                    ready.append(program.by_name[callee])
    return done + [c for c in program.computations if waiting[c.name]]
