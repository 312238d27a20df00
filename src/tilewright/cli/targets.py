"""`tilewright targets`: the chips, and one chip's constants with their sources."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from typing import Annotated

import typer

from tilewright.cli.streams import emit_json

__all__ = ["add_to"]


def _show(
    name: Annotated[str | None, typer.Argument(help="A target's name, or a TOML file of your own.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the targets, or print one with the source of every constant."""
    from rich.console import Console
    from rich.table import Table

    from tilewright.targets import target, target_names

    console = Console()
    if name is None:
        chips = [target(each) for each in target_names()]
        if as_json:
            emit_json({"targets": [{"name": t.name, "title": t.title, "family": t.family} for t in chips]})
            return
        table = Table("target", "what it is", "family", "main memory", "sparse cores", box=None)
        for t in chips:
            size = f"{t.memories[0].bytes / 2**30:g} GiB" if t.memories else ""
            table.add_row(t.name, t.title, t.family, size, str(t.sparse.per_chip) if t.sparse else "")
        console.print(table)
        return
    chip = target(name)
    if as_json:
        plain = {f.name: getattr(chip, f.name) for f in fields(chip) if f.name != "sources"}
        values = {k: asdict(v) if is_dataclass(v) and not isinstance(v, type) else v for k, v in plain.items()}
        values["memories"] = [asdict(m) for m in chip.memories]
        emit_json({**values, "sources": dict(chip.sources)})
        return
    table = Table("constant", "value", "source", box=None, title=chip.title, title_justify="left")
    for key in ("family", "layout_rule", "compiler_normalizes", "short_run_bytes", "short_kept_run_bytes"):
        table.add_row(key, str(getattr(chip, key)), chip.sources["target"])
    sections = [(f"memory.{m.name}", m) for m in chip.memories]
    sections += [(f.name, getattr(chip, f.name)) for f in fields(chip) if is_dataclass(getattr(chip, f.name))]
    for section, value in sections:
        for f in fields(value):
            source = chip.sources.get(f"{section}.{f.name}", chip.sources[section])
            table.add_row(f"{section}.{f.name}", str(getattr(value, f.name)), source)
    console.print(table)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("targets")(_show)
