"""A whole embedding model in one TOML file: tables, features, topology, knobs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tilewright.embed.host.narrow import NarrowTables, pack_narrow
from tilewright.embed.logs.log import Column
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.stacking import manual_stacks
from tilewright.embed.model.tables import SGD, Adagrad, Feature, Limits, Quantization, Table, Topology, count
from tilewright.errors import UsageError

OPTIMIZERS = {"sgd": SGD, "adagrad": Adagrad}
QUANTIZATION = ("quantization_config_low", "quantization_config_high", "quantization_config_num_buckets")
_GUIDE = SparseCoreConfig()


@dataclass(frozen=True)
class EmbedConfig:
    """What a run needs to know.

    ==============  ==========================================================================================
    ``features``    the model's features with their tables
    ``target``      the chip
    ``chips``       how many of them
    ``batch``       samples of a batch, over all chips
    ``columns``     feature -> :class:`Column` of the log, where it is not the column of its name
    ``limits``      stack -> :class:`Limits`, None: not yet known
    ``sparsecore``  the guide's knobs
    ``stacks``      tables to stack by hand, as ``stack`` takes them
    ``narrow``      the features, packed where ``narrow_packing`` is set: those to stack, and what makes their batches
    ==============  ==========================================================================================
    """

    features: tuple[Feature, ...]
    target: str = "tpu-v5p"
    chips: int = 1
    batch: int = 4096
    columns: Mapping[str, Column] = field(default_factory=dict, hash=False)
    limits: Mapping[str, Limits] | None = field(default=None, hash=False)
    sparsecore: SparseCoreConfig = _GUIDE
    stacks: tuple[tuple[str, ...], ...] = ()
    narrow_packing: bool = False

    @property
    def topology(self) -> Topology:
        """The chips' SparseCores."""
        return Topology.for_target(self.target, self.chips)

    @property
    def narrow(self) -> NarrowTables:
        """The features to stack: with ``narrow_packing`` tables of at most 4 floats a row share 32-byte lines."""
        return pack_narrow(self.features) if self.narrow_packing else NarrowTables(self.features, self.features)


def read_config(path: str | Path) -> EmbedConfig:
    """The configuration of a TOML file::

        target = "tpu-v5p"
        chips = 4
        batch = 4096
        narrow_packing = true    # rows of 1 to 4 floats share 32-byte lines; false where it is not given

        [[table]]
        name = "user"
        vocab = 1_000_000
        width = 32
        combiner = "sum"
        optimizer = { kind = "adagrad", learning_rate = 0.05 }

        [[feature]]
        name = "user"            # table and column are the feature's name where they are not given
        ids = "hash"

        [limits.user]
        max_ids_per_partition = 512
        max_unique_ids_per_partition = 256

        [sparsecore]
        allow_id_dropping = true

    Raises :class:`UsageError` that names the file and the entry: no such file, not TOML, an unknown key, a value that
    cannot be, a feature of a table that is not there, a table that no feature uses.
    """
    where = str(path)
    try:
        value = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror or error}", where=where) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not TOML: {error}", where=where) from None
    try:
        return _config(value)
    except UsageError as error:
        raise UsageError(error.what, where=f"{where}: {error.where}" if error.where else where, how=error.how) from None


def _config(value: dict[str, Any]) -> EmbedConfig:
    _known(
        value, ("target", "chips", "batch", "stacks", "narrow_packing", "table", "feature", "limits", "sparsecore"), ""
    )
    tables = {t.name: t for t in map(_table, _entries(value, "table"))}
    if len(tables) != len(_entries(value, "table")):
        raise UsageError("two tables of one name", where="table")
    given = _entries(value, "feature") or [{"name": name} for name in tables]
    features = tuple(_feature(entry, tables) for entry in given)
    if idle := sorted(set(tables) - {f.table.name for f in features}):
        raise UsageError(f"no feature uses table {idle[0]!r}", where="table", how="add a feature or drop the table")
    columns = {f.name: column for f, entry in zip(features, given) if (column := _column(entry)) != Column()}
    limits = {name: _limits(entry, name) for name, entry in _table_of(value, "limits").items()} or None
    knobs = _table_of(value, "sparsecore")
    _known(knobs, [each.name for each in fields(SparseCoreConfig)], "sparsecore")
    plain = {k: value[k] for k in ("target", "chips", "batch") if k in value}
    for name in ("chips", "batch"):
        count(plain.get(name, 1), name, "")
    if not isinstance(plain.get("target", ""), str):
        raise UsageError(f"target = {plain['target']!r} is not a text")
    packing = value.get("narrow_packing", False)
    if not isinstance(packing, bool):
        raise UsageError(f"narrow_packing = {packing!r} is not true or false")
    by_hand = _stacks(value.get("stacks", []), pack_narrow(features).features if packing else features)
    named: dict[str, Any] = {"columns": columns, "limits": limits, "stacks": by_hand, "narrow_packing": packing}
    return EmbedConfig(features, sparsecore=SparseCoreConfig(**knobs), **named, **plain)


