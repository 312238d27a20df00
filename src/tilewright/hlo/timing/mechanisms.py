"""What an operation costs alone in a program, from its tiles and the constants of a chip."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, prod
from typing import NamedTuple

from tilewright.hlo.timing.tiles import Tiles
from tilewright.hlo.timing.work import REGISTER_MB, matrix_us
from tilewright.targets import TimeConstants


class Price(NamedTuple):
    """Microseconds of one kernel, and the unit that needs the longest of those that work side by side.

    ``resident``: megabytes of an argument taken to lie near the core already, brought there between calls.
    """

    microseconds: float
    bound: str
    resident: float = 0.0


def _price(microseconds: float, resident: float = 0.0, **parts: float) -> Price:
    """A price of ``parts``: bound -> microseconds that this unit alone would need."""
    return Price(microseconds, max(parts, key=lambda unit: parts[unit]), resident)


# Kernels pass their arrays in windows. A small array is one: reading, computing and writing follow one another. Of
# many, which overlap, the slowest part counts; and they take no less than the most that fits one.

WINDOW_TILES = 128
"""Tiles in a window of a long stream."""


def _ramp(constants: TimeConstants, megabytes: float) -> float:
    """Microseconds that starting a transfer takes: grows over the first kilobytes to ``start_us``."""
    return constants["start_us"] * (1 - exp(-megabytes / constants["start_mb"]))


def _passed(
    one: tuple[float, float, float],
    fits: float = 1.0,
    many: tuple[float, float, float] = (0.0, 0.0, 0.0),
    relayout: float = 0.0,
    memory: str = "hbm",
) -> Price:
    """The price of a kernel: (latency, stream, compute) where all is ``one`` window, as far as it ``fits``, or many."""
    short, long = one[0] + fits * (one[1] + one[2]), many[0] + max(many[1:])
    latency, stream, compute = many if fits < 1 and long > short else (one[0], fits * one[1], fits * one[2])
    whole = max(short, long) if fits < 1 else short
    return _price(whole + relayout, **{"latency": latency, memory: stream, "vector": compute, "relayout": relayout})


def _one_tile(constants: TimeConstants) -> Price:
    return Price(constants["one_tile_us"], "latency")


def copy(constants: TimeConstants, operand: Tiles, result: Tiles) -> Price:
    """A copy between layouts that are bitcasts of each other, as a transpose with default layouts is.

    It goes over to windows earlier than what computes, but where its tiles are a quarter of a register.
    """
    if result.one_small_tile:
        return _one_tile(constants)
    megabytes = operand.megabytes + result.megabytes
    fits = min(1.0, constants["one_window_mb" if result.tile[:1] == (2,) else "copy_window_mb"] / megabytes)
    latency = constants["launch_us"] + _ramp(constants, megabytes * fits)
    shuffle = result.count * constants["copy_small_tile_ns"] / 1e3 if result.small_tile else 0.0
    many = constants["windows_us"], megabytes / constants["stream_mb_per_us"], 0.0
    return _passed((latency, megabytes / constants["window_mb_per_us"], shuffle), fits, many)


def elementwise(constants: TimeConstants, operands: Sequence[Tiles], result: Tiles) -> Price:
    """One elementwise operation (measured: exponential, of the transcendental unit)."""
    megabytes = sum(operand.megabytes for operand in operands) + result.megabytes
    latency = constants["launch_us"] + _ramp(constants, megabytes)
    compute = result.count * constants["small_tile_ns" if result.small_tile else "tile_ns"] / 1e3
    windows = result.count / WINDOW_TILES * constants["window_us"]
    many = latency, megabytes / constants["elementwise_mb_per_us"], windows
    one = latency, megabytes / constants["window_mb_per_us"], compute
    return _passed(one, min(1.0, constants["one_window_mb"] / megabytes), many)


# Broadcasts along one new dim: repeating along lanes, sublanes or whole tiles costs differently.


def broadcast(constants: TimeConstants, operand: Tiles, result: Tiles, dim: int) -> Price:
    """``operand`` (size 1 along ``dim``) repeated along ``dim``.

    Where the dims of both stand in another order, the operand is copied first. A leading dim of 1 makes the compiler
    begin with a reduction that adds nothing up (seen in its modules).
    """
    if result.shape[dim] == 1:
        latency = constants["copy_us"] + 0.14 * (1 - exp(-operand.megabytes / 0.02))
        return _passed((latency, 2 * operand.megabytes / constants["copy_mb_per_us"], 0.0))
    role, latency = result.role(dim), constants["launch_us"] + _ramp(constants, result.megabytes)
    compute = result.count * constants[f"{role}_ns"] / 1e3
    if role == "lanes":
        latency += constants["lanes_us"]
        compute += result.count / result.grid[-1] * constants["lanes_row_ns"] / 1e3
    sublanes = result.tile[0] if result.tile else 8
    at_once = {4: 1800.0, 2: 4000.0}.get(sublanes, constants["one_window_mb"] / REGISTER_MB)
    windows = max(compute, result.count / WINDOW_TILES * constants["window_us"])
    relayout = 0.0
    if result.shape[0] > 1 and operand.order(dim) != result.order(dim):
        relayout += constants["order_us"] + 2 * operand.megabytes * constants["order_us_per_mb"]
    if len(result.shape) == 3 and result.shape[0] == 1 and result.shape[2] > 128:
        relayout += constants["reduce_us"] + operand.count * constants["reduce_tile_ns"] / 1e3
    many = latency, result.megabytes / constants["window_write_mb_per_us"], windows
    one = latency, result.megabytes / constants["write_mb_per_us"], compute
    return _passed(one, float(result.count <= at_once), many, relayout)


# Concatenations: operands stream into one result; a seam inside a tile shifts everything behind it.

_ON_TILE = 0.3
"""Share of the work that is left where the seam falls on a tile's edge: nothing is shifted."""


