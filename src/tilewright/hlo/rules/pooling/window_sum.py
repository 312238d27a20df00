"""Sums of every few rows or columns, written as a reshape: a product with a block matrix does them in one pass."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, number_of, op
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import Windows, group_matrix, megabytes, precision_for, scaled, windows_of


def _windows(root: Node) -> Windows | None:
    """Windows along one dim, of a type that products have."""
    windows = windows_of(root)
    if windows is None or len(windows.dims) != 1 or number_of(root.operands[1]) != 0:
        return None
    return windows if windows.source.dtype in ("bf16", "f32") and windows.dtype in ("bf16", "f32") else None


def _block(size: int, group: int) -> int:
    """How many rows a block holds: 128, which the matrix unit takes at once, or all where that does not divide."""
    return 128 if size % 128 == 0 and 128 % group == 0 else size


def _pays(match: Match, root: Node) -> bool:
    windows = _windows(root)
    if windows is None or megabytes(windows.source) < 1:
        return False
    [dim] = windows.dims
    group, size = windows.window[dim], windows.shape[dim]
    if dim == len(windows.shape) - 1:
        return group <= 64 and size <= 4096
    large = megabytes(windows.source) >= 4  # 1 MB of a grouped query's gradient took 1.04 times as long
    return large and group <= 8 and _block(size, group) <= 128 and windows.shape[-1] >= 64


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    windows = _windows(root)
    if windows is None:
        return None
    [dim] = windows.dims
    shape, group = windows.shape, windows.window[dim]
    narrow = windows.source.dtype if windows.dtype == "f32" else windows.dtype
    values = make.convert(make.reshape(windows.source, shape), narrow)
    precision = precision_for(narrow)
    if dim == len(shape) - 1:
        matrix = group_matrix(make, shape[dim], group, narrow)
        total = make.dot(values, matrix, ((dim,), (0,)), dtype=windows.dtype, precision=precision)
        return scaled(make, total, windows.scale)
    block = _block(shape[dim], group)
    blocks = make.reshape(values, (*shape[:dim], shape[dim] // block, block, *shape[dim + 1 :]))
    matrix = group_matrix(make, block, group, narrow, wide=True)  # XLA:CPU has no such product with it turned
    total = make.dot(matrix, blocks, ((1,), (dim + 1,)), dtype=windows.dtype, precision=precision)
    order = [*range(1, dim + 2), 0, *range(dim + 2, len(shape) + 1)]
    return scaled(make, make.reshape(make.transpose(total, order), root.result.sizes), windows.scale)


RULE = Rule(
    name="window-sum",
    phase="shape",
    summary="sums or means of every few rows or columns, written as a reshape: a product with a block matrix instead",
    finding="an array is reshaped so that a few neighbouring rows or columns become a dim, which fills no tile",
    change="multiply by a matrix that has 1 / n at [i, i // n], for 128 rows at a time",
    source="the TPU compiler's estimate (specs/rules.md, 3)",
    pattern=op("reduce", anything("parts"), monoid="add"),
    roots=frozenset({"reduce"}),
    where=lambda match, root: _windows(root) is not None,
    pays=_pays,
    build=_build,
    finite=("parts",),
    exact=False,
    example=Example(
        before="return x.reshape(b, n, 4, d).mean(2)",
        after="""
            rows = min(128, 4 * n)
            means = (jnp.arange(rows)[:, None] // 4 == jnp.arange(rows // 4)).astype(x.dtype) / 4
            return jnp.einsum("bnkd,kj->bnjd", x.reshape(b, -1, rows, d), means, precision="highest").reshape(b, n, d)
        """,
        shapes="x: T[b,4*n,d]",
        sizes="b=8 n=512 d=1024",
        small="b=1 n=3 d=5",
        draw="b=1..3 n=2..5 d=1..5",
        types=("bf16", "f32"),
        away="return x.reshape(b, 4, n, d).mean(1)",
    ),
)
