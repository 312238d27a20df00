"""A Pallas kernel as its custom call carries it: grid, windows, and what its body computes over the whole grid.

The body is MLIR bytecode; jaxlib turns it into text in a process of its own. The text is followed once: numbers that
depend on the grid alone are kept for all its steps at once, so that branches and index maps are counted exactly. What
depends on data (tables that the kernel loads) is assumed, and ``Kernel.assumed`` says what.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo import jaxlib_child

_SECONDS = 5
_LONGEST_BODY = 4 << 20
"""Bytes of bytecode that are read; the longest kernels in use have a tenth of a megabyte."""
_LONGEST_TEXT = 64 << 20
_MOST_STEPS = 1 << 22
"""Steps of a grid that are counted one by one; of a longer one every window is taken as fetched in every step."""
_DYNAMIC = -(1 << 63)
_NESTED = 64
_OPERATION = re.compile(r'\s*(?:%(\w+)(?::\d+)? = )?"(?:stable_mosaic\.)?([\w.]+)"\(([^()]*)\)(.*)')
_BLOCK = re.compile(r"%(\w+): ([^%]+?)(?:, (?=%)|\):$)")
_VALUE = re.compile(r"\bvalue = (-?\d+|true|false)\b")
_PREDICATE = re.compile(r"\bpredicate = (\d+)")
_SHAPED = re.compile(r"(?:vector|memref)<((?:(?:\d+|\?)x)*)(\w+|!tpu\.\w+)(?:, [^<>]*(?:<[^<>]*>)?[^<>]*)?>")
_DIMS = re.compile(r"dot_dimension_numbers<\[([\d, ]*)\], \[([\d, ]*)\].*?\[([\d, ]*)\], \[[\d, ]*\]>")
_REDUCED = re.compile(r"reduction_dims = array<i64: ([\d, ]+)>")
_BOUNDS = re.compile(r"iteration_bounds = array<i64(?:: ([-\d, ]+))?>")
_WINDOW = re.compile(r"transform_indices = @(\w+)[^{}]*window_bounds = array<i64(?:: ([-\d, ]+))?>")
_NAME = re.compile(r'sym_name = "([^"]+)"')
_BITS = re.compile(r"\d+")
_LIMIT = re.compile(r'"scoped_memory_configs":\[\{"memory_space":"?1"?,"offset":"?0"?,"size":"?(\d+)')
_SPACE = re.compile(r"memory_space<(\w+)>")
_BODY = re.compile(r'"body":"([A-Za-z0-9+/=]+)"')

Array = np.ndarray[Any, Any]


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
class Kernel:
    """What one call of a kernel does.

    ``products``: (batch, rows, columns, depth, element type of the left operand) -> how often; ``elements``: operation
    -> elements of the vectors that it makes; ``turned``: elements turned across lanes; ``copied``: megabytes of its own
    transfers to and from HBM; ``assumed``: what was taken for granted of the data, in words; ``trips_by_data``: loops
    whose length its data decides were counted as one trip; ``scratch``: (sizes, type, memory space) of each buffer of
    its own, ``tables`` the same of what is prefetched into scalar memory; ``held_bytes``: the most of the body's
    vectors that wait for a reduction at one time; ``semantics``: a word for each dim of the grid; ``vmem_limit``: bytes
    of vector memory that it asks for, 0 where it asks for no limit of its own; ``line``: of the user's program.
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
    windows: list[Window] = field(default_factory=list)
    products: dict[tuple[int, int, int, int, str], float] = field(default_factory=lambda: defaultdict(float))
    elements: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    turned: float = 0.0
    copied: float = 0.0
    assumed: list[str] = field(default_factory=list)
    trips_by_data: bool = False
    sparse: bool = False

    @property
    def flops(self) -> int:
        """Multiplications and additions of its products."""
        return round(sum(2 * prod(sizes[:4]) * count for sizes, count in self.products.items()))


