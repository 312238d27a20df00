"""Sizes in closed form: the guide's HBM stack, padded tables, and the buffers a batch travels in."""

from __future__ import annotations

from typing import Any, TypeVar

Number = TypeVar("Number")

BUCKETS = 64
"""Hash buckets of the vocabulary. A mini-batch is a run of them, and every buffer in the mini-batch layout is as many
times as long as in the plain one."""


def round8(value: Number) -> Number:
    """The next multiple of 8, a 32-byte line: of an int, or of every element of an integer array of numpy or jax."""
    whole: Any = value
    rounded: Number = (whole + 7) // 8 * 8
    return rounded


def forward_stack_bytes(width: int, unique_per_partition: int, replicas: int) -> int:
    """The guide's HBM stack of one table's lookup: (2 * width + 1) * max_unique_nz_per_row * replicas * 4.

    >>> forward_stack_bytes(8, 256, 4)
    69632
    """
    return (2 * width + 1) * unique_per_partition * replicas * 4


def backward_stack_bytes(width: int, unique_per_partition: int, replicas: int) -> int:
    """The guide's HBM stack of one table's update: 3 * width * max_unique_nz_per_row * replicas * 4.

    >>> backward_stack_bytes(8, 256, 4)
    98304
    """
    return 3 * width * unique_per_partition * replicas * 4


def padded_table_bytes(vocab: int, width: int, shards: int) -> int:
    """Float32 bytes of a table in HBM: width padded to 8 floats, vocabulary to 8 rows on every shard.

    >>> padded_table_bytes(100, 1, 4)  # 128 rows of 8 floats
    4096
    """
    return -(-vocab // (8 * shards)) * 8 * shards * round8(width) * 4


def packed_table_bytes(vocab: int, width: int, shards: int) -> int:
    """Float32 bytes of a table whose rows share 32-byte lines where several fit: 8 // width rows a line.

    >>> packed_table_bytes(1000, 1, 4), padded_table_bytes(1000, 1, 4)
    (4096, 32768)
    """
    rows = max(1, 8 // width)
    return padded_table_bytes(-(-vocab // rows), width, shards)


def slots_per_device(max_ids: int, shards: int, shards_per_device: int, minibatching: bool = False) -> int:
    """Entries of the id, sample and gain buffers of one device.

    >>> slots_per_device(9, shards=16, shards_per_device=4)
    1024
    """
    return round8(max_ids) * shards_per_device * shards * (BUCKETS if minibatching else 1)


def pointers_per_segment(shards: int) -> int:
    """Row pointers of one source SparseCore and mini-batch: one for each shard, at least 8."""
    return max(shards, 8)


def pointers_per_device(shards: int, shards_per_device: int, minibatching: bool = False) -> int:
    """Row pointers of one device.

    >>> pointers_per_device(shards=2, shards_per_device=2)
    16
    """
    return pointers_per_segment(shards) * shards_per_device * (BUCKETS if minibatching else 1)


def gather_operand_floats(samples: int, width: int, tiles: int) -> int:
    """Floats that one tile holds of a gather's operand: samples * width / tiles, rounded up."""
    return -(-samples * width // tiles)
