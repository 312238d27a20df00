"""Reshapes that merge the last two of three dims, [a, b, c] -> [a, b * c]: by rotated rows, or by merged columns."""

from __future__ import annotations

from math import exp, prod

from tilewright.hlo.timing.mechanisms.price import Price
from tilewright.hlo.timing.mechanisms.tiles import Tiles
from tilewright.targets import TimeConstants

_ROW_MAJOR = (2, 1, 0)


def reshape(constants: TimeConstants, operand: Tiles, result: Tiles) -> Price:
    """The reshape, as the compiler makes it: with ``a`` in the lanes of the result it merges columns, else rows."""
    a, b, c = operand.shape
    megabytes = operand.megabytes + result.megabytes
    if b == 1:
        return _plain_copy(constants, operand, megabytes)
    if _by_columns(operand):
        return _merge_columns(constants, operand, result, megabytes)
    latency, relayout = constants["launch_us"], 0.0
    if operand.minor_to_major != _ROW_MAJOR:
        relayout += constants["turn_us"] + a * -(-b // 8) * -(-c // 128) * constants["turn_row_ns"] / 1e3
    pieces = a * b * -(-c // 128)
    rotate = pieces * _piece_ns(constants, operand) / 1e3 + result.count * constants["out_tile_ns"] / 1e3
    stream = megabytes / constants["stream_mb_per_us"]
    parts = {"latency": latency, "hbm": stream, "relayout": relayout + rotate}
    return Price(latency + relayout + max(rotate, stream), parts)


def _plain_copy(constants: TimeConstants, operand: Tiles, megabytes: float) -> Price:
    if operand.one_small_tile:
        return Price(constants["one_tile_us"], {"latency": constants["one_tile_us"]})
    latency = constants["launch_us"] * 0.93 + 0.15 * (1 - exp(-megabytes / 0.03))
    stream = megabytes / constants["copy_mb_per_us"]
    return Price(latency + stream, {"latency": latency, "hbm": stream})


def _by_columns(operand: Tiles) -> bool:
    """Whether the compiler keeps ``a`` in the lanes: where it lies there already, or where that makes fewer tiles."""
    a, b, c = operand.shape
    by_rows = a * -(-b // 8) * -(-c // 128)
    by_columns = b * -(-c // 8) * -(-a // 128)
    order = operand.minor_to_major
    if c % 8 == 0 and a >= 32 and order != _ROW_MAJOR and by_rows >= by_columns:
        return True
    return order == (0, 2, 1) or (order in ((1, 0, 2), (1, 2, 0), (0, 1, 2)) and by_rows / by_columns >= 2.1)


def _merge_columns(constants: TimeConstants, operand: Tiles, result: Tiles, megabytes: float) -> Price:
    """``a`` stays in the lanes; ``b`` and ``c`` merge along the sublanes."""
    a, b, c = operand.shape
    tiles_in = b * -(-c // 8) * -(-a // 128)
    tiles_out = -(-b * c // 8) * -(-a // 128)
    latency, relayout = constants["launch_us"], 0.0
    stream = megabytes / constants["stream_mb_per_us"]
    if operand.minor_to_major != (0, 2, 1):
        relayout += constants["second_us"] + tiles_in * constants["to_columns_ns"] / 1e3
    if c % 8:
        relayout += (tiles_out * constants["merge_out_ns"] + tiles_in * constants["merge_in_ns"]) / 1e3
    if result.minor_to_major[0] != 0:
        relayout += (constants["second_us"] if c % 8 else 0.0) + tiles_out * constants["transpose_ns"] / 1e3
    return Price(latency + stream + relayout, {"latency": latency, "hbm": stream, "relayout": relayout})


def _piece_ns(constants: TimeConstants, operand: Tiles) -> float:
    """Nanoseconds for one row's 128 lanes to be rotated into place.

    The compiler has a way of its own for few rows, and a loop over pieces for what does not fit vector memory.
    """
    a, b, c = operand.shape
    elements = prod(operand.shape)
    looped = (a <= 8 and elements >= 4.3e6) or (a <= 16 and elements >= 15e6)
    if a == 1:
        piece = constants["one_row_loop_ns" if looped else "one_row_ns"]
    elif looped:
        piece = constants["loop_ns"]
    elif a <= 8:
        piece = constants["few_rows_long_ns" if elements > 0.56e6 else "few_rows_ns"]
    elif constants["few_tiles"] and a * -(-b // 8) * -(-c // 128) < constants["few_tiles"]:
        piece = constants["few_rows_ns"]
    else:
        piece = constants["rows_ns"] * (-(-a // 16) * 16) / a
    return piece * (constants["short_share"] if c <= 32 and a > 1 else 1.0)
