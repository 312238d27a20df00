"""The attributes of operations as plain values, read from MLIR and written back.

``PARTS`` says for each operation that rewrites may make which plain attributes it has and how MLIR writes them. They
are the whole meaning of the operation beside its operands: two operations with equal attributes do the same. Attributes
that have no part come back as ``other``; such an operation counts as not plain and is left alone. A reduction has also
what its body does (``mlir.py``): ``monoid``, ``monoids`` or ``chooses``; so has a ``scatter``.

Dims and sizes are tuples of integers, ``padding`` is ((low, high), ...), ``precision`` a pair such as ``("HIGHEST",
"HIGHEST")``, one for each operand, ``numbers`` of a convolution ``("b01f", "01io", "b01f")``, ``direction`` of a
comparison one of ``EQ NE GE GT LE LT``, its ``kind`` ``FLOAT SIGNED UNSIGNED TOTALORDER`` or "".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.hlo.ir import ir

Attributes = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One attribute of MLIR, called ``mlir``, and the plain one ``key`` that it is; "" where it is several.

    ``read`` takes MLIR's and gives the plain value (the plain attributes, where it is several); ``write`` is its
    inverse, None for what need not be written. ``default``: of the attributes read before, where MLIR's is absent.
    """

    mlir: str
    key: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    default: Callable[[Attributes], Any] | None = None


def _integers(mlir: str, key: str, default: Callable[[Attributes], Any] | None = None) -> Part:
    return Part(
        mlir, key, lambda a: tuple(ir.DenseI64ArrayAttr(a)), lambda v: ir.DenseI64ArrayAttr.get(list(v)), default
    )


def _integer(mlir: str, key: str) -> Part:
    i64 = lambda value: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)  # noqa: E731
    return Part(mlir, key, lambda attribute: int(ir.IntegerAttr(attribute).value), i64)


def _word(mlir: str, key: str, tag: str, default: Callable[[Attributes], Any] | None = None) -> Part:
    """``#stablehlo<TAG WORD>``; a word may be missing."""

    def read(attribute: Any) -> str:
        match = re.search(rf"{tag} (\w+)", str(attribute))
        return match[1] if match else ""

    return Part(mlir, key, read, lambda v: ir.Attribute.parse(f"#stablehlo<{tag} {v}>") if v else None, default)


def _dimension_numbers(mlir: str, tag: str, lists: Mapping[str, str], index_dim: bool = False) -> Part:
    """``#stablehlo.TAG<lhs_batching_dimensions = [0], ...>``; ``lists``: plain attribute -> MLIR's name of its list."""

    def read(attribute: Any) -> Attributes:
        named = _fields(str(attribute))
        own: Attributes = {key: named.get(name, ()) for key, name in lists.items()}
        return own | ({"index_dim": named.get("index_vector_dim", (0,))[0]} if index_dim else {})

    def write(own: Attributes) -> Any:
        parts = [f"{name} = [{', '.join(map(str, own[key]))}]" for key, name in lists.items() if own[key]]
        parts += [f"index_vector_dim = {own['index_dim']}"] if index_dim else []
        return ir.Attribute.parse(f"#stablehlo.{tag}<{', '.join(parts)}>")

    return Part(mlir, "", read, write)


_FIELD = re.compile(r"(\w+) = (?:\[([\d, ]*)\]|(\d+))")


@lru_cache(maxsize=4096)
def _fields(text: str) -> dict[str, tuple[int, ...]]:
    """The lists in an attribute's text by name; a number is a list of one."""
    return {
        name: tuple(int(word) for word in (listed or number).split(",") if word.strip())
        for name, listed, number in _FIELD.findall(text)
    }


_CONVOLUTION = re.compile(r"<\[([^\]]*)\]x\[([^\]]*)\]->\[([^\]]*)\]>")


def _read_numbers(attribute: Any) -> tuple[str, ...]:
    match = _CONVOLUTION.search(str(attribute))
    assert match is not None
    return tuple(part.replace(", ", "") for part in match.groups())


def _write_numbers(numbers: tuple[str, ...]) -> Any:
    lhs, rhs, out = (f"[{', '.join(part)}]" for part in numbers)
    return ir.Attribute.parse(f"#stablehlo.conv<{lhs}x{rhs}->{out}>")


def _read_padding(attribute: Any) -> tuple[tuple[int, int], ...]:
    rows = np.array(ir.DenseIntElementsAttr(attribute)).reshape(-1, 2).tolist()
    return tuple((int(low), int(high)) for low, high in rows)


def _write_padding(pairs: tuple[tuple[int, int], ...]) -> Any:
    rows = ", ".join(f"[{low}, {high}]" for low, high in pairs)
    return ir.Attribute.parse(f"dense<{f'[{rows}]' if pairs else ''}> : tensor<{len(pairs)}x2xi64>")


_ANY_PRECISION = ("DEFAULT", "DEFAULT")


def _read_precision(attribute: Any) -> tuple[str, str]:
    words = re.findall(r"DEFAULT|HIGHEST|HIGH", str(attribute))
    return (words[0], words[1]) if len(words) == 2 else _ANY_PRECISION


def _write_precision(pair: tuple[str, str]) -> Any:
    return ir.Attribute.parse("[" + ", ".join(f"#stablehlo<precision {word}>" for word in pair) + "]")


def _read_flags(attribute: Any) -> tuple[bool, ...]:
    return tuple(bool(value) for value in ir.DenseBoolArrayAttr(attribute))


