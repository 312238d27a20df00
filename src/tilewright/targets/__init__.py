"""Chips as data: one TOML file each, every constant with its source."""

from tilewright.targets.chips import (
    LaneMemory,
    Seen,
    SimtCore,
    Target,
    TileMemory,
    TimeConstants,
    load_target,
    parse_target,
    target,
    target_names,
)

__all__ = [
    "LaneMemory",
    "Seen",
    "SimtCore",
    "Target",
    "TileMemory",
    "TimeConstants",
    "load_target",
    "parse_target",
    "target",
    "target_names",
]
