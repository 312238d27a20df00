"""The exchanges between chips that a program makes: who takes part in each, and what a chip sends.

A group's devices are numbered as the program numbers them: partitions where ``use_global_device_ids`` says so, which is
what the compiler prints. Texts of groups: lists ``{{0,1},{2,3}}``, iota ``[4,2]<=[2,4]T(1,0)``, axes of a mesh
``mesh['a'=4,'b'=2] {'b'}``, with or without ``device_ids``, StableHLO's tables ``dense<[[0, 1], [2, 3]]>``, and the
``source_target_pairs`` of a permute.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import COLLECTIVES
from tilewright.hlo.program import Computation, Operation, Program, Source
from tilewright.hlo.semantics.context import Context, array_shapes
from tilewright.hlo.semantics.dims import devices_of
from tilewright.targets import Target
from tilewright.targets import target as find_target

Groups = tuple[tuple[int, ...], ...]

_MOST_DEVICES = 1 << 17
_IOTA = re.compile(r"\[([\d,\s]+)\]\s*<=\s*\[([\d,\s]+)\]\s*(?:T\(([\d,\s]+)\))?")
_MESH = re.compile(r"mesh\[([^\[\]]*)\](?:,\s*device_ids=\(([^{}]*)\))?\s*(?:\{([^{}]*)\})?", re.S)
_TURNED = re.compile(r"\[[\d,\s]+\](?=T\()")
_SIZE = re.compile(r"'([^']*)'=(\d{1,6})")
_AXIS = re.compile(r"'([^']*)'(?::\((\d{1,6})\)(\d{1,6}))?")
_HEX = re.compile(r'dense<"0x([0-9A-Fa-f]*)">\s*:\s*tensor<(\d{1,6})x(\d{1,6})xi64>')
_SPLAT = re.compile(r"dense<(-?\d{1,6})>\s*:\s*tensor<(\d{1,6})x(\d{1,6})xi64>")
_ROW = re.compile(r"[\[{]([\d,\s-]*)[\]}]")
_INTEGER = re.compile(r"-?\d{1,9}")


@dataclass(frozen=True, slots=True)
class Collective:
    """One exchange of a program; a ``-start`` and its ``-done`` are one, and so is one that fusions share.

    ===============  ==========================================================================================
    ``name``         the operation's name, of a pair the ``-start``'s
    ``op``           ``all-reduce``, ``all-gather``, ``reduce-scatter``, ``all-to-all``, ``collective-permute`` ...
    ``groups``       the devices that take part together; of a permute ``(source, target)`` pairs; () if not known
    ``bytes``        what one chip sends in one run, padding included: counted, as for a ring
    ``source``       the user's line, or None
    ``computation``  where it stands
    ``op_name``      the framework's name for it
    ``shape``        the result as XLA text
    ``line``         its line in the program's text
    ===============  ==========================================================================================
    """

    name: str
    op: str
    groups: Groups
    bytes: int
    source: Source | None
    computation: str = ""
    op_name: str = ""
    shape: str = ""
    line: int = 0


def collectives(program: Program, target: Target | str | None = None) -> tuple[Collective, ...]:
    """The exchanges of ``program`` in the order of its text.

    In bytes a chip sends, of n chips: an all-gather (n - 1) / n of its result, a reduce-scatter or all-to-all (n - 1)
    / n of its operands, an all-reduce twice that, a permute all of them. A dump's own layouts say what is padded;
    StableHLO has none: there it is ``target`` that says it, and without one the bytes are those of the elements. Groups
    that a text does not tell count as of two chips.

    >>> from tilewright.hlo import load
    >>> text = '''HloModule m, num_partitions=4
    ... ENTRY e {
    ...   p = f32[16,100]{1,0:T(8,128)} parameter(0)
    ...   ROOT g = f32[32,100]{1,0:T(8,128)} all-gather(p), replica_groups=[2,2]<=[4], dimensions={0}
    ... }'''
    >>> [(each.name, each.op, each.groups, each.bytes) for each in collectives(load(text))]
    [('g', 'all-gather', ((0, 1), (2, 3)), 8192)]
    """
    context = Context(program, find_target(target) if isinstance(target, str) else target)
    devices, seen = devices_of(program), set[str]()
    found = []
    for computation, op in program.operations():
        kind = plain_opcode(op.opcode)
        if kind not in COLLECTIVES or kind.endswith("-done"):
            continue
        channel = op.attributes.get("channel_id", "")
        if channel and computation.name in program.fused:
            if channel in seen:
                continue
            seen.add(channel)
        found.append(_collective(context, computation, op, kind.removesuffix("-start"), devices))
    return tuple(found)


def _collective(context: Context, computation: Computation, op: Operation, kind: str, devices: int) -> Collective:
    groups = groups_of(op, devices)
    if kind == "collective-permute":
        share = float(not groups or any(source != target for source, target in groups))
    else:
        size = max(map(len, groups), default=devices or 2)
        share = (size - 1) / size * (2 if kind == "all-reduce" else 1)
    sizes = map(context.layout, _sent(op, kind))
    sent = sum(layout.size_bytes for layout in sizes if layout is not None)
    return Collective(
        *(op.name, kind, groups, round(share * sent), op.source, computation.name, op.op_name, op.shape, op.line)
    )


def _sent(op: Operation, kind: str) -> Iterator[str]:
    """The arrays whose bytes count: a gather's results, else the operands."""
    operands = [shape for each in op.operand_shapes for shape in array_shapes(each)]
    if kind != "all-gather":
        yield from operands
        return
    results = array_shapes(op.shape)
    # of a start: the operands again, the results, and what the compiler keeps beside them
    yield from results[len(operands) : 2 * len(operands)] if op.opcode.endswith("start") else results


