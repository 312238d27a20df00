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
from tilewright.layout.meshes.mesh import MOST_DEVICES, Mesh, Part, Piece, unused
from tilewright.layout.meshes.sharding import Sharding

_T = TypeVar("_T")
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"\d{1,18}")
_WORD = re.compile(r"[A-Za-z_][\w.$-]*")
_QUOTED = re.compile(r"""(["'])([^"'\\]*)\1""")
_DEFINITION = re.compile(r"\s*sdy\.mesh\s+(?=@)")
_SHORT = re.compile(r"\s*[\w.+*-]+\s*(,\s*[\w.+*-]+\s*)*")
_KINDS = ("replicated", "manual", "unknown", "unreduced")
_TYPES = ("manual", "unreduced", "replicated")
_DEEPEST = 50


class Cursor:
    """A place in a text that is read token by token."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def fail(self, what: str, how: str = "", at: int | None = None) -> ParseError:
        """The error of this place."""
        return ParseError(what, text=self.text, column=self.at if at is None else at, how=how)

    def take(self, token: str) -> bool:
        """Whether the text goes on with this; then it is behind us."""
        space = _SPACE.match(self.text, self.at)
        start = space.end() if space else self.at
        if not self.text.startswith(token, start):
            return False
        self.at = start + len(token)
        return True

    def need(self, *tokens: str) -> None:
        """These tokens must follow."""
        for token in tokens:
            if not self.take(token):
                raise self.fail(f"expected {token!r}")

    def match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """What the pattern finds here, behind blanks."""
        self.take("")
        found = pattern.match(self.text, self.at)
        if not found:
            raise self.fail(f"expected {what}")
        self.at = found.end()
        return found

    def number(self) -> int:
        return int(self.match(_NUMBER, "a number")[0])

    def name(self) -> str:
        return self.match(_QUOTED, "a name in quotes")[2]

    def several(self, one: Callable[[], _T], close: str) -> list[_T]:
        """Values between commas up to ``close``."""
        values = list[_T]()
        while not self.take(close) if close else self.at < len(self.text):
            if values:
                self.need(",")
            values.append(one())
        return values

    def whole(self, value: _T) -> _T:
        """The value that was read, if nothing follows it."""
        self.take("")
        if self.at < len(self.text):
            raise self.fail("it ends here, and text follows")
        return value

    def checked(self, make: Callable[[], _T]) -> _T:
        """What it makes; its complaint becomes one about this text."""
        at = self.at
        try:
            return make()
        except ParseError:
            raise
        except TilewrightError as error:
            raise self.fail(error.what, error.how, at) from None


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
    at = Cursor(text_of(text, "a sharding's text"))
    meshes = dict[str, Mesh]()
    while found := _defined(at):
        meshes[found[0]] = found[1]
    return at.whole(_any(at, mesh, meshes))


def _any(at: Cursor, mesh: Mesh | None, meshes: dict[str, Mesh]) -> Sharding | tuple[Any, ...]:
    at.take("sharding=")
    at.take("")
    if at.text.startswith("{", at.at):
        return _gspmd(at, mesh)
    if at.take("#sdy.sharding_per_value<"):
        at.need("[")
        values = at.several(lambda: _shardy(at, mesh, meshes), "]")
        at.need(">")
        return tuple(values)
    if at.take("#sdy.sharding"):
        return _shardy(at, mesh, meshes)
    if re.search(r"sdy\.(sharding_constraint|manual_computation)", at.text):
        return _operation(at, mesh, meshes)
    if re.match(r"NamedSharding\(mesh=|P(artitionSpec)?\s*\(", at.text[at.at :]):
        return _jax(at, mesh)
    if mesh is not None and _SHORT.fullmatch(at.text, at.at):
        return _short(at, mesh)
    raise at.fail("no sharding begins here", how="as {devices=[2,4]<=[8]}, #sdy.sharding<...> or P('d', None)")


def read_mesh(text: str) -> Mesh:
    """A mesh out of its text: Shardy's, ``sdy.mesh @mesh = <["d"=4]>`` or what is in it, or short, ``d=4,m=4``."""
    at = Cursor(text_of(text, "a mesh's text"))
    if found := _defined(at):
        return at.whole(found[1])
    if at.take("mesh") or "<" in text:
        return at.whole(_shardy_mesh(at))
    return at.whole(_axes(at, lambda: at.match(_WORD, "an axis as d=4")[0]))


