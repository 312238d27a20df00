"""Vision models of eqxvision: ports of torchvision's, one picture a call, batched by vmap."""

import equinox as eqx
import equinox.experimental
import jax
import jax.numpy as jnp
from writing import Case, classes, normal

PACKAGE = "eqxvision"


class _BatchNorm(eqx.Module):
    """Equinox's batch norm in training without its running averages, which that version keeps by calls to the host."""

    weight: jax.Array
    bias: jax.Array
    axis_name: str = eqx.static_field()
    eps: float = eqx.static_field()

    def __init__(self, input_size, axis_name, eps=1e-5, **_):
        self.weight, self.bias = jnp.ones((input_size,)), jnp.zeros((input_size,))
        self.axis_name, self.eps = axis_name, eps

    def __call__(self, x, *, key=None):
        rest = tuple(range(1, x.ndim))
        mean = jax.lax.pmean(x.mean(rest), self.axis_name)
        var = jax.lax.pmean(((x - mean[:, None, None]) ** 2).mean(rest), self.axis_name)
        scaled = (x - mean[:, None, None]) * jax.lax.rsqrt(var + self.eps)[:, None, None]
        return self.weight[:, None, None] * scaled + self.bias[:, None, None]


equinox.experimental.BatchNorm = _BatchNorm

import eqxvision.models as zoo  # noqa: E402 - the models take the class when they are imported
from eqxvision.models.classification.densenet import _densenet  # noqa: E402
from eqxvision.models.classification.shufflenetv2 import _shufflenetv2  # noqa: E402


def _images(make_model, size, batch=4):
    def make():
        model = eqx.tree_inference(make_model(jax.random.PRNGKey(0)), True)
        weights, rest = eqx.partition(model, eqx.is_inexact_array)

        def forward(weights, pictures):
            model = eqx.combine(weights, rest)
            keys = jax.random.split(jax.random.PRNGKey(1), batch)
            return jax.vmap(lambda x, key: model(x, key=key), axis_name="batch")(pictures, keys)

        return Case(forward, weights, (normal(batch, 3, size, size),), classes(forward))

    return make


def _swin(key):
    return zoo.SwinTransformer(
        patch_size=[4, 4], embed_dim=96, depths=[2, 2], num_heads=[3, 6], window_size=[7, 7], key=key
    )


MODELS = {
    "shufflenetv2": _images(lambda key: _shufflenetv2([2, 2, 2], [24, 116, 232, 464, 1024], key=key), 128),
    "densenet": _images(lambda key: _densenet(32, (2, 2, 2, 2), 64, key=key), 128),
    "swin": _images(_swin, 224),
    "regnet": _images(lambda key: zoo.regnet_y_400mf(key=key), 64),
    "googlenet": _images(lambda key: zoo.googlenet(key=key), 128),
    "squeezenet": _images(lambda key: zoo.squeezenet1_1(key=key), 128),
    "mobilenetv3": _images(lambda key: zoo.mobilenet_v3_small(key=key), 128),
}
