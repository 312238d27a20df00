"""Broadcasts along one new dim: repeating along lanes, sublanes or whole tiles costs differently."""

from __future__ import annotations

from math import exp

from tilewright.hlo.timing.mechanisms.price import Price
from tilewright.hlo.timing.mechanisms.streams import WINDOW_TILES, ramp
from tilewright.hlo.timing.mechanisms.tiles import Tiles
from tilewright.targets import TimeConstants


def broadcast(constants: TimeConstants, operand: Tiles, result: Tiles, dim: int) -> Price:
    """``operand`` (size 1 along ``dim``) repeated along ``dim``.

    Where the dims of both stand in another order, the operand is copied first. A leading dim of 1 makes the compiler
    begin with a reduction that adds nothing up (seen in its modules).
    """
    if result.shape[dim] == 1:
        stream = 2 * operand.megabytes / constants["copy_mb_per_us"]
        latency = constants["copy_us"] + 0.14 * (1 - exp(-operand.megabytes / 0.02))
        return Price(latency + stream, {"latency": latency, "hbm": stream})
    role = result.role(dim)
    latency = constants["launch_us"] + ramp(constants, result.megabytes)
    compute = result.count * constants[f"{role}_ns"] / 1e3
    if role == "lanes":
        latency += constants["lanes_us"]
        compute += result.count / result.grid[-1] * constants["lanes_row_ns"] / 1e3
    if result.count <= _tiles_at_once(constants, result):
        stream = result.megabytes / constants["write_mb_per_us"]
        whole = stream + compute
    else:
        stream = result.megabytes / constants["window_write_mb_per_us"]
        compute = max(compute, result.count / WINDOW_TILES * constants["window_us"])
        whole = max(stream, compute)
    relayout = 0.0
    if result.shape[0] > 1 and operand.order(dim) != result.order(dim):
        relayout += constants["order_us"] + 2 * operand.megabytes * constants["order_us_per_mb"]
    if len(result.shape) == 3 and result.shape[0] == 1 and result.shape[2] > 128:
        relayout += constants["reduce_us"] + operand.count * constants["reduce_tile_ns"] / 1e3
    parts = {"latency": latency, "hbm": stream, "vector": compute, "relayout": relayout}
    return Price(latency + whole + relayout, parts)


def _tiles_at_once(constants: TimeConstants, result: Tiles) -> float:
    """How many tiles of the result vector memory takes in one window."""
    sublanes = result.tile[0] if result.tile else 8
    return {4: 1800.0, 2: 4000.0}.get(sublanes, constants["one_window_mb"] / 0.002048)
