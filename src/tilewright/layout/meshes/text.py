"""The texts of shardings, read and printed: XLA's (GSPMD, V1 and V2, and the one with names), Shardy's and JAX's.

    {devices=[2,1,4]<=[8] last_tile_dim_replicate}          {devices=[2,2]0,2,1,3}         {replicated}
    {mesh['a'=2,'b'=2], [{'a'}, {'b'}]}                     {maximal device=0}             {{replicated}, {manual}}
    #sdy.sharding<@mesh, [{"d"}, {"m", ?}, {}], replicated={"x":(1)2}>      P('d', ('m', 'x'), None)

A list of devices is turned into digits of their numbers: these are the axes. A list without such digits is kept as it
is (``order``). Every failure is a :class:`ParseError` with its column.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from tilewright.errors import ParseError, TilewrightError, UnsupportedError
from tilewright.layout.index.types import text_of
from tilewright.layout.meshes.mesh import MOST_DEVICES, Mesh, Part, Piece, sums, unused
from tilewright.layout.meshes.sharding import Sharding

_T = TypeVar("_T")
_N = r"\d{1,9}"
_QUOTED = r"""(?:"[^"\\{}]*"|'[^'\\{}]*')"""


def _list(item: str) -> str:
    return rf"(?:{item}(?:\s*,\s*{item})*)"


_PART = rf"{_QUOTED}(?::\({_N}\)[1-9]\d{{0,8}})?"
INTS, AXES = _list(_N), rf"({_list(_QUOTED + '=' + _N)}?)"
PARTS = f"{_list(_PART)}?"
IOTA = rf"\[\s*{INTS}\s*\](?:T\({INTS}\))?"
DEVICE_IDS = rf"\s*,\s*device_ids=\(({IOTA}|{INTS})\)"
_DIM = rf"{{\s*+{PARTS}\s*+,?\s*+[?]?\s*+}}(?:p{_N})?"
_DIMS = rf"\[\s*({_list(_DIM)}?)\s*\]"
_MORE = rf",\s*(replicated|manual|unreduced)\s*=\s*{{({PARTS})}}"
_SHARDY_MESH = rf"<\s*\[\s*{AXES}\s*\](?:\s*,\s*device_ids=\[({INTS})\])?\s*>"
_TILES = rf"devices=\[({INTS})\](?:<=({IOTA})|({INTS}))"
_LAST = r"last_tile_dim_(replicate)|last_tile_dims={([\w\s,]*)}"
_ONE_DIM, _ONE_PART = re.compile(rf"{{([^{{}}]*)}}(?:p({_N}))?"), re.compile(rf"({_QUOTED})(?::\(({_N})\)({_N}))?")
_SHORT = r"(?:[\w.]+(?:[+][\w.]+)*|-)"
_SPEC = r"P(?:artitionSpec)?\s*\((?:[^()]|\([^()]*\))*\)"
_KINDS = ("replicated", "manual", "unknown", "unreduced")
_TYPES = ("manual", "unreduced", "replicated")
_DEEPEST = 50


class Cursor:
    """A place in a text that is read piece by piece."""

    def __init__(self, text: str) -> None:
        self.text, self.begin, self.at = text, 0, 0

    def fail(self, what: str, how: str = "", at: int | None = None) -> ParseError:
        """The error of what was read last, or of the place ``at``."""
        return ParseError(what, text=self.text, column=self.begin if at is None else at, how=how)

    def take(self, pattern: str) -> re.Match[str] | None:
        """What the pattern finds here, behind blanks; then it is behind us."""
        found = re.compile(rf"\s*(?:{pattern})").match(self.text, self.at)
        if found:
            self.begin, self.at = self.at, found.end()
        return found

    def need(self, pattern: str, what: str) -> re.Match[str]:
        """The same, which must be there."""
        found = self.take(pattern)
        if not found:
            raise self.fail(f"expected {what}", at=self.at)
        return found

    def whole(self, value: _T) -> _T:
        """The value that was read, if nothing follows it."""
        if not self.take(r"\Z"):
            raise self.fail("it ends here, and text follows", at=self.at)
        return value

    def checked(self, make: Callable[[], _T]) -> _T:
        """What it makes; its complaint becomes one about this text."""
        try:
            return make()
        except ParseError:
            raise
        except TilewrightError as error:
            raise self.fail(error.what, error.how) from None


