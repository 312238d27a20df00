"""StableHLO with shardings to the program of one of its devices, by XLA's own partitioner.

The partitioner runs in a process of its own (``../xla_partitioner.py``); what it makes is read as StableHLO again, with
the lines of the user's program, so that layouts, padding and times are those of every other program. Long strings of
custom calls (kernels) are taken out before and put back behind.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TypeAlias

from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.extras import MissingExtra
from tilewright.hlo import ir
from tilewright.hlo.jaxlib_child import ask
from tilewright.hlo.program import Operation, Program, Source, aliases
from tilewright.hlo.reading.hlo_reader import read_hlo
from tilewright.hlo.reading.hlo_scan import configuration
from tilewright.hlo.reading.mlir_reader import meshes, read_stablehlo
from tilewright.hlo.rewrites.inline import Inline
from tilewright.hlo.rewrites.pipeline import run_pipeline
from tilewright.hlo.rewrites.reductions import SumsOfBlocks
from tilewright.hlo.semantics.collectives import collectives, read_groups

MOST_DEVICES = 4096
_HOW = (
    "dump the optimised module of the slice and report on that (XLA_FLAGS=--xla_dump_to=FOLDER), or lower the function "
    "for one device: without shardings, on the shapes of a shard"
)
_SHARDED = re.compile(
    r"\bmhlo\.sharding\s*=|\bsdy\.(?:sharding|manual_computation)|@Sharding\b|@SPMDFullToShardShape\b"
)
_SIZE = re.compile(r"=(\d{1,9})")
_DEVICES = re.compile(r"\bdevices=\[([\d,]+)\]")
_KERNEL = re.compile(r'(?<=backend_config = ")(?:[^"\\]|\\.){512,}+(?=")')
_TOKEN = "tilewright.text."
_TOKENS = re.compile(rf"{re.escape(_TOKEN)}(\d+)\.")
_GROUPS = re.compile(
    r"\breplica_groups=(mesh\[[^\]]*\](?:, device_ids=\([^{}]*\))? ?\{[^{}]*\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)"
)
_NOWHERE = re.compile(r'loc\("-":[^()]*\)')
_SHARDINGS = re.compile(r"sdy\.sharding = #sdy\.sharding(?:_per_value)?<(?:[^<>]|<[^<>]*>)*>(?:, )?")
_LONG_WINDOW = re.compile(r"window_dimensions = array<i64:[^>]*\b\d{3}")
_CHANNEL = re.compile(r"\bchannel_id=\d+")
"""All become one number: two exchanges that differ in nothing else are one, as the TPU's compiler sees it."""
_OWN = re.compile(r', mhlo\.sharding = "[^"]*"|mhlo\.sharding = "[^"]*"(?:, )?')
_EMPTY = re.compile(r" \{\}(?= loc|[,)])")
_MESHES = re.compile(r"^\s*sdy\.mesh [^\n]*\n", re.M)
_MAIN = re.compile(r"func\.func (?:public )?@main\([^\n]*")
_ARGUMENT = re.compile(r"(%arg(\d+): (?:tensor<[^<>]*(?:<[^<>]*>)?>|[!\w.]+))( \{)?")
_DONOR = re.compile(r"\((\d{1,9}), \{\}\)")
_WARNING = re.compile(r"Involuntary full rematerialization")
_FROM_TO = re.compile(
    r"cannot go from sharding (\{.*?\}) to (\{.*?\}) efficiently for HLO operation %([\w.\-]+) = (.*)"
)
_SHAPE = re.compile(r"\w+\[[^\]]*\]")
_METADATA = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Replicated:
    """An array that the partitioner had to put whole on every device, for want of a way between two shardings.

    ``name``, ``op`` and ``shape`` are of one device's operation, ``was`` and ``becomes`` the two shardings,
    ``op_name`` the framework's name and ``source`` the user's line, where the program says them.
    """

    name: str
    op: str
    shape: str
    was: str
    becomes: str
    op_name: str = ""
    source: Source | None = None


@dataclass(frozen=True)
class OneDevice:
    """What one of ``devices`` does: its ``program``, and what had to be ``replicated``."""

    program: Program
    devices: int
    replicated: tuple[Replicated, ...]


def devices_in(program: Program) -> int:
    """For how many devices a StableHLO program is that has yet to be partitioned; 1 for every other."""
    if program.kind != "stablehlo":
        return 1
    words = ("mhlo.sharding", "sdy.", "@Sharding", "@SPMD")  # looked for first: most programs have none
    if not any(word in program.text for word in words) or not _SHARDED.search(program.text):
        return 1
    said = program.attributes.get("num_partitions", "")
    if said.isdecimal() and int(said) > 1:
        return int(said)
    known = [prod(map(int, _SIZE.findall(mesh))) for mesh in meshes(program.text).values()]
    known += [
        prod(map(int, dims.split(","))) for dims in set(_DEVICES.findall(program.text)) if dims.strip(",") == dims
    ]
    return max(known, default=1)


