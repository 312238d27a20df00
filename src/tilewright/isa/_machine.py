"""The machine: runs a program over a memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa import _alu, _control, _memory, _tensor
from tilewright.isa._assemble import assemble
from tilewright.isa._config import MatrixUnitConfig
from tilewright.isa._counts import Counts
from tilewright.isa._errors import ErrorRecord, MatrixUnitError
from tilewright.isa._program import Instruction, Program
from tilewright.isa._segments import Memory
from tilewright.isa._state import MachineState, start_state
from tilewright.trace import Event

__all__ = ["HANDLERS", "MatrixUnit", "RunResult"]

HANDLERS: dict[str, Callable[[MachineState, Instruction], None]] = {
    **_alu.HANDLERS,
    **_control.HANDLERS,
    **_memory.HANDLERS,
    **_tensor.HANDLERS,
}


@dataclass
class RunResult:
    """What a run left behind.

    ==================  ====================================================================================
    ``registers``       int32[threads, registers], raw words (``.view(np.float32)`` for float products)
    ``errors``          the sticky records, in order; empty when all went well
    ``counts``          work and traffic of the ``mm`` instructions
    ``cycles``          the model's time; ``math_cycles`` of them issue math, ``stalls`` says what it waited for
    ``trace``           slices of the timeline, when the run was asked for them
    ``executed``        instructions executed, of every kind
    ``state``           the machine itself
    ==================  ====================================================================================
    """

    registers: np.ndarray[Any, Any]
    errors: tuple[ErrorRecord, ...]
    counts: Counts
    cycles: int
    math_cycles: int
    stalls: dict[str, int]
    trace: tuple[Event, ...]
    executed: int
    state: MachineState

    def tensor(self, name: str) -> np.ndarray[Any, Any]:
        """The values of a segment after the run, as the page table finds them (a page moved out: device memory)."""
        if name not in self.state.names:
            raise UsageError(f"no segment called {name!r}", how=f"there are {', '.join(self.state.names) or 'none'}")
        segment = self.state.segments[self.state.names[name]]
        homes = segment.home + np.arange(segment.map.num_pages) * segment.page_bytes
        begins = np.where(segment.table.phys >= 0, segment.table.phys, homes)
        pages = [self.state.store[b : b + segment.page_bytes] for b in begins]
        return segment.map.unpack(np.concatenate(pages).view(segment.map.numpy_dtype))


class MatrixUnit:
    """A processing element with the tensor-multiply instruction, as ``config`` describes it.

    >>> program = "tid r0\\nmul r1, r0, r0\\nhalt"
    >>> MatrixUnit(MatrixUnitConfig(threads=4)).run(program).registers[:, 1].tolist()
    [0, 1, 4, 9]
    """

    def __init__(self, config: MatrixUnitConfig | None = None) -> None:
        self.config = config or MatrixUnitConfig()

    def run(
        self,
        program: Program | str,
        memory: Memory | Mapping[str, Any] | None = None,
        trace: bool = False,
        watch: Callable[[Counts], None] | None = None,
    ) -> RunResult:
        """Run to the end; ``memory`` holds the tensors by name (arrays are placed with the default pages and lines).

        ``trace`` keeps a timeline; ``watch`` is called with the counts now and then, for a progress bar.
        Raises :class:`MatrixUnitError` after ``max_instructions`` instructions, and for every error record where the
        configuration says ``on_error='raise'``; its ``result`` is the machine as it then stood.
        """
        if isinstance(program, str):
            program = assemble(program, self.config)
        if not isinstance(memory, Memory):
            memory = Memory(memory)
        state = start_state(self.config, memory, trace)
        state.labels = dict(program.labels)
        try:
            self._loop(state, program, watch)
        except MatrixUnitError as error:
            error.result = _result(state)
            raise
        return _result(state)

    def _loop(self, state: MachineState, program: Program, watch: Callable[[Counts], None] | None) -> None:
        steps = [(HANDLERS[each.name], each) for each in program.instructions]
        limit = self.config.max_instructions
        while not state.halted and state.pc < len(steps):
            if state.executed >= limit:
                how = "look for a loop without end, or raise max_instructions"
                raise MatrixUnitError(f"the program ran {limit} instructions and did not end", how=how)
            handler, instruction = steps[state.pc]
            state.next_pc = state.pc + 1
            handler(state, instruction)
            state.executed += 1
            state.pc = state.next_pc
            if watch is not None and state.executed % 1024 == 0:
                watch(state.counts)


def _result(state: MachineState) -> RunResult:
    clock = state.clock
    return RunResult(
        registers=state.registers,
        errors=tuple(state.errors),
        counts=state.counts,
        cycles=max(clock.end, clock.issue),
        math_cycles=clock.math_busy,
        stalls=dict(clock.stalls),
        trace=tuple(clock.events),
        executed=state.executed,
        state=state,
    )
