"""Train a model as `embed train` does, with the dense step as rewritten, and judge it."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tilewright.embed import Clicks, Feed, Limits, Loop, Stacking, init, lookup, preprocess, train_step
from tilewright.machine.model import Model, RunData, auc
from tilewright.trace import Recorder, Slice, Track

# The stages of a run: how long each takes, reported to a watcher and drawn on the timeline.

Watch = Callable[[str, int, int], None]
"""Called with (stage, steps done, steps in all); the total is 0 where it is not known."""


class Stages:
    """Measures stages and the phases inside them, in nanoseconds since the run began.

    ``seconds`` maps a stage to its wall time, ``recorder`` holds one slice per stage and phase of training.
    """

    def __init__(self, watch: Watch | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.recorder = Recorder()
        self.watch = watch or (lambda stage, done, total: None)
        self._begin = time.perf_counter_ns()

    def now(self) -> int:
        """Nanoseconds since the run began."""
        return time.perf_counter_ns() - self._begin

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure one stage of the run."""
        self.watch(name, 0, 0)
        start = self.now()
        yield
        end = self.now()
        self.seconds[name] = (end - start) / 1e9
        self.recorder.emit(Slice(Track("run", "stages"), name, start, end - start))


def peak_bytes() -> int:
    """The largest resident size of this process so far (Linux counts KiB, macOS bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


DenseStep = Callable[[Any, Any, Any, Any], tuple[tuple[Any, Any], tuple[Any, Any]]]


@dataclass(frozen=True)
class TrainingState:
    """Everything a step changes."""

    params: Any
    optimizer_state: Any
    embeddings: Any


@dataclass(frozen=True)
class Judgement:
    """Mean loss and AUC over the evaluation rows."""

    loss: float
    auc: float


@dataclass(frozen=True)
class Trained:
    """A trained model and the loss of every step."""

    state: TrainingState
    losses: tuple[float, ...]
    dropped_ids: int
    num_minibatches: int


def dense_step(model: Model) -> DenseStep:
    """(params, numeric, vectors, labels) -> ((loss, logits), (gradients of params, gradients of vectors))."""
    step: DenseStep = jax.value_and_grad(model.loss, argnums=(0, 2), has_aux=True)
    return step


def start(model: Model, stacking: Stacking, seed: int) -> TrainingState:
    """Fresh parameters, optimizer state and tables."""
    dense, sparse = jax.random.split(jax.random.key(seed))
    params = model.init(dense)
    return TrainingState(params, model.optimizer().init(params), init(stacking, sparse))


def judge(model: Model, state: TrainingState, stacking: Stacking, rows: Clicks, batch: int) -> Judgement:
    """Loss and AUC of ``rows`` (whole batches of them) as the state stands."""

    @jax.jit
    def forward(params: Any, numeric: Any, vectors: Any, labels: Any) -> tuple[Any, Any]:
        loss, logits = model.loss(params, numeric, vectors, labels)
        return loss, logits

    losses, scores = [], []
    for part in rows.batches(batch):
        vectors = lookup(state.embeddings, preprocess(part.features(), stacking))
        loss, logits = forward(state.params, part.numeric, vectors, part.labels)
        losses.append(float(loss))
        scores.append(np.asarray(logits))
    judged = rows.labels[: len(losses) * batch]
    return Judgement(float(np.mean(losses)), auc(judged, np.concatenate(scores)))


def train(
    model: Model,
    state: TrainingState,
    step: DenseStep,
    data: RunData,
    stacking: Stacking,
    limits: Mapping[str, Limits],
    *,
    batch: int,
    steps: int,
    stages: Stages,
) -> Trained:
    """``steps`` steps of ``step`` (original or rewritten) with the sparse side around it."""

    def gradients(params: Any, vectors: Any, numeric: Any, labels: Any) -> tuple[Any, tuple[Any, Any]]:
        (loss, _), both = step(params, numeric, vectors, labels)
        return loss, both

    one = train_step(model.loss, model.optimizer(), gradients=gradients)
    carry = one.start(state.params, state.embeddings)
    samples = ((rows.features(), (rows.numeric, rows.labels)) for rows in data.training_batches(batch, steps))
    loop = Loop(
        *(one, Feed(stacking, limits, overflow="error"), stages.recorder, stages.now),
        on_step=lambda done, _: stages.watch("train", done, steps),
    )
    done = loop.train(carry, samples)
    after = TrainingState(done.carry.params, done.carry.optimizer_state, done.carry.state)
    return Trained(after, done.losses, done.dropped_ids, done.num_minibatches)