def read_sharding(text: str, mesh: Mesh | None = None) -> Sharding | tuple[Any, ...]:
    """A sharding, or a tuple of them, out of its text in any of the notations above.

    ``mesh`` is the one that Shardy's ``@name`` stands for, unless ``sdy.mesh`` lines stand before it, and that lists of
    devices are told in; without it they get axes called ``axis_0`` and so on. ``sdy.sharding_constraint`` gives its
    sharding, ``sdy.manual_computation`` those of its arguments and results. Raises :class:`ParseError`.

    >>> str(read_sharding("{devices=[2,1,4]<=[8] last_tile_dim_replicate}"))
    '{devices=[2,1,4]<=[8] last_tile_dim_replicate}'
    >>> str(read_sharding("{devices=[2,4]<=[4,2]T(1,0)}", Mesh({"d": 4, "m": 2})).shardy)
    '#sdy.sharding<mesh<["d"=4, "m"=2]>, [{"m"}, {"d"}]>'
    """
    at, meshes = Cursor(text_of(text, "a sharding's text")), dict[str, Mesh]()
    while found := at.take(r"sdy\.mesh\s+@([\w.$-]+)\s*="):
        meshes[found[1]] = _shardy_mesh(at)
    at.take("sharding=")
    if at.take(r"(?={)"):
        return at.whole(_gspmd(at, mesh))
    if at.take(r"#sdy\.sharding(?=<)"):
        return at.whole(_shardy(at, mesh, meshes))
    if at.take(r"#sdy\.sharding_per_value<") or re.search(r"sdy\.(sharding_constraint|manual_computation)", text):
        values = list[Sharding]()
        for found in re.finditer(r"<(?:@|mesh<)", text[at.at :]):
            inner = Cursor(text)
            inner.at = at.at + found.start()
            values.append(_shardy(inner, mesh, meshes))
        return values[0] if len(values) == 1 else tuple(values)
    if at.take(rf"(?=NamedSharding\(mesh=|{_SPEC})"):
        return at.whole(_jax(at, mesh))
    if mesh is not None and (found := at.take(rf"{_list(_SHORT)}\Z")):
        dims = [[] if dim.strip() == "-" else dim.strip().split("+") for dim in found[0].split(",")]
        return at.checked(lambda: Sharding(mesh, tuple(tuple(Part(axis.strip()) for axis in dim) for dim in dims)))
    raise at.fail("no sharding begins here", "as {devices=[2,4]<=[8]}, #sdy.sharding<...> or P('d', None)")


def read_mesh(text: str) -> Mesh:
    """A mesh out of its text: Shardy's, ``sdy.mesh @mesh = <["d"=4]>`` or what is in it, or short, ``d=4,m=4``."""
    at = Cursor(text_of(text, "a mesh's text"))
    if at.take(r"sdy\.mesh\s+@[\w.$-]+\s*=|mesh(?=<)") or "<" in text:
        return at.whole(_shardy_mesh(at))
    found = at.need(_list(rf"[A-Za-z_][\w.$-]*\s*=\s*{_N}"), "axes as d=4,m=4")
    return at.whole(mesh_of_axes(at, re.sub(r"([^\s,=]+)\s*=\s*", r"'\1'=", found[0])))


# -- names of axes -----------------------------------------------------------------------------------------------------


