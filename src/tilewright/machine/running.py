"""``run``: a whole model on a target, from its rows to one report, of a recommender or of any program."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tilewright import embed
from tilewright.child import half_of_memory
from tilewright.errors import TilewrightError, UnsupportedError, UsageError
from tilewright.hlo import Program, TimeRow, from_jax, lifetimes
from tilewright.isa import MatrixUnitConfig
from tilewright.machine.model import (
    Model,
    RunData,
    Subject,
    check_model,
    is_recommender,
    load_data,
    load_model,
    load_subject,
)
from tilewright.machine.npu import study_on_npu
from tilewright.machine.report import ProgramReport, RunReport
from tilewright.machine.results import Sparse, Studied
from tilewright.machine.simt import study_on_matrix_unit
from tilewright.machine.stages import (
    DenseStep,
    Judgement,
    MatrixRun,
    Products,
    Stages,
    TrainingState,
    Watch,
    dense_step,
    find_products,
    judged,
    peak_bytes,
    prove,
    run_product,
    study,
)
from tilewright.machine.tpu import hbm, study_on_tpu
from tilewright.render import bytes_text, seconds_text
from tilewright.targets import Target
from tilewright.targets import target as find_target
from tilewright.trace import Slice, Track


def run(
    model: Any,
    target: str = "tpu-v5p",
    chips: int = 1,
    steps: int = 100,
    batch: int = 512,
    *,
    data: str | None = None,
    scale: float = 0.01,
    seed: int = 0,
    watch: Watch | None = None,
    arguments: Sequence[str] = (),
    config: MatrixUnitConfig | None = None,
) -> RunReport | ProgramReport:
    """Plan, study, prove, train and count a recommender model on ``chips`` chips of ``target``; or run any program.

    ``model`` is a model file's path (see :mod:`tilewright.machine`), a module or a :class:`Model`. ``data`` is a
    Criteo TSV or CSV file; without one a click log is generated from ``seed``. ``scale`` is the share of Criteo's
    published vocabularies that the tables keep. ``batch`` divides by the SparseCores. ``watch(stage, done, total)`` is
    called as it goes on.

    Of a recommender on a target without SparseCores the dense step alone is on the target, and one step is trained.

    A program (``model.py:function``, a file of functions, or StableHLO) has no tables: it is planned, run or modelled,
    and checked on ``simt``, a chip with a time model, or an NPU with lanes. ``arguments`` are texts such as
    ``f32[8,128]`` instead of the file's own examples, ``config`` is the matrix unit of ``simt``.

    Raises :class:`UsageError` for wrong arguments, model files or data, :class:`CheckFailed` where the rewritten
    program differs from the original.

    >>> report = run("examples/dlrm.py", target="tpu-v5p", steps=20)  # doctest: +SKIP
    >>> report.loss_after < report.loss_before  # doctest: +SKIP
    True
    >>> run("examples/int8_mlp.py", "simt").failures  # doctest: +SKIP
    ()
    """
    chip, stages = find_target(target), Stages(watch)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):  # a GPU would round its products otherwise
        if not is_recommender(model):
            with stages.stage("model"):
                subject = load_subject(model, tuple(arguments))
            studied, _ = _study_on(chip, subject, config, stages)
            absent = {"embeddings": "the program has no embedding tables"}
            return _finished(subject, chip, studied, None, absent, stages)
        asked = _Asked(model, steps, batch, data, scale, seed, config)
        return _run_recommender(asked, chip, chips, stages)


@dataclass(frozen=True)
class _Asked:
    """What a run of a recommender is asked for: the arguments of :func:`run`."""

    source: Any
    steps: int
    batch: int
    data: str | None
    scale: float
    seed: int
    config: MatrixUnitConfig | None


def _run_recommender(asked: _Asked, chip: Target, chips: int, stages: Stages) -> RunReport | ProgramReport:
    if chip.sparse is None and (chip.simt or chip.lanes or chip.family == "tpu"):
        return _run_beside(_planned_job(asked, find_target(SPARSE_CHIP), 1, stages), chip)
    job = _planned_job(asked, chip, chips, stages)
    _afford(stages, job.plan.heap.total * chips, "tables and buffers of all chips")
    rows, planned, batch, steps = job.rows, job.plan, asked.batch, asked.steps
    with stages.stage("start"):
        state = _start(job)
    step = dense_step(job.model)
    with stages.stage("movement"):
        inputs = _proof_inputs(job, state)
        movement = study(step, inputs[0], chip.name)
        dense = Subject(job.model.name, movement.optimized[chip.name].original)
        memory = hbm(dense, chip, movement.time, planned.heap.total // chip.devices_per_chip)
    with stages.stage("proof"):
        proof = prove(step, movement, inputs)
    with stages.stage("evaluate"):
        before = _judge(job, state, rows.evaluate)
    with stages.stage("train"):
        trained, losses = _train(job, state, movement.rewritten, steps)
    with stages.stage("evaluate again"):
        after = _judge(job, trained, rows.evaluate)
    with stages.stage("matrix unit"):
        products = find_products(step, *_dense_arguments(job, trained))
        matrix = _run_products(job, products)
    return RunReport(
        model=job.model.name, target=chip.name, chips=chips, batch=batch, steps=steps, data=rows, plan=planned,
        movement=movement, proof=proof, before=before, after=after, losses=losses, matrix=matrix,
        products_left_out=products.left, memory=memory, stages=stages.seconds,
        source=str(asked.source) if isinstance(asked.source, str | Path) else "MODEL.py", recorder=stages.recorder,
        peak_rss_bytes=peak_bytes(),
    )  # fmt: skip


_LARGE = 4 << 30


def _afford(stages: Stages, needed: int, what: str) -> None:
    """UnsupportedError where so many bytes (modelled) are more than are allowed; where they are many, a word before."""
    allowed = half_of_memory()
    if needed > allowed:
        how = "a smaller model, batch or --scale; TILEWRIGHT_CHILD_GIB=N allows N GiB"
        raise UnsupportedError(f"{what} take {bytes_text(needed)}, of {bytes_text(allowed)} that are allowed", how=how)
    if needed > _LARGE:
        stages.watch(f"{what} take {bytes_text(needed)}", 0, 0)


def _study_on(chip: Target, subject: Subject, config: MatrixUnitConfig | None, stages: Stages) -> tuple[Studied, Any]:
    """The stage of this kind of target, and what the program returned where it was run."""
    if chip.simt is not None:
        peak = 0
        with suppress(TilewrightError):  # what has no estimate is run without one
            peak = lifetimes(subject.program, SPARSE_CHIP).peak
        _afford(stages, peak, "the program's arrays")
        with stages.stage("matrix unit"):
            return study_on_matrix_unit(
                subject,
                config or MatrixUnitConfig(kb_mode="chunk"),
                lambda done, all_, _: stages.watch("matrix unit", done, all_),
            )
    if config is not None:
        raise UsageError(f"{chip.name} is no matrix unit whose fields could be set", how="--target simt")
    if chip.lanes is not None:
        with stages.stage("local memories"):
            return study_on_npu(subject, chip, lambda done, all_: stages.watch("local memories", done, all_)), None
    with stages.stage("time model"):
        return study_on_tpu(subject, chip), None


def _finished(
    subject: Subject, chip: Target, studied: Studied, sparse: Sparse | None, left_out: dict[str, str], stages: Stages
) -> ProgramReport:
    """The report, the modelled step being on the timeline, too."""
    if studied.step is not None:
        for event in studied.step.events():
            stages.recorder.emit(event)
    return ProgramReport(
        model=subject.name,
        source=subject.source or subject.name,
        target=chip.name,
        studied=studied,
        sparse=sparse,
        left_out=left_out,
        stages=stages.seconds,
        recorder=stages.recorder,
        peak_rss_bytes=peak_bytes(),
    )


SPARSE_CHIP = "tpu-v5p"
"""Whose SparseCores hold the tables of a recommender where the target has none."""


def _run_beside(job: _Job, chip: Target) -> ProgramReport:
    """The tables planned on :data:`SPARSE_CHIP`, the dense step on ``chip``; where that is run, one step is trained."""
    stages = job.stages
    with stages.stage("start"):
        state = _start(job)
        step, first = dense_step(job.model), _dense_arguments(job, state)
        program = from_jax(step, *first)
        program = replace(program, signature=replace(program.signature, example=(first, {})))

    def retrace(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
        return from_jax(step, *args, **kwargs)

    subject = Subject(job.model.name, program, (first, {}), retrace, str(job.asked.source))
    studied, outputs = _study_on(chip, subject, job.asked.config, stages)
    studied, sparse = _with_lookups(studied, job.plan, SPARSE_CHIP), Sparse(SPARSE_CHIP, job.plan)
    if outputs is not None:
        with stages.stage("train"):
            trained, losses = _train(job, state, lambda *_: outputs, 1)
            after = _judge(job, trained, job.rows.train[: job.asked.batch])
        sparse = replace(sparse, loss_before=losses[0], loss_after=after.loss)
    return _finished(subject, chip, studied, sparse, {}, stages)


def _with_lookups(studied: Studied, planned: embed.Plan, chip: str) -> Studied:
    """The step with a lane for the lookups of the next one, which SparseCores do meanwhile."""
    if studied.step is None:
        return studied
    took = planned.traffic.waited
    row = TimeRow(
        f"lookups of the next step, on {chip}", "sparsecore", 0.0, "", 0, 0, "", lane="sparsecore", beside=took
    )
    what = f"lookups of the next step and updates of the last, {seconds_text(took)}"
    what += f", which wait for {planned.traffic.waits_for()} (modelled)"
    note = f"the lane of the SparseCores is a {chip}'s: {what}"
    step = replace(studied.step, rows=(row, *studied.step.rows), notes=(*studied.step.notes, note))
    return replace(studied, step=step)


@dataclass(frozen=True)
class _Job:
    """What every run of a recommender begins with: its parts, checked, its rows, and the plan of its tables."""

    asked: _Asked
    model: Model
    stacking: embed.Stacking
    rows: RunData
    plan: embed.Plan
    stages: Stages


def _planned_job(asked: _Asked, chip: Target, chips: int, stages: Stages) -> _Job:
    """The model checked, its rows read or generated, its tables planned for ``chips`` of ``chip``."""
    batch, steps = asked.batch, asked.steps
    with stages.stage("model"):
        if steps < 1:
            raise UsageError(f"{steps} steps", how="train at least one step")
        if asked.seed < 0:
            raise UsageError(f"a seed of {asked.seed}", how="give a seed from 0 up")
        model, features, stacking = _checked_model(asked, chip, chips)
    with stages.stage("data"):
        rows = load_data(asked.data, features, batch, steps, asked.seed)
    with stages.stage("plan"):
        # The batches that training will see, so that the limits hold for every one of them.
        count = min(steps, len(rows.train) // batch)
        stages.watch("plan", 0, count)
        planned = embed.plan(
            (part.features() for part in rows.training_batches(batch, count)),
            *(features, stacking.topology),
            target=chip,
            stacking=stacking,
            pipelining=False,  # steps are run one after the other
            progress=lambda done: stages.watch("plan", done, count),
        )
    return _Job(asked, model, stacking, rows, planned, stages)


def _checked_model(asked: _Asked, chip: Target, chips: int) -> tuple[Model, tuple[embed.Feature, ...], embed.Stacking]:
    topology = embed.Topology.for_target(chip, chips)
    topology.check_batch(asked.batch, "--batch")
    model = load_model(asked.source)
    features = tuple(model.features(asked.scale))
    if {feature.name for feature in features} != set(embed.CATEGORICAL):
        how = "a model's features are the 26 categorical columns C1 to C26 of the log"
        raise UsageError(f"features called {', '.join(f.name for f in features[:5])} ...", where=model.name, how=how)
    check_model(model, {feature.name: feature.table.width for feature in features}, asked.batch)
    return model, features, embed.stack(features, topology, batch_size=asked.batch)


def _start(job: _Job) -> TrainingState:
    dense, sparse = jax.random.split(jax.random.key(job.asked.seed))
    params = job.model.init(dense)
    return TrainingState(params, job.model.optimizer().init(params), embed.init(job.stacking, sparse))


def _looked_up(job: _Job, state: TrainingState, rows: embed.Clicks) -> Any:
    return embed.lookup(state.embeddings, embed.preprocess(rows.features(), job.stacking))


def _judge(job: _Job, state: TrainingState, rows: embed.Clicks) -> Judgement:
    """Loss and AUC of ``rows`` (whole batches of them) as the state stands."""
    batches = rows.batches(job.asked.batch)
    parts = ((_looked_up(job, state, part), part.numeric, part.labels) for part in batches)
    return judged(job.model.loss, state.params, parts)


def _train(job: _Job, state: TrainingState, step: DenseStep, steps: int) -> tuple[TrainingState, tuple[float, ...]]:
    """(state afterwards, losses) of ``steps`` steps of ``step`` (original or rewritten), the sparse side around it."""

    def gradients(params: Any, vectors: Any, numeric: Any, labels: Any) -> tuple[Any, tuple[Any, Any]]:
        (loss, _), both = step(params, numeric, vectors, labels)
        return loss, both

    stages, batches = job.stages, job.rows.training_batches(job.asked.batch, steps)
    one = embed.train_step(job.model.loss, job.model.optimizer(), gradients=gradients)
    loop = embed.Loop(
        *(one, embed.Feed(job.stacking, job.plan.limits, overflow="error"), stages.recorder, stages.now),
        on_step=lambda done, _: stages.watch("train", done, steps),
    )
    samples = ((rows.features(), (rows.numeric, rows.labels)) for rows in batches)
    done = loop.train(one.start(state.params, state.embeddings), samples)
    return TrainingState(done.carry.params, done.carry.optimizer_state, done.carry.state), done.losses


def _dense_arguments(job: _Job, state: TrainingState) -> tuple[Any, ...]:
    """The arguments of the dense step for the first batch that is trained on."""
    first = job.rows.train[: job.asked.batch]
    return state.params, first.numeric, _looked_up(job, state, first), first.labels


def _proof_inputs(job: _Job, state: TrainingState) -> list[tuple[Any, ...]]:
    """What the proof runs on: the first batch, and three random inputs of small, ordinary and large values."""
    real = _dense_arguments(job, state)
    draw = np.random.default_rng(0)

    def random(like: Any, size: float) -> Any:
        return (size * draw.standard_normal(np.shape(like))).astype(np.float32)

    inputs = [real]
    for size in (0.01, 1.0, 30.0):
        numeric, vectors = jax.tree.map(lambda leaf, size=size: random(leaf, size), real[1:3])
        inputs.append((real[0], numeric, vectors, (draw.random(job.asked.batch) < 0.5).astype(np.float32)))
    return inputs


def _run_products(job: _Job, products: Products) -> tuple[MatrixRun, ...]:
    """Every product on the machine; its math and memory on the timeline, one product behind the other."""
    config, clock, runs = MatrixUnitConfig(), 0, []
    for number, product in enumerate(products.taken):
        job.stages.watch("matrix unit", number, len(products.taken))
        done = run_product(product, config)
        job.stages.recorder.emit(
            Slice(
                Track("matrix unit (1 cycle = 1 ns)", "products"),
                *(done.name, clock, done.cycles),
                (("instructions", done.counts.instructions), ("macs", done.counts.macs)),
            )
        )
        clock += done.cycles
        runs.append(done)
    return tuple(runs)
