"""Loading a program: the format follows from the content, never from a file's suffix.

In a folder of dumps (``--xla_dump_to``, ``JAX_DUMP_IR_TO``) XLA writes many files for each module: the program before
and after optimisation, as text and as proto, buffer assignments, flags, graphs. A report wants the program after
optimisation, once for each module.

Binary programs are MLIR bytecode, what jax.export wraps around it, and HLO protos, told apart by their bytes, without
jax. A few flipped ones abort jaxlib, and would take the caller along (`jaxlib_child.py`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tilewright.errors import ParseError, UnsupportedError, UsageError
from tilewright.hlo.graphs.graph import collector_paused
from tilewright.hlo.jaxlib_child import Refused, ask
from tilewright.hlo.program import Program
from tilewright.hlo.reading.hlo_reader import read_hlo
from tilewright.hlo.reading.hlo_scan import FRAGMENT
from tilewright.hlo.reading.mlir_reader import read_stablehlo
from tilewright.hlo.reading.sources import checked_frames
from tilewright.reading import read_bytes, unpacked
from tilewright.trace import protobuf_fields

_HEAD = r"(?P<head>.+\.(?:.*_)?)"
_ENDING = r"\.(?P<form>txt|hlo|hlo\.pb|pb)(?:\.gz|\.xz)?"
_DEVICE = re.compile(r"\.(?:sm_[\d.]+_gpu_|(?:cl_\d+\.)?[A-Za-z][A-Za-z0-9]*_|gfx\w+_gpu_|cl_\d+\.)?$")
_STAGES = {
    "after optimizations": re.compile(rf"{_HEAD}after_optimizations(?:_after_buffer_assignment)?{_ENDING}"),
    "before optimizations": re.compile(rf"{_HEAD}before_optimizations{_ENDING}"),
    "lowered": re.compile(r"(?P<head>.+\.)(?P<form>mlir|mlirbc|stablehlo|hlo|hlo\.pb|pb|txt)(?:\.gz|\.xz)?"),
}
_NOT_PROGRAMS = re.compile(r"(?:buffer-assignment|memory-usage-report|execution_options|debug_options|thunk_sequence)")
_PROGRAM = re.compile(rb"HloModule|\bmodule\b[^\n]*\{|func\.func|\bENTRY\b")


@dataclass(frozen=True)
class DumpedModule:
    """One module of a dump folder.

    ==========  =====================================================================================
    ``name``    as the compiler numbers and names it: ``module_0012.jit_train_step``
    ``path``    the file that holds it (text rather than proto, where both are there)
    ``stage``   ``after optimizations``, ``before optimizations`` or ``lowered`` (StableHLO and others)
    ``size``    the file's bytes, unzipped
    ==========  =====================================================================================
    """

    name: str
    path: Path
    stage: str
    size: int


def dumped_modules(folder: str | Path, module: str | None = None) -> tuple[DumpedModule, ...]:
    """The modules in a dump folder, largest first: optimised ones if there are any, else what there is.

    ``module`` keeps those with that name, else those whose name it matches (``*`` and ``?``), else those whose name
    contains it. Raises UsageError where nothing is left.
    """
    where = str(folder)
    try:
        files = sorted(path for path in Path(folder).iterdir() if path.is_file())
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror or error}", where=where) from None
    for stage, pattern in _STAGES.items():
        if modules := _of_stage(files, stage, pattern):
            return tuple(sorted(_named(modules, module, where), key=lambda dumped: (-dumped.size, dumped.name)))
    raise UsageError(
        "no program in this folder",
        where=where,
        how="--xla_dump_to=FOLDER --xla_dump_hlo_as_text writes them; name the folder or one file",
    )


def _of_stage(files: Iterable[Path], stage: str, pattern: re.Pattern[str]) -> list[DumpedModule]:
    modules: dict[str, DumpedModule] = {}
    forms: dict[str, str] = {}
    for path in files:
        match = pattern.fullmatch(path.name)
        if match is None or _NOT_PROGRAMS.search(path.name):
            continue
        if stage == "lowered" and path.suffix == ".txt" and not _holds_a_program(path):
            continue
        name = _DEVICE.sub("", match["head"])
        if name not in modules or (forms[name].endswith("pb") and not match["form"].endswith("pb")):
            modules[name], forms[name] = DumpedModule(name, path, stage, _size(path)), match["form"]
    return list(modules.values())


def _holds_a_program(path: Path) -> bool:
    """Whether a text of no telling name (readme.txt?) begins like one."""
    with path.open("rb") as stream:
        return bool(_PROGRAM.search(stream.read(1 << 16)))


def _size(path: Path) -> int:
    if path.suffix == ".xz":
        return len(read_bytes(path))
    if path.suffix != ".gz":
        return path.stat().st_size
    with path.open("rb") as stream:  # a gzip file ends in the length of what it holds
        stream.seek(max(0, path.stat().st_size - 4))
        return int.from_bytes(stream.read(), "little")


def _named(modules: list[DumpedModule], module: str | None, where: str) -> list[DumpedModule]:
    if module is None:
        return modules
    tests = (lambda name: name == module, lambda name: fnmatchcase(name, module), lambda name: module in name)
    for test in tests:
        if matching := [dumped for dumped in modules if test(dumped.name)]:
            return matching
    names = ", ".join(dumped.name for dumped in modules[:10]) + (", ..." if len(modules) > 10 else "")
    raise UsageError(f"no module is called {module}", where=where, how=f"the folder has {names}")


# Binary forms.

_BYTECODE = b"ML\xefR"
_COUNTED = re.compile(rb"(?s)(.{4})(?=ML\xefR)")
_NAME, _COMPUTATIONS, _WRAPPED = 1, 3, 1  # HloModuleProto.name, HloModuleProto.computations, HloProto.hlo_module
_WRAPPERS = 3


def binary_form(raw: bytes) -> tuple[str, bytes] | None:
    """``("mlir", bytecode)`` or ``("hlo", HloModuleProto)`` taken out of what wraps them, None for neither.

    >>> binary_form(b"ML\\xefR\\x0dStableHLO_v1.17.0\\x00")[0], binary_form(b"HloModule m")
    ('mlir', None)
    """
    if raw.startswith(_BYTECODE):
        return "mlir", raw
    if (inner := _exported(raw)) is not None:
        return "mlir", inner
    for _ in range(_WRAPPERS):  # HloProto holds the module in field 1, HloSnapshot holds an HloProto in field 1
        fields = _fields(raw)
        if fields is None or _NAME not in fields:
            return None
        is_name = all(32 <= byte < 127 for byte in fields[_NAME])  # and not a message
        if is_name and _COMPUTATIONS in fields and _fields(fields[_COMPUTATIONS]) is not None:
            return "hlo", raw
        raw = fields[_WRAPPED]
    return None


def _exported(raw: bytes) -> bytes | None:
    """The bytecode in ``jax.export``'s flatbuffer: a vector of bytes, its length in the four bytes before it."""
    for match in _COUNTED.finditer(raw):
        at, length = match.end(1), int.from_bytes(match[1], "little")
        if len(_BYTECODE) < length <= len(raw) - at:
            return raw[at : at + length]
    return None


