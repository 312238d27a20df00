"""Two programs compiled for a TPU by the TPU's own compiler, where the user has installed it, and compared.

The compiler is libtpu, a proprietary package that comes with ``jax[tpu]``: never needed, never a dependency.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from tilewright.child import Child, ChildDied, ChildLate, serve
from tilewright.errors import TilewrightError, UnsupportedError, UsageError
from tilewright.hlo import ir, xla_partitioner
from tilewright.hlo.execute import check_custom_calls
from tilewright.hlo.opcodes import CONTROL, TAKES_NO_TIME
from tilewright.hlo.program import Operation, Program, reached
from tilewright.hlo.reading.hlo_reader import read_hlo
from tilewright.hlo.reading.hlo_scan import array_shapes
from tilewright.hlo.semantics.collectives import slice_of
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.partitioning import devices_in, slice_said
from tilewright.layout.meshes.torus import Slice
from tilewright.render import bytes_text
from tilewright.targets import target as find_target

# What the TPU compiler says a compiled program costs: its own cycle estimates added up, and bytes in HBM.

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
#: No time of their own: names for buffers, control flow (its bodies count), the ends of transfers.
_NOTHING = TAKES_NO_TIME | CONTROL | {"copy-done", "slice-done", "async-update", "async-done"}
#: Custom calls that are names as well: slices of an array that were fetched one by one are the whole array.
_NAMES = frozenset({"ConcatBitcast", "AssumeGatherIndicesInBound"})
#: Transfers between memories run beside the rest: their bytes count, their time does not.
_TRANSFERS = ("copy-start", "slice-start", "async-start")
_BODIES = ("while", "conditional", "call", "async-start")


@dataclass(frozen=True)
class TpuEstimate:
    """One compiled program.

    ==================  ==========================================================================================
    ``cycles``          estimated cycles of all operations, each as often as it runs, filled ones included
    ``filled_cycles``   of these, what was filled in for operations the compiler gives no estimate of
    ``hbm_bytes``       padded bytes of operands and results in HBM, over all operations that have a cost
    ``temp_bytes``      the compiler's own figure for temporary buffers
    ``operations``      operations with a cost, ``filled`` of them filled in
    ``unknown_loops``   loops whose trip count is not known, counted once
    ==================  ==========================================================================================
    """

    cycles: int
    filled_cycles: int
    hbm_bytes: int
    temp_bytes: int
    operations: int
    filled: int
    unknown_loops: int

    @property
    def filled_share(self) -> float:
        return self.filled_cycles / self.cycles if self.cycles else 0.0


def cycles_per_byte(streaming: Program) -> float:
    """Estimated cycles per padded byte of a compiled program that only reads and writes arrays."""
    context = Context(streaming, None)
    costs = [(_cycles(op), _bytes(context, op)[0]) for op in streaming.entry.operations]
    cycles, moved = (sum(column) for column in zip(*((c, b) for c, b in costs if c is not None)))
    return float(cycles / moved)


def estimate(program: Program, rate: float, temp_bytes: int = 0) -> TpuEstimate:
    """Add up a compiled program; ``rate`` is cycles per padded byte for what has no estimate."""
    context = Context(program, None)
    cycles = filled_cycles = hbm = count = filled = 0
    called = lambda name: (n for op in program.by_name[name].operations if op.opcode in _BODIES for n in op.calls)  # noqa: E731
    for name in reached([program.entry.name], called):  # what runs operation by operation
        runs = context.runs[name].count
        for op in program.by_name[name].operations:
            known = 0 if op.opcode in _TRANSFERS else _cycles(op)
            if known is None and (op.opcode in _NOTHING or op.target in _NAMES):
                continue
            in_hbm = _bytes(context, op)[1]
            here = round(_touched(context, op) * rate) if known is None else known
            count, hbm, cycles = count + 1, hbm + runs * in_hbm, cycles + runs * here
            if known is None:
                filled, filled_cycles = filled + 1, filled_cycles + runs * here
    return TpuEstimate(cycles, filled_cycles, hbm, temp_bytes, count, filled, len(context.unknown_loops))


def _cycles(op: Operation) -> int | None:
    match = _CYCLES.search(op.attributes.get("backend_config", ""))
    return int(match[1]) if match else None


def _bytes(context: Context, op: Operation) -> tuple[int, int]:
    """Padded bytes of an operation's arrays, and of those in HBM; of a transfer's, the two ends."""
    if op.opcode in _TRANSFERS:
        ends = {x.memory_space: x for x in context.layouts(op.shape) if x.shape}
        smallest = min((x.size_bytes for x in ends.values()), default=0)
        return smallest, smallest * (0 in ends)
    layouts = [layout for shape in (*op.operand_shapes, op.shape) for layout in context.layouts(shape)]
    return sum(x.size_bytes for x in layouts), sum(x.size_bytes for x in layouts if not x.memory_space)


def _touched(context: Context, op: Operation) -> int:
    """Padded bytes that an operation without an estimate reads and writes: of a table, the rows it picks or puts."""
    read, written = context.demand.border(op)
    whole = (context.demand.size(shape) for shape in array_shapes(op.shape))
    replaced = sum(size for size, all_ in zip(written, whole) if size < all_)  # rows lie in tiles that are read before
    return round(sum(read) + sum(written) + replaced)


#: The smallest topology of each chip that its compiler takes; one of its chips is compiled for.
TPU_TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "7x": "tpu7x:2x2x1"}

_HOME = "tilewright.hlo.proving.tpu"
_ENVIRONMENT = {  # no device is touched, so another process that holds the compiler's lock need not matter
    "TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "TPU_MIN_LOG_LEVEL": "3",
    "TPU_WORKER_HOSTNAMES": "localhost", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip
_LOCKED = ("libtpu_lockfile", "multi-process lockfile", "already in use")
_STREAMING = """module {
  func.func public @main(%x: tensor<4096x4096xf32>) -> tensor<4096x4096xf32> {
    %one = stablehlo.constant dense<1.0> : tensor<4096x4096xf32>
    %y = stablehlo.add %x, %one : tensor<4096x4096xf32>
    return %y : tensor<4096x4096xf32>
  }
}"""


@dataclass(frozen=True)
class TpuComparison:
    """What the TPU compiler makes of two programs; ``compiler`` is its version, ``rate`` cycles per filled byte."""

    chip: str
    compiler: str
    rate: float
    before: TpuEstimate
    after: TpuEstimate

    @property
    def ratio(self) -> float:
        """Estimated cycles of the original over those of the rewritten program; above 1 is a gain."""
        return self.before.cycles / self.after.cycles if self.after.cycles else 1.0

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        for name, side in (("before", self.before), ("after", self.after)):
            plain[name]["filled_share"] = side.filled_share
        return {**plain, "ratio": self.ratio}

    def __str__(self) -> str:
        pairs = [
            ("estimated cycles", *(f"{side.cycles:,}" for side in (self.before, self.after))),
            ("of these filled in", *(f"{side.filled_share:.1%}" for side in (self.before, self.after))),
            ("bytes in HBM", *(bytes_text(side.hbm_bytes) for side in (self.before, self.after))),
            ("temporary buffers", *(bytes_text(side.temp_bytes) for side in (self.before, self.after))),
            ("operations", *(f"{side.operations:,}" for side in (self.before, self.after))),
        ]
        widths = [max(len(row[k]) for row in (*pairs, ("", "A", "B"))) for k in range(3)]
        lines = [f"compiled for {self.chip} by {self.compiler}: A takes {self.ratio:.2f} times the cycles of B"]
        lines += ["  ".join([row[0].ljust(widths[0]), row[1].rjust(widths[1]), row[2].rjust(widths[2])])
                  for row in (("", "A", "B"), *pairs)]  # fmt: skip
        if self.before.unknown_loops or self.after.unknown_loops:
            lines.append("loops of unknown trip count are counted once")
        return "\n".join(line.rstrip() for line in lines)


def compile_for_tpu(program: Program, chip: str = "v5e", timeout: float = 300.0) -> Program:
    """What the TPU's own compiler makes of a StableHLO program, ahead of time: the optimised, scheduled module.

    Of a program with shardings it is one device's, on the slice where JAX puts them. Raises as :func:`compare_on_tpu`.
    """
    return compiled_for_tpu(program, chip, timeout)[0]


def compiled_for_tpu(program: Program, chip: str = "v5e", timeout: float = 300.0) -> tuple[Program, dict[str, int]]:
    """As :func:`compile_for_tpu`, the compiler's version among its notes, and what the compiler says of bytes."""
    devices, topology, said = devices_in(program), chip_topology(chip), dict[str, str]()
    if devices > 1:
        machine, said = find_target(f"tpu-{chip.removeprefix('tpu-')}"), slice_said(program.text, devices)
        said |= {key: program.attributes[key] for key in ("topology",) if key in program.attributes}
        on = slice_of(replace(program, attributes={**program.attributes, **said}), machine)
        if on is None:
            raise UnsupportedError(f"{devices} devices are no slice of {machine.name}")
        topology = _of_slice(topology["topology"].partition(":")[0], on)
    versions, [answer] = _ask(topology, [program.text], timeout, time.monotonic() + timeout)
    made, by = _module(answer), f"compiled by {_compiler(versions)}"
    made = replace(made, name=program.name, attributes={**made.attributes, **said}, notes=(*made.notes, by))
    return made, answer["sizes"]


