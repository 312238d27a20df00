r"""A recommender in plain JAX: DLRM with a group normalisation of its feature vectors.

    13 numeric     -> bottom MLP       -> 1 vector   \
                                                      > [B, 27, D] -> group norm -> pairwise dots -> top MLP -> click?
    26 categorical -> embedding tables -> 26 vectors /

The tables live on the sparse cores; everything else is one pure function of the looked-up vectors. `tilewright run`
reads the four names below from this file; nothing in it knows of Tilewright but `features`, which says what the tables
are.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tilewright.embed import CRITEO_CARDINALITIES, Adagrad, Feature, Table, scale_vocabs

WIDTH = 32
GROUPS = 4
BOTTOM = (13, 256, 128, WIDTH)
FIELDS = 27
PAIRS = FIELDS * (FIELDS - 1) // 2
TOP = (PAIRS + WIDTH, 512, 256, 1)


def features(scale):
    """One table per categorical column, Criteo's published sizes times ``scale``."""
    optimizer = Adagrad(learning_rate=0.05)
    sizes = scale_vocabs(CRITEO_CARDINALITIES["kaggle"], scale)
    return [Feature(f"C{i}", Table(f"table_{i}", n, WIDTH, optimizer=optimizer)) for i, n in enumerate(sizes, 1)]


def optimizer():
    """How the dense parameters learn."""
    return optax.adam(1e-3)


def init(key):
    """Dense parameters: two MLPs and the normalisation's gain and bias."""
    bottom, top = jax.random.split(key)
    return {
        "bottom": init_mlp(bottom, BOTTOM),
        "top": init_mlp(top, TOP),
        "gain": jnp.ones(WIDTH),
        "bias": jnp.zeros(WIDTH),
    }


def init_mlp(key, sizes):
    layers = []
    for fan_in, fan_out in pairwise(sizes):
        key, here = jax.random.split(key)
        scale = jnp.sqrt(2 / fan_in)
        layers.append({"w": scale * jax.random.normal(here, (fan_in, fan_out)), "b": jnp.zeros(fan_out)})
    return layers


def mlp(layers, x):
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def group_norm(x, gain, bias):
    """x[B, fields, D] in groups along D; the statistics run over the fields and the D / groups of a group."""
    batch, fields, width = x.shape
    grouped = x.reshape(batch, fields, GROUPS, width // GROUPS)
    mean = grouped.mean(axis=(1, 3), keepdims=True)
    centred = grouped - mean
    variance = (centred * centred).mean(axis=(1, 3), keepdims=True)
    return (centred * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape) * gain + bias


def loss(params, numeric, vectors, labels):
    """numeric f32[B, 13], vectors {feature: f32[B, D]}, labels f32[B] -> (mean cross-entropy, logits f32[B])."""
    bottom = mlp(params["bottom"], numeric)
    stacked = jnp.stack([bottom, *(vectors[f"C{i}"] for i in range(1, FIELDS))], axis=1)
    normal = group_norm(stacked, params["gain"], params["bias"])
    dots = jnp.einsum("bid,bjd->bij", normal, normal)
    rows, columns = np.tril_indices(FIELDS, -1)
    logits = mlp(params["top"], jnp.concatenate([bottom, dots[:, rows, columns]], axis=1))[:, 0]
    return optax.sigmoid_binary_cross_entropy(logits, labels).mean(), logits


def step(params, numeric, vectors, labels):
    """The dense step: loss, logits, and the gradients of parameters and vectors (`isa compile` takes this one)."""
    return jax.value_and_grad(loss, argnums=(0, 2), has_aux=True)(params, numeric, vectors, labels)


def step_example_args(batch=256):
    """Parameters, and a batch at random."""
    rng = np.random.default_rng(0)
    vectors = {f"C{i}": rng.normal(0, 0.3, (batch, WIDTH)).astype(np.float32) for i in range(1, FIELDS)}
    numeric, labels = rng.normal(size=(batch, 13)).astype(np.float32), rng.random(batch) < 0.3
    return init(jax.random.key(0)), numeric, vectors, labels.astype(np.float32)