def concatenate(constants: TimeConstants, operands: Sequence[Tiles], result: Tiles, dim: int) -> Price:
    """``operands`` joined along ``dim``; operands whose dims stand in another order are copied first."""
    if result.one_small_tile:
        return _one_tile(constants)
    turned = [operand for operand in operands if _order_differs(operand, result)]
    role = result.role(dim)
    compute, lanes = result.count * constants[f"{role}_ns"] / 1e3, role == "lanes"
    if lanes:
        compute = max(compute, result.count * constants["chain_ns"] / max(1, result.grid[-2]) / 1e3)
    if operands[0].shape[dim] % (128 if lanes else 8) == 0:
        compute *= _ON_TILE
    if lanes and result.small_tile:
        compute *= constants["small_tile_share"]
    megabytes = sum(operand.megabytes for operand in operands if operand not in turned) + result.megabytes
    latency = constants["launch_us"] + _ramp(constants, megabytes) + (constants["lanes_us"] if lanes else 0)
    windows = max(compute, result.count / WINDOW_TILES * constants["window_us"] if result.small_tile else 0.0)
    relayout = 0.0
    if turned:
        relayout = constants["copy_one_us" if len(turned) == 1 else "copy_two_us"]
        relayout += sum(operand.megabytes for operand in turned) * constants["copy_us_per_mb"]
        if any(_proper(operand, operand)[:1] != _proper(operand, result)[:1] for operand in turned):
            relayout += sum(operand.count for operand in turned) * constants["copy_tile_ns"] / 1e3
    many = latency, megabytes / constants["stream_mb_per_us"], windows
    one = latency, megabytes / constants["window_mb_per_us"], compute
    return _passed(one, min(1.0, constants["one_window_mb"] / megabytes), many, relayout)


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


# Reductions over one dim: adds along lanes need rotations, adds along sublanes and tiles are chains of vector adds.


def reduce(constants: TimeConstants, operand: Tiles, result: Tiles, dim: int) -> Price:
    """``operand`` added up along ``dim``.

    Alone in a program, the operand is brought near the core between calls where it fits (``resident_mb``), and costs
    no HBM time. Where the result must be reshaped or turned afterwards a second kernel follows, and the operand is read
    from HBM.
    """
    after = _kernel_after(operand, result, dim)
    prefetched = not after and operand.megabytes <= constants["resident_mb"]
    role = operand.role(dim)
    windowed, depth, outputs, windows = _windows(constants, operand, dim, prefetched)
    per_tile = max(constants[f"{role}_tile_ns"], constants[f"{role}_chain_ns"] / outputs)
    if windowed and role == "lanes":
        per_tile = max(per_tile, constants["lanes_window_tile_ns"])
    accumulator = constants[f"{role}_{'window' if windowed else 'output'}_ns"]
    compute = windows * outputs * (depth * per_tile + accumulator) / 1e3
    latency, fits = constants["launch_us"], float(not windowed)
    if role == "lanes":
        latency += constants["lanes_us"] + (constants["lanes_one_row_us"] if 1 in result.shape else 0.0)
    if prefetched:
        latency = constants["one_tile_us"] if operand.count == 1 else latency
        near = operand.megabytes / constants["near_mb_per_us"] if windowed and constants["near_mb_per_us"] else 0.0
        price = _passed((latency, near, compute), fits, (latency, near, compute), memory="vmem")
        return price._replace(resident=operand.megabytes)
    latency += constants["hbm_us"]
    passes = latency, operand.megabytes / constants["read_mb_per_us"], compute
    return _passed(passes, fits, passes, constants[f"then_{after}_us"] if after else 0.0)


