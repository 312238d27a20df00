"""The attributes of operations as plain values, read from MLIR and written back.

Each operation that rewrites may make has one entry in ``READERS`` and one in ``WRITERS``. What a reader returns is the
whole meaning of the operation beside its operands: two operations with equal attributes do the same. Attributes that no
reader knows come back as ``other``; such an operation counts as not plain and is left alone.

    ====================  ============================================================================================
    ``broadcast_in_dim``  ``dims``
    ``compare``           ``direction`` (``EQ NE GE GT LE LT``), ``kind`` (``FLOAT SIGNED UNSIGNED TOTALORDER`` or "")
    ``concatenate``       ``dim``
    ``convolution``       ``numbers`` (``("b01f", "01io", "b01f")``), ``strides``, ``padding`` ((low, high), ...),
                          ``lhs_dilation``, ``rhs_dilation``, ``reversal``, ``groups``, ``batch_groups``, ``precision``
    ``custom_call``       ``target``; kept whole otherwise
    ``dot_general``       ``lhs_batch``, ``rhs_batch``, ``lhs_contract``, ``rhs_contract``, ``precision``
    ``dynamic_slice``     ``sizes``
    ``gather``            ``offset_dims``, ``collapsed``, ``batch``, ``indices_batch``, ``index_map``, ``index_dim``,
                          ``sizes``, ``sorted``
    ``iota``              ``dim``
    ``pad``               ``low``, ``high``, ``interior``
    ``reduce``            ``dims``, and of its body ``monoid``, ``monoids`` or ``chooses``
    ``reduce_window``     ``window``, ``strides``, ``base_dilation``, ``window_dilation``, ``padding``, ``monoid``
    ``reverse``           ``dims``
    ``scatter``           ``window_dims``, ``inserted``, ``batch``, ``indices_batch``, ``index_map``, ``index_dim``, and
                          of its body ``monoid``; read only
    ``slice``             ``start``, ``limit``, ``strides``
    ``transpose``         ``permutation``
    ====================  ============================================================================================

``precision`` is a pair such as ``("HIGHEST", "HIGHEST")``, one for each operand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.hlo.ir import ir

Attributes = dict[str, Any]

# Reading.


def _integers(handle: Any, name: str) -> tuple[int, ...]:
    return tuple(ir.DenseI64ArrayAttr(handle.attributes[name]))


def _integers_or(handle: Any, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    return _integers(handle, name) if name in handle.attributes else default


def _integer(handle: Any, name: str) -> int:
    return int(ir.IntegerAttr(handle.attributes[name]).value)


def _pairs(handle: Any, rank: int) -> tuple[tuple[int, int], ...]:
    if "padding" not in handle.attributes:
        return ((0, 0),) * rank
    rows = np.array(ir.DenseIntElementsAttr(handle.attributes["padding"])).reshape(-1, 2).tolist()
    return tuple((int(low), int(high)) for low, high in rows)


_FIELD = re.compile(r"(\w+) = (?:\[([\d, ]*)\]|(\d+))")


@lru_cache(maxsize=4096)
def _fields(text: str) -> dict[str, tuple[int, ...]]:
    """``#stablehlo.dot<lhs_batching_dimensions = [0], ...>`` as lists by name; a number is a list of one."""
    return {
        name: tuple(int(word) for word in (listed or number).split(",") if word.strip())
        for name, listed, number in _FIELD.findall(text)
    }


_PRECISION = re.compile(r"DEFAULT|HIGHEST|HIGH")


def _precision(handle: Any) -> tuple[str, str]:
    if "precision_config" not in handle.attributes:
        return "DEFAULT", "DEFAULT"
    words = _PRECISION.findall(str(handle.attributes["precision_config"]))
    return (words[0], words[1]) if len(words) == 2 else ("DEFAULT", "DEFAULT")


def _dot(handle: Any) -> Attributes:
    named = _fields(str(handle.attributes["dot_dimension_numbers"]))
    return {
        "lhs_batch": named.get("lhs_batching_dimensions", ()),
        "rhs_batch": named.get("rhs_batching_dimensions", ()),
        "lhs_contract": named.get("lhs_contracting_dimensions", ()),
        "rhs_contract": named.get("rhs_contracting_dimensions", ()),
        "precision": _precision(handle),
    }


_CONVOLUTION = re.compile(r"<\[([^\]]*)\]x\[([^\]]*)\]->\[([^\]]*)\]>")


