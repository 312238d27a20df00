"""The programs of benchmarks/programs.py: a deep network written as StableHLO text, and normalisations in JAX."""

from __future__ import annotations

BATCH, FIELDS, WIDTH = 256, 27, 32
LAYER_OPERATIONS = 40


def deep_network(operations: int, alike: bool = True) -> str:
    """StableHLO text of about so many operations: a residual stream with a normalised, linear and tanh step per layer.

    Groups lie along the last dim; statistics are taken over fields and group, in every fourth layer over the group
    alone (a grouped layer normalisation, which is better left as it is). Every operation has its source line. Where
    layers are not ``alike`` each has an epsilon of its own.
    """
    layers = max(1, operations // LAYER_OPERATIONS)
    stream = _tensor(BATCH, FIELDS, WIDTH)
    lines = [line for k in range(layers) for line in _layer(k, stream, 0 if alike else k)]
    arguments = f"%x0: {stream}, %scale: {_tensor(WIDTH)}, %bias: {_tensor(WIDTH)}, %w: {_tensor(WIDTH, WIDTH)}"
    head = [f"module @deep {{\n  func.func public @main({arguments}) -> {stream} {{"]
    places = [f'#loc{n + 1} = loc("model.py":{n + 1}:4)' for n in range(len(lines))]
    return "\n".join([*head, *lines, f"    return %x{layers} : {stream}\n  }}\n}}", *places, ""])


def _tensor(*shape: int) -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}f32>"


