"""`tilewright targets`: the chips, and one chip's constants with their sources."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from typing import Annotated

import typer

from tilewright.cli.streams import Json, emit_json, show_table


def targets(
    name: Annotated[str | None, typer.Argument(help="A target's name, or a TOML file of your own.")] = None,
    as_json: Json = False,
) -> None:
    """List the targets, or print one with the source of every constant."""
    from tilewright.targets import target, target_names

    if name is None:
        chips = [target(known) for known in target_names()]
        if as_json:
            emit_json({"targets": [{"name": t.name, "title": t.title, "family": t.family} for t in chips]})
            return
        rows = []
        for t in chips:
            size = f"{t.memories[0].bytes / 2**30:g} GiB" if t.memories else ""
            rows.append((t.name, t.title, t.family, size, str(t.sparse.per_chip) if t.sparse else ""))
        show_table(("target", "what it is", "family", "main memory", "sparse cores"), rows)
        return
    chip = target(name)
    if as_json:
        parts = {f.name: getattr(chip, f.name) for f in fields(chip) if f.name != "sources"}
        values = {k: asdict(v) if is_dataclass(v) and not isinstance(v, type) else v for k, v in parts.items()}
        values["memories"] = [asdict(m) for m in chip.memories]
        values["types"] = dict(chip.types)
        values["time"] = {
            name: {"values": dict(known.values), "fitted_on": known.fitted_on, "error": known.error}
            for name, known in chip.time.items()
        }
        emit_json({**values, "sources": dict(chip.sources)})
        return
    plain = ("family", "layout_rule", "compiler_normalizes", "short_run_bytes", "short_kept_run_bytes")
    constants = [(key, str(getattr(chip, key)), chip.sources["target"]) for key in plain]
    sections = [(f"memory.{m.name}", m) for m in chip.memories]
    sections += [(f.name, getattr(chip, f.name)) for f in fields(chip) if is_dataclass(getattr(chip, f.name))]
    for section, value in sections:
        for f in fields(value):
            source = chip.sources.get(f"{section}.{f.name}", chip.sources[section])
            constants.append((f"{section}.{f.name}", str(getattr(value, f.name)), source))
    constants += [(f"types.{key}", stored, chip.sources["types"]) for key, stored in chip.types]
    for name, known in chip.time.items():
        section = f"time.{name}"
        for key, number in known.values.items():
            source = chip.sources.get(f"{section}.{key}", chip.sources[section])
            constants.append((f"{section}.{key}", f"{number:g}", source))
    show_table(("constant", "value", "source"), constants, chip.title)
