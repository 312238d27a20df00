"""What a chip is, as frozen dataclasses, and the TOML files that say so: every section tells its source.

All sizes are bytes, all rates bytes or operations per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias, TypeVar

from msgspec import Meta

from tilewright.errors import UsageError, check_known
from tilewright.reading import parse, read_file, table_of, typed

Count: TypeAlias = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class Memory:
    """One memory of a chip: ``bytes`` per ``scope`` and the bandwidth the scope sees (0 = not stated).

    ``scope``: ``TensorCore``, ``chip``, or ``device`` where a chip has several and each has its own. ``reserved``:
    bytes of it that the runtime keeps for itself; a program has the ``usable`` ones. ``kernel_bytes``: what one
    kernel may take of it unless it asks for more (0 = not stated).
    """

    name: str
    bytes: Count
    bytes_per_second: Count = 0
    scope: str = "chip"
    reserved: Count = 0
    kernel_bytes: Count = 0

    @property
    def usable(self) -> int:
        """Bytes that a program can have."""
        return self.bytes - self.reserved


@dataclass(frozen=True)
class VectorUnit:
    """Vector registers of ``sublanes`` x ``lanes`` words of ``word_bits`` bits."""

    sublanes: Count
    lanes: Count
    word_bits: Count = 32

    @property
    def register_bytes(self) -> int:
        """Bytes of one vector register: 8 * 128 * 4 = 4096 on a TPU."""
        return self.sublanes * self.lanes * self.word_bits // 8


@dataclass(frozen=True)
class TileMemory:
    """Main memory in tiles of ``rows`` x ``columns`` elements, each made of faces, whatever the element type.

    ``row_bytes``: a tensor kept row-major instead has a page for every row, rounded up to this many bytes.
    ``bfp8_b_bytes`` and ``bfp4_b_bytes``: one tile of block floats, whose exponents 16 elements share.
    """

    rows: Count
    columns: Count
    face_rows: Count
    face_columns: Count
    row_bytes: Count
    bfp8_b_bytes: Count = 0
    bfp4_b_bytes: Count = 0


@dataclass(frozen=True)
class CoreGrid:
    """Cores with local memories, joined by networks on the chip of ``noc_bytes_per_cycle`` each."""

    cores: Count
    clock_hz: Count
    nocs: Count
    noc_bytes_per_cycle: Count


@dataclass(frozen=True)
class LaneMemory:
    """Local memories of an NPU with lanes: one per NPU (tensor storage over NPUs).

    ``n_stride``: the rows of channels that a batch takes are ceil((start + C) / npu_num), ``with_start``, or
    ceil(C / npu_num), ``without_start``.
    """

    npu_num: Count
    eu_bytes: Count
    local_bytes: Count
    banks: Count
    ic_parallel: Count = 0
    n_stride: str = "with_start"

    @property
    def bank_bytes(self) -> int:
        """Bytes of one bank; banks are contiguous, not interleaved."""
        return self.local_bytes // self.banks


@dataclass(frozen=True)
class MatrixUnits:
    """Systolic matrix units: ``units`` of ``rows`` x ``columns`` multipliers; peak operations a second of a device."""

    units: Count
    rows: Count
    columns: Count
    bf16_ops_per_second: Count = 0
    int8_ops_per_second: Count = 0
    fp8_ops_per_second: Count = 0
    int4_ops_per_second: Count = 0

    @property
    def peaks(self) -> dict[str, float]:
        """Operations a second by type; of one whose peak is not stated those of the fastest."""
        stated = {"bf16": self.bf16_ops_per_second, "int8": self.int8_ops_per_second, "fp8": self.fp8_ops_per_second}
        return {kind: float(peak or max(stated.values())) for kind, peak in stated.items()}

    @property
    def clock(self) -> float:
        """Operations a second of one multiplier."""
        return self.bf16_ops_per_second / (self.units * self.rows * self.columns)

    def figures(self, ghz: float) -> dict[str, float]:
        """What times of products need of them at their clock: their side and number, rows a cycle, and how many times
        as fast as in bf16 products pass in ``int8`` and ``fp8``; 1 where that is not stated.
        """
        rows = float(round(self.clock / (2e9 * ghz)))
        stated = {"int8_rate": self.int8_ops_per_second, "fp8_rate": self.fp8_ops_per_second}
        rates = {name: max(1.0, peak / max(1, self.bf16_ops_per_second)) for name, peak in stated.items()}
        return {"side": float(self.rows), "units": float(self.units), "rows_per_cycle": rows, **rates}


@dataclass(frozen=True)
class SimtCore:
    """A SIMT processing element with the tensor-multiply instruction ``mm``; latencies in cycles.

    ``l1_ways`` and ``l2_ways``: lines in a cache set, 0 for a fully associative cache.
    """

    threads: Count
    registers: Count
    predicates: Count
    uniform_registers: Count
    a_bytes: Count
    line_bytes: Count
    l1_bytes: Count
    l2_bytes: Count
    l1_latency: Count
    l2_latency: Count
    dram_latency: Count
    l1_ports: Count
    l2_bytes_per_cycle: Count
    dram_bytes_per_cycle: Count
    l1_ways: Count = 0
    l2_ways: Count = 0
    alu_latency: Count = 1
    dma_latency: Count = 400
    bcast_depth: Count = 2


@dataclass(frozen=True)
class SparseCores:
    """Sparse cores of a chip: per-chip count, tiles per core, SIMD width, scratchpad bytes per tile.

    ``fixed_tile_bytes`` is the constant k of the measured TileSpmem rule (0 = not measured on this chip).
    ``devices_per_chip`` is the chip's (:class:`Target`); a device has ``per_chip / devices_per_chip`` of the cores.
    """

    per_chip: Count
    tiles: Count
    simd_f32: Count
    simd_bf16: Count
    tile_spmem_bytes: Count = 0
    fixed_tile_bytes: Count = 0
    devices_per_chip: Count = 1


@dataclass(frozen=True)
class Links:
    """What joins a device to others: all of its links to other chips together, bytes per second in one direction.

    ``host_bytes_per_second``: to its host's memory, each way; ``network_bytes_per_second``: to other slices, over the
    data centre's network; 0: not public. Where a chip's devices share these, each has its part of them. A dim of the
    torus is a ring where its size is a multiple of ``wrap`` (0: never); in three dims all have to be.
    ``largest``: chips of a slice at most (0: more than anybody asks for); ``orders``: JAX's orders of small slices'
    devices, in rings, as ``2x2: 0 1 3 2; ...``. ``hop_ns``: from a chip to the next;
    ``start_ns``: until an exchange begins. ``gather_percent``, ``reduce_percent``: of the rate, what gathers and what
    sums over chips reach.
    """

    bytes_per_second: Count
    topology: str = ""
    wrap: Count = 0
    largest: Count = 0
    orders: str = ""
    hop_ns: Count = 0
    start_ns: Count = 0
    gather_percent: Count = 100
    reduce_percent: Count = 100
    host_bytes_per_second: Count = 0
    network_bytes_per_second: Count = 0

    @property
    def dims(self) -> int:
        """Dims of the torus."""
        return int(self.topology[:1]) if self.topology[:1].isdigit() else 1

    @property
    def small_orders(self) -> dict[str, tuple[int, ...]]:
        """Of ``orders``: a small slice, as ``2x2`` -> its devices as JAX has them."""
        orders = (order.partition(":")[::2] for order in self.orders.split(";") if order)
        return {chips.strip(): tuple(map(int, order.split())) for chips, order in orders}


LINK_RATES = {
    "link_bandwidth": "bytes_per_second",
    "host_bandwidth": "host_bytes_per_second",
    "network_bandwidth": "network_bytes_per_second",
}
"""What :func:`what_if` calls the rates between a device and others."""


@dataclass(frozen=True)
class Seen:
    """Where an error was seen, from ``[time.MECHANISM.seen]``: it is claimed for nothing else.

    ================  =========================================================================================
    ``types``         element types of the arrays
    ``bounds``        what bounded the measured operations
    ``ranges``        a size -> its least and its largest: ``megabytes`` of an operation, ``flops``, ``depth``
    ================  =========================================================================================
    """

    types: tuple[str, ...]
    bounds: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]]

    def covers(self, types: frozenset[str], bound: str, sizes: Mapping[str, float]) -> bool:
        """Whether an operation of these types, bound and sizes is like those that were measured."""
        inside = all(low <= sizes.get(name, low) <= high for name, (low, high) in self.ranges.items())
        return inside and bound in self.bounds and types <= {*self.types}


@dataclass(frozen=True)
class SeenError:
    """How far off functions were that no constant was fitted on and that are mostly kernels of one kind."""

    error: Annotated[float, Meta(ge=0)]  # mean, as a share (0.05 = 5 %)
    functions: Count
    least_us: float  # microseconds of one run of their longest kernels; of functions of many kinds (``mixed``) of all
    most_us: float

    def covers(self, us: float) -> bool:
        """Whether what takes so long is like what was timed."""
        return self.least_us <= us <= self.most_us

    def said(self, of: str) -> str:
        """What it was seen on, in words."""
        return f"{self.functions} functions that were not fitted, {of}"


FEW = 6
"""Functions whose mean error says nothing of their kind, where there are fewer."""


@dataclass(frozen=True)
class TimeConstants:
    """What one mechanism of the time model needs to know of a chip, from the sections ``[time.MECHANISM]``.

    ================  =========================================================================================
    ``values``        constant -> number, in microseconds, megabytes (1e6 bytes) and nanoseconds a tile
    ``fitted_on``     what the constants were fitted on, "" where they are published or carried over
    ``error``         mean absolute error seen on rows the fit did not see, as a share (0.05 = 5 %); 0 = not known
    ``seen``          where that error was seen, None where nothing was measured
    ================  =========================================================================================
    """

    values: Mapping[str, float]
    fitted_on: str = ""
    error: float = 0.0
    seen: Seen | None = None

    def __getitem__(self, constant: str) -> float:
        """The constant's number."""
        return self.values[constant]


