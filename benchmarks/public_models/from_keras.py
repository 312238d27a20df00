"""Models that ship with Keras, on its jax backend, trained with batch statistics."""

import keras
from from_keras_hub import stateless
from writing import cross_entropy, normal, tokens

PACKAGE = "keras"


def _pictures(make_model, size, batch=4):
    def make():
        def loss(forward):
            def entropy(weights, others, pictures):
                scores = forward(weights, others, pictures)
                labels = keras.ops.arange(batch)
                return keras.losses.sparse_categorical_crossentropy(labels, scores).mean()

            return entropy

        return stateless(make_model((size, size, 3)), normal(batch, size, size, 3), loss, training=True)

    return make


def _resnet(shape):
    from keras.src.applications.resnet import ResNet, stack_residual_blocks_v1

    def stack(x):
        x = stack_residual_blocks_v1(x, 64, 1, stride1=1, name="conv2")
        return stack_residual_blocks_v1(x, 128, 2, name="conv3")

    return ResNet(stack, False, True, weights=None, input_shape=shape, classes=1000)


def _densenet(shape):
    from keras.src.applications.densenet import DenseNet

    return DenseNet([2, 2, 2, 2], weights=None, input_shape=shape)


def _convnext(shape):
    from keras.src.applications.convnext import ConvNeXt

    return ConvNeXt([1, 1, 1, 1], [96, 192, 384, 768], weights=None, input_shape=shape)


def _unet():
    """The denoising UNet of Keras' own example of denoising diffusion: residual blocks, upsampling, skips."""
    layers = keras.layers

    def block(x, width):
        residual = x if x.shape[-1] == width else layers.Conv2D(width, 1)(x)
        x = layers.BatchNormalization(center=False, scale=False)(x)
        x = layers.Conv2D(width, 3, padding="same", activation="swish")(x)
        return layers.Add()([layers.Conv2D(width, 3, padding="same")(x), residual])

    picture = keras.Input((64, 64, 3))
    x, skips = layers.Conv2D(32, 1)(picture), []
    for width in (32, 64, 96):
        for _ in range(2):
            x = block(x, width)
            skips.append(x)
        x = layers.AveragePooling2D(2)(x)
    x = block(x, 128)
    for width in (96, 64, 32):
        x = layers.UpSampling2D(2, interpolation="bilinear")(x)
        for _ in range(2):
            x = block(layers.Concatenate()([x, skips.pop()]), width)
    return stateless(keras.Model(picture, layers.Conv2D(3, 1)(x)), normal(4, 64, 64, 3), training=True)


def _grouped_query():
    """Keras' own layers as a decoder: grouped-query attention, gated units."""
    layers = keras.layers
    ids = keras.Input((256,), dtype="int32")
    x = layers.Embedding(4096, 512)(ids)
    for _ in range(2):
        h = layers.RMSNormalization()(x)
        x = x + layers.GroupQueryAttention(64, 8, 2)(h, h, use_causal_mask=True)
        h = layers.RMSNormalization()(x)
        h = layers.Dense(1024, activation="silu")(h) * layers.Dense(1024)(h)
        x = x + layers.Dense(512)(h)
    model = keras.Model(ids, layers.Dense(4096)(x))

    def loss(forward):
        return lambda weights, others, ids: cross_entropy(forward(weights, others, ids)[:, :-1], ids[:, 1:])

    return stateless(model, tokens(2, 256, 4096), loss)


MODELS = {
    "resnet": _pictures(_resnet, 160),
    "densenet": _pictures(_densenet, 128),
    "convnext": _pictures(_convnext, 128),
    "mobilenetv3": _pictures(lambda shape: keras.applications.MobileNetV3Small(shape, weights=None), 128),
    "unet": _unet,
    "gqa_decoder": _grouped_query,
}
