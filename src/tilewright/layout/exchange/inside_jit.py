"""Pack, unpack and relayout of values that JAX traces; a layout as JAX's ``Format``.

On CPU the kernels of `move` do it (see `jit_kernels.py`), elsewhere XLA's operations: the map's own steps as pad,
reshape and transpose, with which derivatives are taken on every platform.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.kernels.threads import thread_count
from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.index.steps import Merge, NewDim, Pad, Permute, Rotate, Split, Step, replaced
from tilewright.layout.index.types import TYPE_BITS, row_major_strides
from tilewright.layout.move.calls import NO_GAPS, MovePlan
from tilewright.layout.move.pack import buffer_spec, narrow, to_type
from tilewright.layout.move.plan import pack_plan, relayout_plan, unpack_plan
from tilewright.layout.text.notation import COMBINE, XLA_COMBINE, ArrayText

Value = Any
"""A traced array, or one of jax."""

_SMALL = 1 << 22  # bytes up to which one thread does it all
_MOST_LISTED = 1 << 22  # elements whose places a program may list


def pack_traced(layout: AddressMap, array: Value, out: Any = None, fill: Any = 0) -> Value:
    """Pack a value that JAX traces; padding is zero bytes. ``out`` and ``fill`` must be left at their defaults."""
    _check_plain(out, fill)
    layout.require_injective()
    _check(array, layout.shape, layout.numpy_dtype, f"an array for the layout {layout}")
    return _packing(layout)(array)


def unpack_traced(layout: AddressMap, buffer: Value, out: Any = None) -> Value:
    """Unpack a buffer that JAX traces; ``out`` must be None."""
    _check_plain(out, 0)
    length, dtype = buffer_spec(layout)
    _check(buffer, (length,), dtype, f"a packed buffer of the layout {layout}")
    return _unpacking(layout)(buffer)


def relayout_traced(a: AddressMap, b: AddressMap, order: tuple[int, ...], buffer: Value, out: Any = None) -> Value:
    """Move a buffer that JAX traces from layout ``a`` to ``b``; ``out`` must be None."""
    _check_plain(out, 0)
    if a.dtype != b.dtype:
        raise UsageError(f"a move from {a.dtype} to {b.dtype}", how="convert the array's type first")
    b.require_injective()
    length, dtype = buffer_spec(a)
    _check(buffer, (length,), dtype, f"a packed buffer of the layout {a}")
    return _moving(a, b, order)(buffer)


def _check_plain(out: Any, fill: Any) -> None:
    if out is not None:
        raise UsageError("out= has no meaning under jit", how="the result is a new value")
    if type(fill) is not int or fill:
        raise UnsupportedError("under jit padding is zero", how="leave fill= out")


def _check(value: Value, shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    if tuple(value.shape) == shape and value.dtype == dtype:
        return
    how = "64-bit types need jax_enable_x64" if dtype.itemsize == 8 and value.dtype != dtype else ""
    got = f"{value.dtype}{list(value.shape)}"
    raise UsageError(f"{what} is {dtype}{list(shape)}, got {got}", how=how)


@lru_cache(maxsize=1024)
def _packing(layout: AddressMap) -> Callable[[Value], Value]:
    def by_xla(x: Value) -> Value:
        return _narrowed(layout, _linear(layout, x))

    strides = row_major_strides(layout.shape, layout.numpy_dtype.itemsize)
    return _by_kernels_or_xla(
        by_xla, layout, lambda size, aligned: pack_plan(layout, strides, size, aligned), *_buffer_struct(layout)
    )


@lru_cache(maxsize=1024)
def _unpacking(layout: AddressMap) -> Callable[[Value], Value]:
    def by_xla(buffer: Value) -> Value:
        return _unlinear(layout, _widened(layout, buffer))

    def plan(size: int, aligned: bool) -> tuple[MovePlan, bool] | None:
        found = unpack_plan(layout, row_major_strides(layout.shape, size), size, aligned)
        return None if found is None else (found, False)

    return _by_kernels_or_xla(by_xla, layout, plan, layout.shape, layout.numpy_dtype)


@lru_cache(maxsize=1024)
def _moving(a: AddressMap, b: AddressMap, order: tuple[int, ...]) -> Callable[[Value], Value]:
    unpack, pack = _unpacking(a), _packing(b)

    def by_xla(buffer: Value) -> Value:
        x = _unlinear(a, _widened(a, buffer))
        return _narrowed(b, _linear(b, x.transpose(order).reshape(b.shape)))

    if a.element_bits < 8 or b.element_bits < 8:
        return lambda buffer: pack(unpack(buffer).transpose(order).reshape(b.shape))
    return _by_kernels_or_xla(
        by_xla, b, lambda size, aligned: relayout_plan(a, b, order, size, aligned), *_buffer_struct(b)
    )


def _buffer_struct(layout: AddressMap) -> tuple[tuple[int, ...], np.dtype[Any]]:
    length, dtype = buffer_spec(layout)
    return (length,), dtype


_Plan = Callable[[int, bool], "tuple[MovePlan, bool] | None"]
_alive: list[MovePlan] = []  # compiled programs hold the plans' addresses


def _by_kernels_or_xla(
    by_xla: Callable[[Value], Value], layout: AddressMap, plan: _Plan, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Callable[[Value], Value]:
    """Our kernels on CPU, XLA's operations elsewhere and for derivatives."""
    size = layout.numpy_dtype.itemsize
    narrow = layout.element_bits < 8 or (TYPE_BITS[layout.dtype] < 8 and layout.dtype != "pred")
    plans = [plan(size, aligned) for aligned in (True, False)] if layout.num_elements and not narrow else [None]
    if any(found is None for found in plans):
        return by_xla
    words = _words([found for found in plans if found is not None], math.prod(shape) * dtype.itemsize)
    result = jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]

    def by_kernels(x: Value) -> Value:
        from tilewright.layout.exchange.jit_kernels import move_target

        return jax.ffi.ffi_call(move_target(), result, vmap_method="sequential")(x, words)

    def run(x: Value) -> Value:
        return jax.lax.platform_dependent(x, cpu=by_kernels, default=by_xla)

    if layout.dtype[0] not in "fbc":
        return run
    with_derivative = jax.custom_jvp(run)
    with_derivative.defjvp(lambda primals, tangents: (with_derivative(*primals), by_xla(*tangents)))
    return with_derivative


