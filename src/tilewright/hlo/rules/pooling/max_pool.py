"""Maximum pooling written as reshape and max: the windows become dims, and the image is copied for it."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, op
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import inside_another, megabytes, windows_of


def _pays(match: Match, root: Node) -> bool:
    """Windows over two dims, channels last or first; the compiler's figures for other windows are incomplete."""
    windows = windows_of(root)
    if windows is None or len(windows.dims) < 2:
        return False
    columns = windows.dims[-1] == len(windows.shape) - 1
    return windows.shape[-1] >= (28 if columns else 64) and megabytes(windows.source) >= 4


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    windows, monoid = windows_of(root), root.attributes["monoid"]
    if windows is None:
        return None
    laid = make.convert(make.reshape(windows.source, windows.shape), windows.dtype)
    return make.reduce_window(laid, root.operands[1], windows.window, windows.window, monoid)


RULE = Rule(
    name="max-pool",
    phase="shape",
    summary="the largest or smallest of blocks of an image, written as a reshape: a pooling window instead",
    finding="an image is reshaped so that its pooling windows become dims of size 2 or 3, which fill no tile",
    change="use lax.reduce_window (flax.linen.max_pool, keras MaxPooling2D) instead of reshape and max",
    source="the TPU compiler's estimate (specs/rules.md, 5)",
    pattern=op(
        "reduce", anything("blocks"), where=lambda node: node.attributes.get("monoid") in ("maximum", "minimum")
    ),
    roots=frozenset({"reduce"}),
    where=lambda match, root: windows_of(root) is not None and not inside_another(root),
    pays=_pays,
    build=_build,
    example=Example(
        before="return x.reshape(b, h, 2, h, 2, c).max((2, 4))",
        after='return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")',
        shapes="x: T[b,2*h,2*h,c]",
        sizes="b=32 h=28 c=256",
        small="b=1 h=2 c=3",
        draw="b=1..3 h=1..4 c=1..5",
        types=("bf16", "f32"),
        away="return x.reshape(b, 2, h, 2, h, c).max((1, 3))",
    ),
)
