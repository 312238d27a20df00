"""Makes embed_peer_checkpoints.zip where jax-tpu-embedding 0.2.0 and flax are installed (Python 3.12).

python tests/data/make_embed_peer_checkpoints.py

Three small tables with random rows and accumulators on two devices of two SparseCores, saved by the peer's own
function as a flax nnx model (``nnx``), and as the pytree a linen model keeps them in (``linen``); ``logical.npz`` has
the tables as the peer's own code reads them out of these stacks.
"""

import os
import shutil
import tempfile
import zipfile
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax_tpu_embedding.sparsecore.lib.flax.nnx import checkpoint_utils, embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding, embedding_spec, table_stacking
from jax_tpu_embedding.sparsecore.utils import utils

DEVICES, SPARSECORES = 2, 2
TABLES = (("country", 18, 6), ("language", 30, 6), ("movie", 42, 9))  # even: its reader wants that of two devices


def feature_specs():
    optimizer = embedding_spec.AdagradOptimizerSpec(learning_rate=0.1)
    specs = []
    for name, vocab, width in TABLES:
        table = embedding_spec.TableSpec(
            name=name,
            vocabulary_size=vocab,
            embedding_dim=width,
            initializer=jax.nn.initializers.uniform(),
            optimizer=optimizer,
            combiner="sum",
        )
        shapes = {"input_shape": (64, 2), "output_shape": (64, width)}
        specs.append(embedding_spec.FeatureSpec(name=f"f_{name}", table_spec=table, **shapes))
    sizes = {"global_device_count": DEVICES, "num_sc_per_device": SPARSECORES}
    table_stacking.auto_stack_tables(specs, **sizes)
    embedding.prepare_feature_specs_for_training(specs, **sizes)
    return specs


class Model(nnx.Module):
    def __init__(self, specs):
        mesh = jax.sharding.Mesh(jax.devices(), "x")
        self.embedding_layer = embed.SparseCoreEmbed(specs, "x", mesh, nnx.Rngs(0))
        self.dense = nnx.Linear(4, 2, rngs=nnx.Rngs(0))


def logical(variables, specs):
    """{"table/rows", "table/slot": values}, by the peer's own reader, which wants all stacks at once."""
    proto = embedding.create_proto_from_feature_specs(
        specs, global_device_count=DEVICES, num_sparsecore_per_device=SPARSECORES
    )
    rows = {stack: each.table for stack, each in variables.items()}
    slots = {stack: each.slot.accumulator for stack, each in variables.items()}
    arrays = {}
    for kind, stacks in (("rows", rows), ("accumulator", slots)):
        found = table_stacking.unstack_and_unshard_stacked_tables(stacks, proto, donate=False)
        arrays |= {f"{table}/{kind}": np.asarray(values) for table, values in found.items()}
    return arrays


def main():
    utils.NUM_SC_PER_DEVICE_MAP["cpu"] = SPARSECORES
    specs = feature_specs()
    model, rng = Model(specs), np.random.default_rng(0)

    def fill(array):
        return jax.device_put(rng.standard_normal(array.shape).astype(np.float32), array.sharding)

    variables = jax.tree.map(fill, dict(model.embedding_layer.embedding_table.get_value()))
    model.embedding_layer.embedding_table.set_value(variables)
    folder = Path(tempfile.mkdtemp())
    manager = checkpoint_utils.create_checkpoint_manager(
        cp_path=folder / "nnx", cp_options=ocp.CheckpointManagerOptions()
    )
    checkpoint_utils.save_checkpoint(
        cp_manager=manager,
        step=7,
        model=model,
        optimizer=embed.PartitionedOptimizer(model, optax.adam(0.1)),
        feature_specs=specs,
        num_global_devices=DEVICES,
        num_sc_per_device=SPARSECORES,
    )
    manager.wait_until_finished()
    shutil.rmtree(folder / "nnx" / "7" / "optimizer")  # dense parameters only
    tree = {"params": {"SparseCoreEmbed_0": {"sc_embedding_variables": variables}}}
    ocp.PyTreeCheckpointer().save(folder / "linen" / "3", tree)
    np.savez(folder / "logical.npz", **logical(variables, specs))
    with zipfile.ZipFile(Path(__file__).with_name("embed_peer_checkpoints.zip"), "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                packed.write(path, path.relative_to(folder))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
