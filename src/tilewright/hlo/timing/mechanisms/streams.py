"""Streaming kernels: HBM to vector memory, through the registers, and back. Copies, elementwise operations, transposes.

A small array passes in one window: read, compute and write follow one another. A large one passes in many windows,
which overlap; then the slowest of the three counts. The default layouts make a transpose a bitcast, so it streams too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from tilewright.hlo.timing.mechanisms.price import Price
from tilewright.hlo.timing.mechanisms.tiles import Tiles
from tilewright.targets import TimeConstants

WINDOW_TILES = 128
"""Tiles in a window of a long stream."""


def ramp(constants: TimeConstants, megabytes: float) -> float:
    """Microseconds that starting a transfer takes: grows over the first kilobytes to ``start_us``."""
    return constants["start_us"] * (1 - exp(-megabytes / constants["start_mb"]))


def copy(constants: TimeConstants, operand: Tiles, result: Tiles) -> Price:
    """A copy between layouts that are bitcasts of each other.

    It goes over to windows earlier than what computes, but where its tiles are a quarter of a register.
    """
    if result.one_small_tile:
        return Price(constants["one_tile_us"], {"latency": constants["one_tile_us"]})
    megabytes = operand.megabytes + result.megabytes
    fits = min(1.0, constants["one_window_mb" if result.tile[:1] == (2,) else "copy_window_mb"] / megabytes)
    latency = constants["launch_us"] + ramp(constants, megabytes * fits)
    stream = megabytes * fits / constants["window_mb_per_us"]
    shuffle = result.count * fits * constants["copy_small_tile_ns"] / 1e3 if result.small_tile else 0.0
    one = Price(latency + stream + shuffle, {"latency": latency, "hbm": stream, "vector": shuffle})
    if fits == 1.0:
        return one
    latency, stream = constants["windows_us"], megabytes / constants["stream_mb_per_us"]
    return Price(latency + stream, {"latency": latency, "hbm": stream}).at_least(one)


def elementwise(constants: TimeConstants, operands: Sequence[Tiles], result: Tiles) -> Price:
    """One elementwise operation (measured: exponential, of the transcendental unit)."""
    megabytes = sum(operand.megabytes for operand in operands) + result.megabytes
    latency = constants["launch_us"] + ramp(constants, megabytes)
    fits = min(1.0, constants["one_window_mb"] / megabytes)
    stream = megabytes * fits / constants["window_mb_per_us"]
    compute = result.count * fits * constants["small_tile_ns" if result.small_tile else "tile_ns"] / 1e3
    one = Price(latency + stream + compute, {"latency": latency, "hbm": stream, "vector": compute})
    if fits == 1.0:
        return one
    stream, windows = (
        megabytes / constants["elementwise_mb_per_us"],
        result.count / WINDOW_TILES * constants["window_us"],
    )
    return Price(latency + max(stream, windows), {"latency": latency, "hbm": stream, "vector": windows}).at_least(one)
