"""What the matcher's views see, however it was written."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from tilewright.hlo import from_jax
from tilewright.hlo.graphs.mlir import read_functions
from tilewright.hlo.ir import parse_module
from tilewright.hlo.rewrites.inline import Inline
from tilewright.hlo.rules.matching import repeat_of

X = jax.ShapeDtypeStruct((2, 6, 5), jnp.float32)


def seen(fn):
    """The repetition that ends in the result of a function of one array, as (source's sizes, dim, times, each)."""
    module = parse_module(from_jax(fn, X).text)
    Inline().apply_module(module)
    [body] = read_functions(module)
    repeat = repeat_of(body.operations[-1].operands[0])
    return repeat and (tuple(repeat.source.sizes), repeat.dim, repeat.times, repeat.each)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: jnp.repeat(x, 4, axis=1), ((2, 6, 5), 1, 4, True)),
        (lambda x: jnp.tile(x, (1, 1, 3)), ((2, 6, 5), 2, 3, False)),
        (lambda x: jnp.broadcast_to(x[:, :, None], (2, 6, 4, 5)).reshape(2, 24, 5), ((2, 6, 5), 1, 4, True)),
        (lambda x: jnp.tile(x[:, :, None, :], (1, 1, 4, 1)).reshape(2, 24, 5), ((2, 6, 5), 1, 4, True)),
        (lambda x: jnp.repeat(x[:, :, :1], 3, axis=2), ((2, 6, 1), 2, 3, True)),
        (lambda x: jnp.broadcast_to(x[:, :, None], (2, 6, 4, 5)).reshape(2, 6, 20), ((2, 6, 5), 2, 4, False)),
        (lambda x: jnp.broadcast_to(x.reshape(2, 3, 1, 2, 5), (2, 3, 4, 2, 5)).reshape(2, 24, 5), None),
        (lambda x: jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2), ((2, 12, 5), 2, 2, True)),
        (lambda x: x.reshape(2, 5, 6), None),
    ],
)
def test_a_repetition_however_it_was_written(fn, expected):
    assert seen(fn) == expected
