"""Average pooling written as reshape and mean: the windows become dims, and the image is copied for it."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, op
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import inside_another, megabytes, scaled, windows_of


def _pays(match: Match, root: Node) -> bool:
    """Windows over two dims, channels last or first; the compiler's figures for windows over one are incomplete."""
    windows = windows_of(root)
    if windows is None or len(windows.dims) < 2:
        return False
    columns = windows.dims[-1] == len(windows.shape) - 1
    return megabytes(windows.source) >= (4 if columns else 0.25)


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    windows = windows_of(root)
    if windows is None:
        return None
    laid = make.convert(make.reshape(windows.source, windows.shape), windows.dtype)
    total = make.reduce_window(laid, root.operands[1], windows.window, windows.window, "add")
    return scaled(make, total, windows.scale)


RULE = Rule(
    name="average-pool",
    phase="shape",
    summary="sums or means over blocks of an image, written as a reshape: a pooling window instead",
    finding="an image is reshaped so that its pooling windows become dims of size 2 or 3, which fill no tile",
    change="use lax.reduce_window (flax.linen.avg_pool, keras AveragePooling2D) instead of reshape and mean",
    source="the TPU compiler's estimate (specs/rules.md, 4)",
    pattern=op("reduce", anything("blocks"), monoid="add"),
    roots=frozenset({"reduce"}),
    where=lambda match, root: windows_of(root) is not None and not inside_another(root),
    pays=_pays,
    build=_build,
    exact=False,
    example=Example(
        before="return x.reshape(b, h, 2, h, 2, c).mean((2, 4))",
        after="""
            total = lax.reduce_window(x.astype("float32"), 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            return (total / 4).astype(x.dtype)
        """,
        shapes="x: T[b,2*h,2*h,c]",
        sizes="b=32 h=28 c=256",
        small="b=1 h=2 c=3",
        draw="b=1..3 h=1..4 c=1..5",
        types=("bf16", "f32"),
        away="return x.reshape(b, 2, h, 2, h, c).mean((1, 3))",
    ),
)
