"""Shardings that are said beside a program: put into StableHLO's text at its arguments and results.

The text is then what JAX would have written for ``in_shardings=``, so that all that comes after is one way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from tilewright.errors import UsageError
from tilewright.hlo.program import Program
from tilewright.hlo.reading.hlo_scan import Scanner
from tilewright.hlo.reading.mlir_reader import TYPE, read_stablehlo
from tilewright.layout import Mesh
from tilewright.layout.meshes.mesh import Sharding
from tilewright.layout.meshes.text import mesh_of, sharding_of

MESH = re.compile(r"^[^\S\n]*sdy\.mesh\s+@([\w.$-]+)\s*=\s*(?:mesh)?(<\[.*?\]>)", re.M)
_MODULE = re.compile(r"^\s*(?:builtin\.)?module\b[^\n]*\{[^\S\n]*(?:loc\([^\n]*\)[^\S\n]*)?$", re.M)
_ARGUMENT = re.compile(r"%(\w+)\s*:\s*")
_SIZES = re.compile(r"tensor<((?:\d{1,15}x)*)")
_OWN = re.compile(r"sdy\.sharding = #sdy\.sharding<[^<>]*>(?:, )?")
_RESULT = re.compile(r'jax\.result_info = "((?:[^"\\]|\\.)*)"')
_OLD = re.compile(r"\bmhlo\.sharding\s*=")


@dataclass(frozen=True)
class Place:
    """An argument or a result of a program's entry: its ``name``, its sizes, and where its attributes stand."""

    name: str
    number: int
    shape: tuple[int, ...]
    ends: int  # of its type, in the text
    braces: tuple[int, int] | None  # of its attributes, where there are any
    argument: bool = True
    bare: int = -1  # where the type of a lone result begins that stands in no parentheses

    def called(self, name: str) -> bool:
        """Whether a name on the command line means it: its own, its number, that of a tree it is in, a pattern."""
        tree = self.name.startswith(name) and self.name[len(name) : len(name) + 1] in (".", "[")
        own = self.argument and name in (str(self.number), f"arg{self.number}", f"%arg{self.number}")
        return name == self.name or own or tree or fnmatchcase(self.name, name.replace("[", "[[]"))


def places(program: Program) -> list[Place]:
    """The arguments and results of a StableHLO program's entry, by the names that the function has for them.

    >>> from tilewright.hlo import load
    >>> text = 'func.func @main(%arg0: tensor<2x3xf32> loc("x")) -> tensor<2x3xf32> { return %arg0 : tensor<2x3xf32> }'
    >>> [(place.name, place.shape) for place in places(load(text))]
    [('x', (2, 3)), ('result', (2, 3))]
    """
    text = program.text
    head = re.search(rf'func\.func\s+(?:public\s+|private\s+)?@"?{re.escape(program.entry.name)}"?\s*\(', text)
    if program.kind != "stablehlo" or head is None:
        raise UsageError("only StableHLO and JAX functions are sharded so; a dump has been partitioned already")
    named = {op.name.removeprefix("%"): op.op_name for op in program.entry.operations if op.opcode == "parameter"}
    reader, found = _Signature(text), list[Place]()
    reader.at = head.end()
    while not reader.take(")"):
        name = reader.match(_ARGUMENT, "an argument '%NAME: TYPE'")[1]
        found.append(reader.place(named.get(name) or name, len(found)))
    count = len(found)
    several = reader.take("->") and reader.take("(")
    while not (reader.take(")") if several else len(found) > count or reader.take("{")):
        start, number = reader.at, len(found) - count
        made = reader.place("", number, several)
        info = _RESULT.search(text, start, reader.at)
        name = info[1] if info and info[1] else f"result{number or ''}"
        found.append(replace(made, name=name, argument=False, bare=-1 if several else start))
    return found


class _Signature(Scanner):
    """The arguments and results of a function, one after the other."""

    def place(self, name: str, number: int, attributes: bool = True) -> Place:
        """Step over a type with its attributes, its location and the comma behind it."""
        self.blank()
        sizes = _SIZES.match(self.match(TYPE, "a type such as tensor<8x128xf32>")[0])
        ends, braces = self.at, None
        self.blank()
        if attributes and self.peek("{"):
            braces = self.at, self.at + len(self.balanced())
        self.location()
        self.take(",")
        shape = tuple(int(size) for size in sizes[1].split("x")[:-1]) if sizes else ()
        return Place(name, number, shape, ends, braces)