# -- names of axes -----------------------------------------------------------------------------------------------------


def _defined(at: Cursor) -> tuple[str, Mesh] | None:
    """``sdy.mesh @mesh = <["d"=4]>``, if that is next."""
    found = _DEFINITION.match(at.text, at.at)
    if not found:
        return None
    at.at = found.end() + 1
    name = at.match(_WORD, "a mesh's name")[0]
    at.need("=")
    return name, _shardy_mesh(at)


def _shardy_mesh(at: Cursor) -> Mesh:
    at.need("<", "[")
    mesh, ids = _axes(at, at.name, "]"), None
    if at.take(","):
        at.need("device_ids", "=", "[")
        ids = at.several(at.number, "]")
    at.need(">")
    if ids is not None and len(ids) == 1 and not mesh.names:
        return at.checked(lambda: Mesh({"device": ids[0] + 1}))  # a maximal sharding's
    return mesh if ids is None else at.checked(lambda: Mesh(mesh.axes, devices=ids))


def _axes(at: Cursor, name: Callable[[], str], close: str = "") -> Mesh:
    """Axes with their sizes up to ``close``, or to the end."""

    def axis() -> tuple[str, int]:
        found = name()
        at.need("=")
        return found, at.number()

    axes = at.several(axis, close)
    if len(dict(axes)) < len(axes):
        raise at.fail("an axis of the mesh stands there twice")
    return at.checked(lambda: Mesh(dict(axes)))


def _part(at: Cursor) -> Part:
    name = at.name()
    if not at.take(":"):
        return Part(name)
    at.need("(")
    pre = at.number()
    at.need(")")
    return Part(name, pre, max(1, at.number()))


def _dim(at: Cursor) -> tuple[tuple[Part, ...], bool, int | None]:
    """A dim of Shardy's: its axes, whether it is open, its priority."""
    at.need("{")
    parts, is_open = list[Part](), False
    while not at.take("}"):
        if parts:
            at.need(",")
        if at.take("?"):
            is_open = True
            at.need("}")
            break
        parts.append(_part(at))
    return tuple(parts), is_open, at.number() if at.take("p") else None


def _named(at: Cursor, mesh: Mesh, notation: str) -> Sharding:
    """The dims and what follows them: ``[{"d"}, {}], replicated={"x"}, unreduced={"y"}``."""
    at.need("[")
    dims = at.several(lambda: _dim(at), "]")
    more = dict[str, tuple[Part, ...]]()
    while at.take(","):
        word = at.match(_WORD, "replicated=, manual= or unreduced=")[0]
        if word not in _TYPES or word in more:
            raise at.fail(f"{word} is none of {', '.join(_TYPES)}, or a second one")
        at.need("=", "{")
        more[word] = tuple(at.several(lambda: _part(at), "}"))
    opened = frozenset(k for k, dim in enumerate(dims) if dim[1])
    priorities = tuple((k, dim[2]) for k, dim in enumerate(dims) if dim[2] is not None)
    parts = tuple(dim[0] for dim in dims)
    kept, manual, summed = (more.get(name, ()) for name in ("replicated", "manual", "unreduced"))
    make = partial(Sharding, mesh, parts, opened, priorities, kept, manual, summed, notation=notation)
    return at.checked(make)


def _shardy(at: Cursor, mesh: Mesh | None, meshes: dict[str, Mesh]) -> Sharding:
    at.need("<")
    device = None
    if at.take("@"):
        name = at.match(_WORD, "a mesh's name")[0]
        found = meshes.get(name, mesh)
        if found is None:
            raise at.fail(f"no mesh @{name} is given", how="pass the mesh, or put its sdy.mesh line before it")
    else:
        at.need("mesh")
        before = at.at
        found = _shardy_mesh(at)
        if re.match(r"\s*<\s*\[\s*\]\s*,", at.text[before:]):
            device = found.size - 1
    at.need(",")
    sharding = _named(at, found, "shardy")
    at.need(">")
    return sharding if device is None else replace(sharding, device=device)


def _operation(at: Cursor, mesh: Mesh | None, meshes: dict[str, Mesh]) -> Sharding | tuple[Any, ...]:
    """The shardings of a line with ``sdy.sharding_constraint`` or ``sdy.manual_computation``."""
    found = list[Sharding]()
    for start in re.finditer(r"<(?:@|mesh<)", at.text[at.at :]):
        inner = Cursor(at.text)
        inner.at = at.at + start.start()
        found.append(_shardy(inner, mesh, meshes))
    if not found:
        raise at.fail("no sharding stands in this line")
    at.at = len(at.text)
    return found[0] if len(found) == 1 else tuple(found)


