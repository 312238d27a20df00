"""Matrix products: weights stand in the matrix unit a square at a time, and the other operand streams past them."""

from __future__ import annotations

from tilewright.hlo.timing.mechanisms.price import Price
from tilewright.hlo.timing.mechanisms.tiles import Tiles
from tilewright.targets import TimeConstants

_REGISTER_MB = 0.002048  # one bf16 tile of (8, 128)


def matrix_us(constants: TimeConstants, rows: int, columns: int, depth: int) -> float:
    """Microseconds of passes: squares of ``side`` x ``side`` weights; each streams rows, at least ``fill_rows`` sides.

    The operand that makes fewer passes stands still. ``rows_per_cycle``, ``units`` and ``ghz`` are the chip's.
    """
    side = int(constants["side"])

    def passes(streamed: int, still: int) -> float:
        squares = -(-depth // side) * -(-still // side)
        return squares * max(-(-streamed // 8) * 8, side * constants["fill_rows"])

    cycles = min(passes(rows, columns), passes(columns, rows)) / constants["rows_per_cycle"] / constants["units"]
    return cycles / constants["ghz"] / 1e3


def product(
    constants: TimeConstants,
    a: Tiles,
    b: Tiles,
    result: Tiles,
    sizes: tuple[int, int, int],
    depth_dims: tuple[int, int] = (1, 0),
) -> Price:
    """One product [rows, depth] x [depth, columns]; ``sizes`` = (rows, columns, depth), ``depth_dims``: which dims.

    Alone in a program, the larger operand is brought near the core between calls where it fits (``resident_mb``); the
    smaller one and the result pass through HBM. A larger one streams from HBM at the rate of long streams.
    Products with a size of 1 are no matrix products: the vector unit makes them.
    """
    rows, columns, depth = sizes
    large, small = max(a.megabytes, b.megabytes), min(a.megabytes, b.megabytes)
    larger, along = (a, depth_dims[0]) if a.megabytes >= b.megabytes else (b, depth_dims[1])
    if rows == 1 or columns == 1:
        latency = constants["vector_launch_us"] + (constants["vector_reshape_us"] if rows * columns > 128 else 0.0)
        near = (large + small) / constants["vector_mb_per_us"]
        compute = (large + small) / _REGISTER_MB * constants["vector_tile_ns"] / 1e3
        return Price(latency + near + compute, {"latency": latency, "vmem": near, "vector": compute})
    if depth == 1:
        latency = constants["outer_launch_us"]
        write = result.megabytes / constants["write_mb_per_us"]
        compute = result.megabytes / _REGISTER_MB * constants["outer_tile_ns"] / 1e3
        return Price(latency + max(write, compute), {"latency": latency, "hbm": write, "vector": compute})
    matrix = matrix_us(constants, rows, columns, depth) / constants["efficiency"]
    deep_lanes = larger.minor_to_major[:1] == (along,)  # then its registers are turned on their way
    near = large / constants["near_deep_mb_per_us" if deep_lanes else "near_mb_per_us"]
    resident = large if large <= constants["resident_mb"] else 0.0
    read, streamed = constants["read_mb_per_us"], constants["hbm_mb_per_us"]
    if resident:
        stream = (small + max(0.0, large - constants["prefetched_mb"])) / read
    else:
        stream = small / min(read, streamed) + large / streamed
    stream += result.megabytes / constants["write_mb_per_us"]
    work = max(matrix, near)
    whole = constants["launch_us"] + _overlapped(constants, work, stream) + constants["drain_us"] * min(1.0, work)
    return Price(whole, {"latency": constants["launch_us"], "matrix": matrix, "vmem": near, "hbm": stream}, resident)


def batched_product(
    constants: TimeConstants, a: Tiles, b: Tiles, result: Tiles, batch: int, sizes: tuple[int, int, int]
) -> Price:
    """``batch`` products of one size; each begins anew (``product_us``).

    Work and transfers run beside each other but for the first window and the last, ``alone_us`` at the most. The larger
    operand is near the core where it fits, as of one product, and is read while the units multiply; what is not near
    streams from HBM at the rate of long streams.
    """
    matrix = batch * (matrix_us(constants, *sizes) / constants["efficiency"] + constants["product_us"])
    large, small = max(a.megabytes, b.megabytes), min(a.megabytes, b.megabytes)
    resident = large if large <= constants["resident_mb"] else 0.0
    stream = (small + large - resident) / constants["hbm_mb_per_us"] + result.megabytes / constants["write_mb_per_us"]
    whole = max(matrix, stream) + min(matrix, stream, constants["alone_us"])
    parts = {"latency": constants["launch_us"], "matrix": matrix, "hbm": stream}
    return Price(constants["launch_us"] + whole, parts, resident)


def _overlapped(constants: TimeConstants, work: float, stream: float) -> float:
    """Work and transfers beside each other: near the larger, and above it where both are alike."""
    power = constants["overlap_power"]
    return float((work**power + stream**power) ** (1 / power))