def _convolution(handle: Any) -> Attributes:
    match = _CONVOLUTION.search(str(handle.attributes["dimension_numbers"]))
    assert match is not None
    numbers = tuple(part.replace(", ", "") for part in match.groups())
    rank = len(numbers[0]) - 2
    ones = (1,) * rank
    reversal = (False,) * rank
    if "window_reversal" in handle.attributes:
        reversal = tuple(bool(value) for value in ir.DenseBoolArrayAttr(handle.attributes["window_reversal"]))
    return {
        "numbers": numbers,
        "strides": _integers_or(handle, "window_strides", ones),
        "padding": _pairs(handle, rank),
        "lhs_dilation": _integers_or(handle, "lhs_dilation", ones),
        "rhs_dilation": _integers_or(handle, "rhs_dilation", ones),
        "reversal": reversal,
        "groups": _integer(handle, "feature_group_count"),
        "batch_groups": _integer(handle, "batch_group_count"),
        "precision": _precision(handle),
    }


def _reduce_window(handle: Any) -> Attributes:
    window = _integers(handle, "window_dimensions")
    ones = (1,) * len(window)
    return {
        "window": window,
        "strides": _integers_or(handle, "window_strides", ones),
        "base_dilation": _integers_or(handle, "base_dilations", ones),
        "window_dilation": _integers_or(handle, "window_dilations", ones),
        "padding": _pairs(handle, len(window)),
    }


def _gather(handle: Any) -> Attributes:
    named = _fields(str(handle.attributes["dimension_numbers"]))
    marked_sorted = "indices_are_sorted" in handle.attributes and "true" in str(handle.attributes["indices_are_sorted"])
    return {
        "offset_dims": named.get("offset_dims", ()),
        "collapsed": named.get("collapsed_slice_dims", ()),
        "batch": named.get("operand_batching_dims", ()),
        "indices_batch": named.get("start_indices_batching_dims", ()),
        "index_map": named.get("start_index_map", ()),
        "index_dim": named.get("index_vector_dim", (0,))[0],
        "sizes": _integers(handle, "slice_sizes"),
        "sorted": marked_sorted,
    }


def _scatter(handle: Any) -> Attributes:
    named = _fields(str(handle.attributes["scatter_dimension_numbers"]))
    return {
        "window_dims": named.get("update_window_dims", ()),
        "inserted": named.get("inserted_window_dims", ()),
        "batch": named.get("input_batching_dims", ()),
        "indices_batch": named.get("scatter_indices_batching_dims", ()),
        "index_map": named.get("scatter_dims_to_operand_dims", ()),
        "index_dim": named.get("index_vector_dim", (0,))[0],
    }


_DIRECTION = re.compile(r"comparison_direction (\w+)")
_KIND = re.compile(r"comparison_type (\w+)")


def _compare(handle: Any) -> Attributes:
    match = _DIRECTION.search(str(handle.attributes["comparison_direction"]))
    kind = _KIND.search(str(handle.attributes["compare_type"])) if "compare_type" in handle.attributes else None
    assert match is not None
    return {"direction": match[1], "kind": kind[1] if kind else ""}


