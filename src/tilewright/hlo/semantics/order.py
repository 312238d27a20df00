"""In which order kernels run: as a compiler does it that would rather have little alive at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import CONTROL, WRITES_IN_PLACE
from tilewright.hlo.program import Operation

_STAYS = CONTROL | WRITES_IN_PLACE.keys() | {"parameter", "constant", "return", "custom-call"}
"""Operations that stay where they are written."""

_LITTLE = 1024
"""How many times smaller than the largest a result is that may be made at any time."""


def sooner(
    operations: Sequence[Operation], results: Collection[str], size: Callable[[str], int]
) -> tuple[Operation, ...]:
    """The operations, each moved up to where what it takes is last read otherwise, if that frees more than it makes.

    A gradient's product that ends in an update of the weights stands where the update is written, and would keep
    alive until there what it multiplies. ``results``: names of what has memory throughout; over an argument that is
    read later none of them is written.
    """
    readers: dict[str, list[int]] = defaultdict(list)
    for at, op in enumerate(operations):
        for name in dict.fromkeys(op.operands):
            readers[name].append(at)
    place = {op.name: at for at, op in enumerate(operations)}
    moved: list[tuple[float, int]] = [(at, at) for at in range(len(operations))]
    sizes = {op.name: 0 if op.opcode == "parameter" or op.name in results else size(op.shape) for op in operations}
    little = max(sizes.values(), default=0) // _LITTLE
    for at, op in enumerate(operations):
        if plain_opcode(op.opcode) in _STAYS or not op.operands or not op.name:
            continue
        made = [place[name] for name in op.operands if name in place]
        if len(made) < len(op.operands):
            continue
        available = max(moved[number][0] for number in made)
        freed, earliest, small = 0, available, sizes[op.name] <= little
        for name in dict.fromkeys(op.operands):
            last = max((moved[reader][0] for reader in readers[name] if reader != at), default=-1.0)
            if operations[place[name]].opcode == "parameter":
                earliest = max(earliest, last) if op.name in results else earliest
            elif last < at and not small:
                freed += sizes[name]
                earliest = max(earliest, last)
        if (small or freed > sizes[op.name]) and earliest < at:
            moved[at] = earliest, at
    order = sorted(range(len(operations)), key=lambda at: moved[at])
    return tuple(operations[at] for at in order)
