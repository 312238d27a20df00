"""Random small layouts."""

from __future__ import annotations

from hypothesis import strategies as st

from tilewright.layout import lane_matrix, lane_matrix2, lane_weights, lanes, mod_sharded, paged, tiled


@st.composite
def tile_levels(draw, rank, combine=True):
    """Up to three levels; a `*` only where the tile has no more dims than the array has."""
    levels = []
    for level in range(draw(st.integers(0, 3))):
        width = draw(st.integers(1, min(3, rank + 1) if rank else 1))
        tile = draw(st.lists(st.integers(1, 5), min_size=width, max_size=width))
        if combine and level == 0 and 1 < width <= rank and draw(st.booleans()):
            tile[draw(st.integers(0, width - 2))] = -1
        levels.append(tuple(tile))
    return levels


@st.composite
def tiled_layouts(draw, max_rank=4, combine=True):
    shape = draw(st.lists(st.integers(1, 7), min_size=0, max_size=max_rank))
    order = draw(st.permutations(range(len(shape))))
    return tiled(shape, "s32", order, draw(tile_levels(len(shape), combine)))


@st.composite
def starred_layouts(draw):
    """A `*` at any place of any level, tiles with up to three dims more than the array."""
    shape = draw(st.lists(st.integers(1, 6), min_size=0, max_size=4))
    part = st.sampled_from([-1, 1, 2, 3, 4, 5])
    tile = st.tuples(st.lists(part, max_size=len(shape) + 2), st.integers(1, 5)).map(lambda t: (*t[0], t[1]))
    tiles = draw(st.lists(tile, min_size=1, max_size=3))
    return tiled(shape, "s32", draw(st.permutations(range(len(shape)))), tiles)


@st.composite
def lane_layouts(draw):
    shape = draw(st.tuples(*(st.integers(1, 5) for _ in range(4))))
    count = draw(st.integers(1, 5))
    mode = draw(
        st.sampled_from(["aligned", "compact", "row_aligned"]) | st.tuples(*(st.integers(0, 12) for _ in range(4)))
    )
    rule = draw(st.sampled_from([None, "without_start"]))
    start = draw(st.integers(0, count - 1))
    return lanes(shape, "f16", lanes=count, eu_bytes=16, start=start, mode=mode, n_stride=rule)


@st.composite
def lane_matrices(draw):
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 20))
    count = draw(st.integers(1, 5))
    memory = {"lanes": count, "eu_bytes": 4, "start": draw(st.integers(0, count - 1))}
    if draw(st.booleans()):
        return lane_matrix2(rows, columns, "s8", **memory)
    return lane_matrix(rows, columns, "s8", **memory, columns_per_npu=draw(st.integers(1, 9)))


@st.composite
def weight_layouts(draw):
    shape = draw(st.tuples(st.integers(1, 7), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3)))
    dtype = draw(st.sampled_from(["s8", "f16", "f32"]))
    return lane_weights(shape, dtype, lanes=draw(st.integers(1, 4)), eu_bytes=16, ic_parallel=4)


@st.composite
def paged_layouts(draw):
    rank = draw(st.integers(1, 3))
    shape = draw(st.lists(st.integers(1, 7), min_size=rank, max_size=rank))
    line = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    page = [k * draw(st.integers(1, 3)) for k in line]
    start = draw(st.none() | st.lists(st.integers(0, 9), min_size=rank, max_size=rank))
    return paged(shape, "s8", page, line, draw(st.permutations(range(rank))), start)


@st.composite
def shard_layouts(draw):
    shards = draw(st.integers(1, 9))
    vocab, width = draw(st.integers(1, 60)), draw(st.integers(1, 10))
    return mod_sharded(vocab, width, shards, draw(st.integers(0, 12)), draw(st.integers(0, 9)))


def any_layouts():
    lane_family = lane_layouts() | lane_matrices() | weight_layouts()
    return tiled_layouts() | lane_family | paged_layouts() | shard_layouts()