def _of_slice(family: str, on: Slice) -> dict[str, Any]:
    """The topology of a slice, and the chip of each device on it; dims of one chip stand last, as libtpu has it."""
    order = sorted(range(len(on.torus)), key=lambda dim: on.torus[dim] == 1)
    dims = [on.torus[dim] for dim in order]
    places = [[chip[0], *(chip[1 + dim] for dim in order)] for chip in on.chips]
    more: dict[str, Any] = {"chips_per_host_bounds": [*dims, 1][:3]} if len(dims) == 2 and 1 in dims else {}
    slices = 1 + max(place[0] for place in places)
    more |= {"num_slices": slices} if slices > 1 else {}
    return {"topology": f"{family}:{'x'.join(map(str, dims))}", "places": places, "more": more}


def _compiler(versions: dict[str, str]) -> str:
    return f"libtpu {versions['libtpu']}, jax {versions['jax']}"


def chip_topology(chip: str) -> dict[str, Any]:
    """The topology to compile for; refuses a chip that there is none for, and a missing compiler."""
    name = chip.removeprefix("tpu-")
    if name not in TPU_TOPOLOGIES:
        raise UsageError(f"no TPU called {chip!r} to compile for", how=f"known: {', '.join(TPU_TOPOLOGIES)}")
    if find_spec("libtpu") is None:
        how = f"pip install 'jax[tpu]{_same_jax()}' (libtpu is proprietary)"
        raise UnsupportedError("the TPU compiler is not installed", how=how)
    return {"topology": TPU_TOPOLOGIES[name]}


