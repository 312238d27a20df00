"""Vision transformers of jimm (Flax NNX)."""

import jimm.models as zoo
from flax import nnx
from writing import Case, normal, squares

PACKAGE = "jax-image-models"
nnx.use_eager_sharding(False)  # one device, no mesh


def _images(make_model, size, batch=4):
    def make():
        graph, weights = nnx.split(make_model())

        def forward(weights, pictures):
            return nnx.merge(graph, weights)(pictures)

        return Case(forward, weights, (normal(batch, size, size, 3),), squares(forward))

    return make


MODELS = {
    "dinov3": _images(lambda: zoo.DINOv3Model(num_layers=2, rngs=nnx.Rngs(0)), 224),
    "vit": _images(lambda: zoo.VisionTransformer(
        num_layers=2, hidden_size=384, num_heads=6, mlp_dim=1536, rngs=nnx.Rngs(0), dropout_rate=0.0), 224),
}  # fmt: skip
