"""Pictures as public functions; the drawing code is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.kinds.npu_plan import LocalPlan


def ruler_svg(layout: IndexMap, *, unit: str = "auto", colour: str = "auto") -> str:
    """The memory of a layout as a strip under a ruler of byte addresses, as an SVG.

    A cell is an ``element``, a cache ``line`` (64 bytes, or a segment's own) or a ``tile``; ``auto`` takes elements up
    to 512 of them, then lines, then tiles. What is padding is hatched: the whole cell, or the part of a line or tile.
    Maps of several axes show NPU by NPU (page by page, shard by shard). ``colour`` as in ``to_svg``. Large memories
    show their beginning and say so. Raises :class:`UsageError` for a unit that the layout does not have.

    >>> from tilewright.layout import parse
    >>> "byte 68, one slot: (2, 3)" in ruler_svg(parse("f32[3,5]{1,0:T(2,2)}"))
    True
    """
    from tilewright.layout.draw.picture import draw_picture
    from tilewright.layout.draw.ruler import ruler_scene

    return str(draw_picture(ruler_scene(layout, unit=unit, colour=colour)).svg())


def compare_svg(
    a: IndexMap, b: IndexMap, permutation: Sequence[int] | None = None, *, colour: str = "auto", cells: int = 2048
) -> str:
    """Two layouts side by side as an SVG: b = reshape(transpose(a, permutation)), elements that move marked.

    Both sides wear the colours of one layout's tiles (NPUs, pages, shards), the first one's where it has any, so that a
    tile can be found again on the other side; ``colour`` may name another way, as in ``to_svg``. Small arrays are shown
    as memory too, large ones as one corner of at most ``cells`` cells a side (a page with many pictures wants few).
    Raises :class:`UsageError` where the element counts differ.

    >>> from tilewright.layout import parse
    >>> picture = compare_svg(parse("f32[2,4]{1,0}"), parse("f32[2,4]{1,0:T(2,2)}"))
    >>> "4 of 8 elements move" in picture
    True
    """
    from tilewright.layout.draw.comparison import compare, draw_comparison

    return str(draw_comparison(compare(a, b, permutation), colour, max(1, cells)).svg())


def plan_svg(plan: LocalPlan) -> str:
    """Where the tensors of a plan lie in the local memories of a chip, as an SVG.

    From left to right the bytes of one NPU, the same on all of them, cut into banks; one row per tensor, its holes (of
    the start index, behind the last channel, inside the channels) hatched in proportion; a mark where two operands of
    one instruction share a bank.

    >>> from tilewright.layout import LocalTensor, lanes, plan_local_memory
    >>> plan = plan_local_memory([LocalTensor("image", lanes((1, 64, 28, 28), "f16", "bm1684x"))], "bm1684x")
    >>> "image: bytes 0 to 1599 of every NPU" in plan_svg(plan)
    True
    """
    from tilewright.layout.draw.plan_picture import draw_plan

    return str(draw_plan(plan).svg())