def _kernel_after(operand: Tiles, result: Tiles, dim: int) -> str:
    """What must follow the reduction: ``reshape``, ``copy`` or nothing."""
    if len(result.shape) == 2 and 1 in result.shape:
        rows, columns = result.shape
        if rows * columns > 128:
            return "reshape"  # the kernel's one-dimensional result becomes [1, n]
        narrow = columns == 1 and 1 < rows < 8 and operand.minor_to_major[1] == 0 and result.minor_to_major[0] == 1
        return "copy" if narrow else ""
    kept = [d - (d > dim) for d in operand.order(dim)]
    return "copy" if tuple(kept) != result.minor_to_major else ""


def _windows(constants: TimeConstants, operand: Tiles, dim: int, prefetched: bool) -> tuple[bool, float, float, float]:
    """Whether the operand passes in windows; and of each: tiles added into one, results, and how many windows."""
    major, sublanes, lanes = prod(operand.grid[:-2]), operand.grid[-2], operand.grid[-1]
    role = operand.role(dim)
    along = {"lanes": lanes, "sublanes": sublanes, "major": major}[role]
    count = major * sublanes * lanes
    if operand.megabytes <= constants["prefetched_window_mb" if prefetched else "one_window_mb"]:
        return False, along, count // along, 1
    if role == "lanes":
        depth = min(lanes, max(lanes / 30, 1, 128 / (major * sublanes)))
        outputs = min(major * sublanes, max(1, 128 / depth))
    elif role == "sublanes":
        depth = min(along, 128)
        outputs = max(1, min(count // along, 128 // depth))
    else:
        depth = min(along, max(2, min(64, along / 12)))
        outputs = max(1, min(count // along, 128 / depth))
    return True, depth, outputs, count / (depth * outputs)


# Reshapes that merge the last two of three dims, [a, b, c] -> [a, b * c]: by rotated rows, or by merged columns.

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
    return _price(latency + relayout + max(rotate, stream), latency=latency, hbm=stream, relayout=relayout + rotate)


def _plain_copy(constants: TimeConstants, operand: Tiles, megabytes: float) -> Price:
    if operand.one_small_tile:
        return _one_tile(constants)
    latency = constants["launch_us"] * 0.93 + 0.15 * (1 - exp(-megabytes / 0.03))
    return _passed((latency, megabytes / constants["copy_mb_per_us"], 0.0))


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
    return _price(latency + stream + relayout, latency=latency, hbm=stream, relayout=relayout)


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


# Matrix products: weights stand in the matrix unit a square at a time, and the other operand streams past them.


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
        compute = (large + small) / REGISTER_MB * constants["vector_tile_ns"] / 1e3
        return _price(latency + near + compute, latency=latency, vmem=near, vector=compute)
    if depth == 1:
        latency = constants["outer_launch_us"]
        write = result.megabytes / constants["write_mb_per_us"]
        compute = result.megabytes / REGISTER_MB * constants["outer_tile_ns"] / 1e3
        return _price(latency + max(write, compute), latency=latency, hbm=write, vector=compute)
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
    return _price(whole, resident, latency=constants["launch_us"], matrix=matrix, vmem=near, hbm=stream)


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
    launch = constants["launch_us"]
    return _price(launch + whole, resident, latency=launch, matrix=matrix, hbm=stream)


def _overlapped(constants: TimeConstants, work: float, stream: float) -> float:
    """Work and transfers beside each other: near the larger, and above it where both are alike."""
    power = constants["overlap_power"]
    return float((work**power + stream**power) ** (1 / power))
