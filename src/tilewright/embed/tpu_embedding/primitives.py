"""jax-tpu-embedding's primitives on CPU and GPU: rules by which XLA compiles them there, on the package's own buffers.

What a primitive computes stands in ``compute.py``. A rule is asked when a program is lowered: there the mesh axes of a
``shard_map`` (or ``pmap``) around it are known, and over these ids and vectors are exchanged.

A custom optimizer is StableHLO for one row, run on many rows at once. Where every operation works element by element,
the module is read for more rows than one; any other, such as one that looks at a row's norm, is called row by row.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func as func_dialect
from jax.interpreters import mlir

from tilewright.embed.device.tpu import NAMES, stacked, unstacked
from tilewright.embed.model.optimizers import Clipped
from tilewright.embed.model.tables import Quantization, count
from tilewright.embed.tpu_embedding.compute import Asked, Buffers, Unfused, activations, layout_of, trained
from tilewright.errors import UnsupportedError, UsageError

# A custom optimizer of the package as an optimizer of ours.

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
        functions: Any = [op for op in module.body.operations if op.operation.name == "func.func"]
        named = ((op, op.operation.attributes) for op in functions)
        main: Any = next(op for op, a in named if "main" in str(a["sym_name"]) or a.get("sym_visibility") is None)
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


def _lowered(ctx: Any, *operands: Any, text: str, shape: tuple[int, ...], results: int) -> Any:
    home = ctx.module_context
    module = ir.Module.parse(text, context=home.context)
    name = mlir.merge_mlir_modules(home.module, "row_function", module, dst_symtab=home.symbol_table)
    kinds = [mlir.aval_to_ir_type(home, aval) for aval in ctx.avals_out]
    return tuple(func_dialect.CallOp(kinds, ir.FlatSymbolRefAttr.get(name), list(operands)).results)


_module_call.def_abstract_eval(
    lambda *operands, text, shape, results: [jax.core.ShapedArray(shape, jnp.float32)] * results
)  # type: ignore[no-untyped-call]
mlir.register_lowering(_module_call, _lowered)


# The primitives.

PLATFORMS = ("cpu", "cuda", "rocm")
_HOME = "jax_tpu_embedding.sparsecore"
_BUFFERS = 5
_PER_DEVICE = 4
_told = _PER_DEVICE
"""SparseCores of a device that has none, as :func:`install` was told."""
_asked = Asked(_PER_DEVICE, None)
"""What the package's last call was about; programs are lowered right after they are traced."""


def install(sparsecores_per_device: int = _PER_DEVICE) -> None:
    """Let jax-tpu-embedding run on CPU and GPU: all its primitives get rules for these platforms.

    ``sparsecores_per_device``: what the package is told where it asks a device that has none (a TPU v5p has 4, a v6e
    2); buffers, tables and activations are laid out for it. May be called again with another number. On TPUs nothing
    changes. A newer package's lookup without exchange, local_sparse_dense_matmul, is refused, with the reason.
    Raises :class:`UsageError` where the package is not installed.

    >>> from tilewright.embed import tpu_embedding  # doctest: +SKIP
    >>> tpu_embedding.install()  # doctest: +SKIP
    >>> embedding.tpu_sparse_dense_matmul(inputs, variables, specs, global_device_count=1)  # doctest: +SKIP
    """
    global _told, _asked
    told = count(sparsecores_per_device, "sparsecores_per_device", "install")
    try:
        import_module("jax_tpu_embedding")
    except ImportError:
        how = "pip install jax-tpu-embedding (Python 3.12 or newer)"
        raise UsageError("jax-tpu-embedding is not installed", where="tpu_embedding.install", how=how) from None
    _told, _asked = told, Asked(told, None)
    # What the package asks of a device and cannot know of one without SparseCores.
    utils = import_module(f"{_HOME}.utils.utils")
    utils.NUM_SC_PER_DEVICE_MAP["cpu"] = _told
    _wrap(utils, "num_sparsecores_per_device", _counted)
    _wrap(utils, "embedding_table_format_with_sharding", _formatted)
    embedding = import_module(f"{_HOME}.lib.nn.embedding")
    for name in _ABOUT_DEVICES:
        _wrap(embedding, name, _heard)
    primitives = import_module(f"{_HOME}.lib.core.primitives").__name__
    _register(f"{primitives}.sparse_dense_matmul_csr", _lookup)
    _register(f"{primitives}.sparse_dense_matmul_activation_unstack", _unstack)
    _register(f"{primitives}.sparse_dense_matmul_gradient_stack", _stack)
    for optimizer, name in NAMES.items():
        _register(f"{primitives}.sparse_dense_matmul_grad_with_{name}", _grad_with(optimizer))
    _register(f"{primitives}.sparse_dense_matmul_optimizer_grad", _custom_grad)
    for name in _NOT_HERE:
        with suppress(ImportError):  # a package that has it not
            _register(f"{primitives}.{name}", _refusal(name))


