"""A Pallas kernel's text as blocks of operations, and what one call of it does: its grid, windows and alike steps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

# The text of a kernel, in MLIR's generic form, as blocks of operations.

_LONGEST_TEXT = 64 << 20
_NESTED = 64
_OPERATION = re.compile(r'\s*(?:%(\w+)(?::\d+)? = )?"(?:stable_mosaic\.)?([\w.]+)"\(([^()]*)\)(.*)')
_BLOCK = re.compile(r"%(\w+): ([^%]+?)(?:, (?=%)|\):$)")
_SHAPED = re.compile(r"(?:vector|memref)<((?:(?:\d+|\?)x)*)(\w+|!tpu\.\w+)(?:, [^<>]*(?:<[^<>]*>)?[^<>]*)?>")
_VALUE = re.compile(r"\bvalue = (-?\d+|true|false)\b")
_PREDICATE = re.compile(r"\bpredicate = (\d+)")
_SPACE = re.compile(r"memory_space<(\w+)>")
_BITS = re.compile(r"\d+")
_DIMS = re.compile(r"dot_dimension_numbers<\[([\d, ]*)\], \[([\d, ]*)\].*?\[([\d, ]*)\], \[[\d, ]*\]>")

Shaped = tuple[tuple[int, ...], str]
"""(dims, element type) of a vector or memref; -1 for a dim that is not known."""


@dataclass
class Block:
    """Operations one after another, and the names and types of what it is entered with."""

    nodes: list[Node] = field(default_factory=list)
    arguments: list[tuple[str, str]] = field(default_factory=list)
    part: int = -1  # the number of what its vector operations ask for, once it is counted

    @cached_property
    def moves(self) -> bool:
        """Whether a transfer to or from HBM stands in it, or in a block inside it."""
        return any(node.moves or any(block.moves for block in node.blocks) for node in self.nodes)

    def all(self) -> Iterator[Node]:
        """Its operations and those of the blocks inside, in their order."""
        for node in self.nodes:
            yield node
            for block in node.blocks:
                yield from block.all()


@dataclass
class Node:
    """One operation with its blocks; ``rest`` is the text behind the operands."""

    result: str
    name: str
    operands: list[str]
    rest: str = ""
    blocks: list[Block] = field(default_factory=list)

    @cached_property
    def signature(self) -> str:
        """The types of its operands and results."""
        return self.rest[self.rest.rfind(" : (") :]

    @cached_property
    def shapes(self) -> list[Shaped]:
        """Of the vectors and memrefs in its signature, operands first."""
        return [shape_of(match) for match in _SHAPED.finditer(self.signature)]

    @cached_property
    def moves(self) -> bool:
        """Whether it is a transfer to or from HBM."""
        return self.name == "tpu.enqueue_dma" and re.search(r"memory_space<(?:any|hbm)>", self.signature) is not None

    @cached_property
    def vector(self) -> bool:
        """Whether it works on vectors."""
        return "vector<" in self.rest

    @cached_property
    def constant(self) -> int | bool | None:
        """Of a constant: its number."""
        match = _VALUE.search(self.rest)
        return None if match is None else match[1] == "true" if match[1] in ("true", "false") else int(match[1])

    @cached_property
    def predicate(self) -> int:
        """Of a comparison: MLIR's number of it."""
        match = _PREDICATE.search(self.rest)
        return int(match[1]) if match else 0

    @cached_property
    def product(self) -> tuple[int, int, int, int, str]:
        """Of a product: (batch, rows, columns, depth, element type of the left operand)."""
        (left, kind), (right, _), (result, _) = self.shapes[:3]
        match = _DIMS.search(self.rest)
        if match is None:  # rows x depth, depth x columns
            depth = round((prod(left) * prod(right) / max(1, prod(result))) ** 0.5) or 1
            return 1, prod(left) // depth, prod(right) // depth, depth, kind
        batches = prod(left[d] for d in integers(match[3]))
        depth = prod(left[d] for d in integers(match[1]))
        shared = max(1, batches * depth)
        return batches, prod(left) // shared, prod(right) // shared, depth, kind