def mesh_of_axes(at: Cursor, axes: str, ids: Sequence[int] | None = None) -> Mesh:
    """The mesh of ``"d"=4, "m"=4``."""
    sizes = [(name[1:-1], int(size)) for name, size in re.findall(rf"({_QUOTED})=({_N})", axes)]
    if len(dict(sizes)) < len(sizes):
        raise at.fail("an axis of the mesh stands there twice")
    return at.checked(lambda: Mesh(dict(sizes), devices=ids))


def _shardy_mesh(at: Cursor) -> Mesh:
    found = at.need(_SHARDY_MESH, 'a mesh as <["d"=4, "m"=4]>')
    ids = [int(number) for number in found[2].split(",")] if found[2] else None
    if not found[1] and ids:  # a maximal sharding's: its only device
        return at.checked(lambda: Mesh({"device": ids[0] + 1}))
    return mesh_of_axes(at, found[1], ids)


def parts_of(text: str) -> tuple[Part, ...]:
    """The axes of ``"d", "x":(1)2``."""
    return tuple(Part(n[1:-1], int(pre or 1), int(size or 0)) for n, pre, size in _ONE_PART.findall(text))


def _named(at: Cursor, mesh: Mesh, notation: str) -> Sharding:
    """The dims and what follows them: ``[{"d"}, {}], replicated={"x"}, unreduced={"y"}``."""
    dims = _ONE_DIM.findall(at.need(_DIMS, 'the axes of every dim as [{"d"}, {}]')[1])
    more = dict[str, tuple[Part, ...]]()
    while found := at.take(_MORE):
        if found[1] in more:
            raise at.fail(f"{found[1]}= stands there twice")
        more[found[1]] = parts_of(found[2])
    parts, opened = tuple(parts_of(dim) for dim, _ in dims), frozenset(k for k, dim in enumerate(dims) if "?" in dim[0])
    levels = tuple((k, int(level)) for k, (_, level) in enumerate(dims) if level)
    kept, manual, summed = (more.get(name, ()) for name in ("replicated", "manual", "unreduced"))
    return at.checked(partial(Sharding, mesh, parts, opened, levels, kept, manual, summed, notation=notation))


def _shardy(at: Cursor, mesh: Mesh | None, meshes: dict[str, Mesh]) -> Sharding:
    at.need("<", "'<'")
    single = at.take(r"(?=mesh\s*<\s*\[\s*\]\s*,)")
    if name := at.take(r"@([\w.$-]+)"):
        mesh = meshes.get(name[1], mesh)
        if mesh is None:
            raise at.fail(f"no mesh {name[0]} is given", "pass the mesh, or put its sdy.mesh line before it")
    else:
        at.need("mesh", "a mesh's name as @mesh")
        mesh = _shardy_mesh(at)
    at.need(",", "','")
    sharding = _named(at, mesh, "shardy")
    at.need(">", "'>'")
    return replace(sharding, device=mesh.size - 1) if single else sharding