#: Name of an operation -> what reads its attributes, and the MLIR attributes that covers.
READERS: dict[str, tuple[Callable[[Any], Attributes], frozenset[str]]] = {
    "broadcast_in_dim": (
        lambda handle: {"dims": _integers(handle, "broadcast_dimensions")}, frozenset({"broadcast_dimensions"})
    ),
    "compare": (_compare, frozenset({"comparison_direction", "compare_type"})),
    "concatenate": (lambda handle: {"dim": _integer(handle, "dimension")}, frozenset({"dimension"})),
    "convolution": (
        _convolution,
        frozenset({
            "dimension_numbers", "window_strides", "padding", "lhs_dilation", "rhs_dilation", "window_reversal",
            "feature_group_count", "batch_group_count", "precision_config",
        }),
    ),
    "custom_call": (
        lambda handle: {"target": str(ir.StringAttr(handle.attributes["call_target_name"]).value), "other": "kept"},
        frozenset({"call_target_name"}),
    ),
    "dot_general": (_dot, frozenset({"dot_dimension_numbers", "precision_config"})),
    "dynamic_slice": (lambda handle: {"sizes": _integers(handle, "slice_sizes")}, frozenset({"slice_sizes"})),
    "gather": (_gather, frozenset({"dimension_numbers", "slice_sizes", "indices_are_sorted"})),
    "iota": (lambda handle: {"dim": _integer(handle, "iota_dimension")}, frozenset({"iota_dimension"})),
    "pad": (
        lambda handle: {
            "low": _integers(handle, "edge_padding_low"),
            "high": _integers(handle, "edge_padding_high"),
            "interior": _integers(handle, "interior_padding"),
        },
        frozenset({"edge_padding_low", "edge_padding_high", "interior_padding"}),
    ),
    "reduce": (lambda handle: {"dims": _integers(handle, "dimensions")}, frozenset({"dimensions"})),
    "reduce_window": (
        _reduce_window,
        frozenset({"window_dimensions", "window_strides", "base_dilations", "window_dilations", "padding"}),
    ),
    "reverse": (lambda handle: {"dims": _integers(handle, "dimensions")}, frozenset({"dimensions"})),
    "scatter": (_scatter, frozenset({"scatter_dimension_numbers", "indices_are_sorted", "unique_indices"})),
    "slice": (
        lambda handle: {
            "start": _integers(handle, "start_indices"),
            "limit": _integers(handle, "limit_indices"),
            "strides": _integers(handle, "strides"),
        },
        frozenset({"start_indices", "limit_indices", "strides"}),
    ),
    "transpose": (lambda handle: {"permutation": _integers(handle, "permutation")}, frozenset({"permutation"})),
}  # fmt: skip


def read_attributes(name: str, handle: Any) -> Attributes:
    """The attributes of an MLIR operation as plain values; {} for operations that have no entry."""
    entry = READERS.get(name)
    if entry is None:
        return {}
    reader, known = entry
    attributes = reader(handle)
    unknown = [f"{key} = {handle.attributes[key]}" for key in handle.attributes if key not in known and "." not in key]
    if unknown:
        attributes["other"] = "; ".join(unknown)
    return attributes


# Writing.


def _array(values: tuple[int, ...]) -> Any:
    return ir.DenseI64ArrayAttr.get(list(values))