@lru_cache(maxsize=64)
def read_kernel(backend_config: str, arrays: tuple[tuple[int, ...], ...] = ()) -> Kernel:
    """The kernel in a custom call's ``backend_config``; ``arrays``: the sizes of its operands and results.

    Where data decides how long the grid is, blocks whose place a table says are taken as passed in order: in one pass
    over the table no more of them are fetched than the array has.

    Raises :class:`UnsupportedError` where there is none, it cannot be read, or there is no jaxlib.
    """
    match = _BODY.search(backend_config)
    if match is None or len(match[1]) > _LONGEST_BODY:
        raise UnsupportedError("its text does not carry the kernel")
    try:
        raw = base64.b64decode(match[1], validate=True)
    except binascii.Error:
        raise UnsupportedError("its body is not base64") from None
    text = jaxlib_child.ask(b"k", raw, _SECONDS).decode("utf-8", errors="replace")
    try:
        kernel = kernel_of(text, arrays)
        limit = _LIMIT.search(backend_config.replace('": ', '":').replace(", ", ","))
        kernel.vmem_limit = int(limit[1]) if limit else 0
        return kernel
    except (ValueError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise UnsupportedError(f"its body is not understood: {error}") from None


@dataclass
class _Node:
    """One operation with its regions, each a list of operations; ``rest`` is the text behind the operands."""

    result: str
    name: str
    operands: list[str]
    rest: str = ""
    regions: list[list[_Node]] = field(default_factory=list)
    arguments: list[list[tuple[str, str]]] = field(default_factory=list)

    def shapes(self) -> list[tuple[tuple[int, ...], str]]:
        """(dims, element type) of the vectors and memrefs in its signature, operands first; -1 for an unknown dim."""
        return [_shape(match) for match in _SHAPED.finditer(self.rest[self.rest.rfind(" : (") :])]


def _shape(match: re.Match[str]) -> tuple[tuple[int, ...], str]:
    return tuple(-1 if d == "?" else int(d) for d in match[1].split("x")[:-1]), match[2]


def _integers(text: str | None) -> list[int]:
    return [int(word) for word in text.split(",")] if text and text.strip() else []


def _tree(text: str) -> _Node:
    """The operations of a module as a tree, from MLIR's generic form."""
    root = _Node("", "", [], regions=[[]], arguments=[[]])
    open_ = [root]
    for line in text.splitlines():
        stripped = line.lstrip()
        if stripped.startswith("})"):
            open_[-1].rest += stripped[2:]
            open_.pop()
        elif stripped.startswith("}, {"):
            open_[-1].regions.append([])
            open_[-1].arguments.append([])
        elif stripped.startswith("^bb"):
            open_[-1].arguments[-1] = _BLOCK.findall(stripped)
        elif match := _OPERATION.match(line):
            operands = [word.strip().lstrip("%") for word in match[3].split(",") if word.strip()]
            node = _Node(match[1] or "", match[2], operands, match[4])
            open_[-1].regions[-1].append(node)
            if match[4].endswith("({"):
                node.rest = match[4][:-2]
                node.regions, node.arguments = [[]], [[]]
                open_.append(node)
                if len(open_) > _NESTED:
                    raise ValueError("too many blocks inside blocks")
    return root


def kernel_of(text: str, arrays: Sequence[tuple[int, ...]] = ()) -> Kernel:
    """The kernel of a module's text in MLIR's generic form.

    ``arrays``: as of :func:`read_kernel`. Raises ValueError where no kernel stands in it.
    """
    if len(text) > _LONGEST_TEXT:
        raise ValueError("it is too long")
    module = _tree(text).regions[0]
    if module and module[0].name == "builtin.module":
        module = module[0].regions[0]
    functions = {
        name[1]: node for node in module if node.name == "func.func" and (name := _NAME.search(node.rest)) is not None
    }
    main = next((node for node in functions.values() if "iteration_bounds" in node.rest), None)
    main = main or functions.get("main") or next(iter(functions.values()), None)
    if main is None:
        raise ValueError("no function stands in it")
    return _Walk(main, functions, arrays).walked()


# Numbers of a kernel: known for every step of the grid, chances of what data decides, or data.


@dataclass(frozen=True)
class _Chance:
    """A condition: for every step 0 or 1, or between them the share of what data decides."""

    share: Array
    assumed: str = ""  # what was taken for granted of the data


@dataclass(frozen=True)
class _Data:
    """An integer that data decides: from a table of these sizes, and where in it it stands, if that is known."""

    table: tuple[int, ...] = ()
    place: Array | None = None


_Number = Array | _Chance | _Data

_ARITHMETIC: dict[str, Callable[[Array, Array], Array]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.divsi": lambda a, b: np.floor_divide(a, np.where(b == 0, 1, b)),
    "arith.floordivsi": lambda a, b: np.floor_divide(a, np.where(b == 0, 1, b)),
    "arith.remsi": lambda a, b: np.remainder(a, np.where(b == 0, 1, b)),
}
_ARITHMETIC |= {"arith.divui": _ARITHMETIC["arith.divsi"], "arith.remui": _ARITHMETIC["arith.remsi"]}
_COMPARISONS: tuple[Callable[[Array, Array], Array], ...] = (
    *(np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal),
    *(np.less, np.less_equal, np.greater, np.greater_equal),
)
"""By the number of MLIR's predicate."""
_SAME = frozenset({"arith.index_cast", "arith.extui", "arith.extsi", "arith.trunci", "arith.index_castui"})
_MET = "conditions on its data taken as met"
_UNCOUNTED = (
    "vector.load",
    "vector.store",
    "vector.shape_cast",
    "vector.broadcast",
    "arith.constant",
    "scf.",
    "memref.",
)
"""Vector operations that have slots of their own, or none."""


def _below_diagonal(rows: int, columns: int) -> float:
    """The share of blocks of a square that a causal mask leaves."""
    return sum(-(-(row + 1) * columns // rows) for row in range(rows)) / (rows * columns)


class _Walk:
    """One pass over a kernel's main function, for all steps of its grid at once."""

    def __init__(self, main: _Node, functions: dict[str, _Node], arrays: Sequence[tuple[int, ...]] = ()) -> None:
        self.main, self.functions, self.arrays = main, functions, arrays
        self.arguments = main.arguments[0]
        bounds = _integers(match[1]) if (match := _BOUNDS.search(main.rest)) else []
        prefetch = self._attribute("scalar_prefetch")
        tables = [_tables_of(kind) for _, kind in self.arguments[len(bounds) : len(bounds) + prefetch]]
        name = _NAME.search(main.rest)
        self.kernel = Kernel(name[1] if name else "kernel", sparse="core_type<sc" in main.rest)
        longest = max((shape[0] for shape in tables if len(shape) == 1), default=1)
        if any(bound == _DYNAMIC or bound < 0 for bound in bounds):
            self.kernel.assumed.append(f"{longest} steps of a grid whose length its data decides")
        self.grid = [longest if bound < 0 else bound for bound in bounds]
        self.kernel.steps = prod(self.grid)
        self.kernel.grid = tuple(self.grid)
        self.kernel.semantics = tuple(re.findall(r"#tpu\.dimension_semantics<(\w+)>", main.rest))
        self.kernel.tables = [_memory_of(kind) for _, kind in self.arguments[len(bounds) : len(bounds) + prefetch]]
        if scratch := self._attribute("scratch_operands"):
            self.kernel.scratch = [_memory_of(kind) for _, kind in self.arguments[-scratch:]]
        self.kernel.held_bytes = _held(main)
        self.sizes_given = sum(bound < 0 for bound in bounds)  # they come as operands before all others
        self.prefetch = prefetch
        self.numbers: dict[str, _Number] = {}
        self.tables: dict[str, tuple[int, ...]] = {}

    def _attribute(self, name: str) -> int:
        match = re.search(rf"\b{name} = (\d+)", self.main.rest)
        return int(match[1]) if match else 0

    def walked(self) -> Kernel:
        self._enter(self.arguments)
        self._block(self.main.regions[0], np.ones([1] * len(self.grid)))
        first, last = len(self.grid) + self.prefetch, len(self.arguments) - self._attribute("scratch_operands")
        stored = _stored(self.main.regions[0])
        items = re.findall(r"\{[^{}]*\}", self.main.rest.partition("window_params = [")[2])
        for number, (name, kind) in enumerate(self.arguments[first:last]):
            window = _WINDOW.search(items[number]) if number < len(items) else None
            operand = self.sizes_given + self.prefetch + number
            shape, dtype, space = _memory_of(kind)
            array = tuple(self.arrays[operand]) if operand < len(self.arrays) else ()
            if window is None or space != "vmem" or len(bounds := tuple(_integers(window[2]))) != len(shape):
                outside = space if window is None or space != "vmem" else "other"
                self.kernel.windows.append(Window(operand, 0.0, 0, shape, array, dtype, outside, 1))
                continue
            known = array if len(array) == len(bounds) and "element_window" not in items[number] else ()
            places = self._places(self.functions.get(window[1]), [-(-n // max(1, d)) for n, d in zip(known, bounds)])
            fetches, moved, distinct = movement(places, self.grid, bounds, known, dtype)
            alone = "synchronous" in items[number] or self.kernel.steps <= 1 or (known == bounds and fetches == 1)
            self.kernel.windows.append(
                Window(
                    *(operand, moved, fetches, bounds, array, dtype, space, 1 if alone else 2),
                    *(name in stored, distinct, places),
                )
            )
        self.kernel.assumed = list(dict.fromkeys(self.kernel.assumed))
        return self.kernel

    def _enter(self, arguments: Sequence[tuple[str, str]]) -> None:
        """The grid's indices and the tables as numbers, under the names that a function gives them."""
        rank = len(self.grid)
        for k, (name, _) in enumerate(arguments[:rank]):
            self.numbers[name] = np.arange(self.grid[k]).reshape([-1 if d == k else 1 for d in range(rank)])
        for name, kind in arguments[rank:]:
            self.tables[name] = _tables_of(kind)

    def _places(self, transform: _Node | None, blocks: Sequence[int]) -> tuple[Array, ...]:
        """The index of a window's block along each dim, over the grid; () where data decides it.

        ``blocks``: how many there are along each dim, [] where that is not known.
        """
        if transform is None or not self.kernel.steps or self.kernel.steps > _MOST_STEPS:
            return ()
        self._enter(transform.arguments[0])
        found: list[Array] = []
        for node in transform.regions[0]:
            if node.name != "func.return":
                self._scalar(node)
                continue
            for dim, name in enumerate(node.operands):
                number = self.numbers.get(name)
                values = number.place if isinstance(number, _Data) else number
                if isinstance(number, _Data) and number.place is not None and dim < len(blocks) and self.sizes_given:
                    values = number.place * min(blocks[dim], prod(number.table)) // max(1, prod(number.table))
                if values is None or isinstance(values, _Chance):
                    return ()
                found.append(np.asarray(values))
        return tuple(found)

    def _block(self, nodes: Sequence[_Node], weight: Array) -> None:
        """The operations of a block, which runs ``weight`` times in each step."""
        for node in nodes:
            if node.name == "scf.if":
                self._branches(node, weight)
            elif node.name == "scf.for":
                self._loop(node, weight)
            elif node.regions:
                for region in node.regions:  # while loops and scopes: once
                    self.kernel.trips_by_data |= node.name == "scf.while"
                    self._block(region, weight)
            else:
                self._operation(node, weight)

    def _branches(self, node: _Node, weight: Array) -> None:
        condition = self.numbers.get(node.operands[0])
        if not isinstance(condition, _Chance):
            condition = _Chance(np.ones(()), _MET)
        before = self._total()
        for region, share in zip(node.regions, (condition.share, 1 - condition.share)):
            if np.any(share):
                self._block(region, weight * share)
        if condition.assumed and self._total() > before:
            self.kernel.assumed.append(condition.assumed)

    def _loop(self, node: _Node, weight: Array) -> None:
        bounds = [self.numbers.get(name) for name in node.operands[:3]]
        if all(isinstance(bound, np.ndarray) for bound in bounds):
            low, high, step = (np.asarray(bound) for bound in bounds)
            trips = np.maximum(0, -(-(high - low) // np.maximum(1, step)))
        else:
            self.kernel.trips_by_data = True
            trips = np.ones(())
        self._block(node.regions[0], weight * trips)

    def _total(self) -> float:
        return sum(self.kernel.products.values()) + sum(self.kernel.elements.values())

    def _runs(self, weight: Array) -> float:
        """How often something of this weight runs over the whole grid."""
        return float(np.mean(weight)) * self.kernel.steps

    def _operation(self, node: _Node, weight: Array) -> None:
        if "vector<" not in node.rest and node.name != "tpu.enqueue_dma":
            self._scalar(node)
            return
        if node.name.startswith(_UNCOUNTED):
            return
        shapes = node.shapes()
        if node.name in ("tpu.matmul", "vector.contract") and len(shapes) >= 3:
            self.kernel.products[_product(node, shapes)] += self._runs(weight)
        elif node.name == "tpu.enqueue_dma":
            self._copy(node, weight)
        elif shapes:
            elements = max(max(0, prod(dims)) for dims, _ in shapes) * self._runs(weight)
            if node.name == "tpu.transpose":
                self.kernel.turned += elements
            elif node.name.startswith(("arith.", "math.", "vector.multi_reduction", "vector.reduction")):
                self.kernel.elements[node.name.partition(".")[2]] += elements
                dims, reduced = shapes[0][0], _REDUCED.search(node.rest)
                if reduced and len(dims) - 1 in _integers(reduced[1]):
                    self.kernel.turned += elements / max(dims[-1], 128) / 8

    def _copy(self, node: _Node, weight: Array) -> None:
        """A transfer of the kernel's own; one of a size that data decides counts as one loop of unknown length."""
        signature = node.rest[node.rest.rfind(" : (") :]
        if not re.search(r"memory_space<(?:any|hbm)>", signature):
            return
        shapes = [(dims, kind) for dims, kind in node.shapes() if not kind.startswith("!")]
        if shapes and min(shapes[0][0], default=1) >= 0:
            self.kernel.copied += prod(shapes[0][0]) * _bytes_of(shapes[0][1]) * self._runs(weight) / 1e6
        else:
            self.kernel.trips_by_data = True

    def _scalar(self, node: _Node) -> None:
        """An operation on integers or conditions."""
        if node.result:
            number = self._number(node)
            if number is not None:
                self.numbers[node.result] = number

    def _number(self, node: _Node) -> _Number | None:
        name = node.name
        if name == "arith.constant":
            value = _VALUE.search(node.rest)
            if value is None:
                return None
            if value[1] in ("true", "false"):
                return _Chance(np.asarray(float(value[1] == "true")))
            return np.asarray(int(value[1]))
        given: list[_Number] = [self.numbers.get(operand, _Data()) for operand in node.operands]
        if name == "memref.load":
            return self._loaded(node.operands[0], given[1:])
        if name in _SAME:
            return given[0]
        if name == "arith.cmpi":
            return _compared(int(match[1]) if (match := _PREDICATE.search(node.rest)) else 0, given)
        if name in ("arith.andi", "arith.ori", "arith.xori") and all(isinstance(one, _Chance) for one in given):
            return _combined(name, [one for one in given if isinstance(one, _Chance)])
        if name == "arith.select":
            same = given[1] is given[2]
            return given[1] if same else next((one for one in given[1:] if isinstance(one, _Data)), _Data())
        if name in _ARITHMETIC and all(isinstance(one, np.ndarray) for one in given):
            return np.asarray(_ARITHMETIC[name](np.asarray(given[0]), np.asarray(given[1])))
        return next((one for one in given if isinstance(one, _Data)), _Data())

    def _loaded(self, table: str, indices: Sequence[_Number]) -> _Data:
        """A value of a table; its place stands for it, as if no two were alike."""
        sizes = self.tables.get(table, ())
        if len(sizes) != len(indices) or not all(isinstance(index, np.ndarray) for index in indices):
            return _Data(sizes)
        place = np.zeros((), np.int64)
        for size, index in zip(sizes, indices):
            place = place * size + np.asarray(index)
        return _Data(sizes, place)


def _compared(predicate: int, given: Sequence[_Number]) -> _Chance:
    a, b = given
    if isinstance(a, _Chance) and isinstance(b, np.ndarray) and not b.any():
        return a if predicate == 1 else _Chance(1 - a.share, a.assumed)  # a condition as an integer, against 0
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return _Chance(_COMPARISONS[predicate % len(_COMPARISONS)](a, b).astype(float))
    wide = [one.table for one in (a, b) if isinstance(one, _Data) and len([d for d in one.table if d > 1]) > 1]
    if predicate and wide:
        kept = _below_diagonal(*wide[0][-2:])
        return _Chance(np.asarray(kept), f"its mask taken as causal: {kept:.0%} of its blocks")
    return _Chance(np.ones(()), _MET)


def _combined(name: str, given: Sequence[_Chance]) -> _Chance:
    a, b = (one.share for one in given)
    share = a * b if name == "arith.andi" else a + b - a * b if name == "arith.ori" else a + b - 2 * a * b
    return _Chance(share, next((one.assumed for one in given if one.assumed), ""))


def _tables_of(kind: str) -> tuple[int, ...]:
    """The sizes of a table in scalar memory, () for all else."""
    match = _SHAPED.search(kind)
    return _shape(match)[0] if match and "smem" in kind else ()


def _bytes_of(kind: str) -> float:
    bits = _BITS.search(kind)
    return int(bits[0]) / 8 if bits else 4.0


def _memory_of(kind: str) -> tuple[tuple[int, ...], str, str]:
    """(sizes, element type, memory space) of a reference."""
    match, space = _SHAPED.search(kind), _SPACE.search(kind)
    shape, dtype = _shape(match) if match else ((), "")
    return shape, dtype, space[1] if space else ""


def _rows_of_tile(rows: int, kind: str) -> int:
    """Rows of a tile of an array with so many: less than 8 are rounded up to a power of 2; of bytes there are 32."""
    most, packed = (32 if _bytes_of(kind) <= 1 else 8), round(4 / max(_bytes_of(kind), 0.5))
    return most if rows >= most else max(1 << max(0, rows - 1).bit_length(), packed)


def block_bytes(dims: Sequence[int], kind: str) -> int:
    """Bytes of a block in tiles of rows x 128; dims of which each step takes one element count as 1.

    >>> block_bytes((1, 100), "f32"), block_bytes((9, 128), "bf16")
    (512, 4096)
    """
    sizes = [max(1, size) for size in dims]
    if len(sizes) > 1:
        tile = _rows_of_tile(sizes[-2], kind)
        sizes[-2:] = [-(-sizes[-2] // tile) * tile, -(-sizes[-1] // 128) * 128]
    return round(prod(sizes) * _bytes_of(kind))


def movement(
    places: Sequence[Array], grid: Sequence[int], block: Sequence[int], array: Sequence[int], kind: str
) -> tuple[int, float, float]:
    """(fetches, megabytes moved, megabytes of different blocks) of a window over a grid.

    A block is moved where its place differs from the step before; at the array's edges only what is inside. Without
    ``places`` it is taken as moved in every step.

    >>> rows, columns = np.arange(2).reshape(2, 1, 1), np.arange(3).reshape(1, 1, 3)
    >>> fetches, moved, least = movement((rows, columns), (2, 4, 3), (8, 128), (16, 384), "f32")
    >>> fetches, round(moved * 1e6), round(least * 1e6)
    (24, 98304, 24576)
    """
    steps, whole = prod(grid), block_bytes(block, kind) / 1e6
    if not steps or len(places) != len(block):
        return steps, steps * whole, min(steps * whole, block_bytes(array, kind) / 1e6) if array else steps * whole
    flat = [np.broadcast_to(place, grid).reshape(-1) for place in places]
    changed = np.zeros(steps, bool)
    changed[0] = True
    for index in flat:
        changed[1:] |= index[1:] != index[:-1]
    at = np.stack([index[changed] for index in flat], axis=1)
    different, times = np.unique(at, axis=0, return_counts=True)
    each = np.full(len(different), whole)
    if array and any(size % cut for size, cut in zip(array, block) if cut):
        inside = np.clip(np.asarray(array) - different * np.asarray(block), 0, np.asarray(block))
        cuts, back = np.unique(inside, axis=0, return_inverse=True)
        each = np.asarray([block_bytes(tuple(cut), kind) / 1e6 for cut in cuts.tolist()])[back.reshape(-1)]
    return int(changed.sum()), float((each * times).sum()), float(each.sum())


_WAITS = ("vector.multi_reduction", "vector.reduction", "tpu.all_reduce", "tpu.matmul", "vector.contract")
_MADE_AGAIN = ("vector.load", "vector.broadcast", "arith.constant", "tpu.iota", "vector.shape_cast")


def _stored(nodes: Sequence[_Node]) -> set[str]:
    """The references that a block writes to."""
    found = {node.operands[1] for node in nodes if node.name.endswith("store") and len(node.operands) > 1}
    return found.union(*(_stored(region) for node in nodes for region in node.regions))


def _held(main: _Node) -> int:
    """The most bytes of vectors that are made before a reduction or product ends and wanted after it, at one time.

    What is loaded or spread out again costs no memory. Operations are taken in their order, branches one after another.
    """
    made: dict[str, tuple[int, int]] = {}  # name -> (the reductions that it waited for, its bytes)
    wanted: dict[str, int] = {}

    def follow(nodes: Sequence[_Node]) -> None:
        for node in nodes:
            for region in node.regions:
                follow(region)
            names = [name.partition("#")[0] for name in node.operands]
            phase = max((made[name][0] for name in names if name in made), default=0)
            for name in names:
                wanted[name] = max(wanted.get(name, 0), phase)
            shapes = node.shapes()
            if node.result and shapes and "vector<" in node.rest:
                dims, kind = shapes[-1]
                kept = kind != "i1" and not node.name.startswith(_MADE_AGAIN)
                size = block_bytes(dims, kind) if kept and min(dims, default=0) > 0 else 0
                made[node.result] = (phase + node.name.startswith(_WAITS), size)

    for region in main.regions:
        follow(region)

    def turned(nodes: Sequence[_Node]) -> int:
        """The most that one change of shape keeps twice, because its rows or lanes cross tiles."""
        most = 0
        for node in nodes:
            shapes = node.shapes()
            if node.name in ("vector.shape_cast", "tpu.reshape") and len(shapes) == 2:
                before, after = shapes[0][0], shapes[1][0]
                if before[-1:] != after[-1:] and (before[-1] % 128 or after[-1] % 128):
                    most = max(most, block_bytes(before, "f32"))
            most = max([most, *(turned(region) for region in node.regions)])
        return most

    ends: dict[int, int] = defaultdict(int)
    for name, (phase, size) in made.items():
        for boundary in range(phase, wanted.get(name, phase)):
            ends[boundary] += size
    return max([turned(main.regions[0]), *ends.values()])


def _product(node: _Node, shapes: Sequence[tuple[tuple[int, ...], str]]) -> tuple[int, int, int, int, str]:
    (left, kind), (right, _), (result, _) = shapes[:3]
    match = _DIMS.search(node.rest)
    if match is None:  # rows x depth, depth x columns
        depth = round((prod(left) * prod(right) / max(1, prod(result))) ** 0.5) or 1
        return 1, prod(left) // depth, prod(right) // depth, depth, kind
    batches = prod(left[d] for d in _integers(match[3]))
    depth = prod(left[d] for d in _integers(match[1]))
    shared = max(1, batches * depth)
    return batches, prod(left) // shared, prod(right) // shared, depth, kind
