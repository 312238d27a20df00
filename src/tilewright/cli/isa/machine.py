"""What the commands of `tilewright isa` share: the machine's fields, a program's tensors, writers of results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from tilewright import isa, layout, trace
from tilewright.errors import UsageError
from tilewright.reading import open_bytes
from tilewright.render.delivery import remark
from tilewright.render.formats import Kind

if TYPE_CHECKING:
    import numpy as np

PES: tuple[tuple[str, Kind, str], ...] = (
    ("PE", "number", "Processing element."),
    ("executed", "count", "Instructions of every kind."),
    ("cycles", "count", "By the model, until it was done."),
    ("multiplying", "count", "Cycles of the math unit."),
    ("macs", "count", "Multiplications of an element of A by one of B."),
    ("A loaded", "bytes", "Into registers."),
    ("lines", "count", "Cache lines that mm touched, and ld and st asked for."),
    ("L1 misses", "count", "Lines of mm that were not in its L1."),
    ("L2 misses", "count", "Of these, not in L2 either: the element that asks first brings a line for all."),
    ("waits for", "text", "What its issue queue waited for, the longest first."),
)

EveryPe = Annotated[bool, "Every processing element (--set pes=N) runs it, not the first alone."]
Depth = Option(min=1, help="Rows of A (m), columns of B (n), depth (k).")
Elements = Annotated[str, "Elements: s4 to s32, u4 to u32, f8e4m3fn, f8e5m2, f16, bf16, f32."]
MostChoices = Annotated[int, Option(min=1, help="Choices timed at most (for each machine).")]
Within = Annotated[float, "A gain not worth looking for: 0.02 is 2 percent."]

MOST = 1 << 27
"""Elements of a tensor at most."""

File = Annotated[str, Argument(metavar="FILE", help="A program (.tasm); - is stdin.")]
Settings = Annotated[list[str] | None, "--set FIELD=VALUE", "A field of the machine, as threads=64 or kb_acc=last."]
PageOut = Annotated[str | None, "-o", "--out FILE", "FILE.html: a page; FILE.json: all numbers."]


def configured(settings: Sequence[str] | None, **usual: Any) -> isa.MatrixUnitConfig:
    """The machine with the fields that ``--set`` gives; ``usual``: fields that have another default here."""
    known = {f.name for f in fields(isa.MatrixUnitConfig)}
    values: dict[str, Any] = usual
    for assignment in settings or ():
        name, equals, text = assignment.partition("=")
        if not equals or name not in known:
            raise UsageError(f"unknown field in --set {assignment}", how=f"known: {', '.join(sorted(known))}")
        values[name] = setting(text)
    config = isa.MatrixUnitConfig(**values)
    if config.slow:
        remark(config.slow)
    return config


def setting(text: str) -> Any:
    """A field's value: true, none, 64, 4:4 or a word."""
    plain = {"true": True, "false": False, "none": None}
    if text.lower() in plain:
        return plain[text.lower()]
    parts = text.split(":")
    if all(re.fullmatch("-?[0-9]{1,18}", part) for part in parts):
        numbers = tuple(int(part) for part in parts)
        return numbers[0] if len(numbers) == 1 else numbers
    return text


