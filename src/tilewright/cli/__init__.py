"""The command line: one file per command group; heavy imports happen inside the commands."""

from tilewright.cli.app import app, main

__all__ = ["app", "main"]
