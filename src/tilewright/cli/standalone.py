"""`tilewright targets`, `explore`, `explain-error` and `warm`: commands that belong to no group."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from tilewright.cli.embed.diagnose import (
    Error,
    MaxIds,
    SparseCores,
    StackWidth,
    error_text,
    explanation_text,
    no_such_file,
)
from tilewright.cli.streams import Json, progress, read_bytes
from tilewright.errors import UsageError
from tilewright.extras import need
from tilewright.render.deliver import Answer, Output, deliver, json_text, remark, show, write_file
from tilewright.render.tables import Table

if TYPE_CHECKING:
    from tilewright.embed import ErrorExplanation
    from tilewright.explore import Explorer
    from tilewright.hlo import AllocationReport, KernelError
    from tilewright.targets import Target


def targets(
    name: Annotated[str | None, Argument(help="A target's name, or a TOML file of your own.")] = None,
    as_json: Json = False,
) -> None:
    """List the targets, or print one with the source of every constant."""
    from tilewright.targets import target, target_names

    if name is not None:
        chip = target(name)
        constants = Table(("constant", "value", "source"), _constants(chip), chip.title)
        deliver(Answer(lambda: _chip_value(chip), lambda: [constants]), Output(as_json=as_json))
        return
    chips = [target(known) for known in target_names()]
    rows = []
    for t in chips:
        size = f"{t.memories[0].bytes / 2**30:g} GiB" if t.memories else ""
        rows.append((t.name, t.title, t.family, size, str(t.sparse.per_chip) if t.sparse else ""))
    listed = Table(("target", "what it is", "family", "main memory", "sparse cores"), rows)
    values = [{"name": t.name, "title": t.title, "family": t.family} for t in chips]
    deliver(Answer(lambda: {"targets": values}, lambda: [listed]), Output(as_json=as_json))


def _chip_value(chip: Target) -> dict[str, Any]:
    parts = {f.name: getattr(chip, f.name) for f in fields(chip)}
    values = {k: asdict(v) if is_dataclass(v) and not isinstance(v, type) else v for k, v in parts.items()}
    values["memories"] = [asdict(m) for m in chip.memories]
    values["types"], values["sources"] = dict(chip.types), dict(chip.sources)
    values["time"] = {
        name: {"values": dict(known.values), "fitted_on": known.fitted_on, "error": known.error}
        for name, known in chip.time.items()
    }
    return values


def _constants(chip: Target) -> Iterator[tuple[str, str, str]]:
    """Every constant of a chip: its key, its value, and the source of it or of its section."""
    for key in ("family", "layout_rule", "compiler_normalizes", "short_run_bytes", "short_kept_run_bytes"):
        yield key, str(getattr(chip, key)), chip.sources["target"]
    sections: list[tuple[str, Any]] = [(f"memory.{m.name}", m) for m in chip.memories]
    sections += [(f.name, getattr(chip, f.name)) for f in fields(chip) if is_dataclass(getattr(chip, f.name))]
    values = {section: {f.name: str(getattr(part, f.name)) for f in fields(part)} for section, part in sections}
    values["types"] = dict(chip.types)
    values |= {f"time.{name}": {k: f"{v:g}" for k, v in known.values.items()} for name, known in chip.time.items()}
    for section, constants in values.items():
        for key, value in constants.items():
            yield f"{section}.{key}", value, chip.sources.get(f"{section}.{key}") or chip.sources[section]


def warm(as_json: Json = False) -> None:
    """Compile all kernels, or load them from the cache, so that a first use does not wait."""
    from tilewright import embed, isa, layout
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
    deliver(Answer(lambda: value, lambda: [table]), Output(as_json=as_json))
    if not as_json:
        kept = f"kept in {cache_text()}" if cache_text() else "kept nowhere: the cache folder cannot be written"
        remark(f"{compiled_now} compiled, the others were there; {kept}")


def explore(
    file: Annotated[
        str | None,
        Argument(
            metavar="[FILE]",
            help="A program (HLO, StableHLO, a dump folder, FILE.py:FUNCTION), a .tasm or a model's .toml; - is stdin.",
        ),
    ] = None,
    port: Annotated[int, Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")] = 0,
    browser: Annotated[bool, Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Open a page that explores layouts, programs, matrix-unit programs and plans; nothing leaves this machine.

    The page's address is the first line of stdout. Only who has its token is answered, and only on this machine.
    Ctrl-C ends it.
    """
    need("starlette", "uvicorn", what="the explorer")
    from tilewright.explore import serve

    def opened(address: str) -> None:
        show([address])
        remark("Ctrl-C ends it")
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(_explorer(file), port, opened)