def _fields(raw: bytes) -> dict[int, bytes] | None:
    """The last value of every length-delimited field of a protobuf message, None if it is no message."""
    try:
        fields = protobuf_fields(memoryview(raw))
        return {number: bytes(value) for number, value in fields if isinstance(value, memoryview)}
    except (IndexError, ValueError, struct.error):
        return None


_FORMS = {"mlir": (b"m", "MLIR bytecode"), "hlo": (b"h", "HLO proto")}


def seconds(size: int) -> int:
    """Processor time that reading ``size`` bytes may take; real files take a tenth of it."""
    return 4 + 2 * (size >> 20)


def to_text(form: str, payload: bytes, where: str = "") -> str:
    """The text of a ``mlir`` (bytecode, portable artifact) or ``hlo`` (HloModuleProto) program.

    Raises UsageError for a program that jaxlib refuses or dies of, MissingExtra where jaxlib is missing.
    """
    kind, title = _FORMS[form]
    try:
        return ask(kind, payload, seconds(len(payload))).decode("utf-8", errors="replace")
    except Refused as error:
        raise UsageError(f"a damaged {title}, or one of another version: {error.what}", where=where) from None
    except UnsupportedError as error:
        raise UnsupportedError(error.what, where=where) from None


# A program.

_LEADING = re.compile(r"(?:\s++|//[^\n]*+|/\*.*?\*/)*+", re.S)
_STABLEHLO = re.compile(r'(?:module|func\.func|"builtin\.module"|"func\.func"|builtin\.module|[#!][\w.$]+\s*=)')
#: Fragments last: `module {` might be a computation of that name.
_KINDS = (("hlo", re.compile(r"HloModule\s")), ("stablehlo", _STABLEHLO), ("hlo", FRAGMENT))


