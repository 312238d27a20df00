"""Networks that ship with Haiku."""

import haiku as hk
import jax
from writing import Case, classes, normal, squares

PACKAGE = "dm-haiku"


def _network(make_network, inputs, loss):
    def make():
        network = hk.transform_with_state(lambda *inputs: make_network()(*inputs))
        weights, state = jax.eval_shape(network.init, jax.random.PRNGKey(0), *inputs)

        def forward(weights, state, *inputs):
            return network.apply(weights, state, None, *inputs)[0]

        return Case(forward, weights, (state, *inputs), loss(forward))

    return make


def _resnet():
    net = hk.nets.ResNet([1, 1, 1, 1], 1000, resnet_v2=True)
    return lambda pictures: net(pictures, is_training=True)


def _mobilenet():
    net = hk.nets.MobileNetV1((1, 2, 1, 2), (64, 128, 128, 256))
    return lambda pictures: net(pictures, is_training=True)


def _group_norm():
    """A residual stage with Haiku's group norm."""

    def call(x):
        x = hk.Conv2D(256, 3)(x)
        for _ in range(2):
            h = jax.nn.silu(hk.GroupNorm(32)(x))
            h = hk.Conv2D(256, 3)(h)
            h = jax.nn.silu(hk.GroupNorm(32)(h))
            x = x + hk.Conv2D(256, 3)(h)
        return x

    return call


def _quantised():
    """The vector-quantised autoencoder of Haiku's example."""

    def call(x):
        for width in (64, 128):
            x = jax.nn.relu(hk.Conv2D(width, 4, stride=2)(x))
        x = hk.Conv2D(64, 1)(hk.Conv2D(128, 3)(x))
        x = hk.nets.VectorQuantizer(64, 512, 0.25)(x, is_training=True)["quantize"]
        x = jax.nn.relu(hk.Conv2D(128, 3)(x))
        x = jax.nn.relu(hk.Conv2DTranspose(64, 4, stride=2)(x))
        return hk.Conv2DTranspose(3, 4, stride=2)(x)

    return call


MODELS = {
    "resnet": _network(_resnet, [normal(4, 128, 128, 3)], classes),
    "mobilenet": _network(_mobilenet, [normal(4, 128, 128, 3)], classes),
    "group_norm": _network(_group_norm, [normal(4, 32, 32, 128)], squares),
    "vqvae": _network(_quantised, [normal(8, 64, 64, 3)], squares),
}
