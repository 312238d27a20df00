"""The program a command is about: one argument for every form there is, and the options that go with it."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from tilewright import hlo
from tilewright.cli.options import numbered
from tilewright.cli.streams import read_bytes
from tilewright.errors import UsageError
from tilewright.render import bytes_text
from tilewright.render.delivery import remark
from tilewright.render.formats import counted

if TYPE_CHECKING:
    from tilewright.layout import Mesh

PROGRAM_HELP = (
    "HLO or StableHLO text, bytecode, a portable artifact (jax.export), an HLO proto, any of them packed (.gz, .xz), a "
    "dump folder (--xla_dump_to), or model.py:function; - is stdin."
)
ProgramArgument = Annotated[str, Argument(help=PROGRAM_HELP)]
ArgOption = Annotated[list[str] | None, "--arg", "-a", "Of model.py:function: an argument, such as f32[8,128]."]
ModuleOption = Annotated[str | None, "For a dump folder: the module to take, by (part of) its name."]

AssumeOption = Annotated[
    list[str] | None, "--assume", "What data says: kv_len=N (tokens cached), tokens=N, sequences=N, trips=N of loops."
]


def assumptions(texts: Sequence[str] | None) -> dict[str, float]:
    """The values of ``--assume``, whose names ``estimate`` knows."""
    return numbered(texts or (), "--assume", "kv_len=2048")


_SPACE = re.compile(r"^Memory Space: (\S+) \(color=(\d{1,9})\)\nTotal bytes: (\d{1,18})", re.MULTILINE)
_ALLOCATION = re.compile(r"^allocation (\d{1,9}): size (\d{1,18})(, .*)?:$", re.MULTILINE)
_KINDS = {"parameter": "parameter", "output": "output", "maybe-live-out": "output", "constant": "constant",
          "thread-local": "thread-local"}  # fmt: skip
_MOST_READ = 1 << 26
"""Characters of a text beside a module that are read."""


def _beside(path: Path, ending: str) -> tuple[str, str]:
    """The name and the text of what lies beside a dump's module; two empty texts where nothing can be read."""
    if path.suffix != ".txt":
        return "", ""
    beside = path.with_name(f"{path.stem}-{ending}.txt")
    # There may be none, or a name that cannot be, or no permission.
    with suppress(OSError, ValueError), beside.open(encoding="utf-8", errors="replace") as text:
        return beside.name, text.read(_MOST_READ)
    return "", ""


def _say_memory(path: Path) -> None:
    """What the compiler's own texts say of memory, where the dump has them beside the module: facts, not modelled."""
    name, text = _beside(path, "memory-usage-report")
    spaces = [(color, space, int(size)) for space, color, size in _SPACE.findall(text)]
    if sizes := [f"{bytes_text(size)} in {'main memory' if c == '0' else space}" for c, space, size in spaces if size]:
        remark(f"note: the compiler's own memory report ({name}): {', '.join(sizes)}")
    name, text = _beside(path, "buffer-assignment")
    if not name:
        return
    totals: Counter[str] = Counter()
    found = _ALLOCATION.findall(text)
    for _, size, rest in found:
        words = [word.partition(" ")[0] for word in re.sub(r"\|[^|]*\|", "", rest).split(", ")]
        if "color" not in words:  # main memory
            totals[next((_KINDS[word] for word in words if word in _KINDS), "temp")] += int(size)
    total = totals.total()
    whole = found and [int(number) for number, _, _ in found] == [*range(text.count("\nallocation "))]
    if not whole or text[-1] != "\n" or any(color == "0" and size != total for color, _, size in spaces):
        remark(f"note: {name} is damaged, cut off or of another compilation: it is not used")
        return
    kinds = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in totals.most_common() if size)
    number = f"{counted(len(found), 'allocation')}, {bytes_text(total)} in main memory"
    remark(f"note: the compiler's own buffer assignment ({name}): {number}: {kinds}")


