"""Concatenations: operands stream into one result; a seam inside a tile shifts everything behind it."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.hlo.timing.mechanisms.price import Price
from tilewright.hlo.timing.mechanisms.streams import WINDOW_TILES, ramp
from tilewright.hlo.timing.mechanisms.tiles import Tiles
from tilewright.targets import TimeConstants

_ON_TILE = 0.3
"""Share of the work that is left where the seam falls on a tile's edge: nothing is shifted."""


def concatenate(constants: TimeConstants, operands: Sequence[Tiles], result: Tiles, dim: int) -> Price:
    """``operands`` joined along ``dim``; operands whose dims stand in another order are copied first."""
    if result.one_small_tile:
        return Price(constants["one_tile_us"], {"latency": constants["one_tile_us"]})
    turned = [operand for operand in operands if _order_differs(operand, result)]
    role = result.role(dim)
    compute = result.count * constants[f"{role}_ns"] / 1e3
    if role == "lanes":
        compute = max(compute, result.count * constants["chain_ns"] / max(1, result.grid[-2]) / 1e3)
    if operands[0].shape[dim] % (128 if role == "lanes" else 8) == 0:
        compute *= _ON_TILE
    if role == "lanes" and result.small_tile:
        compute *= constants["small_tile_share"]
    megabytes = sum(operand.megabytes for operand in operands if operand not in turned) + result.megabytes
    latency = constants["launch_us"] + ramp(constants, megabytes) + (constants["lanes_us"] if role == "lanes" else 0)
    fits = min(1.0, constants["one_window_mb"] / megabytes)
    stream = megabytes / constants["window_mb_per_us"]
    whole = (stream + compute) * fits
    if fits < 1.0:
        stream = megabytes / constants["stream_mb_per_us"]
        if result.small_tile:
            compute = max(compute, result.count / WINDOW_TILES * constants["window_us"])
        whole = max(stream, compute, whole)  # many windows take no less than the most that fit one
    relayout = 0.0
    if turned:
        relayout = constants["copy_one_us" if len(turned) == 1 else "copy_two_us"]
        relayout += sum(operand.megabytes for operand in turned) * constants["copy_us_per_mb"]
        if any(_proper(operand, operand)[:1] != _proper(operand, result)[:1] for operand in turned):
            relayout += sum(operand.count for operand in turned) * constants["copy_tile_ns"] / 1e3
    parts = {"latency": latency, "hbm": stream, "vector": compute, "relayout": relayout}
    return Price(latency + whole + relayout, parts)


def _proper(sizes: Tiles, order: Tiles) -> list[int]:
    """The dims of ``order``, minor first, along which ``sizes`` has more than one element."""
    return [d for d in order.minor_to_major if sizes.shape[d] > 1]


def _order_differs(operand: Tiles, result: Tiles) -> bool:
    if _proper(operand, operand) != _proper(operand, result):
        return True
    if len(result.shape) < 2:
        return False
    sublane, wanted = operand.minor_to_major[1], result.minor_to_major[1]
    return sublane != wanted and operand.shape[sublane] > 1 and result.shape[wanted] > 1
