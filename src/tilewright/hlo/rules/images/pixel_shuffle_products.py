"""Pixel shuffle: channels become pixels by a transpose whose last dim has two elements; products interleave instead."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, Pattern, made_by
from tilewright.hlo.rules.rule import Example, Rule

_THIN = 16
_FLOATS = ("bf16", "f16", "f32", "f64")


@dataclass(frozen=True)
class Shuffle:
    """``source`` has the rows and columns of the small image last; ``down`` and ``across`` are its dims of new pixels.

    ``down`` is None where rows are not multiplied. ``lead`` are the other dims in the order of the result.
    """

    source: Value
    down: int | None
    across: int
    lead: tuple[int, ...]


def shuffle_of(value: Value) -> Shuffle | None:
    """Whether ``value`` is a reshape(transpose(..)) that puts dims in front between the rows or columns of an image."""
    merged = made_by(value, "reshape")
    turned = made_by(merged.operands[0], "transpose") if merged is not None else None
    if turned is None or len(value.sizes) < 2:
        return None
    source = turned.operands[0]
    order = [d for d in turned.attributes["permutation"] if source.sizes[d] != 1]
    height, width = len(source.sizes) - 2, len(source.sizes) - 1
    if len(order) < 3 or order[-2] != width or order[-1] == height or source.sizes[order[-1]] > _THIN:
        return None
    across = order[-1]
    down = order[-3] if order[-4:-3] == [height] and source.sizes[order[-3]] <= _THIN else None
    if down is None and order[-3] != height:
        return None
    rows = source.sizes[height] * (source.sizes[down] if down is not None else 1)
    if value.sizes[-2:] != (rows, source.sizes[width] * source.sizes[across]) or source.sizes[width] <= _THIN:
        return None
    return Shuffle(source, down, across, tuple(d for d in order if d not in (height, width, down, across)))


class _Shuffled(Pattern):
    def accepts(self, value: Value, match: Match) -> bool:
        shuffle = shuffle_of(value) if value.dtype in _FLOATS else None
        if shuffle is not None:
            match.found |= {"x": shuffle.source, "shuffle": shuffle}
        return shuffle is not None


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    """Pixels of one kind at a time: columns are spread by a product, then rows, and what is spread is added up."""
    shuffle: Shuffle = match.shuffle
    source, down, across = shuffle.source, shuffle.down, shuffle.across
    sizes = source.sizes
    rank = len(sizes)
    kept = [d for d in range(rank - 2) if d in shuffle.lead]
    small = [sizes[d] for d in kept] + [sizes[-2], sizes[-1]]
    columns = _spreads(sizes[-1], sizes[across], source.dtype, make)
    rows = _spreads(sizes[-2], sizes[down], source.dtype, make) if down is not None else [None]
    precision = ("HIGHEST", "HIGHEST") if source.dtype in ("f32", "f64") else ("DEFAULT", "DEFAULT")
    total: Value | None = None
    for i, spread_rows in enumerate(rows):
        wide: Value | None = None
        for j, spread_columns in enumerate(columns):
            at = {across: j, down: i}
            start, limit = [at.get(d, 0) for d in range(rank)], [at.get(d, n - 1) + 1 for d, n in enumerate(sizes)]
            part = make.reshape(make.slice(source, start, limit), small)
            part = make.dot(part, spread_columns, ((len(small) - 1,), (0,)), precision=precision)
            wide = part if wide is None else make.binary("add", wide, part)
        assert wide is not None
        if spread_rows is not None:
            wide = make.dot(wide, spread_rows, ((len(small) - 2,), (0,)), precision=precision)
        total = wide if total is None else make.binary("add", total, wide)
    assert total is not None
    last = [len(kept) + 1, len(kept)] if down is not None else [len(kept), len(kept) + 1]
    return make.reshape(make.transpose(total, [*(kept.index(d) for d in shuffle.lead), *last]), root.result.sizes)


def _pays(match: Match, root: Node) -> bool:
    """Where a TPU's compiler has no dim in front to put last: few channels. Short columns lose, too."""
    shuffle: Shuffle = match.shuffle
    sizes = shuffle.source.sizes
    return max((sizes[d] for d in shuffle.lead), default=1) <= 32 and sizes[-1] >= 60


def _spreads(size: int, times: int, dtype: str, make: Maker) -> list[Value]:
    """For each k the 0/1 matrix that puts element n at n * times + k."""
    shape = (size, size * times)
    to, place = make.along(shape, 1), make.binary("multiply", make.along(shape, 0), make.full(str(times), "i32", shape))
    found = []
    for k in range(times):
        here = make.binary("add", place, make.full(str(k), "i32", shape)) if k else place
        found.append(make.convert(make.compare(to, here, "EQ"), dtype))
    return found


RULE = Rule(
    name="pixel-shuffle-by-products",
    phase="movement",
    summary="a pixel shuffle whose transpose ends in a dim of few elements: products with 0/1 matrices interleave",
    finding="a pixel shuffle makes an array whose last dim has only a few elements, and a tile is mostly padding",
    change="interleave columns and rows by products with 0/1 matrices, and transpose only the dims in front of them",
    source="tt-xla issues 4252 and 6048: tiles and pages hold 16 times the data; the TPU compiler's estimate",
    pattern=_Shuffled(),
    roots=frozenset({"reshape"}),
    pays=_pays,
    build=_build,
    finite=("x",),
    example=Example(
        before="""
            y = x.reshape(1, c, t, 2, 2, f, h, w).transpose(0, 1, 5, 2, 6, 3, 7, 4)
            return y.reshape(1, c, f * t, 2 * h, 2 * w)
        """,
        after="""
            y, exact = x.reshape(c, t, 2, 2, f, h, w), "highest"
            places = [(jnp.arange(2 * n), 2 * jnp.arange(n)[:, None]) for n in (w, h)]
            columns, rows = ([(to == place + k).astype(x.dtype) for k in range(2)] for to, place in places)
            wide = [sum(jnp.dot(y[:, :, i, j], columns[j], precision=exact) for j in range(2)) for i in range(2)]
            whole = sum(jnp.einsum("ctfhw,hu->cftuw", wide[i], rows[i], precision=exact) for i in range(2))
            return whole.reshape(1, c, f * t, 2 * h, 2 * w)
        """,
        shapes="x: T[1,4*c*t,f,h,w]",
        sizes="c=16 t=3 f=4 h=60 w=106",
        small="c=2 t=3 f=2 h=3 w=17",
        draw="c=1..3 t=1..3 f=1..3 h=2..5 w=17..19",
        types=("bf16", "f32"),
        away="""
            y = x.reshape(1, c, t, 2, 2, f, h, w).transpose(0, 1, 5, 2, 3, 6, 4, 7)
            return y.reshape(1, c, f * t, 2 * h, 2 * w)
        """,
    ),
)