def pair(text: str, option: str, value_name: str) -> tuple[str, str]:
    """The two sides of ``NAME=VALUE``; an error calls the value ``value_name``."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise UsageError(f"{option} {text!r} is not NAME={value_name}")
    return name, value


def array(text: str, option: str, count_up: bool = False) -> np.ndarray[Any, Any]:
    """An array of the shape and type of ``text``, as s32[4,4]: zeros, or 0, 1, 2, ..."""
    import numpy as np

    form = layout.parse(text)
    if not isinstance(form, layout.TensorLayout):
        raise UsageError(f"{text} is a tuple", where=option)
    if form.num_elements > MOST:
        raise UsageError(f"{text} has more than {MOST} elements", where=option)
    if count_up:
        return np.arange(form.num_elements).astype(form.numpy_dtype).reshape(form.shape)
    return np.zeros(form.shape, form.numpy_dtype)


@dataclass(frozen=True)
class Tensors:
    """The options that give a program its tensors."""

    tensor: Annotated[
        list[str] | None, "--tensor", "--data NAME=FILE.npy", "A tensor the program calls $NAME; without NAME=, $FILE."
    ] = None
    iota: Annotated[list[str] | None, "--iota NAME=s8[4,4]", "A tensor of 0, 1, 2, ..."] = None
    zeros: Annotated[list[str] | None, "--zeros NAME=s32[4,4]", "A tensor of zeros; printed afterwards."] = None

    def arrays(self, program: isa.Program | None = None) -> dict[str, np.ndarray[Any, Any]]:
        """The tensors by name. UsageError where one that ``program`` names is not among them."""
        import numpy as np

        arrays: dict[str, np.ndarray[Any, Any]] = {}
        for file in self.tensor or ():
            name, path = pair(file, "--tensor", "FILE.npy") if "=" in file else (Path(file).stem, file)
            try:
                with open_bytes(path) as opened:
                    arrays[name] = np.load(opened, allow_pickle=False)
            except (OSError, ValueError, EOFError, MemoryError, OverflowError, TypeError, SyntaxError) as error:
                raise UsageError(f"cannot read the array: {error}", where=path) from None
        for option, shapes in (("--iota", self.iota), ("--zeros", self.zeros)):
            for shape in shapes or ():
                name, text = pair(shape, option, "s32[4,4]")
                arrays[name] = array(text, option, option == "--iota")
        if program is not None:
            _check_named(program, arrays)
        return arrays


def _check_named(program: isa.Program, given: Mapping[str, Any]) -> None:
    """UsageError where the program names tensors that were not given: nothing it computes would mean anything."""
    names: dict[int, str] = {}
    stored: dict[str, bool] = {}
    for instruction in program.instructions:
        operands: Any = instruction.operands
        if instruction.name == "segment":
            names[operands[0].number] = operands[1].name
            stored.setdefault(operands[1].name, False)
        elif instruction.name == "st":
            stored |= {names[o.segment]: True for o in operands if o.kind == "address" and o.segment in names}
    missing = [name for name in stored if name not in given]
    if missing:
        ways = [f"--zeros '{name}=s32[4,4]'" if stored[name] else f"--tensor {name}={name}.npy" for name in missing]
        problem = f"the program names {', '.join(missing)}, and no such tensor is given"
        raise UsageError(problem, how=f"add {' '.join(ways)} (sizes of yours; --iota 'NAME=s8[4,4]' counts up)")


def started(
    program: isa.Program | str, memory: Mapping[str, Any], config: isa.MatrixUnitConfig, trace: bool = False
) -> isa.Machine:
    """Every processing element of a machine about to run the program, on the same tensors."""
    host = isa.Machine(config, trace)
    host.system |= memory
    for name in memory:
        host.page_table(name, mapped=True)
    host.start(program)
    return host


def work(
    program: isa.Program | str, memory: Mapping[str, Any], config: isa.MatrixUnitConfig, every_pe: bool
) -> tuple[Any, Any, Any]:
    """What a debugger or profiler runs: a machine with the program on every element, or what the first one needs."""
    if every_pe:
        return started(program, memory, config), None, None
    if config.pes > 1:
        remark(f"PE 0 of {config.pes} runs the program, as in isa run; --every-pe starts it on all")
    return program, memory, config


def watch(bar: Any, total: int) -> Any:
    """Tell the progress bar how many mm were executed."""
    return lambda counts: bar(counts.instructions, total or None)


def account_text(title: str, account: Mapping[str, int]) -> str:
    """Reasons and cycles, the largest first."""
    parts = [f"{reason} {cycles:,}" for reason, cycles in sorted(account.items(), key=lambda row: -row[1]) if cycles]
    return f"{title}: {', '.join(parts) or 'never'}"


def moved_lines(moved: Mapping[str, Mapping[str, int]], energy_pj: float, utilisation: float) -> Iterator[str]:
    """Bytes through every level by operand, the modelled energy, how much of the math there is was used."""
    names = {"l1": "the load-store unit", "l2": "L2's bus", "dram": "device memory"}
    for level, of in moved.items():
        parts = [f"{'DMA' if operand == 'dma' else operand.upper()} {size:,}" for operand, size in of.items() if size]
        if parts:
            yield f"bytes through {names[level]}: {', '.join(parts)}"
    yield f"energy {energy_pj:,.0f} pJ, modelled (ISSCC 2014, 45 nm); {utilisation:.1%} of all math there is"


def pes_value(runs: Sequence[isa.RunResult]) -> list[dict[str, Any]]:
    """Every processing element's own numbers, as JSON has them."""
    plain = ("cycles", "math_cycles", "executed", "bytes", "energy_pj", "math_utilisation", "stalls", "queue")
    return [
        {"pe": run.state.number}
        | {name: getattr(run, name) for name in plain}
        | {"counts": run.counts.to_dict(), "traffic": run.traffic.to_dict()}
        for run in runs
    ]


def pe_row(run: isa.RunResult) -> tuple[object, ...]:
    """A processing element's row of :data:`PES`."""
    c, waits = run.counts, {reason: n for reason, n in run.queue.items() if n and reason != "issued"}
    reasons = ", ".join(f"{reason} {n:,}" for reason, n in sorted(waits.items(), key=lambda row: -row[1]))
    head = (run.state.number, run.executed, run.cycles, run.math_cycles, c.macs, c.a_bytes_loaded)
    return (*head, lines_of(run), c.l1_misses, c.l2_misses, reasons)


def lines_of(part: Any) -> int:
    """Cache lines that mm touched, and ld and st asked for, of a line of a program or a whole run."""
    return int(part.counts.l1_touches + part.traffic.load_lines + part.traffic.store_lines)


def remark_errors(errors: Sequence[Any], most: int = 5) -> None:
    """The first error records on stderr."""
    for record in errors[:most]:
        remark(str(record))
    if len(errors) > most:
        remark(f"... and {len(errors) - most} more error records")


def timeline_text(events: Sequence[trace.Event]) -> str:
    """What is said of a Perfetto trace that was written."""
    return f"{len(events)} events; open it at https://ui.perfetto.dev"
