"""Write docs/commands.md from the command line itself. A test keeps the page true: ./run python docs/generate.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tilewright.cli import app

HEAD = """# Commands

Generated from the commands themselves by `./run python docs/generate.py`; a test keeps this page true.

`-` is stdin or stdout. `--json` prints stable JSON with a `schema_version`. `-o` picks the writer by suffix. Data goes
to stdout, remarks and progress to stderr. Exit codes: 0 fine, 1 a check found something, 2 usage, 3 an unsupported
construct. `--debug`, anywhere, shows a traceback where something fails. `NO_COLOR` is obeyed.
"""


def parameters(command: Any) -> list[str]:
    """One table row per argument and option."""
    rows = []
    for each in command.params:
        if each.name in ("help", "install_completion", "show_completion"):
            continue
        if each.param_type_name == "argument":
            name = f"`{each.name.upper()}`" + ("" if each.required else " (optional)")
        else:
            name = ", ".join(f"`{option}`" for option in (*each.opts, *each.secondary_opts))
        help_text = " ".join((each.help or "").split()).replace("|", "\\|")
        default = each.default if not callable(each.default) else None
        shown = "" if default is None or default is False or default == () else f"`{default}`"
        rows.append(f"| {name} | {help_text} | {shown} |")
    return rows


def page(command: Any, path: str) -> list[str]:
    """A command's section, and those of the commands below it."""
    below = getattr(command, "commands", {})
    lines = []
    if path != "tilewright" and not below:
        usage = " ".join(f"{a.name.upper()}" for a in command.params if a.param_type_name == "argument")
        lines += [f"## {path}", "", f"`{' '.join(f'{path} {usage} [options]'.split())}`", ""]
        lines += ["\n".join(line.strip() for line in (command.help or "").strip().splitlines()), ""]
        rows = parameters(command)
        if rows:
            lines += ["| argument or option | what it does | default |", "|---|---|---|", *rows, ""]
    for name in sorted(below):
        lines += page(below[name], f"{path} {name}")
    return lines


def reference() -> str:
    """The whole page."""
    return "\n".join([HEAD, *page(typer.main.get_command(app), "tilewright")]).rstrip() + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("commands.md").write_text(reference(), encoding="utf-8")
