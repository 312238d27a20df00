"""What was counted and measured of a run or a plan: the plain values a diagnosis is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from operator import attrgetter
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from tilewright.embed.model.formulas import padded_table_bytes, round8
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.optimizers import OPTIMIZERS
from tilewright.embed.model.tables import Limits
from tilewright.targets import target

# Far beyond any run, and sums and products of a few still fit 64 bits; limits and widths are of 32, as on the chip.
_MOST = 10**18
Count: TypeAlias = Annotated[int, Meta(ge=0, le=_MOST)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=_MOST)]
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=_MOST)]
Ids: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 31)]
Width: TypeAlias = Annotated[int, Meta(ge=1, lt=1 << 24)]


@dataclass(frozen=True)
class Seconds:
    """Times of one step where nothing else is said, measured but for the last three; None: not known.

    ==============  ================================================================================================
    ``step``        a training step, by the wall clock
    ``host``        reading, preprocessing and handing over one batch
    ``wait``        the chip idle for want of input
    ``sparsecore``  the SparseCores busy (XProf: the longest of the SparseCore lanes)
    ``tensorcore``  the TensorCore busy
    ``compile``     spent compiling in all ``steps`` together
    ``modelled``    lookups and updates as a plan models them; ``launches``: of these starting and ending both, of all
                    stacks; ``least``: what HBM and links take alone
    ==============  ================================================================================================
    """

    step: Amount | None = None
    host: Amount | None = None
    wait: Amount | None = None
    sparsecore: Amount | None = None
    tensorcore: Amount | None = None
    compile: Amount | None = None
    modelled: Amount | None = None
    launches: Amount | None = None
    least: Amount | None = None

    def gain(self, saved: float | None) -> float | None:
        """The share of a step, measured or else modelled, that work shorter by ``saved`` seconds makes it shorter; None
        where no plan has modelled it.

        >>> Seconds(modelled=0.01, least=0.009).gain(0.004), Seconds(step=0.1, modelled=0.01).gain(0.004)
        (0.1, 0.04)
        """
        if saved is None or not self.modelled:
            return None
        return round(min(saved, self.modelled - (self.least or 0.0)) / max(self.step or 0.0, self.modelled), 9)


@dataclass(frozen=True)
class HbmCounters:
    """HBM of one chip in bytes. Heap: ``tables``, optimizer ``slots``, ``dense`` weights and constants, ``inputs``
    fetched ahead, the ``exchange`` of activations; then the stacks of lookup and update, and the chip's ``capacity``.
    ``moved`` is the traffic of one step, ``moved_modelled`` where it is a plan's lower bound."""

    tables: Count | None = None
    slots: Count = 0
    dense: Count = 0
    inputs: Count = 0
    exchange: Count = 0
    forward_stack: Count | None = None
    backward_stack: Count | None = None
    capacity: Count | None = None
    moved: Count | None = None
    moved_modelled: bool = False

    @property
    def heap(self) -> int:
        return (self.tables or 0) + self.slots + self.dense + self.inputs + self.exchange

    @property
    def stack(self) -> int:
        return max(self.forward_stack or 0, self.backward_stack or 0)


@dataclass(frozen=True)
class TableCounters:
    """One table of ``vocab`` rows of ``width`` floats; ``dtype`` as the chip holds it. ``used``: how many
    different ids were seen."""

    vocab: Positive
    width: Width
    dtype: str = "float32"
    used: Count | None = None

    def padded_bytes(self, sparsecores: int) -> int:
        """In HBM, all chips together."""
        return padded_table_bytes(self.vocab, self.width, sparsecores)

    @property
    def padded_width(self) -> int:
        """Floats per row in HBM."""
        return round8(self.width)


