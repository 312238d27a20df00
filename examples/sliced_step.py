"""A training step for a slice: two residual blocks with momentum; and two functions that gather what they need not.

    tilewright shard examples/sliced_step.py:step --target tpu-v5e --mesh data=4,model=2 --search

`twice` is the program of github.com/jax-ml/jax/issues/21562 and openxla/xla/issues/15207, `turned` has the shardings of
the message in jax-ml/jax/issues/18591. None of them runs here: they are lowered over a mesh that nobody has.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

LAYERS, WIDTH, HIDDEN, BATCH = 2, 2048, 8192, 16384


def loss(params, x, y):
    """Mean square of what the blocks make of x, against y."""
    for layer in params:
        hidden = jax.nn.gelu(x @ layer["up"].astype(x.dtype))
        x = x + hidden @ layer["down"].astype(x.dtype)
    return ((x - y).astype(jnp.float32) ** 2).mean()


def momentum_step(params, state, x, y):
    """Parameters and momentum after one step."""
    grads = jax.grad(loss)(params, x, y)
    state = jax.tree.map(lambda old, grad: 0.9 * old + grad, state, grads)
    return jax.tree.map(lambda weight, move: weight - 1e-3 * move, params, state), state


step = jax.jit(momentum_step, donate_argnums=(0, 1))


def twice(a, b, c):
    """The sum of three arrays that lie in two ways."""
    d = a + b
    d = jax.lax.with_sharding_constraint(d, P(None, ("x", "y"), None))
    return c + d


def turned(x):
    """Rows of 256 devices to columns of 64."""
    y = jnp.tanh(x)
    return 2 * jax.lax.with_sharding_constraint(y, P(None, "x"))


def arguments():
    """Shapes of parameters, momentum, inputs and what they shall become."""
    block = {"up": jax.ShapeDtypeStruct((WIDTH, HIDDEN), jnp.float32)}
    block |= {"down": jax.ShapeDtypeStruct((HIDDEN, WIDTH), jnp.float32)}
    rows = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.bfloat16)
    return [block] * LAYERS, [block] * LAYERS, rows, rows


EXAMPLES = {
    "step": arguments,
    "twice": (jax.ShapeDtypeStruct((512, 512, 512), jnp.float32),) * 3,
    "turned": (jax.ShapeDtypeStruct((8192, 8192), jnp.float32),),
}
