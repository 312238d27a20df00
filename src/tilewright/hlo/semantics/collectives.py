"""The exchanges between chips that a program makes: who takes part in each, where they stand, and what a chip sends.

A group's devices are numbered as the program numbers them: partitions where ``use_global_device_ids`` says so, which is
what the compiler prints. Texts of groups: lists ``{{0,1},{2,3}}``, iota ``[4,2]<=[2,4]T(1,0)``, axes of a mesh
``mesh['a'=4,'b'=2] {'b'}``, with or without ``device_ids``, StableHLO's tables ``dense<[[0, 1], [2, 3]]>``, and the
``source_target_pairs`` of a permute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np

from tilewright.errors import TilewrightError, UsageError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import COLLECTIVES
from tilewright.hlo.program import Computation, Operation, Program, Source
from tilewright.hlo.reading.hlo_scan import array_shapes
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.dims import devices_of
from tilewright.layout import read_groups as read
from tilewright.layout.meshes.mesh import read_topology
from tilewright.layout.meshes.text import digits
from tilewright.layout.meshes.torus import Slice, device_places, squarest
from tilewright.targets import Target
from tilewright.targets import target as find_target

Groups = tuple[tuple[int, ...], ...]

_MOST_DEVICES = 1 << 17
_SUMMED_FROM, _SUMMED_TO = 64, 16 * 2**20
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
    / n of its operands, an all-reduce twice that (once where a chip keeps a slice of it), a permute all of them. A
    dump's own layouts say what is padded; StableHLO has none: there it is ``target`` that says it, and without one the
    bytes are those of the elements. Groups that a text does not tell count as of two chips.

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
    devices, seen, in_part = devices_of(program), set[str](), dict[str, frozenset[str]]()
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
        if program.kind != "hlo" and context.chip is not None and context.chip.links is not None:
            layout = context.layout(op.shape)
            op = as_sum(op, devices, layout.size_bytes if layout is not None else 0, context.chip.links.dims)
            kind = plain_opcode(op.opcode)
        if kind == "all-reduce" and computation.name not in in_part:
            in_part[computation.name] = read_in_part(computation.operations)
        sums = as_scatter(op, in_part[computation.name]) is not op if kind == "all-reduce" else False
        found.append(_collective(context, computation, op, kind.removesuffix("-start"), devices, sums))
    return tuple(found)


def read_in_part(operations: Sequence[Operation]) -> frozenset[str]:
    """Results of which nothing but slices is read."""
    sliced = {name for op in operations if plain_opcode(op.opcode) == "dynamic-slice" for name in op.operands}
    others = (op for op in operations if plain_opcode(op.opcode) != "dynamic-slice") if sliced else ()
    return frozenset(sliced.difference(*[op.operands for op in others]))


def as_scatter(op: Operation, in_part: frozenset[str]) -> Operation:
    """An all-reduce of which a device keeps a slice is a scatter of sums; any other exchange as it is."""
    scatters = plain_opcode(op.opcode) == "all-reduce" and op.name in in_part
    return replace(op, opcode="reduce-scatter") if scatters else op


def as_sum(op: Operation, devices: int, size: float, dims: int) -> Operation:
    """A gather of ``size`` bytes over all ``devices`` of a large slice is a sum to the TPU's compiler: each adds zeros
    for the others' parts. Any other exchange as it is.

    So it was in every module that libtpu 0.0.50 made for 64 to 256 devices of v5e, v6e (up to 16 MiB, never above) and
    v5p (up to the largest tried, 256 MiB), and in none for 32, or of groups that are not all devices.
    """
    many = plain_opcode(op.opcode) == "all-gather" and devices >= _SUMMED_FROM
    if not many or (dims < 3 and size > _SUMMED_TO) or [*map(len, groups_of(op, devices))] != [devices]:
        return op
    return replace(op, opcode="all-reduce", operand_shapes=(op.shape,))


def _collective(
    context: Context, computation: Computation, op: Operation, kind: str, devices: int, kept: bool
) -> Collective:
    groups = groups_of(op, devices)
    if kind == "collective-permute":
        share = float(not groups or any(source != target for source, target in groups))
    else:
        size = max(map(len, groups), default=devices or 2)
        share = (size - 1) / size * (2 if kind == "all-reduce" and not kept else 1)
    sizes = map(context.layout, _sent(op, kind))
    sent = sum(layout.size_bytes for layout in sizes if layout is not None)
    place = op.source, computation.name, op.op_name, op.shape, op.line
    return Collective(op.name, kind, groups, round(share * sent), *place)


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

    The forms of HLO are the layout room's to read; StableHLO's tables are read here.

    >>> read_groups("[4,2]<=[2,4]T(1,0)")
    ((0, 4), (1, 5), (2, 6), (3, 7))
    >>> read_groups("{}", 3)
    ((0, 1, 2),)
    """
    table, _, _ = text.partition(":")
    if not table.replace("dense<", "").strip("<>{}[] "):
        return (tuple(range(devices)),) if 0 < devices <= _MOST_DEVICES else ()
    if packed := _HEX.match(text):
        raw = bytes.fromhex(packed[1]) if len(packed[1]) % 2 == 0 else b""
        numbers = [int.from_bytes(raw[k : k + 8], "little", signed=True) for k in range(0, len(raw), 8)]
        rows, width = int(packed[2]), int(packed[3])
        if rows * width != len(numbers):
            return ()
        return _filled(numbers[k * width : (k + 1) * width] for k in range(rows))
    if (same := _SPLAT.match(text)) and int(same[2]) * int(same[3]) <= _MOST_DEVICES:
        return ((int(same[1]),) * int(same[3]),) * int(same[2])
    if text.startswith("dense<"):
        return _filled(map(int, _INTEGER.findall(row)) for row in _ROW.findall(table))
    try:
        return read(text, devices).groups
    except TilewrightError:
        return ()


