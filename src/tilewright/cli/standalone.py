"""`tilewright run`, `targets`, `explore`, `explain-error` and `warm`: commands that belong to no group."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from tilewright import embed, hlo, isa, layout, machine
from tilewright import explore as explorer
from tilewright import targets as chips_known
from tilewright.cli.embed.diagnose import Error, StackOptions, explained, explanation_text
from tilewright.cli.isa.machine import Settings, configured
from tilewright.cli.options import Json
from tilewright.cli.programs.program import ArgOption
from tilewright.cli.streams import progress, read_bytes
from tilewright.errors import CheckFailed, UsageError
from tilewright.extras import installed, need
from tilewright.files import making_folder
from tilewright.render.delivery import Answer, Line, deliver, remark, show
from tilewright.render.formats import seconds_text
from tilewright.render.tables import Table


def run(
    model: Annotated[str, Argument(help="A model file such as examples/dlrm.py, model.py:function, or StableHLO.")],
    target: Annotated[str, "--target", "-t", "tpu-* (modelled), simt (run), bm1684x (memory plan)."] = "tpu-v5p",
    chips: Annotated[int, "Number of chips."] = 1,
    data: Annotated[str | None, "Criteo TSV or CSV; without it a log is generated."] = None,
    steps: Annotated[int, "Training steps."] = 100,
    batch: Annotated[int, "Samples per step, over all chips."] = 512,
    out: Annotated[str, "Folder of report.html, report.json and trace.pftrace."] = "out",
    scale: Annotated[float, "Share of Criteo's published vocabularies to keep."] = 0.01,
    seed: Annotated[int, "Seed of data, parameters and tables."] = 0,
    arg: ArgOption = None,
    settings: Settings = None,
    *,
    to: Json,
) -> None:
    """Plan, rewrite, prove, train and count a model, or run any program on a target; write one report."""
    need("jax", "optax", "orbax", what="`run`")
    if not installed("perfetto"):
        remark("note: no trace.pftrace will be written; pip install 'tilewright[trace]' brings what writes it")

    # A folder that cannot be written to is better known now than after the run.
    with making_folder(out), _stage_lines() as watch:
        report = machine.run(
            *(model, target, chips, steps, batch),
            data=data,
            scale=scale,
            seed=seed,
            watch=watch,
            arguments=arg or (),
            config=configured(settings, kb_mode="chunk") if settings else None,
        )
        watch("report", 0, 0)
        written = report.write(out)
    deliver(report, to)
    remark(f"wrote {', '.join(str(path) for path in written)}")
    if report.failures:
        raise CheckFailed("; ".join(report.failures), where=model)


@contextmanager
def _stage_lines() -> Iterator[Callable[[str, int, int], None]]:
    """The progress of a run's stages, one after the other; a line for each that ended."""
    with ExitStack() as shown:
        stage, since, advance = "", 0.0, None

        def watch(name: str, done: int, total: int) -> None:
            nonlocal stage, since, advance
            if name != stage:
                shown.close()
                if stage:
                    remark(f"{stage}: {seconds_text(time.perf_counter() - since)}")
                stage, since = name, time.perf_counter()
                advance = shown.enter_context(progress(name)) if name else None
            if total and advance is not None:
                advance(done, total)

        yield watch
        watch("", 0, 0)


def targets(
    name: Annotated[str | None, Argument(help="A target's name, or a TOML file of your own.")] = None, *, to: Json
) -> None:
    """List the targets, or print one with the source of every constant."""
    import msgspec

    if name is not None:
        chip = chips_known.target(name)
        value = msgspec.to_builtins(chip, enc_hook=dict) | {"types": dict(chip.types)}
        for constants_of_time in value["time"].values():
            del constants_of_time["seen"]
        table = Table(("constant", "value", "source"), _constants(chip), chip.title)
    else:
        chips, rows = [chips_known.target(known) for known in chips_known.target_names()], []
        for t in chips:
            size = f"{t.memories[0].bytes / 2**30:.4g} GiB" if t.memories else ""
            devices = "" if t.devices_per_chip == 1 else str(t.devices_per_chip)
            rows.append((t.name, t.title, t.family, size, devices, str(t.sparse.per_chip) if t.sparse else ""))
        heads = ("target", "what it is", "family", "main memory", "devices a chip", "sparse cores a chip")
        value = {"targets": [{"name": t.name, "title": t.title, "family": t.family} for t in chips]}
        table = Table(heads, rows)
    deliver(Answer(lambda: value, lambda: [table]), to)


_COMPILER = ("normalizes", "masks_groups", "sends_rows", "widens", "sums_products")
_LAYOUTS = ("layout_rule", *(f"compiler_{does}" for does in _COMPILER))
_PLAIN = ("family", *_LAYOUTS, "devices_per_chip", "short_run_bytes", "short_kept_run_bytes")


def _constants(chip: chips_known.Target) -> Iterator[tuple[str, str, str]]:
    """Every constant of a chip: its key, its value, and the source of it or of its section."""
    for key in _PLAIN:
        yield key, str(getattr(chip, key)), chip.sources["target"]
    if chip.caveat:
        yield "caveat", chip.caveat, chip.sources["target"]
    sections: list[tuple[str, Any]] = [(f"memory.{m.name}", m) for m in chip.memories]
    sections += [(f.name, getattr(chip, f.name)) for f in fields(chip) if is_dataclass(getattr(chip, f.name))]
    values = {section: {f.name: str(getattr(part, f.name)) for f in fields(part)} for section, part in sections}
    values["types"] = dict(chip.types)
    values |= {f"time.{name}": {k: f"{v:g}" for k, v in known.values.items()} for name, known in chip.time.items()}
    for section, constants in values.items():
        for key, value in constants.items():
            yield f"{section}.{key}", value, chip.sources.get(f"{section}.{key}") or chip.sources[section]


