"""`tilewright run`: a whole model on a target, from its rows to one report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from tilewright.cli.isa import machine
from tilewright.cli.programs.program import ArgOption
from tilewright.cli.streams import Json, done_text
from tilewright.errors import CheckFailed
from tilewright.extras import installed, need
from tilewright.files import making_folder
from tilewright.render.deliver import Answer, Line, Output, deliver, remark
from tilewright.render.formats import bytes_text, count_text, seconds_text
from tilewright.render.tables import Table

if TYPE_CHECKING:
    from rich.progress import TaskID

    from tilewright.machine import ProgramReport, RunReport


def run(
    model: Annotated[str, Argument(help="A model file such as examples/dlrm.py, model.py:function, or StableHLO.")],
    target: Annotated[
        str, Option(help="tpu-*: modelled; simt: run on the matrix unit; bm1684x: local memory plan.")
    ] = "tpu-v5p",
    chips: Annotated[int, Option(help="Number of chips.")] = 1,
    data: Annotated[str | None, Option(help="Criteo TSV or CSV; without it a log is generated.")] = None,
    steps: Annotated[int, Option(help="Training steps.")] = 100,
    batch: Annotated[int, Option(help="Samples per step, over all chips.")] = 512,
    out: Annotated[str, Option(help="Folder of report.html, report.json and trace.pftrace.")] = "out",
    scale: Annotated[float, Option(help="Share of Criteo's published vocabularies to keep.")] = 0.01,
    seed: Annotated[int, Option(help="Seed of data, parameters and tables.")] = 0,
    arg: ArgOption = None,
    settings: machine.Settings = None,
    as_json: Json = False,
) -> None:
    """Plan, rewrite, prove, train and count a model, or run any program on a target; write one report."""
    need("jax", "optax", "orbax", what="`run`")
    if not installed("perfetto"):
        remark("note: no trace.pftrace will be written; pip install 'tilewright[trace]' brings what writes it")
    from tilewright.machine import ProgramReport
    from tilewright.machine import run as run_model

    # A folder that cannot be written to is better known now than after the run.
    with making_folder(out), StageView() as view:
        report = run_model(
            *(model, target, chips, steps, batch),
            data=data,
            scale=scale,
            seed=seed,
            watch=view.watch,
            arguments=arg or (),
            config=machine.configured(settings) if settings else None,
        )
        view.watch("report", 0, 0)
        written = report.write(out)
    lines = _program_summary(report) if isinstance(report, ProgramReport) else _summary(report)
    deliver(Answer(report.to_json, lambda: lines), Output(as_json=as_json))
    remark(f"wrote {', '.join(str(path) for path in written)}")
    if report.failures:
        raise CheckFailed("; ".join(report.failures), where=model)


class StageView:
    """One progress line per stage; away from a terminal one plain line when a stage ends."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True)
        columns = (SpinnerColumn(finished_text="*"), TextColumn("{task.description:<15}"), BarColumn(24))
        counted = TextColumn("{task.fields[count]}")
        self._bar = Progress(*columns, counted, TimeElapsedColumn(), console=self._console)
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
        """Show that a stage of the run begins, or how far it has come."""
        if stage != self._stage:
            self._end()
            self._stage, self._since = stage, time.perf_counter()
            if self._console.is_terminal:
                self._task = self._bar.add_task(stage, total=None, count="")
        if self._console.is_terminal and self._task is not None and total:
            self._bar.update(self._task, completed=done, total=total, count=done_text(done, total))

    def _end(self) -> None:
        if not self._stage:
            return
        if self._console.is_terminal and self._task is not None:
            total = self._bar.tasks[self._task].total or 1
            self._bar.update(self._task, total=total, completed=total)
        else:
            self._console.print(f"{self._stage}: {seconds_text(time.perf_counter() - self._since)}", highlight=False)


def _summary(run: RunReport) -> Iterator[Line]:
    """A row per stage: what came out and how long it took."""
    rows = [(stage, result, run.stages[stage]) for stage, result in _results(run) if stage in run.stages]
    title = f"{run.model} on {run.chips} x {run.target}: {run.steps} steps of {count_text(run.batch)} samples"
    yield Table(("stage", "result", ("took", "seconds")), rows, title)
    yield f"total {seconds_text(sum(run.stages.values()))}, peak memory {bytes_text(run.peak_rss_bytes)}"


def _program_summary(run: ProgramReport) -> Iterator[Line]:
    """Time and bottleneck, what fits, what moved, what was checked; then what to do."""
    studied, moved = run.studied, run.studied.moved
    rows = [
        ("step", studied.headline),
        ("memory", studied.memory.sentence),
        ("movement", f"{bytes_text(moved.before)} {moved.what} -> {bytes_text(moved.after)}: {moved.how}"),
        *((card.label, f"{card.value} {card.note}") for card in studied.cards),
        *((check.what, check.said) for check in studied.checks),
        *([("embeddings", run.sparse.sentence)] if run.sparse is not None else []),
        *((stage, f"left out: {why}") for stage, why in run.left_out.items()),
    ]
    yield Table(("what", "result"), rows, f"{run.model} on {run.target}")
    yield from (f"- {text}" for text in studied.advice[:5])
    yield f"total {seconds_text(sum(run.stages.values()))}, peak memory {bytes_text(run.peak_rss_bytes)}"


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
