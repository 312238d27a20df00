"""`tilewright embed train`: train a model file on a log, with checkpoints."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.embed.processes import first_of_all, joined, start_all
from tilewright.cli.streams import Json, emit_json, emit_text, progress, remark, write_file, writer_of
from tilewright.extras import need

if TYPE_CHECKING:
    from tilewright.machine import FitJob, Fitted
    from tilewright.render import Card


def train(
    model: Annotated[str, typer.Argument(help="A model file, such as examples/dlrm.py.")],
    data: Annotated[
        str | None,
        typer.Option(help="Parquet, CSV or TSV with a header, .npz, Criteo's TSV. None: a generated click log."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Training steps, counted from the training's start.")] = 100,
    batch: Annotated[int, typer.Option(help="Samples per step, over all chips.")] = 512,
    target: Annotated[str, typer.Option(help="The chip whose SparseCores hold the tables.")] = "tpu-v5p",
    chips: Annotated[int, typer.Option(help="Number of chips.")] = 1,
    limits: Annotated[str | None, typer.Option(help="A limits file. None: learnt from the first 64 batches.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Folder of the checkpoints. None: none is taken.")] = None,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints (0: one, after the last step).")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="With --resume: from the last checkpoint that is whole.")
    ] = False,
    pipelined: Annotated[
        bool, typer.Option("--pipelined", help="Lookups, dense part and updates of three batches at once.")
    ] = False,
    detect_nan: Annotated[
        bool, typer.Option("--detect-nan/--no-detect-nan", help="Stop at a loss or gradient that is not finite (stop).")
    ] = True,
    processes: Annotated[
        int, typer.Option(help="Processes on this machine (jax.distributed), each with its share of the chips.")
    ] = 1,
    scale: Annotated[float, typer.Option(help="Given to the model's features(scale).")] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of parameters, tables and a generated log.")] = 0,
    as_json: Json = False,
    out: Annotated[
        str | None, typer.Option("-o", "--out", help="Write page.html (loss curves) or trace.pftrace (the phases).")
    ] = None,
) -> None:
    """Train a model with embedding tables, batch by batch of a log.

    With --pipelined a page shows the curve of the same steps taken in turn beside it, which it trains first. Ctrl-C
    ends after the step, once a checkpoint that is being written is on disk; what came after it is trained again with
    --resume. A damaged checkpoint is refused; with --skip-damaged it is renamed, and the last whole one taken. A folder
    of checkpoints takes one training at a time.
    """
    suffix = writer_of(out, ".html", ".pftrace", stdout=False)
    need("jax", "optax", *["orbax"] * bool(checkpoint), what="`embed train`")
    if processes != 1 and not joined():
        start_all(processes, chips, target)
        return
    from tilewright.machine import FitJob

    job = FitJob(
        *(model, data, target, chips, steps, batch, limits, checkpoint, save_every, resume, pipelined, detect_nan),
        *(scale, seed, skip_damaged),
    )
    in_turn = None
    if suffix == ".html" and pipelined and not resume:
        in_turn = _watched(replace(job, pipelined=False, checkpoint=None, save_every=0), "in turn")
    fitted = _watched(job, "train")
    if not first_of_all():
        return
    if out is not None and suffix == ".html":
        write_file(out, _page(fitted, in_turn))
    elif out is not None:
        from tilewright.trace import write_perfetto

        write_perfetto(fitted.recorder, out)
    if as_json:
        emit_json(fitted.to_json())
    else:
        _print(fitted)
    if out is not None:
        remark(f"wrote {out}")


def _watched(job: FitJob, name: str) -> Fitted:
    """Train, with a line of progress on a terminal and a remark for every checkpoint."""
    from tilewright.machine import FitWatch, fit

    told: set[str] = set()

    def tell(text: str) -> None:
        if text not in told and first_of_all():
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

        watch = FitWatch(
            on_stage=lambda stage: advance(0, None, f"{name}: {stage}"),
            on_step=on_step,
            on_saved=lambda step: tell(f"step {step} is saved"),
            on_remark=tell,
        )
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *place: tell(str(message))
            return fit(job, watch)


def _print(fitted: Fitted) -> None:
    from tilewright.render import count_text, seconds_text

    done, job = fitted.trained, fitted.job
    if not done.losses:
        emit_text(f"nothing to do: step {fitted.first} is the last one asked for")
        return
    last, few = fitted.first + len(done.losses), min(10, len(done.losses))
    means = [sum(part) / few for part in (done.losses[:few], done.losses[-few:])]
    way = "pipelined" if job.pipelined else "in turn"
    where = "1 device" if fitted.devices == 1 else f"{fitted.devices} devices"
    lines = [
        f"{fitted.name}: steps {fitted.first + 1} to {last} of {count_text(job.batch)} samples, {way}, on {where}",
        f"loss: {means[0]:.3f} over the first {few} of them, {means[1]:.3f} over the last {few}",
        f"speed: {fitted.examples_per_second:,.0f} examples/s; {done.hidden:.0%} of the host's "
        f"{seconds_text(done.preparing)} were hidden",
    ]
    if done.num_minibatches > 1:
        lines.append(f"batches over the limits were cut, into up to {done.num_minibatches} mini-batches")
    if fitted.saved:
        lines.append(f"checkpoints: {', '.join(map(str, fitted.saved))} in {job.checkpoint}")
    emit_text("\n".join(lines))


def _page(fitted: Fitted, in_turn: Fitted | None) -> str:
    """Loss curves, and what they are of."""
    from tilewright.render import Curve, Page, cards, line_chart, paragraph

    facts = [
        ("data", fitted.source),
        ("samples a step", f"{fitted.job.batch:,}"),
        ("chips", f"{fitted.job.chips} {fitted.job.target}"),
        ("examples/s here", f"{fitted.examples_per_second:,.0f}"),
        ("host hidden", f"{fitted.trained.hidden:.0%}"),
    ]
    page = Page(f"Training of {fitted.name}", f"{len(fitted.trained.losses)} steps", facts=facts)
    ways = [("in turn", in_turn), ("pipelined" if fitted.job.pipelined else "in turn", fitted)]
    curves = [_smooth(Curve, label, run) for label, run in ways if run is not None]
    window = _window(fitted)
    title = "Loss of every step" if window == 1 else f"Loss, means of {window} steps"
    chart = line_chart(curves, title=title, x_label="step", y_label="loss", width=720, height=300)
    texts = [
        "Pipelined, gradients reach the tables two steps late, as on a TPU; in turn, each step sees all before it."
        if in_turn is not None
        else "The loss of each batch before it was learnt from.",
        "The losses are computed, not modelled. The speed is this machine's and says nothing of a TPU's.",
    ]
    page.section("loss", "What came out", cards(_figures(fitted)), chart, *map(paragraph, texts))
    page.data("training", fitted.to_json())
    if in_turn is not None:
        page.data("training-in-turn", in_turn.to_json())
    return page.html()


def _figures(fitted: Fitted) -> list[Card]:
    """The loss at the ends of the training, the speed here, and what the host cost."""
    from tilewright.render import Card, count_text

    losses = fitted.trained.losses
    few = max(1, min(10, len(losses)))
    first, last = (sum(part) / few for part in (losses[:few], losses[-few:]))
    return [
        Card("loss", f"{last:.3f}", f"{first:.3f} at the start; means of {few}", "good" if last < first else "bad"),
        Card("examples/s", count_text(round(fitted.examples_per_second)), "on this machine"),
        Card("host hidden", f"{fitted.trained.hidden:.0%}", "of preparing the batches, behind the steps"),
    ]


def _window(fitted: Fitted) -> int:
    """Steps of which a point is the mean: at most some 120 points are drawn."""
    return max(1, math.ceil(len(fitted.trained.losses) / 120))


def _smooth(curve: Any, label: str, run: Fitted) -> Any:
    losses, window = run.trained.losses, _window(run)
    starts = range(0, len(losses) - window + 1, window)
    xs = [run.first + start + (window + 1) / 2 for start in starts]
    return curve(label, xs, [sum(losses[start : start + window]) / window for start in starts])
