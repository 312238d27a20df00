"""The texts of shardings, read: XLA's (GSPMD, V1 and V2, and the one with names), Shardy's and JAX's.

    {devices=[2,1,4]<=[8] last_tile_dim_replicate}          {devices=[2,2]0,2,1,3}         {replicated}
    {mesh['a'=2,'b'=2], [{'a'}, {'b'}]}                     {maximal device=0}             {{replicated}, {manual}}
    #sdy.sharding<@mesh, [{"d"}, {"m", ?}, {}], replicated={"x":(1)2}>      P('d', ('m', 'x'), None)

and those of the groups of devices that a collective joins: {{0,1},{2,3}}, {} for all devices, [4,2]<=[2,4]T(1,0), or
the devices along axes of a mesh of its own, mesh['axis_0'=4,'axis_1'=4] {'axis_1'}, whose order device_ids= may say.

A list of devices is turned into digits of their numbers: these are the axes. A list without such digits is kept as it
is (``order``). Every failure is a :class:`ParseError` with its column.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from tilewright.errors import ParseError, TilewrightError, UsageError
from tilewright.layout.index.types import text_of, to_int
from tilewright.layout.meshes.mesh import MOST_DEVICES, TYPES, Mesh, Part, Piece, Sharding, iota_text

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
    if len(types) > len(sizes) or set(types) - set(TYPES):
        raise at.fail(f"the last dims are {', '.join(TYPES)}, and no more than there are")
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


def mesh_of(value: Any) -> Mesh:
    """A mesh, given as one, as a mapping of sizes, as JAX's ``Mesh`` or ``AbstractMesh``, or as a text.

    >>> mesh_of("d=4,m=2"), mesh_of('<["d"=4, "m"=2]>') == mesh_of({"d": 4, "m": 2})
    (Mesh({'d': 4, 'm': 2}), True)
    """
    if isinstance(value, Mesh):
        return value
    if isinstance(value, Mapping):
        return Mesh(value)
    if isinstance(value, str):
        return read_mesh(value)
    sizes = getattr(value, "shape", None)
    if not isinstance(sizes, Mapping):
        raise UsageError(f"{value!r} is not a mesh", how='as {"d": 4, "m": 4}')
    devices = None if type(value).__name__ == "AbstractMesh" else getattr(value, "devices", None)  # it has none
    ids = None if devices is None else [getattr(device, "id", device) for device in devices.flat]
    return Mesh({str(name): to_int(size, "an axis's size") for name, size in sizes.items()}, devices=ids)


def sharding_of(value: Any, mesh: Any = None) -> Sharding:
    """A sharding, given as one, as a text, as JAX's, or as a list of axes per dim over ``mesh``.

    A list has one entry per dim: None or () for none, an axis, or several of them, major first.
    """
    mesh = None if mesh is None else mesh_of(mesh)
    if isinstance(value, str):
        found = read_sharding(value, mesh)
        if isinstance(found, tuple):
            raise UsageError(f"{value[:80]!r} is a tuple of {len(found)} shardings", how="give one of them")
        return found
    if not isinstance(value, Sharding):
        if mesh is None and hasattr(value, "mesh") and hasattr(value, "spec"):
            mesh, value = mesh_of(value.mesh), value.spec
        elif hasattr(value, "_to_xla_hlo_sharding"):  # what JAX has beside NamedSharding says itself in XLA's words
            return sharding_of(str(value._to_xla_hlo_sharding(getattr(value, "ndim", 1))), mesh)
        if mesh is None:
            raise UsageError(f"a list of axes needs a mesh: {value!r}")
        return _of_entries(value, mesh)
    if mesh is not None and mesh != value.mesh:
        raise UsageError(f"{value} is over another mesh than {mesh}")
    return value


def _of_entries(spec: Any, mesh: Mesh) -> Sharding:
    try:
        entries = list(spec)
    except TypeError:
        raise UsageError(f"a sharding is a text, or a list of axes per dim, not {spec!r}") from None
    dims, free = list[tuple[Part, ...]](), set[int]()
    for at, entry in enumerate(entries):
        if type(entry).__name__ == "UnconstrainedSingleton":
            free.add(at)
            entry = ()
        axes = () if entry is None else (entry,) if isinstance(entry, (str, Part)) else entry
        if not isinstance(axes, (list, tuple)) or not all(isinstance(axis, (str, Part)) for axis in axes):
            raise UsageError(f"dim {at} is cut by {entry!r}, which is no axis and no list of axes")
        dims.append(tuple(axis if isinstance(axis, Part) else Part(axis) for axis in axes))
    summed = tuple(Part(axis) for axis in mesh.names if axis in (getattr(spec, "unreduced", None) or ()))
    return Sharding(mesh, tuple(dims), frozenset(free), unreduced=summed)


# -- groups of devices: replica_groups= and source_target_pairs= of HLO ------------------------------------------------


@dataclass(frozen=True)
class DeviceGroups:
    """Groups of devices; ``mesh`` and ``parts`` are those of a text that names axes.

    >>> groups = read_groups("mesh['axis_0'=2,'axis_1'=2] {'axis_0'}")
    >>> groups.groups, str(groups)
    (((0, 2), (1, 3)), "mesh['axis_0'=2,'axis_1'=2] {'axis_0'}")
    """

    groups: tuple[tuple[int, ...], ...]
    mesh: Mesh | None = None
    parts: tuple[Part, ...] = ()
    iota: str = ""

    def axes(self, mesh: Mesh) -> tuple[Part, ...] | None:
        """The axes of a mesh along which these groups lie, major first; None where they are not along axes.

        >>> [str(part) for part in read_groups("[4,2]<=[2,4]T(1,0)").axes(Mesh({"d": 2, "m": 4}))]
        ['"d"']
        """
        if len({len(group) for group in self.groups}) != 1:
            return None
        table = np.array(self.groups)
        along = digits(table - table[:, :1], 1)
        parts = None if along is None else [mesh.parts(piece) for piece in along]
        if parts is None or any(part is None for part in parts):
            return None
        found = tuple(part for several in parts for part in several or ())
        return found if sorted(mesh.groups(found)) == sorted(map(tuple, self.groups)) else None

    def __str__(self) -> str:
        if self.mesh is not None:
            axes = ",".join(f"'{name}'={size}" for name, size in self.mesh.axes.items())
            ids = self.mesh.devices and f", device_ids=({','.join(map(str, self.mesh.devices))})"
            names = ",".join(str(part).replace('"', "'") for part in self.parts)
            return f"mesh[{axes}]{ids or ''} {{{names}}}"
        return self.iota or f"{{{','.join('{' + ','.join(map(str, group)) + '}' for group in self.groups)}}}"


def read_groups(text: str, devices: int = 0) -> DeviceGroups:
    """The groups out of their text. ``devices`` is how many there are in all, which ``{}`` does not say.

    Raises :class:`ParseError` with its column.

    >>> str(read_groups("[4,2]<=[2,4]T(1,0)")), read_groups("{}", 4).groups
    ('[4,2]<=[2,4]T(1,0)', ((0, 1, 2, 3),))
    """
    at = Cursor(text_of(text, "a text of groups"))
    if found := at.take(rf"mesh\[{AXES}\](?:{DEVICE_IDS})?\s*{{({PARTS})}}"):
        mesh = mesh_of_axes(at, found[1], device_list(at, found[2]).tolist() if found[2] else None)
        parts = parts_of(found[3])
        places = at.checked(lambda: mesh.groups(parts))
        return at.whole(DeviceGroups(tuple(tuple(mesh.ids[k] for k in group) for group in places), mesh, parts))
    if found := at.take(rf"\[(\d{{1,9}}),(\d{{1,9}})\]<=({IOTA})"):
        sizes, numbers = (int(found[1]), int(found[2])), device_list(at, found[3])
        if math.prod(sizes) != len(numbers):
            raise at.fail(f"not (groups, devices in each) of {len(numbers)} devices")
        table = numbers.reshape(sizes)
        pieces = [piece for dim in (0, 1) for piece in digits(table, dim) or ()]
        text = f"[{sizes[0]},{sizes[1]}]<={iota_text(pieces) if pieces else '[1]'}"
        return at.whole(DeviceGroups(tuple(map(tuple, table.tolist())), iota=text))
    lists = at.need(
        rf"{{\s*((?:{{(?:{INTS})?}}\s*,?\s*)*)}}", "groups as {{0,1},{2,3}}, [4,2]<=[8] or mesh['a'=4] {'a'}"
    )[1]
    groups = tuple(tuple(map(int, re.findall(r"\d+", inside))) for inside in re.findall(r"{([^{}]*)}", lists))
    return at.whole(DeviceGroups(groups if groups or not devices else (tuple(range(devices)),)))
