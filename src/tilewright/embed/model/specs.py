"""jax-tpu-embedding's FeatureSpec and TableSpec taken as they are, by their attributes: nothing of it is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tilewright.embed.model.optimizers import SGD, Adagrad
from tilewright.embed.model.tables import Feature, Limits, Quantization, Table
from tilewright.errors import UnsupportedError, UsageError


def as_feature(spec: Any) -> Feature:
    """A :class:`Feature` from one, or from a FeatureSpec: its ``name`` and ``table_spec``.

    >>> from types import SimpleNamespace as Spec
    >>> table = Spec(name="t", vocabulary_size=10, embedding_dim=4, combiner="sum", optimizer=None)
    >>> as_feature(Spec(name="f", table_spec=table, input_shape=[16, 1], output_shape=[16, 4])).table.width
    4
    """
    if isinstance(spec, Feature):
        return spec
    if not hasattr(spec, "table_spec") or not hasattr(spec, "name"):
        raise UsageError(f"{spec!r} is not a Feature", where="stack", how="give Features or FeatureSpecs")
    return Feature(spec.name, as_table(spec.table_spec))


def as_table(spec: Any) -> Table:
    """A :class:`Table` from one, or from a TableSpec: its name, sizes, combiner, optimizer and quantisation.

    The initializer is left: the spec's takes no dtype. Raises :class:`UnsupportedError` for optimizers that are not
    here yet, :class:`UsageError` for something else than a table.
    """
    if isinstance(spec, Table):
        return spec
    if missing := [name for name in ("name", "vocabulary_size", "embedding_dim") if not hasattr(spec, name)]:
        raise UsageError(f"{spec!r} is not a table: it has no {missing[0]}", where="stack")
    optimizer = {} if spec.optimizer is None else {"optimizer": _optimizer(spec.optimizer, spec.name)}
    plain = spec.name, spec.vocabulary_size, spec.embedding_dim, getattr(spec, "combiner", "sum")
    return Table(*plain, quantization=_quantization(spec), **optimizer)


def _optimizer(spec: Any, table: str) -> Any:
    """By the short name a spec gives itself."""
    name = spec.short_name() if callable(getattr(spec, "short_name", None)) else type(spec).__name__
    makers: dict[str, Callable[[], Any]] = {
        "sgd": lambda: SGD(_rate(spec)),
        "adagrad": lambda: Adagrad(_rate(spec), float(spec.initial_accumulator_value)),
    }
    if name not in makers:
        how = f"one of {', '.join(makers)}, or a Table of ours with an optimizer of your own"
        raise UnsupportedError(f"optimizer {name!r} of a TableSpec", where=f"table {table!r}", how=how)
    return makers[name]()


def _rate(spec: Any) -> Any:
    rate = spec.learning_rate
    return rate if callable(rate) else float(rate)


def _quantization(spec: Any) -> Quantization | None:
    """Version 0.2.0 has a ``quantization_config``; earlier ones have none."""
    config = getattr(spec, "quantization_config", None)
    return None if config is None else Quantization(config.min_value, config.max_value, config.num_buckets)


def spec_batch_sizes(specs: Iterable[Any]) -> dict[str, int]:
    """Feature -> whole batch, as ``stack`` takes it: the first entry of every ``input_shape``."""
    return {spec.name: int(spec.input_shape[0]) for spec in specs}


def spec_limits(specs: Iterable[Any], stacking: Any) -> dict[str, Limits]:
    """Stack -> limits that the specs carry: a lone table's own, a stacked one's where the stack is named alike.

    Single tables' limits say nothing of their stack, which is therefore left out.
    """
    limits: dict[str, Limits] = {}
    for spec in specs:
        table = spec.table_spec
        home = stacking.stacks[stacking.tables[table.name].stack]
        stacked = getattr(table, "_stacked_table_spec", None)
        source = table if len(home.tables) == 1 else stacked
        if source is not None and (source is table or source.stack_name == home.name):
            ids = int(source.max_ids_per_partition)  # specs default both to 256: lowering one leaves the other above
            limits[home.name] = Limits(ids, min(ids, int(source.max_unique_ids_per_partition)))
    return limits
