"""`tilewright isa asm`, `run`, `compile`, `reference` and `claims`; and what all commands of `isa` share.

That is the machine's fields, a program's tensors, and what is printed of a run.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from tilewright import isa, layout, trace
from tilewright.cli.options import Files, Json, assigned, this_command
from tilewright.cli.programs.program import ArgOption, load_program
from tilewright.cli.streams import npy_bytes, progress, read_array, read_text
from tilewright.errors import UsageError
from tilewright.render.delivery import Answer, Line, Output, deliver, remark, show, write_file
from tilewright.render.formats import Kind, finite, first_rows
from tilewright.render.tables import Table

if TYPE_CHECKING:
    import numpy as np

_PES: tuple[tuple[str, Kind, str], ...] = (
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

File = Annotated[str, Argument(help="A program (.tasm); - is stdin.")]
Settings = Annotated[list[str] | None, "--set FIELD=VALUE", "A field of the machine, as threads=64 or kb_acc=last."]
ToPage = Annotated[Output, Files(".json", ".html")]


def configured(settings: Sequence[str] | None, **usual: Any) -> isa.MatrixUnitConfig:
    """The machine with the fields that ``--set`` gives; ``usual``: fields that have another default here."""
    config = isa.MatrixUnitConfig.from_settings(settings or (), **usual)
    if config.slow:
        remark(config.slow)
    return config


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
        list[str] | None, "--tensor", "--data NAME=FILE.npy", "What the program calls $NAME; else $FILE."
    ] = None
    iota: Annotated[list[str] | None, "--iota NAME=s8[4,4]", "A tensor of 0, 1, 2, ..."] = None
    zeros: Annotated[list[str] | None, "--zeros NAME=s32[4,4]", "A tensor of zeros; printed afterwards."] = None

    def arrays(self, program: isa.Program | None = None) -> dict[str, np.ndarray[Any, Any]]:
        """The tensors by name. UsageError where one that ``program`` names is not among them."""
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        for file in self.tensor or ():
            name, path = assigned(file, "--tensor", "NAME=FILE.npy") if "=" in file else (Path(file).stem, file)
            arrays[name] = read_array(path)
        for option, shapes in (("--iota", self.iota), ("--zeros", self.zeros)):
            for shape in shapes or ():
                name, text = assigned(shape, option, "NAME=s32[4,4]")
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


def longest(account: Mapping[str, int], most: int | None = None) -> str:
    """Reasons and cycles, the largest first."""
    rows = sorted(account.items(), key=lambda row: -row[1])[:most]
    return ", ".join(f"{reason} {cycles:,}" for reason, cycles in rows if cycles)


def numbers(run: Any) -> dict[str, Any]:
    """What a run took, as JSON has it."""
    plain = ("cycles", "math_cycles", "executed", "bytes", "energy_pj", "math_utilisation", "stalls", "queue")
    return {name: getattr(run, name) for name in plain} | {"traffic": run.traffic.to_dict()}


def took_lines(took: Mapping[str, Any]) -> Iterator[str]:
    """Of :func:`numbers`: where the cycles went, bytes by level and operand, the energy, how busy the math was."""
    yield f"the math unit was idle: {longest(took['stalls']) or 'never'}"
    yield f"the issue queue: {longest(took['queue']) or 'never'}"
    for level, name in (("l1", "the load-store unit"), ("l2", "L2's bus"), ("dram", "device memory")):
        if parts := [f"{operand.upper()} {size:,}" for operand, size in took["bytes"][level].items() if size]:
            yield f"bytes through {name}: {', '.join(parts)}"
    energy = f"energy {took['energy_pj']:,.0f} pJ, modelled (ISSCC 2014, 45 nm)"
    yield f"{energy}; {took['math_utilisation']:.1%} of all math there is"


def pes_value(runs: Iterable[isa.RunResult]) -> list[dict[str, Any]]:
    """Every processing element's own numbers, as JSON has them."""
    return [{"pe": run.state.number, "counts": run.counts.to_dict()} | numbers(run) for run in runs]


