"""`tilewright embed train`, `export` and `quantise`: train a model file on a log, and write its tables for serving.

Several processes on this machine train together under jax.distributed.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import IO, Annotated, Any

from typer import Argument, Exit

from tilewright import embed, machine, trace
from tilewright.cli.embed.model import ModelOptions
from tilewright.cli.options import Files, Json
from tilewright.cli.streams import progress
from tilewright.errors import CheckFailed, UsageError
from tilewright.extras import need
from tilewright.render.delivery import Answer, Form, Line, Output, deliver, remark
from tilewright.render.drawing import Curve, line_chart
from tilewright.render.formats import bytes_text, count_text, counted, seconds_text
from tilewright.render.page import Card, Page, cards
from tilewright.render.tables import Heading, Table


@dataclass(frozen=True)
class Training:
    """The options that are a :class:`machine.FitJob`'s fields."""

    data: Annotated[str | None, "Parquet, CSV or TSV with a header, .npz, Criteo's TSV. None: generated clicks."] = None
    steps: Annotated[int, "Training steps, counted from the training's start."] = 100
    limits: Annotated[str | None, "A limits file, over the file's. None: learnt from the first 64 batches."] = None
    renew_limits: Annotated[int, "Steps after which limits become what was seen so far (0: never)."] = 0
    headroom: Annotated[float, "Raise renewed and written limits by this share, rounded up to 8."] = 0.1
    checkpoint: Annotated[str | None, "Folder of the checkpoints. None: none is taken."] = None
    save_every: Annotated[int, "Steps between checkpoints (0: one, after the last step)."] = 0
    resume: Annotated[bool, "Go on from the last checkpoint."] = False
    skip_damaged: Annotated[bool, "With --resume: from the last checkpoint that is whole."] = False
    pipelined: Annotated[bool, "Lookups, dense part and updates of three batches at once."] = False
    detect_nan: Annotated[bool, "--detect-nan/--no-detect-nan", "Stop at a loss or gradient that is not finite."] = True
    scale: Annotated[float, "Given to the model's features(scale)."] = 0.01
    seed: Annotated[int, "Seed of parameters, tables and a generated log."] = 0


def train(
    model: Annotated[str, Argument(help="A model file, such as examples/dlrm.py.")],
    of: Training,
    config: Annotated[str | None, "A TOML file of tables, as plan takes it, instead of the model's features()."] = None,
    batch: Annotated[int | None, "Samples per step, over all chips, over the file's (512)."] = None,
    target: Annotated[str | None, "--target", "-t", "The chip with the tables, over the file's (tpu-v5p)."] = None,
    chips: Annotated[int | None, "Number of chips, over the file's (1)."] = None,
    processes: Annotated[int, "Processes on this machine (jax.distributed), each with its share of the chips."] = 1,
    *,
    to: Annotated[Output, Files(".html loss curves", ".pftrace", ".json limits as asked of partitions", stdout=False)],
) -> None:
    """Train a model with embedding tables, batch by batch of a log.

    With --pipelined a page shows the curve of the same steps taken in turn beside it, which it trains first. Ctrl-C
    ends after the step, once a checkpoint that is being written is on disk; what came after it is trained again with
    --resume. A damaged checkpoint is refused; with --skip-damaged it is renamed, and the last whole one taken. A folder
    of checkpoints takes one training at a time.
    """
    need("jax", "optax", *["orbax"] * bool(of.checkpoint), what="`embed train`")
    options = {"batch": batch, "target": target, "chips": chips}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    tables = None if config is None else ModelOptions(config, **given).configured()
    if processes != 1 and not _joined():
        where_of = (tables.chips, tables.target) if tables else (given.get("chips", 1), given.get("target", "tpu-v5p"))
        _start_all(processes, *where_of)
        return
    job = machine.FitJob(model, config=tables, **vars(of), **given).settled()
    in_turn = None
    if to.suffix == ".html" and of.pipelined and not of.resume:
        in_turn = _watched(replace(job, pipelined=False, checkpoint=None, save_every=0), "in turn")
    fitted = _watched(job, "train")
    if not _is_first():
        return
    forms: dict[str, Form] = {
        ".html": lambda: _page(fitted, in_turn),
        ".pftrace": lambda: trace.perfetto_bytes(fitted.recorder),
        ".json": fitted.limits_json,
    }
    deliver(Answer(fitted.to_json, lambda: _lines(fitted)), to, forms)


