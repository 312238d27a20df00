"""Train a model: sparse lookups and updates around a dense step, the host preparing the next batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tilewright.embed import Clicks, HostBatch, Limits, Stacking, init, lookup, preprocess, update
from tilewright.machine.model import Model, RunData, auc
from tilewright.trace import Args, Recorder, Slice, Track

# The stages of a run: how long each takes, reported to a watcher and drawn on the timeline.

Watch = Callable[[str, int, int], None]
"""Called with (stage, steps done, steps in all); the total is 0 where it is not known."""


class Stages:
    """Measures stages and the phases inside them, in nanoseconds since the run began.

    ``seconds`` maps a stage to its wall time, ``recorder`` holds one slice per stage and phase. Phases of different
    threads go to different lanes.
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

    @contextmanager
    def phase(self, lane: str, name: str, args: Args = ()) -> Iterator[None]:
        """Measure one phase of a training step on ``lane``."""
        start = self.now()
        yield
        self.recorder.emit(Slice(Track("training", lane), name, start, self.now() - start, args))


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


def _ready(values: Any) -> Any:
    """Wait until the device is done, so that a phase's time is its own."""
    return jax.block_until_ready(values)  # type: ignore[no-untyped-call]


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


def _host_batches(
    batches: Iterator[Clicks], stacking: Stacking, limits: Mapping[str, Limits], stages: Stages
) -> Iterator[tuple[Clicks, HostBatch]]:
    """Preprocess one batch ahead, on a thread of its own (the kernels leave the GIL)."""

    def prepare(number: int, rows: Clicks) -> tuple[Clicks, HostBatch]:
        with stages.phase("host", "preprocess", (("step", number), ("ids", rows.categorical.size))):
            return rows, preprocess(rows.features(), stacking, limits, overflow="error")

    with ThreadPoolExecutor(1, "preprocess") as pool:
        numbered = enumerate(batches)
        first = next(numbered, None)
        ahead = pool.submit(prepare, *first) if first else None
        while ahead is not None:
            ready = ahead.result()
            following = next(numbered, None)
            ahead = pool.submit(prepare, *following) if following else None
            yield ready


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
    optimizer = model.optimizer()

    @jax.jit
    def apply(params: Any, optimizer_state: Any, gradients: Any) -> tuple[Any, Any]:
        updates, after = optimizer.update(gradients, optimizer_state, params)
        return jax.tree.map(lambda p, u: p + u, params, updates), after

    in_place = jax.jit(update, donate_argnums=0)
    params, optimizer_state, embeddings = state.params, state.optimizer_state, state.embeddings
    losses, dropped, most = [], 0, 1
    for number, (rows, host) in enumerate(_host_batches(data.training_batches(batch, steps), stacking, limits, stages)):
        with stages.phase("sparse cores", "lookup", (("step", number),)):
            vectors = _ready(lookup(embeddings, host))
        with stages.phase("tensor core", "forward and backward", (("step", number),)):
            (loss, _), (dense, sparse) = _ready(step(params, rows.numeric, vectors, rows.labels))
            params, optimizer_state = apply(params, optimizer_state, dense)
        with stages.phase("sparse cores", "update", (("step", number),)):
            embeddings = _ready(in_place(embeddings, host, sparse))
        losses.append(float(loss))
        dropped += sum(int(np.sum(stats.dropped_ids)) for stats in host.stats.values())
        most = max(most, host.num_minibatches)
        stages.watch("train", number + 1, steps)
    return Trained(TrainingState(params, optimizer_state, embeddings), tuple(losses), dropped, most)