def _explorer(file: str | None) -> Explorer:
    """The explorer of a file: nothing else is read later."""
    from tilewright.explore import Explorer
    from tilewright.hlo import from_python, names_python

    if file is None:
        return Explorer()
    if file == "-":
        return Explorer(given=("stdin", read_bytes("-")))
    if names_python(file):
        remark(f"tracing {file}")
        program = from_python(file)
        texts = {str(op.source.file) for _, op in program.operations() if op.source}
        sources = {name: Path(name).read_text("utf-8", "replace") for name in texts if Path(name).is_file()}
        return Explorer(given=(f"{Path(file).name}.mlir", program.text.encode()), sources=sources)
    if not Path(file).exists():
        raise UsageError("no such file", where=file)
    return Explorer(Path(file))


def explain_error(
    error: Error,
    top: Annotated[int, Option("--top", min=1, help="How many allocations and fixes to print.")] = 10,
    width: StackWidth = None,
    max_ids: MaxIds = None,
    sparsecores: SparseCores = 16,
    as_json: Json = False,
) -> None:
    """Read a TPU's out-of-memory message: every padded array in it, and the changes that make it fit by bytes saved.

    Messages of the compiler and of the runtime, about HBM, vector memory and scalar memory, in any log, and what Pallas
    and Mosaic say of a kernel they refuse. --width, --max-ids and --sparsecores are for errors about SparseCore memory,
    as in `embed explain-error`.
    """
    text = error_text(error)
    try:
        reports, sparse, kernels = _explained(text, width, max_ids, sparsecores)
    except UsageError as problem:
        raise no_such_file(error, problem) from None
    if as_json:
        allocator = [report.to_json() for report in reports]
        sparsecore = [explanation.to_json() for explanation in sparse]
        refused = [error.to_json() for error in kernels]
        value = {"kind": "explained_errors", "allocator": allocator, "sparsecore": sparsecore, "kernels": refused}
        write_file("-", json_text(value))
        return
    from tilewright.hlo import print_allocation_report

    for number, report in enumerate(reports):
        if number:
            show([""])
        print_allocation_report(report, top)
    if sparse:
        show(["\n" * bool(reports) + "\n\n".join(map(explanation_text, sparse))])
    if kernels:
        show(["\n" * bool(reports or sparse) + "\n\n".join(map(str, kernels))])


def _explained(
    text: str, width: int | None, max_ids: int | None, sparsecores: int
) -> tuple[tuple[AllocationReport, ...], tuple[ErrorExplanation, ...], tuple[KernelError, ...]]:
    """What the text says of the TensorCore's memories, the SparseCores' and of kernels. UsageError where nothing."""
    from tilewright.embed import explain_error as explain
    from tilewright.embed import names_sparsecores
    from tilewright.hlo import explain_allocation, explain_kernel

    of_sparsecores, kernels = names_sparsecores(text), explain_kernel(text)
    try:
        reports = explain_allocation(text)
    except UsageError:
        if not of_sparsecores and not kernels:
            if re.search("Pallas|Mosaic", text):
                how = "docs/out_of_memory.md lists the known ones"
                raise UsageError("this message about a kernel is not known", where="explain-error", how=how) from None
            raise
        reports = ()
    if not of_sparsecores:
        return reports, (), kernels
    try:
        return reports, explain(text, width=width, max_ids=max_ids, sparsecores=sparsecores, hbm=False), kernels
    except UsageError as problem:  # only the head of an error, or a width that is not its own
        if not reports and not kernels:
            raise
        remark(f"SparseCores: {problem}")
        return reports, (), kernels
