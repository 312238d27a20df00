"""What a fusion reads and writes of its arrays: of one that it only cuts a slice from the slice, through all fusions.

A body is followed backwards from its results: a slice wants of its operand what it takes, an update in place only what
it replaces, a move or an elementwise operation the share that is wanted of its own result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from tilewright.hlo.cost import BOUNDS, plain_opcode
from tilewright.hlo.inlining import DEEPEST
from tilewright.hlo.opcodes import ELEMENTWISE, RENAMES, TAKES_PART, WRITES_IN_PLACE
from tilewright.hlo.program import Computation, Operation, Program
from tilewright.hlo.reading.hlo_scan import array_shapes

_SAME = RENAMES | {"copy", "convert", "reshape", "transpose", "bitcast-convert", "reverse"}
"""Operations that hold what their operand holds, in another order or type."""
_PASSES = _SAME | ELEMENTWISE | {"concatenate", "pad", "reduce"} | TAKES_PART
"""Operations that want of their operands the share that is wanted of their result."""
_MAY_BE_IN_PLACE = _SAME | {"tuple", "fusion"} | WRITES_IN_PLACE.keys()
"""Operations whose result may be written over a parameter."""
_IN_THEIR_OWN_WAY = TAKES_PART | {"fusion"} | WRITES_IN_PLACE.keys()
"""Operations that do not want the same of all their operands."""
_UPDATES = WRITES_IN_PLACE.keys() | {"fusion"}
"""Operations without which a body writes nothing in place."""

_Chain = tuple[int | None, tuple[str, ...], set[str]]
"""A parameter's number (None: a buffer of its own), the shapes written into it, and the operations on the way."""