def shape_of(match: re.Match[str]) -> Shaped:
    return tuple(-1 if d == "?" else int(d) for d in match[1].split("x")[:-1]), match[2]


def integers(text: str | None) -> list[int]:
    return [int(word) for word in text.split(",")] if text and text.strip() else []


def memory_of(kind: str) -> tuple[tuple[int, ...], str, str]:
    """(sizes, element type, memory space) of a reference's type."""
    match, space = _SHAPED.search(kind), _SPACE.search(kind)
    shape, dtype = shape_of(match) if match else ((), "")
    return shape, dtype, space[1] if space else ""


def bytes_of(kind: str) -> float:
    """Bytes of an element."""
    bits = _BITS.search(kind)
    return int(bits[0]) / 8 if bits else 4.0


def block_bytes(dims: Sequence[int], kind: str) -> int:
    """Bytes of a block in tiles of rows x 128; dims of which each step takes one element count as 1.

    A tile has 8 rows, of bytes 32; less are rounded up to a power of 2.

    >>> block_bytes((1, 100), "f32"), block_bytes((9, 128), "bf16")
    (512, 4096)
    """
    sizes = [max(1, size) for size in dims]
    if len(sizes) > 1:
        rows, most, packed = sizes[-2], (32 if bytes_of(kind) <= 1 else 8), round(4 / max(bytes_of(kind), 0.5))
        tile = most if rows >= most else max(1 << max(0, rows - 1).bit_length(), packed)
        sizes[-2:] = [-(-sizes[-2] // tile) * tile, -(-sizes[-1] // 128) * 128]
    return round(prod(sizes) * bytes_of(kind))


def module_of(text: str) -> Block:
    """The operations of a module.

    Raises ValueError where it is too long, or too deep.
    """
    if len(text) > _LONGEST_TEXT:
        raise ValueError("it is too long")
    root = Node("", "", [], blocks=[Block()])
    open_ = [root]
    for line in text.splitlines():
        stripped = line.lstrip()
        if stripped.startswith("})"):
            open_[-1].rest += stripped[2:]
            open_.pop()
        elif stripped.startswith("}, {"):
            open_[-1].blocks.append(Block())
        elif stripped.startswith("^bb"):
            open_[-1].blocks[-1].arguments = _BLOCK.findall(stripped)
        elif match := _OPERATION.match(line):
            operands = [word.strip().lstrip("%") for word in match[3].split(",") if word.strip()]
            node = Node(match[1] or "", match[2], operands, match[4])
            open_[-1].blocks[-1].nodes.append(node)
            if match[4].endswith("({"):
                node.rest = match[4][:-2]
                node.blocks = [Block()]
                open_.append(node)
                if len(open_) > _NESTED:
                    raise ValueError("too many blocks inside blocks")
    module = root.blocks[0]
    return module.nodes[0].blocks[0] if module.nodes and module.nodes[0].name == "builtin.module" else module


_WAITS = ("vector.multi_reduction", "vector.reduction", "tpu.all_reduce", "tpu.matmul", "vector.contract")
_SIDE_BY_SIDE = 8
"""How many times what the program's order holds the compiler holds at most; found on one kernel of 16 heads."""
_MADE_AGAIN = ("vector.load", "vector.broadcast", "arith.constant", "tpu.iota", "vector.shape_cast")


def opened(block: Block, none: Collection[str]) -> list[tuple[tuple[int, ...], str, str]]:
    """The buffers that a block opens itself (``run_scoped``, windows of ``emit_pipeline``), with those that are open
    inside it: of blocks one after another, which share memory, those that take most. ``none``: those without memory."""
    nodes = [node for node in block.nodes if node.name == "memref.alloca" and node.result not in none]
    own = [memory_of(node.signature.partition(") -> ")[2]) for node in nodes]
    inside = [opened(inner, none) for node in block.nodes for inner in node.blocks]
    taken = [sum(block_bytes(sizes, kind) for sizes, kind, _ in buffers) for buffers in inside]
    return own + (inside[taken.index(max(taken))] if inside else [])


def products_of(block: Block, buffers: Collection[str]) -> set[tuple[int, int, int, int, str]]:
    """Products whose left side is loaded from some of these buffers, whatever its shape is changed to."""
    from_there: set[str] = set(buffers)
    found = set()
    for node in block.all():
        if node.name.startswith(("tpu.matmul", "vector.contract")):
            if node.operands[0] in from_there and len(node.shapes) > 2:
                found.add(node.product)
        elif node.operands and node.operands[0] in from_there:
            from_there.add(node.result)
    return found


def unused(block: Block) -> set[str]:
    """Results of loads that nothing uses, or only changes of shape that nothing uses."""
    nodes = list(block.all())
    used = {name for node in nodes if node.name != "vector.shape_cast" for name in node.operands}
    for node in reversed(nodes):
        if node.name == "vector.shape_cast" and node.result in used:
            used.update(node.operands)
    return {node.result for node in nodes if node.name.endswith("load") and node.result not in used}


def held(main: Node) -> int:
    """The most bytes of vectors that are made before a reduction or product ends and wanted after it, at one time.

    What is loaded or spread out again costs no memory. What waits for as many reductions may run side by side, and no
    sooner than it is wanted; a load waits for what was stored there. In the program's order less is held, of which
    the compiler makes a few times as much at most. What a change of shape keeps twice, because its rows or lanes cross
    tiles, is the least.
    """
    made: dict[str, tuple[int, int, int]] = {}  # name -> (the reductions that it waited for, its bytes, its place)
    wanted: dict[str, tuple[int, int]] = {}
    steps: list[tuple[str, Sequence[str], int, bool]] = []  # result, operands, reductions before it, whether it waits
    cast_from: dict[str, tuple[int, ...]] = {}  # the shape that a change of shape began with
    numbers: dict[str, int] = {}
    kept_at: dict[
        tuple[str | int, ...], int
    ] = {}  # a reference and where in it -> the reductions before its last store
    most = place = 0

    def cell(names: Sequence[str], rank: int) -> tuple[str | int, ...]:
        """A reference and where in it, without the mask of a store; the reference alone where nobody knows."""
        known = [numbers[name] for name in names[1 : 1 + rank] if name in numbers]
        return (names[0], *known) if len(known) == rank else (names[0],)

    def follow(block: Block) -> None:
        nonlocal most, place
        for node in block.nodes:
            for inner in node.blocks:
                follow(inner)
            place += 1
            names = [name.partition("#")[0] for name in node.operands]
            phase = max((made[name][0] for name in names if name in made), default=0)
            if node.name == "arith.constant" and type(node.constant) is int:
                numbers[node.result] = node.constant
            for name in names:
                wanted[name] = max(wanted.get(name, (0, 0))[0], phase), place
            if node.name.endswith("store") and len(names) > 1 and len(node.shapes) > 1:
                at = cell(names[1:], len(node.shapes[1][0]))
                kept_at[at] = max(kept_at.get(at, 0), phase)
            elif node.name.endswith("load") and names and node.shapes:
                since = max(kept_at.get(cell(names, len(node.shapes[0][0])), 0), kept_at.get((names[0],), 0))
                phase = max(phase, since + (since > 0))
            steps.append((node.result, names, phase, node.vector and node.name.startswith(_WAITS)))
            if not (node.result and node.vector and node.shapes):
                continue
            dims, kind = node.shapes[-1]
            kept = kind != "i1" and not node.name.startswith(_MADE_AGAIN)
            size = block_bytes(dims, kind) if kept and min(dims, default=0) > 0 else 0
            made[node.result] = (phase + node.name.startswith(_WAITS), size, place)
            if node.name in ("vector.shape_cast", "tpu.reshape") and len(node.shapes) == 2:
                before, after = node.shapes[0][0], node.shapes[1][0]
                undone = cast_from.get(names[0] if names else "") == after
                cast_from[node.result] = before
                if not undone and before[-1:] != after[-1:] and (before[-1] % 128 or after[-1] % 128):
                    most = max(most, block_bytes(before, "f32"))

    for block in main.blocks:
        follow(block)
    first: dict[str, int] = {}  # when each is made at the latest, in reductions
    last: dict[str, int] = {}
    for result, names, phase, waits in reversed(steps):
        start = max(phase, first.get(result, phase + waits) - waits)
        for name in names:
            first[name], last[name] = min(first.get(name, start), start), max(last.get(name, start), start)
    changes: list[tuple[int, int]] = []
    ends: dict[int, int] = {}
    for name, (phase, size, begin) in made.items():
        until, end = wanted.get(name, (phase, 0))
        for boundary in range(max(phase, first.get(name, 0)), last.get(name, 0)) if size else ():
            ends[boundary] = ends.get(boundary, 0) + size
        if until > phase and size:
            changes += [(begin, size), (end, -size)]
    now = ordered = 0
    for _, size in sorted(changes):  # at one place what ends comes first
        now += size
        ordered = max(ordered, now)
    return max(most, min(max(ends.values(), default=0), _SIDE_BY_SIDE * ordered))


# What one call of a kernel does: its grid, its windows, and the steps that are alike.

Array = np.ndarray[Any, Any]
_REDUCED = re.compile(r"reduction_dims = array<i64: ([\d, ]+)>")
_FREE = ("vector.shape_cast", "arith.constant", "scf.", "memref.", "tpu.memref", "vector.extract_strided_slice")
"""Vector operations that cost nothing by themselves."""
Product = tuple[int, int, int, int, str]
"""(batch, rows, columns, depth, element type of the left operand)."""


@dataclass(frozen=True, slots=True)
class Window:
    """A block of an array that the pipeline brings in or takes out: ``operand`` counts operands, then results.

    ``megabytes``: 1e6 bytes of all that is moved over the whole grid, in tiles, cut at the array's edges; ``fetches``:
    how often its block changes, the first included. Both are 0 outside vector memory (``space``), where the kernel
    itself moves what it wants. ``block`` has 1 for dims that the kernel does not see; ``array`` is () where nothing
    says it; ``places``: the index of its block along every dim, arrays that broadcast over the grid, () where data
    decides.
    """

    operand: int
    megabytes: float
    fetches: int
    block: tuple[int, ...] = ()
    array: tuple[int, ...] = ()
    dtype: str = ""
    space: str = "vmem"
    buffers: int = 2
    result: bool = False  # the kernel writes it
    distinct: float = 0.0  # megabytes of the blocks that differ: the least that it can move
    places: tuple[Array, ...] = field(default=(), repr=False, compare=False)

    @property
    def block_bytes(self) -> int:
        """Of one buffer of it."""
        return block_bytes(self.block, self.dtype)


@dataclass
class Part:
    """What the operations of one block ask for, each time that it runs.

    ``products``: product -> how often; ``elements``: (operation, element type) -> elements of its vectors; ``turned``:
    elements turned across lanes.
    """

    products: Counter[Product] = field(default_factory=Counter)
    elements: Counter[tuple[str, str]] = field(default_factory=Counter)
    turned: float = 0.0

    @classmethod
    def of(cls, block: Block, unread: Collection[str], forwarded: Collection[str] = ()) -> Part:
        """What the vector operations of a block ask for, those of blocks inside left out.

        Nothing for loads that nothing reads, which every store of a kernel in JAX has before it, nor for loads and
        stores of buffers that take no memory.
        """
        part = cls()
        multiplied = {
            name for n in block.nodes if n.name in ("tpu.matmul", "vector.contract") for name in n.operands[:2]
        }
        for node in block.nodes:
            if not node.vector or node.blocks or node.name.startswith(_FREE) or node.result in unread:
                continue
            if node.name.endswith(("load", "store")) and not set(forwarded).isdisjoint(node.operands):
                continue
            shapes = node.shapes
            if node.name in ("tpu.matmul", "vector.contract") and len(shapes) >= 3:
                part.products[node.product] += 1
            elif shapes:
                dims, kind = max(shapes, key=lambda shape: max(0, prod(shape[0])))
                if node.name == "vector.broadcast" and len(shapes) < 2:
                    continue  # one number stands in a register as it is
                if "load" in node.name or "store" in node.name:
                    vectors = re.findall(r"vector<((?:\d+x)*)(\w+)", node.signature)
                    dims = tuple(int(d) for d in vectors[0][0].split("x")[:-1]) if vectors else ()
                    kind = vectors[0][1] if vectors else kind
                elements = max(0, prod(dims))
                if node.name == "tpu.strided_load" and min(shapes[0][0], default=-1) >= 0:
                    elements = min(elements, prod(shapes[0][0]))  # what is loaded again and again the load spreads out
                if node.name in ("tpu.transpose", "vector.transpose"):
                    part.turned += 0 if node.result in multiplied else elements  # the unit takes a side as it stands
                    continue
                part.elements[node.name.partition(".")[2], kind] += elements
                reduced = _REDUCED.search(node.rest)
                if reduced and len(shapes[0][0]) - 1 in integers(reduced[1]):
                    part.turned += elements / max(shapes[0][0][-1], 128) / 8
        return part


@dataclass(frozen=True)
class Moment:
    """Steps that are alike: of the grid, or of a loop that brings in blocks by itself.

    While it computes ``parts`` (its number in the kernel, how often in one step), ``moved`` passes: (the array's number
    among operands and results, -1 where nobody knows; megabytes; how many transfers). ``alone``: nothing is computed
    beside it: the first block, and the last result.
    """

    times: float
    parts: tuple[tuple[int, float], ...] = ()
    moved: tuple[tuple[int, float, float], ...] = ()
    alone: bool = False


@dataclass
class Kernel:
    """What one call of a kernel does.

    ``parts`` and ``moments``: what its blocks compute, and which of them run in how many steps beside which transfers;
    ``first``: the places in ``moments`` of its first steps, one after another; ``uneven``: trips of the
    step of the grid that has most of them, against all steps' average; ``copied``: megabytes of its own
    transfers to and from HBM; ``assumed``: what was taken for granted of the data, in words; ``trips_by_data``: loops
    whose length its data decides were counted as one trip; ``passing``: of one that was taken to pass once
    over its arrays, the trips that each array would take; ``scratch``: (sizes, type, memory space) of each buffer of
    its own that takes memory, ``tables`` the same of what is prefetched into scalar memory; ``from_own``: products with
    a left side that stands in a buffer of its own; ``held_bytes``: the most of the body's vectors that wait for a
    reduction at one time; ``semantics``: a word for each dim of the grid; ``vmem_limit``: bytes of vector memory that
    it asks for, 0 where it asks for no limit of its own; ``line``: of the user's program; ``again``:
    how often a tile of rows in groups is computed, once for each group that has rows in it.
    """

    name: str
    steps: int = 1
    line: str = ""
    grid: tuple[int, ...] = ()
    semantics: tuple[str, ...] = ()
    vmem_limit: int = 0
    scratch: list[tuple[tuple[int, ...], str, str]] = field(default_factory=list)
    tables: list[tuple[tuple[int, ...], str, str]] = field(default_factory=list)
    held_bytes: int = 0
    from_own: set[Product] = field(default_factory=set)
    again: float = 1.0
    windows: list[Window] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    uneven: float = 1.0
    copied: float = 0.0
    assumed: list[str] = field(default_factory=list)
    trips_by_data: bool = False
    passing: dict[int, int] = field(default_factory=dict)
    sparse: bool = False

    def _summed(self, what: str) -> Counter[Any]:
        sums: Counter[Any] = Counter()
        for moment in self.moments:
            for number, runs in moment.parts:
                for key, count in getattr(self.parts[number], what).items():
                    sums[key] += count * runs * moment.times
        return sums

    @cached_property
    def products(self) -> Counter[Product]:
        """Product -> how often over the whole grid."""
        return self._summed("products")

    @property
    def elements(self) -> Counter[str]:
        """Operation -> elements of the vectors that it makes, over the whole grid."""
        sums: Counter[str] = Counter()
        for (name, _), count in self._summed("elements").items():
            sums[name] += count
        return sums

    @property
    def turned(self) -> float:
        """Elements turned across lanes."""
        return sum(m.times * n * self.parts[number].turned for m in self.moments for number, n in m.parts)

    @property
    def flops(self) -> int:
        """Multiplications and additions of its products."""
        return round(sum(2 * prod(sizes[:4]) * count for sizes, count in self.products.items()))


@dataclass(frozen=True)
class Moves:
    """A window over a grid, step by step: ``changed`` where another block is wanted, ``each`` the bytes of its block.

    ``distinct``: megabytes of the blocks that differ.
    """

    changed: Array
    each: Array
    distinct: float

    @property
    def fetches(self) -> int:
        """How often a block is moved."""
        return int(np.count_nonzero(self.changed))

    @property
    def megabytes(self) -> float:
        """Of all that is moved."""
        return int(self.each[self.changed].sum()) / 1e6


def moves_of(
    places: Sequence[Array], grid: Sequence[int], block: Sequence[int], array: Sequence[int], kind: str
) -> Moves:
    """What a window moves: where its place differs from the step before; at the array's edges only what is inside.

    Without ``places`` it is taken as moved in every step.

    >>> rows, columns = np.arange(2).reshape(2, 1, 1), np.arange(3).reshape(1, 1, 3)
    >>> moves = moves_of((rows, columns), (2, 4, 3), (8, 128), (16, 384), "f32")
    >>> moves.fetches, round(moves.megabytes * 1e6), round(moves.distinct * 1e6)
    (24, 98304, 24576)
    """
    steps, whole = max(0, prod(grid)), block_bytes(block, kind)
    if not steps or len(places) != len(block):
        distinct = min(steps * whole, block_bytes(array, kind)) if array else steps * whole
        return Moves(np.ones(steps, bool), np.broadcast_to(whole, steps), distinct / 1e6)
    at, different = np.zeros((), np.int64), 1
    inside = []  # of its block, in each dim
    for d, place in enumerate(places):
        low, high = int(place.min()), int(place.max())
        at, different = at * (high - low + 1) + (place - low), different * (high - low + 1)
        cut = array and block[d] and array[d] % block[d]
        sizes = np.clip(array[d] - place * block[d], 0, block[d]) if cut else np.asarray(block[d])
        seen, number = np.unique(sizes, return_inverse=True)
        inside.append((seen.tolist(), number.reshape(sizes.shape)))
    table = np.asarray([block_bytes(sizes, kind) for sizes in product(*(seen for seen, _ in inside))])
    each = table.reshape([len(seen) for seen, _ in inside])[tuple(number for _, number in inside)]
    each = np.broadcast_to(each, grid).reshape(-1) if each.ndim else np.broadcast_to(each, steps)
    flat = np.broadcast_to(at, grid).reshape(-1)
    changed = np.ones(steps, bool)
    np.not_equal(flat[1:], flat[:-1], out=changed[1:])
    return Moves(changed, each, int(each[_one_of_each(flat, different)].sum()) / 1e6)


def _one_of_each(numbers: Array, most: int) -> Array:
    """Where each of the numbers, from 0 to ``most``, stands once."""
    if most > 4 * len(numbers) + 1024:
        return np.unique(numbers, return_index=True)[1]
    place = np.full(most, -1)
    place[numbers] = np.arange(len(numbers))
    return place[place >= 0]
