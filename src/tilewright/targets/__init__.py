"""Chips as data: one TOML file each, every constant with its source."""

from tilewright.targets.loading import load_target, parse_target, target, target_names
from tilewright.targets.schema import (
    LaneMemory,
    Links,
    MatrixUnits,
    Memory,
    SimtCore,
    SparseCores,
    Target,
    TimeConstants,
    VectorUnit,
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