@collector_paused()
def load(source: str | bytes | Path, module: str | None = None, frames: str = "") -> Program:
    """Load a program from a path, from its text, or from a file's bytes (gzip and xz are undone).

    A ``str`` that holds a line break, or that begins like a program, is a text; any other is a path. Read are HLO text
    (``HloModule ...``, or computations or instructions cut out of it), StableHLO text (``module ...``), MLIR bytecode
    and portable artifacts (``jax.export``), HLO protos, and the path of a dump folder (``--xla_dump_to``): it stands
    for its largest optimised module, or for the one that ``module`` names (:func:`dumped_modules` lists them). Binary
    forms are turned into text by jaxlib in a process of its own, as damaged ones abort it. An operation's line is the
    innermost of its stack whose file matches the pattern ``frames``, else the innermost outside JAX and libraries like
    it. Raises UsageError for a file that cannot be read or is damaged, ParseError for a malformed text,
    UnsupportedError for anything else.

    >>> load("HloModule m\\nENTRY e { ROOT p = f32[4] parameter(0) }").kind
    'hlo'
    """
    if isinstance(source, bytes):
        return _parse(_text(unpacked(source, ""), ""), "", frames)
    if not isinstance(source, Path) and ("\n" in source or _kind(source)[0]):
        return _parse(source, "", frames)
    path = _chosen(Path(source), module)
    return _parse(_text(read_bytes(path), str(path)), str(path), frames)


def _chosen(path: Path, module: str | None) -> Path:
    try:
        folder = path.is_dir()
    except (OSError, ValueError):  # no file can have this name: reading it raises the error
        folder = False
    if folder:
        return dumped_modules(path, module)[0].path
    if module is not None:
        raise UsageError("not a dump folder, so it has no modules to choose from", where=str(path))
    return path


def _text(raw: bytes, where: str) -> str:
    """The text of a file's bytes; binary forms are turned into text by jaxlib, in a process of its own."""
    try:
        text, bad = raw.decode("utf-8-sig"), -1
    except UnicodeDecodeError as error:
        text, bad = "", error.start
    if _kind(text)[0]:
        return text
    if form := binary_form(raw):
        return to_text(*form, where)
    if bad < 0:
        return text
    raise UnsupportedError(
        f"neither a text (byte {bad}) nor MLIR bytecode nor an HLO proto",
        where=where,
        how="see docs/loading.md for how to dump programs",
    )


def _kind(text: str) -> tuple[str, int]:
    """``hlo``, ``stablehlo`` or "" by how the text begins, and where it does, behind blanks and comments."""
    match = _LEADING.match(text)
    start = match.end() if match else 0
    for kind, pattern in _KINDS:
        if pattern.match(text, start):
            return kind, start
    return "", start


def _parse(text: str, where: str, frames: str) -> Program:
    frames, (kind, start) = checked_frames(frames), _kind(text)
    if not kind:
        what = "neither HLO text ('HloModule ...') nor StableHLO text ('module ...')"
        raise ParseError(what, text=text, column=start, where=where)
    return (read_hlo if kind == "hlo" else read_stablehlo)(text, where, frames)