def of_one_device(program: Program) -> Program:
    """What one device of a StableHLO program with shardings does; every other program as it is.

    Raises UnsupportedError where it cannot be partitioned: it is never taken as the work of one device.
    """
    return partitioned(program, whole=False).program if devices_in(program) > 1 else program


def partitioned(program: Program, whole: bool = True) -> OneDevice:
    """The program of one device, kept for the last few. Raises UnsupportedError with what to do instead.

    ``whole``: its text holds the kernels again. XLA has a copy for every layer; what only asks the operations, which
    have them anyway, is three times as fast without.
    """
    devices = devices_in(program)
    if devices <= 1:
        return OneDevice(program, 1, ())
    if devices > MOST_DEVICES:
        raise UnsupportedError(f"it is for {devices} devices, and {MOST_DEVICES} are the most", how=_HOW)
    made, replicated, kernels = _partitioned(program.text, devices, _marks(program))
    if whole:
        made = replace(made, text=_restored(made.text, kernels))
    lines = _sources(program)
    found = (replace(each, source=each.source or lines.get(each.op_name)) for each in replicated)
    return OneDevice(_of(program, made), devices, tuple(found))


def _of(program: Program, made: Program) -> Program:
    """One device's part with what the whole program says of itself."""
    said = {key: program.attributes[key] for key in ("topology",) if key in program.attributes}
    return replace(made, name=program.name, attributes={**made.attributes, **said})


def _sources(program: Program) -> dict[str, Source]:
    """The framework's name -> the first line that has it."""
    lines: dict[str, Source] = {}
    for _, op in program.operations():
        if op.source is not None and op.op_name:
            lines.setdefault(op.op_name, op.source)
    return lines


_Made: TypeAlias = tuple[Program, tuple[Replicated, ...], tuple[str, ...]]


@lru_cache(maxsize=8)
def _partitioned(text: str, devices: int, marks: tuple[tuple[int, str], ...]) -> _Made:
    """What is made of a text; with long running sums of blocks, where less travels so."""
    made, blocks = _by_xla(text, devices, marks), in_blocks(text)
    if blocks == text or not collectives(made[0]):
        return made
    return min(made, _by_xla(blocks, devices, marks), key=lambda each: sum(x.bytes for x in collectives(each[0])))


def _by_xla(text: str, devices: int, marks: tuple[tuple[int, str], ...]) -> _Made:
    short, kept = _short(text)
    seconds, refused = 20 + (len(short) >> 17), f"it is for {devices} devices and cannot be partitioned"
    hlo, _, log = _asked(b"p", f"{devices}\n{short}", seconds, refused, _HOW).partition("\0")
    one = _CHANNEL.sub("channel_id=1", _GROUPS.sub(_listed, hlo))
    raw = _asked(b"s", one, seconds, refused, _HOW)
    own = _EMPTY.sub("", _OWN.sub("", _MESHES.sub("", raw)))  # without what belongs to all devices
    program = read_stablehlo(_MAIN.sub(lambda found: _marked(found[0], dict(marks)), own))
    note = f"for {devices} devices: what is shown is one device's part, as XLA's partitioner makes it on a CPU"
    program = replace(_with_kernels(program, kept), notes=(note,))
    program = replace(program, attributes={**program.attributes, **slice_said(text, devices)})
    return program, _replicated(log, one), kept


def _asked(what: bytes, text: str, seconds: int, refused: str, how: str = "") -> str:
    """What XLA answers; raises UnsupportedError where it refuses."""
    try:
        return ask(what, text.encode(), seconds).decode("utf-8", errors="replace")
    except MissingExtra:
        raise
    except TilewrightError as error:
        raise UnsupportedError(f"{refused}: {error.what}", how=how) from None


