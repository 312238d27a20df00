"""Vision models of equimo (Equinox), one picture a call, batched by vmap."""

import equimo.models as zoo
import equinox as eqx
import jax
from writing import Case, classes, normal

PACKAGE = "equimo"


def _images(make_model, size, batch=4):
    def make():
        model = eqx.nn.inference_mode(eqx.filter_eval_shape(make_model, jax.random.PRNGKey(0)))
        weights, rest = eqx.partition(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

        def forward(weights, pictures):
            model = eqx.combine(weights, rest)
            return jax.vmap(lambda x: model(x, jax.random.PRNGKey(1), True))(pictures)

        return Case(forward, weights, (normal(batch, 3, size, size),), classes(forward))

    return make


_SMALL = {"in_channels": 3, "num_classes": 1000}
MODELS = {
    "vssd": _images(lambda key: zoo.Vssd(img_size=128, dim=64, depths=[1, 1, 1, 1], key=key, **_SMALL), 128),
    "mlla": _images(lambda key: zoo.Mlla(img_size=128, dim=96, depths=[1, 1, 1, 1], key=key, **_SMALL), 128),
    "reduceformer": _images(lambda key: zoo.reduceformer_backbone_b1(
        key=key, depths=[1, 1, 1, 1, 1], num_classes=1000), 128),
    "lowformer": _images(lambda key: zoo.lowformer_backbone_b0(attention_type="softmax",
        key=key, depths=[1, 1, 1, 1, 1], num_classes=1000), 128),
    "dinov2": _images(lambda key: zoo.VisionTransformer(
        img_size=224, dim=384, patch_size=14, num_heads=6, depths=[2], key=key, **_SMALL), 224),
}  # fmt: skip