@dataclass(frozen=True)
class StackCounters:
    """One stack of tables; None or 0: not known.

    ==============================  ================================================================================
    ``tables``, ``width``           how many, and floats per row (padded); ``label``: a short name to print
    ``rows``                        of all its tables, padded
    ``optimizer``, ``combiner``     stacks that differ in these cannot be joined
    ``samples_per_sparsecore``      rows of its activations on one SparseCore
    ``max_ids_per_partition``       the limits compiled with; ``max_unique_ids_per_partition``
    ``observed_ids``                the fullest partition (source x shard x batch) seen; ``observed_unique_ids``
    ``typical_ids``                 what 99 of 100 partitions stay within; ``typical_unique_ids``
    ``mean_ids``                    the average partition
    ``imbalance``                   the fullest shard over the average one; or ``shard_ids``, what each received
    ``wait``                        what a step waits for, modelled by what rows and ids take: the fullest shard over
                                    the average one; ``wait_rows``, ``wait_ids``: of either alone; ``wait_seconds``: by
                                    how much the fullest one takes longer
    ``ids``, ``dropped_ids``        entries in all, and those that were dropped
    ``dropped_share``               their quotient where only that is known
    ``hot``                         table, id and share of the hottest id of the fullest shard
    ``common``                      a table whose ids share a factor with the shards, and the factor
    ``remedies``                    change -> [ids, distinct ids, imbalance] it would give; ``remedy_waits``: the wait
    ==============================  ================================================================================
    """

    tables: Count = 1
    width: Width = 0
    rows: Count = 0
    label: str = ""
    optimizer: str = ""
    combiner: str = ""
    samples_per_sparsecore: Count | None = None
    max_ids_per_partition: Ids | None = None
    max_unique_ids_per_partition: Ids | None = None
    observed_ids: Count | None = None
    observed_unique_ids: Count | None = None
    typical_ids: Count | None = None
    typical_unique_ids: Count | None = None
    mean_ids: Amount | None = None
    imbalance: Amount | None = None
    shard_ids: tuple[Count, ...] = ()
    wait: Amount | None = None
    wait_rows: Amount | None = None
    wait_ids: Amount | None = None
    wait_seconds: Amount | None = None
    ids: Count | None = None
    dropped_ids: Count | None = None
    dropped_share: Amount | None = None
    hot: tuple[str, Count, Amount] | None = None
    common: tuple[str, Count] | None = None
    remedies: Mapping[str, tuple[Amount, Amount, Amount]] = field(default_factory=dict, hash=False)
    remedy_waits: Mapping[str, Amount] = field(default_factory=dict, hash=False)

    @property
    def limits(self) -> Limits | None:
        """The limits compiled with; of more distinct ids than ids only as many as there are ids, which never binds."""
        if not self.max_ids_per_partition:
            return None
        unique = self.max_unique_ids_per_partition or self.max_ids_per_partition
        return Limits(self.max_ids_per_partition, min(unique, self.max_ids_per_partition))

    @property
    def operations(self) -> list[str]:
        """The programs that :func:`memory` knows of: the lookup, and the update where its optimizer is one of them."""
        return ["forward", *(op for op in OPTIMIZERS if op.replace("_", "") == self.optimizer.lower())]

    @property
    def unevenness(self) -> float | None:
        if self.shard_ids and sum(self.shard_ids):
            return max(self.shard_ids) * len(self.shard_ids) / sum(self.shard_ids)
        return self.imbalance

    @property
    def drop_rate(self) -> float | None:
        """The share of the entries that was dropped."""
        if self.dropped_ids is not None and self.ids:
            return self.dropped_ids / self.ids
        return self.dropped_share


