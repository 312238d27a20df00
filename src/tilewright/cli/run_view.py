"""How `tilewright run` looks: stages as they pass on stderr, a summary table at the end on stdout."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from tilewright.machine import RunReport
from tilewright.render import Column, bytes_text, count_text, print_table, seconds_text


class StageView:
    """One progress line per stage; away from a terminal one plain line when a stage ends."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (SpinnerColumn(finished_text="*"), TextColumn("{task.description:<15}"), BarColumn(24))
        self._bar = Progress(*columns, MofNCompleteColumn(), TimeElapsedColumn(), console=self._console)
        self._stage, self._since = "", 0.0
        self._task: TaskID | None = None

    def __enter__(self) -> StageView:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._end()
        if self._console.is_terminal:
            self._bar.stop()

    def watch(self, stage: str, done: int, total: int) -> None:
        """Take a word from the run."""
        if stage != self._stage:
            self._end()
            self._stage, self._since = stage, time.perf_counter()
            if self._console.is_terminal:
                self._task = self._bar.add_task(stage, total=None)
        if self._console.is_terminal and self._task is not None and total:
            self._bar.update(self._task, completed=done, total=total)

    def _end(self) -> None:
        if not self._stage:
            return
        if self._console.is_terminal and self._task is not None:
            total = self._bar.tasks[self._task].total or 1
            self._bar.update(self._task, total=total, completed=total)
        else:
            self._console.print(f"{self._stage}: {seconds_text(time.perf_counter() - self._since)}", highlight=False)


def print_summary(run: RunReport) -> None:
    """A line per stage: what came out and how long it took."""
    rows = [(stage, result, run.stages[stage]) for stage, result in _results(run) if stage in run.stages]
    title = f"{run.model} on {run.chips} x {run.target}: {run.steps} steps of {count_text(run.batch)} samples"
    print_table((Column("stage"), Column("result"), Column("took", "seconds")), rows, title=title)
    total = f"total {seconds_text(sum(run.stages.values()))}, peak memory {bytes_text(run.peak_rss_bytes)}"
    Console().print(total, highlight=False)


def _results(run: RunReport) -> list[tuple[str, str]]:
    movement, plan = run.movement, run.plan
    moved = movement.report
    verdicts = [
        f"{name}: {len(done.rewrites)} rewritten, {len(done.refusals)} left alone, "
        f"{bytes_text(done.moved_before)} -> {bytes_text(done.moved_after)}"
        for name, done in movement.optimized.items()
    ]
    where = "held out" if run.data.held_out else "the training rows"
    above = sum(bool(product.above_minimum) for product in run.matrix)
    misses = f" (cache misses of {above} products above their minimum)" if above else ""
    equal = "DIFFERENT from the closed forms" if run.counts_equal is False else f"equal to the closed forms{misses}"
    values = "DIFFERENT from XLA's" if run.values_equal is False else "equal to XLA's within rounding"
    instructions = sum(product.counts.instructions for product in run.matrix)
    counted = f"{count_text(instructions)} mm instructions; counts {equal}, values {values}"
    return [
        ("model", f"{len(plan.tables)} tables in {len(plan.stacks)} {'stack' if len(plan.stacks) == 1 else 'stacks'}"),
        ("data", f"{count_text(len(run.data.train))} rows ({run.data.source})"),
        ("plan", f"{plan.verdict}; imbalance {max(s.imbalance for s in plan.stacks):.2f}"),
        ("start", f"fresh parameters; tables of {bytes_text(plan.heap.tables)} a chip"),
        ("movement", f"{bytes_text(moved.moved_bytes)} moved by {len(moved.ranked())} operations on {run.target}"),
        ("proof", f"{'; '.join(verdicts)}; largest difference {run.proof.max_difference:.1e}"),
        (
            "evaluate",
            f"loss {run.loss_before:.4f}, AUC {run.auc_before:.4f} on {len(run.data.evaluate)} rows ({where})",
        ),
        ("train", f"loss of the last step {run.losses[-1]:.4f}"),
        ("evaluate again", f"loss {run.loss_after:.4f}, AUC {run.auc_after:.4f}"),
        ("matrix unit", counted if run.matrix else "no plain float32 product in the step"),
    ]
