"""Chips as data: one TOML file each, every constant with its source."""

from tilewright.targets.chips import (
    CoreGrid,
    LaneMemory,
    Links,
    MatrixUnits,
    Memory,
    Seen,
    SimtCore,
    SparseCores,
    Target,
    TileMemory,
    TimeConstants,
    VectorUnit,
    load_target,
    parse_target,
    target,
    target_names,
)

__all__ = [
    "CoreGrid",
    "LaneMemory",
    "Links",
    "MatrixUnits",
    "Memory",
    "Seen",
    "SimtCore",
    "SparseCores",
    "Target",
    "TileMemory",
    "TimeConstants",
    "VectorUnit",
    "load_target",
    "parse_target",
    "target",
    "target_names",
]
