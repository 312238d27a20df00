"""The tools that agents see: each is one command of ours, run within bounds; its errors are the tool's errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, Literal

import anyio
from anyio import CapacityLimiter
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from tilewright.errors import CheckFailed, TilewrightError, UsageError
from tilewright.targets import target_names
from tilewright.version import __version__

# A command in a process of its own, with limits on its time, its memory and what it prints.

_RUN = """
import os, sys, threading, time
seconds, memory = int(sys.argv.pop(1)), int(sys.argv.pop(1))
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, ValueError, OSError):
    pass
def end_with(server):
    while os.getppid() == server:
        time.sleep(0.5)
    os._exit(1)
threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
from tilewright.cli import main
main()
"""
"""The limits are set before anything is imported; a server that was killed takes its calls with it."""


@dataclass(frozen=True)
class Bounds:
    """What one call may take: ``seconds``, ``memory`` in bytes, ``output`` in bytes of text."""

    seconds: int = 120
    memory: int = 16 * 2**30
    output: int = 400_000


async def run_bounded(words: Sequence[str], stdin: bytes, folder: str, bounds: Bounds) -> str:
    """What ``tilewright WORDS`` prints, begun in ``folder``; its own one-line error where it fails.

    Raises a TilewrightError also where it takes more than ``bounds``.
    """
    # -P: the folder may hold a json.py of its own. The processor's time is limited as well, should this process die.
    command = [sys.executable, "-P", "-c", _RUN, str(2 * bounds.seconds), str(bounds.memory), *words]
    environment = os.environ | {"COLUMNS": "120", "NO_COLOR": "1", "JAX_PLATFORMS": "cpu", "PYTHONIOENCODING": "utf-8"}
    with TemporaryFile() as given, TemporaryFile() as printed:
        given.write(stdin)
        given.seek(0)
        how: dict[str, Any] = {"cwd": folder, "env": environment, "start_new_session": True}
        try:
            with anyio.fail_after(bounds.seconds):
                done = await anyio.run_process(command, stdin=given, stdout=printed, check=False, **how)
        except TimeoutError:
            hint = "give a smaller program or plan, or start the server with --seconds N"
            raise UsageError(f"stopped after {bounds.seconds} s", how=hint) from None
        printed.seek(0)
        return _answer(printed.read(bounds.output + 1), done.stderr, done.returncode, bounds)


def _answer(out: bytes, err: bytes, code: int, bounds: Bounds) -> str:
    text = out.decode("utf-8", "replace")
    if len(out) > bounds.output:
        raise UsageError(f"the answer is longer than {bounds.output:,} bytes", how="ask for fewer rows, or for text")
    remarks = err.decode("utf-8", "replace").strip().splitlines()
    failed = next((line for line in remarks if line.startswith("tilewright: ")), "").removeprefix("tilewright: ")
    if code == 0:
        return text
    if code == 1 and text:  # a check that found something has printed what it checked
        return f"{text}\n{failed}"
    if failed:
        caret = remarks[remarks.index(f"tilewright: {failed}") + 1 :]
        raise (CheckFailed if code == 1 else TilewrightError)("\n".join([failed, *caret]))
    how = f"a call may take {bounds.memory / 2**30:g} GiB of memory and {bounds.seconds} s"
    raise UsageError(f"it ended with exit code {code} and said nothing", how=how)


# The tools.

_LONGEST_TEXT = 32 * 2**20
_LARGEST_FILE = 256 * 2**20
_AT_ONCE = 2

Run = Callable[[Sequence[str], bytes, str, Bounds], Awaitable[str]]
Format = Annotated[Literal["text", "json"], Field(description="Text to read, or the command's stable JSON.")]
Layout = Annotated[
    str,
    Field(
        max_length=100_000,
        description="XLA's shape text, such as bf16[256,128]{1,0:T(8,128)(2,1)}, or a line of an HLO dump.",
    ),
]
Chip = Annotated[
    str | None,
    Field(description="The chip, such as tpu-v5e or tpu-v6e. Needed for StableHLO, whose layouts it predicts."),
]
ProgramText = Annotated[
    str | None, Field(max_length=_LONGEST_TEXT, description="HLO or StableHLO text (HloModule ..., module ...).")
]
ProgramFile = Annotated[
    str | None,
    Field(
        max_length=4096,
        description="Instead of the text a file below the server's folder: HLO or StableHLO text, bytecode, an HLO "
        "proto, packed (.gz, .xz) or not.",
    ),
]
Count = Annotated[int, Field(ge=1, le=2**53)]
_READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_INSTRUCTIONS = """Where every element of a tensor lives on a tiled accelerator (TPU, NPU), what a program moves and
pads for layout's sake and from which source line, how long its step takes by a model, what embedding tables need.
Nothing runs on a device and nothing is written. Figures of a dump are facts, those of StableHLO predictions: say so.
Chips: """


def make_server(folder: Path, bounds: Bounds, run: Run = run_bounded) -> MCPServer:
    """A server whose tools read files of ``folder`` only, and of which each call keeps to ``bounds``."""
    server = MCPServer(
        "tilewright", version=__version__, instructions=_INSTRUCTIONS + ", ".join(target_names()), log_level="WARNING"
    )
    limiter = CapacityLimiter(_AT_ONCE)

    async def answer(command: str, form: str, stdin: bytes = b"", after: Sequence[str] = (), **options: object) -> str:
        """What a command prints: the options that are not None, and behind ``--`` what may begin with a dash."""
        words = command.split()
        for name, value in options.items():
            if value is not None:
                text = ",".join(map(str, value)) if isinstance(value, list) else value
                words.append(f"--{name.replace('_', '-')}={text}")
        try:
            async with limiter:
                return await run([*words, *["--json"] * (form == "json"), "--", *after], stdin, str(folder), bounds)
        except TilewrightError as error:
            raise ToolError(str(error)) from None

    @server.tool(annotations=_READ_ONLY, structured_output=False)
    async def explain_layout(
        layout: Layout,
        index: Annotated[
            list[int] | None, Field(max_length=64, description="Derive the address of this element, step by step.")
        ] = None,
        offset: Annotated[int | None, Field(description="Say which element, or padding, lies at this offset.")] = None,
        format: Format = "text",
    ) -> str:
        """Say what a layout's text means: sizes, padding; how an element gets its offset, or what lies at an offset."""
        return await answer("layout explain", format, after=[_text(layout)], index=index, offset=offset)

    @server.tool(annotations=_READ_ONLY, structured_output=False)
    async def compare_layouts(
        before: Layout,
        after: Layout,
        permutation: Annotated[
            list[int] | None, Field(max_length=64, description="`after` is reshape(transpose(before, permutation)).")
        ] = None,
        format: Format = "text",
    ) -> str:
        """Compare two layouts of the same elements: whether going from one to the other is free, why, what it moves."""
        sides = [_text(before), _text(after)]
        return await answer("layout compare", format, after=sides, permutation=permutation)

    @server.tool(annotations=_READ_ONLY, structured_output=False)
    async def report(
        text: ProgramText = None,
        file: ProgramFile = None,
        target: Chip = None,
        top: Annotated[int, Field(ge=1, le=200, description="Entries of each ranking.")] = 10,
        format: Format = "text",
    ) -> str:
        """Rank a program's operations by the time or the bytes they move for layout's sake: line, layouts, reason.

        Begins with what pays most and what to do about it; ends with the arrays that waste most on padding.
        """
        program = _program(text, file, folder)
        return await answer("report", format, program, ["-"], target=_chip(target), top=top)

    @server.tool(annotations=_READ_ONLY, structured_output=False)
    async def time(
        target: Annotated[str, Field(description="The chip whose time is modelled, such as tpu-v6e.")],
        text: ProgramText = None,
        file: ProgramFile = None,
        top: Annotated[int, Field(ge=1, le=200, description="Operations to list.")] = 15,
        format: Format = "text",
    ) -> str:
        """Model how long one step of a program takes on a TPU: slowest operations, and what bounds each."""
        program = _program(text, file, folder)
        return await answer("time", format, program, ["-"], target=_chip(target), top=top)

    @server.tool(annotations=_READ_ONLY, structured_output=False)
    async def plan_embeddings(
        target: Annotated[str, Field(description="A chip with SparseCores, such as tpu-v5p.")] = "tpu-v5p",
        chips: Annotated[Count | None, Field(description="How many of it (1).")] = None,
        batch: Annotated[Count | None, Field(description="Samples of a batch on all chips together (4096).")] = None,
        tables: Annotated[Count | None, Field(description="So many tables alike, without a log.")] = None,
        rows_per_table: Annotated[Count | None, Field(description="Rows of each of them.")] = None,
        ids_per_sample: Annotated[Count | None, Field(description="Ids of a sample in each of them (1).")] = None,
        width: Annotated[Count | None, Field(description="Floats per row (16).")] = None,
        optimizer: Annotated[
            str | None, Field(pattern=r"^[a-z0-9_]+$", description="sgd, adagrad (the default), adam, ftrl ...")
        ] = None,
        config: Annotated[
            str | None, Field(max_length=4096, description="Tables and features as a TOML file below the folder.")
        ] = None,
        log: Annotated[
            str | None,
            Field(
                max_length=4096, description="A log to learn limits from, below the folder: .parquet, .csv, .tsv, .npz."
            ),
        ] = None,
        format: Format = "text",
    ) -> str:
        """Say what embedding tables need on SparseCores: limits, buffers, memory, whether it compiles and fits.

        Give tables and rows_per_table, or a config, or a log (or config and log).
        """
        if tables is None and config is None and log is None:
            raise ToolError("nothing to plan: give tables and rows_per_table, or a config, or a log")
        logs = [str(_below(log, folder, (".parquet", ".csv", ".tsv", ".npz")))] if log is not None else []
        return await answer(
            "embed plan",
            format,
            after=logs,
            target=_chip(target),
            chips=chips,
            batch=batch,
            tables=tables,
            rows_per_table=rows_per_table,
            ids_per_sample=ids_per_sample,
            width=width,
            optimizer=optimizer,
            config=None if config is None else _below(config, folder, (".toml",)),
        )

    return server


