"""Flax models of flaxmodels."""

import flaxmodels as fm
import jax
from writing import Case, classes, normal, squares

PACKAGE = "flaxmodels"


def _resnet():
    model = fm.ResNet18(output="logits", pretrained=None)
    pictures = normal(4, 128, 128, 3)
    weights = jax.eval_shape(model.init, jax.random.PRNGKey(0), pictures)

    def forward(weights, pictures):
        return model.apply(weights, pictures, train=False)

    return Case(forward, weights, (pictures,), classes(forward))


def _stylegan():
    model = fm.stylegan2.Generator(resolution=64, z_dim=256, w_dim=256, fmap_base=8192, fmap_max=256)
    z = normal(4, 256)
    weights = jax.eval_shape(model.init, jax.random.PRNGKey(0), z)

    def forward(weights, z):
        return model.apply(weights, z, train=False, noise_mode="const", rng=jax.random.PRNGKey(1))

    return Case(forward, weights, (z,), squares(forward))


MODELS = {"resnet18": _resnet, "stylegan2": _stylegan}
