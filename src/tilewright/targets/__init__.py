"""Chips as data: one TOML file each, every constant with its source."""

from typing import TYPE_CHECKING

from tilewright import exports

if TYPE_CHECKING:
    from tilewright.targets.chips import (
        LaneMemory,
        SimtCore,
        Target,
        TileMemory,
        TimeConstants,
        target,
        target_names,
    )

__all__, __getattr__ = exports.public_names(__name__, __file__)
