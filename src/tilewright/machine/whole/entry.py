"""``run_program``: any program on a target, from its text to one report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.errors import UsageError
from tilewright.hlo import Program
from tilewright.isa import MatrixUnitConfig
from tilewright.machine.train import Stages, Watch, peak_bytes
from tilewright.machine.whole.local import study_on_npu
from tilewright.machine.whole.parts import Studied
from tilewright.machine.whole.report import ProgramReport
from tilewright.machine.whole.results import Sparse
from tilewright.machine.whole.simt import study_on_matrix_unit
from tilewright.machine.whole.subject import Subject, load_subject
from tilewright.machine.whole.tpu import study_on_tpu
from tilewright.targets import Target
from tilewright.targets import target as find_target


def run_program(
    source: str | Path | Program,
    target: str = "tpu-v5p",
    *,
    arguments: tuple[str, ...] = (),
    config: MatrixUnitConfig | None = None,
    watch: Watch | None = None,
) -> ProgramReport:
    """Plan, run or model, and check a program on ``target``: ``simt``, a chip with a time model, or an NPU with lanes.

    ``source``: ``model.py:function``, a file of functions, or StableHLO. ``arguments``: texts such as ``f32[8,128]``
    instead of the file's own examples. ``config``: the matrix unit of ``simt``. ``watch(stage, done, total)`` is called
    as it goes on.

    >>> report = run_program("examples/int8_mlp.py", "simt")  # doctest: +SKIP
    >>> report.failures  # doctest: +SKIP
    ()
    """
    chip, stages = find_target(target), Stages(watch)
    with stages.stage("model"):
        subject = load_subject(source, arguments)
    left_out = {"embeddings": "the program has no embedding tables"}
    studied, _ = study_on(chip, subject, config, stages)
    return finished(subject, chip, studied, None, left_out, stages)


def study_on(chip: Target, subject: Subject, config: MatrixUnitConfig | None, stages: Stages) -> tuple[Studied, Any]:
    """The stage of this kind of target, and what the program returned where it was run."""
    if chip.simt is not None:
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


def finished(
    subject: Subject, chip: Target, studied: Studied, sparse: Sparse | None, left_out: dict[str, str], stages: Stages
) -> ProgramReport:
    """The report, the modelled step being on the timeline, too."""
    if studied.step is not None:
        for event in studied.step.events():
            stages.recorder.emit(event)
    return ProgramReport(
        *(
            subject.name,
            subject.source or subject.name,
            chip.name,
            studied,
            sparse,
            left_out,
            stages.seconds,
            stages.recorder,
            peak_bytes(),
        )
    )
