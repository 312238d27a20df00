"""`tilewright mcp`: layouts, reports, times and plans for agents, over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from tilewright.errors import UsageError
from tilewright.extras import need


def mcp(
    root: Annotated[Path, "--root FOLDER", "Programs and logs are read from this folder and below only."] = Path(),
    seconds: Annotated[int, Option(min=1, help="The longest a call may take.")] = 120,
) -> None:
    """Serve explain, compare, report, time and plan to agents: Model Context Protocol over stdio, read-only."""
    need("mcp", what="serving agents")
    if not root.is_dir():
        raise UsageError("no such folder", where=str(root))
    try:
        from tilewright.cli.mcp.server import Bounds, make_server
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("mcp"):
            raise
        raise UsageError("the package mcp is older than version 2", how="pip install -U 'tilewright[mcp]'") from None
    make_server(root.resolve(), Bounds(seconds)).run("stdio")
