"""Windows written as reshapes, and the 0/1 matrices that add groups up or spread them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.hlo.graphs.dims import runs
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import made_by, number_of


@dataclass(frozen=True)
class Windows:
    """A reduction of ``x.reshape(.., H // 2, 2, ..)`` over such inner factors alone.

    ``source`` reshaped to ``shape`` and converted to ``dtype`` is what the ``window`` (one entry a dim) goes over,
    without overlap. Dims with a window are dims of the source; the others may be taken apart or joined on the way.
    ``scale`` is what the sums are multiplied by, for means of means.
    """

    source: Value
    shape: tuple[int, ...]
    window: tuple[int, ...]
    dtype: str
    scale: float = 1.0

    @property
    def dims(self) -> tuple[int, ...]:
        """The dims that have a window."""
        return tuple(d for d, size in enumerate(self.window) if size > 1)


def windows_of(reduce: Node) -> Windows | None:
    """Whether ``reduce``, of one array, reduces inner factors of dims; ``x.mean(4).mean(2)`` counts as one.

    A conversion may stand after the reshape, and between two sums conversions and constant factors.
    """
    if len(reduce.operands) != 2:
        return None
    value, dims, scale = reduce.operands[0], set(reduce.attributes["dims"]), 1.0
    dtype = value.dtype
    while (node := _between(value, reduce).operation) is not None and node.name in ("reduce", "divide", "multiply"):
        if not node.plain or len(node.operands) != 2 or len(node.result.users) > 1:
            return None
        if node.name == "reduce":
            if not _joins(reduce, node):
                return None
            inner = node.attributes["dims"]
            kept = [d for d in range(len(node.operands[0].sizes)) if d not in inner]
            dims = {kept[d] for d in dims} | set(inner)
        else:
            factor = number_of(node.operands[1])
            if not factor or reduce.attributes.get("monoid") != "add":
                return None
            scale *= factor if node.name == "multiply" else 1 / factor
        value = node.operands[0]
    reshape = made_by(_unconverted(value), "reshape")
    if reshape is None or not dims:
        return None
    source, parts = reshape.operands[0], value.sizes
    whole = {run.target for run in runs(source.sizes, parts) or () if len(run.source) == 1}
    if any((d - 1, d) not in whole for d in dims):
        return None
    shape: list[int] = []
    window: list[int] = []
    for d, size in enumerate(parts):
        if d in dims:
            shape[-1], window[-1] = shape[-1] * size, size
        else:
            shape.append(size)
            window.append(1)
    return Windows(source, tuple(shape), tuple(window), dtype, scale)


def inside_another(reduce: Node) -> bool:
    """Whether a later reduction takes this one in: ``x.mean(4)`` of ``x.mean(4).mean(2)``."""
    value = reduce.result
    while len(value.users) == 1:
        [node] = value.users
        if node.name == "reduce":
            return (
                node.plain and node.attributes.get("monoid") == reduce.attributes["monoid"] and bool(windows_of(node))
            )
        if node.name not in ("convert", "divide", "multiply") or len(node.results) != 1:
            return False
        value = node.result
    return False


def _joins(outer: Node, inner: Node) -> bool:
    """Whether a reduction of a reduction is one reduction: the same monoid, and the inner one adds nothing."""
    monoid = outer.attributes.get("monoid")
    if monoid != inner.attributes.get("monoid"):
        return False
    start = number_of(inner.operands[1])
    return start == {"add": 0.0, "maximum": float("-inf"), "minimum": float("inf")}.get(str(monoid))


def _unconverted(value: Value) -> Value:
    """The value behind a conversion that loses nothing."""
    node = made_by(value, "convert")
    return node.operands[0] if node is not None and (node.operands[0].dtype, value.dtype) in _WIDENING else value


def _between(value: Value, reduce: Node) -> Value:
    """The value behind what two sums may have between them: conversions of any kind between floats."""
    while reduce.attributes.get("monoid") == "add" and (node := made_by(value, "convert")) is not None:
        if not all(dtype in ("bf16", "f16", "f32", "f64") for dtype in (value.dtype, node.operands[0].dtype)):
            break
        value = node.operands[0]
    return value


_WIDENING = {("bf16", "f32"), ("f16", "f32"), ("f32", "f64"), ("bf16", "f64"), ("f16", "f64")}


def scaled(make: Maker, value: Value, factor: float) -> Value:
    """``value * factor``."""
    if factor == 1:
        return value
    return make.binary("multiply", value, make.full(f"{factor:.17e}", value.dtype, value.sizes))


def group_matrix(make: Maker, members: int, group: int, dtype: str, wide: bool = False) -> Value:
    """The 0/1 matrix that sums groups of neighbours: 1 at ``[i, i // group]``.

    ``wide`` is its transpose, which repeats: 1 at ``[i // group, i]``.
    """
    shape = (members // group, members) if wide else (members, members // group)
    rows, columns = make.along(shape, 0), make.along(shape, 1)
    width = make.full(str(group), "i32", shape)
    if wide:
        columns = make.binary("divide", columns, width)
    else:
        rows = make.binary("divide", rows, width)
    return make.convert(make.compare(rows, columns, "EQ"), dtype)


def precision_for(*dtypes: str) -> tuple[str, str]:
    """What a product with a 0/1 matrix needs to be exact: nothing for bf16, all passes for f32."""
    return ("DEFAULT", "DEFAULT") if set(dtypes) <= {"bf16"} else ("HIGHEST", "HIGHEST")


def megabytes(value: Value) -> float:
    """Bytes of an array without padding, in MB of 1e6."""
    width = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "i32": 4}.get(value.dtype, 1)
    return prod(value.sizes) * width / 1e6
