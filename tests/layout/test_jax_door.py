"""JAX's door: its formats as layouts and back, moves under jit; and arrays of other libraries by their strides."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout

from tilewright.errors import TilewrightError, UnsupportedError, UsageError
from tilewright.layout import from_array, from_cute, from_jax, from_strides, lanes, paged, parse, relayout
from tilewright.layout.exchange import inside_jit, jit_kernels

SMALLEST = -(2**63)


def test_what_jax_says_is_read():
    x = jnp.zeros((8, 128), jnp.bfloat16)
    plain = parse("bf16[8,128]{1,0}")
    struct = jax.ShapeDtypeStruct((8, 128), jnp.bfloat16)
    for told in (x, struct, x.aval, jax.typeof(x), "bfloat16[8,128]", plain):
        assert from_jax(told) == plain
    assert from_jax(x.format, (8, 128), "bf16") == plain
    assert str(from_jax(x.format)) == "f32[?,?]{1,0}"
    tiled = Layout((0, 1, 2), ((SMALLEST, 8, 128), (2, 1)))
    assert str(from_jax(tiled, (3, 9, 130), jnp.bfloat16)) == "bf16[3,9,130]{2,1,0:T(*,8,128)(2,1)}"
    assert str(from_jax(tiled)) == "bf16[?,?,?]{2,1,0:T(*,8,128)(2,1)}"
    assert str(from_jax(Layout((1, 0), ((8, 128),), 4), (9, 130), jnp.int4)) == "s4[9,130]{0,1:T(8,128)E(4)}"
    assert jax.jit(lambda x: from_jax(x).size_bytes * x)(jnp.int8(1)) == 1  # a traced value has a shape and a type


def test_layouts_go_to_jax_and_come_back():
    x = jnp.zeros((8, 128), jnp.float32)
    assert from_jax(x).to_jax() == x.format
    for text in ("bf16[9,300]{1,0:T(8,128)(2,1)}", "f32[3,9,130]{0,2,1:T(*,128)}", "s4[9,130]{1,0:T(8,128)E(4)}"):
        layout = parse(text)
        told = layout.to_jax()
        assert isinstance(told, Format)
        assert from_jax(told, layout.shape, layout.dtype) == layout
    assert parse("f32[8,128]{1,0}").to_jax(x.sharding).sharding is x.sharding
    for text in ("f32[8]{0:L(16)}", "f32[8]{0:S(1)}", "f32[8]{0:M(16)}", "f32[9]{0:SC(0:4)}", "f32[8]{0:D(C)}"):
        with pytest.raises(UnsupportedError, match="JAX's layouts have no"):
            parse(text).to_jax()


def test_a_format_is_for_jit():
    column_major = parse("f32[6,10]{0,1}").to_jax()
    x = jnp.arange(60, dtype=jnp.float32).reshape(6, 10)
    y = jax.jit(lambda x: x + 1, out_shardings=column_major)(x)
    assert from_jax(y) == parse("f32[6,10]{0,1}")
    assert np.array_equal(y, x + 1)
    assert from_jax(jax.device_put(x, column_major)).strides == (1, 6)


def test_what_says_nothing_is_refused():
    for other in (3, object(), None):
        with pytest.raises(UsageError, match="neither a shape nor a layout"):
            from_jax(other)
    with pytest.raises(UsageError, match="a layout of 2 dims"):
        from_jax(Layout((0, 1)), (3, 4, 5), "f32")
    with pytest.raises(UnsupportedError, match="random key"):
        from_jax(jax.random.key(0))
    with pytest.raises(UsageError, match="tells no strides"):
        from_array([1, 2])


TEXTS = (
    "f32[9,300]{1,0:T(8,128)}",
    "bf16[9,300]{1,0:T(8,128)(2,1)}",
    "s8[5,7,13]{0,2,1:T(8,128)(4,1)}",
    "f32[3,5,7]{2,1,0:T(*,4)L(64)}",  # a `*` that does not divide: XLA's operations
    "f8e8m0fnu[9,13]{1,0:T(8,128)(4,1)}",
    "s4[9,13]{1,0:T(2,4)E(4)}",
)


def whole(layout):
    return np.random.default_rng(1).integers(0, 7, layout.shape).astype(layout.numpy_dtype)


@pytest.mark.parametrize("text", TEXTS)
def test_packed_under_jit_by_kernels_and_by_xla_alike(text):
    layout = parse(text)
    array = whole(layout)
    packed = layout.pack(array)

    def both(array, packed):
        by_xla = inside_jit._narrowed(layout, inside_jit._linear(layout, array))
        back = inside_jit._unlinear(layout, inside_jit._widened(layout, packed))
        return layout.pack(array), by_xla, layout.unpack(packed), back

    ours, xla, unpacked, back = (np.asarray(value) for value in jax.jit(both)(array, packed))
    assert ours.tobytes() == xla.tobytes() == packed.tobytes()
    assert unpacked.tobytes() == back.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "layout",
    [
        lanes((2, 3, 4, 5), "f16", lanes=4, eu_bytes=64, start=2),
        paged((8, 9), "f32", page=(4, 4), line=(1, 4)),
        from_cute("((2,2),(4,2)):((1,16),(2,8))", "f32"),
        from_strides((3, 4), (12, 16), "f32"),
    ],
    ids=str,
)
def test_other_memories_under_jit(layout):
    array = whole(layout)
    packed = layout.pack(array)
    by_xla = jax.jit(lambda x, y: (inside_jit._linear(layout, x), inside_jit._unlinear(layout, y)))(array, packed)
    assert [np.asarray(value).tobytes() for value in by_xla] == [packed.tobytes(), array.tobytes()]
    assert np.asarray(jax.jit(layout.pack)(array)).tobytes() == packed.tobytes()


def test_moves_derivatives_and_batches_under_jit():
    a, b = parse("f32[6,30]{1,0:T(8,128)}"), parse("f32[30,6]{1,0:T(8,128)}")
    move = relayout(a, b, (1, 0))
    x = np.arange(180, dtype=np.float32).reshape(6, 30)

    def all_of(x):
        packed = a.pack(x)
        gradient = jax.grad(lambda x: (b.unpack(move.apply(a.pack(x))) ** 2).sum())(x)
        return move.apply(packed), gradient, jax.vmap(a.pack)(jnp.stack([x, 2 * x]))

    moved, gradient, batch = jax.jit(all_of)(x)
    assert np.array_equal(moved, move.apply(a.pack(x)))
    assert np.array_equal(gradient, 2 * x)
    assert np.array_equal(batch, np.stack([a.pack(x), a.pack(2 * x)]))


def test_under_jit_mistakes_are_told_in_our_words():
    layout = parse("f32[6,30]{1,0:T(8,128)}")
    x = jnp.zeros((6, 30))
    for mistake in (
        lambda x: layout.pack(x.T),
        lambda x: layout.pack(x.astype(jnp.int32)),
        lambda x: layout.pack(x, fill=1),
        lambda x: layout.unpack(x),
        lambda x: relayout(layout, parse("f32[6,30]")).apply(x),
        lambda x: layout.pack(x, out=np.zeros(1024, np.float32)),
    ):
        with pytest.raises(TilewrightError):
            jax.jit(mistake)(x)


def test_a_call_that_another_process_compiled_is_refused():
    words = jit_kernels.move_words(0, 0, 0, 1).view(np.int64) + np.array([0, 0, 8, 0, 0])
    result = jax.ShapeDtypeStruct((4,), jnp.float32)
    stale = jax.jit(lambda x: jax.ffi.ffi_call(jit_kernels.move_target(), result)(x, words.view(np.uint8)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="another process"):
        stale(jnp.zeros(4)).block_until_ready()


class Torch:
    """What a torch tensor tells."""

    shape, dtype = (3, 5), "torch.bfloat16"

    def stride(self):
        return 1, 3


class Capsule:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self):
        return self._array.__dlpack__()


def test_arrays_of_other_libraries_by_their_strides():
    assert from_array(Torch()) == parse("bf16[3,5]{0,1}")
    array = np.zeros((4, 6, 2), np.int16)
    for view in (array, array.T, array[:, ::2], array[1:, :, 0]):
        expected = from_strides(view.shape, view.strides, view.dtype)
        assert from_array(view) == from_array(Capsule(view)) == expected
    told = type("Cuda", (), {"__cuda_array_interface__": {"shape": (2, 3), "typestr": "<f4", "strides": None}})()
    assert from_array(told) == parse("f32[2,3]")
    assert from_array(jnp.zeros((2, 3))) == parse("f32[2,3]")
    assert from_array(Capsule(np.zeros(3, bool))) == parse("pred[3]")