def _repeated(value: Any) -> Callable[[Attributes], Any]:
    """A default of one value for each dim of the window."""
    return lambda own: (value,) * (len(own["window"]) if "window" in own else len(own["numbers"][0]) - 2)


_PRECISION = Part("precision_config", "precision", _read_precision, _write_precision, lambda own: _ANY_PRECISION)
_PADDING = Part("padding", "padding", _read_padding, _write_padding, _repeated((0, 0)))
_REVERSAL = Part(
    "window_reversal", "reversal", _read_flags, lambda v: ir.DenseBoolArrayAttr.get(list(v)), _repeated(False)
)
_SORTED = Part(
    "indices_are_sorted", "sorted", lambda a: "true" in str(a), lambda v: ir.BoolAttr.get(v), lambda own: False
)
_DIMS = (_integers("dimensions", "dims"),)
_DOTTED = {"lhs_batch": "lhs_batching_dimensions", "rhs_batch": "rhs_batching_dimensions"}
_DOTTED |= {"lhs_contract": "lhs_contracting_dimensions", "rhs_contract": "rhs_contracting_dimensions"}
_GATHERED = {"offset_dims": "offset_dims", "collapsed": "collapsed_slice_dims", "batch": "operand_batching_dims"}
_GATHERED |= {"indices_batch": "start_indices_batching_dims", "index_map": "start_index_map"}
_SCATTERED = {"window_dims": "update_window_dims", "inserted": "inserted_window_dims", "batch": "input_batching_dims"}
_SCATTERED |= {"indices_batch": "scatter_indices_batching_dims", "index_map": "scatter_dims_to_operand_dims"}

#: Name of an operation -> its parts.
PARTS: dict[str, tuple[Part, ...]] = {
    "broadcast_in_dim": (_integers("broadcast_dimensions", "dims"),),
    "compare": (
        _word("comparison_direction", "direction", "comparison_direction"),
        _word("compare_type", "kind", "comparison_type", lambda own: ""),
    ),
    "concatenate": (_integer("dimension", "dim"),),
    "convolution": (
        Part("dimension_numbers", "numbers", _read_numbers, _write_numbers),
        _integers("window_strides", "strides", _repeated(1)),
        _PADDING,
        _integers("lhs_dilation", "lhs_dilation", _repeated(1)),
        _integers("rhs_dilation", "rhs_dilation", _repeated(1)),
        _REVERSAL,
        _integer("feature_group_count", "groups"),
        _integer("batch_group_count", "batch_groups"),
        _PRECISION,
    ),
    "custom_call": (
        Part("call_target_name", "target", lambda a: str(ir.StringAttr(a).value), lambda v: ir.StringAttr.get(v)),
    ),
    "dot_general": (_dimension_numbers("dot_dimension_numbers", "dot", _DOTTED), _PRECISION),
    "dynamic_slice": (_integers("slice_sizes", "sizes"),),
    "gather": (
        _dimension_numbers("dimension_numbers", "gather", _GATHERED, index_dim=True),
        _integers("slice_sizes", "sizes"),
        _SORTED,
    ),
    "iota": (_integer("iota_dimension", "dim"),),
    "pad": (
        _integers("edge_padding_low", "low"),
        _integers("edge_padding_high", "high"),
        _integers("interior_padding", "interior"),
    ),
    "reduce": _DIMS,
    "reduce_window": (
        _integers("window_dimensions", "window"),
        _integers("window_strides", "strides", _repeated(1)),
        _integers("base_dilations", "base_dilation", _repeated(1)),
        _integers("window_dilations", "window_dilation", _repeated(1)),
        _PADDING,
    ),
    "reverse": _DIMS,
    "scatter": (_dimension_numbers("scatter_dimension_numbers", "scatter", _SCATTERED, index_dim=True),),
    "slice": (
        _integers("start_indices", "start"),
        _integers("limit_indices", "limit"),
        _integers("strides", "strides"),
    ),
    "transpose": (_integers("permutation", "permutation"),),
}
#: What says nothing that a rewrite must keep.
_NO_MATTER = {"scatter": {"indices_are_sorted", "unique_indices"}}
_KNOWN = {name: {part.mlir for part in parts} | _NO_MATTER.get(name, set()) for name, parts in PARTS.items()}
#: Operations that are read, and never made.
_READ_ONLY = frozenset({"custom_call", "scatter"})
#: Operations that a rewrite may make of their plain attributes.
WRITTEN = frozenset(PARTS) - _READ_ONLY


def read_attributes(name: str, handle: Any) -> Attributes:
    """The attributes of an MLIR operation as plain values; {} for operations that have no parts."""
    if name not in PARTS:
        return {}
    own: Attributes = {"other": "kept"} if name == "custom_call" else {}
    held = handle.attributes
    for part in PARTS[name]:
        value = part.default(own) if part.default and part.mlir not in held else part.read(held[part.mlir])
        if part.key:
            own[part.key] = value
        else:
            own.update(value)
    others = [key for key in held if key not in _KNOWN[name] and "." not in key]
    return own | ({"other": "; ".join(f"{key} = {held[key]}" for key in others)} if others else {})


def write_attributes(name: str, own: Attributes) -> Attributes:
    """The plain attributes of an operation as MLIR's."""
    if name not in WRITTEN or not own:
        return {}
    written = {part.mlir: part.write(own[part.key] if part.key else own) for part in PARTS[name]}
    return {key: value for key, value in written.items() if value is not None}
