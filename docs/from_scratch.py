"""Tilewright from scratch: the ideas of the whole package in one file, read from top to bottom.

Run it, and it prints what the chapters compute::

    ./run python docs/from_scratch.py

It needs numpy and nothing of Tilewright. It is slow and short where the package is fast and complete: no errors, no
files, no options, one case of each thing. A test compares every chapter with the package.

    1  an index becomes an offset               strides, and the digits of an index
    2  tiles                                    XLA's ``{1,0:T(8,128)(2,1)}``
    3  lanes                                    a tensor over the memories of an NPU
    4  what moves                               when a reshape is free, and what it costs when it is not
    5  a rewrite                                reduce before you reshape: the same sums, 256 times fewer bytes
    6  a sharded table                          an embedding lookup and its update on many SparseCores
    7  a matrix unit                            threads, segments, lines: one ``mm`` instruction and a whole product

Every chapter answers one question: *where does element (i, j, ...) live?* All costs follow from the answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

# ----------------------------------------------------------------------------------------------------------------------
# 1. An index becomes an offset
#
# A memory is a row of slots. A row-major array puts its last dimension next to each other: element (i, j) of a [3, 5]
# array is in slot i * 5 + j. Read the offset as a number whose digits are the index, each with its own base: (2, 3) is
# the number "2 3" where the last digit counts to 5. Every layout in this file is such a number. Layouts differ only in
# which digits they make of the index and in the order in which they write them.
#
# A digit is a pair (value, base). Values may be ints (one element) or numpy arrays (all elements at once): the same
# code serves both.


def linear(digits):
    """The number that the digits spell, the most significant first.

    >>> linear([(2, 3), (3, 5)])
    13
    """
    offset = 0
    for value, base in digits:
        offset = offset * base + value
    return offset


def count(digits):
    """How many numbers the digits can spell: the slots of the memory.

    >>> count([(2, 3), (3, 5)])
    15
    """
    slots = 1
    for _, base in digits:
        slots *= base
    return slots


def ceil_div(a, b):
    """a / b, rounded up."""
    return -(-a // b)


# ----------------------------------------------------------------------------------------------------------------------
# 2. Tiles
#
# A TPU computes on blocks of 8 rows and 128 columns, so its memory holds an array block by block. XLA writes this as
# `f32[300,200]{1,0:T(8,128)}`: the dims from the fastest to the slowest, then the tile. A tile cuts digits in two:
# row i becomes "block i // 8, row i % 8 in the block". The outer halves stay where they were, and the inner halves
# come last, so that a block is contiguous:
#
#     (i, j)  ->  i // 8,  j // 128,  i % 8,  j % 128
#
# Where 8 does not divide the rows the last block has slots without an element: padding. A second tile, as in
# `T(8,128)(2,1)`, cuts the last digits once more: two neighbouring rows of bf16 share a word of 32 bits. A `*` in a
# tile cuts nothing: it joins its dim with the next one before the rest of the tile is applied.

BITS = {"f32": 32, "s32": 32, "bf16": 16, "f16": 16, "s8": 8, "u8": 8, "f64": 64}


@dataclass(frozen=True)
class Layout:
    """An array's type, its shape, the order of its dims (the fastest first) and its tiles."""

    dtype: str
    shape: tuple
    minor_to_major: tuple
    tiles: tuple = ()

    def digits(self, index):
        """The digits of the element's offset, most significant first."""
        digits = [(index[dim], self.shape[dim]) for dim in reversed(self.minor_to_major)]
        for tile in self.tiles:
            while len(digits) < len(tile):
                digits.insert(0, (0, 1))
            outer, cut = digits[: len(digits) - len(tile)], digits[len(digits) - len(tile) :]
            inner, joined = [], None
            for (value, base), size in zip(cut, tile, strict=True):
                if joined is not None:  # the dim before had a star: it counts on above this one
                    value, base, joined = joined[0] * base + value, joined[1] * base, None
                if size == "*":
                    joined = (value, base)
                else:
                    outer.append((value // size, ceil_div(base, size)))
                    inner.append((value % size, size))
            digits = outer + inner
        return digits

    def offset(self, *index):
        """The slot of an element."""
        return linear(self.digits(index))

    @property
    def offsets(self):
        """The slots of all elements, an array of the layout's shape."""
        every = np.indices(self.shape) if self.shape else np.zeros((0,), int)
        return np.broadcast_to(linear(self.digits(tuple(every))), self.shape)

    @property
    def slots(self):
        """Slots that the array takes, padding among them."""
        return count(self.digits((0,) * len(self.shape)))

    @property
    def size_bytes(self):
        """Bytes that the array takes."""
        return self.slots * BITS[self.dtype] // 8

    def pack(self, array):
        """What the memory holds: one slot after the other, zero where there is no element."""
        memory = np.zeros(self.slots, array.dtype)
        memory[self.offsets] = array
        return memory

    def unpack(self, memory):
        """The array again."""
        return memory[self.offsets]


def parse(text):
    """A layout from XLA's notation.

    >>> figure = parse("f32[3,5]{1,0:T(2,2)}")
    >>> figure.offset(2, 3), figure.slots
    (17, 24)
    """
    dtype, dims, order, tail = re.fullmatch(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)(?::(.*))?\})?", text).groups()
    shape = tuple(int(dim) for dim in dims.split(",") if dim)
    minor_to_major = tuple(int(dim) for dim in order.split(",")) if order else tuple(reversed(range(len(shape))))
    tiles = re.findall(r"\(([^)]*)\)", tail or "")
    return Layout(
        dtype, shape, minor_to_major, tuple(tuple(t if t == "*" else int(t) for t in tile.split(",")) for tile in tiles)
    )


