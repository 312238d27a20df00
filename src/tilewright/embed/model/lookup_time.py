"""How long SparseCores take to gather rows."""

from __future__ import annotations

from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout.index.types import dtype_name, type_bits
from tilewright.targets import Target
from tilewright.targets import target as find_target

MEASURED = "tpu-v6e"
"""The chip whose SparseCores were timed in public: [time.sparse] of its file."""


def gather_seconds(*, rows: int, width: int, dtype: str, target: Target | str) -> float:
    """Seconds in which a device's SparseCores gather ``rows`` rows of ``width`` elements from HBM, modelled.

    A launch and its drain, which nothing hides; then each row takes its own time, by count and not by bytes (rows of
    4 KiB in f32 and of 2 KiB in bf16 were timed, these a little slower; narrower ones are taken to cost by bytes), but
    no less than reading and writing it at the share of HBM's peak that the compiler plans with. Constants of tpu-v6e
    (four public times of f32 rows of 4 KiB, met within 2 %); elsewhere not measured: bytes follow that chip's HBM.

    Raises :class:`UsageError` for sizes below 0 or an unknown type, UnsupportedError for a chip without SparseCores.

    >>> round(1e6 * gather_seconds(rows=16384, width=1024, dtype="f32", target="tpu-v6e"), 1)  # measured: 184.84
    184.4
    """
    machine = find_target(target) if isinstance(target, str) else target
    hbm, known = machine.memory("hbm"), find_target(MEASURED)
    if machine.sparse is None or hbm is None:
        raise UnsupportedError(f"target {machine.name} has no SparseCores", how="name one that has, such as tpu-v6e")
    if rows < 0 or width < 1:
        raise UsageError(f"{rows} rows of {width} elements", where="gather_seconds", how="rows from 0, width from 1")
    constants = (machine.time if "sparse" in machine.time else known.time)["sparse"]
    row_bytes = width * type_bits(dtype_name(dtype)) / 8
    each = constants["row_ns"] / 1e9 * (1.0 if row_bytes / width >= 4 else constants["narrow"])
    each *= min(1.0, row_bytes / constants["narrowest_bytes"])
    moved = 2 * row_bytes / hbm.bytes_per_second / constants["hbm_share"]
    return constants["launch_us"] / 1e6 + rows * max(each, moved)
