"""What a chip is, as frozen dataclasses. All sizes are bytes, all rates bytes or operations per second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Memory:
    """One memory of a chip: ``bytes`` per ``scope`` and the bandwidth the scope sees (0 = not stated)."""

    name: str
    bytes: int
    bytes_per_second: int = 0
    scope: str = "chip"


@dataclass(frozen=True)
class VectorUnit:
    """Vector registers of ``sublanes`` x ``lanes`` words of ``word_bits`` bits."""

    sublanes: int
    lanes: int
    word_bits: int = 32

    @property
    def register_bytes(self) -> int:
        """Bytes of one vector register: 8 * 128 * 4 = 4096 on a TPU."""
        return self.sublanes * self.lanes * self.word_bits // 8


@dataclass(frozen=True)
class LaneMemory:
    """Local memories of an NPU with lanes: one per NPU (tensor storage over NPUs).

    ``n_stride``: the rows of channels that a batch takes are ceil((start + C) / npu_num), ``with_start``, or
    ceil(C / npu_num), ``without_start``.
    """

    npu_num: int
    eu_bytes: int
    local_bytes: int
    banks: int
    ic_parallel: int = 0
    n_stride: str = "with_start"

    @property
    def bank_bytes(self) -> int:
        """Bytes of one bank; banks are contiguous, not interleaved."""
        return self.local_bytes // self.banks


@dataclass(frozen=True)
class MatrixUnits:
    """Systolic matrix units: ``units`` of ``rows`` x ``columns`` multipliers; peak operations per second per chip."""

    units: int
    rows: int
    columns: int
    bf16_ops_per_second: int = 0
    int8_ops_per_second: int = 0
    fp8_ops_per_second: int = 0


@dataclass(frozen=True)
class SimtCore:
    """A SIMT processing element with the tensor-multiply instruction ``mm``; latencies in cycles.

    ``l1_ways`` and ``l2_ways``: lines in a cache set, 0 for a fully associative cache.
    """

    threads: int
    registers: int
    predicates: int
    uniform_registers: int
    a_bytes: int
    line_bytes: int
    l1_bytes: int
    l2_bytes: int
    l1_latency: int
    l2_latency: int
    dram_latency: int
    l1_ports: int
    l2_bytes_per_cycle: int
    dram_bytes_per_cycle: int
    l1_ways: int = 0
    l2_ways: int = 0
    alu_latency: int = 1
    dma_latency: int = 400
    bcast_depth: int = 2


@dataclass(frozen=True)
class SparseCores:
    """Sparse cores of a chip: per-chip count, tiles per core, SIMD width, scratchpad bytes per tile.

    ``fixed_tile_bytes`` is the constant k of the measured TileSpmem rule (0 = not measured on this chip).
    ``devices_per_chip`` counts the logical devices a program sees (2 on a 7x chip).
    """

    per_chip: int
    tiles: int
    simd_f32: int
    simd_bf16: int
    tile_spmem_bytes: int = 0
    fixed_tile_bytes: int = 0
    devices_per_chip: int = 1


@dataclass(frozen=True)
class Links:
    """Inter-chip links: all of a chip's links together, bytes per second in one direction."""

    bytes_per_second: int
    topology: str = ""


@dataclass(frozen=True)
class TimeConstants:
    """What one mechanism of the time model needs to know of a chip, from the sections ``[time.MECHANISM]``.

    ================  =========================================================================================
    ``values``        constant -> number, in microseconds, megabytes (1e6 bytes) and nanoseconds a tile
    ``fitted_on``     what the constants were fitted on, "" where they are published or carried over
    ``error``         mean absolute error seen on rows the fit did not see, as a share (0.05 = 5 %); 0 = not known
    ================  =========================================================================================
    """

    values: Mapping[str, float]
    fitted_on: str = ""
    error: float = 0.0

    def __getitem__(self, constant: str) -> float:
        """The constant's number."""
        return self.values[constant]


@dataclass(frozen=True)
class Target:
    """One chip.

    =========================  ================================================================================
    ``name``, ``title``        ``tpu-v5p``; "Google Cloud TPU v5p"
    ``family``                 ``tpu``, ``vector``, ``npu``, ``simt`` or ``cpu``
    ``layout_rule``            how arrays are laid out by default: ``tpu`` (the compiler picks the dim order too),
                               ``tpu_default_order`` (tiles, dims in order), ``lanes`` or ``linear``
    ``compiler_normalizes``    the chip's compiler already performs the reshape rewrites by itself
    ``short_run_bytes``        reductions over a contiguous inner run shorter than this are charged for it (0 = no)
    ``short_kept_run_bytes``   the same for reductions that keep a contiguous inner run shorter than this
    ``memories``               main memory first
    ``vector`` ... ``links``   the units, None where the chip has none
    ``time``                   mechanism -> its constants (:class:`TimeConstants`), {} where none are known
    ``sources``                section or ``section.key`` -> where the constants come from
    =========================  ================================================================================
    """

    name: str
    title: str
    family: str
    layout_rule: str
    compiler_normalizes: bool = False
    short_run_bytes: int = 0
    short_kept_run_bytes: int = 0
    memories: tuple[Memory, ...] = ()
    vector: VectorUnit | None = None
    lanes: LaneMemory | None = None
    matrix: MatrixUnits | None = None
    simt: SimtCore | None = None
    sparse: SparseCores | None = None
    links: Links | None = None
    time: Mapping[str, TimeConstants] = field(default_factory=dict, compare=False)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def memory(self, name: str) -> Memory | None:
        """The memory called ``name``, or None."""
        return next((m for m in self.memories if m.name == name), None)
