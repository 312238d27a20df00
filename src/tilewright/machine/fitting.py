"""``fit`` trains a model file on a log, with checkpoints; ``quantise`` judges it served in few bits.

That is what `tilewright embed train` and `tilewright embed quantise` do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from tilewright import embed
from tilewright.errors import UsageError
from tilewright.files import scratch_folder
from tilewright.machine.model import Model, check_model, load_model
from tilewright.machine.stages import Judgement, judged
from tilewright.render.formats import finite
from tilewright.trace import Recorder

AXIS = "chips"
_PLANNED = 64
"""Batches from which limits are learnt."""

_GENERATED = 128
"""Batches of a generated log."""


@dataclass(frozen=True)
class FitJob:
    """What is to be trained. ``resume`` takes up the last checkpoint of ``checkpoint``, and trains to ``steps`` in all;
    with ``skip_damaged`` the last one that is whole, and damaged later ones are renamed.

    ``config``: an :class:`EmbedConfig` in place of the model file's ``features``: its tables, columns, stacks, hot
    rows, knobs and limits are taken, and its ``target``, ``chips`` and ``batch`` instead of those here.

    ``renew_limits``: batches after which the limits become what was seen so far, raised by ``headroom`` (0: never).

    ``data`` None: a generated click log for Criteo's features. ``limits``: a limits file; None: the config's, else
    learnt from the first batches. ``save_every`` 0: after the last step only.
    """

    model: Any
    data: str | None = None
    target: str = "tpu-v5p"
    chips: int = 1
    steps: int = 100
    batch: int = 512
    limits: str | None = None
    checkpoint: str | None = None
    save_every: int = 0
    resume: bool = False
    pipelined: bool = False
    detect_nan: bool = True
    scale: float = 0.01
    seed: int = 0
    skip_damaged: bool = False
    config: embed.EmbedConfig | None = None
    renew_limits: int = 0
    headroom: float = 0.1

    def settled(self) -> FitJob:
        """This job with target, chips and batch as the config has them."""
        own = self.config
        return self if own is None else replace(self, target=own.target, chips=own.chips, batch=own.batch)


@dataclass(frozen=True)
class FitWatch:
    """Called with the name of a stage, after every step, with a checkpoint that cannot be lost any more, and with
    something worth knowing.
    """

    on_stage: Callable[[str], None] = lambda name: None
    on_step: Callable[[int, float], None] = lambda done, loss: None
    on_saved: Callable[[int], None] = lambda step: None
    on_remark: Callable[[str], None] = lambda text: None


@dataclass(frozen=True)
class Fitted:
    """A trained model: what was asked for, what came of it, and the phases of all steps.

    ``recorded``: of every stack the most ids and distinct ids that a batch asked of a partition.
    """

    job: FitJob
    name: str
    source: str
    first: int
    devices: int
    processes: int
    trained: embed.Trained
    saved: tuple[int, ...]
    recorder: Recorder = field(repr=False)
    recorded: Mapping[str, embed.Limits] = field(default_factory=dict)
    tables: embed.EmbedConfig | None = None

    def limits_json(self) -> dict[str, Any]:
        """A limits file of what was recorded, raised by the job's headroom: for the next training."""
        assert self.tables is not None
        plan, hot = self.tables.stacking(), self.tables.hot_rows
        raised = {name: limits.with_headroom(self.job.headroom) for name, limits in self.recorded.items()}
        facts: dict[str, Any] = {"target": self.job.target, "topology": dict(vars(plan.topology))}
        facts |= {"rotation": plan.rotations, "batch": self.job.batch}
        facts |= {"batches": len(self.trained.losses), "basis": "training"}
        return embed.FdoStats.of_limits(raised).limits_json(**facts, hot_rows={n: i.tolist() for n, i in hot.items()})

    @property
    def examples_per_second(self) -> float:
        """Samples a second, from the end of the third step on where there are more; all processes together."""
        steps, done = len(self.trained.losses), self.trained
        if steps > 3:
            return (steps - 3) * self.job.batch / done.steady_seconds
        return steps * self.job.batch / done.seconds if steps else 0.0

    def to_json(self) -> dict[str, Any]:
        job, done = self.job, self.trained
        return {
            "kind": "training",
            "model": self.name,
            "data": self.source,
            **{name: getattr(job, name) for name in ("target", "chips", "batch", "pipelined")},
            **{name: getattr(self, name) for name in ("devices", "processes", "examples_per_second")},
            **{name: getattr(done, name) for name in ("seconds", "hidden", "dropped_ids", "num_minibatches")},
            "resumed_from": self.first if job.resume else None,
            "steps": self.first + len(done.losses),
            "losses": finite(done.losses),
            "host_seconds": done.preparing,
            "host_seconds_waited_for": done.waiting,
            "checkpoints": list(self.saved),
            "recorded": {name: dict(vars(limits)) for name, limits in self.recorded.items()},
        }