def _layer(k: int, stream: str, step: int) -> list[str]:
    groups = (4, 8)[k % 2]
    alone = k % 4 == 3
    dims, kept = ([3], [0, 1, 2]) if alone else ([1, 3], [0, 2])
    split = _tensor(BATCH, FIELDS, groups, WIDTH // groups)
    small = _tensor(*([BATCH, FIELDS, groups] if alone else [BATCH, groups]))
    column = _tensor(BATCH, FIELDS if alone else 1, groups, 1)
    count = float(WIDTH // groups * (1 if alone else FIELDS))
    scalar = _tensor()

    def total(name: str, of: str) -> list[str]:
        return [
            f"%{name}z = stablehlo.constant dense<0.0> : {scalar}",
            f"%{name} = stablehlo.reduce(%{of} init: %{name}z) applies stablehlo.add across dimensions = {dims}"
            f" : ({split}, {scalar}) -> {small}",
        ]

    def mean(name: str, of: str) -> list[str]:
        return [
            *total(f"{name}s", of),
            f"%{name}c = stablehlo.broadcast_in_dim %{name}s, dims = {kept} : ({small}) -> {column}",
            f"%{name}k = stablehlo.constant dense<{count}> : {scalar}",
            f"%{name}n = stablehlo.broadcast_in_dim %{name}k, dims = [] : ({scalar}) -> {column}",
            f"%{name} = stablehlo.divide %{name}c, %{name}n : {column}",
            f"%{name}b = stablehlo.broadcast_in_dim %{name}, dims = [0, 1, 2, 3] : ({column}) -> {split}",
        ]

    def along(name: str, vector: str) -> list[str]:
        row = _tensor(1, 1, WIDTH)
        return [
            f"%{name}r = stablehlo.broadcast_in_dim %{vector}, dims = [2] : ({_tensor(WIDTH)}) -> {row}",
            f"%{name} = stablehlo.broadcast_in_dim %{name}r, dims = [0, 1, 2] : ({row}) -> {stream}",
        ]

    p = f"l{k}_"
    body = [
        f"%{p}y = stablehlo.reshape %x{k} : ({stream}) -> {split}",
        *mean(f"{p}m", f"{p}y"),
        f"%{p}c = stablehlo.subtract %{p}y, %{p}mb : {split}",
        *mean(f"{p}n", f"{p}y"),
        f"%{p}d = stablehlo.subtract %{p}y, %{p}nb : {split}",
        f"%{p}q = stablehlo.multiply %{p}d, %{p}d : {split}",
        *mean(f"{p}v", f"{p}q"),
        f"%{p}e = stablehlo.constant dense<{1e-5 * (1 + step):e}> : {scalar}",
        f"%{p}f = stablehlo.broadcast_in_dim %{p}e, dims = [] : ({scalar}) -> {split}",
        f"%{p}g = stablehlo.add %{p}vb, %{p}f : {split}",
        f"%{p}h = stablehlo.rsqrt %{p}g : {split}",
        f"%{p}i = stablehlo.multiply %{p}c, %{p}h : {split}",
        f"%{p}o = stablehlo.reshape %{p}i : ({split}) -> {stream}",
        *along(f"{p}a", "scale"),
        f"%{p}r = stablehlo.multiply %{p}o, %{p}a : {stream}",
        *along(f"{p}b", "bias"),
        f"%{p}s = stablehlo.add %{p}r, %{p}b : {stream}",
        f"%{p}w = stablehlo.dot_general %{p}s, %w, contracting_dims = [2] x [0]"
        f" : ({stream}, {_tensor(WIDTH, WIDTH)}) -> {stream}",
        f"%{p}t = stablehlo.tanh %{p}w : {stream}",
        f"%x{k + 1} = stablehlo.add %x{k}, %{p}t : {stream}",
    ]
    return [f"    {line} loc(#loc{LAYER_OPERATIONS * k + n + 1})" for n, line in enumerate(body)]


# -- in JAX ------------------------------------------------------------------------------------------------------------


def normalised(y, axes):
    import jax

    mean, var = y.mean(axes, keepdims=True), y.var(axes, keepdims=True)
    return (y - mean) * jax.lax.rsqrt(var + 1e-5)


def group_sum(x, groups=32):
    """[B, H, W, C] in groups along C, the order (G, C / G), summed over H, W and C / G."""
    return x.reshape(*x.shape[:3], groups, -1).sum((1, 2, 4))


def group_sum_minor(x, groups=32):
    """The patent's order (C / G, G): the groups lie along the innermost dim."""
    return x.reshape(*x.shape[:3], -1, groups).sum((1, 2, 3))


def group_norm(x, scale, bias, groups=32):
    y = x.reshape(*x.shape[:3], groups, -1)
    return normalised(y, (1, 2, 4)).reshape(x.shape) * scale + bias


def group_norm_minor(x, scale, bias, groups=32):
    """The patent's order (C / G, G)."""
    y = x.reshape(*x.shape[:3], -1, groups)
    return normalised(y, (1, 2, 3)).reshape(x.shape) * scale + bias


def field_norm(x, scale, bias, groups=4):
    """[B, F, D] in groups along D, statistics over the F fields and D / G."""
    y = x.reshape(*x.shape[:2], groups, -1)
    return normalised(y, (1, 3)).reshape(x.shape) * scale + bias


def grouped_layer_norm(x, scale, bias):
    y = x.reshape(*x.shape[:2], 16, -1)
    return normalised(y, -1).reshape(x.shape) * scale + bias


def ghost_batch_norm(x, scale, bias):
    y = x.reshape(-1, 8, *x.shape[1:])
    return normalised(y, (1, 2, 3)).reshape(x.shape) * scale + bias


def attention(x, w, v):
    """Heads are split off and merged again."""
    import jax

    q = (x @ w).reshape(*x.shape[:2], 16, -1).transpose(0, 2, 1, 3)
    p = jax.nn.softmax(q @ q.transpose(0, 1, 3, 2))
    return (p @ q).transpose(0, 2, 1, 3).reshape(x.shape) @ v


DECODER_OPERATIONS = 129


def decoder(operations: int) -> str:
    """StableHLO text of at least so many operations: a decoder's layers, unrolled, as JAX lowers them.

    Rows of 768 in bf16, 12 heads over 128 tokens, each layer with weights of its own.
    """
    import jax
    import jax.numpy as jnp

    def norm(x, scale, bias):
        return normalised(x.astype(jnp.float32), -1).astype(x.dtype) * scale + bias

    def heads(x):
        return x.reshape(1, 128, 12, 64).transpose(0, 2, 1, 3)

    def layer(x, layer):
        scales, biases, qkv, out, up, down = layer
        q, k, v = map(heads, jnp.split(norm(x, scales[0], biases[0]) @ qkv, 3, -1))
        seen = jnp.tril(jnp.ones((128, 128), bool))
        p = jax.nn.softmax(jnp.where(seen, q @ k.transpose(0, 1, 3, 2) / 8, -1e9))
        x = x + (p @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ out
        return x + jax.nn.gelu(norm(x, scales[1], biases[1]) @ up) @ down

    def model(layers, table, ids):
        x = table[ids]
        for each in layers:
            x = layer(x, each)
        return x @ table.T

    shapes = ((2, 768), (2, 768), (768, 2304), (768, 768), (768, 3072), (3072, 768))
    layers = [[jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]] * -(-operations // DECODER_OPERATIONS)
    table, ids = jax.ShapeDtypeStruct((50257, 768), jnp.bfloat16), jax.ShapeDtypeStruct((1, 128), jnp.int32)
    return jax.jit(model).lower(layers, table, ids).as_text()