@dataclass(frozen=True)
class MeshOptions:
    """Over what devices a program is cut, and how."""

    mesh: Annotated[str | None, "--mesh AXIS=N,..", "Devices by axes, as data=8,model=4; one's part is shown."] = None
    shard: Annotated[
        list[str] | None,
        "--shard NAME=AXES,..",
        "With --mesh: the axes that cut each dim of an argument, as x=data,- (NAME: x, params['w'], params for all in "
        "it, *['w'], 0, result). What is not named is the partitioner's choice.",
    ] = None
    topology: Annotated[str | None, "With --mesh: chips of a slice, as 4x8 or 2*4x8; else the squarest torus."] = None

    def over(self) -> Mesh | None:
        """The mesh, or None. Raises UsageError where only what belongs to one is said."""
        from tilewright.layout import Mesh
        from tilewright.layout.meshes.text import read_mesh

        if self.mesh is None:
            if self.shard or self.topology:
                raise UsageError("--shard and --topology go with --mesh", how="add --mesh, as --mesh data=8,model=4")
            return None
        return Mesh(read_mesh(self.mesh).axes, self.topology)

    def put_on(self, program: hlo.Program, mesh: Mesh | None) -> hlo.Program:
        """The program cut over it."""
        if mesh is None:
            return program
        said = (text.partition("=") for text in self.shard or ())
        return hlo.sharded(program, mesh, {name.strip(): axes.strip() for name, _, axes in said})


@dataclass(frozen=True)
class ProgramOptions(MeshOptions):
    """The options that go with a program, whatever it is read from."""

    arg: ArgOption = None
    module: ModuleOption = None
    frames: Annotated[
        str | None,
        "A pattern for files, such as maxtext/ or train.py: an operation's line is the innermost of its stack in one "
        "of them; without it the innermost outside JAX, Flax and libraries like them.",
    ] = None

    def load(self, source: str, arguments: Sequence[str] | None = None) -> hlo.Program:
        """The program that ``source`` names; ``arguments`` in place of ``--arg``. What the user's code prints goes to
        stderr.

        Options that do not fit the source get a remark, not an error: commands on two programs give them to both.
        """
        mesh, arguments = self.over(), self.arg if arguments is None else arguments
        if not hlo.names_python(source):
            return self.put_on(self._read(source, arguments), mesh)
        if mesh is not None and "jax" not in sys.modules:  # a file that makes a mesh of jax.devices() finds as many
            flags = os.environ.get("XLA_FLAGS", "")
            count = f"--xla_force_host_platform_device_count={mesh.size}"
            os.environ["XLA_FLAGS"] = flags if count.partition("=")[0] in flags else f"{flags} {count}".strip()
        with redirect_stdout(sys.stderr):
            program = hlo.from_python(source, arguments or (), None if mesh is None else mesh.axes)
        put = self.put_on(program, mesh)
        again = hlo.load(put.text, frames=self.frames) if self.frames else put
        return replace(again, attributes=put.attributes, signature=program.signature)

    def _read(self, source: str, arguments: Sequence[str] | None) -> hlo.Program:
        folder = source != "-" and Path(source).is_dir()
        if arguments:
            remark(f"note: {source} is not a function of a Python file; --arg is ignored")
        if self.module is not None and not folder:
            remark(f"note: {source} is not a dump folder; --module is ignored")
        if source == "-":
            return hlo.load(read_bytes(source), frames=self.frames or "")
        if folder:
            chosen, *others = hlo.dumped_modules(Path(source), self.module)
            _say_memory(chosen.path)
            stage = "" if chosen.stage == "after optimizations" else f" ({chosen.stage})"
            remark(f"note: {chosen.path.name}{stage}")
            if others:
                names = ", ".join(other.name for other in others[:5]) + (", ..." if len(others) > 5 else "")
                remark(f"note: the largest of {len(others) + 1} modules; --module NAME takes another: {names}")
        else:
            _say_memory(Path(source))
        return hlo.load(Path(source), self.module if folder else None, self.frames or "")


def load_program(source: str, arg: list[str] | None = None, module: str | None = None) -> hlo.Program:
    """The program that ``source`` names, of a command with some of these options."""
    return ProgramOptions(arg=arg, module=module).load(source)
