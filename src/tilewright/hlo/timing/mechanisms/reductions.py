"""Reductions over one dim: adds along lanes need rotations, adds along sublanes and tiles are chains of vector adds."""

from __future__ import annotations

from math import prod

from tilewright.hlo.timing.mechanisms.price import Price
from tilewright.hlo.timing.mechanisms.tiles import Tiles
from tilewright.targets import TimeConstants


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
    latency = constants["launch_us"]
    if role == "lanes":
        latency += constants["lanes_us"] + (constants["lanes_one_row_us"] if 1 in result.shape else 0.0)
    if prefetched:
        if operand.count == 1:
            latency = constants["one_tile_us"]
        near = operand.megabytes / constants["near_mb_per_us"] if windowed and constants["near_mb_per_us"] else 0.0
        whole = max(compute, near)
        return Price(latency + whole, {"latency": latency, "vector": compute, "vmem": near}, operand.megabytes)
    latency += constants["hbm_us"]
    stream = operand.megabytes / constants["read_mb_per_us"]
    whole = max(stream, compute) if windowed else stream + compute
    relayout = constants[f"then_{after}_us"] if after else 0.0
    parts = {"latency": latency, "hbm": stream, "vector": compute, "relayout": relayout}
    return Price(latency + whole + relayout, parts)


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