def _watched(job: machine.FitJob, name: str) -> Any:
    """Train, with a line of progress on a terminal and a remark for every checkpoint."""
    told: set[str] = set()

    def tell(text: str) -> None:
        if text not in told and _is_first():
            told.add(text)
            remark(text)

    with progress(name, job.steps) as advance:
        begin, begun = 0.0, -1

        def on_step(done: int, loss: float) -> None:
            nonlocal begin, begun
            now = time.perf_counter()
            if begun < 0:  # the first step compiles
                begin, begun = now, done
            rate = (done - begun) * job.batch / (now - begin) if done > begun else math.nan
            advance(done, job.steps, f"{name}: loss {loss:.4f}, {rate:,.0f} examples/s")

        watch = machine.FitWatch(
            on_stage=lambda stage: advance(0, None, f"{name}: {stage}"),
            on_step=on_step,
            on_saved=lambda step: tell(f"step {step} is saved"),
            on_remark=tell,
        )
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *place: tell(str(message))
            return machine.fit(job, watch)


def _ends(fitted: Any) -> tuple[int, float, float]:
    """How many losses are averaged at each end, and the means over the first and the last of them."""
    losses = fitted.trained.losses
    few = max(1, min(10, len(losses)))
    return few, sum(losses[:few]) / few, sum(losses[-few:]) / few


def _lines(fitted: Any) -> Iterator[Line]:
    done, job = fitted.trained, fitted.job
    if not done.losses:
        yield f"nothing to do: step {fitted.first} is the last one asked for"
        return
    few, first, last = _ends(fitted)
    way, where = "pipelined" if job.pipelined else "in turn", counted(fitted.devices, "device")
    steps = f"steps {fitted.first + 1} to {fitted.first + len(done.losses)} of {count_text(job.batch)} samples"
    yield f"{fitted.name}: {steps}, {way}, on {where}"
    yield f"loss: {first:.3f} over the first {few} of them, {last:.3f} over the last {few}"
    host = f"{done.hidden:.0%} of the host's {seconds_text(done.preparing)} were hidden"
    yield f"speed: {fitted.examples_per_second:,.0f} examples/s; {host}"
    if done.num_minibatches > 1:
        yield f"batches over the limits were cut, into up to {done.num_minibatches} mini-batches"
    if fitted.saved:
        yield f"checkpoints: {', '.join(map(str, fitted.saved))} in {job.checkpoint}"


def _page(fitted: Any, in_turn: Any | None) -> str:
    """Loss curves, and what they are of."""
    job, steps = fitted.job, len(fitted.trained.losses)
    facts = [("data", fitted.source), ("samples a step", f"{job.batch:,}"), ("chips", f"{job.chips} {job.target}")]
    page = Page(f"Training of {fitted.name}", f"{steps} steps", facts=facts)
    window, curves = max(1, math.ceil(steps / _MOST_POINTS)), []
    for run in filter(None, (in_turn, fitted)):
        losses = run.trained.losses
        starts = range(0, len(losses) - window + 1, window)
        means = [sum(losses[start : start + window]) / window for start in starts]
        middles = [run.first + start + (window + 1) / 2 for start in starts]
        curves.append(Curve("pipelined" if run.job.pipelined else "in turn", middles, means))
    title = "Loss of every step" if window == 1 else f"Loss, means of {window} steps"
    chart = line_chart(curves, title=title, x_label="step", y_label="loss", width=720, height=300)
    few, first, last = _ends(fitted)
    figures = [
        Card("loss", f"{last:.3f}", f"{first:.3f} at the start; means of {few}", "good" if last < first else "bad"),
        Card("examples/s", count_text(round(fitted.examples_per_second)), "on this machine"),
        Card("host hidden", f"{fitted.trained.hidden:.0%}", "of preparing the batches, behind the steps"),
    ]
    late = "Pipelined, gradients reach the tables two steps late, as on a TPU; in turn, each step sees all before it."
    what = "The loss of each batch before it was learnt from." if in_turn is None else late
    whose = "The losses are computed, not modelled. The speed is this machine's and says nothing of a TPU's."
    page.section("loss", "What came out", cards(figures), chart, what, whose)
    page.data("training", fitted.to_json())
    if in_turn is not None:
        page.data("training-in-turn", in_turn.to_json())
    return page.html()


