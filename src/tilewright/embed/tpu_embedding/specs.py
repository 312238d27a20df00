"""A stacking of ours as jax-tpu-embedding's specs, placed as it says: the other way round is ``as_feature``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tilewright.embed.model.optimizers import OPTIMIZERS, by_row, short_name
from tilewright.embed.model.specs import spec_names
from tilewright.embed.model.stacking import Stack, Stacking, TablePlacement
from tilewright.embed.model.tables import Limits, Table
from tilewright.errors import UnsupportedError, UsageError


def as_specs(
    stacking: Stacking, batch_sizes: Mapping[str, int], limits: Mapping[str, Limits] | None = None
) -> dict[str, Any]:
    """{feature: FeatureSpec}, ready for training: stacks, rotations and offsets are the stacking's.

    ``batch_sizes``: every feature's whole batch. ``limits``: those of stacks; the package's own (256) for others. So
    what was planned here runs there on the same buffers. An optimizer of your own becomes a custom one.

    Raises :class:`UsageError` where jax-tpu-embedding is not installed, :class:`UnsupportedError` for what it does not
    have: one slot per row, clipped rows (give it ``embedding_var_limits``), several hyper-parameters of your own.

    >>> specs = as_specs(stack(features, Topology(1, 4)), {"user": 4096})  # doctest: +SKIP
    >>> embedding.preprocess_sparse_dense_matmul_input(ids, None, specs, 1, 1, num_sc_per_device=4)  # doctest: +SKIP
    """
    try:
        peer: Any = import_module("jax_tpu_embedding.sparsecore.lib.nn.embedding_spec")
    except ImportError:
        how = "pip install jax-tpu-embedding (Python 3.12 or newer)"
        raise UsageError("jax-tpu-embedding is not installed", where="as_specs", how=how) from None
    made: dict[str, Any] = {}
    for name, stack in stacking.stacks.items():
        stacked = _stack_spec(peer, stack, batch_sizes, (limits or {}).get(name))
        tables = {table.name: _table_spec(peer, stacking.tables[table.name], stacked) for table in stack.tables}
        samples = 0
        for feature in stack.features:
            size, placement = batch_sizes[feature.name], stacking.tables[feature.table.name]
            made[feature.name] = peer.FeatureSpec(
                name=feature.name,
                table_spec=tables[feature.table.name],
                input_shape=[size, 1],
                output_shape=[size, feature.table.width],
                _id_transformation=peer.FeatureIdTransformation(
                    row_offset=samples, col_offset=placement.col_offset, col_shift=placement.rotation
                ),
            )
            samples += size
    return {feature.name: made[feature.name] for feature in stacking.features}


def _stack_spec(peer: Any, stack: Stack, batch_sizes: Mapping[str, int], limits: Limits | None) -> Any:
    return peer.StackedTableSpec(
        stack_name=stack.name,
        stack_vocab_size=stack.vocab,
        stack_embedding_dim=stack.padded_width,
        optimizer=_optimizer_spec(peer, stack.tables[0]),
        combiner=stack.tables[0].combiner,
        total_sample_count=sum(batch_sizes[feature.name] for feature in stack.features),
        quantization_config=_quantization(peer, stack.tables[0]),
        **({} if limits is None else vars(limits)),
    )


def _table_spec(peer: Any, placement: TablePlacement, stacked: Any) -> Any:
    table = placement.table
    return peer.TableSpec(
        name=table.name,
        vocabulary_size=table.vocab,
        embedding_dim=table.width,
        initializer=_initializer(table),
        optimizer=stacked.optimizer,
        combiner=table.combiner,
        max_ids_per_partition=stacked.max_ids_per_partition,
        max_unique_ids_per_partition=stacked.max_unique_ids_per_partition,
        quantization_config=stacked.quantization_config,
        _stacked_table_spec=stacked,
        _setting_in_stack=peer.TableSettingInStack(
            stack_name=placement.stack,
            padded_vocab_size=placement.padded_vocab,
            padded_embedding_dim=placement.padded_width,
            row_offset_in_shard=placement.row_offset,
            shard_rotation=placement.rotation,
        ),
    )


def _initializer(table: Table) -> Any:
    """The package asks for parts of a table, shard by shard: ``(key, shape) -> rows``."""
    import jax
    import jax.numpy as jnp

    if table.initializer is None:
        return jax.nn.initializers.truncated_normal(table.width**-0.5)  # as init draws it
    return lambda key, shape, dtype=jnp.float32: table.initializer(key, shape, dtype)


def _quantization(peer: Any, table: Table) -> Any:
    levels = table.quantization
    return levels and peer.QuantizationConfig(
        min_value=levels.low, max_value=levels.high, num_buckets=int(levels.num_buckets)
    )


def _optimizer_spec(peer: Any, table: Table) -> Any:
    optimizer, where = table.optimizer, f"optimizer of table {table.name!r}"
    if type(optimizer).__name__ == "Clipped":
        how = "give tpu_sparse_dense_matmul_grad its bounds as embedding_var_limits"
        raise UnsupportedError("clipped rows are no optimizer there", where=where, how=how)
    if by_row(optimizer):
        raise UnsupportedError("its slots are one number per row; there they are as wide as rows", where=where)
    name = short_name(optimizer)
    if name not in OPTIMIZERS:
        return _custom(peer, optimizer, where)
    kind = getattr(peer, f"{OPTIMIZERS[name].__name__}OptimizerSpec")
    names = spec_names(optimizer, inspect.signature(kind).parameters)
    return kind(**{other: getattr(optimizer, own) for own, other in names.items()})


def _custom(peer: Any, optimizer: Any, where: str) -> Any:
    import jax

    if hasattr(optimizer, "hyperparameters"):
        raise UnsupportedError("several hyper-parameters of your own", where=where, how="keep the learning rate alone")

    def of_row(gradient: Any, row: Any, *given: Any) -> Any:
        *slots, rate = given
        new, after = optimizer.apply(row, dict(zip(optimizer.slots, slots)), gradient, rate)
        return (new, *(after[slot] for slot in optimizer.slots))

    starts = tuple(jax.nn.initializers.constant(start) for start in optimizer.slots.values())
    return peer.CustomOptimizerSpec(
        learning_rate=optimizer.learning_rate,
        custom_computation_fn=of_row,
        slot_variable_initializers_tuple=starts,
        short_name_str=type(optimizer).__name__.lower(),
    )
