"""A custom optimizer of jax-tpu-embedding, StableHLO for one row, as an optimizer of ours: run on many rows at once.

Where every operation works element by element, the module is read for more rows than one; any other module, such as one
that looks at a row's norm, is called row by row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func as func_dialect
from jax.interpreters import mlir

from tilewright.errors import UnsupportedError

_BY_ELEMENT = re.compile(
    r"abs|add|and|atan2|cbrt|ceil|clamp|compare|constant|convert|cosine|count_leading_zeros|divide|"
    r"exponential|exponential_minus_one|floor|is_finite|log|log_plus_one|logistic|maximum|minimum|"
    r"multiply|negate|not|or|popcnt|power|reduce_precision|remainder|round_nearest_afz|round_nearest_even|"
    r"rsqrt|select|shift_left|shift_right_arithmetic|shift_right_logical|sign|sine|sqrt|subtract|tan|tanh|"
    r"xor"
)
_ALSO = {"builtin.module", "func.func", "func.return", "func.call"}


class RowFunction:
    """An optimizer as :func:`~tilewright.embed.device.step.step_rows` wants it, from the StableHLO of one row.

    The function takes the gradient, the row, its slots, and the hyper-parameters, each as wide as the row; it gives the
    new row and slots.
    """

    def __init__(self, text: str | bytes | Any, slots: int, context: Any) -> None:
        """Read ``text`` (or bytes, or a module) in MLIR's ``context``; ``slots`` are beside the table."""
        module = ir.Module.parse(text, context=context) if isinstance(text, str | bytes) else text
        self.text = str(module)
        main: Any = next(op for op in module.body.operations if op.operation.name == "func.func" and _is_main(op))
        self.parameters = [_shape(kind) for kind in main.type.inputs]
        self.row = self.parameters[1]
        self.by_element = all(_fits(op, self.row) for op in _walk(module.operation))
        self.slots: Mapping[str, float] = {f"slot_{k}": 0.0 for k in range(slots)}

    def apply(self, rows: Any, slots: Mapping[str, Any], gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        """New rows and slots [N, width]."""
        given, shape = (gradient, rows, *slots.values()), rows.shape
        rate = rate if isinstance(rate, tuple) else (rate,)
        if len(self.row) == 1:
            given = tuple(value[:, 0] for value in given)
        count = len(rows)
        if self.by_element:
            text = self.text.replace(_prefix(self.row), _prefix((count, *self.row[1:])))
            made = _call(text, self._operands(given, rate, count), (count, *self.row[1:]), len(given) - 1)
        else:

            def one(parts: tuple[Any, ...]) -> Any:
                operands = self._operands(tuple(part[None] for part in parts), rate, 1)
                return _call(self.text, operands, self.row, len(parts) - 1)

            made = jax.lax.map(one, given)
        new, *fresh = (value.reshape(shape) for value in made)
        return new, dict(zip(self.slots, fresh, strict=True))

    def _operands(self, given: tuple[Any, ...], rates: tuple[Any, ...], count: int) -> tuple[Any, ...]:
        wide = [
            jnp.broadcast_to(rate, (count, *shape[1:]) if shape else ())
            for rate, shape in zip(rates, self.parameters[len(given) :], strict=True)
        ]
        return (*given, *wide)


def _is_main(op: Any) -> bool:
    return "main" in str(op.operation.attributes["sym_name"]) or op.operation.attributes.get("sym_visibility") is None


def _shape(kind: Any) -> tuple[int, ...]:
    ranked = ir.RankedTensorType(kind)
    if str(ranked.element_type) != "f32":
        raise UnsupportedError(f"a parameter {kind}", where="a custom optimizer", how="all are float32")
    return tuple(ranked.shape)


def _prefix(shape: tuple[int, ...]) -> str:
    return "tensor<" + "".join(f"{length}x" for length in shape)


def _walk(op: Any) -> Any:
    yield op
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _walk(inner.operation)


def _fits(op: Any, row: tuple[int, ...]) -> bool:
    """Whether an operation means the same for more rows: element by element, on scalars and whole rows alone."""
    shapes = [re.findall(r"tensor<((?:\d+x)*)", str(value.type)) for value in (*op.operands, *op.results)]
    of_row = "".join(f"{length}x" for length in row)
    if not all(len(found) == 1 and found[0] in ("", of_row) for found in shapes):
        return False
    name = op.name.removeprefix("stablehlo.")
    if name == "constant":
        return bool(ir.DenseElementsAttr(op.attributes["value"]).is_splat)
    if name == "broadcast_in_dim":
        return shapes[0][0] == "" or shapes[0] == shapes[1]
    if name == "reshape":
        return shapes[0] == shapes[1]
    return bool(_BY_ELEMENT.fullmatch(name)) or name in _ALSO


# A call of a StableHLO module's main function, as a primitive: in a program, in a loop's body, on every platform.

_module_call = Primitive("tilewright_stablehlo_call")
_module_call.multiple_results = True


def _call(text: str, operands: tuple[Any, ...], shape: tuple[int, ...], results: int) -> Any:
    bind: Any = _module_call.bind
    return bind(*operands, text=text, shape=shape, results=results)


def _kinds(*operands: Any, text: str, shape: tuple[int, ...], results: int) -> Any:
    return [jax.core.ShapedArray(shape, jnp.float32)] * results


def _lowered(ctx: Any, *operands: Any, text: str, shape: tuple[int, ...], results: int) -> Any:
    home = ctx.module_context
    module = ir.Module.parse(text, context=home.context)
    name = mlir.merge_mlir_modules(home.module, "row_function", module, dst_symtab=home.symbol_table)
    kinds = [mlir.aval_to_ir_type(home, aval) for aval in ctx.avals_out]
    return tuple(func_dialect.CallOp(kinds, ir.FlatSymbolRefAttr.get(name), list(operands)).results)


_module_call.def_abstract_eval(_kinds)  # type: ignore[no-untyped-call]
mlir.register_lowering(_module_call, _lowered)
