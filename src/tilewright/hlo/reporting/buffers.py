"""Arrays that have a buffer of their own, and how many bytes live at once.

The model of the peaks, which on the TPU compiler's modules gives what lives at once in its own buffer assignment.
Operations run one after the other: a scheduled dump's in its order, StableHLO's as the kernels that its target's
compiler makes of them (``semantics/fusions.py``), in the order of the text. Every operation writes a new buffer, born
when it runs and dead after its last reader, but for these: bitcasts, tuples, their elements, barriers and the done half
of an asynchronous pair are other names, which read nothing; what the dump lists as shared (``aliasing_operands``,
``output_to_operand_aliasing``) shares it, and where it lists nothing a dynamic-update-slice or scatter writes in place
of its first operand if nothing reads that later; a result for which an argument is given away is written over that
argument; what a loop carries is updated in place, and what a called computation returns is its caller's. Inside a
fusion nothing has a buffer. While a computation is called, its own buffers lie on top of its caller's. Arguments and
results of the program have memory throughout. Memory spaces are counted apart. What the allocator loses between
temporaries in main memory is added to its peak (``packing.py``), twice where the compiler's own memory analysis did so.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import CONTROL, RENAMES, WRITES_IN_PLACE
from tilewright.hlo.program import Computation, Operation, Program, aliases, joined, written_over_arguments
from tilewright.hlo.reading.hlo_scan import split_top
from tilewright.hlo.reporting.packing import Span, at_once, moments, of_older_compiler, room
from tilewright.hlo.reporting.types import PaddedTensor, Peak
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.fusions import in_kernels
from tilewright.hlo.semantics.partitioning import of_one_device
from tilewright.hlo.semantics.predicting import in_normal_form
from tilewright.hlo.semantics.runs import callers_first
from tilewright.layout import TensorLayout
from tilewright.targets import Target
from tilewright.targets import target as find_target

_SAME = RENAMES - {"tuple", "get-tuple-element", "return"} | {"while", "add-dependency"}
_CALLING = CONTROL | {"async-start", "call-start"}
_NO_BUFFER = RENAMES | CONTROL | {"after-all", "send", "send-done"}
_NAMES = frozenset({"tuple", "get-tuple-element", "bitcast"})
"""Operations that are other names of what is there, and read nothing."""
_LARGEST = 10
_SPACES = {0: "hbm", 1: "vmem", 5: "host"}
_BACKWARD = "transpose("
"""What JAX writes into the names of operations that a gradient runs backwards."""
_ARGUMENTS = {
    "moments": re.compile(r"\b(mu|nu|m|v|momentum|trace|opt_state|optimizer|exp_avg\w*)\b", re.IGNORECASE),
    "caches": re.compile(r"cache|\bkv\b|kv_|pages", re.IGNORECASE),
}
"""Words in the names of arguments that say what they are."""

_Value = list[set[int]]
_ALIASING = re.compile(r'"aliasing_operands":\{"lists":\[((?:\{"indices":\[[^\]]*\]\},?)*)\]')


@dataclass
class _Buffer:
    op: Operation
    name: str
    layout: TensorLayout
    born: int
    dead: int
    result: bool = False


@dataclass
class _Array:
    """One array of a buffer, from the operation that writes it to its last reader: what an allocator counts as live.

    ``called``: the last reader calls a computation, which takes it over when it begins.
    """

    bytes: int
    born: int
    dead: int
    number: int | None = None
    called: bool = False


@dataclass
class _Inside:
    """What a called computation needs on top of its caller, by memory space."""

    peaks: dict[int, Peak] = field(default_factory=dict)
    free: set[str] = field(default_factory=set)
    held: tuple[LiveBuffer, ...] = ()
    least: int = 0


def buffers(context: Context) -> tuple[tuple[PaddedTensor, ...], tuple[Peak, ...]]:
    """The arrays with a buffer, in the program's order, and the peak of each memory space, main memory first."""
    program = context.program
    unfused = [computation for computation in program.computations if computation.name not in program.fused]
    return tuple(tensor for computation in unfused for tensor in _tensors(context, computation)), peaks(context)