_NOT_HERE = "local_sparse_dense_matmul", "local_sparse_dense_matmul_csr"
"""Primitives of packages newer than 0.2.0 that have no rule here."""


def _refusal(name: str) -> Any:
    def refuse(ctx: Any, *operands: Any, **parameters: Any) -> Any:
        how = "look up with tpu_sparse_dense_matmul, which exchanges ids and rows by itself, or run it on a TPU"
        raise UnsupportedError(f"the primitive {name} has no rule for CPU and GPU", where="tpu_embedding", how=how)

    return refuse


_ABOUT_DEVICES = (
    *("tpu_sparse_dense_matmul", "tpu_sparse_dense_matmul_grad"),
    *("unstack_embedding_activations", "stack_embedding_gradients"),
)
"""Calls that say for which devices the package computes: its primitives are not told."""


def _register(module: str, rule: Any) -> None:
    primitive = getattr(import_module(module), f"tpu_{module.rsplit('.', 1)[1]}_primitive")
    for platform in PLATFORMS:
        mlir.register_lowering(primitive, rule, platform=platform)


# Rules. Each is a function of the lowering's context, so that it can ask for the mesh, which traces what to compute.


def _axes(ctx: Any) -> dict[str, int]:
    """Mesh axes over which the program around is split by hand, and their sizes; in the order of the mesh."""
    around = ctx.module_context.axis_context
    mesh: Any = getattr(around, "mesh", None)
    manual: Any = getattr(around, "manual_axes", ())
    return {} if mesh is None else {name: size for name, size in mesh.shape.items() if name in manual}