@dataclass(frozen=True)
class Target:
    """One chip, as one of its devices has it: a device is what runs one program.

    =========================  ================================================================================
    ``name``, ``title``        ``tpu-v5p``; "Google Cloud TPU v5p"
    ``family``                 ``tpu``, ``vector``, ``tensix``, ``npu``, ``simt`` or ``cpu``
    ``layout_rule``            how arrays are laid out by default: ``tpu`` (the compiler picks the dim order too),
                               ``tpu_default_order`` (tiles, dims in order), ``tile`` (every array in the tiles of
                               ``tiles``), ``row_major`` (every row a page), ``lanes`` or ``linear``
    ``compiler_normalizes``    the chip's compiler already performs the reshape rewrites by itself
    ``compiler_masks_groups``  it makes a product by groups (``ragged_dot``) as one fusion that masks rows and skips
                               blocks without any, not as a kernel of its own that writes float32
    ``compiler_sends_rows``    it leaves gathers, and scatters of 32-bit elements, of many rows to SparseCores
    ``compiler_widens``        it computes bfloat16 in float32: what is read is converted, and what is written
    ``compiler_sums_products`` of a product with one row a batch, which another product makes, it makes a sum of the
                               vector unit
    ``devices_per_chip``       2 where each core is a device of its own; memories, matrix units and links are a
                               device's, :attr:`whole` has a chip's
    ``caveat``                 what to know before any figure of this chip is believed: nobody has measured it
    ``short_run_bytes``        reductions over a contiguous inner run shorter than this are charged for it (0 = no)
    ``short_kept_run_bytes``   the same for reductions that keep a contiguous inner run shorter than this
    ``memories``               main memory first
    ``vector`` ... ``links``   the units, None where the chip has none
    ``types``                  (element type, the one it is stored as), for types that the chip has not
    ``time``                   mechanism -> its constants (:class:`TimeConstants`), {} where none are known
    ``errors``                 kind of kernel, with or without what bounds it -> how far off its times were seen
    ``sources``                section or ``section.key`` -> where the constants come from
    =========================  ================================================================================
    """

    name: str
    title: str
    family: str
    layout_rule: str
    compiler_normalizes: bool = False
    compiler_masks_groups: bool = False
    compiler_sends_rows: bool = False
    compiler_widens: bool = False
    compiler_sums_products: bool = False
    devices_per_chip: Count = 1
    caveat: str = ""
    short_run_bytes: Count = 0
    short_kept_run_bytes: Count = 0
    memories: tuple[Memory, ...] = ()
    vector: VectorUnit | None = None
    tiles: TileMemory | None = None
    grid: CoreGrid | None = None
    lanes: LaneMemory | None = None
    matrix: MatrixUnits | None = None
    simt: SimtCore | None = None
    sparse: SparseCores | None = None
    links: Links | None = None
    types: tuple[tuple[str, str], ...] = ()
    time: Mapping[str, TimeConstants] = field(default_factory=dict, hash=False)
    errors: Mapping[str, SeenError] = field(default_factory=dict, hash=False)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def memory(self, name: str) -> Memory | None:
        """The memory called ``name``, or None."""
        return next((m for m in self.memories if m.name == name), None)

    @property
    def near_bytes(self) -> int:
        """The largest memory near the core that keeps arguments: vector memory, on v4 what two cores have in common."""
        return max((memory.bytes for memory in self.memories if memory.name in ("vmem", "cmem")), default=0)

    def seen_error(self, kind: str, bound: str, us: float) -> tuple[SeenError | None, str]:
        """The error that was seen of a kind of kernels, and on what: of its bound, else of all bounds.

        Where fewer than ``FEW`` functions are mostly of the kind it is that of all kinds, or theirs where that is
        larger. Of kernels that take longer or shorter than those that were timed nothing is said.
        """
        if kind not in self.errors:
            return None, "not measured"
        mostly, few = f"mostly {kind}", self.errors[kind].functions < FEW
        for name, words in ((f"{kind} {bound}", f"{mostly} bound by {bound}"), (kind, f"{mostly}, whatever bounds it")):
            known = self.errors.get(name)
            if known is None or not known.covers(us):
                continue
            whole = self.errors.get("pallas" if kind.startswith("pallas") else "all", known)
            if few and whole.error >= known.error:
                known, words = whole, f"few of them {mostly}"
            return known, known.said(words)
        return None, "not measured in this range"

    @property
    def whole(self) -> Target:
        """The chip with what all its devices have together, as plans over chips count it; itself where it is one.

        >>> target("tpu-7x").memory("hbm").bytes >> 30, target("tpu-7x").whole.memory("hbm").bytes >> 30
        (96, 192)
        """
        n = self.devices_per_chip
        if n == 1:
            return self

        def times(record: Memory | Links, *names: str) -> dict[str, Any]:
            return {name: n * getattr(record, name) for name in names}

        sizes = "bytes", "bytes_per_second", "reserved"
        wide = (replace(m, scope="chip", **times(m, *sizes)) if m.scope == "device" else m for m in self.memories)
        links = self.links and replace(self.links, **times(self.links, *LINK_RATES.values()))
        return replace(self, devices_per_chip=1, memories=tuple(wide), links=links)