def _filled(rows: Iterable[Iterable[int]]) -> Groups:
    """Rows as groups; short ones are filled up with -1."""
    groups = (tuple(number for number in row if number >= 0) for row in rows)
    return tuple(group for group in groups if group)


# Where the devices stand.

_MOST_PLACED = 1 << 16


def slice_of(program: Program, machine: Target) -> Slice | None:
    """Where the devices of a program stand; None where it is for one, does not say for how many, or no links are known.

    A program names devices by their places in its mesh: they are taken to stand where JAX puts them
    (``device_places``), on the squarest slice of their number unless the program's topology is known. A dump that names
    no mesh has one of which all its groups run along axes. Raises UsageError for a topology that no such chips have.
    """
    links, cores, known = machine.links, machine.devices_per_chip, devices_of(program)
    if links is None or not links.bytes_per_second:
        return None
    found = (op for _, op in program.operations() if plain_opcode(op.opcode).removesuffix("-start") in COLLECTIVES)
    once = {tuple(op.attributes.get(key, "") for key in ("replica_groups", "source_target_pairs")): op for op in found}
    tables = [groups for op in once.values() if (groups := groups_of(op, known))]
    devices = max(known, 1 + max((max(group) for rows in tables for group in rows), default=0))
    chips = devices // cores
    if devices < 2 or devices % cores or devices > _MOST_PLACED:
        return None
    slices, torus = read_topology(program.attributes.get("topology") or "1")
    if sum(size > 1 for size in torus) > links.dims:
        torus_text, how = "x".join(map(str, torus)), f"give one such as {'4x' * (links.dims - 1)}8"
        raise UsageError(f"{torus_text} is no slice of chips with links in {links.dims} dims", how=how)
    if prod(torus) * slices != chips:
        slices = -(-chips // links.largest) if links.largest else 1
        slices = slices if chips % slices == 0 else 1
        torus = squarest(chips // slices, links.dims)
    said = [axis.rpartition("=")[::2] for axis in program.attributes.get("mesh", "").split(",") if axis]
    mesh = tuple(int(size) for _, size in said) or mesh_along(tables, devices)
    if prod(mesh) != devices or mesh[0] % slices:
        mesh, said = (devices,), []
    inside = (mesh[0] // slices, *mesh[1:])  # the first axis runs over the slices, as JAX's hybrid meshes have it
    places = device_places(inside, torus, cores, links.small_orders)
    numbers = np.repeat(np.arange(slices), len(places))[:, None]
    rings = [bool(links.wrap) and size % links.wrap == 0 for size in torus]
    rings = [ring and (links.dims < 3 or all(rings)) for ring in rings]
    names = tuple(name for name, _ in said) or tuple(f"axis {k}" for k in range(len(mesh)))
    return Slice(np.concatenate([numbers, np.tile(places, (slices, 1))], 1), torus, rings, mesh, names)


def mesh_along(tables: Sequence[Groups], devices: int) -> tuple[int, ...]:
    """The sizes of the axes of a mesh along which all these groups run.

    >>> mesh_along([((0, 2), (1, 3), (4, 6), (5, 7))], 8)
    (2, 2, 2)
    """
    bounds, kept = {1, devices}, [1]
    for rows in (np.array(table) for table in tables if len({*map(len, table)}) == 1):
        for size, stride in digits(rows - rows[:, :1], 1) or ():
            bounds |= {stride, stride * size}
    for bound in sorted(bounds):
        if bound > kept[-1] and bound % kept[-1] == 0 == devices % bound:
            kept.append(bound)
    return tuple(b // a for a, b in reversed([*pairwise(kept)])) or (1,)