# ----------------------------------------------------------------------------------------------------------------------
# 3. Lanes
#
# An NPU of the Sophgo family has X small memories, one beside each of X processors. A tensor (N, C, H, W) deals its
# channels to them like cards: channel c lives on NPU (start + c) % X. Now an address has two parts, the NPU and the
# offset in its memory. Channels c and c + X meet on one NPU, C_stride apart. A batch begins a new row of cards.


@dataclass(frozen=True)
class Lanes:
    """A tensor (N, C, H, W) over ``lanes`` memories, the first channel on memory ``start``.

    ``unit`` is the number of elements that a memory delivers at once. "aligned" rounds a channel's plane up to it,
    "row_aligned" every row, "compact" nothing.
    """

    shape: tuple
    lanes: int
    unit: int
    start: int = 0
    mode: str = "aligned"

    @property
    def strides(self):
        """Elements between neighbours along N, C, H and W, inside one memory."""
        _, channels, height, width = self.shape
        row = ceil_div(width, self.unit) * self.unit if self.mode == "row_aligned" else width
        plane = height * row
        if self.mode == "aligned":
            plane = ceil_div(plane, self.unit) * self.unit
        return ceil_div(self.start + channels, self.lanes) * plane, plane, row, 1

    def address(self, n, c, h, w):
        """Where an element is: the memory, and the offset in it.

        >>> half = Lanes((2, 3, 4, 5), lanes=4, unit=32, start=2)
        >>> half.strides, half.address(0, 2, 0, 0)
        ((64, 32, 5, 1), (0, 32))
        """
        by_batch, by_channel, by_row, by_column = self.strides
        place = self.start + c
        return place % self.lanes, n * by_batch + place // self.lanes * by_channel + h * by_row + w * by_column


# ----------------------------------------------------------------------------------------------------------------------
# 4. What moves
#
# A reshape changes the index of every element, not its value. Whether it costs anything depends on the layouts of both
# sides: if every element keeps its offset, the compiler only writes down another shape (XLA says "bitcast"). If one
# element must go elsewhere, all are read and written again, padding included. So the cost of a reshape is decided by
# two tables of offsets, and so is that of a transpose.


def row_tiled(shape, dtype="f32"):
    """The layout that a target with vectors of 8 x 128 gives an array: its last two dims in tiles of (8, 128)."""
    tile = (8, 128) if len(shape) > 1 else (128,) if shape else ()
    return Layout(dtype, tuple(shape), tuple(reversed(range(len(shape)))), (tile,) if tile else ())