def sharded(program: Program, mesh: Mesh | Mapping[str, int] | str, shardings: Mapping[str, Any]) -> Program:
    """A StableHLO program with its arguments and results cut over a mesh, for :func:`partition` and all that asks it.

    ``shardings``: name -> what :func:`tilewright.layout.shard` takes (``"data,-"``, ``[("data",), ()]``, a text). Names
    are the function's (``x``, ``params['w']``, ``result``), numbers of arguments (``0``), trees (``params`` means each
    of its arrays that the axes divide) or patterns (``*['w']``). What no name means is the partitioner's choice, what
    has a sharding in its text keeps it. The mesh's ``topology`` says how many chips lie along each dim of the torus.
    Raises UsageError for an unknown name, an axis that is not there, and sizes that do not divide (as JAX).

    >>> from tilewright.hlo import load
    >>> text = 'func.func @main(%arg0: tensor<8x4xf32> loc("x")) -> tensor<8x4xf32> { return %arg0 : tensor<8x4xf32> }'
    >>> print(sharded(load(text), {"data": 2}, {"x": "data,-"}).text.splitlines()[2].strip())
    func.func @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>} loc("x")) -> \
tensor<8x4xf32> { return %arg0 : tensor<8x4xf32> }
    """
    over = mesh_of(mesh)
    known, marks = places(program), dict[Place, str]()
    name, text = _declared(program.text, over)
    known = known if text is program.text else places(read_stablehlo(text))
    for wanted, value in shardings.items():
        meant = [place for place in known if place.called(wanted)]
        if not meant:
            there = ", ".join(place.name for place in known[:12]) + (", ..." if len(known) > 12 else "")
            raise UsageError(f"the program has no argument {wanted!r}", where="--shard", how=f"there are: {there}")
        sharding, alone = sharding_of(value, over), len(meant) == 1
        for place in meant:
            if (mark := _mark(place, sharding, alone, name)) is not None:
                marks[place] = mark
    for place in sorted(marks, key=lambda place: -place.ends):
        text = _marked(text, place, marks[place])
    made = read_stablehlo(text)
    topology = {"topology": over.topology} if over.topology is not None else {}
    attributes = {**made.attributes, "num_partitions": str(over.size), **topology}
    return replace(made, attributes=attributes, signature=program.signature)


def _declared(text: str, mesh: Mesh) -> tuple[str, str]:
    """The name of the mesh in the text, and the text with it."""
    if _OLD.search(text):
        how = "take them out, or lower the function without in_shardings"
        raise UsageError("the program has shardings of XLA's older form already", where="--mesh", how=how)
    if found := mesh_in(text):
        if found[1].axes == mesh.axes:
            return found[0], text
        raise UsageError(f"the program is over the mesh {found[1]}, not {mesh}", where="--mesh", how="give that one")
    line = f"  sdy.mesh @mesh = {Mesh(mesh.axes)}\n"
    if module := _MODULE.search(text):
        return "mesh", f"{text[: module.end()]}\n{line}{text[module.end() + 1 :]}"
    return "mesh", f"module {{\n{line}  {text.strip()}\n}}\n"


def mesh_in(text: str) -> tuple[str, Mesh] | None:
    """The name of the first mesh with devices that a text declares, and the mesh; JAX writes an empty one, too."""
    known = ((found[1], mesh_of(found[2])) for found in MESH.finditer(text))
    return next((pair for pair in known if pair[1].names), None)


def _mark(place: Place, sharding: Sharding, alone: bool, name: str) -> str | None:
    """The attribute of an argument; None where a name that means several does not fit this one."""
    rank, counts = len(place.shape), list(map(sharding.count, range(len(sharding.dims))))
    uneven = [k for k, (size, count) in enumerate(zip(place.shape, counts)) if size % count]
    if len(counts) > rank or uneven:
        if not alone:
            return None
        if not uneven:
            raise UsageError(f"{place.name} has {rank} dims, and its sharding {len(counts)}", where="--shard")
        size, parts = place.shape[uneven[0]], counts[uneven[0]]
        fits = [
            f"dim {k} ({n:,})" for k, n in enumerate(place.shape) if n % parts == 0 and counts[k : k + 1] in ([], [1])
        ]
        how = f"cut {' or '.join(fits)} over them, or fewer devices" if fits else "cut it over fewer devices"
        raise UsageError(f"dim {uneven[0]} of {place.name} has {size}, which {parts} devices do not divide", how=how)
    return f"sdy.sharding = #sdy.sharding<@{name}, [{cuts_text(sharding, rank)}]>"


def cuts_text(sharding: Sharding, rank: int) -> str:
    """``{"d"}, {?}``: the axes that cut each dim of an array, as Shardy has them."""
    dims = [*sharding.dims, *[()] * (rank - len(sharding.dims))]
    cuts = ([*map(str, dim), *["?"] * (k in sharding.open)] for k, dim in enumerate(dims))
    return ", ".join("{" + ", ".join(cut) + "}" for cut in cuts)


def _marked(text: str, place: Place, mark: str) -> str:
    if place.bare >= 0:
        return f"{text[: place.bare]}({text[place.bare : place.ends]} {{{mark}}}){text[place.ends :]}"
    if place.braces is None:
        return f"{text[: place.ends]} {{{mark}}}{text[place.ends :]}"
    start, end = place.braces
    rest = _OWN.sub("", text[start + 1 : end - 1]).strip().removesuffix(",")
    return f"{text[: start + 1]}{', '.join(filter(None, (mark, rest)))}{text[end - 1 :]}"
