"""Chips as data: one TOML file each, every constant with its source."""

from tilewright.targets.chips import (
    LaneMemory,
    Links,
    MatrixUnits,
    Memory,
    SimtCore,
    SparseCores,
    Target,
    TimeConstants,
    VectorUnit,
    load_target,
    parse_target,
    target,
    target_names,
)

__all__ = [
    "LaneMemory",
    "Links",
    "MatrixUnits",
    "Memory",
    "SimtCore",
    "SparseCores",
    "Target",
    "TimeConstants",
    "VectorUnit",
    "load_target",
    "parse_target",
    "target",
    "target_names",
]