def _words(plans: Sequence[tuple[MovePlan, bool]], size: int) -> np.ndarray[Any, Any]:
    """What a call of the kernels is told of the plans for a target on a cache line and off it."""
    from tilewright.layout.exchange.jit_kernels import move_words

    made = [replace(plan, pads=NO_GAPS) if whole and len(plan.pads) else plan for plan, whole in plans]
    _alive.extend(made)
    zeros = size if any(whole for _, whole in plans) else 0  # so much padding that the target is filled beforehand
    plan = made[0]
    threads = min(thread_count(), plan.parts) if plan.total > _SMALL else 1
    return move_words(made[0].header, made[1].header, zeros, threads)


def _padded(x: Value, dim: int, low: int, high: int) -> Value:
    """Zero bytes before and behind a dim."""
    if not low and not high:
        return x
    edges = [(0, 0, 0)] * x.ndim
    edges[dim] = (low, high, 0)
    zero = np.zeros(1, x.dtype)[0]  # np.zeros has zero bytes also of a type without 0
    return jax.lax.pad(x, zero, edges)


def _forward(step: Step, x: Value) -> Value:
    match step:
        case Permute(order):
            return x.transpose(order)
        case Merge(dim):
            return x.reshape(replaced(x.shape, dim, 2, (x.shape[dim] * x.shape[dim + 1],)))
        case Pad(dim, low, high):
            return _padded(x, dim, low, high)
        case Split(dim, tile):
            count = -(-x.shape[dim] // tile)
            return _padded(x, dim, 0, count * tile - x.shape[dim]).reshape(replaced(x.shape, dim, 1, (count, tile)))
        case Rotate(dim, by):
            return jnp.roll(x, by, dim)
        case NewDim(dim):
            return jnp.expand_dims(x, dim)
    raise UnsupportedError(f"a step {type(step).__name__} has no operation of XLA")


def _terms(layout: AddressMap) -> list[tuple[int, int, int]] | None:
    """(coordinate, size, slots apart), the farthest apart first; None where strides do not nest."""
    if layout.scrambles:
        return None
    sizes, weight, terms = layout.step_sizes[-1], 1, list[tuple[int, int, int]]()
    for axis in reversed(layout.axis_terms):
        terms += [(c, sizes[c], stride * weight) for c, stride in axis.terms if sizes[c] > 1]
        weight *= axis.extent
    terms.sort(key=lambda term: -term[2])
    length = 1
    for _, size, stride in reversed(terms):
        if stride < length:
            return None
        length = size * stride
    named = {c for c, _, _ in terms}
    return None if any(n > 1 and c not in named for c, n in enumerate(sizes)) else terms


def _linear(layout: AddressMap, x: Value) -> Value:
    """[slots]: the array's elements where the layout puts them, zeros in padding."""
    if not layout.num_elements:
        return jnp.zeros(layout.num_slots, x.dtype)
    terms = _terms(layout)
    if terms is None:
        return jnp.zeros(layout.num_slots, x.dtype).at[_slots(layout)].set(x.reshape(-1))
    for step in layout.steps:
        x = _forward(step, x)
    x = x.reshape([n for n in x.shape if n != 1]) if 1 in x.shape else x
    rank = {c: k for k, c in enumerate(sorted(c for c, _, _ in terms))}
    x = x.transpose([rank[c] for c, _, _ in terms])
    x = x.reshape((*x.shape, 1))
    for _, size, stride in reversed(terms):
        x = _padded(x, x.ndim - 1, 0, stride - x.shape[-1])
        x = x.reshape((*x.shape[:-2], size * stride))
    return _padded(x, 0, 0, layout.num_slots - x.shape[0])


def _unlinear(layout: AddressMap, slots: Value) -> Value:
    """The inverse of :func:`_linear`, which moves numbers and adds none up, so that its transpose undoes it."""
    if not layout.num_elements:
        return slots[:0].reshape(layout.shape)
    if _terms(layout) is None:
        return slots[_slots(layout)].reshape(layout.shape)
    numbers = slots.astype(jnp.uint8) if slots.dtype == bool else slots
    array = jax.ShapeDtypeStruct(layout.shape, numbers.dtype)  # type: ignore[no-untyped-call]
    x: Value = jax.linear_transpose(partial(_linear, layout), array)(numbers)[0]
    return x.astype(slots.dtype)


def _slots(layout: AddressMap) -> np.ndarray[Any, Any]:
    """The slot of every element, for maps whose strides interleave."""
    if layout.num_elements > _MOST_LISTED or layout.num_slots > 2**31 - 1:
        raise UnsupportedError(f"{layout} interleaves its strides and is too large to move under jit")
    return layout.slots_of(np.arange(layout.num_elements)).astype(np.int32)


def _narrowed(layout: AddressMap, slots: Value) -> Value:
    """Slots as they lie in memory: as they are, or several in a byte, low bits first."""
    bits = layout.element_bits
    if bits >= 8:
        return slots
    _check_bits(layout)
    if layout.dtype[0] in "su" or layout.dtype == "pred":
        raw = slots.astype(jnp.int8).view(jnp.uint8) if layout.dtype[0] == "s" else slots.astype(jnp.uint8)
    else:
        raw = jax.lax.bitcast_convert_type(slots, jnp.uint4).astype(jnp.uint8)
    return narrow(raw, bits, layout.size_bytes, jnp)


def _widened(layout: AddressMap, buffer: Value) -> Value:
    """The inverse of :func:`_narrowed`: one value per slot."""
    bits = layout.element_bits
    if bits >= 8:
        return buffer
    _check_bits(layout)
    parts = [(buffer >> at) & ((1 << bits) - 1) for at in range(0, 8, bits)]
    wide: Value = jnp.stack(parts, axis=-1).reshape(-1)[: layout.num_slots]
    if layout.dtype[0] in "su" or layout.dtype == "pred":
        return to_type(wide, layout.dtype, bits, layout.numpy_dtype)
    return jax.lax.bitcast_convert_type(wide.astype(jnp.uint4), layout.numpy_dtype)


def _check_bits(layout: AddressMap) -> None:
    if 8 % layout.element_bits:
        raise UnsupportedError(f"{layout} packs {layout.element_bits} bits to an element, which jit does not do here")


_HOST = 5


def to_jax(layout: AddressMap, text: ArrayText, sharding: Any = None) -> Any:
    """A layout and its text as ``jax.experimental.layout.Format``, for jit's ``in_shardings`` and ``device_put``.

    ``sharding`` says on which devices; by default it is the first one. S(5) becomes JAX's ``pinned_host``. Raises
    :class:`UnsupportedError` for what JAX's layouts have no word for: L, SC and M, other memory spaces, sparse arrays.
    """
    from jax.experimental.layout import Format, Layout

    strange = {
        "L(n)": text.tail_alignment != 1,
        "SC(..)": bool(text.splits),
        "M(n)": bool(text.metadata_prefix),
        "D(..)": bool(text.sparse_levels),
        f"S({text.memory_space})": text.memory_space not in (0, _HOST),
        f"E({text.element_bits})": text.element_bits >= 8,
    }
    if words := [word for word, there in strange.items() if there]:
        raise UnsupportedError(f"{layout}: JAX's layouts have no {words[0]}")
    tiling = tuple(tuple(XLA_COMBINE if t == COMBINE else t for t in tile) for tile in text.tiles)
    inside = Layout(tuple(reversed(text.minor_to_major)), tiling, text.element_bits)
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    if text.memory_space == _HOST:
        sharding = sharding.with_memory_kind("pinned_host")
    return Format(inside, sharding)


def named_sharding(sharding: Any, devices: Iterable[Any] | None) -> Any:
    """One of our shardings as JAX's ``NamedSharding``, on these devices (by default JAX's own, by their ids)."""
    spec = list[Any](sharding.spec)
    for dim in sharding.open:
        if spec[dim] is None:
            spec[dim] = jax.sharding.PartitionSpec.UNCONSTRAINED
    if devices is None:
        by_id = {device.id: device for device in jax.devices()}
        if missing := [number for number in sharding.mesh.ids if number not in by_id]:
            raise UsageError(f"JAX has no device {missing[0]} here", how="pass devices=, one per place of the mesh")
        devices = [by_id[number] for number in sharding.mesh.ids]
    grid = np.array(list(devices), object)
    if grid.size != sharding.mesh.size:
        raise UsageError(f"{grid.size} devices for a mesh of {sharding.mesh.size}")
    more = {"unreduced": {part.axis for part in sharding.unreduced}} if sharding.unreduced else {}
    mesh = jax.sharding.Mesh(grid.reshape(sharding.mesh.shape), sharding.mesh.names)
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec, **more))  # type: ignore[no-untyped-call]
