"""The whole machine: the host with its system memory, the stream processor, and the chip it gives work to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import UsageError, check_known
from tilewright.isa.chip.segments import (
    Part,
    Segment,
    Storage,
    checked_name,
    checked_sides,
    checked_tensor,
    make_storage,
    view_of,
    whole_segment,
)
from tilewright.isa.chip.state import move_in, move_out, new_chip
from tilewright.isa.execute.run import Job, Runner, RunResult, Work, result_of, start_state
from tilewright.isa.language.assemble import program_of
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.counts import Counts
from tilewright.isa.language.errors import Array, whole, wholes
from tilewright.isa.language.program import MachineProgram


@dataclass(frozen=True)
class Command:
    """One command of the host: the unit the stream processor gave it to, and the cycle."""

    unit: str
    text: str
    cycle: int

    def __str__(self) -> str:
        return f"cycle {self.cycle:>6}  {self.unit:13} {self.text}"


class Machine:
    """A chip and its host. The order of the methods is the order of a run:

    1. :meth:`page_table` reserves a tensor's pages in device memory and makes their first entries;
    2. :meth:`dma_in` brings pages on chip;
    3. :meth:`start` gives a program to processing elements;
    4. :meth:`segment` describes segments to them (programs may do that too); :meth:`run` lets them go;
    5. :meth:`dma_out` writes results back to device memory, :meth:`fetch` takes them to the system memory.

    ``system`` is the system memory, tensors by name; ``chip`` all state of the chip; ``commands`` what the stream
    processor was told. Source: the five steps of [69], the units of figures 1 and 2.

    >>> machine = Machine(MatrixUnitConfig(threads=4))
    >>> machine.system["X"] = np.arange(4, dtype=np.int32)
    >>> machine.page_table("X")
    >>> machine.dma_in("X")
    >>> lines = ("segment ur1, $X", "tid r1", "ld r2, ur1:rf1:0", "add r2, r2, 1", "st r2, ur1:rf1:0")
    >>> machine.start(chr(10).join(lines))
    >>> _ = machine.run()
    >>> machine.dma_out("X")
    >>> machine.fetch("X").tolist()
    [1, 2, 3, 4]
    """

    def __init__(self, config: MatrixUnitConfig | None = None, trace: bool = False) -> None:
        self.config = checked_config(config)
        self.system: dict[str, Any] = {}
        self.chip = new_chip(self.config, trace)
        self.commands: list[Command] = []
        self.now = 0
        self._jobs: dict[int, list[Job]] = {}
        self._placed: dict[str, Any] = {}

    def _command(self, unit: str, text: str) -> None:
        self.commands.append(Command(unit, text, self.now))
        self.now += 1

    def link(self, size: int) -> None:
        """Let the host wait while ``size`` bytes pass between it and device memory."""
        self.now += self.config.link_cycles(size)

    def _storage(self, name: str) -> Storage:
        check_known(name, self.chip.storages, f"no page table called {name!r}", say="there are")
        return self.chip.storages[name]

    def _pes(self, pe: int | Sequence[int] | None) -> list[int]:
        chosen = range(self.config.pes) if pe is None else pe if isinstance(pe, Sequence) else [pe]
        numbers = [whole("pe", one) for one in chosen]
        if any(n >= self.config.pes for n in numbers):
            raise UsageError(f"pe = {max(numbers)} of {self.config.pes}", how="count from 0; more with pes=")
        return numbers

    def page_table(
        self,
        name: str,
        tensor: str | None = None,
        part: Part | None = None,
        page: Sequence[int] | None = None,
        line: Sequence[int] | None = None,
        order: Sequence[int] | None = None,
        mapped: bool = False,
    ) -> None:
        """Step 1: pages for ``part`` of a tensor of the system memory (all of it; called ``name`` unless said).

        ``page``, ``line``, ``order`` are those of :func:`tilewright.layout.paged`. Device memory is reserved and
        filled; entries are absent until pages move in, or with ``mapped`` loaded where they stand.

        A tensor may have several tables. One over elements that already stand in device memory in the same order is a
        view: nothing is reserved or filled, what is stored through one is seen through the other, and where pages
        coincide they have the same entries. One with lines that lie otherwise has a copy of its own.
        """
        checked_name(name, self.chip.storages)
        tensor = name if tensor is None else tensor
        if tensor not in self.system:
            raise UsageError(f"no tensor {tensor!r} in the system memory", how=f"machine.system[{tensor!r}] = array")
        array = checked_tensor(tensor, self.system[tensor])
        if part is not None:
            inside = len(_a_part(part).base) == array.ndim
            if not inside or array[part.slices].shape != part.size:
                raise UsageError(f"part {part} of {tensor}, which has shape {list(array.shape)}")
            array = array[part.slices]
        base = part.base if part is not None else (0,) * array.ndim
        sides = checked_sides(page=page, line=line, order=order)
        storage, of = self._view(name, tensor, array, base, sides)
        if storage is None:
            storage = self.chip.add(name, array, **sides, tensor=tensor, base=base)
            self.link(storage.total_bytes)
        self._placed[name] = self.system[tensor]
        if mapped:
            storage.map_pages()
        state = "loaded where they stand" if mapped else "absent"
        count = storage.map.num_pages
        seen = f", a view of {of}" if of else ""
        self._command("page table", f"{name}: {count} pages of {storage.page_bytes} bytes, {state}{seen}")

    def _view(
        self, name: str, tensor: str, array: Array, base: tuple[int, ...], sides: dict[str, Any]
    ) -> tuple[Storage | None, str]:
        """A page table's storage as a view of one that is there, and of which; (None, "") where there is none."""
        relative = self.config.page_addresses == "relative"
        several = [s for s in self.chip.storages.values() if self._placed.get(s.name) is self.system[tensor]]
        for old in (old for old in several if old.tensor == tensor and len(old.base) == len(base)):
            own = make_storage(
                name, array, 0, self.config.line_bytes, **sides, tensor=tensor, base=base, relative=relative
            )
            view = view_of(old, own)
            if view is not None:
                self.chip.add_storage(view)
                return view, old.name
        return None, ""

    def dma_in(self, name: str, pages: Sequence[int] | None = None) -> None:
        """Step 2: bring pages (all) to L2. Raises :class:`UsageError` where L2 has no room for one."""
        storage = self._storage(name)
        for page in self._pages(storage, pages):
            if not move_in(self.chip.pes[0], storage, page, self.now):
                how = "give smaller pages or a larger l2_bytes, or bring in some of the pages"
                raise UsageError(f"no room in L2 for page {page} of {name} ({storage.page_bytes} bytes)", how=how)
            self._command("DMA", f"page {page} of {name} to L2")

    def _pages(self, storage: Storage, pages: Sequence[int] | None) -> tuple[int, ...]:
        count = storage.map.num_pages
        chosen = tuple(range(count)) if pages is None else wholes("pages", pages)
        if any(page >= count for page in chosen):
            raise UsageError(f"page {max(chosen)} of {storage.name}, which has {count}", how="count from 0")
        return chosen

    def start(
        self,
        program: MachineProgram | str,
        pe: int | Sequence[int] | None = None,
        segments: Mapping[str, Part | tuple[str, Part]] | None = None,
        uniform: Mapping[int, int] | None = None,
    ) -> None:
        """Step 3: give a program to processing elements (all); started again, it runs once more after that.

        ``segments``: descriptors for this start alone, name to the part of the page table of that name (or of another:
        a pair). ``uniform``: what uniform registers hold at first.
        """
        program = program_of(program, self.config)
        if not all(isinstance(one, Mapping | None) for one in (segments, uniform)):
            raise UsageError("segments and uniform are dicts", how="segments={name: part}, uniform={number: value}")
        registers = {whole("uniform register", n): whole(f"ur{n}", v, -(2**31)) for n, v in (uniform or {}).items()}
        if any(n >= self.config.uniform_registers for n in registers):
            raise UsageError(f"no register ur{max(registers)}", how=f"there are {self.config.uniform_registers}")
        if any(v >= 2**32 for v in registers.values()):
            raise UsageError(f"uniform = {registers}", how="a register has 32 bits")
        for number in self._pes(pe):
            windows = tuple(self._window(name, part) for name, part in (segments or {}).items())
            self._jobs.setdefault(number, []).append(Job(program, windows, registers))
            shown = "".join(f", {s.name} = {s.storage.name}{_part(s)}" for s in windows)
            self._command(f"PE {number}", f"start {len(program)} instructions{shown}")

    def _window(self, name: str, chosen: Part | tuple[str, Part]) -> Segment:
        of, part = chosen if isinstance(chosen, tuple) and len(chosen) == 2 else (name, chosen)
        storage, part = self._storage(of), _a_part(part)
        base, size = (np.array(side[::-1], np.int64) for side in (part.base, part.size))
        whole_ = whole_segment(storage, 0, name)
        window = whole_.window(base, size) if len(base) == len(size) == len(storage.sizes) else None
        if window is None:
            raise UsageError(f"part {part} of {of}, which has shape {list(storage.map.shape)}")
        return window

    def segment(
        self, name: str, of: str | Part, part: Part | None = None, pe: int | Sequence[int] | None = None
    ) -> None:
        """Step 4: what programs on processing elements (all) find as ``$name``: a part of the page table ``of``.

        ``segment("C", Part(...))`` is a part of the page table of that name; without a part it is all of it.
        """
        checked_name(name, ())
        source = name if isinstance(of, Part) else of
        part = of if isinstance(of, Part) else part
        shape = self._storage(source).map.shape
        part = Part((0,) * len(shape), tuple(shape)) if part is None else part
        for number in self._pes(pe):
            window = self._window(name, (source, part))
            self.chip.pes[number].names[name] = self.chip.pes[number].add_segment(window)
            self._command(f"PE {number}", f"segment {name} = {source}{part}")

    def release(self) -> Work:
        """Take the work off the machine: processing elements and their jobs, for a :class:`Debugger` to run."""
        work = [(self.chip.pes[number], jobs) for number, jobs in sorted(self._jobs.items())]
        self._jobs = {}
        for pe, _ in work:
            pe.clock.until(self.now, "host")
            pe.clock.port.idle_until(self.now)
        return work

    def ended(self, work: Work) -> None:
        """Let the host go on at the cycle at which the last element of ``work`` is done."""
        self.now = max([self.now, *(pe.clock.cycles for pe, _ in work)])
        self.chip.settle(self.now)

    def run(self, watch: Callable[[Counts], None] | None = None) -> list[RunResult]:
        """Run all processing elements with work to the end; one result for every processing element of the machine.

        ``watch`` is called with the counts of all of them now and then. Raises :class:`MatrixUnitError` as
        :meth:`MatrixUnit.run` does; its ``result`` is the first such element's.
        """
        work = self.release()
        Runner(work).run(watch)
        self.ended(work)
        return [result_of(pe) for pe in self.chip.pes]

    def dma_out(self, name: str, pages: Sequence[int] | None = None) -> None:
        """Step 5: write pages (all) back to device memory where they were stored to; their entries are deleted."""
        storage = self._storage(name)
        for page in self._pages(storage, pages):
            done = move_out(self.chip.pes[0], storage, page, self.now)
            self._command("DMA", f"page {page} of {name} out")
            self.now = max(self.now, done)

    def fetch(self, name: str) -> Array:
        """What stands in device memory, to the system memory; pages still in L2 are as before they came in."""
        storage = self._storage(name)
        there = np.shape(self.system.get(storage.tensor, ()))
        if len(there) != len(storage.base) or any(b + s > n for b, s, n in zip(storage.base, storage.map.shape, there)):
            mismatch = (
                f"{storage.tensor!r} of the system memory, shape {list(there)}, is not the tensor {name} is a part of"
            )
            raise UsageError(mismatch, how="leave tensors in machine.system until their results are fetched")
        raw = self.chip.store[storage.home : storage.home + storage.total_bytes]
        values = storage.map.unpack(raw.view(storage.map.numpy_dtype))
        whole_tensor = np.array(self.system[storage.tensor])
        part = Part(storage.base, tuple(storage.map.shape))
        whole_tensor[part.slices] = values
        old, self.system[storage.tensor] = self.system[storage.tensor], whole_tensor
        self._placed = {table: whole_tensor if of is old else of for table, of in self._placed.items()}
        self._command("host", f"{name} to the system memory, {storage.total_bytes} bytes")
        self.link(storage.total_bytes)
        return values

    def tensor(self, name: str) -> Array:
        """The values as the page table finds them now, wherever each page is."""
        return self._storage(name).values(self.chip.store)

    def log(self) -> str:
        """Every command of the host, a line each."""
        return "\n".join(str(command) for command in self.commands)


def _a_part(part: Any) -> Part:
    if not isinstance(part, Part):
        raise UsageError(f"part {part!r}", how="Part(base, size), as in Part((0, 4), (8, 4))")
    return part


def _part(segment: Segment) -> Part:
    return Part(tuple(segment.base[::-1].tolist()), tuple(segment.sizes[::-1].tolist()))


def work_of(
    program: MachineProgram | str | Machine, memory: Any, config: Any, call: str
) -> tuple[Work, Callable[[], None]]:
    """A program alone as the work of the first processing element, or the work that was started on a machine.

    Also what to call when it is done. ``call``: who asks, for the error.
    """
    if not isinstance(program, Machine):
        config = checked_config(config)
        program = program_of(program, config)
        return [(start_state(config, memory), [Job(program)])], lambda: None
    machine = program
    if memory is not None or config is not None:
        raise UsageError("a Machine has its own memory and config", how=f"{call}(machine)")
    work = machine.release()
    if not work:
        raise UsageError("no program was started on this machine", how="machine.start(program) first")
    return work, lambda: machine.ended(work)