@lru_cache(maxsize=8)
def by_shardy(program: Program) -> tuple[Program, Program]:
    """What one device of a program with Shardy's shardings does by Shardy's own passes, a second opinion; and before.

    ``before`` has whole arrays still, and the exchanges between. Raises UnsupportedError where those passes refuse it,
    or end their process (jaxlib 0.10.2: loops, some gathers, windows over what is cut; 0.12: the last alone).
    """
    devices, (short, kept) = devices_in(program), _short(program.text)
    if "sdy." not in short:
        raise UnsupportedError("it has no shardings of Shardy's")
    module = ir.parse_module(short)
    Inline().apply_module(module)  # the passes leave the results of calls as they were
    inlined = _NOWHERE.sub("loc(unknown)", ir.print_module(module, locations=True))
    answers = _asked(b"y", inlined, 20 + (len(short) >> 17), "Shardy's own passes do not cut it").split("\0")
    cut, before = read_stablehlo(_EMPTY.sub("", _SHARDINGS.sub("", answers[0]))), read_stablehlo(answers[1])
    cut = replace(_with_kernels(cut, kept), attributes={**cut.attributes, **slice_said(program.text, devices)})
    return _of(program, cut), before


def in_blocks(text: str) -> str:
    """A text with its long running sums as the TPU's compiler cuts them (:class:`SumsOfBlocks`)."""
    made, counts = text, Counter[str]()
    if _LONG_WINDOW.search(text):
        with suppress(TilewrightError):  # what cannot be rewritten stays
            made, counts = run_pipeline(text, (Inline(), SumsOfBlocks()), True)
    return made if counts[SumsOfBlocks.name] else text


def _short(text: str) -> tuple[str, tuple[str, ...]]:
    """A text with the long strings of its kernels taken out, and these."""
    kernels: dict[str, int] = {}

    def without(match: re.Match[str]) -> str:
        return f"{_TOKEN}{kernels.setdefault(match[0], len(kernels))}."

    return _KERNEL.sub(without, text), tuple(kernels)


def slice_said(text: str, devices: int) -> dict[str, str]:
    """For how many devices it is, and the mesh that it is over, as ``data=8,model=4``."""
    known = [mesh for mesh in meshes(text).values() if "=" in mesh]
    mesh = {"mesh": known[0].partition("[")[2].partition("]")[0].replace("'", "")} if known else {}
    return {"num_partitions": str(devices), **mesh}


def _restored(text: str, kernels: Sequence[str]) -> str:
    """The text with what was taken out of it."""
    return _TOKENS.sub(lambda found: kernels[int(found[1])] if int(found[1]) < len(kernels) else found[0], text)


def _with_kernels(program: Program, kernels: Sequence[str]) -> Program:
    """The program with what was taken out of its custom calls' configurations."""

    def whole(op: Operation) -> Operation:
        config = op.attributes.get("backend_config", "")
        if _TOKEN not in config:
            return op
        return replace(op, attributes={**op.attributes, "backend_config": _restored(config, meant)})

    meant = tuple(map(configuration, kernels))
    several = (replace(each, operations=tuple(map(whole, each.operations))) for each in program.computations)
    return replace(program, computations=tuple(several)) if kernels else program


def _listed(match: re.Match[str]) -> str:
    """Groups as lists: StableHLO forgets in which order a mesh has its devices."""
    groups = read_groups(match[1])
    if not groups:
        return match[0]
    return "replica_groups={" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"


def _marks(program: Program) -> tuple[tuple[int, str], ...]:
    """Numbers of arguments that are given away, and how StableHLO marks them."""
    over = aliases(program.attributes.get("input_output_alias", ""))
    donors = _DONOR.findall(program.attributes.get("buffer_donor", ""))
    marks = [(number, f"tf.aliasing_output = {result or 0} : i32") for result, number, _ in over]
    return (*marks, *((int(number), "jax.buffer_donor = true") for number in donors))


def _marked(main: str, marks: Mapping[int, str]) -> str:
    """The line of main with a mark at each argument that is given away."""

    def marked(match: re.Match[str]) -> str:
        mark = marks.get(int(match[2]))
        if mark is None:
            return match[0]
        return f"{match[1]} {{{mark}, " if match[3] else f"{match[1]} {{{mark}}}"

    return _ARGUMENT.sub(marked, main)


def _replicated(log: str, one: str) -> tuple[Replicated, ...]:
    """What the partitioner's warnings name, each once, with the lines that its operation has in the module."""
    if not _WARNING.search(log):
        return ()
    lines = _sources(read_hlo(one))
    found: dict[tuple[str, str, str, str], Replicated] = {}
    for was, becomes, name, text in _FROM_TO.findall(log):
        shape, named = _SHAPE.match(text), _METADATA.search(text)
        opcode = re.search(r" ([a-z][\w\-]*)\(", text)
        op_name = named[1] if named else ""
        key = op_name or name, shape[0] if shape else "", was, becomes
        made = opcode[1] if opcode else ""
        found.setdefault(key, Replicated(name, made, key[1], was, becomes, op_name, lines.get(op_name)))
    return tuple(found.values())