class Demand:
    """The shares of one program's fused values that are wanted; ``size`` gives a shape's bytes.

    ``whole_tiles``: a part of an array counts as it lies in it, with all tiles that it touches and what strides leave.
    """

    def __init__(self, program: Program, size: Callable[[str], float], whole_tiles: bool = False) -> None:
        self.program, self.size, self.whole_tiles = program, cache(size), whole_tiles
        self._shares: dict[tuple[str, bool], Mapping[str, float]] = {}
        self._updates: dict[str, Mapping[int, tuple[int | None, tuple[str, ...]]]] = {}
        self._chains: dict[str, set[str]] = {}
        """The operations that carry an array from its parameter to a result in place, of each body."""
        self._depth = 0

    def border(self, op: Operation) -> tuple[list[float], list[float]]:
        """What an operation, a fusion too, reads of each of its operands, and what it writes of each of its arrays."""
        read, written = ([*map(self.size, shapes)] for shapes in (op.operand_shapes, array_shapes(op.shape)))
        body, kind = self.program.body(op), plain_opcode(op.opcode)
        if kind == "fusion" and body is not None:
            body = self.program.alike[body.name]  # what one of them reads is found once for all
            wanted = self.shares(body)
            taken = {inner.parameter_number: wanted[inner.name] for inner in body.operations}
            read = [size * taken.get(number, 1.0) for number, size in enumerate(read)]
            for number, (_, shapes) in self.updates(body).items():
                if number < len(written):
                    whole = array_shapes(op.shape)[number]
                    written[number] = min(written[number], sum(self._part(whole, shape) for shape in shapes))
        elif kind in TAKES_PART and read:
            read[0] = min(read[0], sum(written))
        elif kind in WRITES_IN_PLACE and len(read) > WRITES_IN_PLACE[kind]:
            read[0], written = 0.0, [read[WRITES_IN_PLACE[kind]]]
        return read, written

    def updates(self, body: Computation) -> Mapping[int, tuple[int | None, tuple[str, ...]]]:
        """Result number -> (the parameter it is written over, the shapes written into it), for results in place.

        What is written into a buffer of its own, as parts that are stacked are, is written over no parameter: None.
        """
        if body.name not in self._updates:
            self._updates[body.name] = {}  # for a text whose calls go round
            root = body.root or body.operations[-1]
            if plain_opcode(root.opcode) not in _MAY_BE_IN_PLACE:
                return {}
            if _UPDATES.isdisjoint(plain_opcode(op.opcode) for op in body.operations):
                return {}
            results = root.operands if root.opcode == "tuple" else (root.name,)
            ends = {number: self._followed(body.named, name) for number, name in enumerate(results)}
            written = {number: end for number, end in ends.items() if end is not None and end[1]}
            self._updates[body.name] = {number: end[:2] for number, end in written.items()}
            self._chains[body.name] = set().union(*(end[2] for end in written.values()))
        return self._updates[body.name]

    def _followed(self, named: Mapping[str, Operation], name: str) -> _Chain | None:
        """The parameter that a value is made of by updates and moves alone, the shapes of the updates, and those."""
        shapes, chain = list[str](), set[str]()
        while (op := named.get(name)) is not None and op.opcode != "parameter":
            chain.add(name)
            kind = plain_opcode(op.opcode)
            written = WRITES_IN_PLACE.get(kind)
            if op.target == "AllocateBuffer":
                return None, tuple(shapes), chain
            if not op.operands:
                return None
            if written is not None and len(op.operand_shapes) > written:
                shapes.append(op.operand_shapes[written])
                name = op.operands[0]
            elif kind in _SAME and kind != "tuple":
                name = op.operands[0]
            elif kind == "fusion" and op.calls:
                body = self.program.by_name[op.calls[0]]
                inner = self.updates(body).get(0) or self._moved(body)
                if inner is None or (inner[0] is not None and inner[0] >= len(op.operands)):
                    return None
                shapes += inner[1]
                if inner[0] is None:
                    return None, tuple(shapes), chain
                name = op.operands[inner[0]]
            else:
                return None
        number = op.parameter_number if op is not None else None
        return (number, tuple(shapes), chain) if number is not None else None

    def _moved(self, body: Computation) -> _Chain | None:
        """The parameter that a body only moves."""
        self._depth += 1
        root = body.root or body.operations[-1]
        end = self._followed(body.named, root.name) if self._depth <= DEEPEST else None
        self._depth -= 1
        return end

    def shares(self, body: Computation, in_place: bool = True) -> Mapping[str, float]:
        """Name of an operation of a fused body -> the share of its value that is wanted, 0 to 1.

        ``in_place``: the body's results are written over its parameters where they can be.
        """
        key = body.name, in_place
        if key not in self._shares:
            self._shares[key] = defaultdict(lambda: 1.0)  # what calls go round in wants all
            self._depth += 1
            if self._depth <= DEEPEST:
                self._shares[key] = self._found(body, in_place)
            self._depth -= 1
        return self._shares[key]

    def _found(self, body: Computation, in_place: bool) -> Mapping[str, float]:
        root = body.root or body.operations[-1]
        chain = self._chains[body.name] if in_place and self.updates(body) else set()
        wanted: dict[str, float] = defaultdict(float, {root.name: 1.0})
        for op in reversed(body.operations):
            share = wanted[op.name] = min(1.0, wanted[op.name])
            if not share or not op.operands:
                continue
            if plain_opcode(op.opcode) in _IN_THEIR_OWN_WAY or op.name in chain:
                for name, part in zip(op.operands, self._parts(op, share, op.name in chain)):
                    wanted[name.partition("#")[0]] += part
                continue
            part = share if op.opcode in _PASSES else 1.0
            for name in op.operands:
                wanted[name.partition("#")[0]] += part
        return wanted

    def _part(self, whole: str, part: str, slice_: str = "") -> float:
        """The bytes of a part of an array, of a slice by its bounds."""
        if not self.whole_tiles:
            return self.size(part)
        dims = part.partition("[")[2].partition("]")[0]
        if not dims or dims.count(",") != whole.partition("]")[0].count(","):
            return self.size(part)
        dims = ",".join(str(int(end) - int(start)) for start, end in BOUNDS.findall(slice_)) or dims
        return self.size(f"{whole.partition('[')[0]}[{dims}]{whole.partition(']')[2]}")

    def _parts(self, op: Operation, share: float, in_place: bool) -> Sequence[float]:
        """What an operation wants of each of its operands."""
        kind, parts = plain_opcode(op.opcode), [share if op.opcode in _PASSES else 1.0] * len(op.operands)
        if kind in TAKES_PART and op.operand_shapes:
            whole = self.size(op.operand_shapes[0])
            taken = self._part(op.operand_shapes[0], op.shape, op.attributes.get("slice", ""))
            parts[0] = share * min(1.0, taken / whole) if whole else share
        elif in_place and (kind in WRITES_IN_PLACE or kind in _SAME):
            parts[0] = 0.0 if kind in WRITES_IN_PLACE else share
        elif kind == "fusion" and op.calls:
            body = self.program.by_name[op.calls[0]]
            inner = self.shares(body, in_place)
            wanted = {p.parameter_number: share * inner[p.name] for p in body.operations if p.opcode == "parameter"}
            parts = [wanted.get(number, 1.0) for number in range(len(op.operands))]
        return parts