def _traced(ctx: Any, compute: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """``compute(*operands)`` as operations of the program, in the shapes that the primitive promised."""

    def shaped(*operands: Any) -> list[jax.Array]:
        results = compute(*operands)
        return [value.reshape(aval.shape) for value, aval in zip(results, ctx.avals_out, strict=True)]

    return mlir.lower_fun(shaped, multiple_results=True)(ctx, *operands)


def _known() -> tuple[int, ...]:
    """Numbers of SparseCores that devices have."""
    return _told, *import_module(f"{_HOME}.utils.utils").NUM_SC_PER_DEVICE_MAP.values()


def _lookup(
    ctx: Any,
    *operands: Any,
    device_batch_size: int,
    max_ids_per_partition: int,
    quantization_config: tuple[float, float, int] | None = None,
    enable_minibatching: bool = False,
    **_: Any,
) -> Any:
    given = Buffers(*ctx.avals_in[:_BUFFERS])
    layout = layout_of(given, max_ids_per_partition, _axes(ctx), enable_minibatching, _asked, _known())
    levels = None if quantization_config is None else Quantization(*quantization_config)

    def compute(*operands: Any) -> list[jax.Array]:
        table = _columns(operands[_BUFFERS])
        return [activations(Buffers(*operands[:_BUFFERS]), table, layout, device_batch_size, levels)]

    return _traced(ctx, compute, operands)


def _columns(values: jax.Array) -> jax.Array:
    """A table of width 1 may have one axis only."""
    return values.reshape(len(values), -1)


def _stepped(
    ctx: Any, operands: tuple[Any, ...], optimizer: Any, order: Callable[..., Any], most: int, minibatching: bool
) -> Any:
    """``order`` sorts what comes behind the buffers into (table and slots, gradient, hyper-parameters)."""
    given = Buffers(*ctx.avals_in[:_BUFFERS])
    layout = layout_of(given, most, _axes(ctx), minibatching, _asked, _known())

    def compute(*operands: Any) -> Any:
        kept, gradient, rates = order(operands[_BUFFERS:])
        kept, rates = tuple(map(_columns, kept)), tuple(rate.reshape(()) for rate in rates)
        rate, buffers = rates if len(rates) > 1 else rates[0], Buffers(*operands[:_BUFFERS])
        zero = jnp.minimum(buffers.row_pointers[0], 0)
        stepper = optimizer if isinstance(optimizer, RowFunction) else Unfused(optimizer, zero)
        return trained(buffers, kept, _columns(gradient), layout, stepper, rate)

    return _traced(ctx, compute, operands)


def _grad_with(kind: Callable[..., Any]) -> Any:
    def rule(
        ctx: Any,
        *operands: Any,
        max_ids_per_partition: int,
        enable_minibatching: bool = False,
        min_value: float | None = None,
        max_value: float | None = None,
        **others: Any,
    ) -> Any:
        optimizer = kind(**{name: others[name] for name in _OWN if name in others})
        if min_value is not None or max_value is not None:
            optimizer = Clipped(optimizer, min_value, max_value)
        arrays = 1 + len(optimizer.slots)

        def order(rest: tuple[Any, ...]) -> Any:
            return rest[:arrays], rest[arrays], rest[arrays + 1 :]

        return _stepped(ctx, operands, optimizer, order, max_ids_per_partition, enable_minibatching)

    return rule


def _custom_grad(
    ctx: Any,
    *operands: Any,
    num_hyperparameters: int,
    stablehlo: Any,
    max_ids_per_partition: int,
    enable_minibatching: bool = False,
    **_: Any,
) -> Any:
    arrays = len(operands) - _BUFFERS - 1 - num_hyperparameters
    optimizer = RowFunction(stablehlo, arrays - 1, ctx.module_context.context)

    def order(rest: tuple[Any, ...]) -> Any:
        return rest[1 + num_hyperparameters :], rest[0], rest[1 : 1 + num_hyperparameters]

    return _stepped(ctx, operands, optimizer, order, max_ids_per_partition, enable_minibatching)


def _unstack(
    ctx: Any, *operands: Any, per_feature_batch_sizes: tuple[int, ...], per_feature_dims: tuple[int, ...]
) -> Any:
    sources = _asked.sources
    return _traced(ctx, lambda x: unstacked(x, per_feature_batch_sizes, per_feature_dims, sources), operands)


def _stack(ctx: Any, *operands: Any, stacked_batch_size: int, stacked_feature_dim: int) -> Any:
    sources = _asked.sources
    return _traced(ctx, lambda *given: [stacked(given, stacked_batch_size, stacked_feature_dim, sources)], operands)


_OWN = ("multiply_linear_by_learning_rate",)


# What stands in the place of the package's own functions.


def _counted(original: Any) -> Any:
    def num_sparsecores_per_device(device: Any = None) -> int:
        kind = getattr(device or jax.devices()[0], "platform", "tpu")
        return _told if kind in ("cpu", "gpu", *PLATFORMS) else int(original(device))

    return num_sparsecores_per_device


def _formatted(original: Any) -> Any:
    def embedding_table_format_with_sharding(sharding: Any) -> Any:
        abstract = isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh)
        devices = None if abstract else getattr(sharding, "device_set", None)
        kind = next(iter(devices)).platform if devices else jax.default_backend()
        return original(sharding) if kind == "tpu" else sharding

    return embedding_table_format_with_sharding


def _heard(original: Any) -> Any:
    signature = inspect.signature(original)

    def asked(*args: Any, **keywords: Any) -> Any:
        global _asked
        given = signature.bind(*args, **keywords).arguments
        devices = given.get("global_device_count") or _asked.devices
        _asked = Asked(given.get("num_sc_per_device") or _told, devices)
        return original(*args, **keywords)

    return asked


def _wrap(module: Any, name: str, wrapper: Any) -> None:
    """Put ``wrapper(original)`` in the place of a function, once."""
    function = getattr(module, name)
    if not hasattr(function, "__wrapped__"):
        setattr(module, name, wraps(function)(wrapper(function)))
