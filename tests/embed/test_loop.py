"""The training loop: prepared ahead, taken up from checkpoints, stopped by Ctrl-C and by numbers that are none."""

from __future__ import annotations

import itertools
import signal
import time
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tilewright.embed import (
    Adagrad,
    Adam,
    Checkpoints,
    Feature,
    Feed,
    Limits,
    Loop,
    SparseCoreConfig,
    Table,
    Topology,
    init,
    resume,
    saved_steps,
    stack,
    train_step,
)
from tilewright.errors import CheckFailed, TilewrightError
from tilewright.trace import Recorder

BATCH = 16
FEATURES = (
    Feature("user", Table("user", 50, 8, optimizer=Adagrad(0.1))),
    Feature("item", Table("item", 30, 8, optimizer=Adam(0.05))),
)
IDS = ("user", "item")
STACKING = stack(FEATURES, Topology(1, 2), batch_size=BATCH)
PARAMS = {"w": np.ones(8, np.float32), "b": np.float32(0)}


def loss(params, vectors, labels):
    logits = (vectors["user"] * vectors["item"]) @ params["w"] + params["b"]
    return jnp.mean((logits - labels) ** 2)


def samples(first, steps):
    for step in range(first, steps):
        draw = np.random.default_rng(step)
        ids = {"user": draw.integers(0, 50, (BATCH, 1)), "item": draw.integers(0, 30, (BATCH, 3))}
        yield ids, (draw.normal(size=BATCH).astype(np.float32),)


@cache
def step(pipelined, of=loss, **options):
    """One for all tests of a kind, so that it compiles once."""
    return train_step(of, optax.adam(0.1), pipelined, **options)


def fresh(one):
    return one.start(PARAMS, init(STACKING, jax.random.key(0)))


def same(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), found, expected)


@pytest.mark.parametrize("pipelined", [False, True])
def test_resumed_is_unbroken(tmp_path, pipelined):
    """Bit by bit: tables, slots, dense parameters, the state of their optimizer, losses."""
    one = step(pipelined)
    whole = Loop(one, Feed(STACKING), saver=Checkpoints(str(tmp_path / "a"), 3)).train(fresh(one), samples(0, 9))
    told = []
    saver = Checkpoints(str(tmp_path / "b"), 3, on_saved=told.append)
    half = Loop(one, Feed(STACKING), saver=saver).train(fresh(one), samples(0, 6))
    assert told == saver.saved == saved_steps(tmp_path / "b") == [3, 6]
    carry, first = resume(one, PARAMS, STACKING, str(tmp_path / "b"))
    rest = Loop(one, Feed(STACKING), saver=saver).train(carry, samples(first, 9), first)
    assert (first, half.losses + rest.losses) == (6, whole.losses)
    assert len(whole.losses) == 9
    assert np.isfinite(whole.losses).all()
    same(jax.tree.leaves(rest.carry), jax.tree.leaves(whole.carry))


@pytest.mark.parametrize("pipelined", [False, True])
def test_phases_stand_on_their_lanes(pipelined):
    recorder, one, seen = Recorder(), step(pipelined), []
    loop = Loop(one, Feed(STACKING), recorder, on_step=lambda done, value: seen.append((done, value)))
    trained = loop.train(fresh(one), samples(0, 5))
    assert [done for done, _ in seen] == [1, 2, 3, 4, 5]
    assert np.isnan(seen[0][1]) == pipelined
    names = [(event.track.lane, event.name) for event in recorder]
    for phase in ("host", "preprocess"), ("host", "index"), ("sparse cores", "lookup"), ("sparse cores", "update"):
        assert names.count(phase) == 5
    assert names.count(("tensor core", "forward and backward")) == 5
    for lane in ("host", "sparse cores", "tensor core"):
        slices = sorted((e.start, e.start + e.duration) for e in recorder if e.track.lane == lane)
        assert all(before <= after for (_, before), (after, _) in itertools.pairwise(slices)), lane
    assert 0 <= trained.hidden <= 1
    assert trained.preparing > 0


@pytest.mark.parametrize(("ahead", "prepared"), [(0, 2), (4, 5)])
def test_so_many_batches_are_prepared_ahead_as_the_knob_says(ahead, prepared):
    """While a step runs: those, and the one that it takes."""
    taken, seen, one = [], [], step(False)

    def watched():
        for number, sample in enumerate(samples(0, 8)):
            taken.append(number)
            yield sample

    def waiting(done, value):
        end = time.monotonic() + 20
        while done == 1 and len(taken) < prepared and time.monotonic() < end:
            time.sleep(0.001)
        seen.append(len(taken))

    feed = Feed(STACKING, sparsecore=SparseCoreConfig(maximum_parallel_iterations=ahead))
    Loop(one, feed, on_step=waiting).train(fresh(one), watched())
    assert (seen[0], seen[-1]) == (prepared, 8)