# -- JAX and the command line ------------------------------------------------------------------------------------------


def _jax(at: Cursor, mesh: Mesh | None) -> Sharding:
    """``P('d', None)``, or a NamedSharding's repr with its own mesh: Python, so Python's own reader reads it."""
    from tilewright.layout.meshes.sharding import sharding_of

    found = re.search(r"P(?:artitionSpec)?\((?:[^()]|\([^()]*\))*\)", at.text[at.at :])
    if not found:
        raise at.fail("expected P(...)")
    if own := re.search(r"mesh=(?:Abstract)?Mesh\(([^()]*)", at.text[at.at :][: found.start()]):
        mesh = at.checked(lambda: Mesh({name: int(n) for name, n in re.findall(r"'([^']*)': (\d{1,9})", own[1])}))
    try:
        call = ast.parse(found[0].replace("PartitionSpec.UNCONSTRAINED", "UNCONSTRAINED"), mode="eval").body
        nodes = [*call.args, *(key.value for key in call.keywords)] if isinstance(call, ast.Call) else []
        values = ["?" if isinstance(node, ast.Name) else ast.literal_eval(node) for node in nodes]
        names = [key.arg for key in call.keywords] if isinstance(call, ast.Call) else []
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise at.fail("not what P(...) takes", "names of axes, tuples of them, None or UNCONSTRAINED") from None
    if names not in ([], ["unreduced"]) or (names and not isinstance(values[-1], set)):
        raise at.fail("P(...) takes unreduced={...} by name")
    if mesh is None:
        raise at.fail("a PartitionSpec needs a mesh", 'as {"d": 4, "m": 4}, or --mesh d=4,m=4')
    entries, summed = (values[:-1], values[-1]) if names else (values, ())
    opened = frozenset(k for k, entry in enumerate(entries) if entry == "?")
    entries = [None if entry == "?" else entry for entry in entries]
    sharding = at.checked(lambda: sharding_of(entries, mesh))
    at.at += found.end()
    if own and (end := re.match(r"\s*(,\s*memory_kind=\w*)?\s*\)", at.text[at.at :])):
        at.at += end.end()
    more = tuple(Part(axis) for axis in mesh.names if axis in summed)
    return at.checked(lambda: replace(sharding, open=opened, unreduced=more, notation="jax"))


def _short(at: Cursor, mesh: Mesh) -> Sharding:
    """As on the command line: ``d+m,-`` cuts dim 0 by d and m, and dim 1 not at all."""
    entries = [entry.strip() for entry in at.text[at.at :].split(",")]
    dims = [() if entry in ("-", "") else tuple(Part(name) for name in entry.split("+")) for entry in entries]
    sharding = at.checked(lambda: Sharding(mesh, tuple(dims)))
    at.at = len(at.text)
    return sharding


# -- XLA ---------------------------------------------------------------------------------------------------------------


def _gspmd(at: Cursor, mesh: Mesh | None, depth: int = 0) -> Sharding | tuple[Any, ...]:
    at.need("{")
    if depth > _DEEPEST:
        raise at.fail(f"tuples are nested more than {_DEEPEST} deep")
    at.take("")
    if at.text.startswith(("{", "}"), at.at):
        return tuple(at.several(lambda: _gspmd(at, mesh, depth + 1), "}"))
    if at.take("mesh["):
        named, order = _axes(at, at.name, "]"), _named_ids(at)
        if order is not None and sorted(order) != list(range(named.size)):
            raise at.fail(f"device_ids are not an order of {named.size} devices")
        turned = None if order is None or order == sorted(order) else tuple(order)
        sharding = replace(_named(at, named, "named"), order=turned)
    elif at.take("devices="):
        sharding = _tiles(at, mesh)
    elif at.take("maximal"):
        at.need("device=")
        device = at.number()
        if device >= (MOST_DEVICES if mesh is None else mesh.size):
            raise at.fail(f"there is no device {device}")
        sharding = Sharding(mesh or Mesh({"device": device + 1}), device=device, notation="gspmd")
    else:
        word = at.match(_WORD, "replicated, manual, unknown, unreduced, maximal or devices=")[0]
        if word not in _KINDS:
            raise at.fail(f"a sharding does not begin with {word!r}")
        sharding = Sharding(mesh or Mesh({}), kind="" if word == "replicated" else word, notation="gspmd")
    while not at.take("}"):
        if at.take("metadata="):
            _skip(at)
        elif at.take("shard_as") or at.take("shard_like"):
            at.number()
        else:
            raise at.fail("expected '}'")
    return sharding