def _tensors(context: Context, computation: Computation) -> Iterator[PaddedTensor]:
    """The arrays that a computation's operations write, but for other names of buffers."""
    for op in computation.operations:
        kind = plain_opcode(op.opcode)
        if kind in _NO_BUFFER or kind.endswith("-start") or (kind == "parameter" and not computation.entry):
            continue
        try:
            layouts = context.layouts(op.shape)
        except TilewrightError as error:
            raise context.at(op, error) from None
        several = op.shape.startswith("(")
        for number, layout in enumerate(layouts):
            if layout.rank:
                name = f"{op.name}{{{number}}}" if several else op.name
                yield _tensor(context, computation.name, op, name, layout)


def _tensor(context: Context, computation: str, op: Operation, name: str, layout: TensorLayout) -> PaddedTensor:
    return PaddedTensor(
        *(name, op.opcode, context.source(computation, op), str(layout)),
        *(layout.data_bytes, layout.size_bytes, context.scope(computation).path, layout.memory_space),
    )


def peaks(context: Context) -> tuple[Peak, ...]:
    """One peak for each memory space that holds anything, main memory first."""
    context = _of_kernels(context)
    entry, lost, again = _swept(context)
    spaces = entry.inside().peaks
    if 0 in spaces:
        between = lost + again
        spaces[0] = replace(spaces[0], padded_bytes=spaces[0].padded_bytes + between, lost_bytes=between)
    return tuple(spaces[space] for space in sorted(spaces))


def _swept(context: Context) -> tuple[_Sweep, int, int]:
    """The entry's buffers, on top of what it calls; the bytes lost between temporaries; those counted again."""
    program, order = context.program, callers_first(context.program)
    inside: dict[str, _Inside] = {}
    sweeps: dict[str, _Sweep] = {}
    for computation in reversed(order):
        if computation.name not in program.fused:
            sweep = sweeps[computation.name] = _Sweep(context, computation, inside).fill()
            if not computation.entry:
                inside[computation.name] = sweep.inside()
    entry = sweeps[program.entry.name]
    if context.chip is None or not context.chip.compiler_normalizes:
        return entry, 0, 0
    buffers, arrays = list[Span](), list[Span]()
    for name, (at, begins) in moments(order, program.entry.name, sweeps.__contains__).items():
        sweep = sweeps[name]
        own = (buffer for buffer in sweep.buffers if sweep.is_temporary(buffer))
        buffers += [(begins[b.born], at[b.dead], b.layout.size_bytes) for b in own]
        arrays += [(at[a.born], begins[a.dead] if a.called else at[a.dead], a.bytes) for a in sweep.arrays]
    most = max(entry.live().get(0, ()), default=0) - entry.throughout
    taken = max(room(buffers), most)
    again = taken - min(at_once(arrays), taken) if of_older_compiler(program) else 0
    return entry, taken - most, again


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """A buffer in main memory, from operation number ``born`` to ``dead`` of its computation.

    ``kind``: parameters, moments, caches, results, gradients, saved activations or workspace, as far as names and
    shapes say; ``padding``: the part of its ``bytes`` that holds no element; ``source``: the user's line.
    """

    name: str
    op: str
    layout: str
    bytes: int
    born: int
    dead: int
    padding: int = 0
    source: str = ""
    kind: str = "workspace"