def test_a_feed_keeps_its_longest_arrays():
    """So that jit compiles a few times at first and never again."""
    feed, shapes = Feed(STACKING), []
    for hot in (1, 4, 2, 3):
        batch = feed.device_batch(
            feed.host_batch({name: np.arange(hot * BATCH).reshape(BATCH, hot) % 30 for name in IDS})
        )
        shapes.append([np.shape(array) for array in jax.tree.leaves(batch.index)])
    assert shapes[0] != shapes[1]
    assert shapes[1] == shapes[2] == shapes[3]


def test_ctrl_c_finishes_the_checkpoint(tmp_path):
    one, saver = step(True), Checkpoints(str(tmp_path), 2)
    raised = []

    def on_step(done, value):
        if done == 5:
            signal.raise_signal(signal.SIGINT)
            raised.append(done)

    with pytest.raises(KeyboardInterrupt):
        Loop(one, Feed(STACKING), on_step=on_step, saver=saver).train(fresh(one), samples(0, 100))
    assert raised == [5]
    assert saver.saved == saved_steps(tmp_path) == [2, 4]


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_gradient_that_is_not_finite_ends_the_training(tmp_path, pipelined):
    def broken(params, vectors, labels):
        """At label 9 a finite loss with an infinite gradient."""
        return loss(params, vectors, labels) + jnp.sqrt(jnp.where(labels[0] == 9, 0.0, 1.0) + params["b"] * 0)

    def until():
        for number, (ids, (labels,)) in enumerate(samples(0, 8)):
            yield ids, (np.where(number == 5, np.float32(9), labels),)

    one, saver = step(pipelined, broken, detect_nan=True), Checkpoints(str(tmp_path), 2)
    with pytest.raises(CheckFailed, match="the loss of step 6 or one of its gradients is not a finite number"):
        Loop(one, Feed(STACKING), saver=saver).train(fresh(one), until())
    assert saved_steps(tmp_path) == [2, 4]
    assert np.isfinite(np.asarray(resume(one, PARAMS, STACKING, str(tmp_path))[0].params["b"]))


def test_a_checkpoint_of_another_model_or_a_damaged_one_is_one_clear_error(tmp_path):
    one, folder = step(False), str(tmp_path)
    Loop(one, Feed(STACKING), saver=Checkpoints(folder, 2)).train(fresh(one), samples(0, 4))
    other = stack([FEATURES[0], Feature("item", Table("item", 31, 8, optimizer=Adam(0.05)))], Topology(1, 2))
    with pytest.raises(TilewrightError, match=r"table 'item'.*vocab 30 in the checkpoint, 31"):
        resume(one, PARAMS, other, folder)
    with pytest.raises(TilewrightError, match="does not fit what was saved"):
        resume(one, {"w": np.ones(8, np.float32)}, STACKING, folder)
    with pytest.raises(TilewrightError, match="no finished step 3"):
        resume(one, PARAMS, STACKING, folder, 3)
    largest = max(
        (path for path in Path(folder, "4").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    largest.write_bytes(largest.read_bytes()[:40])
    with pytest.raises(TilewrightError, match="restore step 2, the newest that is whole"):
        resume(one, PARAMS, STACKING, folder)
    assert resume(one, PARAMS, STACKING, folder, 2)[1] == 2


def test_what_the_host_refuses_ends_the_training_with_its_error(tmp_path):
    one = step(False)
    bad = [({"user": np.full((BATCH, 1), 50), "item": np.zeros((BATCH, 1), int)}, (np.zeros(BATCH, np.float32),))]
    with pytest.raises(TilewrightError, match="user"):
        Loop(one, Feed(STACKING)).train(fresh(one), [*samples(0, 2), *bad])


def test_limits_are_renewed_while_a_training_runs():
    """What exceeds the first limits is cut until they are renewed; nothing is lost, and the losses are the same."""
    one, told = step(False), []
    first = {name: Limits(8, 8) for name in STACKING.stacks}
    feed = Feed(STACKING, first, renew_every=3, on_renewed=lambda seen, limits: told.append((seen, dict(limits))))
    trained = Loop(one, feed).train(fresh(one), samples(0, 7))
    plain = Loop(one, Feed(STACKING)).train(fresh(one), samples(0, 7))
    np.testing.assert_allclose(trained.losses, plain.losses, rtol=1e-6)
    assert [seen for seen, _ in told] == [3, 6]
    assert trained.num_minibatches > 1
    renewed = [limit.max_ids_per_partition for limit in told[-1][1].values()]
    assert max(renewed) > 8
    assert all(most % 8 == 0 for most in renewed)
    last = feed.host_batch(next(samples(6, 7))[0])
    assert last.num_minibatches == 1
    assert trained.dropped_ids == 0