def join(number: int, count: int, port: int) -> None:
    """Make this process the ``number``-th of ``count`` on this machine; before anything else is done with jax."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    jax.distributed.initialize(f"localhost:{port}", count, number)


def fit(job: FitJob, watch: FitWatch | None = None) -> Fitted:
    """Train ``job.model`` on the chips' SparseCores, as many of their devices as jax has here.

    With as many jax devices as the chips have, tables and batches are split over them; else one device holds all
    shards. Over several processes (``jax.distributed`` set up before) each feeds its own SparseCores.

    Raises :class:`UsageError` for wrong arguments, model files, logs or checkpoints, :class:`CheckFailed` for a loss or
    gradient that is not finite.
    """
    watch, job = watch or FitWatch(), job.settled()
    watch.on_stage("model")
    model, tables = _prepared(job)
    one = _step(job, model, tables)
    source = LogSource(job, model, tables)
    _check_steps(job)
    saver = None if job.checkpoint is None else embed.Checkpoints(job.checkpoint, job.save_every or job.steps)
    with nullcontext() if saver is None else closing(saver):  # from here on the folder of the checkpoints is ours
        first, stacking = _resumed_step(job, saver, watch), tables.stacking()
        watch.on_stage("plan")
        limits = _limits(job, source, tables)
        watch.on_stage("restore" if first else "start")
        dense, sparse = jax.random.split(jax.random.key(job.seed))
        with jax.default_device(jax.local_devices()[0]) if one.mesh is not None else nullcontext():
            params = model.init(dense)
        if first:
            carry, first = embed.resume(one, params, stacking, str(job.checkpoint), first)
        else:
            state = embed.init(stacking, sparse, mesh=one.mesh, axis=one.axis)
            carry = one.start(params, state, donate=True)
        watch.on_stage("train")
        mine = _own_sparsecores(stacking.topology)
        agree = None if mine is None else embed.agree_over_processes()
        feed = embed.Feed(stacking, limits, sources=mine, agree=agree)
        if job.config is not None:
            feed.sparsecore = tables.sparsecore
        feed.renew_every, feed.headroom = job.renew_limits, job.headroom
        feed.on_renewed = partial(_renewed, watch, saver)
        if saver is not None:
            saver.limits, saver.on_saved = limits, watch.on_saved
        recorder = Recorder()
        loop = embed.Loop(one, feed, recorder, on_step=watch.on_step, saver=saver)
        samples = itertools.islice(source.samples(first, mine, stacking.topology), max(0, job.steps - first))
        trained = loop.train(carry, samples, first)
        devices = 1 if one.mesh is None else one.mesh.size
        saved = tuple(saver.saved) if saver is not None else ()
        done = (first, devices, jax.process_count(), trained, saved, recorder, feed.agreed(), tables)
        return Fitted(job, model.name, source.name, *done)


def _renewed(watch: FitWatch, saver: embed.Checkpoints | None, seen: int, limits: Mapping[str, embed.Limits]) -> None:
    most = max(limits.values(), key=lambda limit: limit.max_ids_per_partition)
    watch.on_remark(
        f"after {seen} batches the limits are renewed: at most {most.max_ids_per_partition} ids a partition"
    )
    if saver is not None:
        saver.limits = limits


def _prepared(job: FitJob) -> tuple[Model, embed.EmbedConfig]:
    """The model, and its tables as the config or the model file describes them, under the limits file."""
    if job.steps < 1:
        raise UsageError(f"{job.steps} steps", how="train at least one step")
    if job.save_every < 0 or (job.save_every and job.checkpoint is None):
        raise UsageError(f"a checkpoint every {job.save_every} steps", how="give a folder, and a number from 1 up")
    if job.skip_damaged and not job.resume:
        raise UsageError("a new training has no checkpoints to skip", how="give --resume with --skip-damaged")
    if job.resume and job.checkpoint is None:
        raise UsageError("nothing to resume", how="name the folder of the checkpoints")
    embed.Topology.for_target(job.target, job.chips).check_batch(job.batch)
    model = load_model(job.model, tables_elsewhere=job.config is not None)
    tables = job.config or model.described(job.scale, job.target, job.chips, job.batch)
    if tables.narrow_packing:
        how = "leave narrow_packing out, and plan with --no-narrow-packing"
        raise UsageError("narrow_packing: training and its checkpoints hold rows in lines of their own", how=how)
    if job.limits is not None:
        tables = tables.under(embed.LimitsFile(job.limits))
    check_model(model, {feature.name: feature.table.width for feature in tables.features}, job.batch)
    return model, tables


def _step(job: FitJob, model: Model, tables: embed.EmbedConfig) -> embed.TrainStep:
    topology = tables.topology

    def loss(params: Any, vectors: Any, numeric: Any, labels: Any) -> Any:
        return model.loss(params, numeric, vectors, labels)[0]

    axis = {}
    if len(jax.devices()) >= topology.devices > 1:
        axis = {"mesh": Mesh(np.asarray(jax.devices()[: topology.devices]), (AXIS,)), "axis": AXIS}
    elif jax.process_count() > 1:
        problem = (
            f"{len(jax.devices())} devices over {jax.process_count()} processes for {topology.devices} of the chips"
        )
        raise UsageError(problem, how="give as many devices as the chips have")
    checks = {"detect_nan": job.detect_nan or tables.sparsecore.detect_nan, "hot": tables.hot_rows}
    return embed.train_step(loss, model.optimizer(), job.pipelined, **checks, **axis)  # type: ignore[arg-type]


def _own_sparsecores(topology: embed.Topology) -> range | None:
    """The SparseCores that this process feeds; None: all."""
    if jax.process_count() == 1:
        return None
    each = topology.sparsecores // jax.process_count()
    return range(each * jax.process_index(), each * (jax.process_index() + 1))


def _check_steps(job: FitJob) -> list[int]:
    """The steps that are there, which must go with what is asked for."""
    if job.checkpoint is None:
        return []
    steps = embed.saved_steps(job.checkpoint)
    if job.resume and not steps:
        raise UsageError("no finished checkpoint to resume", where=job.checkpoint, how="train without --resume first")
    if steps and not job.resume:
        problem = f"there are checkpoints already, up to step {steps[-1]}"
        raise UsageError(problem, where=job.checkpoint, how="give --resume to go on from it, or another folder")
    if steps and steps[-1] > job.steps:
        problem = f"the last checkpoint is of step {steps[-1]}, beyond the {job.steps} asked for"
        raise UsageError(problem, where=job.checkpoint, how="steps are counted from the training's start: ask for more")
    return steps


def _resumed_step(job: FitJob, saver: embed.Checkpoints | None, watch: FitWatch) -> int:
    """Batches that were trained on before."""
    steps = _check_steps(job)  # again: another training may have saved some before the folder was ours
    if not steps or saver is None:
        return 0
    if not job.skip_damaged:
        return steps[-1]
    whole, wrong = saver.pass_over_damaged()
    if whole is None:
        raise UsageError("no checkpoint is whole", where=job.checkpoint or "", how="train anew into another folder")
    for name, why in wrong.items():
        watch.on_remark(f"step {name.partition('.')[0]} is damaged, kept as {name}: {why}")
    watch.on_remark(f"step {whole} is whole: going on from it")
    return whole


def _limits(job: FitJob, source: LogSource, tables: embed.EmbedConfig) -> dict[str, embed.Limits]:
    if job.limits is not None:
        return embed.read_limits(job.limits, tables.topology)
    if tables.limits is not None:
        return dict(tables.limits)
    learnt = embed.plan(
        *(source.features(min(job.steps, _PLANNED)), tables.features, tables.topology),
        target=job.target,
        stacking=tables.stacking(),
        pipelining=job.pipelined,
        apart=tables.hot_rows,
    )
    return learnt.limits


class LogSource:
    """Batches of the log, gone through again and again."""

    def __init__(self, job: FitJob, model: Model, tables: embed.EmbedConfig) -> None:
        self._tables, self._model, self._batch = tables, model, job.batch
        features = tables.in_log
        self._log: embed.Log | None = None
        if job.data is None:
            if {feature.name for feature in features} != set(embed.CATEGORICAL):
                how = "name one with --data: only the 26 columns of Criteo's logs have a generated one"
                raise UsageError("no log", where=model.name, how=how)
            rows = {feature.name: feature.table.vocab for feature in features}
            vocabs = [rows[name] for name in embed.CATEGORICAL]
            self._clicks = embed.synthetic_criteo(job.seed, _GENERATED * job.batch, vocabs)
            self.name = f"generated, seed {job.seed}"
        else:
            values = (*model.numeric, model.label)
            self._log = embed.read_log(job.data, features, job.batch, tables.columns, values=values)
            self.name = self._log.path

    def features(self, most: int) -> Iterator[Mapping[str, Any]]:
        """Features of the first batches, at most one pass."""
        return (features for features, _, _ in itertools.islice(self.one_pass(), most))

    def samples(self, first: int, mine: range | None, topology: embed.Topology) -> Iterator[Any]:
        """What the loop takes, from batch ``first`` on; numbers of this process's samples only."""
        each = self._batch // topology.sparsecores
        rows = slice(None) if mine is None else slice(mine.start * each, mine.stop * each)
        endless = itertools.chain.from_iterable(self.one_pass() for _ in itertools.count())
        for features, numeric, labels in itertools.islice(endless, first, None):
            yield features, (numeric[rows], labels[rows])

    def one_pass(self) -> Iterator[tuple[Mapping[str, Any], Any, Any]]:
        """Whole batches in order: features, f32[batch, numeric], f32[batch]."""
        if self._log is None:
            for clicks in self._clicks.batches(self._batch):
                yield self._tables.batch_of(clicks.features()), clicks.numeric, clicks.labels
            return
        seen = 0
        for part in self._log:
            if part.rows < self._batch:
                break
            seen += 1
            columns = [part.values[name] for name in self._model.numeric]
            numeric = np.stack(columns, axis=1) if columns else np.zeros((part.rows, 0), np.float32)
            yield self._tables.batch_of(part.features), numeric, part.values[self._model.label]
        if not seen:
            how = "take a smaller batch, or a longer log"
            raise UsageError(f"fewer rows than one batch of {self._batch}", where=self.name, how=how)


