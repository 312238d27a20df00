"""jax-tpu-embedding's FeatureSpec and TableSpec taken as they are, by their attributes: nothing of it is imported."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tilewright.embed.model.optimizers import OPTIMIZERS
from tilewright.embed.model.tables import Feature, Limits, Quantization, Table
from tilewright.errors import UnsupportedError, UsageError


def flat_specs(specs: Any) -> list[Any]:
    """Features or FeatureSpecs in a list, out of the nested mappings and sequences jax-tpu-embedding takes.

    As jax lays them out: mappings by their keys, sequences as they are.
    """
    if isinstance(specs, Mapping):
        return [leaf for key in sorted(specs) for leaf in flat_specs(specs[key])]
    if hasattr(specs, "name") or not isinstance(specs, Iterable) or isinstance(specs, str):
        return [specs]
    return [leaf for part in specs for leaf in flat_specs(part)]


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

    The initializer is left: the spec's takes no dtype. Raises :class:`UnsupportedError` for optimizers it
    cannot know, :class:`UsageError` for something else than a table.
    """
    if isinstance(spec, Table):
        return spec
    if missing := [name for name in ("name", "vocabulary_size", "embedding_dim") if not hasattr(spec, name)]:
        raise UsageError(f"{spec!r} is not a table: it has no {missing[0]}", where="stack")
    optimizer = {} if spec.optimizer is None else {"optimizer": _optimizer(spec.optimizer, spec.name)}
    plain = spec.name, spec.vocabulary_size, spec.embedding_dim, getattr(spec, "combiner", "sum")
    config = getattr(spec, "quantization_config", None)  # from version 0.2.0 on
    levels = None if config is None else Quantization(config.min_value, config.max_value, config.num_buckets)
    return Table(*plain, quantization=levels, **optimizer)


def _optimizer(spec: Any, table: str) -> Any:
    """Ours by the short name the spec gives itself, with the spec's hyper-parameters; its function where it has one."""
    name = spec.short_name() if callable(getattr(spec, "short_name", None)) else type(spec).__name__
    if getattr(spec, "custom_computation_fn", None) is not None:
        return _own(spec)
    if name not in OPTIMIZERS:
        how = f"one of {', '.join(OPTIMIZERS)}, or a Table of ours with an optimizer of your own"
        raise UnsupportedError(f"optimizer {name!r} of a TableSpec", where=f"table {table!r}", how=how)
    kind = OPTIMIZERS[name]
    return kind(**{own: _number(getattr(spec, other)) for own, other in spec_names(kind, dir(spec)).items()})


_THEIR_NAMES = {"b1": "beta_1", "b2": "beta_2", "epsilon": "eps"}


def spec_names(kind: Any, known: Container[str]) -> dict[str, str]:
    """Hyper-parameter of one of our optimizers -> what a spec calls it, whose own names are ``known``."""
    names = {
        f.name: (_THEIR_NAMES.get(f.name, ""), f"{f.name}_strength", f"{f.name}_value", f.name) for f in fields(kind)
    }
    return {name: other for name, others in names.items() for other in others if other in known}


def _number(value: Any) -> Any:
    """A number out of an array of none or one axis; schedules and flags as they are."""
    if callable(value) or isinstance(value, bool):
        return value
    return bool(value) if getattr(value, "dtype", None) == "bool" else float(value)


@dataclass(frozen=True)
class SpecFunction:
    """A CustomOptimizerSpec's function of one row: ``(gradient, row, *slots, rate) -> row or (row, *slots)``."""

    function: Callable[..., Any]
    learning_rate: Any
    starts: tuple[tuple[str, float], ...]

    @property
    def slots(self) -> Mapping[str, float]:
        return dict(self.starts)

    def apply(self, rows: Any, slots: Mapping[str, Any], gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        """The function on every row, as [1, width]."""
        import jax
        import jax.numpy as jnp

        def one(*given: Any) -> tuple[Any, ...]:
            parts = [part[None] for part in given]
            result = self.function(*parts, jnp.full_like(parts[0], rate))
            several = tuple(result) if isinstance(result, list | tuple) else (result,)
            return tuple(part.reshape(given[0].shape) for part in several)

        new, *kept = jax.vmap(one)(gradient, rows, *(slots[name] for name in self.slots))
        return new, dict(zip(self.slots, kept))


def _own(spec: Any) -> SpecFunction:
    makers = spec.slot_variables_initializers()
    names = getattr(makers, "_fields", [f"slot_{k}" for k in range(len(makers))])
    starts = tuple((name, _start(make)) for name, make in zip(names, makers))
    return SpecFunction(spec.custom_computation_fn, _number(spec.learning_rate), starts)


def _start(initializer: Any) -> float:
    """The one value an initializer gives."""
    if not callable(initializer):
        return float(initializer)
    import jax
    import jax.numpy as jnp
    import numpy as np

    values = np.unique(np.asarray(initializer(jax.random.key(0), (8,), jnp.float32)))
    if values.size != 1:
        raise UnsupportedError("a slot that starts from different values", where="optimizer of a TableSpec")
    return float(values[0])


def peer_row_offset(spec: Any) -> tuple[str, int] | None:
    """(stack, first sample) of a FeatureSpec that jax-tpu-embedding has placed; None for any other feature."""
    placed = getattr(spec, "_id_transformation", None) or getattr(spec, "__dict__", {}).get("id_transformation")
    if placed is None:
        return None
    table = spec.table_spec
    setting = getattr(table, "_setting_in_stack", None)
    return getattr(setting, "stack_name", table.name), int(placed.row_offset)


def spec_batch_sizes(specs: Iterable[Any]) -> dict[str, int]:
    """Feature -> whole batch, as ``stack`` takes it: the first entry of every ``input_shape``."""
    return {spec.name: int(spec.input_shape[0]) for spec in flat_specs(specs)}


def spec_limits(specs: Iterable[Any], stacking: Any) -> dict[str, Limits]:
    """Stack -> limits that the specs carry: a lone table's own, a stacked one's where the stack is named alike.

    Single tables' limits say nothing of their stack, which is therefore left out.
    """
    limits: dict[str, Limits] = {}
    for spec in flat_specs(specs):
        table = spec.table_spec
        home = stacking.stacks[stacking.tables[table.name].stack]
        stacked = getattr(table, "_stacked_table_spec", None)
        source = table if len(home.tables) == 1 else stacked
        if source is not None and (source is table or source.stack_name == home.name):
            ids = int(source.max_ids_per_partition)  # specs default both to 256: lowering one leaves the other above
            limits[home.name] = Limits(ids, min(ids, int(source.max_unique_ids_per_partition)))
    return limits
