"""A Pallas kernel as its custom call carries it: grid, windows, and what its body computes over the whole grid.

The body is MLIR bytecode; jaxlib turns it into text in a process of its own. The text is followed once, for all steps
of the grid: numbers that depend on the grid alone are arrays over it, so that branches and index maps are counted
exactly. A loop that starts transfers is a pipeline of its own: it is followed trip by trip, with the numbers that it
carries. All others count as often as they run. What depends on data (tables that the kernel loads) is assumed, and
``Kernel.assumed`` says what.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil, prod
from typing import Any, cast

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo import jaxlib_child
from tilewright.hlo.program import Operation
from tilewright.hlo.reading import kernel as records
from tilewright.hlo.reading import kernel_numbers as scalars
from tilewright.hlo.reading.kernel import Array, Block, Kernel, Moment, Moves, Node, Part, Shaped, Window, block_bytes
from tilewright.hlo.reading.kernel_numbers import UNKNOWN, Chance, Data, Number

_SECONDS = 5
_LONGEST_BODY = 4 << 20
"""Bytes of bytecode that are read; the longest kernels in use have a tenth of a megabyte."""
_LIMIT = re.compile(r'"scoped_memory_configs":\[\{"memory_space":"?1"?,"offset":"?0"?,"size":"?(\d+)')
_SAID = re.compile(r'"(flops|transcendentals|bytes_accessed|depth|scores)":"?(\d{1,18})')
_SIZES = re.compile(r"\w\[([\d,]*)\]")
_ESTIMATE = re.compile(r'"cost_estimate":\{([^{}]*)\}')
_BODY = re.compile(r'"body":"([A-Za-z0-9+/=]+)"')


def config_of(op: Operation) -> str:
    """What a custom call carries, without the spaces that StableHLO writes in it."""
    return op.attributes.get("backend_config", "").replace('": ', '":')


def said_of(op: Operation) -> dict[str, int]:
    """Its author's estimate, as far as a custom call says it: ``flops``, ``transcendentals``, ``bytes_accessed``;
    ``depth`` of heads and ``scores`` of a step, where advice made it.
    """
    match = _ESTIMATE.search(config_of(op))
    return {name: int(number) for name, number in _SAID.findall(match[1])} if match else {}


def kernel_in(op: Operation) -> Kernel:
    """The kernel that a custom call carries, over its operands and results; raises as :func:`read_kernel`."""
    arrays = [next(iter(_SIZES.findall(text)), "") for text in op.operand_shapes] + _SIZES.findall(op.shape)
    return read_kernel(config_of(op), tuple(tuple(int(n) for n in text.split(",") if n) for text in arrays))


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
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, RecursionError) as error:
        raise UnsupportedError(f"its body is not understood: {error}") from None


def kernel_of(text: str, arrays: Sequence[tuple[int, ...]] = ()) -> Kernel:
    """The kernel of a module's text in MLIR's generic form.

    ``arrays``: as of :func:`read_kernel`. Raises ValueError where no kernel stands in it.
    """
    functions = {
        name[1]: node
        for node in records.module_of(text).nodes
        if node.name == "func.func" and (name := _NAME.search(node.rest)) is not None
    }
    main = next((node for node in functions.values() if "iteration_bounds" in node.rest), None)
    main = main or functions.get("main") or next(iter(functions.values()), None)
    if main is None:
        raise ValueError("no function stands in it")
    return Walk(main, functions, arrays).walked()


_MOST_STEPS = 1 << 22
"""Steps of a grid that are counted one by one; of a longer one every window is taken as fetched in every step."""
_MOST_TRIPS = 512
"""Trips of a loop that are followed one by one; those after them are taken to be like them."""
_MOST_WORK = 400_000
"""Operations that all such loops together may take; with twice as many a kernel is not followed at all."""
_LARGEST = 1 << 20
"""Numbers in a table that is made up, and groups of rows."""
_SHOWN = 12
"""Steps from the first whose kinds are kept in their order."""
_DYNAMIC = -(1 << 63)
_BOUNDS = re.compile(r"iteration_bounds = array<i64(?:: ([-\d, ]+))?>")
_WINDOW = re.compile(r"transform_indices = @(\w+)[^{}]*window_bounds = array<i64(?:: ([-\d, ]+))?>")
_NAME = re.compile(r'sym_name = "([^"]+)"')
_SEGMENTS = re.compile(r"operandSegmentSizes = array<i32: ([\d, ]+)>")
_CONTROL = ("tpu.enqueue_dma", "memref.load", "memref.store", "scf.yield", "scf.condition", "func.return")
_LOGIC = ("arith.andi", "arith.ori", "arith.xori")


class _Steps:
    """What is counted of the steps that are being followed: weights over the grid of its parts, and what moves."""

    def __init__(self) -> None:
        self.parts: dict[int, Any] = defaultdict(float)
        self.moved: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])


class Walk:
    """One pass over a kernel's main function, for all steps of its grid at once."""

    def __init__(self, main: Node, functions: Mapping[str, Node], arrays: Sequence[tuple[int, ...]] = ()) -> None:
        self.main, self.functions, self.arrays = main, functions, arrays
        self.arguments = main.blocks[0].arguments
        bounds = records.integers(match[1]) if (match := _BOUNDS.search(main.rest)) else []
        self.prefetch = self._attribute("scalar_prefetch")
        first = len(bounds)
        self.last = len(self.arguments) - self._attribute("scratch_operands")
        name = _NAME.search(main.rest)
        kernel = self.kernel = Kernel(name[1] if name else "kernel", sparse="core_type<sc" in main.rest)
        kernel.tables = [records.memory_of(kind) for _, kind in self.arguments[first : first + self.prefetch]]
        given = [records.memory_of(kind) for _, kind in self.arguments[first : self.last]]
        longest = max((sizes[0] for sizes, _, space in given if len(sizes) == 1 and space == "smem"), default=1)
        if any(bound == _DYNAMIC or bound < 0 for bound in bounds):
            kernel.assumed.append(f"{longest} steps of a grid whose length its data decides")
        self.longest = longest
        self.grid = [longest if bound < 0 else bound for bound in bounds]
        kernel.steps, kernel.grid = prod(self.grid), tuple(self.grid)
        kernel.semantics = tuple(re.findall(r"#tpu\.dimension_semantics<(\w+)>", main.rest))
        kernel.held_bytes = records.held(main)
        self.sizes_given = sum(bound < 0 for bound in bounds)  # they come as operands before all others
        self.numbers: dict[str, Number] = {}
        self.defined: dict[str, Node] = {}
        self.tables: dict[str, tuple[int, ...]] = {}
        self.contents: dict[str, Array] = {}
        self.cells: dict[str, dict[int, Number]] = defaultdict(dict)
        self.ranges = scalars.ranges_of(main.blocks[0], {name for name, kind in self.arguments if "smem" in kind})
        self.steps, self.work = _Steps(), 0
        self.entered: list[tuple[dict[str, Number], dict[str, Node], list[Node]]] = []
        self.trips: Counter[tuple[Any, ...]] = Counter()
        self.first: list[tuple[Any, ...]] = []
        self.begun: Any = 0.0  # trips over the grid
        self.passed: set[str] = set()  # where loops end that pass their arrays once
        # its own buffers that every trip writes whole before it reads them: the compiler gives them no memory
        body = main.blocks[0]
        own = {name for name, kind in self.arguments[self.last :] if "<vmem>" in kind}
        own |= {node.result for node in body.all() if node.name == "memref.alloca" and "<vmem>" in node.signature}
        kernel.from_own = records.products_of(body, own)
        others = (node for node in body.all() if not node.name.endswith(("load", "store")))  # transfers, parts
        self.passing = set() if kernel.sparse else own.difference(*(node.operands for node in others))
        self.unread = records.unused(body)
        self.blocks: list[Block] = []  # of the kernel's parts
        self.fresh: set[str] = set()  # what this trip has written of them

    def _attribute(self, name: str) -> int:
        match = re.search(rf"\b{name} = (\d+)", self.main.rest)
        return int(match[1]) if match else 0

    def walked(self) -> Kernel:
        kernel, rank = self.kernel, len(self.grid)
        self._enter(self.arguments)
        self._share_out()
        self.operands = {name: self.sizes_given + k for k, (name, _) in enumerate(self.arguments[rank : self.last])}
        self._block(self.main.blocks[0], 1.0)
        scratch = [records.memory_of(kind) for name, kind in self.arguments[self.last :] if name not in self.passing]
        kernel.scratch = scratch + records.opened(self.main.blocks[0], self.passing)
        if self.passing:
            kernel.parts = [Part.of(block, self.unread, self.passing) for block in self.blocks]
        stores = (node for node in self.main.blocks[0].all() if node.name.endswith("store"))
        written = {node.operands[1] for node in stores if len(node.operands) > 1}
        items = re.findall(r"\{[^{}]*\}", self.main.rest.partition("window_params = [")[2])
        moves: list[Moves | None] = []
        for number, (name, kind) in enumerate(self.arguments[rank + self.prefetch : self.last]):
            window = _WINDOW.search(items[number]) if number < len(items) else None
            operand = self.sizes_given + self.prefetch + number
            shape, dtype, space = records.memory_of(kind)
            array = tuple(self.arrays[operand]) if operand < len(self.arrays) else ()
            whole = window is None and not self.grid  # it comes before the one step, and goes behind it
            bounds = shape if whole else tuple(records.integers(window[2])) if window else ()
            if space != "vmem" or (window is None and not whole) or len(bounds) != len(shape):
                outside = space if window is None or space != "vmem" else "other"
                kernel.windows.append(Window(operand, 0.0, 0, shape, array, dtype, outside, 1))
                moves.append(None)
                continue
            item = items[number] if window else ""
            known = array if len(array) == len(bounds) and "element_window" not in item else ()
            transform = self.functions.get(window[1]) if window else None
            places = self._places(transform, [-(-n // max(1, d)) for n, d in zip(known, bounds)])
            moved = records.moves_of(places, self.grid, bounds, known, dtype)
            moves.append(moved)
            alone = "synchronous" in item or kernel.steps <= 1 or (known == bounds and moved.fetches == 1)
            kernel.windows.append(
                Window(
                    *(operand, moved.megabytes, moved.fetches, bounds, array, dtype, space, 1 if alone else 2),
                    *(name in written, moved.distinct, places),
                )
            )
        self._moments(moves)
        if average := scalars.mean(self.begun):
            kernel.uneven = float(np.max(self.begun)) / average
        kernel.assumed = list(dict.fromkeys(kernel.assumed))
        return kernel

    # Steps that are alike.

    def _moments(self, moves: Sequence[Moves | None]) -> None:
        """The grid's steps: each computes while the next one's blocks come in and the last one's results go out."""
        kernel, steps = self.kernel, max(1, self.kernel.steps)
        columns: list[tuple[str, int, Array, Array]] = []  # what steps differ in, its values, and which one each has
        for number, weight in self.steps.parts.items():
            seen, which = np.unique(np.asarray(weight, float), return_inverse=True)
            columns.append(("part", number, seen, which.reshape(np.shape(weight))))
        first: list[tuple[int, float, float]] = []
        last: list[tuple[int, float, float]] = []
        followed = steps <= _MOST_STEPS
        for window, moved in zip(kernel.windows, moves):
            if moved is None or not moved.changed.size:
                continue
            megabytes = moved.megabytes / max(1, moved.fetches)
            edge = int(moved.each[-1 if window.result else 0]) / 1e6
            (last if window.result else first).append((window.operand, edge, 1.0))
            if not followed or len(moved.changed) == 1:
                continue
            at = moved.changed.astype(np.int8)
            if window.result:  # it goes out one step after it was made
                at[0] = 0
            else:  # a block comes in one step before it is wanted
                at = np.append(at[1:], np.int8(0))
            columns.append(("window", window.operand, np.asarray([0.0, megabytes]), at.reshape(self.grid)))
        kernel.moments = [Moment(1.0, (), tuple(first), alone=True)] if first else []
        codes: Array = np.zeros((), np.int64)
        width = 1
        while prod(len(seen) for _, _, seen, _ in columns) > 1 << 40:  # what was counted last tells steps apart no more
            columns.pop()
        for _, _, seen, which in columns:
            codes, width = codes * len(seen) + which, width * len(seen)
        flat = np.broadcast_to(codes, self.grid).reshape(-1) if followed and self.grid else np.reshape(codes, -1)
        if width <= max(1 << 16, 4 * flat.size):
            counts = np.bincount(flat, minlength=1)
            kinds = np.flatnonzero(counts)
            times = counts[kinds]
        else:
            kinds, times = np.unique(flat, return_counts=True)
        begun = len(kernel.moments)
        kernel.first = [begun + int(place) for place in np.searchsorted(kinds, flat[:_SHOWN])]
        for code, count in zip(kinds.tolist(), times.tolist()):
            parts, moved_now = [], []
            for what, number, seen, _ in reversed(columns):
                code, at_value = divmod(code, len(seen))
                value = float(seen[at_value])
                if value and what == "part":
                    parts.append((number, value))
                elif value:
                    moved_now.append((number, value, 1.0))
            scale = steps / max(1, flat.size)
            kernel.moments.append(Moment(count * scale, tuple(parts), tuple(moved_now)))
        own = tuple((operand, each[0] / steps, each[1] / steps) for operand, each in self.steps.moved.items())
        if own:  # transfers that the body starts by itself, outside any loop, beside all steps
            kernel.moments = [m if m.alone else Moment(m.times, m.parts, (*m.moved, *own)) for m in kernel.moments]
        if self.trips:
            keys = {key: len(kernel.moments) + k for k, key in enumerate(self.trips)}
            kernel.first = [keys[key] for key in self.first[:_SHOWN] if key in keys]
        kernel.moments += [Moment(times, *key) for key, times in self.trips.items()]
        if last:
            kernel.moments.append(Moment(1.0, (), tuple(last), alone=True))

    # Blocks, branches, loops.

    def _enter(self, arguments: Sequence[tuple[str, str]]) -> None:
        """The grid's indices and the tables as numbers, under the names that a function gives them."""
        rank = len(self.grid)
        for k, (name, _) in enumerate(arguments[:rank]):
            size, along = self.grid[k], [-1 if d == k else 1 for d in range(rank)]
            many = size > _MOST_STEPS
            self.numbers[name] = UNKNOWN if many else 0 if size == 1 else np.arange(size).reshape(along)
        for name, kind in arguments[rank:]:
            sizes, _, space = records.memory_of(kind)
            if space == "smem":
                self.tables[name] = sizes

    def _share_out(self) -> None:
        """A table with a number for each matrix of an operand [groups, depth, columns] is taken for groups of rows."""
        kinds = [kind for _, kind in self.arguments[len(self.grid) : self.last]]
        shapes = [tuple(sizes) for sizes in self.arrays] or [records.memory_of(kind)[0] for kind in kinds]
        if any(len(sizes) > 1 for sizes, _, _ in self.kernel.tables):
            return
        for groups, *sides in (shape for shape in shapes if len(shape) == 3):
            flat = [shape for shape in shapes if len(shape) == 2 and shape[0] > groups]
            rows = next((m for m, side in flat if side == sides[0] and any((m, n) in flat for n in sides[1:])), 0)
            for name, sizes in self.tables.items():
                if rows and 1 < groups <= _LARGEST and sizes in ((groups,), (groups + 1,)):
                    ends = scalars.ends_of(groups, rows)
                    self.contents[name] = np.diff(ends) if sizes[0] == groups else ends
                    self.kernel.assumed.append(f"{rows:,} rows in {groups:,} groups of different sizes")
                    visits = max(length for sizes in self.tables.values() for length in sizes)
                    if (tiles := visits - groups + 1) > 1 and rows % tiles == 0:
                        self.kernel.again = visits / tiles

    def _places(self, transform: Node | None, blocks: Sequence[int]) -> tuple[Array, ...]:
        """The index of a window's block along each dim, over the grid; () where data decides it.

        ``blocks``: how many there are along each dim, [] where that is not known.
        """
        if transform is None or not self.kernel.steps or self.kernel.steps > _MOST_STEPS:
            return ()
        body = transform.blocks[0]
        self._enter(body.arguments)
        found: list[Array] = []
        for node in self._define(body):
            if node.name == "memref.load":
                self._load(node)
            if node.name != "func.return":
                continue
            for dim, name in enumerate(node.operands):
                number = self._value(name)
                values = number.place if isinstance(number, Data) else number
                if isinstance(number, Data) and number.place is not None and dim < len(blocks) and self.sizes_given:
                    values = number.place * min(blocks[dim], prod(number.table)) // max(1, prod(number.table))
                if values is None or isinstance(values, Chance):
                    return ()
                wide = np.asarray(values)
                found.append(wide.reshape((1,) * (len(self.grid) - wide.ndim) + wide.shape))
        return tuple(found)

    def _define(self, block: Block) -> Sequence[Node]:
        """Names that a block gives anew each time that it runs; its branches, loops, transfers and the like."""
        if block.part < 0:
            block.part = len(self.kernel.parts)
            self.kernel.parts.append(Part.of(block, self.unread))
            self.blocks.append(block)
            constants = {n.result: scalars.constant(n) for n in block.nodes if n.name == "arith.constant"}
            made = {n.result: n for n in block.nodes if n.result and n.name != "arith.constant"}
            control = [
                n for n in block.nodes if n.blocks or n.name in _CONTROL or self.passing.intersection(n.operands)
            ]
            self.entered.append((constants, made, control))
        constants, made, control = self.entered[block.part]
        self.numbers.update(constants)
        self.defined.update(made)
        for name in made:
            self.numbers.pop(name, None)
        self.work += 10 + len(made)  # entering a block takes as long as ten numbers
        if self.work > 2 * _MOST_WORK:
            raise ValueError("its loops are too long to follow")
        return control

    def _block(self, block: Block, weight: Any) -> Sequence[str]:
        """The operations of a block, which runs ``weight`` times in each step; the names that it gives back."""
        control = self._define(block)
        part = self.kernel.parts[block.part]
        if part.products or part.elements or part.turned:
            self.steps.parts[block.part] += weight
        for node in control:
            if not node.blocks and self.passing.intersection(node.operands):
                self._touch(node)
            elif node.name == "scf.if":
                self._branches(node, weight)
            elif node.name == "scf.for":
                self._for(node, weight)
            elif node.name == "scf.while":
                self._while(node, weight)
            elif node.name == "tpu.enqueue_dma":
                self._copy(node, weight)
            elif node.name == "memref.load":
                self._load(node)
            elif node.name == "memref.store":
                self._store(node, weight)
            elif node.name in ("scf.yield", "scf.condition"):
                return node.operands
            else:
                for inner in node.blocks:
                    self._block(inner, weight)
        return ()

    def _trip(self, block: Block, weight: Any) -> Sequence[str]:
        """A trip of a loop: as :meth:`_block`."""
        self.fresh = set()
        names = self._block(block, weight)
        self.fresh = set()
        return names

    def _touch(self, node: Node) -> None:
        """A load or store of a buffer of its own: what is read before it is written takes memory."""
        if node.name.endswith("store"):
            if len(node.shapes) > 1 and prod(node.shapes[0][0]) == prod(node.shapes[1][0]):
                self.fresh.add(node.operands[1])
        elif node.result not in self.unread and node.operands[0] not in self.fresh:
            self.passing.discard(node.operands[0])

    def _branches(self, node: Node, weight: Any) -> None:
        condition = self._value(node.operands[0])
        if not isinstance(condition, Chance):
            condition = Chance(1.0, scalars.MET)
        counted = self._counted() if condition.assumed else 0.0
        given: list[tuple[Any, list[Number]]] = []
        for block, share in zip(node.blocks, (condition.share, 1 - condition.share)):
            if share if type(share) is float else np.any(share):
                before = set(self.fresh)
                names = self._block(block, weight * share)
                sure = type(share) is float and share == 1.0 and not condition.assumed
                self.fresh = self.fresh if sure else before
                given.append((share, [self._value(name) for name in names]))
        if condition.assumed and self._counted() > counted:
            self.kernel.assumed.append(condition.assumed)
        if node.result and given:
            for k, number in enumerate(given[0][1]):
                if len(given) > 1 and k < len(given[1][1]):
                    number = scalars.chosen(condition, number, given[1][1][k])
                self._give(node, k, number)

    def _counted(self) -> float:
        return sum(scalars.mean(weight) for weight in self.steps.parts.values())

    def _give(self, node: Node, k: int, number: Number) -> None:
        """The ``k``-th result of an operation with blocks."""
        self.numbers[f"{node.result}#{k}"] = number
        if not k:
            self.numbers[node.result] = number

    def _for(self, node: Node, weight: Any) -> None:
        low, high, step = (self._known(name) for name in node.operands[:3])
        block, carried = node.blocks[0], [self._value(name) for name in node.operands[3:]]
        names = [name for name, _ in block.arguments]
        by_data = low is None or high is None or step is None
        trips: Any = 1
        if not by_data:
            trips = np.maximum(0, -(-(np.asarray(high) - low) // np.maximum(1, step)))
        stores = any(inner.name == "memref.store" for inner in block.all())
        most = int(np.max(trips)) if np.size(trips) else 0
        if by_data or not (block.moves or stores) or most <= 0:
            for name in names:
                self.numbers[name] = UNKNOWN
                self.defined.pop(name, None)
            if by_data and node.operands[0] in self.passed:
                pass  # it goes on where one ended that passed all: a remainder of nothing
            elif by_data and block.moves:
                self.passed.add(node.operands[1])
                self._once_over(block, weight)
            elif most > 0:
                self.kernel.trips_by_data |= by_data
                self._trip(block, weight * trips)
            for k in range(len(carried)):
                self._give(node, k, UNKNOWN)
            return
        outer, before = self.steps, self.trips
        if block.moves:
            self.steps, self.trips = _Steps(), Counter()
        for trip in range(min(most, _MOST_TRIPS)):
            if self.work > _MOST_WORK and trip > 8:
                most = max(most, trip + 1)
                break
            runs = (trip < trips).astype(float) if np.size(trips) > 1 else 1.0
            self.numbers[names[0]] = scalars.plain(low + trip * step)
            for name, number in zip(names[1:], carried):
                self.numbers[name] = number
            carried = [self._value(name) for name in self._trip(block, weight * runs)]
            if block.moves:
                self.begun = self.begun + weight * runs
                self._close()
        else:
            trip = min(most, _MOST_TRIPS)
        share = most / max(1, trip)
        if most > trip:
            self.kernel.assumed.append(f"trips of a loop after its first {trip:,} taken to be like them")
        if block.moves:
            for key, times in self.trips.items():
                before[key] += times * share  # type: ignore[assignment]
            self.steps, self.trips = outer, before
        for k, number in enumerate(carried):
            self._give(node, k, number)

    def _once_over(self, block: Block, weight: Any) -> None:
        """A loop that moves blocks as often as its data says: taken to pass its arrays once, in all steps."""
        outer, before = self.steps, self.trips
        self.steps, self.trips = _Steps(), Counter()
        self._trip(block, weight)
        kinds = {k: self.arguments[len(self.grid) + k - self.sizes_given][1] for k in self.operands.values()}
        arrays = {k: records.memory_of(kinds.get(k, "")) for k, (m, _) in self.steps.moved.items() if m}
        whole = {k: block_bytes(sizes, dtype) / 1e6 for k, (sizes, dtype, _) in arrays.items() if sizes}
        passing = {k: ceil(size / self.steps.moved[k][0]) for k, size in whole.items()}
        trips = max([1, *passing.values()])
        for k, size in whole.items():
            self.steps.moved[k][0] = min(self.steps.moved[k][0], size / trips)
        self.kernel.trips_by_data |= trips <= 1
        if trips > max([1, *self.kernel.passing.values()]):
            self.kernel.passing = passing
        self.begun = self.begun + weight * trips
        self._close()
        for key, times in self.trips.items():
            before[key] += times * trips
        self.steps, self.trips = outer, before

    def _close(self) -> None:
        """Count what was followed as one trip of a loop that is a pipeline of its own."""
        steps = self.steps
        if steps.parts or steps.moved:
            every = max(1, self.kernel.steps)
            runs = max((scalars.mean(weight) for weight in steps.parts.values()), default=1.0 / every) or 1.0 / every
            parts = tuple(
                (number, round(share_of / runs, 4))
                for number, weight in sorted(steps.parts.items())
                if (share_of := scalars.mean(weight))
            )
            times = runs * every
            moved = tuple((k, round(m / times, 6), round(n / times, 4)) for k, (m, n) in sorted(steps.moved.items()))
            self.first += [(parts, moved)] if len(self.first) < _SHOWN else []
            self.trips[parts, moved] += times  # type: ignore[assignment]
        self.steps = _Steps()

    def _while(self, node: Node, weight: Any) -> None:
        """A loop until a condition ends it: as long as the condition is known, else one trip."""
        test, block = node.blocks[0], node.blocks[1]
        carried = [self._value(name) for name in node.operands]
        for trip in range(_MOST_TRIPS):
            for (name, _), number in zip(test.arguments, carried):
                self.numbers[name] = number
            names = self._block(test, weight)
            condition = self._value(names[0]) if names else UNKNOWN
            carried = [self._value(name) for name in names[1:]]
            sure = isinstance(condition, Chance) and np.size(condition.share) == 1 and not condition.assumed
            if sure and isinstance(condition, Chance) and not np.any(condition.share):
                break
            if trip and (not sure or self.work > _MOST_WORK):
                break
            self.kernel.trips_by_data |= not sure and (block.moves or any(n.vector for n in block.all()))
            for (name, _), number in zip(block.arguments, carried):
                self.numbers[name] = number
            carried = [self._value(name) for name in self._trip(block, weight)]
        for k, number in enumerate(carried):
            self._give(node, k, number)

    # Transfers and tables.

    def _copy(self, node: Node, weight: Any) -> None:
        """A transfer of the kernel's own; of a size that data decides it fills its buffer."""
        if not node.moves:
            return
        sides = [shape for shape in node.shapes if not shape[1].startswith("!")]
        extents = [self._extent(name, shape) for name, shape in zip(node.operands, sides)]
        sized = [(sizes, kind) for sizes, kind in extents if all(isinstance(size, int | np.ndarray) for size in sizes)]
        if not sized:
            self.kernel.trips_by_data = True
            return
        sizes, kind = sized[0]
        flat = [float(np.mean(size)) for size in sizes]
        whole = all(size == round(size) for size in flat)
        megabytes = block_bytes([round(size) for size in flat], kind) / 1e6 if whole else 0.0
        runs = scalars.mean(weight) * max(1, self.kernel.steps)
        operand = next((k for name in node.operands[:2] if (k := self._array(name)) is not None), -1)
        self.kernel.copied += megabytes * runs
        total = self.steps.moved[operand]
        total[0] += megabytes * runs
        total[1] += runs

    def _extent(self, name: str, shape: Shaped) -> tuple[list[Any], str]:
        """The sizes of a part of an array; those that its text leaves open from the numbers that it was cut by."""
        node = self.defined.get(name)
        sizes: list[Any] = list(shape[0])
        if -1 not in sizes or node is None:
            return [None if size == -1 else size for size in sizes], shape[1]
        if node.name == "tpu.memref_slice" and (match := _SEGMENTS.search(node.rest)):
            _, starts, given = [*records.integers(match[1]), 0, 0][:3]
            dynamic = iter(node.operands[1 + starts : 1 + starts + given])
            most = node.shapes[0][0] if records.memory_of(node.signature)[2] == "vmem" else (-1,) * len(sizes)
            for d, (size, held) in enumerate(zip(sizes, most)):
                if size == -1 and (known := self._known(next(dynamic, ""))) is None:  # no more than its buffer holds
                    sizes[d] = held if held >= 0 else None
                elif size == -1:
                    sizes[d] = known
            return sizes, shape[1]
        if not node.operands or not node.shapes:
            return [None], shape[1]
        inner, kind = self._extent(node.operands[0], node.shapes[0])
        return inner, kind

    def _array(self, name: str) -> int | None:
        """The number, among operands and results, of the array that a reference is a part of."""
        for _ in range(16):
            if name in self.operands:
                return self.operands[name]
            node = self.defined.get(name)
            if node is None or not node.operands or not node.name.startswith(("tpu.memref", "memref.")):
                return None
            name = node.operands[0]
        return None

    def _load(self, node: Node) -> None:
        self.numbers[node.result] = self._loaded(node.operands[0], [self._value(name) for name in node.operands[1:]])

    def _loaded(self, table: str, indices: Sequence[Number]) -> Number:
        """A value of a table; where nothing says its values, its place stands for it, as if no two were alike."""
        sizes = self.tables.get(table, ())
        if len(sizes) != len(indices) or not all(isinstance(index, int | np.ndarray) for index in indices):
            return Data(sizes)
        place: Any = 0
        for size, index in zip(sizes, indices):
            place = place * size + index
        if type(place) is int and place in self.cells[table]:
            return self.cells[table][place]
        if table in self.contents:
            return scalars.plain(self.contents[table][np.clip(place, 0, prod(sizes) - 1)])
        if sizes == (1,) and self.contents:
            return self.longest if table in self.ranges.lengths else 0
        if (blocks := self.ranges.blocks.get(table)) and table not in self.ranges.lengths:
            count = prod(sizes)
            if count <= _LARGEST and (other := self._beside(table, count - blocks + 1)):
                self.contents |= scalars.merged(table, blocks, other, count - blocks + 1)
                return scalars.plain(self.contents[table][np.clip(place, 0, count - 1)])
            return scalars.plain(np.clip(place, 0, count - 1) * min(blocks, count) // max(1, count))
        return Data(sizes, place)

    def _beside(self, table: str, blocks: int) -> str:
        """A table as long as this one that passes over so many blocks: groups and tiles of rows, one new each step."""
        same = (name for name, sizes in self.tables.items() if name != table and sizes == self.tables[table])
        return next((name for name in same if self.ranges.blocks.get(name) == blocks > 1), "")

    def _store(self, node: Node, weight: Any) -> None:
        """A number that the kernel keeps in scalar memory, where it is sure which and where."""
        value, table = node.operands[:2]
        place = [self._value(name) for name in node.operands[2:]]
        sizes = self.tables.get(table, ())
        if len(sizes) != len(place) or not all(type(index) is int for index in place):
            self.cells[table].clear()
            return
        at = 0
        for size, index in zip(sizes, place):
            at = at * size + cast(int, index)
        sure = np.size(weight) == 1 and float(np.max(weight)) >= 1.0
        self.cells[table][at] = self._value(value) if sure else UNKNOWN

    # Numbers.

    def _known(self, name: str) -> Any:
        number = scalars.as_integer(self._value(name))
        return number if isinstance(number, int | np.ndarray) else None

    def _value(self, name: str) -> Number:
        """A number, worked out when it is first asked for, and those that it is made of before it."""
        numbers, waiting = self.numbers, [name]
        while waiting:
            name = waiting[-1]
            if name in numbers:
                waiting.pop()
                continue
            node = self.defined.get(name)
            if node is None or node.blocks or node.vector or node.name == "memref.load":
                numbers[name] = UNKNOWN
            elif missing := [operand for operand in node.operands if operand not in numbers]:
                waiting += missing
            else:
                numbers[name] = self._number(node)
        return numbers[name]

    def _number(self, node: Node) -> Number:
        name = node.name
        if name in scalars.SAME:
            return self.numbers[node.operands[0]]
        if name == "arith.select":
            condition, yes, no = (self.numbers[operand] for operand in node.operands)
            return scalars.chosen(condition, yes, no)
        given = [self.numbers[operand] for operand in node.operands]
        if name == "arith.cmpi":
            return scalars.compared(node.predicate, given)
        if name in _LOGIC and all(isinstance(one, Chance) for one in given):
            return scalars.combined(name, given)
        if name in scalars.ARITHMETIC:
            a, b = scalars.as_integer(given[0]), scalars.as_integer(given[1])
            if isinstance(a, int | np.ndarray) and isinstance(b, int | np.ndarray):
                number: int | Array = scalars.ARITHMETIC[name](a, b)
                return UNKNOWN if type(number) is int and abs(number) >> 62 else number
        return next((one for one in given if isinstance(one, Data)), UNKNOWN)
