"""Which operations share a kernel: what is predicted from StableHLO, held to the TPU compiler's modules.

    python benchmarks/public_models.py make FOLDER
    python benchmarks/shared_kernels.py make FOLDER [--only NAME ...] [--chips v6e ...]
    python benchmarks/shared_kernels.py table FOLDER [--only NAME ...] [--chips v6e ...] [--docs docs/time.md]

The first writes public models' functions as StableHLO, of packages whose versions it states. ``make`` has the compiler
(``pip install "jax[tpu]"``, no TPU is needed) make modules of them, for v6e of all, for the other chips of every sixth:
FOLDER/kernels/CHIP.NAME.hlo. A module is taken as the passes over HLO leave it, scheduled, with memory spaces, before
machine code is made of it, which takes a hundred times longer and changes no fusion. ``table`` compares, prints a line
for each function and the totals, and writes ``benchmarks/data/shared_kernels.csv``; with ``--docs`` its tables into
that page.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from math import exp, log
from pathlib import Path
from statistics import mean, median

import networks

from tilewright.errors import TilewrightError
from tilewright.hlo import estimate, load
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import CONTROL, PRODUCTS, TAKES_NO_TIME
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.reading.hlo_scan import array_shapes
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.timing.chip import chip_of
from tilewright.hlo.timing.fusing import Fusing
from tilewright.targets import target

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "data" / "shared_kernels.csv"
CHIPS = ("v6e", "v5e", "v5p", "7x")
EVERY = 6
"""Of how many functions one is compiled for the chips behind the first."""
BEGIN, END = "<!-- kernels: benchmarks/shared_kernels.py -->", "<!-- end of kernels -->"
HEAVY = {**dict.fromkeys(PRODUCTS, "product"), "reduce": "reduce", "reduce-window": "window", "gather": "gather",
         "scatter": "scatter", "sort": "sort", "select-and-scatter": "window"}  # fmt: skip
"""Operations whose kernels are compared, and what they are called."""
COMPUTED = {**dict.fromkeys(("exponential", "exponential-minus-one", "logistic"), "exponential"),
            **dict.fromkeys(("rsqrt", "sqrt"), "root"), **dict.fromkeys(("log", "log-plus-one"), "log"),
            "tanh": "tanh", "sine": "sine", "cosine": "cosine"}  # fmt: skip
"""Elementwise operations that tell which chain stands in a kernel, by what the compiler makes of them."""
SMALL = 1 << 14
"""Bytes of an array below which its place is not compared."""
BEHIND = "after_optimizations_after_buffer_assignment.txt"
"""How the name of the dump ends that has the module behind all passes over HLO."""


# -- make --------------------------------------------------------------------------------------------------------------


def in_repository() -> dict[str, str]:
    """Programs that need no package: name -> StableHLO."""
    example = (ROOT / "examples" / "group_norm.mlir").read_text()
    own = {"decoder": networks.decoder(258), "deep_network": networks.deep_network(80), "group_norm": example}
    return {f"here.{name}": text for name, text in own.items()}


def functions(folder: Path, only: Collection[str] = ()) -> list[Path]:
    """The StableHLO texts of the folder."""
    return [path for path in sorted(folder.glob("*.mlir")) if not only or any(word in path.name for word in only)]


def put_own(folder: Path) -> None:
    """Put the programs that stand in the repository beside the others."""
    for name, text in in_repository().items():
        (folder / f"{name}.mlir").write_text(text)


def make(folder: Path, only: Collection[str], chips: Collection[str], seconds: float) -> None:
    """Write the modules that are not there yet; what the compiler refuses is printed."""
    subprocess.run([sys.executable, __file__, "own", str(folder)], check=True)  # whoever lowers cannot fork any more
    import jax  # noqa: F401  before the forks, each of which would import it

    modules = folder / "kernels"
    modules.mkdir(exist_ok=True)
    for chip in CHIPS:
        for number, path in enumerate(functions(folder, only)):
            some = number % EVERY == 0 or path.name.startswith("here.")
            if chip not in chips or not (some or only or chip == CHIPS[0]):
                continue
            to = modules / f"{chip}.{path.stem}.hlo"
            if not to.exists():
                begin = time.monotonic()
                why = _compiled(path, chip, to, seconds)
                print(f"{to.stem}: {why or 'made'}, {time.monotonic() - begin:.1f} s", flush=True)


def _compiled(path: Path, chip: str, to: Path, seconds: float) -> str:
    """Have a child compile, and end it when its passes over HLO are done; why there is no module, "" if there is."""
    dumps = to.with_suffix(".dumps")
    shutil.rmtree(dumps, ignore_errors=True)
    child = os.fork()
    if not child:
        os.environ |= {"XLA_FLAGS": f"--xla_dump_to={dumps} --xla_dump_hlo_as_text", "JAX_PLATFORMS": "cpu",
                       "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_MIN_LOG_LEVEL": "3",
                       "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_LIBRARY_LOCK": "0"}  # fmt: skip
        from tilewright.hlo.proving import tpu

        answer = tpu._answer(**tpu.chip_topology(chip), program=load(path).text)
        dumps.with_suffix(".why").write_text(answer.get("error", ""))
        os._exit(0)
    why, end, size = "not done in time", time.monotonic() + seconds, 0
    while time.monotonic() < end:
        gone = os.waitpid(child, os.WNOHANG)[0]
        text = max(dumps.glob(f"*{BEHIND}"), key=lambda file: file.stat().st_size, default=None)
        if text is not None and (gone or text.stat().st_size == size > 0):
            to.write_text(text.read_text())
            why = ""
            break
        size = text.stat().st_size if text is not None else 0
        if gone:
            said = dumps.with_suffix(".why")
            why = said.read_text() if said.exists() else "the compiler ended"
            break
        time.sleep(0.25)
    if not gone:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    shutil.rmtree(dumps, ignore_errors=True)
    dumps.with_suffix(".why").unlink(missing_ok=True)
    return why


# -- table -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Array:
    """A written array: its type and sizes without those of 1, whether it stays in vector memory, its order, bytes."""

    of: tuple[str, tuple[int, ...]]
    near: bool
    order: tuple[int, ...]
    bytes: int
    result: bool = False


@dataclass(frozen=True)
class Kernel:
    """A kernel: what it writes, and of its operations (kind, framework's name, elements of the result)."""

    writes: tuple[Array, ...]
    operations: tuple[tuple[str, str, int], ...]

    def heavy(self) -> Iterator[tuple[str, str, int]]:
        return (each for each in self.operations if each[0] in HEAVY.values())


@dataclass(frozen=True)
class Row:
    """One function on one chip: predicted figures beside those of its module, and shares that agree."""

    function: str
    chip: str
    kernels: int  # that are predicted, and
    compiled: int  # that the module has
    heavy: int  # operations that both have, and the shares of them whose kernels have
    partners: float  # the same other products, reductions, gathers and sorts
    chain: float  # the same transcendental operations
    written: float  # results of the same types and sizes
    placed: float  # share of bytes of arrays in the same memory
    ordered: float  # share of bytes of arrays in the same order of dims
    bytes: int  # through HBM
    bytes_compiled: int
    us: float
    us_compiled: float


def _array(layout: object, result: bool) -> Array:
    order = [dim for dim in layout.minor_to_major if layout.shape[dim] > 1]
    rank = {dim: k for k, dim in enumerate(sorted(order))}
    sizes = tuple(size for size in layout.shape if size > 1)
    near = bool(layout.memory_space)
    return Array((str(layout.dtype), sizes), near, tuple(rank[dim] for dim in order), layout.size_bytes, result)


def _said(op: Operation, elements: int) -> tuple[str, str, int] | None:
    """An operation as it is looked for in the other program; None for those that are not compared."""
    kind = plain_opcode(op.opcode)
    called = HEAVY.get(kind) or COMPUTED.get(kind)
    return (called, op.op_name.rpartition("/")[2], elements) if called else None


def predicted(program: Program, chip: str) -> list[Kernel]:
    """The kernels that a StableHLO program is said to become."""
    machine = target(f"tpu-{chip}")
    context, found = Context(program, machine), list[Kernel]()
    outer = Fusing(chip_of(machine), context, program.entry)
    todo = [(program.entry, outer)]
    for computation, fusing in todo:
        entry = computation.entry
        seconds = {name for names in fusing.joined.values() for name in names}
        for op in fusing.operations:
            kind = plain_opcode(op.opcode)
            if kind == "while" and op.calls:
                for callee in op.calls:
                    body = program.by_name[callee]
                    todo.append((body, Fusing(outer.chip, context, body, fusing)))
            if op.name in fusing.through or op.name in seconds or kind in TAKES_NO_TIME | CONTROL | {"iota"}:
                continue
            names, members = [op.name, *fusing.joined.get(op.name, ())], dict[str, float]()
            for name in names:
                members |= fusing.members(fusing.by_name[name])[1]
            writes = []
            for name in names:
                for layout in context.layouts(
                    fusing.by_name[name].shape.replace("f32", "bf16", name in fusing.narrowed)
                ):
                    array = _array(layout, entry and name in fusing.results)
                    writes.append(Array(array.of, name in fusing.near, *list(astuple(array))[2:]))
            inside = [fusing.by_name[name] for name in members]
            found.append(Kernel(tuple(writes), tuple(_listed(context, inside))))
            found += [Kernel((), ()) for each in fusing.kernels.get(op.name, ()) if each.opcode == "copy"]
    return found


def _listed(context: Context, inside: Iterable[Operation]) -> Iterator[tuple[str, str, int]]:
    for op in inside:
        try:
            elements = sum(layout.num_elements for layout in context.layouts(op.shape))
        except TilewrightError:
            continue
        if said := _said(op, elements):
            yield said


def compiled(program: Program) -> list[Kernel]:
    """The kernels of a module."""
    context, found = Context(program, None), list[Kernel]()
    todo = [program.entry.name]
    for name in todo:
        computation = program.by_name[name]
        for op in computation.operations:
            kind = plain_opcode(op.opcode)
            if op.opcode in CONTROL:
                todo += op.calls
                continue
            if kind in TAKES_NO_TIME | {"iota"} or kind.endswith(("-start", "-done", "-update")):
                continue
            if (
                kind == "custom-call"
                and not op.calls
                and "tpu_custom" not in op.attributes.get("custom_call_target", "")
            ):
                continue
            inside, calls = [op], list(op.calls) if kind == "fusion" else []
            for callee in calls:
                inside += program.by_name[callee].operations
                calls += [
                    each
                    for inner in program.by_name[callee].operations
                    if inner.opcode == "fusion"
                    for each in inner.calls
                ]
            root = computation.entry and op.root
            writes = tuple(
                _array(layout, root) for shape in array_shapes(op.shape) for layout in context.layouts(shape)
            )
            found.append(Kernel(writes, tuple(_listed(context, inside))))
    return found


def compared(name: str, chip: str, source: Program, module: Program) -> Row:
    """What is predicted of a function beside what its module says."""
    ours, theirs = predicted(source, chip), compiled(module)
    pairs = list(_pairs(ours, theirs))
    shares = [mean(a == b for a, b in some) if some else 1.0 for some in zip(*(zip(a, b) for a, b in pairs))]
    shares = shares or [1.0] * 3
    places, orders = (_agreeing(ours, theirs, by) for by in ("near", "order"))
    steps = estimate(source, f"tpu-{chip}"), estimate(module, f"tpu-{chip}")
    bytes_, us = ([getattr(step, key) for step in steps] for key in ("bytes", "device_seconds"))
    return Row(name, chip, len(ours), len(theirs), len(pairs), *shares, places, orders, *bytes_, *(1e6 * t for t in us))


_Facts = tuple[object, object, object]
"""Of a heavy operation's kernel: the other heavy operations, the transcendental ones, what it writes."""


def _pairs(ours: Sequence[Kernel], theirs: Sequence[Kernel]) -> Iterator[tuple[_Facts, _Facts]]:
    """The facts of heavy operations that both sides have: of several alike, those that agree are paired."""
    sides = [defaultdict[tuple[str, str, int], list[_Facts]](list) for _ in range(2)]
    for kernels, side in zip((ours, theirs), sides):
        for kernel in kernels:
            heavy = Counter(kind for kind, _, _ in kernel.heavy())
            chain = frozenset(kind for kind, _, _ in kernel.operations if kind not in HEAVY.values())
            written = frozenset((array.of[0], tuple(sorted(array.of[1]))) for array in kernel.writes)
            for each in kernel.heavy():
                side[each].append((heavy, chain, written))
    for each, mine in sides[0].items():
        others = list(sides[1][each])
        for fact in sorted(mine, key=lambda fact: -max((_alike(fact, other) for other in others), default=0)):
            if others:
                best = max(others, key=lambda other: _alike(fact, other))
                others.remove(best)
                yield fact, best


def _alike(a: _Facts, b: _Facts) -> int:
    return sum(x == y for x, y in zip(a, b))


def _agreeing(ours: Sequence[Kernel], theirs: Sequence[Kernel], by: str) -> float:
    """Share of the bytes of arrays that both sides write for which they say the same; results always lie in HBM."""
    sides = [defaultdict[tuple[str, tuple[int, ...]], Counter[object]](Counter) for _ in range(2)]
    for kernels, side in zip((ours, theirs), sides):
        for array in (array for kernel in kernels for array in kernel.writes if array.bytes >= SMALL):
            side[array.of][getattr(array, by)] += array.bytes
    both = [(sides[0][of], sides[1][of]) for of in sides[0].keys() & sides[1].keys()]
    whole = sum(min(sum(a.values()), sum(b.values())) for a, b in both)
    return sum(sum(min(a[value], b[value]) for value in a) for a, b in both) / whole if whole else 1.0


def table(folder: Path, only: Collection[str], chips: Collection[str]) -> Iterator[Row]:
    """A row for every function and chip that has a module, printed as it is made."""
    for path in functions(folder, only):
        for chip in (chip for chip in CHIPS if chip in chips):
            module = folder / "kernels" / f"{chip}.{path.stem}.hlo"
            if module.exists():
                try:
                    row = compared(path.stem, chip, load(path), load(module))
                except TilewrightError as error:
                    print(f"{chip}.{path.stem}: {error}")
                    continue
                print(shown(row), flush=True)
                yield row


def shown(row: Row) -> str:
    """A row of the table."""
    kernels, shares = (
        f"{row.kernels} | {row.compiled} | {row.heavy}",
        (row.partners, row.chain, row.written, row.placed, row.ordered),
    )
    ratios = f"{row.bytes / max(1, row.bytes_compiled):.2f} | {row.us:.4g} | {row.us / row.us_compiled:.2f}"
    return f"| `{row.function}` | {row.chip} | {kernels} | {' | '.join(f'{100 * x:.0f}' for x in shares)} | {ratios} |"


SHARES = ("partners %", "chain %", "written %", "memory %", "order %")


def heading(first: Sequence[str], last: Sequence[str], words: int) -> str:
    """A table's first two lines; so many columns of words stand before those of numbers."""
    titles = (*first, "kernels", "compiled", "heavy", *SHARES, *last)
    return f"| {' | '.join(titles)} |\n|{'---|' * words}{'--:|' * (len(titles) - words)}"


HEAD = heading(("function", "chip"), ("HBM bytes, ratio", "us", "ratio"), 2)


def totals(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each chip, and for all."""
    yield heading(("chip", "functions"), ("HBM bytes off %", "time off % (mean / median)", "beyond 30 %"), 1)
    for chip in (*CHIPS, "all"):
        some = [row for row in rows if chip in (row.chip, "all")]
        if not some:
            continue
        heavy = sum(row.heavy for row in some)
        of_heavy = (
            sum(getattr(row, key) * row.heavy for row in some) / max(1, heavy)
            for key in ("partners", "chain", "written")
        )
        of_bytes = (mean(getattr(row, key) for row in some) for key in ("placed", "ordered"))
        shares = " | ".join(f"{100 * x:.1f}" for x in (*of_heavy, *of_bytes))
        off = [exp(abs(log(row.us / row.us_compiled))) - 1 for row in some]
        moved = median(exp(abs(log(max(1, row.bytes) / max(1, row.bytes_compiled)))) - 1 for row in some)
        counts = f"{len(some)} | {sum(row.kernels for row in some)} | {sum(row.compiled for row in some)} | {heavy}"
        yield (
            f"| {chip} | {counts} | {shares} | {100 * moved:.1f} | {100 * mean(off):.1f} / {100 * median(off):.1f} | "
            f"{sum(x > 0.3 for x in off)} |"
        )


def section(rows: Sequence[Row]) -> str:
    """The part of a page between the two marks: the totals, and the v6e functions furthest off."""
    far = sorted((row for row in rows if row.chip == CHIPS[0]), key=lambda row: -abs(log(row.us / row.us_compiled)))
    return "\n".join([BEGIN, *totals(rows), "", PROSE, "", HEAD, *map(shown, far[:FURTHEST]), END])


FURTHEST = 15
PROSE = """*Heavy* are products, reductions, gathers, scatters and sorts that both sides have. In how many of them the
kernel has the same other heavy operations is *partners*; the same transcendental ones, *chain*; results of the same
types and sizes, *written*. *Memory* and *order* are shares of the bytes of arrays from 16 KiB that lie in the same
memory, and in the same order of dims. Times are modelled, from source and from the module before machine code is made
of it.

The functions whose time from source is furthest from that of their module on v6e; ratios are source over module:"""


def written(rows: Sequence[Row]) -> None:
    """Put the rows into the file that the test and the page read."""
    with RESULTS.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(field.name for field in fields(Row))
        for row in sorted(rows, key=lambda row: (row.function, CHIPS.index(row.chip))):
            table.writerow(f"{x:.4g}" if isinstance(x, float) else x for x in astuple(row))


def stored() -> list[Row]:
    """The rows that stand in the repository."""
    kinds = {"str": str, "int": int, "float": float}
    with RESULTS.open() as lines:
        return [Row(**{f.name: kinds[f.type](line[f.name]) for f in fields(Row)}) for line in csv.DictReader(lines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "table", "own"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=())
    parser.add_argument("--chips", nargs="+", choices=CHIPS, default=CHIPS)
    parser.add_argument("--docs", type=Path, help="put the tables into this page")
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    if options.what == "own":
        put_own(options.folder)
        return
    if options.what == "make":
        make(options.folder, options.only, options.chips, options.seconds)
        return
    print(HEAD)
    rows = list(table(options.folder, options.only, options.chips))
    print("\n".join(totals(rows)))
    if not options.only and len(options.chips) == len(CHIPS):
        written(rows)
    if options.docs:
        before, _, after = options.docs.read_text().partition(BEGIN)
        options.docs.write_text(before + section(stored()) + after.partition(END)[2])


if __name__ == "__main__":
    main()