T = TypeVar("T")
_SECTIONS: dict[str, type[Any]] = {
    "vector": VectorUnit,
    "tiles": TileMemory,
    "grid": CoreGrid,
    "lanes": LaneMemory,
    "matrix": MatrixUnits,
    "simt": SimtCore,
    "sparse": SparseCores,
    "links": Links,
}
_PLAIN = [f.name for f in fields(Target) if f.type in ("str", "bool", "Count")]
_TILE_RULES = ("tile", "row_major")
_RULES = ("tpu", "tpu_default_order", *_TILE_RULES, "lanes", "linear")


def _sourced(table: Any, where: str, sources: dict[str, str]) -> dict[str, Any]:
    """A section's constants; its ``source``, and those of single constants in ``sources``, move into ``sources``."""
    constants = dict(table_of(table, where))
    source, own = constants.pop("source", ""), table_of(constants.pop("sources", {}), f"{where}.sources")
    if not isinstance(source, str) or not source:
        raise UsageError("a section without a source", where=where, how='add source = "..."')
    if not all(isinstance(text, str) and key in constants for key, text in own.items()):
        raise UsageError("sources of constants that are not there", where=where, how='name = "..." for a constant')
    sources[where] = source
    sources.update({f"{where}.{key}": text for key, text in own.items()})
    return constants