def warm(to: Json) -> None:
    """Compile all kernels, or load them from the cache, so that a first use does not wait."""
    from tilewright.kernels import cache_text, compiled

    kernels: list[tuple[str, str, float]] = []
    with progress("compiling kernels") as advance:
        for room, warm_room in (("layout", layout.warm), ("isa", isa.warm), ("embed", embed.warm)):

            def report(name: str, seconds: float, room: str = room) -> None:
                kernels.append((room, name, seconds))
                advance(len(kernels), note=f"{room}: {name}")

            warm_room(report)
    compiled_now = sum(compiled().values())
    rows = [{"room": room, "name": name, "seconds": round(seconds, 4)} for room, name, seconds in kernels]
    value = {"folder": cache_text(), "compiled": compiled_now, "kernels": rows}
    table = Table(("for", "kernels", ("time", "seconds")), kernels)
    deliver(Answer(lambda: value, lambda: [table]), to)
    if not to.as_json:
        kept = f"kept in {cache_text()}" if cache_text() else "kept nowhere: the cache folder cannot be written"
        remark(f"{compiled_now} compiled, the others were there; {kept}")


def explore(
    file: Annotated[
        str | None, Argument(help="A program (HLO, StableHLO, dump folder, FILE.py:FN), .tasm or .toml; - is stdin.")
    ] = None,
    port: Annotated[int, Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 0,
    browser: Annotated[bool, "--browser/--no-browser", "Open the page in a browser."] = True,
) -> None:
    """Open a page that explores layouts, programs, kernels, the matrix unit and plans; nothing leaves this machine.

    The page's address is the first line of stdout. Only who has its token is answered, and only on this machine.
    Ctrl-C ends it.
    """
    need("starlette", "uvicorn", what="the explorer")

    def opened(address: str) -> None:
        show([address])
        remark("Ctrl-C ends it")
        if browser:
            import webbrowser

            webbrowser.open(address)

    explorer.serve(_explorer(file), port, opened)


def _explorer(file: str | None) -> explorer.Explorer:
    """The explorer of a file; no other file is read later."""
    if file is None:
        return explorer.Explorer()
    if file == "-":
        return explorer.Explorer(given=("stdin", read_bytes("-")))
    if hlo.names_python(file):
        remark(f"tracing {file}")
        program = hlo.from_python(file)
        texts = {str(op.source.file) for _, op in program.operations() if op.source}
        sources = {name: Path(name).read_text("utf-8", "replace") for name in texts if Path(name).is_file()}
        return explorer.Explorer(given=(f"{Path(file).name}.mlir", program.text.encode()), sources=sources)
    if not Path(file).exists():
        raise UsageError("no such file", where=file)
    return explorer.Explorer(Path(file))


def explain_error(
    error: Error,
    top: Annotated[int, Option(min=1, help="How many allocations and fixes to print.")] = 10,
    *,
    stack: StackOptions,
    to: Json,
) -> None:
    """Read a TPU's out-of-memory message: every padded array in it, and the changes that make it fit by bytes saved.

    Messages of the compiler and of the runtime, about HBM, vector memory and scalar memory, in any log, and what Pallas
    and Mosaic say of a kernel they refuse. --width, --max-ids and --sparsecores are for errors about SparseCore memory,
    as in `embed explain-error`.
    """
    reports, sparse, kernels = explained(error, lambda text: _explained(text, stack))
    found: dict[str, Sequence[Any]] = {"allocator": reports, "sparsecore": sparse, "kernels": kernels}
    value = {name: [each.to_json() for each in some] for name, some in found.items()}

    def lines() -> Iterator[Line]:
        parts: list[Iterable[Line]] = [report.lines(top) for report in reports]
        parts += [[text] for text in (*map(explanation_text, sparse), *map(str, kernels))]
        for number, part in enumerate(parts):
            yield from ([""] if number else [])
            yield from part

    deliver(Answer(lambda: {"kind": "explained_errors", **value}, lines), to)


def _explained(
    text: str, stack: StackOptions
) -> tuple[tuple[hlo.AllocationReport, ...], tuple[embed.ErrorExplanation, ...], tuple[hlo.KernelError, ...]]:
    """What the text says of the TensorCore's memories, the SparseCores' and of kernels. UsageError where nothing."""
    of_sparsecores, kernels = embed.ErrorExplanation.is_in(text), hlo.explain_kernel(text)
    reports: tuple[hlo.AllocationReport, ...] = ()
    try:
        reports = hlo.explain_allocation(text)
    except UsageError:
        if not of_sparsecores and not kernels:
            if re.search("Pallas|Mosaic", text):
                how = "docs/out_of_memory.md lists the known ones"
                raise UsageError("this message about a kernel is not known", where="explain-error", how=how) from None
            raise
    try:
        return reports, embed.explain_error(text, **vars(stack), hbm=False) if of_sparsecores else (), kernels
    except UsageError as problem:  # only the head of an error, or a width that is not its own
        if not reports and not kernels:
            raise
        remark(f"SparseCores: {problem}")
        return reports, (), kernels
