"""The training loop: the host prepares batches ahead on a thread; phases, losses, checkpoints, Ctrl-C.

And what the processes of one training agree on, through the store that jax.distributed keeps.
"""

from __future__ import annotations

import itertools
import json
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.experimental import multihost_utils

from tilewright.embed.device.batch import DeviceBatch
from tilewright.embed.device.step import step_batch
from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.batch import Agree, Agreement, HostBatch
from tilewright.embed.host.preprocess import preprocess
from tilewright.embed.host.tables import HotEntries, split_hot
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import Limits
from tilewright.embed.training.step import Carry, TrainStep
from tilewright.errors import CheckFailed, UsageError
from tilewright.trace import Args, Recorder, Sink, Slice, Track

if TYPE_CHECKING:
    from tilewright.embed.training.saver import Checkpoints

Samples: TypeAlias = tuple[Mapping[str, Any], tuple[Any, ...]]
"""A batch of a log: features as ``preprocess`` takes them, and what the loss takes beside the activations."""


@dataclass
class Feed:
    """How a batch of features becomes what a step reads: the arguments of ``preprocess``, the guide's knobs among them.

    A step reads either layout, so only a batch that is cut is laid out for mini-batches.

    ``renew_every``: after so many batches the limits become the most that any batch so far asked for, raised by
    ``headroom`` and rounded up to 8 (0: they stay). Until then what exceeds them is cut, so nothing is lost; what is
    compiled stays. ``on_renewed`` is called with the batches seen and the new limits. ``recorded``: of every stack the
    most ids and distinct ids of a partition so far, as this process knows; :meth:`agreed`: of all processes.
    """

    stacking: Stacking
    limits: Mapping[str, Limits] | None = None
    overflow: str = "minibatch"
    bad_ids: str = "error"
    sources: range | None = None
    agree: Agree | None = None
    sparsecore: SparseCoreConfig | None = None
    renew_every: int = 0
    headroom: float = 0.0
    on_renewed: Callable[[int, Mapping[str, Limits]], None] = lambda seen, limits: None
    recorded: dict[str, Limits] = field(default_factory=dict)
    _seen: int = 0
    _longest: tuple[int, ...] = ()

    def host_batch(self, features: Mapping[str, Any]) -> HostBatch:
        """The buffers that ``preprocess`` makes of a batch."""
        given = (self.limits, self.overflow, self.bad_ids, self.sources, self.agree)
        knobs = {"sparsecore": self.sparsecore, "minibatch_layout": "needed"}
        host = preprocess(features, self.stacking, *given, **knobs)  # type: ignore[arg-type]
        self._record(host)
        return host

    def _record(self, host: HostBatch) -> None:
        """Note what the batch asked for, and renew the limits where it is time."""
        self._seen += 1
        for name, stats in host.stats.items():
            before = self.recorded.get(name, Limits(1, 1))
            most = max(int(stats[0].max()), before.max_ids_per_partition)
            self.recorded[name] = Limits.holding(most, max(int(stats[1].max()), before.max_unique_ids_per_partition))
        if not self.renew_every or self.limits is None or self._seen % self.renew_every:
            return
        self.limits = {name: limit.with_headroom(self.headroom) for name, limit in self.agreed().items()}
        self.on_renewed(self._seen, self.limits)

    def agreed(self) -> dict[str, Limits]:
        """What was recorded, on all processes; every one of them must ask."""
        if self.agree is not None:
            mine = tuple(n for limit in self.recorded.values() for n in vars(limit).values())
            numbers = iter(self.agree(Agreement(0, mine)).max_ids)
            self.recorded = {name: Limits.holding(next(numbers), next(numbers)) for name in self.recorded}
        return self.recorded

    def without_hot(
        self, features: Mapping[str, Any], hot: Mapping[str, Longs]
    ) -> tuple[Mapping[str, Any], dict[str, HotEntries]]:
        """The batch without its hot ids, and the entries of these on the devices that this process feeds."""
        if not hot:
            return features, {}
        cold, entries = split_hot(features, self.stacking, hot)
        topology = self.stacking.topology
        if self.sources is not None:
            first, each = self.sources.start, topology.sparsecores_per_device
            own = range(first // each, self.sources.stop // each)
            entries = {name: part.of_devices(own, topology.devices) for name, part in entries.items()}
        return cold, entries

    def device_batch(self, host: HostBatch) -> HostBatch | DeviceBatch:
        """The index of these buffers, its arrays never shorter than those before, so that steps compile a few times."""
        return step_batch(host, self._lengths)

    def _lengths(self, needed: tuple[int, ...]) -> tuple[int, ...]:
        if self.agree is not None:
            needed = self.agree(Agreement(0, needed)).max_ids
        before = self._longest or (0,) * len(needed)
        grown = (most if now <= most else now + now // 8 for now, most in zip(needed, before, strict=True))
        self._longest = tuple(grown)
        return self._longest


@dataclass(frozen=True)
class Trained:
    """What came of a training.

    ====================  ========================================================================================
    ``carry``             drained: its ``params``, ``optimizer_state`` and ``state`` are those after the last step
    ``losses``            of every batch, in order
    ``seconds``           from the first step's begin to the last one's end, the first batch and compilation included
    ``steady_seconds``    of that, from the end of the third step on: nothing is compiled any more, as a rule
    ``preparing``         seconds the host needed for all batches but the first
    ``waiting``           of these, seconds in which the device had nothing to do but wait
    ``dropped_ids``, ``num_minibatches``  all that was dropped; the most mini-batches of a batch
    ====================  ========================================================================================
    """

    carry: Carry
    losses: tuple[float, ...]
    seconds: float
    steady_seconds: float
    preparing: float
    waiting: float
    dropped_ids: int
    num_minibatches: int

    @property
    def hidden(self) -> float:
        """The share of the preparation that went on while the device worked; 1 where there was none."""
        return max(0.0, 1 - self.waiting / self.preparing) if self.preparing else 1.0


@dataclass
class Loop:
    """Trains a step on batches. The parts, beside the step and how it is fed:

    ============  ================================================================================================
    ``sink``      takes a slice of every phase, on the lanes "host", "sparse cores" and "tensor core"
    ``now``       the clock of these slices, in nanoseconds
    ``on_step``   called with the number of batches taken, and the loss that was last known
    ``saver``     takes checkpoints. Pipelined, the batches on their way are finished before each, so that a training
                  that is taken up there goes on exactly as if it had never stopped
    ============  ================================================================================================

    Ctrl-C ends the training after the step; a checkpoint that is being written is finished, then KeyboardInterrupt.
    """

    one: TrainStep
    feed: Feed
    sink: Sink = field(default_factory=Recorder)
    now: Callable[[], int] = time.perf_counter_ns
    on_step: Callable[[int, float], None] = lambda done, loss: None
    saver: Checkpoints | None = None

    def train(self, carry: Carry, samples: Iterable[Samples], first: int = 0) -> Trained:
        """Train on all of ``samples``; ``first`` batches were trained on before.

        Raises :class:`CheckFailed` where the step detects NaN and finds one; checkpoints taken so far are finished.
        """
        losses: list[float] = []
        host = _Host(self, iter(samples), first)
        number, begin, steady = first, self.now(), self.now()
        with _interruptible() as interrupted, host:
            try:
                for number, ready in enumerate(host, first + 1):
                    filling = self.one.pipelined and carry.looked_up is None
                    phases = _Phases(self, number - 1, overlapped=self.one.pipelined and jax.process_count() == 1)
                    carry, value = self.one.step(carry, ready.batch, *ready.data, entries=ready.hot, around=phases)
                    phases.settle()
                    if not filling:
                        losses.append(self._checked(value, first + len(losses) + 1))
                    self.on_step(number, losses[-1] if losses else math.nan)
                    if number == first + 3:
                        steady = self.now()
                    if self.saver is not None and number % self.saver.every == 0:
                        carry = self._drained(carry, losses, number, first)
                        self.saver.save(self.one.whole(carry), number)
                    if self.saver is not None:
                        self.saver.settle(wait=False)
                    if interrupted.is_set():
                        raise KeyboardInterrupt
                carry = self._drained(carry, losses, number, first)
                end = self.now()
                if self.saver is not None and number % self.saver.every and number > first:
                    self.saver.save(self.one.whole(carry), number)
            finally:
                if self.saver is not None:
                    self.saver.settle(wait=True)
        times = ((end - begin) / 1e9, (end - steady) / 1e9, host.preparing, host.waiting)
        return Trained(self.one.whole(carry), tuple(losses), *times, host.dropped_ids, host.num_minibatches)

    def _drained(self, carry: Carry, losses: list[float], number: int, first: int) -> Carry:
        phases = _Phases(self, number, overlapped=False)
        carry, values = self.one.drain(carry, phases)
        for value in values:
            losses.append(self._checked(value, first + len(losses) + 1))
        return carry

    def _checked(self, value: jax.Array, number: int) -> float:
        loss = float(value)
        if self.one.detect_nan and not math.isfinite(loss):
            problem = f"the loss of step {number} or one of its gradients is not a finite number"
            how = "lower the learning rates or look at the batch; finished checkpoints are as they were"
            raise CheckFailed(problem, where="training", how=how)
        return loss

    @contextmanager
    def phase(self, name: str, args: Args) -> Iterator[None]:
        """Emit what is done inside as a slice on the host's lane."""
        start = self.now()
        yield
        self.sink.emit(Slice(Track("training", "host"), name, start, self.now() - start, args))


class _Ready(NamedTuple):
    batch: HostBatch | DeviceBatch
    data: tuple[Any, ...]
    hot: Mapping[str, HotEntries]
    seconds: float
    dropped: int
    minibatches: int


class _Host(AbstractContextManager["_Host"]):
    """Reads and prepares batches on a thread of its own (kernels leave the GIL), and counts what that hides."""

    def __init__(self, loop: Loop, samples: Iterator[Samples], first: int) -> None:
        self.preparing = self.waiting = 0.0
        self.dropped_ids, self.num_minibatches = 0, 1
        self._loop, self._samples, self._next = loop, samples, first
        self._pool = ThreadPoolExecutor(1, "preparing")

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __iter__(self) -> Iterator[_Ready]:
        knobs = self._loop.feed.sparsecore or SparseCoreConfig()
        wanted = range(max(1, knobs.maximum_parallel_iterations))
        ahead: deque[Future[_Ready | None]] = deque(self._pool.submit(self._prepare) for _ in wanted)
        first = True
        while True:
            begin = time.perf_counter()
            ready = ahead.popleft().result()
            waited = time.perf_counter() - begin
            if ready is None:
                return
            ahead.append(self._pool.submit(self._prepare))
            if not first:
                self.waiting += waited
                self.preparing += ready.seconds
            first = False
            self.dropped_ids += ready.dropped
            self.num_minibatches = max(self.num_minibatches, ready.minibatches)
            yield ready

    def _prepare(self) -> _Ready | None:
        begin = time.perf_counter()
        number, loop = self._next, self._loop
        self._next += 1
        found = next(self._samples, None)
        if found is None:
            return None
        features, data = found
        with loop.phase("preprocess", (("step", number),)):
            features, hot = loop.feed.without_hot(features, loop.one.hot)
            host = loop.feed.host_batch(features)
        with loop.phase("index", (("step", number),)):
            batch = loop.feed.device_batch(host)
        dropped = sum(int(np.sum(stats.dropped_ids)) for stats in host.stats.values())
        return _Ready(batch, data, hot, time.perf_counter() - begin, dropped, host.num_minibatches)


class _Phases:
    """Measures the phases of one step.

    In turn each is waited for, so that its time is its own, and over processes, whose exchanges must not cross.
    Pipelined all are begun before the first is waited for;
    a phase is drawn from when it could begin, the one before it on its lane being done, to when it was seen to be done.
    """

    def __init__(self, loop: Loop, number: int, overlapped: bool) -> None:
        self._loop, self._args, self._overlapped = loop, (("step", number),), overlapped
        self._pending: list[tuple[str, str, int, Any]] = []

    def __call__(self, lane: str, name: str, work: Callable[[], Any]) -> Any:
        start = self._loop.now()
        made = work()
        self._pending.append((lane, name, start, made))
        if not self._overlapped:
            self.settle()
        return made

    def settle(self) -> None:
        """Wait for all that was begun."""
        free: dict[str, int] = {}
        for lane, name, start, made in self._pending:
            jax.block_until_ready(made)  # type: ignore[no-untyped-call]
            end, start = self._loop.now(), max(start, free.get(lane, 0))
            free[lane] = end
            self._loop.sink.emit(Slice(Track("training", lane), name, start, end - start, self._args))
        self._pending.clear()


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Ctrl-C sets the event; a second one does what it did before."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: object) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, stop)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


# What the processes of one training agree on.

_NAMES = itertools.count()
_KEPT = 8
"""Rounds after which nobody reads a process's word any more."""


def agree_over_processes(timeout_s: float = 300) -> Agree:
    """An ``agree`` for ``preprocess`` over all processes of ``jax.distributed``, which is set up before.

    Every process makes it, and calls it for the same batches in the same order. It may be called from any thread, and
    uses no device. Raises :class:`CheckFailed` where a process does not answer for ``timeout_s`` seconds.

    >>> jax.distributed.initialize("localhost:1234", 2, process_id)  # doctest: +SKIP
    >>> agree = agree_over_processes()  # doctest: +SKIP
    >>> host = preprocess(batch, stacking, limits, sources=range(4, 8), agree=agree)  # doctest: +SKIP
    """
    client: Any = getattr(multihost_utils, "distributed").global_state.client  # noqa: B009 - jax exports no way to it
    if client is None:
        how = "call jax.distributed.initialize first"
        raise UsageError("no processes to agree with", where="agree_over_processes", how=how)
    me, count, name, rounds = jax.process_index(), jax.process_count(), next(_NAMES), itertools.count()

    def key(number: int, process: int) -> str:
        return f"tilewright/agree/{name}/{number}/{process}"

    def read(name: str, process: int) -> Agreement:
        try:
            bits, lengths = json.loads(client.blocking_key_value_get(name, int(timeout_s * 1000)))
        except jax.errors.JaxRuntimeError as error:
            how = "see what ended it; finished checkpoints are as they were"
            raise CheckFailed(f"process {process} does not answer", where="agree", how=how) from error
        return Agreement(bits, tuple(lengths))

    def agree(proposal: Agreement) -> Agreement:
        number = next(rounds)
        client.key_value_set(key(number, me), json.dumps([proposal.split_bits, proposal.max_ids]))
        parts = [read(key(number, process), process) for process in range(count)]
        if number >= _KEPT:
            client.key_value_delete(key(number - _KEPT, me))
        return Agreement.join(parts)

    return agree
