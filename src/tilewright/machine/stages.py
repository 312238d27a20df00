"""The stages of a run: the dense step studied and proved, the model trained and judged; and how long each takes.

Training is that of `embed train`, with the dense step as rewritten.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from tilewright.embed import Clicks, Feed, Limits, Loop, Stacking, init, lookup, preprocess, train_step
from tilewright.errors import CheckFailed
from tilewright.hlo import MovementReport, Optimized, StepTime, estimate, from_jax, optimize, report, verify
from tilewright.machine.model import Model, RunData, auc
from tilewright.trace import Recorder, Slice, Track

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


# The dense step as a program: what it moves under a target's layouts, what the gate rewrites, and the proof.

REWRITING_TARGET = "vector8x128"
"""The platform of the patent, whose compiler rewrites nothing: training runs the program rewritten for it."""


ALLOWED = 2e-5
"""What float32 sums in another order may differ by, as a share of an output's largest value."""


@dataclass(frozen=True)
class Movement:
    """The dense step under the layouts of one target, its modelled time, and the gate's verdicts per target."""

    report: MovementReport
    optimized: dict[str, Optimized]
    time: StepTime

    @cached_property
    def rewritten(self) -> Callable[..., Any]:
        """The step as rewritten for :data:`REWRITING_TARGET`, compiled on first use."""
        step: Callable[..., Any] = jax.jit(self.optimized[REWRITING_TARGET].callable())
        return step


@dataclass(frozen=True)
class Proof:
    """How far the rewritten step is from the original, over several inputs.

    ``max_difference`` is the largest absolute difference of any output; ``worst_share`` the largest difference as a
    share of its output's largest value, which ``allowed`` bounds (float32 sums taken in another order).
    ``error_before`` and ``error_after`` are the shares by which the two miss ``reference`` on the first input.
    """

    inputs: int
    outputs: int
    max_difference: float
    worst_share: float
    allowed: float
    error_before: float | None
    error_after: float | None
    reference: str


def study(step: Callable[..., Any], arguments: Sequence[Any], target: str) -> Movement:
    """Trace ``step(*arguments)``, report its movement on ``target``; ask the gates of it and of the rewriting one."""
    program = from_jax(step, *arguments)
    optimized = {name: optimize(program, name) for name in dict.fromkeys((target, REWRITING_TARGET))}
    return Movement(report(program, target), optimized, estimate(program, target))


def prove(step: Callable[..., Any], movement: Movement, inputs: Sequence[Sequence[Any]]) -> Proof:
    """Run the step and the very program that will train on every input, and on the first beside float64.

    Raises :class:`CheckFailed` where an output differs by more than rounding, or the error against float64 has grown.
    """
    worst, largest, outputs = compare(step, movement.rewritten, inputs)
    optimized = movement.optimized[REWRITING_TARGET]
    leaves = jax.tree_util.tree_leaves(inputs[0])
    kept = range(len(leaves)) if optimized.original.signature is None else optimized.original.signature.kept
    # As compiled whole, which is how it will train; verify's operation by operation costs a compilation for each.
    exact = verify(optimized.original, optimized.program, [leaves[i] for i in kept], eager=False)
    if not exact.ok:
        raise CheckFailed(f"the rewritten step is not the original: {exact.reason}", where=REWRITING_TARGET)
    return Proof(len(inputs), outputs, largest, worst, ALLOWED, exact.error_before, exact.error_after, exact.reference)


def compare(
    original: Callable[..., Any], rewritten: Callable[..., Any], inputs: Sequence[Sequence[Any]]
) -> tuple[float, float, int]:
    """(largest difference as a share of its output, largest one, outputs); CheckFailed beyond :data:`ALLOWED`."""
    worst, largest, outputs = 0.0, 0.0, 0
    straight = jax.jit(original)
    for number, arguments in enumerate(inputs):
        pairs = [jax.tree_util.tree_flatten_with_path(f(*arguments))[0] for f in (straight, rewritten)]
        outputs = len(pairs[0])
        for (path, expected), (_, actual) in zip(*pairs, strict=True):
            difference, size = largest_difference(actual, expected)
            share = difference / max(size, 1e-30)
            if not share <= ALLOWED:
                place = f"input {number}, output {jax.tree_util.keystr(path)}"
                raise CheckFailed(
                    f"the rewritten step differs from the original by {share:.1e} of its size", where=place
                )
            worst, largest = max(worst, share), max(largest, difference)
    return worst, largest, outputs


def largest_difference(value: Any, wanted: Any) -> tuple[float, float]:
    """(largest difference, largest finite value wanted); infinite where only one is finite. NaN equals NaN."""
    one, other = np.asarray(value, np.float64), np.asarray(wanted, np.float64)
    apart = ~((one == other) | (np.isnan(one) & np.isnan(other)))
    size = float(np.abs(other[np.isfinite(other)]).max(initial=0.0))
    if not np.isfinite(one[apart]).all() or not np.isfinite(other[apart]).all():
        return float("inf"), size
    return float(np.abs(one[apart] - other[apart]).max(initial=0.0)), size


DenseStep = Callable[[Any, Any, Any, Any], tuple[tuple[Any, Any], tuple[Any, Any]]]


@dataclass(frozen=True)
class TrainingState:
    params: Any
    optimizer_state: Any
    embeddings: Any


@dataclass(frozen=True)
class Judgement:
    """Mean loss and AUC over the evaluation rows."""

    loss: float
    auc: float


def dense_step(model: Model) -> DenseStep:
    """(params, numeric, vectors, labels) -> ((loss, logits), (gradients of params, gradients of vectors))."""
    step: DenseStep = jax.value_and_grad(model.loss, argnums=(0, 2), has_aux=True)
    return step


def start(model: Model, stacking: Stacking, seed: int) -> TrainingState:
    dense, sparse = jax.random.split(jax.random.key(seed))
    params = model.init(dense)
    return TrainingState(params, model.optimizer().init(params), init(stacking, sparse))


def judge(model: Model, state: TrainingState, stacking: Stacking, rows: Clicks, batch: int) -> Judgement:
    """Loss and AUC of ``rows`` (whole batches of them) as the state stands."""

    def vectors(part: Clicks) -> Mapping[str, Any]:
        return lookup(state.embeddings, preprocess(part.features(), stacking))

    parts = ((vectors(part), part.numeric, part.labels) for part in rows.batches(batch))
    return judged(model.loss, state.params, parts)


def judged(loss: Callable[..., Any], params: Any, parts: Iterable[tuple[Mapping[str, Any], Any, Any]]) -> Judgement:
    """Loss and AUC over batches of (vectors, numeric, labels)."""
    forward = jax.jit(loss)
    losses, scores, labels = [], [], []
    for vectors, numeric, clicked in parts:
        value, logits = forward(params, numeric, dict(vectors), clicked)
        losses.append(float(value))
        scores.append(np.asarray(logits))
        labels.append(np.asarray(clicked))
    return Judgement(float(np.mean(losses)), auc(np.concatenate(labels), np.concatenate(scores)))


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
) -> tuple[TrainingState, tuple[float, ...]]:
    """(state afterwards, losses) of ``steps`` steps of ``step`` (original or rewritten), the sparse side around it."""

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
    return TrainingState(done.carry.params, done.carry.optimizer_state, done.carry.state), done.losses