def _stacks(given: Any, features: tuple[Feature, ...]) -> tuple[tuple[str, ...], ...]:
    """Lists of table names, checked."""
    if not isinstance(given, list) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in given
    ):
        raise UsageError(f"stacks = {given!r}", how='write lists of table names: stacks = [["user", "item"]]')
    manual_stacks(features, 1, given)
    return tuple(map(tuple, given))


def _entries(value: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = value.get(key, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise UsageError(f"write [[{key}]], with two brackets, before each", where=key)
    if key == "table" and not found:
        raise UsageError("no table", where=key, how="add a [[table]] with name, vocab and width")
    return found


def _table_of(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key, {})
    if not isinstance(found, dict):
        raise UsageError(f"{key} = {found!r} is not a table of values", where=key, how=f"write [{key}]")
    return found


def _known(entry: Mapping[str, Any], keys: Any, where: str) -> None:
    for key in entry:
        if key not in keys:
            near = get_close_matches(key, list(keys), n=1) or [", ".join(keys)]
            raise UsageError(f"unknown key {key!r}", where=where, how=f"did you mean {near[0]}?")


def _needed(entry: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    if missing := [key for key in keys if key not in entry]:
        raise UsageError(f"{' and '.join(missing)} missing", where=where)


def _table(entry: dict[str, Any]) -> Table:
    where = f"table {entry.get('name', '?')!r}"
    _known(entry, ("name", "vocab", "width", "combiner", "optimizer", *QUANTIZATION), where)
    _needed(entry, ("name", "vocab", "width"), where)
    plain = {k: v for k, v in entry.items() if k not in ("optimizer", *QUANTIZATION)}
    optimizer = {"optimizer": _optimizer(entry["optimizer"], where)} if "optimizer" in entry else {}
    return Table(**plain, **optimizer, quantization=_quantization(entry, where))


def _quantization(entry: Mapping[str, Any], where: str) -> Quantization | None:
    """The guide's three names, all or none of them."""
    if not any(key in entry for key in QUANTIZATION):
        return None
    _needed(entry, QUANTIZATION, where)
    try:
        return Quantization(*(entry[key] for key in QUANTIZATION))
    except UsageError as error:
        raise UsageError(error.what, where=where) from None


def _optimizer(entry: Any, where: str) -> Any:
    """``"adagrad"`` or ``{kind = "adagrad", learning_rate = 0.1}``."""
    entry = {"kind": entry} if isinstance(entry, str) else entry
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        raise UsageError(f"optimizer = {entry!r}", where=where, how='such as { kind = "adagrad", learning_rate = 0.1 }')
    kind = OPTIMIZERS.get(entry["kind"].lower())
    if kind is None:
        raise UsageError(f"optimizer {entry['kind']!r}", where=where, how=f"one of {', '.join(OPTIMIZERS)}")
    arguments = {k: v for k, v in entry.items() if k != "kind"}
    _known(arguments, [each.name for each in fields(kind)], f"{where}: optimizer")
    return kind(**arguments)


def _feature(entry: dict[str, Any], tables: Mapping[str, Table]) -> Feature:
    where = f"feature {entry.get('name', '?')!r}"
    _known(entry, ("name", "table", "column", "weights", "ids"), where)
    _needed(entry, ("name",), where)
    table = entry.get("table", entry["name"])
    if table not in tables:
        raise UsageError(f"no table called {table!r}", where=where, how=f"tables are {', '.join(tables)}")
    return Feature(entry["name"], tables[table])


def _column(entry: Mapping[str, Any]) -> Column:
    texts = [entry.get(key, default) for key, default in (("column", ""), ("weights", ""), ("ids", "auto"))]
    if wrong := next((t for t in texts if not isinstance(t, str)), None):
        raise UsageError(f"{wrong!r} is not a text", where=f"feature {entry['name']!r}")
    return Column(*texts)


def _limits(entry: Any, name: str) -> Limits:
    from tilewright.embed.model.limits import limits_of

    return limits_of(entry, f"limits of {name!r}")