def pes_table(runs: Iterable[isa.RunResult]) -> Table:
    """A row for every processing element."""
    rows = list[tuple[object, ...]]()
    for run in runs:
        c, waits = run.counts, longest({reason: n for reason, n in run.queue.items() if reason != "issued"})
        head = (run.state.number, run.executed, run.cycles, run.math_cycles, c.macs, c.a_bytes_loaded)
        rows.append((*head, lines_of(run), c.l1_misses, c.l2_misses, waits))
    return Table(_PES, rows)


def lines_of(part: Any) -> int:
    """Cache lines that mm touched, and ld and st asked for, of a line of a program or a whole run."""
    return int(part.counts.l1_touches + part.traffic.load_lines + part.traffic.store_lines)


def remark_errors(errors: Sequence[Any]) -> None:
    """The first error records on stderr."""
    for line in first_rows(errors, 5, noun=" error records"):
        remark(line)


def timeline_text(events: Sequence[trace.Event]) -> str:
    """What is said of a Perfetto trace that was written."""
    return f"{len(events)} events; open it at https://ui.perfetto.dev"


def asm(file: File, settings: Settings = None, *, to: Annotated[Output, Files(".tasm the canonical text")]) -> None:
    """Assemble a program and print it in canonical form, each instruction with its address."""
    program = isa.assemble(read_text(file), configured(settings))
    rows = [
        {"pc": pc, "text": str(it), "name": it.name, "unit": it.spec.unit, "line": it.line}
        for pc, it in enumerate(program.instructions)
    ]
    value = {"instructions": rows, "labels": dict(program.labels)}
    deliver(Answer(lambda: value, lambda: [program.listing()]), to, {".tasm": lambda: f"{program}\n"}, said=())


def run(
    file: File,
    tensors: Tensors,
    save: Annotated[list[str] | None, "--save NAME=FILE.npy", "Write a tensor after the run."] = None,
    every_pe: EveryPe = False,
    settings: Settings = None,
    *,
    to: Annotated[Output, Files(".pftrace", stdout=False)],
) -> int:
    """Run a program; print counts, cycles, errors, and the tensors that began as zeros.

    FILE may be a model that `isa compile -o FILE.bundle` wrote: --tensor 0=FILE.npy gives its first argument.
    """
    if file != "-" and zipfile.is_zipfile(file):
        return _run_bundle(file, tensors.tensor, save, to)
    config = configured(settings)
    program = isa.assemble(read_text(file), config)
    memory = tensors.arrays(program)
    if config.pes > 1 and not every_pe:
        remark(f"PE 0 of {config.pes} runs the program; --every-pe starts it on all")
    traced = to.path is not None
    with progress(file) as bar:
        if every_pe:
            runs = started(program, memory, config, trace=traced).run(watch(bar, 0))
        else:
            runs = [isa.MatrixUnit(config).run(program, memory, trace=traced, watch=watch(bar, 0))]
    for name, path in _saved(save):
        write_file(path, npy_bytes(runs[0].tensor(name)), note=None)
    shown = [assigned(shape, "--zeros", "")[0] for shape in tensors.zeros or ()]
    events = isa.timeline(runs) if traced else ()
    forms = {".pftrace": lambda: trace.perfetto_bytes(events)}
    deliver(_run_answer(runs, shown), to, forms, wrote=timeline_text(events))
    errors = [error for run in runs for error in run.errors]
    remark_errors(errors)
    return 1 if errors else 0


def _saved(save: Sequence[str] | None) -> list[tuple[str, str]]:
    return [assigned(each, "--save", "NAME=FILE.npy") for each in save or ()]


def _run_bundle(file: str, tensor: list[str] | None, save: Sequence[str] | None, to: Output) -> int:
    """A compiled model, with the arguments it was written with or others."""
    given = Tensors(tensor).arrays()
    if unknown := next((name for name in given if not name.isdecimal()), None):
        raise UsageError(f"no argument called {unknown}", how="--tensor 0=FILE.npy is the first, 1 the second")
    results, report = isa.load_bundle(file).run({int(name): array for name, array in given.items()})
    for name, path in _saved(save):
        if not name.isdecimal() or int(name) >= len(results):
            raise UsageError(f"no result {name}", how=f"0 to {len(results) - 1}")
        write_file(path, npy_bytes(results[int(name)]), note=None)
    deliver(report, Output(as_json=to.as_json))
    return 0


