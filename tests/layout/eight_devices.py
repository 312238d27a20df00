"""What JAX says on eight virtual devices, beside what we say: run by test_meshes.py in a process of its own.

Prints the name of every comparison that agreed.
"""

from __future__ import annotations

import random
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import xla_client

from tilewright.layout import reshard, shard
from tilewright.layout.meshes.text import read_sharding, sharding_of

XLA = (
    "{devices=[2,4]<=[8]}", "{devices=[2,2]<=[2,2]T(0,1)}", "{devices=[4,1]<=[2,2]T(1,0)}", "{replicated}", "{manual}",
    "{devices=[2,2]<=[1,4,1]T(0,2,1)}", "{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "{maximal device=3}",
    "{devices=[2,1,2,2]<=[8] last_tile_dims={manual, replicated}}", "{devices=[2,2]3,0,2,1}", "{unknown}", "{}",
    "{devices=[2,1,2,2]<=[8] last_tile_dims={replicated, manual}}", "{{replicated}, {devices=[2,2]<=[4]}}",
    "{devices=[2,1,2,2]<=[2,2,2]T(2,1,0) last_tile_dims={manual, replicated}}", "{devices=[1,4]<=[4]}", "{unreduced}",
    "{devices=[2,3]<=[3,2]T(1,0)}", "{devices=[2,2]<=[2,2]T(1,0) last_tile_dims={unreduced}}",
    "{devices=[1,2,2,2]<=[8] last_tile_dims={replicated, unreduced}}", "{mesh['a'=2,'b'=2], [{'a'}, {'b'}]}",
    "{mesh['a'=2,'b'=4], [{'a', 'b':(1)2}, {}], replicated={'b':(2)2}}",
    "{devices=[1,2,2,2,2]<=[16] last_tile_dims={unreduced, replicated, manual}}",
    "{mesh['a'=2,'b'=2], device_ids=(0,2,1,3), [{'a', ?}, {}], manual={'b'}}",
    "{devices=[2,2]<=[4] metadata={op_name=\"a}b\"}}",
)  # fmt: skip


def text(sharding: object) -> str:
    """Our text of one or of several."""
    return f"{{{', '.join(map(text, sharding))}}}" if isinstance(sharding, tuple) else str(sharding)


def canonical_texts() -> None:
    for given in XLA:
        ours, theirs = text(read_sharding(given)), str(xla_client.HloSharding.from_string(given))
        assert ours.replace(", '", ",'") == theirs.replace(", '", ",'"), (given, ours, theirs)


def named_shardings(trials: int) -> None:
    """Shapes, places, texts and what comes back, over random meshes in any order of the devices."""
    rng = random.Random(1)
    for _ in range(trials):
        sizes = rng.choice([(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (2, 1, 4)])
        devices = np.array(rng.sample(jax.devices(), 8) if rng.random() < 0.3 else jax.devices())
        mesh = Mesh(devices.reshape(sizes), tuple("abc"[: len(sizes)]))
        entries = [[] for _ in range(rng.randint(1, 3))]
        for axis in rng.sample(mesh.axis_names, rng.randint(0, len(sizes))):
            rng.choice(entries).append(axis)
        spec = PartitionSpec(*[tuple(entry) if len(entry) > 1 else entry[0] if entry else None for entry in entries])
        shape = tuple(rng.choice([8, 16, 24]) for _ in entries)
        theirs = NamedSharding(mesh, spec)
        ours = shard(f"f32[{','.join(map(str, shape))}]", theirs)
        assert ours.shard_shape == theirs.shard_shape(shape)
        for device, box in theirs.devices_indices_map(shape).items():
            whole = tuple(slice(*side.indices(n)[:2]) for side, n in zip(box, shape, strict=True))
            place = ours.mesh.ids.index(device.id)
            assert ours.box(place) == whole, (theirs, device)
            first = tuple(side.start for side in whole)
            assert place in [holder for holder, _ in ours.where(first)]
        assert ours.sharding.gspmd == str(theirs._to_xla_hlo_sharding(len(shape)))
        assert ours.sharding.to_jax() == theirs
        assert sharding_of(repr(theirs)).gspmd == ours.sharding.gspmd
        assert sharding_of(str(theirs._to_xla_hlo_sharding(len(shape)))).gspmd == ours.sharding.gspmd


def resharded() -> None:
    """An array on eight devices, moved by JAX and by us."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
    values = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
    before, after = (NamedSharding(mesh, spec) for spec in (PartitionSpec(("a", "b")), PartitionSpec("b", "a")))
    moved = jax.device_put(jax.device_put(values, before), after)
    way = reshard(shard("f32[16,8]", before), shard("f32[16,8]", after))
    shards = {part.device.id: np.asarray(part.data) for part in jax.device_put(values, before).addressable_shards}
    ours = way.run(shards)
    for part in moved.addressable_shards:
        np.testing.assert_array_equal(ours[part.device.id], np.asarray(part.data))


if __name__ == "__main__":
    for name, check in {
        "canonical_texts": canonical_texts,
        "named_shardings": lambda: named_shardings(int(sys.argv[1])),
        "resharded": resharded,
    }.items():
        check()
        print(name)