def is_free(a, b):
    """Whether a reshape from layout ``a`` to layout ``b`` leaves every element where it is.

    >>> is_free(row_tiled((8, 16, 256)), row_tiled((128, 256)))
    True
    >>> is_free(row_tiled((128, 256)), row_tiled((128, 2, 128)))
    False
    """
    return a.slots == b.slots and np.array_equal(a.offsets.ravel(), b.offsets.ravel())


def moved_bytes(a, b):
    """Bytes read and written by a reshape from layout ``a`` to layout ``b``."""
    return 0 if is_free(a, b) else a.size_bytes + b.size_bytes


# ----------------------------------------------------------------------------------------------------------------------
# 5. A rewrite
#
# A group norm sums over the rows, the columns and the channels of a group. People write it as they think of it: split
# the channels into groups, then sum over three dims.
#
#     x: [B, H, W, C]  ->  reshape [B, H, W, C/G, G]  ->  sum over (1, 2, 4)
#
# The reshape cuts the 128 columns of a tile, so all of x moves. But H and W are the same dims on both sides of it.
# They can be summed first, and then only a [B, C] array is reshaped:
#
#     x  ->  sum over (1, 2): [B, C]  ->  reshape [B, C/G, G]  ->  sum over 2
#
# Which dims are "the same"? Never ask by size: in [4, 4, 4] -> [4, 4, 2, 2] three dims have size 4. Ask by what stands
# before a dim: the product of all dims before it, and its own size, must agree on both sides.


@dataclass(frozen=True)
class Array:
    """A program's input."""

    shape: tuple


@dataclass(frozen=True)
class Reshape:
    """``operand`` under another shape."""

    operand: object
    shape: tuple


@dataclass(frozen=True)
class Sum:
    """``operand`` summed over ``dims``."""

    operand: object
    dims: tuple

    @property
    def shape(self):
        """What is left."""
        return tuple(size for dim, size in enumerate(self.operand.shape) if dim not in self.dims)


def same_dims(before, after):
    """Dims that a reshape leaves whole: {dim after: dim before}. Dims of size 1 belong to nothing.

    >>> same_dims((8, 16, 16, 256), (8, 16, 16, 8, 32))
    {0: 0, 1: 1, 2: 2}
    >>> same_dims((4, 4, 4), (4, 4, 2, 2)), same_dims((10, 24), (5, 48))
    ({0: 0, 1: 1}, {})
    """
    found = {(int(np.prod(before[:dim])), size): dim for dim, size in enumerate(before) if size > 1}
    pairs = ((dim, found.get((int(np.prod(after[:dim])), size))) for dim, size in enumerate(after) if size > 1)
    return {dim: source for dim, source in pairs if source is not None}


def sum_first(program):
    """sum(reshape(x)) -> sum(reshape(sum(x))), wherever some of the summed dims are whole dims of x."""
    if isinstance(program, Array):
        return program
    if isinstance(program, Reshape):
        return Reshape(sum_first(program.operand), program.shape)
    inner = sum_first(program.operand)
    if not isinstance(inner, Reshape):
        return Sum(inner, program.dims)
    whole = {dim: source for dim, source in same_dims(inner.operand.shape, inner.shape).items() if dim in program.dims}
    if not whole:
        return Sum(inner, program.dims)
    early = Sum(inner.operand, tuple(sorted(whole.values())))
    kept = [dim for dim in range(len(inner.shape)) if dim not in whole]
    small = Reshape(early, tuple(inner.shape[dim] for dim in kept))
    late = tuple(place for place, dim in enumerate(kept) if dim in program.dims)
    return Sum(small, late) if late else small


def run(program, x):
    """The program's value for input ``x``."""
    if isinstance(program, Array):
        return x
    value = run(program.operand, x)
    return value.reshape(program.shape) if isinstance(program, Reshape) else value.sum(program.dims)


