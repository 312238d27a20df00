"""A folder of dumps (``--xla_dump_to``, ``JAX_DUMP_IR_TO``): which files are programs, and which of them is meant.

XLA writes many files for each module: the program before and after optimisation, as text and as proto, buffer
assignments, flags, graphs. A report wants the program after optimisation, once for each module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tilewright.errors import UsageError

_HEAD = r"(?P<head>.+\.(?:.*_)?)"
_ENDING = r"\.(?P<form>txt|hlo|hlo\.pb|pb)(?:\.gz)?"
_DEVICE = re.compile(r"\.(?:sm_[\d.]+_gpu_|(?:cl_\d+\.)?[A-Za-z][A-Za-z0-9]*_|gfx\w+_gpu_|cl_\d+\.)?$")
_STAGES = {
    "after optimizations": re.compile(rf"{_HEAD}after_optimizations(?:_after_buffer_assignment)?{_ENDING}"),
    "before optimizations": re.compile(rf"{_HEAD}before_optimizations{_ENDING}"),
    "lowered": re.compile(r"(?P<head>.+\.)(?P<form>mlir|mlirbc|stablehlo|hlo|hlo\.pb|pb|txt)(?:\.gz)?"),
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
