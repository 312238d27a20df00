"""Chips as data: one TOML file each, every constant with its source."""

from typing import TYPE_CHECKING

from tilewright.exports import public_names

if TYPE_CHECKING:
    from tilewright.targets.chips import (
        LaneMemory,
        Links,
        SeenError,
        SimtCore,
        Target,
        TileMemory,
        TimeConstants,
        target,
        target_names,
    )
    from tilewright.targets.scaling import time_of, what_if

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