_MOST_POINTS = 120
"""Points of a curve that are drawn: each is then the mean of a window of steps."""


# Several processes on this machine.

_PLACE = "TILEWRIGHT_PROCESS"
"""Where a started process finds its number, how many there are, and the port they meet at."""


def _joined() -> bool:
    """Join the other processes, where this is one of several; False where it is not."""
    place = os.environ.get(_PLACE)
    if place is None:
        return False
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")  # data; what libraries print themselves goes to stderr
    os.dup2(2, 1)
    number, count, port = map(int, place.split())
    machine.join(number, count, port)
    return True


def _is_first() -> bool:
    """Whether this process is the only one, or the one that prints and writes."""
    return os.environ.get(_PLACE, "0").startswith("0")


def _start_all(processes: int, chips: int, target: str) -> None:
    """Run this command as ``processes`` processes with an equal share of the chips' devices each, on the CPU.

    Where one of them ends early the others are ended too, with one error: its own, or that it was killed.
    """
    devices = embed.Topology.for_target(target, chips).devices
    if processes < 1 or devices % processes:
        problem = f"{devices} devices do not divide over {processes} processes"
        raise UsageError(problem, where="--processes", how="take a divisor of them, or more --chips")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices // processes}"
    shared = os.environ | {"XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-P", "-m", "tilewright", *sys.argv[1:]]
    with ExitStack() as files:
        data, *words = (files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(1 + processes))
        started = [
            subprocess.Popen(
                command,
                env=shared | {_PLACE: f"{number} {processes} {port}"},
                stdout=data if number == 0 else subprocess.DEVNULL,
                stderr=words[number],
                start_new_session=True,  # Ctrl-C is for this process to deal with
            )
            for number in range(processes)
        ]
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
            codes = _awaited(started, words[0])
        finally:
            for process in started:
                process.kill()
                process.wait()
        _tell(codes, words)
        data.seek(0)
        sys.stdout.write(data.read())


def _awaited(started: list[subprocess.Popen[bytes]], words: IO[str]) -> list[int | None]:
    """Wait until all have ended well, or one has not and the others had two seconds to end; the exit codes.

    The first process's remarks on steps are printed as they come.
    """
    told, until = 0, math.inf
    while True:
        codes = [process.poll() for process in started]
        words.seek(told)
        while (line := words.readline()).endswith("\n"):
            told = words.tell()
            if line.startswith("step "):
                remark(line.rstrip())
        ended = all(code == 0 for code in codes) or any(code is not None and code < 0 for code in codes)
        if ended or time.monotonic() > until:
            return codes
        if any(codes):
            until = min(until, time.monotonic() + 2)
        time.sleep(0.05)


def _tell(codes: Sequence[int | None], words: Sequence[IO[str]]) -> None:
    """Raise what ended the processes early: a signal, or their own error."""
    if killed := [(number, -code) for number, code in enumerate(codes) if code is not None and code < 0]:
        number, by = min(killed, key=lambda each: each[1] == signal.SIGABRT)  # which is how those left behind end
        problem = f"process {number} of {len(codes)} was ended by {signal.Signals(by).name}"
        how = "finished checkpoints are as they were: go on with --resume"
        raise CheckFailed(problem, where="embed train", how=how)
    if (failed := next((number for number, code in enumerate(codes) if code), None)) is not None:
        lines = []
        for part in words:
            part.seek(0)
            lines += part.read().splitlines()
        said = f"tilewright: process {failed} failed"
        remark(next((line for line in lines if line.startswith("tilewright: ")), said))
        raise Exit(codes[failed] or 1)


