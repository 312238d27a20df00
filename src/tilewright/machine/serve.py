"""``quantise``: what a trained model loses when its tables are served in few bits; `tilewright embed quantise`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tilewright.embed import (
    Exported,
    Topology,
    export,
    lookup,
    open_export,
    preprocess,
    restore,
    restore_extra,
    saved_steps,
    stack,
)
from tilewright.errors import UsageError
from tilewright.files import scratch_folder
from tilewright.machine.fit import FitJob, LogSource
from tilewright.machine.model import auc, load_model
from tilewright.machine.train import Judgement

JUDGED = 1 << 16
"""Rows of the log that are judged, at most, where nothing else is said."""


@dataclass(frozen=True)
class QuantiseJob:
    """What is to be judged: a checkpoint of ``model``, on rows of ``data`` (None: a generated log of another seed).

    ``scale_per``: ``row`` or ``table``. ``out``: where the export stays; None: nowhere. ``scale`` is the model's.
    """

    model: Any
    checkpoint: str
    data: str | None = None
    step: int | None = None
    dtype: str = "int8"
    scale_per: str = "row"
    out: str | None = None
    rows: int = JUDGED
    batch: int = 512
    scale: float = 0.01
    seed: int = 1


@dataclass(frozen=True)
class Quantised:
    """The export, its tables' errors among it, and the model judged on ``rows`` rows before and after."""

    job: QuantiseJob
    exported: Exported
    rows: int
    before: Judgement
    after: Judgement

    def to_json(self) -> dict[str, Any]:
        """What `embed quantise --json` prints."""
        judged = {
            name: {key: value if np.isfinite(value) else None for key, value in vars(judgement).items()}
            for name, judgement in (("before", self.before), ("after", self.after))
        }
        made = self.exported.to_json() | {"path": self.job.out}
        return {"kind": "quantised_tables", "model": str(self.job.model), "rows": self.rows, **judged, "export": made}


def quantise(job: QuantiseJob, on_stage: Callable[[str], None] = lambda name: None) -> Quantised:
    """Export the checkpoint's tables, and judge the model with the rows it has and with those that are served.

    Raises :class:`UsageError` for what `fit` and `export` refuse, and for a log of less than a batch.
    """
    on_stage("model")
    model = load_model(job.model)
    features = model.hashed(job.scale).features
    topology = Topology(1, 1)
    stacking = stack(features, topology)
    on_stage("restore")
    if not saved_steps(job.checkpoint):
        raise UsageError("no finished checkpoint", where=job.checkpoint, how="train one with `tilewright embed train`")
    state = restore(job.checkpoint, stacking, job.step, slots=False)
    params = model.init(jax.random.key(0))
    like = {"params": params, "optimizer_state": model.optimizer().init(params)}
    leaves = jax.tree.leaves(restore_extra(job.checkpoint, like, job.step))
    params = jax.tree.unflatten(jax.tree.structure(like), leaves)["params"]
    with _place(job.out) as path:
        on_stage("export")
        exported = export(path, state, job.dtype, scale=job.scale_per)
        served = open_export(path, check=False)
        on_stage("judge")
        fit_job = FitJob(job.model, job.data, batch=job.batch, scale=job.scale, seed=job.seed)
        batches = list(itertools.islice(LogSource(fit_job, model, features).once(), max(1, job.rows // job.batch)))

        def judged(vectors: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Judgement:
            return _judged(model.loss, params, ((vectors(f), numeric, labels) for f, numeric, labels in batches))

        before = judged(lambda given: lookup(state, preprocess(given, stacking)))
        after = judged(served.lookup)
    return Quantised(job, exported, len(batches) * job.batch, before, after)


@contextmanager
def _place(out: str | None) -> Iterator[str]:
    if out is not None:
        yield out
        return
    with scratch_folder() as folder:
        yield str(folder / "model.tables")


def _judged(loss: Any, params: Any, parts: Iterator[tuple[Any, Any, Any]]) -> Judgement:
    forward = jax.jit(loss)
    losses, scores, labels = [], [], []
    for vectors, numeric, of_part in parts:
        value, logits = forward(params, numeric, dict(vectors), of_part)
        losses.append(float(value))
        scores.append(np.asarray(logits))
        labels.append(np.asarray(of_part))
    return Judgement(float(np.mean(losses)), auc(np.concatenate(labels), np.concatenate(scores)))