@dataclass(frozen=True)
class Counters:
    """Everything a diagnosis looks at; what is None, 0 or empty is not known, and rules that need it say so.

    ========================  ======================================================================================
    ``target``, ``chips``     the chip and how many; ``sparsecores``: in all (0: the chip's)
    ``steps``                 steps (batches) counted
    ``minibatches``           mini-batches of all steps together, but for those that cannot be cut
    ``uncut``                 steps that mini-batches cannot hold, for one hash bucket alone exceeds a limit;
                              ``uncut_because``: what ``preprocess`` says of the first
    ``steps_over``            share of the steps in which some partition exceeded a limit
    ``fresh_over``            the chance that a fresh one exceeds what the log taught, about, and at most with 95 %
    ``compilations``          programs compiled in these steps
    ``minibatch_layout``      whether buffers were laid out for mini-batches
    ``buffer_bytes``          of one batch on one chip
    ``seconds``, ``hbm``      :class:`Seconds`, :class:`HbmCounters`
    ``stacks``, ``tables``    name -> :class:`StackCounters`, :class:`TableCounters`
    ``sparsecore``            the guide's knobs in use
    ========================  ======================================================================================
    """

    target: str = ""
    chips: Positive = 1
    sparsecores: Count = 0
    steps: Count | None = None
    minibatches: Count | None = None
    uncut: Count = 0
    uncut_because: str = ""
    steps_over: Amount | None = None
    fresh_over: tuple[Amount, Amount] | None = None
    compilations: Count | None = None
    minibatch_layout: bool = False
    buffer_bytes: Count | None = None
    seconds: Seconds = Seconds()
    hbm: HbmCounters = HbmCounters()
    stacks: Mapping[str, StackCounters] = field(default_factory=dict, hash=False)
    tables: Mapping[str, TableCounters] = field(default_factory=dict, hash=False)
    sparsecore: SparseCoreConfig | None = None

    def has(self, path: str) -> bool:
        """Whether a counter is known: ``seconds.step``, ``stack.observed_ids`` (of a stack), ``table.used``."""
        first, _, rest = path.partition(".")
        if first in ("stack", "table"):
            return any(_known(rest, getattr(each, rest)) for each in getattr(self, f"{first}s").values())
        value = getattr(self, first)
        return _known(rest or first, getattr(value, rest) if rest and value is not None else value)

    @property
    def shards(self) -> int:
        """S, SparseCores in all; 0 where neither they nor a target are known."""
        if self.sparsecores or not self.target:
            return self.sparsecores
        sparse = target(self.target).sparse
        return sparse.per_chip * self.chips if sparse else 0

    @property
    def knobs(self) -> SparseCoreConfig:
        """The knobs, the guide's defaults where none are given."""
        return self.sparsecore or SparseCoreConfig()

    def merged(self, other: Counters) -> Counters:
        """These counters with everything ``other`` knows on top: stack by stack, time by time.

        >>> plan, run = Counters("tpu-v5p", seconds=Seconds(host=0.1)), Counters(seconds=Seconds(step=0.2))
        >>> merged = plan.merged(run).seconds
        >>> merged.step, merged.host
        (0.2, 0.1)
        """
        both: Counters = _merged(self, other)
        return both

    def to_json(self) -> dict[str, Any]:
        """Plain values that :func:`read_counters` reads back; what is not known is left out."""
        knobs = {} if self.sparsecore is None else {"sparsecore": plain(self.sparsecore, terse=True)}
        return {"schema_version": 1, "kind": "embedding_counters", **plain(self, terse=True), **knobs}


_NEVER_0 = ("width", "sparsecores", "capacity", "steps", "max_ids_per_partition")


def _known(name: str, value: Any) -> bool:
    """Not one of the ways to say nothing: None, empty, or 0 where there cannot be none."""
    return value is not None and value not in ("", (), {}) and not (name in _NEVER_0 and value == 0)


def _merged(one: Any, two: Any) -> Any:
    """``two`` over ``one``, field by field, where it differs from a field's default."""
    if one is None or type(one) is not type(two):
        return two
    changed: dict[str, Any] = {}
    for part in fields(one):
        mine, theirs = getattr(one, part.name), getattr(two, part.name)
        if isinstance(theirs, Mapping):
            mine = mine or {}
            changed[part.name] = {**mine, **{name: _merged(mine.get(name), value) for name, value in theirs.items()}}
        elif is_dataclass(theirs):
            changed[part.name] = _merged(mine, theirs)
        elif theirs != part.default:
            changed[part.name] = theirs
    return replace(one, **changed)


def key(name: str) -> dict[str, str]:
    """Metadata of a field that stands in JSON under another name than its own; under "" it does not."""
    return {"key": name}


def plain(value: Any, *, terse: bool = False) -> Any:
    """A value as JSON holds it: a dataclass as its fields (see :func:`key`) and what its ``DERIVED`` names (key ->
    property, or a path to one); ``terse``: without what says nothing (None, what is empty) or is a field's default."""
    if is_dataclass(value):
        named = {}
        for part in fields(value):
            if name := part.metadata.get("key", part.name):
                inside = plain(getattr(value, part.name), terse=terse)
                if not terse or (inside not in (None, {}, []) and inside != part.default):
                    named[name] = inside
        return named | {name: plain(attrgetter(of)(value)) for name, of in getattr(value, "DERIVED", {}).items()}
    if isinstance(value, Mapping):
        return {str(name): plain(inside, terse=terse) for name, inside in value.items()}
    if isinstance(value, tuple | list):
        return [plain(inside, terse=terse) for inside in value]
    return value
