"""The stages of a run: how long each takes, reported to a watcher and drawn on the timeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tilewright.trace import Args, Recorder, Slice, Track

Watch = Callable[[str, int, int], None]
"""Called with (stage, steps done, steps in all); the total is 0 where it is not known."""


def _silent(stage: str, done: int, total: int) -> None:
    """Nobody watches."""


class Stages:
    """Measures stages and the phases inside them, in nanoseconds since the run began.

    ``seconds`` maps a stage to its wall time, ``recorder`` holds one slice per stage and phase. Phases of different
    threads go to different lanes.
    """

    def __init__(self, watch: Watch | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.recorder = Recorder()
        self.watch = watch or _silent
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