@dataclass(frozen=True)
class Lifetimes:
    """One device's memory over time: main memory's ``live`` bytes during every operation of the entry, its buffers.

    ==================  ========================================================================================
    ``peak``            the most bytes of main memory at once
    ``at``              the number of the operation during which that is
    ``arguments``       bytes of the arguments, padding included; ``outputs``: of the results
    ``aliased``         bytes of results that are written over arguments
    ``temporaries``     what the peak has beside them
    ``lost``            bytes of the peak that the allocator loses between temporaries
    ``again``           bytes of the peak that only the memory analysis of older compilers counts: nothing needs them
    ``least``           bytes that no order of the operations can do without
    ``at_peak``         the buffers that live at the peak, those of called computations too, largest first
    ``by_kind``         kind -> bytes at the peak, padding apart, most first; together they are the peak
    ``spaces``          the peak of each memory space: ``hbm``, ``vmem``, ``host``
    ==================  ========================================================================================
    """

    context: Context = field(repr=False)
    live: tuple[int, ...]
    buffers: tuple[LiveBuffer, ...]
    at_peak: tuple[LiveBuffer, ...] = field(repr=False)
    spaces: Mapping[str, int]
    least: int
    aliased: int
    lost: int = 0
    again: int = 0

    @property
    def arguments(self) -> int:
        """Bytes of the arguments."""
        return sum(buffer.bytes for buffer in self.buffers if buffer.op == "parameter")

    @property
    def outputs(self) -> int:
        """Bytes of the results, those written over arguments included."""
        return self.aliased + sum(buffer.bytes for buffer in self.buffers if buffer.kind == "results")

    @property
    def temporaries(self) -> int:
        """Bytes at the peak that are neither of arguments nor of results."""
        return self.peak - self.arguments - self.outputs + self.aliased

    @property
    def by_kind(self) -> dict[str, int]:
        """Kind -> the bytes at the peak that hold elements, most first, ``padding`` and ``fragmentation``."""
        found: Counter[str] = Counter()
        for buffer in self.at_peak:
            found[buffer.kind] += buffer.bytes - buffer.padding
            found["padding"] += buffer.padding
        found["fragmentation"] += self.lost + self.again
        return {kind: count for kind, count in found.most_common() if count}

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The entry's operations, which ``live`` and the buffers number."""
        return self.context.program.entry.operations

    @property
    def peak(self) -> int:
        """The most bytes at once, with what the allocator loses."""
        return max(self.live, default=0) + self.lost + self.again

    @property
    def at(self) -> int:
        """The number of the operation during which that is."""
        return _most_at(self.live, self.operations)

    def donated(self) -> Lifetimes | None:
        """The same with every argument given away that a result of its shape can be written over; None for none."""
        program = self.context.program
        arguments = [op.shape for op in program.entry.operations if op.opcode == "parameter"]
        donors = ", ".join(f"({number}, {{}})" for number in range(len(arguments)))
        given = replace(program, attributes={**program.attributes, "buffer_donor": donors})
        if program.kind != "stablehlo" or written_over_arguments(given) == written_over_arguments(program):
            return None
        return _lifetimes(Context(given, self.context.chip))

    def narrowed(self, kind: str = "moments") -> Lifetimes | None:
        """The same with the arguments of a kind, and what is written in their place, in bfloat16; None without any."""
        program = self.context.program
        wide = {b.name for b in self.buffers if b.kind == kind and b.op == "parameter" and b.layout.startswith("f32")}
        if not wide or program.kind != "stablehlo":
            return None
        results = set(program.entry.root.operands) if program.entry.root else set()
        shapes = {op.name: op.shape for op in program.entry.operations}
        new = {op.name for op in program.entry.operations for name in wide & {*op.operands} if shapes[name] == op.shape}
        narrow = wide | (new & results)

        def narrowed(op: Operation) -> Operation:
            told = zip(op.operands, op.operand_shapes)
            operands = tuple(shape.replace("f32", "bf16", 1) if name in narrow else shape for name, shape in told)
            shape = op.shape.replace("f32", "bf16", 1) if op.name in narrow else op.shape
            return replace(op, shape=shape, operand_shapes=operands)

        return self._with(tuple(narrowed(op) for op in program.entry.operations))

    def _with(self, operations: tuple[Operation, ...]) -> Lifetimes:
        program = self.context.program
        computations = tuple(replace(c, operations=operations) if c.entry else c for c in program.computations)
        return _lifetimes(Context(replace(program, computations=computations), self.context.chip))

    def recomputed(self, name: str, offloaded: bool = False) -> Lifetimes | None:
        """The same with buffer ``name`` given up before the peak and computed again for its first reader behind it.

        What it is computed of then lives until there; ``offloaded``: it comes back from the host instead. None where
        nothing reads it behind the peak, where something reads it there, and for what is not one plain operation.
        """
        at, operations = self.at, self.operations
        own = next((op for op in operations if op.name == name), None)
        uses = [k for k, op in enumerate(operations) if name in op.operands]
        later = [k for k in uses if k > at]
        if own is None or own.calls or own.opcode == "parameter" or not later or at in uses or operations[at] is own:
            return None
        again = replace(own, name=f"{name}.again")
        if offloaded:
            again = replace(again, opcode="copy", operands=(), operand_shapes=())

        def renamed(op: Operation) -> Operation:
            return replace(op, operands=tuple(again.name if each == name else each for each in op.operands))

        first = later[0]
        return self._with((*operations[:first], again, *(renamed(op) for op in operations[first:])))