def _i64(value: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _padding(pairs: tuple[tuple[int, int], ...]) -> Any:
    rows = ", ".join(f"[{low}, {high}]" for low, high in pairs)
    values = f"[{rows}]" if pairs else ""
    return ir.Attribute.parse(f"dense<{values}> : tensor<{len(pairs)}x2xi64>")


def _precisions(pair: tuple[str, str]) -> Any:
    return ir.Attribute.parse("[" + ", ".join(f"#stablehlo<precision {word}>" for word in pair) + "]")


def _dimension_list(name: str, values: tuple[int, ...]) -> str:
    return f"{name} = [{', '.join(map(str, values))}]"


def _written_dot(own: Attributes) -> Attributes:
    parts = [
        _dimension_list(name, own[key])
        for name, key in (
            ("lhs_batching_dimensions", "lhs_batch"),
            ("rhs_batching_dimensions", "rhs_batch"),
            ("lhs_contracting_dimensions", "lhs_contract"),
            ("rhs_contracting_dimensions", "rhs_contract"),
        )
        if own[key]
    ]
    return {
        "dot_dimension_numbers": ir.Attribute.parse(f"#stablehlo.dot<{', '.join(parts)}>"),
        "precision_config": _precisions(own["precision"]),
    }


def _written_convolution(own: Attributes) -> Attributes:
    lhs, rhs, out = (f"[{', '.join(part)}]" for part in own["numbers"])
    return {
        "dimension_numbers": ir.Attribute.parse(f"#stablehlo.conv<{lhs}x{rhs}->{out}>"),
        "window_strides": _array(own["strides"]),
        "padding": _padding(own["padding"]),
        "lhs_dilation": _array(own["lhs_dilation"]),
        "rhs_dilation": _array(own["rhs_dilation"]),
        "window_reversal": ir.DenseBoolArrayAttr.get(list(own["reversal"])),
        "feature_group_count": _i64(own["groups"]),
        "batch_group_count": _i64(own["batch_groups"]),
        "precision_config": _precisions(own["precision"]),
    }


def _written_reduce_window(own: Attributes) -> Attributes:
    return {
        "window_dimensions": _array(own["window"]),
        "window_strides": _array(own["strides"]),
        "base_dilations": _array(own["base_dilation"]),
        "window_dilations": _array(own["window_dilation"]),
        "padding": _padding(own["padding"]),
    }


def _written_gather(own: Attributes) -> Attributes:
    lists = (
        ("offset_dims", "offset_dims"),
        ("collapsed_slice_dims", "collapsed"),
        ("operand_batching_dims", "batch"),
        ("start_indices_batching_dims", "indices_batch"),
        ("start_index_map", "index_map"),
    )
    parts = [_dimension_list(name, own[key]) for name, key in lists if own[key]]
    parts.append(f"index_vector_dim = {own['index_dim']}")
    return {
        "dimension_numbers": ir.Attribute.parse(f"#stablehlo.gather<{', '.join(parts)}>"),
        "slice_sizes": _array(own["sizes"]),
        "indices_are_sorted": ir.BoolAttr.get(own["sorted"]),
    }


def _written_compare(own: Attributes) -> Attributes:
    named = {"comparison_direction": ir.Attribute.parse(f"#stablehlo<comparison_direction {own['direction']}>")}
    if own["kind"]:
        named["compare_type"] = ir.Attribute.parse(f"#stablehlo<comparison_type {own['kind']}>")
    return named


#: Name of an operation -> its plain attributes as MLIR's.
WRITERS: dict[str, Callable[[Attributes], Attributes]] = {
    "broadcast_in_dim": lambda own: {"broadcast_dimensions": _array(own["dims"])},
    "compare": _written_compare,
    "concatenate": lambda own: {"dimension": _i64(own["dim"])},
    "convolution": _written_convolution,
    "dot_general": _written_dot,
    "dynamic_slice": lambda own: {"slice_sizes": _array(own["sizes"])},
    "gather": _written_gather,
    "iota": lambda own: {"iota_dimension": _i64(own["dim"])},
    "pad": lambda own: {
        "edge_padding_low": _array(own["low"]),
        "edge_padding_high": _array(own["high"]),
        "interior_padding": _array(own["interior"]),
    },
    "reduce": lambda own: {"dimensions": _array(own["dims"])},
    "reduce_window": _written_reduce_window,
    "reverse": lambda own: {"dimensions": _array(own["dims"])},
    "slice": lambda own: {
        "start_indices": _array(own["start"]),
        "limit_indices": _array(own["limit"]),
        "strides": _array(own["strides"]),
    },
    "transpose": lambda own: {"permutation": _array(own["permutation"])},
}


def write_attributes(name: str, own: Attributes) -> Attributes:
    """MLIR attributes for the plain ``own`` of an operation; {} for operations that have no entry."""
    writer = WRITERS.get(name)
    return writer(own) if writer is not None and own else {}


# As HLO's text has them, for what asks no more of a program than a report does.


def _listed(values: Iterable[Any]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def _hlo_dot(own: Attributes) -> dict[str, str]:
    keys = [f"{side}_{which}" for which in ("batch", "contract") for side in ("lhs", "rhs")]
    return {key.replace("contract", "contracting") + "_dims": _listed(own[key]) for key in keys if own[key]}


def _hlo_constant(own: Attributes) -> dict[str, str]:
    element = own["literal"].element
    return {"literal": element} if element is not None and element.lstrip("-").isdecimal() else {}


def _hlo_slice(own: Attributes) -> dict[str, str]:
    dims = zip(own["start"], own["limit"], own["strides"])
    return {"slice": "{" + ", ".join(f"[{a}:{b}]" if step == 1 else f"[{a}:{b}:{step}]" for a, b, step in dims) + "}"}


#: Name of an operation -> its plain attributes as HLO's, the ones that a report reads.
HLO_ATTRIBUTES: dict[str, Callable[[Attributes], dict[str, str]]] = {
    "broadcast_in_dim": lambda own: {"dimensions": _listed(own["dims"])},
    "compare": lambda own: {"direction": own["direction"]},
    "concatenate": lambda own: {"dimensions": _listed([own["dim"]])},
    "constant": _hlo_constant,
    "convolution": lambda own: {"dim_labels": "{}_{}->{}".format(*own["numbers"])},
    "dot_general": _hlo_dot,
    "gather": lambda own: {"slice_sizes": _listed(own["sizes"])},
    "pad": lambda own: {
        "padding": "x".join("_".join(map(str, dim)) for dim in zip(own["low"], own["high"], own["interior"]))
    },
    "reduce": lambda own: {"dimensions": _listed(own["dims"])},
    "slice": _hlo_slice,
    "transpose": lambda own: {"dimensions": _listed(own["permutation"])},
}
