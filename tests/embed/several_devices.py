"""All that needs several devices, in one process, since each takes seconds to start. Run by a test.

    python -m tests.embed.several_devices FOLDER [night]

Its processors are made eight devices by XLA_FLAGS. The names of what has passed are printed.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.embed import test_checkpoint as saving
from tests.embed import test_hot_and_hashed as hot_and_hashed
from tests.embed import test_step as stepping
from tests.embed import test_tpu_embedding as peers
from tests.embed.batches import alike
from tests.embed.slow_batch import host_batch
from tilewright.embed import (
    SGD,
    Adagrad,
    Checkpoints,
    Feature,
    Feed,
    Limits,
    Loop,
    SparseCoreConfig,
    Table,
    Topology,
    device_batch,
    from_tables,
    init,
    lookup,
    preprocess,
    restore,
    resume,
    save,
    stack,
    tables,
    train_step,
    update,
)
from tilewright.embed.device import state as device_state
from tilewright.embed.tpu_embedding.compute import Asked, Buffers, activations, layout_of, trained
from tilewright.errors import LimitError, UsageError


def under_shard_map_four_agree_with_one(folder, night):
    plan = stepping.model(8, 4, "adagrad")
    state, grads = stepping.fresh(plan), stepping.gradients(plan, 32)
    run = partial(jax.shard_map, mesh=Mesh(np.array(jax.devices()[:4]), ("sc",)))

    def spread(tree):
        return jax.tree.map(lambda x: PartitionSpec("sc") if np.ndim(x) else PartitionSpec(), tree)

    def near(found, expected):
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6)

    host = device_batch(host_batch(stepping.draw(plan, 32), plan, lambda col_id: col_id % 2, 2))
    here, split = (spread(state), spread(host)), PartitionSpec("sc")
    found = run(lambda s, b: lookup(s, b, "sc"), in_specs=here, out_specs=split)
    near(jax.jit(found)(state, host), lookup(state, host))
    after = run(lambda s, b, g: update(s, b, g, "sc"), in_specs=(*here, split), out_specs=spread(state))
    near(tables(jax.jit(after)(state, host, grads)), tables(update(state, host, grads)))


def a_step_by_the_peers_rules(folder, night):
    plan = peers.plan_of(devices=8)
    (name,) = plan.stacks
    state, mesh = peers.whole_numbers(plan), Mesh(np.array(jax.devices()), ("x",))
    random = np.random.default_rng(1)
    gradients = {f.name: random.integers(-2, 3, (256, 8)).astype(np.float32) for f in plan.features}
    in_order = [gradients[f.name].reshape(32, -1, 8) for f in plan.stacks[name].features]
    stacked = np.concatenate(in_order, axis=1).reshape(-1, 8)
    for limits in (None, {name: Limits(4, 4)}):
        host = preprocess(peers.batch_of(plan, 256), plan, limits)
        assert (host.num_minibatches > 1) == (limits is not None)
        given = [np.asarray(of[name]) for of in (host.row_pointers, host.embedding_ids, host.sample_ids, host.gains)]
        slots = given[1].shape[1] // (4 * 32 * (64 if host.minibatch_layout else 1))
        table = np.asarray(state.stacks[name]).reshape(-1, 8)

        def one(pointers, ids, samples, gains, table, gradient, host=host, slots=slots):
            buffers = Buffers(pointers[0], ids[0], samples[0], gains[0], jnp.int32(host.num_minibatches))
            layout = layout_of(buffers, slots, {"x": 8}, host.minibatch_layout, Asked(4, 8), (4,))
            found = activations(buffers, table, layout, len(gradient))
            return found, trained(buffers, (table,), gradient, layout, SGD(), jnp.float32(0.5))[0]

        spread = PartitionSpec("x")
        both = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=(spread,) * 6, out_specs=spread))
        found, after = both(*given, table, stacked)
        expected, summed = np.zeros_like(stacked), np.zeros_like(table).reshape(32, -1, 8)
        for source in range(32):
            for shard in range(32):
                rows, samples, gains = host.partition(name, source, shard)
                of_source = slice(source * 24, source * 24 + 24)
                np.add.at(expected[of_source], samples, gains[:, None] * table.reshape(32, -1, 8)[shard, rows])
                np.add.at(summed[shard], rows, gains[:, None] * stacked[of_source][samples])
        assert np.array_equal(found, expected)
        assert np.array_equal(after, table - 0.5 * summed.reshape(-1, 8))


def checkpoints_go_from_mesh_to_mesh(folder, night):
    used = (saving.TABLES[0], saving.TABLES[4])
    model, same = partial(saving.model, used=used), saving.assert_same
    four, two_by_four = jax.make_mesh((4,), ("x",)), jax.make_mesh((2, 4), ("r", "x"))
    three = Mesh(np.array(jax.devices()[:3]), ("x",))
    expected = saving.logical(init(model(4, 2, rotation=3), jax.random.key(2)))
    cases = [(two_by_four, model()), (three, model(3, 2)), (four, model(4, 2, rotation=3))]
    for step, (mesh, plan) in enumerate(cases if night else cases[:2]):
        state = init(plan, jax.random.key(2), mesh=mesh, axis="x")
        same(saving.logical(state), expected)
        shards = {s.data.shape[0] for s in state.stacks["e"].addressable_shards}
        assert shards == {plan.topology.sparsecores // mesh.shape["x"]}
        moved = from_tables(plan, tables(state), mesh=mesh, axis="x")
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(moved)):
            assert a.sharding == b.sharding, (a.sharding, b.sharding)
        same(saving.logical(moved), expected)
        save(folder, moved, step, extra={"w": moved.step}).wait()
        same(saving.logical(restore(folder, model(5))), expected)
        again = restore(folder, model(3, 4), mesh=four, axis="x")
        same(saving.logical(again), expected)
        assert again.stacks["e"].sharding == NamedSharding(four, PartitionSpec("x", None, None))
        assert again.step.sharding.is_fully_replicated
    try:
        init(model(3), jax.random.key(0), mesh=four, axis="x")
    except UsageError as error:
        assert "3 shards do not divide over the 4 devices of axis 'x'" in str(error)
    else:
        raise AssertionError


def tables_are_made_where_the_knobs_say(folder, night):
    plan, key = stack([Feature("f", Table("t", 40, 8))], Topology(1, 2)), jax.random.key(3)
    host, device = jax.local_devices()[:2]
    draw, made, states = device_state._draw, [], []

    def spy(*args, **shape):
        array = draw(*args, **shape)
        made.extend(array.devices())
        return array

    device_state._draw = spy
    try:
        with jax.default_device(device):
            for on_host, fast in ((True, False), (True, True), (False, False)):
                knobs = SparseCoreConfig(initialize_tables_on_host=on_host, enable_fast_table_initialization=fast)
                states.append(init(plan, key, knobs))
    finally:
        device_state._draw = draw
    assert made == [host, device, device], made
    assert {d for s in states for leaf in jax.tree.leaves(s) for d in leaf.devices()} == {device}
    assert all(np.array_equal(tables(s)["t"], tables(states[0])["t"]) for s in states)


def cut(ids, plan):
    """With the least limits that mini-batches can keep."""
    for most in (4, 8, 12, 16, 24, 36, 54, 80, 120, 180):
        try:
            host = preprocess(ids, plan, {name: Limits(most, most) for name in plan.stacks})
        except LimitError:
            continue
        assert host.num_minibatches > 1
        return host
    raise AssertionError


def trained_tables(shards, stacking, rotation, limits, pipelined=False, mesh=None, spread=1):
    kind = SGD(1.0)
    a, b = Table("a", 40, 8, optimizer=kind), Table("b", 24, 8, optimizer=kind)
    features = [Feature("x", a), Feature("y", b), Feature("z", a)]
    plan = stack(features, Topology(spread, shards // spread), stacking, rotation=rotation)
    rng = np.random.default_rng(0)
    state = from_tables(plan, {t: rng.integers(-4, 5, (p.table.vocab, 8)) for t, p in sorted(plan.tables.items())})
    axis = {"mesh": mesh, "axis": "sc"} if mesh is not None else {}

    def loss(params, vectors, labels):
        return sum((vectors[name] * labels[:, None]).sum() for name in vectors)

    one = train_step(loss, optax.sgd(0.0), pipelined, **axis)
    carry, hosts, labels = one.start({}, state), [], []
    for _ in range(3):
        ids = {f.name: rng.integers(0, f.table.vocab, (48, 3)) for f in features}
        hosts.append(cut(ids, plan) if limits else preprocess(ids, plan))
        labels.append(rng.integers(-2, 3, 48).astype(np.float32))
    for batch, label in zip(alike(hosts), labels, strict=True):
        carry, _ = one.step(carry, batch, label)
    return tables(one.finish(carry)[1])


def whole_numbers_train_to_the_same_bits_however_they_are_laid_out(folder, night):
    expected = trained_tables(1, False, None, False)

    def agree(*arguments, **others):
        found = trained_tables(*arguments, **others)
        assert all(np.array_equal(found[name], expected[name]) for name in expected), (arguments, others)

    every = 1 if night else 5  # every fifth has each pair of the last three, and all four numbers of shards
    for layout in list(product((1, 2, 3, 8), (True, False), (None, 1), (False, True)))[every - 1 :: every]:
        agree(*layout)

    def by_hand(count):
        return Mesh(np.array(jax.devices()[:count]), ("sc",))

    def made(count):
        return jax.make_mesh((count,), ("sc",))

    for count, mesh in ((2, by_hand), *([(8, made), (2, made), (8, by_hand)] if night else [])):
        agree(8, True, 1, False, mesh=mesh(count), spread=8)
    agree(4, True, None, True, mesh=made(4), spread=4)


def rows_held_everywhere_train_as_those_at_home(folder, night):
    """In turn and pipelined, on eight devices and on one, with checkpoints taken up in the middle.

    By day tests/embed/test_hot_and_hashed.py trains with such rows, and sums them over devices.
    """
    draw, size = np.random.default_rng(4), 32
    made = hot_and_hashed.features(Adagrad(0.1))
    stacking = stack(made, Topology(8, 1))
    values = {t: draw.normal(size=(p.table.vocab, p.table.width)) for t, p in sorted(stacking.tables.items())}
    batches = []
    for _ in range(4):
        given = {f.name: draw.integers(0, f.table.vocab, (size, 3)) for f in made}
        for ids in given.values():
            ids[draw.random(ids.shape) < 0.5] = 7
        batches.append((given, (draw.normal(size=size).astype(np.float32),)))

    def loss(params, vectors, labels):
        return sum(((vectors[name].sum(1) - labels) ** 2).mean() for name in vectors) * params

    for meshed, pipelined in product((True, False), repeat=2):
        axis = {"mesh": Mesh(np.array(jax.devices()), ("sc",)), "axis": "sc"} if meshed else {}
        found = []
        for name, hot in (("plain", None), ("hot", hot_and_hashed.HOT)):
            one = train_step(loss, optax.sgd(0.01), pipelined, hot=hot, **axis)
            place = f"{folder}/{name}-{meshed}-{pipelined}"
            feed, saver = Feed(stacking), Checkpoints(place, 2)
            Loop(one, feed, saver=saver).train(one.start(jnp.float32(1), from_tables(stacking, values)), batches[:2])
            saver.close()
            carry, first = resume(one, jnp.float32(0), stacking, place)
            params, state = one.finish(Loop(one, feed).train(carry, batches[first:], first).carry)
            found.append((params, tables(state), tables(state, "accumulator")))
        for one_way, other in zip(*map(jax.tree.leaves, found), strict=True):
            np.testing.assert_allclose(one_way, other, rtol=2e-5, atol=2e-6)


ALL = (
    under_shard_map_four_agree_with_one,
    a_step_by_the_peers_rules,
    checkpoints_go_from_mesh_to_mesh,
    tables_are_made_where_the_knobs_say,
    whole_numbers_train_to_the_same_bits_however_they_are_laid_out,
)
AT_NIGHT = (rows_held_everywhere_train_as_those_at_home,)

if __name__ == "__main__":
    assert len(jax.devices()) == 8
    night = sys.argv[2:] == ["night"]
    for check in (*ALL, *AT_NIGHT) if night else ALL:
        check(sys.argv[1], night)
        print(check.__name__, flush=True)