def _text(layout: str) -> str:
    """A layout as an argument: ``-`` would be the server's own stdin, and no process takes a null character."""
    if "\0" in layout or layout.strip() in ("", "-"):
        raise ToolError("no layout: write XLA's shape text, such as f32[8,128]{1,0:T(8,128)}")
    return layout


def _chip(name: str | None) -> str | None:
    """The name of a chip that is known; a file of the reader's own could lie anywhere."""
    if name is not None and name.partition(":")[0] not in target_names():
        raise ToolError(f"no chip is called {name!r}; there are {', '.join(target_names())}")
    return name


def _program(text: str | None, file: str | None, folder: Path) -> bytes:
    """The bytes of a program, for stdin: so no name is taken for a Python function, which would run."""
    if (text is None) == (file is None):
        raise ToolError("give the program's text, or its file, and not both")
    if text is not None:
        return text.encode("utf-8", "replace") or b"\n"
    return _below(file or "", folder).read_bytes() or b"\n"


def _below(name: str, folder: Path, suffixes: tuple[str, ...] = ()) -> Path:
    """A file of the folder, links followed. ToolError for any other, the same whether there is such a file or not."""
    try:
        # By its words first: what a name outside of the folder comes to would say which links and folders there are.
        path = Path(os.path.normpath(folder / name))
        if not path.is_relative_to(folder) or not (path := path.resolve()).is_relative_to(folder):
            raise UsageError(f"{name} does not lie below the server's folder", how="start it with --root FOLDER")
        if not path.is_file():
            raise UsageError(f"{name} is no file below the server's folder")
        if suffixes and not path.name.lower().endswith(suffixes):
            raise UsageError(f"{name} does not end in {' or '.join(suffixes)}")
        if path.stat().st_size > _LARGEST_FILE:
            raise UsageError(f"{name} is larger than {_LARGEST_FILE // 2**20} MiB")
    except (OSError, ValueError, RuntimeError) as error:
        raise ToolError(f"cannot read {name!r}: {error}") from None
    except UsageError as error:
        raise ToolError(str(error)) from None
    return path
