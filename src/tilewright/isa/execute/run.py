"""Running: one instruction of a processing element, all of them in turn, and what a run leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import UsageError, check_known
from tilewright.isa.chip.segments import Segment, TensorMemory
from tilewright.isa.chip.state import Pe, Shown, new_chip, wrap
from tilewright.isa.execute.blocks import BlockState, encoded, run_block
from tilewright.isa.execute.memory import MEMORY_HANDLERS, SEGMENT_HANDLERS
from tilewright.isa.execute.operands import Handler
from tilewright.isa.execute.scalar import CONTROL_HANDLERS, SCALAR_HANDLERS
from tilewright.isa.execute.tensor import TENSOR_HANDLERS
from tilewright.isa.execute.vector import VECTOR_HANDLERS
from tilewright.isa.language.assemble import program_of
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.counts import Counts, Moved, Traffic, energy, math_cycles_at_least
from tilewright.isa.language.errors import Array, ErrorRecord, MatrixUnitError
from tilewright.isa.language.program import MachineProgram
from tilewright.trace import Event, Slice, Track

HANDLERS: dict[str, Handler] = {
    **SCALAR_HANDLERS,
    **CONTROL_HANDLERS,
    **SEGMENT_HANDLERS,
    **MEMORY_HANDLERS,
    **TENSOR_HANDLERS,
    **VECTOR_HANDLERS,
}


@dataclass(eq=False, repr=False)
class RunResult(Shown):
    """What a run left behind, on one processing element.

    ==================  ====================================================================================
    ``registers``       int32[threads, registers], raw words (``.view(np.float32)`` for float products)
    ``errors``          the sticky records, in order; empty when all went well
    ``counts``          work and traffic of the ``mm`` instructions; ``traffic``: what moved besides
    ``moved``           every byte through L1, L2 and device memory by operand; ``bytes`` has it level by level
    ``cycles``          the model's time
    ``math_cycles``     of them, issuing math; with ``stalls`` (why not, in the others) they are all cycles
    ``queue``           what the issue queue did in each of the cycles
    ``trace``           slices of the timeline, when the run was asked for them
    ``executed``        instructions executed, of every kind
    ``state``           the processing element itself; ``state.chip`` is what it shares
    ==================  ====================================================================================
    """

    registers: Array
    errors: tuple[ErrorRecord, ...]
    counts: Counts
    traffic: Traffic
    moved: Moved
    cycles: int
    math_cycles: int
    stalls: dict[str, int]
    queue: dict[str, int]
    trace: tuple[Event, ...]
    executed: int
    state: Pe

    @property
    def energy_pj(self) -> float:
        """Energy in pJ, modelled: published figures times what was counted (:mod:`tilewright.isa.language.counts`)."""
        return sum(energy(self.moved, self.traffic, self.state.config).values())

    @property
    def math_utilisation(self) -> float:
        """Products made, as a share of those the threads could make in all these cycles."""
        return math_cycles_at_least(self.moved, self.state.config) / max(1, self.cycles)

    def tensor(self, name: str) -> Array:
        """The values of a segment after the run, as the page table finds them (a page moved out: device memory)."""
        storages = self.state.chip.storages
        check_known(name, storages, f"no segment called {name!r}", say="there are")
        return storages[name].values(self.state.chip.store)


def result_of(pe: Pe) -> RunResult:
    """What a processing element has to show now."""
    queue, math = pe.clock.accounts()
    return RunResult(
        registers=pe.registers,
        errors=tuple(pe.errors),
        counts=pe.counts,
        traffic=pe.traffic,
        moved=pe.clock.port.moved,
        cycles=pe.clock.cycles,
        math_cycles=pe.clock.math_busy,
        stalls=math,
        queue=queue,
        trace=tuple(pe.clock.events),
        executed=pe.executed,
        state=pe,
    )


def timeline(runs: Iterable[RunResult]) -> tuple[Event, ...]:
    """The events of all processing elements, and of the DMA controller they share; one cycle is one nanosecond.

    ``runs`` were made with ``trace=True``. Empty where they were not.

    >>> run = MatrixUnit().run("mov r0, 1\\nadd r1, r0, 2\\nhalt", {}, trace=True)
    >>> [event.name for event in timeline([run])]
    ['mov', 'add', 'halt']
    """
    events: list[Event] = []
    chips = {}
    for run in runs:
        events += run.trace
        events += run.state.clock.lanes
        chips[id(run.state.chip)] = run.state.chip
    if events:
        for chip in chips.values():
            for t in chip.dma.transfers:
                name, lane = f"{t.storage} page {t.page} {t.direction}", Track("DMA", f"pages {t.direction}")
                events.append(Slice(lane, name, t.start, t.end - t.start, (("bytes", t.bytes),)))
    return tuple(events)


@dataclass(eq=False)
class Job:
    """One start of a program: the descriptors it finds by name, and what its uniform registers hold at first."""

    program: MachineProgram
    segments: tuple[Segment, ...] = ()
    uniform: Mapping[int, int] = field(default_factory=dict)


Tensors = TensorMemory | Mapping[str, Any] | None
"""What a program finds in memory: arrays by name, or a :class:`TensorMemory` that says how they lie there."""
Work = Sequence[tuple[Pe, list[Job]]]
"""Processing elements, and what each of them is given to do."""


@dataclass(eq=False)
class _Known:
    """What one program and configuration have every time: handlers, records, what instructions cost."""

    steps: list[tuple[Handler, Any]]
    code: Array
    costs: dict[Any, Any] = field(default_factory=dict)


_known: dict[tuple[MachineProgram, MatrixUnitConfig], _Known] = {}
_MOST_KNOWN = 256


def _known_of(program: MachineProgram, pe: Pe) -> _Known:
    found = _known.get((program, pe.config))
    if found is None:
        steps = [(HANDLERS[one.name], one) for one in program.instructions]
        found = _known[program, pe.config] = _Known(steps, encoded(pe, program))
        for oldest in list(_known)[:-_MOST_KNOWN]:
            _known.pop(oldest, None)
    return found


class Runner:
    """Processing elements with jobs, advanced one instruction each in turn, so that nothing depends on their clocks.

    At a barrier all wait for the last. A barrier that can never be complete, because a processing element has ended
    or waits at another one, is a record on those that wait, and they go on.
    """

    compiles = True
    """One that is alone runs compiled blocks, many instructions a turn."""

    def __init__(self, work: Work) -> None:
        self.jobs = {pe.number: list(jobs) for pe, jobs in work}
        self.pes = [pe for pe, _ in work]
        self.blocks: dict[int, BlockState | None] = {}
        self.alone: Pe | None = None
        self.steps: dict[int, list[tuple[Handler, Any]]] = {}
        self.programs: dict[int, MachineProgram] = {}
        self.known: dict[int, _Known] = {}
        for pe in self.pes:
            self._next_job(pe)

    def _next_job(self, pe: Pe) -> None:
        self._flush_counts()
        self.blocks.pop(pe.number, None)
        waiting = self.jobs[pe.number]
        if not waiting:
            pe.halted = True
            pe.clock.settle()
            return
        job = waiting.pop(0)
        pe.start()
        for segment in job.segments:
            pe.names[segment.name] = pe.add_segment(segment)
        for register, value in job.uniform.items():
            pe.uniform[register] = wrap(value)
        self.known[pe.number] = known = _known_of(job.program, pe)
        self.programs[pe.number], self.steps[pe.number], pe.costs = job.program, list(known.steps), known.costs
        pe.labels, pe.pc, pe.halted, pe.barrier = dict(job.program.labels), 0, False, None
        if not job.program.instructions:
            self._next_job(pe)

    def step(self, pe: Pe) -> None:
        """Execute one instruction; at the end of a program its next job begins."""
        steps = self.steps[pe.number]
        if pe.executed >= pe.config.max_instructions:
            how = "look for a loop without end, or raise max_instructions"
            raise MatrixUnitError(f"the program ran {pe.executed} instructions and did not end", how=how)
        handler, instruction = steps[pe.pc]
        pe.next_pc = pe.pc + 1
        faults = handler(pe, instruction)
        if faults:
            pe.record(instruction, faults)
        pe.executed += 1
        pe.pc = pe.next_pc
        if len(pe.errors) > pe.config.max_errors:
            many, how = f"{len(pe.errors)} error records: {pe.errors[0]}", "mend the first, or raise max_errors"
            raise MatrixUnitError(many, records=(pe.errors[-1],), how=how)
        if (pe.halted or pe.pc >= len(steps)) and pe.barrier is None:
            self._next_job(pe)

    def run(self, watch: Callable[[Counts], None] | None = None) -> None:
        """Run all to the end; ``watch`` is called with all counts together, now and then and at the end.

        A :class:`MatrixUnitError` has the result of the first processing element in trouble.
        """
        if not (watch is None or callable(watch)):
            raise UsageError(f"watch = {watch!r}", how="a function of the counts, or None")
        turns = 0
        try:
            while self.turn():
                turns += 1
                if watch is not None and turns % 16 == 0:
                    self._drop_blocks()  # the function may add memory
                    watch(Counts.together(pe.counts for pe in self.pes))
        except MatrixUnitError as error:
            self._flush_counts()
            number = error.records[0].pe if error.records else self.pes[0].number
            error.result = result_of(next(pe for pe in self.pes if pe.number == number))
            raise
        if watch is not None:
            watch(Counts.together(pe.counts for pe in self.pes))

    def turn(self) -> bool:
        """One instruction of every processing element that can go on; False when all have ended."""
        active = [pe for pe in self.pes if not pe.halted and pe.barrier is None]
        if len(active) == 1 and self.compiles:  # none to take turns with
            (pe,) = active
            if self.alone is not pe:  # others may have moved pages since it was alone last
                self._drop_blocks()
                self.alone = pe
            for _ in range(256):
                if not self._advance(pe):
                    break
            return True
        if not active:
            waiting = [pe for pe in self.pes if pe.barrier is not None]
            if not waiting:
                return False
            self._release(waiting)
            return True
        if self.alone is not None:
            self._drop_blocks()
        for pe in active:
            self.step(pe)
        return True

    def _drop_blocks(self) -> None:
        """Leave the compiled blocks, whose copies of the state others may make stale."""
        self._flush_counts()
        self.blocks.clear()
        self.alone = None

    def _advance(self, pe: Pe) -> bool:
        """Run a compiled block where one begins, and one instruction; False when the element cannot go on."""
        if pe.number not in self.blocks:
            self.blocks[pe.number] = BlockState.of(pe, self.programs[pe.number], self.known[pe.number].code)
        block, steps = self.blocks[pe.number], self.steps[pe.number]
        if block is not None and block.compiled[pe.pc]:
            run_block(pe, block, min(pe.config.max_instructions, pe.executed + 100_000))
            if pe.pc >= len(steps):
                self._next_job(pe)
                return not pe.halted
        instruction = steps[pe.pc][1]
        self.step(pe)
        if block is not None:
            block.invalidate_after(pe, instruction)
        return not pe.halted and pe.barrier is None

    def _flush_counts(self) -> None:
        """Add what compiled blocks counted to the accounts of their elements."""
        for pe in self.pes:
            block = self.blocks.get(pe.number)
            if block is not None:
                block.flush_counts(pe)

    def _release(self, waiting: list[Pe]) -> None:
        """Let those at barriers go on together, now that no one else will come."""
        incomplete = len(waiting) < len(self.pes) or len({pe.barrier[0] for pe in waiting if pe.barrier}) > 1
        together = max(pe.clock.issue for pe in waiting)
        for pe in waiting:
            assert pe.barrier is not None
            _, at = pe.barrier
            pe.barrier = None
            pe.clock.until(together, "barrier")
            if incomplete:
                back, pe.pc = pe.pc, at
                pe.record(self.programs[pe.number].instructions[at], [("divergent_barrier", -1, -1)])
                pe.pc = back
            if pe.pc >= len(self.steps[pe.number]):
                self._next_job(pe)


def start_state(config: MatrixUnitConfig, memory: Tensors, tracing: bool = False) -> Pe:
    """The first processing element of a new machine, its tensors in device memory; resident pages have entries."""
    places = list(memory if isinstance(memory, TensorMemory) else TensorMemory(memory))
    chip = new_chip(config, tracing, sum(place.array.nbytes for place in places))
    tensors = [(p.name, p.array, {"page": p.page, "line": p.line, "order": p.order}) for p in places]
    for place, storage in zip(places, chip.add_all(tensors), strict=True):
        if place.resident:
            storage.map_pages()
    return chip.pes[0]


def run_on(pe: Pe, program: MachineProgram, watch: Callable[[Counts], None] | None = None) -> RunResult:
    """Run a program to its end on one processing element."""
    Runner([(pe, [Job(program)])]).run(watch)
    pe.chip.settle(pe.clock.cycles)
    return result_of(pe)


class MatrixUnit:
    """A processing element with the tensor-multiply instruction, as ``config`` describes it.

    >>> program = "tid r0\\nmul r1, r0, r0\\nhalt"
    >>> MatrixUnit(MatrixUnitConfig(threads=4)).run(program).registers[:, 1].tolist()
    [0, 1, 4, 9]
    """

    def __init__(self, config: MatrixUnitConfig | None = None) -> None:
        self.config = checked_config(config)

    def run(
        self,
        program: MachineProgram | str,
        memory: Tensors = None,
        trace: bool = False,
        watch: Callable[[Counts], None] | None = None,
    ) -> RunResult:
        """Run to the end; ``memory`` holds the tensors by name (arrays are placed with the default pages and lines).

        ``trace`` keeps a timeline; ``watch`` is called with the counts now and then, for a progress bar.
        Raises :class:`MatrixUnitError` after ``max_instructions`` instructions, and for every error record where the
        configuration says ``on_error='raise'``; its ``result`` is the machine as it then stood. For several processing
        elements see :class:`Machine`.
        """
        program = program_of(program, self.config)
        return run_on(start_state(self.config, memory, trace), program, watch)