def groups_of(op: Operation, devices: int = 0) -> Groups:
    """The devices that take part together in an exchange; of a permute its pairs. ``devices``: all that there are.

    >>> groups_of(Operation("g", "all-gather", "", attributes={"replica_groups": "mesh['a'=2,'b'=3] {'a'}"}))
    ((0, 3), (1, 4), (2, 5))
    """
    pairs = op.attributes.get("source_target_pairs")
    text = op.attributes.get("replica_groups", "") if pairs is None else pairs
    groups = read_groups(text, devices)
    return groups if pairs is None else tuple(group for group in groups if len(group) == 2)


@lru_cache(maxsize=4096)
def read_groups(text: str, devices: int = 0) -> Groups:
    """The groups in an attribute's text; () where it is not understood. Without any, all ``devices`` are one group.

    >>> read_groups("[4,2]<=[2,4]T(1,0)")
    ((0, 4), (1, 5), (2, 6), (3, 7))
    >>> read_groups("{}", 3)
    ((0, 1, 2),)
    """
    if mesh := _MESH.match(text):
        return _mesh_groups(mesh[1], mesh[2] or "", mesh[3])
    if _IOTA.match(text):
        return _rows(*_iota(text))
    if packed := _HEX.match(text):
        raw = bytes.fromhex(packed[1]) if len(packed[1]) % 2 == 0 else b""
        numbers = [int.from_bytes(raw[k : k + 8], "little", signed=True) for k in range(0, len(raw), 8)]
        return _rows(numbers, (int(packed[2]), int(packed[3])))
    if (same := _SPLAT.match(text)) and int(same[2]) * int(same[3]) <= _MOST_DEVICES:
        return ((int(same[1]),) * int(same[3]),) * int(same[2])
    rows = (tuple(map(int, _INTEGER.findall(row))) for row in _ROW.findall(text.partition(":")[0]))
    groups = tuple(tuple(number for number in row if number >= 0) for row in rows)  # short rows are filled with -1
    groups = tuple(group for group in groups if group)
    unsaid = not text.partition(":")[0].replace("dense<", "").strip("<>{}[] ")
    return ((tuple(range(devices)),) if 0 < devices <= _MOST_DEVICES else ()) if unsaid else groups


