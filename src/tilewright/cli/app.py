"""The `tilewright` command: gathers the groups, and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command

from tilewright.cli import embed, isa, layout, programs, streams
from tilewright.cli.mcp import mcp
from tilewright.cli.options import parsed
from tilewright.cli.standalone import explain_error, explore, run, targets, warm
from tilewright.errors import ParseError, TilewrightError
from tilewright.extras import missing_extra
from tilewright.render.delivery import remark
from tilewright.version import __version__

app = typer.Typer(
    name="tilewright",
    help="Where every tensor element lives, which movement is needless, and the result, run and counted.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich takes longer than all the rest of --help
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(group: typer.Typer, commands: Iterable[Callable[..., object]]) -> None:
    """Each function is the command of its name (with - for _); its docstring's first line stands in the overview."""
    for command in commands:
        first_line = (command.__doc__ or "").partition("\n")[0]
        group.command(short_help=first_line)(parsed(command))


_add(app, (*programs.COMMANDS, explain_error, explore, mcp, run, targets, warm))
for name, summary, commands in (
    ("embed", "Sparse cores: plan embedding tables before renting chips, and train them.", embed.COMMANDS),
    ("isa", "The matrix unit: assemble, run, multiply, count.", isa.COMMANDS),
    ("kernel", "Pallas kernels for TPUs: checked without one.", programs.KERNEL_COMMANDS),
    ("layout", "Where every element lives: in words, drawn, compared, packed.", layout.COMMANDS),
):
    group = typer.Typer(help=summary, short_help=summary, no_args_is_help=True)
    _add(group, commands)
    app.add_typer(group, name=name)


_OVERVIEW = f"""\
Tilewright {__version__}: where every tensor element lives on a tiled accelerator,
which movement is needless, and the result, run and counted on any machine.

You have a layout, as dumps print it:
    tilewright layout explain 'bf16[20,300]{{1,0:T(8,128)(2,1)}}'
    tilewright layout draw 'bf16[20,300]{{1,0:T(8,128)(2,1)}}'

You have a program: an HLO dump, StableHLO, or a function of a Python file:
    tilewright report dump.hlo -o report.html
    tilewright optimize model.py:step --target tpu-v5e --explain

You have embedding tables, and a log of what is looked up:
    tilewright embed plan clicks.csv --config model.toml --target tpu-v5p
    tilewright embed train model.py --data clicks.csv

You have a matrix unit to design:
    tilewright isa matmul --m 64 --n 200 --k 96
    tilewright isa step program.tasm

A TPU ran out of memory: tilewright explain-error log.txt
A Pallas kernel for TPUs: tilewright kernel check model.py:fn --sweep bm=128,256
A whole model on a chip: tilewright run model.py --target tpu-v5p
Layouts and programs in a browser: tilewright explore
All commands: tilewright --help     Completion: tilewright --install-completion"""


# What the option parser raises: its own base class, wherever this version of typer keeps it.
_OptionError: type[Exception] = typer.BadParameter.__mro__[2]


def _version(value: bool) -> None:
    if value:
        print(__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
) -> None:
    """Options before the command's name (`--debug` may stand anywhere)."""
    if context.invoked_subcommand is None:
        print(_OVERVIEW)


@cache
def _parser() -> Any:
    """The parser of command lines; made once, for a process that runs many commands."""
    return get_command(app)


def main() -> None:
    """Run the command line of this process and exit with the design's codes: 0, 1, 2 or 3."""
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        streams.usable_streams()
        if not debug:
            streams.quiet_threads()
        streams.tell_of_compiling()
        with streams.leaving_at_once():
            code = _parser()(args=arguments, standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except typer.Abort:  # Ctrl-C where a command deals with it itself, as training does
        text, code = "tilewright: interrupted", 130
    except (BrokenPipeError, SystemExit) as end:  # the reader went away, of which typer and rich make exit code 1
        if not isinstance(end, BrokenPipeError) and not isinstance(end.__context__, BrokenPipeError):
            raise
        streams.abandon_stdout()
        text, code = "", 0
    except Exception as error:
        if debug:
            raise
        text, code = _explained(error)
    if text:
        remark(text)
    sys.exit(code)


def _explained(error: Exception) -> tuple[str, int]:
    """What is said of an error in one line (and a caret where a text has a bad column), and the exit code."""
    if isinstance(error, _OptionError):
        message, context = str(error.format_message()), getattr(error, "ctx", None)  # type: ignore[attr-defined]
        if context and message == context.get_help():  # a bare group
            return message, 2
        message = message.strip(" .").replace("\n", " ")
        hint = f"; see {context.command_path} --help" if context else ""
        return f"tilewright: {message[0].lower()}{message[1:]}{hint}", 2
    if isinstance(error, ImportError):
        error = missing_extra(error) or error
    if isinstance(error, TilewrightError):
        caret = f"\n{error.caret()}" if isinstance(error, ParseError) else ""
        return f"tilewright: {error}".replace("\n", " ") + caret, error.exit_code
    if isinstance(error, MemoryError):
        return "tilewright: out of memory; give smaller sizes", 2
    if isinstance(error, OSError) and error.errno in streams.NO_ROOM:
        streams.abandon_stdout()
        return f"tilewright: cannot write stdout: {error.strerror}", 2
    if isinstance(error, FileNotFoundError):
        try:
            os.getcwd()
        except FileNotFoundError:
            return "tilewright: the working folder is gone; go to one that is there", 2
    fault = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return f"tilewright: a fault in tilewright itself, {fault}; --debug shows where", 1