# What a trained model loses when its tables are served in few bits.

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
    exported: embed.Exported
    rows: int
    before: Judgement
    after: Judgement

    def to_json(self) -> dict[str, Any]:
        judged = {"before": finite(vars(self.before)), "after": finite(vars(self.after))}
        made = self.exported.to_json() | {"path": self.job.out}
        return {"kind": "quantised_tables", "model": str(self.job.model), "rows": self.rows, **judged, "export": made}


def quantise(job: QuantiseJob, on_stage: Callable[[str], None] = lambda name: None) -> Quantised:
    """Export the checkpoint's tables, and judge the model with the rows it has and with those that are served.

    Raises :class:`UsageError` for what `fit` and `export` refuse, and for a log of less than a batch.
    """
    on_stage("model")
    model = load_model(job.model)
    tables = model.described(job.scale, FitJob.target, 1, job.batch)
    stacking = embed.stack(tables.features, embed.Topology(1, 1))
    on_stage("restore")
    if not embed.saved_steps(job.checkpoint):
        raise UsageError("no finished checkpoint", where=job.checkpoint, how="train one with `tilewright embed train`")
    state = embed.restore(job.checkpoint, stacking, job.step, slots=False)
    params = model.init(jax.random.key(0))
    like = {"params": params, "optimizer_state": model.optimizer().init(params)}
    leaves = jax.tree.leaves(embed.restore_extra(job.checkpoint, like, job.step))
    params = jax.tree.unflatten(jax.tree.structure(like), leaves)["params"]
    with _place(job.out) as path:
        on_stage("export")
        exported = embed.export(path, state, job.dtype, scale=job.scale_per)
        served = embed.open_export(path, check=False)
        on_stage("judge")
        fit_job = FitJob(job.model, job.data, batch=job.batch, scale=job.scale, seed=job.seed)
        batches = list(itertools.islice(LogSource(fit_job, model, tables).one_pass(), max(1, job.rows // job.batch)))

        def judge(vectors: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Judgement:
            return judged(model.loss, params, ((vectors(f), numeric, labels) for f, numeric, labels in batches))

        before = judge(lambda given: embed.lookup(state, embed.preprocess(given, stacking)))
        after = judge(served.lookup)
    return Quantised(job, exported, len(batches) * job.batch, before, after)


@contextmanager
def _place(out: str | None) -> Iterator[str]:
    if out is not None:
        yield out
        return
    with scratch_folder() as folder:
        yield str(folder / "model.tables")
