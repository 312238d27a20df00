"""`tilewright mcp`: layouts, reports, times and plans for agents, over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.errors import UsageError


def mcp(
    root: Annotated[
        Path,
        typer.Option("--root", metavar="FOLDER", help="Programs and logs are read from this folder and below only."),
    ] = Path(),
    seconds: Annotated[int, typer.Option("--seconds", min=1, help="The longest a call may take.")] = 120,
) -> None:
    """Serve explain, compare, report, time and plan to agents: Model Context Protocol over stdio, read-only."""
    if not root.is_dir():
        raise UsageError("no such folder", where=str(root))
    try:
        from tilewright.cli.mcp.bounded import Bounds
        from tilewright.cli.mcp.server import make_server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tilewright"):
            raise
        problem = f"serving agents needs the package mcp, version 2 ({error.name} is missing)"
        raise UsageError(problem, how="pip install 'tilewright[mcp]'") from None
    make_server(root.resolve(), Bounds(seconds)).run("stdio")