def compare_on_tpu(before: Program, after: Program, chip: str = "v5e", timeout: float = 300.0) -> TpuComparison:
    """Compile two StableHLO programs ahead of time for a TPU, no TPU needed, and add up the compiler's own estimates.

    It runs in a process of its own, for at most ``timeout`` seconds, waiting for the compiler's lock if another
    process holds it. Raises UnsupportedError where libtpu is not installed or does not compile a program, UsageError
    for an unknown chip.
    """
    [found] = _compared([(before, after)], chip, timeout, timeout)
    if isinstance(found, UnsupportedError):
        raise found
    return found


def judge_on_tpu(
    pairs: Sequence[tuple[Program, Program]], chip: str = "v5e", timeout: float = 300.0
) -> list[TpuComparison | UnsupportedError]:
    """As :func:`compare_on_tpu`, many pairs in one process, each with its comparison or why there is none.

    ``timeout`` is in seconds for each program. A program that stands in several pairs is compiled once. Raises
    UnsupportedError where there is no compiler at all.
    """
    return _compared(pairs, chip, timeout, timeout * (2 * len(pairs) + 1)) if pairs else []


def _compared(
    pairs: Sequence[tuple[Program, Program]], chip: str, each: float, together: float
) -> list[TpuComparison | UnsupportedError]:
    texts = list(dict.fromkeys(program.text for pair in pairs for program in pair))
    versions, [streaming, *answers] = _ask(chip_topology(chip), [_STREAMING, *texts], each, time.monotonic() + together)
    rate = cycles_per_byte(_module(streaming))
    found: dict[str, TpuEstimate | UnsupportedError] = {}
    for text, compiled in zip(texts, answers):
        try:
            found[text] = estimate(_module(compiled), rate, compiled["sizes"]["temp"])
        except TilewrightError as error:
            found[text] = UnsupportedError(error.what, where=error.where, how=error.how)
    compiler = _compiler(versions)

    def compared(before: Program, after: Program) -> TpuComparison | UnsupportedError:
        a, b = found[before.text], found[after.text]
        if isinstance(a, UnsupportedError):
            return a
        if isinstance(b, UnsupportedError):
            return b
        return TpuComparison(versions["chip"], compiler, rate, a, b)

    return [compared(*pair) for pair in pairs]