def movement(program):
    """Bytes that the program's reshapes move on the target of chapter 4."""
    if isinstance(program, Array):
        return 0
    own = moved_bytes(row_tiled(program.operand.shape), row_tiled(program.shape)) if isinstance(program, Reshape) else 0
    return own + movement(program.operand)


# ----------------------------------------------------------------------------------------------------------------------
# 6. A sharded table
#
# An embedding table has a row for every id: too many rows for one chip. S SparseCores hold it together: row r lives on
# shard r % S, there in local row r // S. (Neighbouring ids are often popular together. The remainder spreads them.)
#
# A batch comes as lists of ids, a list a sample. Every SparseCore is also the *source* of a slice of the samples. The
# host sorts each source's ids by the shard that owns them and writes them into flat buffers that a SparseCore can read
# without looking anything up: for every shard a partition of (local row, sample, gain), its end in `row_pointers`, and
# the next one begins at a multiple of 8. An id that a sample names twice travels once, with twice the gain.

PAD = 2**31 - 1  # the id of a slot that holds nothing


@dataclass
class Buffers:
    """What one source SparseCore reads: slots of ids, samples and gains, and where each shard's partition ends."""

    row_pointers: list = field(default_factory=list)
    embedding_ids: list = field(default_factory=list)
    sample_ids: list = field(default_factory=list)
    gains: list = field(default_factory=list)

    def partition(self, shard):
        """The (local row, sample, gain) of one shard."""
        begin = ceil_div(self.row_pointers[shard - 1], 8) * 8 if shard else 0
        part = slice(begin, self.row_pointers[shard])
        return list(zip(self.embedding_ids[part], self.sample_ids[part], self.gains[part], strict=True))