def _time(tables: Any, sources: dict[str, str]) -> Mapping[str, TimeConstants]:
    """``[time.MECHANISM]``: numbers of at least 0, beside ``source``, ``fitted_on`` and ``error`` where fitted."""
    mechanisms = {}
    for name, table in table_of(tables, "time", "write [time.MECHANISM]").items():
        where = f"time.{name}"
        values = _sourced(table, where, sources)
        fitted_on, seen = values.pop("fitted_on", ""), values.pop("seen", None)
        if not isinstance(fitted_on, str):
            raise UsageError(f"fitted_on = {fitted_on!r} is not a text", where=where)
        for key, value in values.items():
            if type(value) not in (int, float) or not 0 <= value < float("inf"):
                raise UsageError(f"{key} = {value!r} is not a number of at least 0", where=where)
        error = float(values.pop("error", 0.0))
        plain = MappingProxyType({k: float(v) for k, v in values.items()})
        where_seen = _seen(seen, f"{where}.seen") if seen is not None else None
        mechanisms[name] = TimeConstants(plain, fitted_on, error, where_seen)
    return MappingProxyType(mechanisms)


TIME = "tpu_time.toml"
"""What all TPUs have in common, beside this file: sections as a chip's, beneath those of the same name in its file."""


def _over_common(
    own: Mapping[str, TimeConstants], matrix: MatrixUnits | None, sources: dict[str, str]
) -> Mapping[str, TimeConstants]:
    """A TPU's sections of time over what all TPUs have in common."""
    common, common_sources = common_time()
    made = dict(own)
    for name in own.keys() & common.keys():
        chip, shared = own[name], common[name]
        known = {key: (value, common_sources.get(f"time.{name}.{key}", "")) for key, value in shared.values.items()}
        known = _by_clock(known, chip, matrix) if name == "kernel" else known
        sources |= {f"time.{name}.{key}": s for key, (_, s) in known.items() if s and key not in chip.values}
        values = {key: value for key, (value, _) in known.items()} | {**chip.values}
        fitted_on, error = chip.fitted_on or shared.fitted_on, chip.error or shared.error
        made[name] = TimeConstants(MappingProxyType(values), fitted_on, error, chip.seen or shared.seen)
    return MappingProxyType(made)