# Tables for serving.

_Dtype = Annotated[str, "int8, int4 or bf16."]
_ScalePer = Annotated[str, "One scale for every row, or for the table."]
_Step = Annotated[int | None, "The step of the checkpoint (the last finished one)."]


def export(
    checkpoint: Annotated[str, Argument(help="A folder of checkpoints.")],
    out: Annotated[str, "-o", "--out", "--output", "The file to write."],
    step: _Step = None,
    dtype: _Dtype = "int8",
    scale_per: _ScalePer = "row",
    *,
    to: Json,
) -> None:
    """Write a checkpoint's tables for serving: quantised rows in one file that is mapped into memory."""
    need("jax", "orbax", what="`embed export`")
    features = embed.saved_features(checkpoint, step)
    with progress("restore") as advance:
        state = embed.restore(checkpoint, embed.stack(features, embed.Topology(1, 1)), step, slots=False)
        made = embed.export(out, state, dtype, scale=scale_per, progress=lambda n, total: advance(n, total, "rows"))
    value = {"kind": "embedding_export", **made.to_json()}
    deliver(Answer(lambda: value, lambda: _tables_lines(made)), to)
    if not to.as_json:
        remark(f"wrote {out}")


def quantise(
    model: Annotated[str, Argument(help="The model file the checkpoint was trained with.")],
    checkpoint: Annotated[str, "A folder of checkpoints."],
    data: Annotated[str | None, "A log to judge by, not the one it was trained on. None: generated clicks."] = None,
    step: _Step = None,
    dtype: _Dtype = "int8",
    scale_per: _ScalePer = "row",
    rows: Annotated[int, "Rows to judge by, at most."] = 65536,
    batch: Annotated[int, "Rows that are judged at a time."] = 512,
    scale: Annotated[float, "Given to the model's features(scale)."] = 0.01,
    seed: Annotated[int, "Seed of the generated log."] = 1,
    out: Annotated[str | None, "-o", "--out", "--output", "Keep the export here."] = None,
    *,
    to: Json,
) -> None:
    """Quantise a checkpoint's tables: the error of every table, and the model's AUC and loss before and after."""
    need("jax", "orbax", what="`embed quantise`")
    job = machine.QuantiseJob(model, checkpoint, data, step, dtype, scale_per, out, rows, batch, scale, seed)
    with progress("quantise") as advance:
        made = machine.quantise(job, lambda stage: advance(0, None, stage))
    before, after = made.before, made.after

    def lines() -> Iterator[Line]:
        yield from _tables_lines(made.exported)
        change = after.auc / before.auc - 1
        yield f"AUC of {made.rows:,} rows: {before.auc:.3f} before, {after.auc:.3f} after ({change:+.3%})"
        yield f"loss: {before.loss:.3f} before, {after.loss:.3f} after"

    deliver(Answer(made.to_json, lines), to)
    if out is not None and not to.as_json:
        remark(f"wrote {out}")


def _tables_lines(made: embed.Exported) -> Iterator[Line]:
    yield f"{made.dtype}: {bytes_text(made.file_bytes)}, {made.file_bytes / made.float_bytes:.2f} of float32"
    headings: list[Heading] = ["table", ("rows", "count"), ("width", "count"), "scale", ("bytes", "bytes")]
    headings += ["largest error", "relative"]
    rows = [
        (t.name, t.vocab, t.width, t.encoding, t.file_bytes, f"{t.largest_error:.2g}", f"{t.relative_error:.2%}")
        for t in made.tables
    ]
    yield Table(headings, rows)