def _skip(at: Cursor) -> None:
    """Past ``{...}``, whatever it says."""
    at.need("{")
    inside = re.compile(r"""(?:[^{}"]|"(?:[^"\\]|\\.)*")*""")
    depth = 1
    while depth:
        at.match(inside, "")
        if at.take("{"):
            depth += 1
        else:
            at.need("}")
            depth -= 1


def _named_ids(at: Cursor) -> list[int] | None:
    """``, device_ids=([4,4]T(1,0)),`` or ``, device_ids=(0,2,1,3),`` and the comma before the dims."""
    at.need(",")
    if not at.take("device_ids"):
        return None
    order = read_ids(at)
    at.need(",")
    return order


def read_ids(at: Cursor) -> list[int]:
    """``=([4,4]T(1,0))`` or ``=(0,2,1,3)``: the device at every place."""
    at.need("=", "(")
    if not at.take("["):
        return at.several(at.number, ")")
    order = iota(at)
    at.need(")")
    return [int(device) for device in order]


def iota(at: Cursor) -> np.ndarray[Any, Any]:
    """Behind ``[``: ``4,2]T(1,0)``, the numbers of 4 x 2 devices read in another order of the dims."""
    start = at.at
    sizes = at.several(at.number, "]")
    if not sizes or 0 in sizes or math.prod(sizes) > MOST_DEVICES or len(sizes) > 30:
        raise at.fail(f"not from 1 to {MOST_DEVICES} devices", at=start)
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    if at.take("T("):
        start = at.at
        order = at.several(at.number, ")")
        if sorted(order) != list(range(len(sizes))):
            raise at.fail(f"not an order of {len(sizes)} dims", at=start)
        numbers = numbers.transpose(order)
    return numbers.reshape(-1)


def _tiles(at: Cursor, mesh: Mesh | None) -> Sharding:
    """Behind ``devices=``: sizes of the tile assignment, its devices, and what its last dims are."""
    start = at.at
    at.need("[")
    sizes = at.several(at.number, "]")
    count = math.prod(sizes)
    if not sizes or not 0 < count <= MOST_DEVICES or len(sizes) > 30:
        raise at.fail(f"not from 1 to {MOST_DEVICES} devices in at most 30 dims", at=start)
    start = at.at
    if at.take("<=["):
        devices = iota(at)
    else:
        numbers = [at.number()]
        while at.take(","):
            numbers.append(at.number())
        devices = np.array(numbers)
    if len(devices) != count or set(devices.tolist()) != set(range(count)):
        raise at.fail(f"these are not the {count} devices of the sizes, each once", at=start)
    if mesh is not None and mesh.size != count:
        raise at.fail(f"{count} devices, and the mesh {mesh} has {mesh.size}", at=start)
    types = list[str]()
    if at.take("last_tile_dim_replicate"):
        types = ["replicated"]
    elif at.take("last_tile_dims={"):
        types = at.several(lambda: at.match(_WORD, "manual, replicated or unreduced")[0], "}")
    if len(types) > len(sizes) or set(types) - set(_TYPES):
        raise at.fail(f"the last dims are {', '.join(_TYPES)}, and no more than there are", at=start)
    return _from_tiles(devices.reshape(sizes), types, mesh)


