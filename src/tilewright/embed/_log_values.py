"""One column of a log as a feature's input: integers, lists and texts of Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.embed._log import Column
from tilewright.embed._tables import Feature
from tilewright.errors import UsageError

__all__ = ["check_one_way", "feature_input"]

SEPARATOR = "|"


def feature_input(table: Any, feature: Feature, column: Column, place: str) -> Any:
    """[rows, 1], (values, offsets) or (values, offsets, weights) of one feature, as ``preprocess`` takes it."""
    where = f"{place}, column {column.name!r}"
    ids = _whole(table[column.name])
    values, lengths = _parts(ids, column.ids, where)
    numbers = _ids(values, feature.table.vocab, column.ids, where)
    if not column.weights:
        return numbers.reshape(-1, 1) if lengths is None else (numbers, _offsets(lengths))
    lengths = np.ones(len(numbers), np.int64) if lengths is None else lengths
    return numbers, _offsets(lengths), _weights(_whole(table[column.weights]), lengths, place, column.weights)


def check_one_way(table: Any, features: Sequence[Feature], columns: Sequence[Column], where: str) -> None:
    """Refuse to guess two ways for one table: rows by number for one feature, hashed texts for another."""
    ways: dict[str, tuple[Feature, Column, str]] = {}
    for feature, column in zip(features, columns):
        way = _way(table.schema.field(column.name).type, column)
        other, its, first = ways.setdefault(feature.table.name, (feature, column, way))
        if way and first and way != first and "auto" in (its.ids, column.ids):
            direct, hashed = (other, feature) if first == "direct" else (feature, other)
            raise UsageError(
                f"ids of {direct.name!r} are rows of table {feature.table.name!r}, texts of {hashed.name!r} would be "
                "hashed into it: the same id would be two rows",
                where=where,
                how='give both features ids = "direct", or both ids = "hash"',
            )


def _way(kind: Any, column: Column) -> str:
    """``direct``, ``hash``, or "" where a column is empty."""
    from pyarrow import types

    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if column.ids != "auto" or types.is_null(kind):
        return "" if column.ids == "auto" else column.ids
    return "direct" if types.is_integer(kind) else "hash"


def _whole(chunked: Any) -> Any:
    array = chunked.combine_chunks()
    if hasattr(array, "num_chunks"):  # older versions keep it chunked
        array = array.chunk(0)
    return array.dictionary_decode() if str(array.type).startswith("dictionary") else array


def _parts(array: Any, ids: str, where: str) -> tuple[Any, NDArray[np.int64] | None]:
    """The ids of all samples one behind the other, and how many each has (None: one each)."""
    from pyarrow import compute, types

    kind = array.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = compute.list_value_length(array).fill_null(0)
        return array.flatten(), np.asarray(lengths, np.int64)
    if _is_text(kind) and ids == "direct":  # an empty cell is a sample without ids
        array = compute.if_else(compute.equal(array, ""), None, array)
    if _is_text(kind) and compute.any(compute.match_substring(array, SEPARATOR)).as_py():
        return _parts(compute.split_pattern(array, SEPARATOR), ids, where)
    hashed_text = ids != "direct" and (_is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind))
    if array.null_count and not hashed_text:  # a missing text is hashed like an empty one
        there = np.asarray(array.is_valid(), bool)
        return array.drop_null(), there.astype(np.int64)
    return array, None


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _ids(array: Any, vocab: int, ids: str, where: str) -> NDArray[Any]:
    """Flat ids."""
    from pyarrow import types

    kind = array.type
    if types.is_integer(kind) and not array.null_count:
        values = array.to_numpy(zero_copy_only=False)
        return values if ids != "hash" else _hashed_numbers(values, vocab)
    if types.is_integer(kind):
        raise UsageError("a list with a missing id in it", where=where, how="leave it out of the list")
    if types.is_null(kind):
        return np.zeros(0, np.int64)
    if _is_text(kind) and ids == "direct":
        return _numbers_of(array, where)
    if _is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return _hashed_texts(array, vocab)
    how = "ids are integers or texts, or lists of them"
    raise UsageError(f"values of type {kind}", where=where, how=how)


def _numbers_of(array: Any, where: str) -> NDArray[np.int64]:
    import pyarrow

    trimmed = pyarrow.compute.utf8_trim_whitespace(array)
    try:
        return np.asarray(trimmed.cast(pyarrow.int64()), np.int64)
    except pyarrow.ArrowInvalid as error:
        text = str(error).split("'")[1] if "'" in str(error) else str(error)
        how = 'hash such values: ids = "hash"'
        raise UsageError(f"{text[:40]!r} is not a whole number", where=where, how=how) from None


def _hashed_numbers(values: NDArray[Any], vocab: int) -> NDArray[np.int32]:
    from tilewright.embed._log_kernel import hash_numbers

    out = np.empty(len(values), np.int32)
    hash_numbers(values.astype(np.int64), vocab, out)
    return out


def _hashed_texts(array: Any, vocab: int) -> NDArray[np.int32]:
    """Over Arrow's own buffers; a missing text is the empty one, which is id 0."""
    import pyarrow

    from tilewright.embed._log_kernel import hash_texts

    filled = array.cast(pyarrow.large_binary()).fill_null(b"")
    _, offsets, data = filled.buffers()
    at = np.frombuffer(offsets, np.int64)[filled.offset : filled.offset + len(filled) + 1]
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    out = np.empty(len(filled), np.int32)
    hash_texts(raw, at, vocab, out)
    return out


def _weights(array: Any, lengths: NDArray[np.int64], place: str, name: str) -> NDArray[np.float32]:
    from pyarrow import types

    where = f"{place}, column {name!r}"
    flat, given = _parts(array, "direct", where)
    given = np.ones(len(flat), np.int64) if given is None else given
    if _is_text(flat.type):
        flat = _floats_of(flat, where)
    elif not (types.is_floating(flat.type) or types.is_integer(flat.type)):
        raise UsageError(f"weights of type {flat.type}", where=where, how="weights are numbers")
    wrong = np.flatnonzero(given != lengths) if len(given) == len(lengths) else np.zeros(1, np.int64)
    if wrong.size:
        k = int(wrong[0])
        raise UsageError(f"{given[k]} weights for {lengths[k]} ids in row {k + 1} of the batch", where=where)
    return np.asarray(flat.to_numpy(zero_copy_only=False), np.float32)


def _floats_of(array: Any, where: str) -> Any:
    import pyarrow

    try:
        return array.cast(pyarrow.float32())
    except pyarrow.ArrowInvalid as error:
        raise UsageError(f"weights that are not numbers: {error}", where=where) from None


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