def lifetimes(program: Program, target: Target | str) -> Lifetimes:
    """What of ``program`` lives in the memory of one device of ``target`` during every operation, and the peaks.

    A dump's figures are counted: they are those of the compiler's own memory analysis. StableHLO's are predicted:
    layouts, fusions and order. Raises UnsupportedError for a target without a rule for whole programs.

    >>> from tilewright.hlo import load
    >>> text = '''func.func @main(%a: tensor<4096x4096xbf16>, %b: tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16> {
    ...   %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    ...     : (tensor<4096x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16>
    ...   %1 = stablehlo.tanh %0 : tensor<4096x4096xbf16>
    ...   %2 = stablehlo.dot_general %1, %1, contracting_dims = [1] x [0]
    ...     : (tensor<4096x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16>
    ...   return %2 : tensor<4096x4096xbf16>
    ... }'''
    >>> lives = lifetimes(load(text), "tpu-v6e")
    >>> [size >> 20 for size in (lives.peak, lives.arguments, lives.outputs, lives.temporaries)]
    [128, 64, 32, 32]
    >>> lives.by_kind["workspace"] >> 20, lives.spaces["vmem"]
    (32, 0)
    """
    chip = find_target(target) if isinstance(target, str) else target
    program = of_one_device(program)
    if program.kind == "stablehlo" and chip.compiler_normalizes:
        program = in_normal_form(program).program
    return _lifetimes(_of_kernels(Context(program, chip)))


def _lifetimes(context: Context) -> Lifetimes:
    entry, lost, again = _swept(context)
    return entry.lifetimes(lost, again)


def _of_kernels(context: Context) -> Context:
    """The program as kernels, where the target's compiler makes them."""
    if context.program.kind != "stablehlo" or context.chip is None or not context.chip.compiler_normalizes:
        return context
    return Context(in_kernels(context), context.chip)


def _most_at(counts: Sequence[int], operations: Sequence[Operation]) -> int:
    """The first operation during which most lives, one that runs if there is one."""
    most = max(counts, default=0)
    first = [at for at, count in enumerate(counts) if count == most]
    return next((at for at in first if operations[at].opcode not in ("parameter", "constant")), (first or [0])[0])


