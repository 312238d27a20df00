"""One processing element, one program: the short way to run something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.isa._assemble import program_of
from tilewright.isa._config import MatrixUnitConfig, checked_config
from tilewright.isa._counts import Counts
from tilewright.isa._dma import map_page
from tilewright.isa._errors import MatrixUnitError
from tilewright.isa._program import Program
from tilewright.isa._run import Job, Runner, RunResult, result_of
from tilewright.isa._segments import Memory
from tilewright.isa._state import Pe, new_chip

__all__ = ["MatrixUnit", "start_state"]


def start_state(config: MatrixUnitConfig, memory: Memory, tracing: bool = False) -> Pe:
    """The first processing element of a machine at rest, its tensors in device memory; resident pages have entries."""
    chip = new_chip(config, tracing)
    places = list(memory)
    tensors = [(p.name, p.array, {"page": p.page, "line": p.line, "order": p.order}) for p in places]
    for place, storage in zip(places, chip.add_all(tensors), strict=True):
        for page in range(storage.map.num_pages if place.resident else 0):
            map_page(chip, storage, page)
    return chip.pes[0]


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
        program: Program | str,
        memory: Memory | Mapping[str, Any] | None = None,
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
        pe = start_state(self.config, memory if isinstance(memory, Memory) else Memory(memory), trace)
        try:
            Runner([(pe, [Job(program)])]).run(watch)
        except MatrixUnitError as error:
            error.result = result_of(pe)
            raise
        return result_of(pe)