def _by_clock(
    known: Mapping[str, tuple[float, str]], chip: TimeConstants, matrix: MatrixUnits | None
) -> dict[str, tuple[float, str]]:
    """Constants in cycles of a core in what a chip of its clock takes, and the matrix unit's figures as published.

    Of several ``cores`` that are one device each does its part, but one the steps of a grid (``_kcycles``).
    """
    if matrix is None or not (chip.values.get("ghz") and chip.values.get("cores")):
        what = "ghz, cores and a section [matrix] are needed"
        raise UsageError(what, where="time.kernel", how="ghz = 1.75, cores = 1")
    cycle = 1 / chip["ghz"] / chip["cores"]
    units = {"_cycles": ("_ns", cycle), "_kb_a_cycle": ("_mb_per_us", 1 / cycle), "_kcycles": ("_us", 1 / chip["ghz"])}
    made = {}
    for key, (value, source) in known.items():
        end = next((end for end in units if key.endswith(end)), "")
        unit, factor = units.get(end, ("", 1.0))
        made[key.removesuffix(end) + unit] = value * factor, source
    figures = matrix.figures(chip["ghz"]).items()
    return made | {key: (value, "not fitted: published, as in [matrix]") for key, value in figures}


@cache
def common_time() -> tuple[Mapping[str, TimeConstants], Mapping[str, str]]:
    """What all TPUs have in common of the sections ``[time.MECHANISM]``, and where each constant is from."""
    sources: dict[str, str] = {}
    text = (resources.files("tilewright.targets") / TIME).read_text(encoding="utf-8")
    return _time(parse(text, "TOML", TIME)["time"], sources), sources


def _seen(table: Any, where: str) -> Seen:
    """``[time.MECHANISM.seen]``: lists of texts ``types`` and ``bounds``; every other key a pair, least and largest."""
    ranges = dict(table_of(table, where))
    words = {key: ranges.pop(key) for key in ("types", "bounds") if key in ranges}
    seen = typed({**words, "ranges": ranges}, Seen, where)
    for key, (low, high) in seen.ranges.items():
        if not 0 <= low <= high:
            raise UsageError(f"{key} = [{low:g}, {high:g}] is no range", where=where, how=f"{key} = [0.5, 60.0]")
    return seen