def _jax(at: Cursor, mesh: Mesh | None) -> Sharding:
    """``P('d', None)``, or a NamedSharding's repr with its own mesh: Python, so Python's own reader reads it."""
    from tilewright.layout.meshes.sharding import sharding_of

    if own := at.take(r"NamedSharding\(mesh=(?:Abstract)?Mesh\(([^()]*(?:\([^()]*\))?)\),\s*spec="):
        mesh = mesh_of_axes(at, re.sub(r"'\s*:\s*", "'=", own[1]))
    spec = at.need(_SPEC, "P(...)")[0].strip().replace("PartitionSpec.UNCONSTRAINED", "UNCONSTRAINED")
    try:
        call = ast.parse(spec, mode="eval").body
        assert isinstance(call, ast.Call)
        values = ["?" if isinstance(node, ast.Name) else ast.literal_eval(node) for node in call.args]
        summed = {key.arg: ast.literal_eval(key.value) for key in call.keywords}
    except (AssertionError, ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise at.fail("not what P(...) takes", "names of axes, tuples of them, None or UNCONSTRAINED") from None
    if mesh is None or set(summed) - {"unreduced"} or not isinstance(summed.get("unreduced", set()), set):
        raise at.fail("a PartitionSpec needs a mesh, and takes only unreduced={...} by name", "as --mesh d=4,m=4")
    if own:
        at.need(r"(?:,\s*memory_kind=\w*\s*)?\)", "')'")
    opened = frozenset(k for k, entry in enumerate(values) if entry == "?")
    sharding = at.checked(lambda: sharding_of([None if entry == "?" else entry for entry in values], mesh))
    more = tuple(Part(axis) for axis in mesh.names if axis in summed.get("unreduced", ()))
    return at.checked(lambda: replace(sharding, open=opened, unreduced=more, notation="jax"))


# -- lists of devices --------------------------------------------------------------------------------------------------


def _gspmd(at: Cursor, mesh: Mesh | None, depth: int = 0) -> Sharding | tuple[Any, ...]:
    at.need("{", "'{'")
    if depth > _DEEPEST:
        raise at.fail(f"tuples are nested more than {_DEEPEST} deep")
    if at.take("(?=[{}])"):
        values = list[Any]()
        while not at.take("}"):
            if values:
                at.need(",", "',' or '}'")
            values.append(_gspmd(at, mesh, depth + 1))
        return tuple(values)
    if found := at.take(rf"mesh\[{AXES}\](?:{DEVICE_IDS})?\s*,"):
        over = mesh_of_axes(at, found[1], device_list(at, found[2]).tolist() if found[2] else None)
        if over.devices and max(over.devices) >= over.size:
            raise at.fail(f"device_ids are not an order of {over.size} devices")
        sharding = replace(_named(at, Mesh(over.axes), "named"), order=over.devices)
    elif found := at.take(_TILES):
        sharding = _tiles(at, found, mesh)
    elif found := at.take(rf"maximal\s+device=({_N})"):
        if int(found[1]) >= (MOST_DEVICES if mesh is None else mesh.size):
            raise at.fail(f"there is no device {found[1]}")
        sharding = Sharding(mesh or Mesh({"device": int(found[1]) + 1}), device=int(found[1]), notation="gspmd")
    else:
        kind = at.need("|".join(_KINDS), f"{', '.join(_KINDS)}, maximal device=N or devices=[..]<=[..]")[0].strip()
        sharding = Sharding(mesh or Mesh({}), kind="" if kind == "replicated" else kind, notation="gspmd")
    while at.take(rf"""metadata={{(?:[^{{}}"]|"(?:[^"\\]|\\.)*"|{{[^{{}}]*}})*}}|shard_(?:as|like)\s+{_N}"""):
        pass  # what it came from, and what it shall be like: not where anything lies
    at.need("}", "'}'")
    return sharding


def device_list(at: Cursor, text: str) -> np.ndarray[Any, Any]:
    """The numbers of ``0,2,1,3``, or of ``[4,2]T(1,0)``: 4 x 2 devices read in another order of the dims."""
    sizes, order = ([int(n) for n in re.findall(r"\d+", part)] for part in (text.split("T")[0], text.partition("T")[2]))
    if not text.startswith("["):
        return np.array(sizes)
    if not 0 < math.prod(sizes) <= MOST_DEVICES or len(sizes) > 30:
        raise at.fail(f"not from 1 to {MOST_DEVICES} devices in at most 30 dims")
    if order and sorted(order) != list(range(len(sizes))):
        raise at.fail(f"T(..) is not an order of {len(sizes)} dims")
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    return (numbers.transpose(order) if order else numbers).reshape(-1)


def _tiles(at: Cursor, found: re.Match[str], mesh: Mesh | None) -> Sharding:
    """Sizes of the tile assignment, its devices, and what its last dims are."""
    sizes = [int(size) for size in found[1].split(",")]
    devices = device_list(at, found[2] or found[3])
    if len(sizes) > 30 or math.prod(sizes) != len(devices) or set(devices.tolist()) != set(range(len(devices))):
        raise at.fail(f"these are not the {math.prod(sizes)} devices of the sizes, each once")
    if mesh is not None and mesh.size != len(devices):
        raise at.fail(f"{len(devices)} devices, and the mesh {mesh} has {mesh.size}")
    last = at.take(_LAST)
    types = [] if last is None else ["replicated"] if last[1] else [word.strip() for word in last[2].split(",")]
    if len(types) > len(sizes) or set(types) - set(_TYPES):
        raise at.fail(f"the last dims are {', '.join(_TYPES)}, and no more than there are")
    return _from_tiles(devices.reshape(sizes), types, mesh)


def _from_tiles(devices: np.ndarray[Any, Any], types: Sequence[str], mesh: Mesh | None) -> Sharding:
    """The sharding of a tile assignment: every dim as digits of the device's number, or a list of devices."""
    pieces, order = [digits(devices, dim) for dim in range(devices.ndim)], None
    if None in pieces or math.prod(piece.size for dim in pieces for piece in dim or ()) != devices.size:
        order, mesh = tuple(devices.reshape(-1).tolist()), None
        pieces = [digits(np.arange(devices.size).reshape(devices.shape), dim) for dim in range(devices.ndim)]
    if mesh is None:
        strides = sorted((piece for dim in pieces for piece in dim or ()), key=lambda piece: -piece.stride)
        mesh = Mesh({f"axis_{k}": piece.size for k, piece in enumerate(strides)})
    found = [[mesh.parts(piece) for piece in dim or ()] for dim in pieces]
    if any(parts is None for dim in found for parts in dim):  # digits, but none of the mesh's axes
        return _from_tiles(devices, types, None)
    dims = [tuple(part for parts in dim for part in parts or ()) for dim in found]
    rank = devices.ndim - len(types)
    last = list(zip(types, dims[rank:], strict=True))
    manual, summed = (tuple(p for k, dim in last if k == name for p in dim) for name in ("manual", "unreduced"))
    return Sharding(mesh, tuple(dims[:rank]), manual=manual, unreduced=summed, order=order, notation="gspmd")


def digits(devices: np.ndarray[Any, Any], dim: int) -> list[Piece] | None:
    """The digits of the devices' numbers that run along a dim, major first; None where it is no sum of digits.

    >>> digits(np.arange(8).reshape(2, 4).T, 0)
    [Piece(size=4, stride=1)]
    """
    along = np.moveaxis(devices, dim, 0)
    steps = along.reshape(len(along), -1)[:, 0] - along.flat[0]
    if (along - along[:1] != steps.reshape(-1, *[1] * (devices.ndim - 1))).any():
        return None
    pieces, values = list[Piece](), steps.tolist()
    while len(values) > 1:
        stride = values[1]
        run = next((k for k, value in enumerate(values) if value != k * stride), len(values))
        size = max(n for n in range(1, run + 1) if len(values) % n == 0)
        if size < 2 or stride < 1 or any(v != values[k - k % size] + k % size * stride for k, v in enumerate(values)):
            return None
        pieces.insert(0, Piece(size, stride))
        values = values[::size]
    return pieces


# -- printing ----------------------------------------------------------------------------------------------------------


def sharding_text(sharding: Sharding) -> str:
    """The text in the notation in which it was written, or that has a word for it; one that reads back."""
    if sharding.notation == "named":
        axes = ",".join(f"'{name}'={size}" for name, size in sharding.mesh.axes.items())
        ids = "" if sharding.order is None else f" device_ids=({','.join(map(str, sharding.order))}),"
        return f"{{mesh[{axes}],{ids} {_dims_text(sharding)}}}".replace('"', "'")
    if sharding.notation == "gspmd" or sharding.order is not None or sharding.kind or sharding.manual:
        return gspmd_text(sharding)
    if sharding.notation == "jax":
        axes = ", ".join(f"'{name}': {size}" for name, size in sharding.mesh.axes.items())
        entries = ["UNCONSTRAINED" if k in sharding.open else repr(entry) for k, entry in enumerate(sharding.spec)]
        summed = ", ".join(repr(part.axis) for part in sharding.unreduced)
        entries += [f"unreduced={{{summed}}}"] if summed else []
        return f"NamedSharding(mesh=Mesh({axes}), spec=P({', '.join(entries)}))"
    return shardy_text(sharding)


def _dims_text(sharding: Sharding) -> str:
    levels, dims = dict(sharding.priorities), list[str]()
    for k, dim in enumerate(sharding.dims):
        inside = ", ".join([*map(str, dim), *["?"] * (k in sharding.open)])
        dims.append(f"{{{inside}}}" + (f"p{levels[k]}" if k in levels else ""))
    more = ((name, getattr(sharding, name)) for name in ("replicated", "manual", "unreduced"))
    return f"[{', '.join(dims)}]" + "".join(f", {name}={{{', '.join(map(str, p))}}}" for name, p in more if p)


def shardy_text(sharding: Sharding) -> str:
    """Shardy's text with the mesh in it; :class:`UnsupportedError` for lists of devices and manual axes."""
    if sharding.device is not None:
        return f"#sdy.sharding<mesh<[], device_ids=[{sharding.device}]>, {_dims_text(sharding)}>"
    if sharding.order is not None or sharding.kind or sharding.manual:
        raise UnsupportedError(f"Shardy has no word for {gspmd_text(sharding)}")
    return f"#sdy.sharding<mesh{sharding.mesh}, {_dims_text(sharding)}>"


def gspmd_text(sharding: Sharding) -> str:
    """XLA's text; the devices are numbered in the mesh's order.

    >>> from tilewright.layout import Mesh
    >>> gspmd_text(read_sharding("-,m", Mesh({"d": 2, "m": 4})))
    '{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}'
    """
    if sharding.device is not None:
        return f"{{maximal device={sharding.device}}}"
    if sharding.kind:
        return f"{{{sharding.kind}}}"
    dims = [sharding.pieces(k) for k in range(len(sharding.dims))]
    kinds = {name: [sharding.mesh.piece(part) for part in getattr(sharding, name)] for name in _TYPES}
    used = [piece for dim in (*dims, kinds["manual"], kinds["unreduced"]) for piece in dim]
    kinds["replicated"] = unused(used, sharding.mesh.size)
    last = {name: pieces for name, pieces in kinds.items() if math.prod(piece.size for piece in pieces) > 1}
    if all(piece.size == 1 for dim in dims for piece in dim) and len(last) <= 1:
        return f"{{{next(iter(last), 'replicated')}}}"
    every = [*dims, *last.values()]
    sizes = ",".join(str(math.prod(piece.size for piece in dim)) for dim in every)
    flat = [piece for dim in every for piece in dim if piece.size > 1]
    tail = " last_tile_dim_replicate" if [*last] == ["replicated"] else f" last_tile_dims={{{', '.join(last)}}}"
    devices = f"<={iota_text(flat)}"
    if sharding.order is not None:
        devices = ",".join(str(sharding.order[place]) for place in sums(flat))
    return f"{{devices=[{sizes}]{devices}{tail if last else ''}}}"


def iota_text(pieces: Sequence[Piece]) -> str:
    """``[4,2]T(1,0)``: digits in this order, neighbours that count on as one."""
    joined = list[Piece]()
    for piece in pieces:
        if joined and joined[-1].stride == piece.size * piece.stride:
            joined[-1] = Piece(joined[-1].size * piece.size, piece.stride)
        else:
            joined.append(piece)
    order = sorted(range(len(joined)), key=lambda k: -joined[k].stride)
    sizes = ",".join(str(joined[k].size) for k in order)
    turned = "" if len(joined) == 1 else f"T({','.join(str(order.index(k)) for k in range(len(joined)))})"
    return f"[{sizes}]{turned}"