def _rows(numbers: list[int], shape: tuple[int, ...]) -> Groups:
    """A list as a table whose rows are as long as the last dim; () where it does not fit."""
    width = shape[-1] if shape else 0
    if not width or not numbers or prod(shape) != len(numbers):
        return ()
    rows = (numbers[k : k + width] for k in range(0, len(numbers), width))
    return tuple(tuple(number for number in row if number >= 0) for row in rows)


def _iota(text: str) -> tuple[list[int], tuple[int, ...]]:
    """``[4,2]<=[2,4]T(1,0)``: the numbers in their order, and the shape they stand in; ([], ()) for nonsense."""
    match = _IOTA.match(text.strip())
    if match is None:
        return [], ()
    shape, source, order = (tuple(map(int, _INTEGER.findall(part or ""))) for part in match.groups())
    order = order or tuple(range(len(source)))
    if prod(source) > _MOST_DEVICES or prod(shape) != prod(source) or sorted(order) != list(range(len(source))):
        return [], ()
    return _transposed(list(range(prod(source))), source, order), shape


def _transposed(numbers: list[int], shape: tuple[int, ...], order: tuple[int, ...]) -> list[int]:
    """``numpy.reshape(numbers, shape).transpose(order)``, flat."""
    offsets = [0]
    for dim in order:
        stride = prod(shape[dim + 1 :])
        offsets = [offset + k * stride for offset in offsets for k in range(shape[dim])]
    return [numbers[offset] for offset in offsets]


def _mesh_groups(axes: str, device_ids: str, along: str | None) -> Groups:
    """Devices that differ in the axes ``along`` alone, in the order of those; all are one group where none is said."""
    sizes = [(name, int(size)) for name, size in _SIZE.findall(axes)]
    count = prod(size for _, size in sizes)
    if not sizes or not 0 < count <= _MOST_DEVICES:
        return ()
    numbers = [int(word) for word in _INTEGER.findall(device_ids)] if device_ids else list(range(count))
    if "[" in device_ids:  # [4,2]T(1,0): what is turned is all devices in order
        numbers = _iota(_TURNED.sub(f"[{count}]<=\\g<0>", device_ids))[0]
    taken = _AXIS.findall(along) if along is not None else [(name, "", "") for name, _ in sizes]
    digits, members = _digits(sizes, taken)
    if len(numbers) != count or prod(size for _, size in digits) != count or None in members:
        return ()
    rest = [k for k in range(len(digits)) if k not in members]
    order = (*rest, *(k for k in members if k is not None))
    shape = tuple(size for _, size in digits)
    width = prod(shape[k] for k in members if k is not None)
    return _rows(_transposed(numbers, shape, order), (count // width, width))


def _digits(
    sizes: list[tuple[str, int]], taken: list[tuple[str, str, str]]
) -> tuple[list[tuple[str, int]], list[int | None]]:
    """The axes of a mesh, those of which a part is named cut into parts; and which of them ``taken`` names.

    ``'a':(2)4`` is the part of axis a that has 4 values and of which 2 parts come before.
    """
    cuts: dict[str, set[int]] = {name: {1, size} for name, size in sizes}
    for name, before, size in taken:
        if size and name in cuts:
            cuts[name] |= {int(before), int(before) * int(size)}
    digits: list[tuple[str, int]] = []
    spans: dict[tuple[str, int, int], int] = {}
    for name, _ in sizes:
        edges = sorted(cuts[name])
        for low, high in pairwise(edges):
            spans[name, low, high] = len(digits)
            digits.append((name, high // low if low and high % low == 0 else 0))
    members: list[int | None] = []
    whole = dict(sizes)
    for name, before, size in taken:
        low = int(before) if size else 1
        high = low * int(size) if size else whole.get(name, 0)
        inner = [spans[key] for key in sorted(spans) if key[0] == name and low <= key[1] and key[2] <= high]
        members += inner if inner or high == 1 else [None]
    return digits, members
