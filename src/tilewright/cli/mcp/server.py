"""The tools that agents see: each is one command of ours, run within bounds; its errors are the tool's errors."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, Literal, NamedTuple, get_args

import anyio
from anyio import CapacityLimiter
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from tilewright.cli.embed.plan import plan
from tilewright.cli.layout.show import compare, explain
from tilewright.cli.options import parsed
from tilewright.cli.programs.report import report
from tilewright.cli.programs.time import time
from tilewright.errors import CheckFailed, TilewrightError, UsageError
from tilewright.targets import target_names
from tilewright.version import __version__

# A command in a process of its own, with limits on its time, its memory and what it prints.

_RUN = """
import os, sys, threading, time
from tilewright.child import bound
seconds, memory = int(sys.argv.pop(1)), int(sys.argv.pop(1))
bound(memory, seconds)
def end_with(server):
    while os.getppid() == server:
        time.sleep(0.5)
    os._exit(1)
threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
from tilewright.cli import main
main()
"""
"""The limits are set before anything large is imported; a server that was killed takes its calls with it."""


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
_Format = Annotated[Literal["text", "json"], Field(description="Text to read, or the command's stable JSON.")]
_Layout = Annotated[str, Field(max_length=100_000, description="bf16[256,128]{1,0:T(8,128)(2,1)}, or an HLO line.")]
_Numbers = Annotated[list[int] | None, Field(max_length=64)]
_Text = Annotated[str | None, Field(max_length=_LONGEST_TEXT, description="HLO (HloModule ...) or StableHLO text.")]
_File = Annotated[str | None, Field(max_length=4096, description="Or its file in any form, below the server's folder.")]
_LOG = Annotated[str | None, Field(max_length=4096, description="Below the folder: .parquet, .csv, .tsv or .npz.")]
_PROGRAM: dict[str, Any] = {"text": _Text, "file": _File}


class _Tool(NamedTuple):
    """A command as a tool: what it is given in place of the command's arguments, and which options it has.

    An option is the command's own, with its help, or of a ``kind`` that agents write better.
    """

    name: str
    words: str
    command: Callable[..., object]
    given: dict[str, Any]
    options: str
    kinds: dict[str, Any] = {}  # noqa: RUF012

    def parameters(self) -> Iterator[inspect.Parameter]:
        """What the tool takes."""
        keyword = inspect.Parameter.KEYWORD_ONLY
        for name, kind in self.given.items():
            default = inspect.Parameter.empty if kind is _Layout else None
            yield inspect.Parameter(name, keyword, default=default, annotation=kind)
        known = inspect.signature(parsed(self.command)).parameters
        for name in self.options.split():
            kind, option = get_args(known[name].annotation)
            field = Field(description=option.help, ge=option.min)
            kind = Annotated[self.kinds.get(name, kind), field]
            yield inspect.Parameter(name, keyword, default=known[name].default, annotation=kind)
        yield inspect.Parameter("format", keyword, default="text", annotation=_Format)


_TOOLS = (
    _Tool("explain_layout", "layout explain", explain, {"layout": _Layout}, "index offset", {"index": _Numbers}),
    _Tool(
        *("compare_layouts", "layout compare", compare, {"before": _Layout, "after": _Layout}, "permutation"),
        {"permutation": _Numbers},
    ),
    _Tool("report", "report", report, _PROGRAM, "target top"),
    _Tool("time", "time", time, _PROGRAM, "target top", {"target": str | None}),
    _Tool(
        *("plan_embeddings", "embed plan", plan, {"log": _LOG}),
        "target chips batch tables rows_per_table ids_per_sample width optimizer config",
    ),
)
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

    def add(tool: _Tool) -> None:
        async def call(**given: Any) -> str:
            try:
                stdin, after = _arguments(given, folder)
                words = [*tool.words.split(), *["--json"] * (given.pop("format") == "json")]
                for name, value in given.items():
                    if value is not None:
                        text = ",".join(map(str, value)) if isinstance(value, list) else value
                        words.append(f"--{name.replace('_', '-')}={text}")
                async with limiter:
                    return await run([*words, "--", *after], stdin, str(folder), bounds)
            except TilewrightError as error:
                raise ToolError(str(error)) from None

        call.__signature__ = inspect.Signature(list(tool.parameters()))  # type: ignore[attr-defined]
        about = inspect.getdoc(tool.command)
        server.add_tool(call, tool.name, description=about, annotations=_READ_ONLY, structured_output=False)

    for tool in _TOOLS:
        add(tool)
    return server


def _arguments(given: dict[str, Any], folder: Path) -> tuple[bytes, list[str]]:
    """What a command reads from stdin, and its arguments; they are taken out of what a tool was given."""
    chip = given.get("target")
    if chip is not None and chip.partition(":")[0] not in target_names():  # a file of one's own could lie anywhere
        raise UsageError(f"no chip is called {chip!r}", how=f"there are {', '.join(target_names())}")
    if "text" in given:  # a program goes to stdin: so no name is taken for a Python function, which would run
        text, file = given.pop("text"), given.pop("file")
        if (text is None) == (file is None):
            raise UsageError("give the program's text, or its file, and not both")
        raw = _below(file, folder).read_bytes() if text is None else text.encode("utf-8", "replace")
        return raw or b"\n", ["-"]
    if "log" not in given:
        texts = [given.pop(name) for name in ("layout", "before", "after") if name in given]
        # - would be the server's own stdin, and no process takes a null character.
        if any("\0" in layout or layout.strip() in ("", "-") for layout in texts):
            raise UsageError("no layout", how="write XLA's shape text, such as f32[8,128]{1,0:T(8,128)}")
        return b"", texts
    log, config = given.pop("log"), given["config"]
    if log is None and config is None and given["tables"] is None:
        raise UsageError("nothing to plan: give tables and rows_per_table, or a config, or a log")
    given["config"] = None if config is None else _below(config, folder, (".toml",))
    return b"", [] if log is None else [str(_below(log, folder, (".parquet", ".csv", ".tsv", ".npz")))]


def _below(name: str, folder: Path, suffixes: tuple[str, ...] = ()) -> Path:
    """A file of the folder, links followed. UsageError for any other, the same whether there is such a file or not."""
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
        raise UsageError(f"cannot read {name!r}: {error}") from None
    return path