def _run_answer(runs: Sequence[isa.RunResult], shown: Sequence[str]) -> Answer:
    """Counts of all processing elements together, cycles and accounts of the one done last."""
    last = max(runs, key=lambda run: run.cycles)
    counts = last.counts.together(run.counts for run in runs).to_dict()
    used = sum(run.math_utilisation * run.cycles for run in runs) / max(1, last.cycles * len(runs))
    took = numbers(last) | {name: sum(getattr(run, name) for run in runs) for name in ("executed", "energy_pj")}
    took |= {"bytes": last.moved.together(run.moved for run in runs).bytes, "math_utilisation": used}
    took |= {"traffic": last.traffic.together(run.traffic for run in runs).to_dict()}

    def to_json() -> dict[str, Any]:
        keys = ("pc", "kind", "column", "register", "pe")
        errors = [{key: getattr(error, key) for key in keys} for run in runs for error in run.errors]
        tensors = {name: finite(last.tensor(name)) for name in shown}
        pes = pes_value(runs) if len(runs) > 1 else []
        return {"counts": counts, **took, "errors": errors, "tensors": tensors, "pes": pes}

    def lines() -> Iterator[Line]:
        yield from (f"{name} =\n{last.tensor(name)}\n" for name in shown)
        if len(runs) > 1:
            yield from (pes_table(runs), "")
        yield f"{took['executed']:,} instructions executed, {last.cycles:,} cycles by the model"
        yield from (f"{key:20} {count:,}" for key, count in counts.items() if count)
        yield from took_lines(took)

    return Answer(to_json, lines)


def reference() -> None:
    """Print the instruction reference (Markdown)."""
    show([isa.reference()])


def claims(to: Json) -> None:
    """Count what the instruction's source claims, where it holds and where it does not."""
    rows = isa.claims()
    keys = ["claim", "case", "counted", "without", "with", "factor", "holds", "remark"]
    keys += ["cycles", "times_faster", "confirmed", "why"]
    values = [{key: getattr(row, "with_it" if key == "with" else key) for key in keys} for row in rows]

    def lines() -> Iterator[Line]:
        title = ""
        for row in rows:
            if row.claim != title:
                yield "\n" * bool(title) + row.claim
                title = row.claim
            yield f"  {row.case}"
            numbers = f"{row.without:,} -> {row.with_it:,} {row.counted}, {row.factor:.4g} times"
            yield f"    {numbers}: {row.remark}"
            if row.cycles:
                why = f": {row.why}" * bool(row.why)
                word = " (not confirmed)" * (row.holds and not row.confirmed)
                yield f"    {row.cycles[0]:,} -> {row.cycles[1]:,} cycles, {row.times_faster:.4g} times{word}{why}"

    deliver(Answer(lambda: {"claims": values}, lines), to)


def compile(
    program: Annotated[str, Argument(help="model.py:function, or StableHLO in any form; - is stdin.")],
    arg: ArgOption = None,
    run: Annotated[bool, "Run it with its example arguments and hold every layer against XLA."] = False,
    listing: Annotated[bool, "Print every layer's tables and programs."] = False,
    settings: Settings = None,
    *,
    to: Annotated[Output, Files(".html", ".json", ".tasm the listing", ".bundle for `isa run`")],
) -> None:
    """Compile a model for the matrix unit: every layer with its cycles, bytes, and why it is not on the machine."""
    compiled = isa.compile(load_program(program, arg), config=configured(settings, kb_mode="chunk"))
    if to.path is not None and to.suffix == ".bundle":
        compiled.save(to.path)
        remark(f"wrote {to.path}")
        to = Output(as_json=to.as_json)
    with progress(program) as bar:
        report = compiled.check(watch=bar) if run else compiled.estimate(bar)

    def lines() -> Iterator[Line]:
        if listing:
            yield compiled.listing
            return
        yield from report.lines()
        if run:
            yield "every layer's values are XLA's"

    command = "" if program == "-" else this_command()
    forms = {".html": lambda: f"{report.to_html(command)}\n", ".tasm": lambda: f"{compiled.listing}\n"}
    deliver(Answer(report.to_json, lines), to, forms)
