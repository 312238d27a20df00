"""What an operation takes that is alone in a program: starts, streams and registers, counted from its tiles.

Every kind says the same few things of its kernel: what starts (``launch_us``, ``hbm_us`` where its first bytes come
from HBM, ``cross_us`` where it crosses lanes), what streams, how many operations its registers take, and a second
kernel where the compiler makes one. A chip says how long a start, a megabyte and a register's operation take; how many
operations a register takes is the same for all chips ([time.alone] of both). One composition prices them (``_passed``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, fsum, hypot, prod

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import DOTS, ELEMENTWISE
from tilewright.hlo.program import Operation
from tilewright.hlo.semantics.dims import matrix_type, product_flops, product_sizes
from tilewright.hlo.semantics.tiles import Tiles
from tilewright.hlo.timing.row import Run
from tilewright.hlo.timing.work import REGISTER_MB, matrix_us
from tilewright.targets import TimeConstants

WINDOW_TILES = 128
"""Tiles in a window of a long stream."""


def price_alone(
    mechanisms: Mapping[str, TimeConstants], op: Operation, operands: list[Tiles], result: Tiles
) -> Run | None:
    """What an operation takes that is alone in a program; None of what is like no kind that was measured.

    Its kind is called as the section of its measurements.
    """
    c, operand, dims, run = mechanisms["alone"], operands[0], op.integers("dimensions"), None
    name = kind = plain_opcode(op.opcode)
    if name in ELEMENTWISE and all(tiles.shape in (result.shape, ()) for tiles in operands):
        kind, run = "stream", _elementwise(c, operands, result)
    elif name == "transpose":
        kind, run = "stream", _copy(c, operand.megabytes + result.megabytes, result)
    elif name == "broadcast" and operand.shape:
        repeated = [d for d in range(len(result.shape)) if d not in dims or operand.shape[dims.index(d)] == 1]
        grown = [d for d in repeated if result.shape[d] > 1] or repeated[-1:]
        if len(grown) == 1 and len(operand.shape) == len(result.shape):
            run = _broadcast(c, operand, result, grown[0])
    elif name == "concatenate" and len(dims) == 1 and len(result.shape) > 1:
        run = _concatenate(c, operands, result, dims[0])
    elif name == "reduce" and dims == (2,) and len(operand.shape) == 3:
        run = _reduce(c, operand, result, dims[0])
    elif name == "reshape" and len(operand.shape) == 3 and result.shape == (operand.shape[0], prod(operand.shape[1:])):
        run = _reshape(c, operand, result)
    elif name in DOTS and (sizes := product_sizes(op, operands, result)):
        kind = "batched_product" if op.integers("lhs_batch_dims") else "product"
        if kind in mechanisms and (kind == "product" or 1 not in sizes[1:3]):  # else a sum of the vector unit
            run = _product(c, mechanisms["kernel"], op, operands, result, sizes)
            flops = {matrix_type(op): product_flops(op, operands, result)}
            run = replace(run, flops=flops, depth=sizes[-1])
    if run is None:
        return None
    moved = fsum(tiles.megabytes for tiles in (*operands, result)) - run.resident
    return replace(run, section=kind, megabytes=moved, kind="" if name in ELEMENTWISE - {"exponential"} else "alone")


# Kernels pass their arrays in windows. A small array is one: reading, computing and writing follow one another. Of
# many, which overlap, the slowest part counts; and they take no less than the most that fits one.


_Parts = tuple[float, float, float]
"""Microseconds that a kernel starts, streams and computes."""


def _passed(c: TimeConstants, one: _Parts, fits: float, many: _Parts, relayout: float = 0.0) -> Run:
    """The price of a kernel whose arrays are ``one`` window, as far as that ``fits``, or many.

    ``relayout``: microseconds of a kernel before or behind it.
    """
    starts, stream, compute = one[0], fits * one[1], fits * one[2]
    whole, long = starts + stream + compute, many[0] + max(many[1:]) + c["not_hidden"] * min(many[1:])
    if fits < 1 and long > whole:
        (starts, stream, compute), whole = many, long
    return _waits(whole + relayout, latency=starts, vector=compute, relayout=relayout, hbm=stream)


def _waits(microseconds: float, resident: float = 0.0, **parts: float) -> Run:
    """A run, bound by the longest of ``parts``; ``resident``: megabytes brought near the core between calls."""
    return Run(microseconds, max(parts, key=lambda unit: parts[unit]), resident=resident)


def _us(tiles: float, ns: float) -> float:
    """Microseconds for so many tiles at so many nanoseconds each."""
    return tiles * ns / 1e3


def _from_hbm(c: TimeConstants, megabytes: float) -> float:
    """Microseconds until a kernel works whose arrays pass through HBM; the first kilobytes fill its pipes."""
    return c["launch_us"] + c["hbm_us"] + c["start_us"] * (1 - exp(-megabytes / c["start_mb"]))


def _copy(c: TimeConstants, megabytes: float, result: Tiles) -> Run:
    """A copy between layouts that are bitcasts of each other, as a transpose with default layouts is.

    It goes over to windows earlier than what computes, but where its tiles are a quarter of a register.
    """
    quarters, stream = result.tile[:1] == (2,), megabytes / c["stream_mb_per_us"]
    if quarters and result.count == 1:
        return Run(c["one_tile_us"], "latency")
    fits = min(1.0, c["window_mb" if quarters else "copy_window_mb"] / megabytes)
    one = _from_hbm(c, megabytes * fits), stream, _us(result.count, c["shuffle_ns"]) if result.small_tile else 0.0
    return _passed(c, one, fits, (c["windows_us"], stream, 0.0))


def _elementwise(c: TimeConstants, operands: Sequence[Tiles], result: Tiles) -> Run:
    """One elementwise operation (measured: exponential, of the transcendental unit)."""
    megabytes = sum(operand.megabytes for operand in operands) + result.megabytes
    starts, stream = _from_hbm(c, megabytes), megabytes / c["stream_mb_per_us"]
    one = starts, stream, _us(result.count, c["special_ops"] * c["op_ns"])
    many = starts, stream, result.count / WINDOW_TILES * c["window_us"]
    return _passed(c, one, min(1.0, c["window_mb"] / megabytes), many)


def _broadcast(c: TimeConstants, operand: Tiles, result: Tiles, dim: int) -> Run:
    """``operand`` (size 1 along ``dim``), which lies near the core, repeated along ``dim``.

    Where the dims of both stand in another order, the operand is copied first. A leading dim of 1 makes the compiler
    begin with a reduction that adds nothing up (seen in its modules).
    """
    if result.shape[dim] == 1:
        return _copy(c, 2 * operand.megabytes, result)
    starts, compute, relayout = c["launch_us"], _us(result.count, c["op_ns"]), 0.0
    if result.role(dim) == "lanes":
        starts += c["cross_us"]
        compute += _us(result.count / result.grid[-1], c["cross_ns"])
    if operand.order(dim) != result.order(dim):
        relayout += c["order_us"] + _us(operand.count, c["order_ops"] * c["op_ns"])
    if len(result.shape) == 3 and result.shape[0] == 1 and result.shape[2] > 128:
        sums = c["add_major_ops"] * c["op_ns"] + c["sum_major_shifts"] * c["shift_ns"]
        relayout += c["second_us"] + _us(operand.count, sums)
    one = starts, result.megabytes / c["stream_mb_per_us"] / c["write_share"], compute
    windows = max(compute, result.count / WINDOW_TILES * c["window_us"])
    many = starts, result.megabytes / c["windows_write_mb_per_us"], windows
    return _passed(c, one, result.count * REGISTER_MB <= c["window_mb"], many, relayout)


# Concatenations: operands stream into one result; a seam inside a tile shifts everything behind it.


def _concatenate(c: TimeConstants, operands: Sequence[Tiles], result: Tiles, dim: int) -> Run:
    """``operands`` joined along ``dim``; operands whose dims stand in another order are copied first."""
    if result.tile[:1] == (2,) and result.count == 1:
        return Run(c["one_tile_us"] + c["hbm_us"], "latency")
    order = [d for d in result.minor_to_major if result.shape[d] > 1]
    turned = [each for each in operands if [d for d in each.minor_to_major if result.shape[d] > 1] != order]
    compute = _us(result.count, c["turn_ns" if result.role(dim) == "sublanes" else "shift_ns"])
    copied = sum(operand.megabytes for operand in turned)
    megabytes = sum(operand.megabytes for operand in operands) - copied + result.megabytes
    starts = _from_hbm(c, megabytes) + (c["cross_us"] if result.role(dim) == "lanes" else 0.0)
    windows = max(compute, result.count / WINDOW_TILES * c["window_us"] if result.small_tile else 0.0)
    relayout = len(turned) * c["second_us"] + 2 * copied / c["stream_mb_per_us"]
    many = starts, megabytes / c["stream_mb_per_us"], windows
    fits = min(1.0, c["small_window_mb"] / megabytes)
    return _passed(c, (starts, megabytes / c["join_mb_per_us"], compute), fits, many, relayout)


# Reductions over one dim: adds along lanes need rotations, adds along sublanes and tiles are chains of vector adds.


def _reduce(c: TimeConstants, operand: Tiles, result: Tiles, dim: int) -> Run:
    """``operand`` added up along ``dim``.

    The operand is brought near the core between calls where it fits (``resident_mb``), and costs no HBM time. Where
    the result must be reshaped or turned afterwards a second kernel follows, and the operand is read from HBM.
    """
    after, role = _kernel_after(operand, result, dim), operand.role(dim)
    prefetched = not after and operand.megabytes <= c["resident_mb"]
    windowed = operand.megabytes > c["window_mb" if prefetched else "small_window_mb"]
    depth, outputs, windows = _windows(operand, role, windowed)
    each = max((c["add_major_ops"] if role == "major" else 1.0) * c["op_ns"], c["cross_ns"] / outputs)
    starts = c["launch_us"] + (c["near_us"] if operand.count > 1 or not prefetched else 0.0)
    if role == "lanes":  # many windows take three rotations more
        each, last = max(each, 3 * c["op_ns"] * windowed), c["cross_ns"]
        starts += c["cross_us"] + (c["near_us"] if 1 in result.shape else 0.0)
    else:
        last = 3 * c["cross_ns"] if windowed else c[f"sum_{role}_shifts"] * c["shift_ns"]
    compute = _us(windows * outputs, depth * each + last)
    if prefetched:
        return _waits(starts + compute, operand.megabytes, latency=starts, vector=compute)
    passes = starts + c["hbm_us"], operand.megabytes / c["stream_mb_per_us"], compute
    return _passed(c, passes, float(not windowed), passes, c["second_us"] + c["near_us"] if after else 0.0)


def _kernel_after(operand: Tiles, result: Tiles, dim: int) -> bool:
    """Whether a reshape or a copy must follow the reduction."""
    if len(result.shape) == 2 and 1 in result.shape:
        rows, columns = result.shape
        narrow = columns == 1 and 1 < rows < 8 and operand.minor_to_major[1] == 0 and result.minor_to_major[0] == 1
        return narrow or rows * columns > 128  # the kernel's one-dimensional result becomes [1, n]
    return tuple(d - (d > dim) for d in operand.order(dim)) != result.minor_to_major


def _windows(operand: Tiles, role: str, windowed: bool) -> tuple[float, float, float]:
    """Of one window of a reduction: tiles added into one, results; and how many windows there are."""
    major, sublanes, lanes = prod(operand.grid[:-2]), operand.grid[-2], operand.grid[-1]
    along = {"lanes": lanes, "sublanes": sublanes, "major": major}[role]
    results = operand.count // along
    if not windowed:
        return along, results, 1
    least = {"lanes": max(lanes / 30, 1, 128 / results), "sublanes": 128, "major": max(2, min(64, along / 12))}
    depth = min(along, least[role])
    outputs = max(1, min(results, 128 / depth))
    return depth, outputs, operand.count / (depth * outputs)


# Reshapes that merge the last two of three dims, [a, b, c] -> [a, b * c]: by rotated rows, or by merged columns.


def _reshape(c: TimeConstants, operand: Tiles, result: Tiles) -> Run:
    """The reshape, as the compiler makes it: with ``a`` in the lanes of the result it merges columns, else rows.

    Columns merge along the sublanes: what lies otherwise is turned before, what must is turned behind.
    """
    a, b, width = operand.shape
    megabytes, order = operand.megabytes + result.megabytes, operand.minor_to_major
    if b == 1:
        return _copy(c, megabytes, result)
    rows = a * -(-b // 8) * -(-width // 128)
    columns, merged = b * -(-width // 8) * -(-a // 128), -(-b * width // 8) * -(-a // 128)
    starts, stream = c["launch_us"] + c["hbm_us"], megabytes / c["stream_mb_per_us"]
    relayout, merge = 0.0, c["merge_ops"] * c["op_ns"]
    # the compiler keeps ``a`` in the lanes where it lies there already, or where that makes fewer tiles
    if order == (0, 2, 1) or (order in ((1, 0, 2), (1, 2, 0), (0, 1, 2)) and rows / columns >= 2.1):
        if order != (0, 2, 1):
            relayout += c["second_us"] + _us(columns, c["turn_ns"])
        if width % 8:
            relayout += _us(merged + columns, merge)
        if result.minor_to_major[0] != 0:
            relayout += (c["second_us"] if width % 8 else 0.0) + _us(merged, 3 * c["cross_ns"])
        return _waits(starts + max(stream, relayout), latency=starts, hbm=stream, relayout=relayout)
    starts += c["cross_us"]
    if order != (2, 1, 0):
        relayout += c["second_us"] + _us(rows, c["turn_row_shifts"] * c["shift_ns"])
    rotate = _us(a * b * -(-width // 128), _piece_ns(c, operand)) + _us(result.count, merge)
    whole = starts + relayout + max(rotate, stream)
    return _waits(whole, latency=starts, hbm=stream, relayout=relayout + rotate)


def _piece_ns(c: TimeConstants, operand: Tiles) -> float:
    """Nanoseconds for one row's 128 lanes to be rotated into place.

    The compiler has a way of its own for few rows, and a loop over pieces for what does not fit vector memory.
    """
    a, _, width = operand.shape
    elements = prod(operand.shape)
    if (a <= 8 and elements >= 4.3e6) or (a <= 16 and elements >= 15e6):
        piece = c["loop_piece_ns"] / (2 if a == 1 else 1)
    elif a == 1:
        piece = c["shift_ns"]
    elif a <= 8 and elements > 0.56e6:
        piece = c["long_piece_turns"] * c["turn_ns"]
    else:
        piece = c["piece_turns"] * c["turn_ns"] * (-(-a // 16) * 16 / a if a > 8 else 1.0)
    return piece / 2 if width <= 32 and a > 1 else piece


# Matrix products: weights stand in the matrix unit a square at a time, and the other operand streams past them.


def _product(
    c: TimeConstants, kernel: TimeConstants, op: Operation, operands: list[Tiles], result: Tiles, sizes: Sequence[int]
) -> Run:
    """Products [rows, depth] x [depth, columns]; ``sizes`` = (batch, rows, columns, depth).

    The larger operand is brought near the core between calls where it fits (``resident_mb``); the smaller one and the
    result pass through HBM, beside the passes of the matrix unit. A larger one streams from HBM at the rate of long
    streams. Where the depth lies in its lanes, its registers are turned on their way. Products with a size of 1 are no
    matrix products: the vector unit makes them.
    """
    batch, rows, columns, depth = sizes
    small, large = sorted(tiles.megabytes for tiles in operands[:2])
    starts, write = c["launch_us"] + c["hbm_us"], result.megabytes / c["stream_mb_per_us"] / c["result_share"]
    if 1 in (rows, columns):
        starts += c["order_us"] + c["second_us"] if rows * columns > 128 else 0.0
        compute = _us((large + small) / REGISTER_MB, c["dot_ops"] * c["op_ns"])
        return _waits(starts + compute, latency=starts, vector=compute)
    if depth == 1:
        starts, compute = starts + 2 * c["second_us"], _us(result.count, c["merge_ops"] * c["op_ns"])
        return _waits(starts + max(write, compute), latency=starts, hbm=write, vector=compute)
    starts += c["fill_us"]
    fill = None if batch > 1 else 0.0  # the squares of one product load while rows pass those before them
    matrix = batch * matrix_us(kernel, op, rows, columns, depth, fill) * kernel["efficiency"] / c["efficiency"]
    dims = (op.integers("lhs_contracting_dims") or (1,))[0], (op.integers("rhs_contracting_dims") or (0,))[0]
    larger, along = max(zip(operands, dims), key=lambda each: each[0].megabytes)
    near = large / c["near_deep_mb_per_us" if larger.minor_to_major[:1] == (along,) else "near_mb_per_us"]
    resident = large if large <= c["resident_mb"] else 0.0
    stream, work = (small + large - resident) / c["stream_mb_per_us"] + write, max(matrix, near)
    if resident and batch == 1:  # a small operand is one window: it is there before the product begins in earnest
        stream = small / c["stream_mb_per_us"] / c["read_share"] + write
    # of a long product the work and the stream hide all but three drains from each other
    together = min(hypot(work, stream), max(work, stream) + 3 * c["drain_us"])
    whole = starts + together + c["drain_us"] * min(1.0, work)
    return _waits(whole, resident, latency=starts, matrix=matrix, vmem=near, hbm=stream)