def _types(table: Any, sources: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """``[types]``: element type = the type it is stored as, both by XLA's names."""
    pairs = _sourced(table, "types", sources)
    if wrong := [key for key, value in pairs.items() if not isinstance(value, str)]:
        raise UsageError(f"{wrong[0]} = {pairs[wrong[0]]!r} is not an element type", where="types")
    return tuple(sorted(pairs.items()))


def parse_target(text: str, where: str = "target") -> Target:
    """A :class:`Target` from the text of a TOML file; raises :class:`UsageError` naming section and key."""
    return _target(parse(text, "TOML", where), where)


def _target(value: Any, where: str) -> Target:
    sources: dict[str, str] = {}
    table = _sourced(value, "target", sources)
    given = {key: table.pop(key) for key in _PLAIN if key in table}
    plain = typed(given, Target, where)
    check_known(plain.layout_rule, _RULES, f"layout_rule {plain.layout_rule!r}", where=where)

    def section(cls: type[T], table: Any, where: str) -> T:
        return typed(_sourced(table, where, sources), cls, where)

    memories = tuple(section(Memory, m, f"memory.{m.get('name', i)}") for i, m in enumerate(table.pop("memory", [])))
    units = {key: section(cls, table.pop(key), key) for key, cls in _SECTIONS.items() if key in table}
    types = _types(table.pop("types"), sources) if "types" in table else ()
    time = _time(table.pop("time", {}), sources)
    rows = _sourced(table.pop("errors"), "errors", sources) if "errors" in table else {}
    errors = {kind: typed(row, SeenError, f"errors, {kind}") for kind, row in rows.items()}
    devices = given.get("devices_per_chip", units["sparse"].devices_per_chip if "sparse" in units else 1)
    if not devices or ("sparse" in units and units["sparse"].per_chip % devices):
        raise UsageError(f"devices_per_chip = {devices} does not divide the chip's SparseCores", where=where)
    if "sparse" in units:
        units["sparse"] = replace(units["sparse"], devices_per_chip=devices)
    if plain.family == "tpu":
        time = _over_common(time, units.get("matrix"), sources)
    if table:
        raise UsageError(f"unknown section {next(iter(table))!r}", where=where)
    if plain.layout_rule in _TILE_RULES and "tiles" not in units:
        raise UsageError(f"layout_rule {plain.layout_rule!r} needs a section [tiles]", where=where)
    own = {"memories": memories, **units, "types": types, "time": time, "errors": errors, "sources": sources}
    return replace(plain, devices_per_chip=devices, **own)


def _by_rule(chip: Target, rule: str) -> Target:
    """The chip with arrays laid out by another rule; its name then says so."""
    if chip.tiles is None:
        raise UsageError(f"target {chip.name} has no tiles, so '{rule}' cannot be chosen", how=f"write {chip.name}")
    return chip if chip.layout_rule == rule else replace(chip, name=f"{chip.name}:{rule}", layout_rule=rule)


@cache
def target_names() -> tuple[str, ...]:
    """The chips that come with Tilewright, sorted."""
    folder = resources.files("tilewright.targets") / "data"
    return tuple(sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")))


def load_target(path: str | Path) -> Target:
    """A :class:`Target` from a TOML file of your own."""
    return _target(read_file(path, "TOML"), str(path))


@cache
def _builtin(name: str) -> Target:
    text = (resources.files("tilewright.targets") / "data" / f"{name}.toml").read_text(encoding="utf-8")
    return parse_target(text, f"{name}.toml")


def target(name: str | Target) -> Target:
    """The chip called ``name``, or the one in the TOML file ``name``; a :class:`Target` is returned as it is.

    A chip with ``tiles`` lays arrays out by either of two rules: ``NAME:row_major`` and ``NAME:tile`` choose.

    >>> target("tpu-v5p").sparse.per_chip
    4
    >>> target("tenstorrent-wormhole").layout_rule, target("tenstorrent-wormhole:row_major").layout_rule
    ('tile', 'row_major')
    """
    if isinstance(name, Target):
        return name
    chip, colon, rule = name.rpartition(":")
    if colon and rule in _TILE_RULES:
        return _by_rule(target(chip), rule)
    if name in target_names():
        return _builtin(name)
    if name.endswith(".toml"):
        return load_target(name)
    near = get_close_matches(name.lower(), target_names(), n=3, cutoff=0.4)
    how = f"did you mean {' or '.join(near)}?" if near else f"known targets: {', '.join(target_names())}"
    raise UsageError(f"no target called {name!r}", how=how)