def _module(compiled: dict[str, Any]) -> Program:
    """A compiled program; raises what became of it instead."""
    if "text" not in compiled:
        raise UnsupportedError(compiled["error"], how=compiled.get("how", ""))
    return read_hlo(compiled["text"])


def _same_jax() -> str:
    try:
        return f"=={version('jax')}"
    except PackageNotFoundError:
        return ""


_LATE = {
    "error": "the TPU compiler did not finish in time",
    "how": "give it longer: --timeout SECONDS, timeout= in Python",
}


def _ask(
    topology: dict[str, Any], texts: Sequence[str], each: float, deadline: float
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The compiler's versions, and for each text what it makes of it or an error.

    All go to one process; where a text ends it, another goes on with the next. Another process's lock is waited for.
    """
    versions: dict[str, str] = {}
    answers: list[dict[str, Any]] = []
    child, wait = Child(_HOME, _ENVIRONMENT), 1.0
    try:
        while len(answers) < len(texts):
            question = json.dumps({**topology, "program": texts[len(answers)]}).encode()
            try:
                answer = json.loads(child.ask(question, max(0.1, min(each, deadline - time.monotonic()))))
            except ChildLate:
                answer = _LATE
            except ChildDied as error:
                answer = {"error": f"the TPU compiler failed ({error.what})"}
            versions = versions or answer.get("versions", {})
            locked = not versions and any(word in answer["error"] for word in _LOCKED)
            if locked and time.monotonic() + wait < deadline:
                time.sleep(wait)
                wait = min(2 * wait, 15.0)
                continue
            if not versions:
                _module(answer)
            answers.append(answer)
    finally:
        child.close()  # libtpu takes a lock for as long as its process lives
    return versions, answers


# -- inside the process: libtpu can abort, hang and talk ----------------------------------------------------------


def main() -> None:
    """Compile StableHLO texts for a topology, one a question."""
    serve(lambda question, _: json.dumps(_answer(**json.loads(question))).encode())


def _answer(
    topology: str, program: str, places: Sequence[Sequence[int]] = (), more: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What the compiler makes of a program, or an error; its versions, if it starts."""
    answer: dict[str, Any] = {}
    try:
        devices = _devices(topology, json.dumps(more or {}))
        answer["versions"] = {"libtpu": version("libtpu"), "jax": version("jax"), "chip": devices[0].device_kind}
        check_custom_calls(program, "tpu")
        answer |= _compiled(program, devices, places)
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:300]
        answer["error"] = f"the TPU compiler failed ({type(error).__name__}: {reason})"
    return answer


@cache
def _devices(topology: str, more: str) -> Any:
    from jax.experimental import topologies

    return topologies.get_topology_desc(platform="tpu", topology_name=topology, **json.loads(more)).devices


def _compiled(text: str, devices: Sequence[Any], places: Sequence[Sequence[int]]) -> dict[str, Any]:
    """One device's module of a text; ``places``: the slice and the chip of every device of its mesh."""
    standing = defaultdict[tuple[int, ...], list[Any]](list)
    for each in devices:
        standing[getattr(each, "slice_index", 0) or 0, *each.coords].append(each)
    laid = [standing[(*place, 0, 0)[:4]].pop(0) for place in places] or devices[:1]
    xla, module = ir.probed("compiling for a TPU", (("jaxlib._jax", ("DeviceList",)),)), ir.parse_module(text)
    options = xla_partitioner.options(text.encode(), [each.id for each in laid])
    compiled = laid[0].client.compile(module, xla["jaxlib._jax"].DeviceList(tuple(laid)), options)
    memory, names = compiled.get_compiled_memory_stats(), ("argument", "output", "alias", "temp")
    sizes = {name: int(getattr(memory, f"{name}_size_in_bytes", 0)) for name in names}
    return {"text": compiled.hlo_modules()[0].to_string(), "sizes": sizes}