def preprocess(batch, shards):
    """The buffers of every source for a batch of lists of ids.

    >>> first, second = preprocess([[5, 2, 5], [4]], shards=2)
    >>> first.row_pointers, first.partition(0), first.partition(1)
    ([1, 9], [(1, 0, 1.0)], [(2, 0, 2.0)])
    """
    samples = len(batch) // shards
    sources = []
    for source in range(shards):
        entries = {}
        for sample, ids in enumerate(batch[source * samples : (source + 1) * samples]):
            for row in ids:
                place = (row % shards, row // shards, sample)
                entries[place] = entries.get(place, 0.0) + 1.0
        buffers = Buffers()
        for shard in range(shards):
            for (owner, local_row, sample), gain in sorted(entries.items()):
                if owner == shard:
                    buffers.embedding_ids.append(local_row)
                    buffers.sample_ids.append(sample)
                    buffers.gains.append(gain)
            buffers.row_pointers.append(len(buffers.gains))
            while len(buffers.gains) % 8:
                buffers.embedding_ids.append(PAD)
                buffers.sample_ids.append(PAD)
                buffers.gains.append(float("nan"))
        sources.append(buffers)
    return sources


def shard_table(table, shards):
    """The table's rows by the shard that holds them."""
    return [table[shard::shards].copy() for shard in range(shards)]


def lookup(sources, tables, samples):
    """Activations of every sample. Each shard sums what it owns, and the sums travel to the source: an all-to-all."""
    result = np.zeros((samples, tables[0].shape[1]), np.float32)
    per_source = samples // len(sources)
    for source, buffers in enumerate(sources):
        for shard, table in enumerate(tables):
            for local_row, sample, gain in buffers.partition(shard):
                result[source * per_source + sample] += np.float32(gain) * table[local_row]
    return result


def update(sources, tables, gradient, learning_rate):
    """One step of SGD: the gradients of all samples that named a row are added up first, then the row changes once."""
    per_source = len(gradient) // len(sources)
    for shard, table in enumerate(tables):
        change = {}
        for source, buffers in enumerate(sources):
            for local_row, sample, gain in buffers.partition(shard):
                of_sample = np.float32(gain) * gradient[source * per_source + sample]
                change[local_row] = change.get(local_row, 0) + of_sample
        for local_row, total in change.items():
            table[local_row] -= np.float32(learning_rate) * total


# ----------------------------------------------------------------------------------------------------------------------
# 7. A matrix unit
#
# T threads run the same instruction. For C = A @ B thread r keeps row r of C in its registers, a register a column,
# and a few elements of row r of A. If every thread fetched its own B, each element of B would be read once a thread.
# Here B is fetched once and *broadcast*: thread j also plays a second role, the loader of column j. It names the
# address of its column, the column comes out of the cache once, and all threads multiply by it.
#
#     mm8.ka1.kb1 r0, ur4:rf290, r256
#
# multiplies 8-bit integers: the products go to r0, r1, ... (a register a column), B lies in the segment that ur4 names
# at the addresses that each loader holds in r290, and A is in r256 and r257: 8 bytes, so one instruction does 8 steps
# of k for every column that has a loader.
#
# With few rows most threads have no row. Then a *group* of ka * kb threads serves one row: ka threads share out the
# columns, so that ka columns are multiplied at once; kb threads share out k, and send their partial sums to the first.
# The package numbers the threads of a group with kb innermost. Two ways to share k are known: each thread keeps its 8
# elements and the group covers 8 * kb ("chunk"), or the group shares the 8 ("split"). Here it is "chunk".


@dataclass(frozen=True)
class Segment:
    """Where B's elements are: pages of cache lines. ``line`` is a line's shape, ``page`` a page's, in elements.

    It is chapter 2 again: two tiles, the page and the line. A page table says where each page really begins. B is
    stored row by row or, as here, column by column, so that the elements a loader wants lie next to each other.
    """

    shape: tuple
    page: tuple
    line: tuple
    page_begins: tuple

    def address(self, *index):
        """The byte of a one-byte element: which page, where it begins, and the offset in it."""
        pages = [(i // p, ceil_div(size, p)) for i, size, p in zip(index, self.shape, self.page, strict=True)]
        tiled = Layout("s8", self.page, tuple(reversed(range(len(self.page)))), (self.line,))
        return self.page_begins[linear(pages)] + tiled.offset(*(i % p for i, p in zip(index, self.page, strict=True)))


@dataclass
class Cache:
    """Lines of ``line_bytes``; room for ``lines`` of them; the one that was not used for longest makes way."""

    lines: int
    line_bytes: int = 64
    held: dict = field(default_factory=dict)
    touches: int = 0
    misses: int = 0

    def touch(self, byte):
        """Ask for the line that holds a byte."""
        line = byte // self.line_bytes
        self.touches += 1
        if line in self.held:
            del self.held[line]
        else:
            self.misses += 1
            if len(self.held) == self.lines:
                del self.held[next(iter(self.held))]
        self.held[line] = None


@dataclass
class Counts:
    """What a product costs."""

    instructions: int = 0
    steps: int = 0
    macs: int = 0
    column_loads: int = 0
    broadcast_elements: int = 0
    kb_transfers: int = 0


CHUNK = 8  # elements of A in a thread's two registers


def mm(products, chunks, b, segment, columns, k0, ka, kb, cache, counts):
    """One instruction: every group of threads adds its row's dot products with ``columns`` of B, from ``k0`` on.

    ``products[row]`` are the product registers of a row: in hardware those of thread qa * kb of the row's group, for
    the columns of part qa. ``chunks[row][qb]`` is what the group's threads with number qb hold of A. A step of the
    machine does one column of every part at once.
    """
    part = ceil_div(len(columns), ka)
    counts.instructions += 1
    for local in range(part):
        counts.steps += 1
        for qa in range(ka):
            if qa * part + local >= len(columns):
                continue
            loader = qa * part + local
            column = columns[loader]
            depth = range(k0, min(k0 + kb * CHUNK, b.shape[0]))
            for line in dict.fromkeys(segment.address(column, k) // cache.line_bytes for k in depth):
                cache.touch(line * cache.line_bytes)
            fetched = [int(b[k, column]) for k in depth]
            counts.column_loads += 1
            counts.broadcast_elements += len(fetched)
            for row, group in enumerate(chunks):
                partial = [0] * kb
                for place, factor in enumerate(fetched):
                    partial[place // CHUNK] += int(group[place // CHUNK][place % CHUNK]) * factor
                    counts.macs += 1
                products[row][loader] += sum(partial)
                counts.kb_transfers += kb - 1


def matmul(a, b, threads=64, ka=1, kb=1, cache_lines=1024):
    """A @ B of 8-bit integers on ``threads`` threads: the values, the counts and the cache.

    Rows come in blocks of as many as there are groups, columns in blocks of as many as there are loaders. In a block
    the rounds over k are outermost: A's chunk is loaded once a round and used for all columns.
    """
    (m, depth), n = a.shape, b.shape[1]
    padded = ceil_div(depth, 64) * 64  # columns of B begin on a line of their own
    segment = Segment((n, padded), (n, padded), (1, 64), (0,))
    counts, cache, value = Counts(), Cache(cache_lines), np.zeros((m, n), np.int64)
    groups = threads // (ka * kb)
    for first_row in range(0, m, groups):
        rows = range(first_row, min(first_row + groups, m))
        for first_column in range(0, n, threads):
            columns = range(first_column, min(first_column + threads, n))
            products = [[0] * len(columns) for _ in rows]
            for k0 in range(0, depth, kb * CHUNK):
                chunks = [[a[row, k0 + qb * CHUNK :][:CHUNK] for qb in range(kb)] for row in rows]
                mm(products, chunks, b, segment, columns, k0, ka, kb, cache, counts)
            value[first_row : first_row + len(rows), first_column : first_column + len(columns)] = products
    return value, counts, cache


# ----------------------------------------------------------------------------------------------------------------------


def main():
    """Print what the chapters compute."""
    print("2. f32[3,5]{1,0:T(2,2)}: the slot of every element, 24 slots for 15 elements")
    print(parse("f32[3,5]{1,0:T(2,2)}").offsets)
    print("   bf16[4,4]{1,0:T(4,4)(2,1)}: rows in pairs")
    print(parse("bf16[4,4]{1,0:T(4,4)(2,1)}").offsets)

    half = Lanes((2, 3, 4, 5), lanes=4, unit=32, start=2)
    print("\n3. half floats (2,3,4,5) over 4 memories from the third on: strides", half.strides)
    for channel in range(3):
        print("   channel", channel, "-> memory and offset", half.address(0, channel, 0, 0))

    x = Array((8, 16, 16, 256))
    written = Sum(Reshape(x, (8, 16, 16, 8, 32)), (1, 2, 4))
    better = sum_first(written)
    values = np.arange(8 * 16 * 16 * 256).reshape(x.shape) % 7
    assert np.array_equal(run(written, values), run(better, values))
    print(f"\n5. sums of groups of channels: {movement(written):,} bytes move as written, {movement(better):,} after")

    rng = np.random.default_rng(0)
    table = rng.normal(size=(32, 4)).astype(np.float32)
    batch = [rng.integers(0, 32, 3).tolist() for _ in range(8)]
    sources, tables = preprocess(batch, 4), shard_table(table, 4)
    print("\n6. ids of the first two samples:", batch[:2])
    for shard in range(4):
        print(f"   source 0 asks shard {shard} for (local row, sample, gain)", sources[0].partition(shard))
    assert np.allclose(lookup(sources, tables, 8), [table[ids].sum(0) for ids in batch], atol=1e-5)

    a, b = rng.integers(-128, 128, (16, 64)), rng.integers(-128, 128, (64, 64))
    print("\n7. [16,64] @ [64,64] on 64 threads, four ways to form groups:")
    for ka, kb in ((1, 1), (4, 1), (1, 4), (2, 2)):
        value, counts, _ = matmul(a, b, ka=ka, kb=kb)
        assert np.array_equal(value, a @ b)
        print(f"   ka{ka} kb{kb}: {counts.instructions} instructions, {counts.steps} steps", end="")
        print(f", {counts.broadcast_elements:,} elements broadcast, {counts.kb_transfers:,} partial sums sent")


if __name__ == "__main__":
    main()