def _from_tiles(devices: np.ndarray[Any, Any], types: Sequence[str], mesh: Mesh | None) -> Sharding:
    """The sharding of a tile assignment: every dim as digits of the device's number, or a list of devices."""
    pieces = [digits(devices, dim) for dim in range(devices.ndim)]
    found = [piece for dim in pieces for piece in dim or ()]
    order = None
    if None in pieces or math.prod(piece.size for piece in found) != devices.size or devices.flat[0]:
        order = tuple(devices.reshape(-1).tolist())
        pieces = [digits(np.arange(devices.size).reshape(devices.shape), dim) for dim in range(devices.ndim)]
        mesh, found = None, [piece for dim in pieces for piece in dim or ()]
    if mesh is None:
        strides = sorted(found, key=lambda piece: -piece.stride)
        mesh = Mesh({f"axis_{k}": piece.size for k, piece in enumerate(strides)})
    dims = list[tuple[Part, ...]]()
    for dim in pieces:
        parts = [mesh.parts(piece) for piece in dim or ()]
        if None in parts:  # digits, but none of the mesh's axes
            return _from_tiles(devices, types, None)
        dims.append(tuple(part for several in parts for part in several or ()))
    rank = devices.ndim - len(types)
    manual, summed = (
        tuple(p for k, d in zip(types, dims[rank:], strict=True) if k == name for p in d)
        for name in ("manual", "unreduced")
    )
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
    if sharding.notation == "named" and sharding.order is not None:
        ids = ",".join(map(str, sharding.order))
        return _named_text(sharding).replace("], [", f"], device_ids=({ids}), [", 1)
    if sharding.notation == "named":
        return _named_text(sharding)
    if sharding.notation == "gspmd" or sharding.order is not None or sharding.kind or sharding.manual:
        return gspmd_text(sharding)
    if sharding.notation == "jax":
        axes = ", ".join(f"'{name}': {size}" for name, size in sharding.mesh.axes.items())
        return f"NamedSharding(mesh=Mesh({axes}), spec={spec_text(sharding)})"
    return shardy_text(sharding)


def spec_text(sharding: Sharding) -> str:
    """JAX's ``P('d', None)``. Raises :class:`UnsupportedError` where it has no word for the sharding."""
    entries = ["UNCONSTRAINED" if k in sharding.open else repr(entry) for k, entry in enumerate(sharding.spec)]
    if sharding.unreduced:
        entries.append(f"unreduced={{{', '.join(repr(part.axis) for part in sharding.unreduced)}}}")
    return f"P({', '.join(entries)})"


def _list_text(parts: Sequence[Part], quote: str = '"') -> str:
    return ", ".join(map(str, parts)).replace('"', quote)


def _dims_text(sharding: Sharding, quote: str = '"') -> str:
    levels = dict(sharding.priorities)
    inside = [
        ", ".join(filter(None, (_list_text(dim, quote), "?" if k in sharding.open else "")))
        for k, dim in enumerate(sharding.dims)
    ]
    dims = (f"{{{text}}}" + (f"p{levels[k]}" if k in levels else "") for k, text in enumerate(inside))
    more = ((name, getattr(sharding, name)) for name in ("replicated", "manual", "unreduced"))
    return f"[{', '.join(dims)}]" + "".join(f", {name}={{{_list_text(p, quote)}}}" for name, p in more if p)


def _named_text(sharding: Sharding) -> str:
    axes = ",".join(f"'{name}'={size}" for name, size in sharding.mesh.axes.items())
    return f"{{mesh[{axes}], {_dims_text(sharding, chr(39))}}}"


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
    kinds = {name: [sharding.mesh.piece(part) for part in getattr(sharding, name)] for name in ("manual", "unreduced")}
    used = [piece for dim in (*dims, *kinds.values()) for piece in dim]
    kinds["replicated"] = unused(used, sharding.mesh.size)
    last = [(name, kinds[name]) for name in _TYPES if math.prod(piece.size for piece in kinds[name]) > 1]
    if all(piece.size == 1 for dim in dims for piece in dim) and len(last) <= 1:
        return f"{{{last[0][0] if last else 'replicated'}}}"
    sizes = [math.prod(piece.size for piece in dim) for dim in (*dims, *(pieces for _, pieces in last))]
    flat = [piece for dim in (*dims, *(pieces for _, pieces in last)) for piece in dim if piece.size > 1]
    names = [name for name, _ in last]
    tail = " last_tile_dim_replicate" if names == ["replicated"] else f" last_tile_dims={{{', '.join(names)}}}"
    if sharding.order is None:
        devices = f"<={_iota_text(flat)}"
    else:
        numbers = np.zeros(1, np.int64)
        for size, stride in flat:
            numbers = (numbers[:, None] + np.arange(size) * stride).reshape(-1)
        devices = ",".join(str(sharding.order[place]) for place in numbers.tolist())
    return f"{{devices=[{','.join(map(str, sizes))}]{devices}{tail if names else ''}}}"


def _iota_text(pieces: Sequence[Piece]) -> str:
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