class _Sweep:
    """One pass over a computation's operations that finds its buffers; ``inside``: the needs of what it calls."""

    def __init__(self, context: Context, computation: Computation, inside: dict[str, _Inside]) -> None:
        self.context, self.computation, self.known = context, computation, inside
        self.scope = context.scope(computation.name)
        self.buffers: list[_Buffer] = []
        self.values: dict[str, _Value] = {}
        self.last_named: dict[str, int] = {}
        self.last_used: dict[str, int] = {}
        self.free: set[str] = set()
        self.least = self.aliased = 0
        self.needs: list[tuple[set[int], int]] = []
        self.shapes: set[str] = set()
        self.arrays: list[_Array] = []
        self.newest: dict[int, _Array | None] = {}

    def fill(self) -> _Sweep:
        """Find the buffers: each with the numbers of the operations at which it is born and dies."""
        operations = self.computation.operations
        for at, op in enumerate(operations):
            for name in op.operands:
                self.last_named[self._base(name)] = self.last_used[name] = at
        for at, op in enumerate(operations):
            try:
                self._run(at, op)
            except TilewrightError as error:
                raise self.context.at(op, error) from None
        self._keep_results(len(operations) - 1)
        for numbers, inner in self.needs:
            own = (self.buffers[number] for number in numbers)
            self.least = max(self.least, inner + sum(b.layout.size_bytes for b in own if self.is_temporary(b)))
        self.buffers = [buffer for buffer in self.buffers if buffer.born <= buffer.dead]
        return self

    @property
    def throughout(self) -> int:
        """Bytes of arguments and results in main memory."""
        held = (b.layout.size_bytes for b in self.buffers if not b.layout.memory_space and not self.is_temporary(b))
        return sum(held)

    def is_temporary(self, buffer: _Buffer) -> bool:
        """Whether a buffer is this computation's own, in main memory, and neither an argument nor a result."""
        own = buffer.op.opcode != "parameter" and not buffer.result and buffer.born <= buffer.dead
        return own and not buffer.layout.memory_space

    def live(self) -> dict[int, list[int]]:
        """Memory space -> the bytes in it during every operation, those of what it calls on top."""
        operations = self.computation.operations
        changes: dict[int, list[int]] = defaultdict(lambda: [0] * (len(operations) + 1))
        for buffer in self.buffers:
            of_space = changes[buffer.layout.memory_space]
            of_space[buffer.born] += buffer.layout.size_bytes
            of_space[buffer.dead + 1] -= buffer.layout.size_bytes
        live = {space: list(accumulate(of_space))[:-1] for space, of_space in changes.items()}
        for at, op in enumerate(operations):
            inner: dict[int, int] = {}
            for callee in self._callees(op):
                for space, peak in callee.peaks.items():
                    inner[space] = max(inner.get(space, 0), peak.padded_bytes)
            for space, count in inner.items():
                live.setdefault(space, [0] * len(operations))[at] += count
        return live

    def inside(self) -> _Inside:
        """The peaks of the computation, the first of equal ones, and what it reads of others."""
        most = {space: (max(counts), counts) for space, counts in self.live().items() if any(counts)}
        operations = self.computation.operations
        peaks = {space: self._peak(space, count, _most_at(of, operations)) for space, (count, of) in most.items()}
        held = self._held_at(_most_at(most[0][1], operations)) if 0 in most else ()
        return _Inside(peaks, self.free, held, self.least)

    def lifetimes(self, lost: int, again: int) -> Lifetimes:
        """The memory of the program whose entry this is, with what its allocator loses."""
        live = self.live()
        counts = tuple(live.get(0, [0] * len(self.computation.operations)))
        spaces = {"hbm": 0, "vmem": 0, "host": 0}
        spaces |= {
            _SPACES.get(space, f"S({space})"): max(of_space) for space, of_space in live.items() if any(of_space)
        }
        spaces["hbm"] += lost + again
        held = self._held_at(_most_at(counts, self.computation.operations)) if counts else ()
        buffers = tuple(self._live(b) for b in self.buffers if not b.layout.memory_space)
        least = self.throughout + self.least
        return Lifetimes(self.context, counts, buffers, held, spaces, least, self.aliased, lost, again)

    def _held_at(self, at: int) -> tuple[LiveBuffer, ...]:
        """The buffers in main memory during an operation, those of what it calls on top, largest first."""
        own = [self._live(b, near=True) for b in self.buffers if b.born <= at <= b.dead and not b.layout.memory_space]
        inner = [callee for callee in self._callees(self.computation.operations[at]) if 0 in callee.peaks]
        if inner:
            own += max(inner, key=lambda callee: callee.peaks[0].padded_bytes).held
        return tuple(sorted(own, key=lambda buffer: -buffer.bytes))

    def _live(self, buffer: _Buffer, near: bool = False) -> LiveBuffer:
        """The buffer as others see it; ``near``: with the line of what is beside it where its own has none."""
        layout, op = buffer.layout, buffer.op
        return LiveBuffer(
            *(buffer.name, op.opcode, str(layout), layout.size_bytes, buffer.born, buffer.dead),
            layout.size_bytes - layout.data_bytes,
            self.context.source(self.computation.name, op) if near else str(op.source or ""),
            self._kind(buffer),
        )

    def _kind(self, buffer: _Buffer) -> str:
        """What a buffer is for, by its operation's name in the framework, its shape and its readers."""
        op = buffer.op
        if op.opcode == "parameter":
            kinds = (kind for kind, words in _ARGUMENTS.items() if words.search(op.op_name or op.name))
            return next(kinds, "parameters")
        if buffer.result:
            return "results"
        backward = _BACKWARD in op.op_name
        if backward and str(buffer.layout.shape) in self.shapes:
            return "gradients"
        last = self.computation.operations[buffer.dead]
        return "saved activations" if not backward and _BACKWARD in last.op_name else "workspace"

    def _run(self, at: int, op: Operation) -> None:
        operands = [self._value(name) for name in op.operands]
        # A tuple of n elements is named n times: only the last time says when they die.
        last = [value for name, value in zip(op.operands, operands, strict=True) if self.last_used[name] == at]
        if plain_opcode(op.opcode) in _NAMES:
            last = []
        used = [ids for value in last for ids in value] + self._captured(op)
        for ids in used:
            for number in ids:
                self.buffers[number].dead = max(self.buffers[number].dead, at)
                if (array := self.newest.get(number)) is not None:
                    array.dead, array.called = at, plain_opcode(op.opcode) in CONTROL
        if op.name:
            self.values[op.name] = self._result(at, op, operands)
            self._written(at, op)
            needed = set().union(*used, *self.values[op.name])
            inner = max((callee.least for callee in self._callees(op)), default=0)
            if needed or inner:
                self.needs.append((needed, inner))

    def _written(self, at: int, op: Operation) -> None:
        """Note the arrays that an operation writes; what a loop or branch gives is none."""
        kind, numbers = plain_opcode(op.opcode), set().union(*self.values[op.name])
        if kind in CONTROL:
            self.newest.update(dict.fromkeys(numbers))
            return
        named = kind in _NO_BUFFER | _SAME or kind.endswith(("-start", "-update", "-done"))
        for number in [number for number in numbers if not named or number not in self.newest]:
            array = _Array(self.buffers[number].layout.size_bytes, at, at, number)
            self.newest[number] = array
            self.arrays.append(array)
        if not numbers and not named and kind not in ("parameter", "constant"):  # into what the computation was given
            layouts = [layout for layout in self.context.layouts(op.shape) if not layout.memory_space]
            last = self.last_used.get(op.name, at)
            self.arrays += [_Array(layout.size_bytes, at, last) for layout in layouts]

    def _captured(self, op: Operation) -> list[set[int]]:
        """Values of this computation that the regions of an operation read."""
        captured: list[set[int]] = []
        for callee in op.calls if self.context.program.kind == "stablehlo" else ():
            for name in self.known[callee].free if callee in self.known and "/" in callee else ():
                captured += self._value(name)
        return captured

    def _base(self, name: str) -> str:
        """The operation that makes a value: StableHLO's ``%1#0`` is its first result; HLO names each element."""
        return name if self.context.program.kind == "hlo" else name.partition("#")[0]

    def _value(self, name: str) -> _Value:
        base = self._base(name)
        index = name[len(base) + 1 :]
        value = self.values.get(base)
        if value is None:
            self.free.add(name)
            return []
        if index.isdecimal() and int(index) < len(value):
            return [value[int(index)]]
        return value

    def _result(self, at: int, op: Operation, operands: list[_Value]) -> _Value:
        kind = plain_opcode(op.opcode)
        if kind == "parameter" and not self.computation.entry:
            return []
        if kind == "while" and self.context.program.kind == "stablehlo":
            return self._carried(at, op, operands)
        if kind == "tuple" or (kind in _SAME and len(operands) > 1):
            return [set().union(*value) for value in operands]
        if kind in _SAME:
            return operands[0] if operands else []
        if kind == "get-tuple-element":
            return self._element(op, operands)
        if kind.endswith("-done") and operands:
            return operands[0][:1]
        if kind.endswith("-update") and operands and (len(operands) == 1 or operands[0][:1] != [set()]):
            return [*operands[0], *self._held(operands[1:])]
        if (shared := self._in_place(at, op, kind, operands)) is not None:
            return shared
        return self._new(at, op, kind, operands)

    def _carried(self, at: int, op: Operation, operands: list[_Value]) -> _Value:
        """What a loop carries, in its operands' buffers; an argument that it changes is copied first.

        (The compiler's own copies stand in a dump.) One that the program gives away is changed where it is.
        """
        body = self.context.program.by_name[op.calls[-1]] if op.calls else None
        given = [inner.name for inner in body.operations if inner.opcode == "parameter"] if body else []
        left = body.root.operands if body and body.root else ()
        carried: _Value = []
        taken = set[int]()
        for number, value in enumerate(operands):
            ids = set().union(*value)
            changed = number < len(left) and number < len(given) and left[number] != given[number]
            pinned = any(self.buffers[i].op.opcode == "parameter" for i in ids)
            again = bool(ids & taken)  # zeros that several of what a loop fills begin with
            if changed and (again or (pinned and not written_over_arguments(self.context.program))):
                layouts = self.context.layouts(op.operand_shapes[number])
                ids = {self._born(at, op, f"{op.name}{{{number}}}", layout) for layout in layouts}
            taken |= ids if changed else set()
            carried.append(ids)
        return carried

    def _element(self, op: Operation, operands: list[_Value]) -> _Value:
        index = next(iter(op.integers("index")), 0)
        if not operands or not operands[0]:
            return []
        return [operands[0][index] if 0 <= index < len(operands[0]) else set().union(*operands[0])]

    def _in_place(self, at: int, op: Operation, kind: str, operands: list[_Value]) -> _Value | None:
        """The first operand's buffers, where the operation writes into them and nothing reads them later."""
        if (told := _ALIASING.search(op.attributes.get("backend_config", ""))) is not None:
            return self._told(at, op, told[1], operands)
        number: int | None = 0 if kind in WRITES_IN_PLACE else None
        started = kind == "async-start"
        if (kind == "fusion" or started) and (body := self.context.program.body(op)):
            number, _ = self.context.demand.updates(body).get(0, (None, ()))
        if number is None or number >= len(operands) or (op.shape.startswith("(") and not started):
            return None
        later = self.last_named.get(self._base(op.operands[number]), at) > at
        pinned = any(self.buffers[i].op.opcode == "parameter" for ids in operands[number] for i in ids)
        if later or pinned:
            return None
        return [set().union(*operands[number]), *self._held(operands)] if started else operands[number]

    def _told(self, at: int, op: Operation, lists: str, operands: list[_Value]) -> _Value | None:
        """By the compiler's own list of what shares a buffer: places of operands, then of results."""
        over = {}
        for indices in re.findall(r'"indices":\[([^\]]*)\]', lists):
            places = [int(p.strip('"')) for p in indices.split(",")]
            sources = [p for p in places if p < len(operands)]
            for p in places:
                if p >= len(operands) and sources:
                    over[p - len(operands)] = set().union(*operands[sources[0]])
        return self._new(at, op, plain_opcode(op.opcode), operands, over)

    def _new(
        self, at: int, op: Operation, kind: str, operands: list[_Value], told: dict[int, set[int]] | None = None
    ) -> _Value:
        shapes = split_top(op.shape[1:-1]) if op.shape.startswith("(") else [op.shape]
        elements = [self.context.layouts(shape) for shape in shapes]
        started = kind.endswith(("-start", "-update"))
        if started and op.shape.startswith("("):  # ((operands), result, ...), but copy-start has (result, operand, ...)
            place = 0 if kind == "copy-start" else 1
            elements = elements[place : place + 1]
        value: _Value = []
        over = _written_over(op, operands) | (told or {})
        for number, layouts in enumerate(elements):
            name = f"{op.name}{{{number}}}" if len(elements) > 1 else op.name
            own = over.get(number)
            value.append({self._born(at, op, name, layout) for layout in layouts} if own is None else own)
        return [*value, *self._held(operands)] if started else value

    def _held(self, operands: list[_Value]) -> _Value:
        """What lives until a started operation is done: all it reads."""
        return [set().union(*(ids for operand in operands for ids in operand))]

    def _born(self, at: int, op: Operation, name: str, layout: TensorLayout) -> int:
        argument = op.opcode == "parameter"
        if argument:
            self.shapes.add(str(layout.shape))
        last = len(self.computation.operations) - 1
        self.buffers.append(_Buffer(op, name, layout, 0 if argument else at, last if argument else at))
        return len(self.buffers) - 1

    def _keep_results(self, last: int) -> None:
        """Give the entry's results memory from its first operation to its ``last``.

        Those that belong to someone else are dropped (dead before born): another computation's results are its
        caller's, and a result that is written over an argument lives in the argument's buffer.
        """
        root = self.computation.root
        if root is None:
            return
        names = root.operands if root.opcode == "return" else (root.name,)
        results = [ids for name in names for ids in self._value(name)]
        over = written_over_arguments(self.context.program) if self.computation.entry else ()
        predicted = self.context.program.kind == "stablehlo"  # the compiler's own copies stand in a dump
        kept = {number for ids in results for number in ids}
        other = {n for n, b in enumerate(self.buffers) if b.op.opcode == "parameter" or b.layout.memory_space}
        gone = other | kept if self.computation.entry else other
        for number in kept:
            if (array := self.newest.get(number)) is not None:
                array.dead = last
        self.arrays = [array for array in self.arrays if array.number not in gone]
        for element, ids in enumerate(results):
            for number in ids:
                buffer = self.buffers[number]
                if self.computation.entry and element in over:
                    self.aliased += buffer.layout.size_bytes
                if not self.computation.entry or (element in over and buffer.op.opcode != "parameter"):
                    buffer.born, buffer.dead = 1, 0
                elif predicted and element not in over and (buffer.result or buffer.op.opcode == "parameter"):
                    copy = replace(buffer, name=f"{buffer.name}.copy", op=root, born=0, dead=last, result=True)
                    self.buffers.append(copy)  # every result has memory of its own
                elif buffer.born <= buffer.dead:
                    buffer.born, buffer.dead, buffer.result = 0, last, True

    def _callees(self, op: Operation) -> list[_Inside]:
        if plain_opcode(op.opcode) not in _CALLING:
            return []
        return [self.known[name] for name in op.calls if name in self.known]

    def _peak(self, space: int, total: int, at: int) -> Peak:
        op = self.computation.operations[at]
        held = [b for b in self.buffers if b.born <= at <= b.dead and b.layout.memory_space == space]
        tensors = [
            _tensor(self.context, self.computation.name, buffer.op, buffer.name, buffer.layout) for buffer in held
        ]
        logical = sum(tensor.logical_bytes for tensor in tensors)
        inner = [callee.peaks[space] for callee in self._callees(op) if space in callee.peaks]
        name, path = op.name or op.opcode, self.scope.path
        if inner:
            worst = max(inner, key=lambda peak: peak.padded_bytes)
            name, path, logical = worst.at, worst.path, logical + worst.logical_bytes
            tensors += worst.tensors
        tensors = joined(tensors, ("op", "source", "layout"), ("logical_bytes", "padded_bytes"))
        largest = sorted(tensors, key=lambda tensor: -tensor.padded_bytes)[:_LARGEST]
        return Peak(space, total, logical, name, path, tuple(largest))


def _written_over(op: Operation, operands: list[_Value]) -> dict[int, set[int]]:
    """Element of the result -> the buffers of the operand that the operation says it is written over."""
    over: dict[int, set[int]] = {}
    for element, number, inside in aliases(op.attributes.get("output_to_operand_aliasing", "")):
        if number < len(operands):
            value = operands[number]
            whole = inside is None or inside >= len(value)
            over[element or 0] = set().union(*value) if whole else value[inside or 0]
    return over
