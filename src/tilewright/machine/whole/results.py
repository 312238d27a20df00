"""What a whole run found, as values and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tilewright.embed import Plan
from tilewright.machine.whole.parts import Studied
from tilewright.render import seconds_text
from tilewright.trace import Recorder


@dataclass(frozen=True)
class Sparse:
    """A recommender's embeddings on the SparseCores of ``chip``: their plan, and the losses around one training step.

    The losses are of one batch, before and after an update by the gradients that the target computed; None where it
    computes nothing.
    """

    chip: str
    plan: Plan
    loss_before: float | None = None
    loss_after: float | None = None

    @property
    def sentence(self) -> str:
        """What was planned, and what was learnt."""
        said = f"Lookups and updates are planned for the SparseCores of a {self.chip}; this target has none."
        if self.plan.feeding is not None:
            said += f" They take at least {seconds_text(self.plan.feeding.step_seconds)} of a step there."
        if self.loss_before is None or self.loss_after is None:
            return said
        return (
            f"{said} One step trained with the gradients that the target computed: the batch's loss goes from "
            f"{self.loss_before:.4f} to {self.loss_after:.4f}."
        )


@dataclass(frozen=True)
class ProgramResults:
    """A program on a target, planned, run or modelled, and checked.

    ==================  ====================================================================================
    ``source``          what it was read from
    ``studied``         the modelled step, memory over time, movement, checks (:class:`Studied`)
    ``sparse``          the embeddings of a recommender, None for a program without tables
    ``left_out``        stages that this program or target has not, with the reason
    ``stages``          stage -> wall seconds
    ==================  ====================================================================================
    """

    model: str
    source: str
    target: str
    studied: Studied
    sparse: Sparse | None
    left_out: dict[str, str]
    stages: dict[str, float]
    recorder: Recorder
    peak_rss_bytes: int

    @property
    def failures(self) -> tuple[str, ...]:
        """What was found to be wrong, in sentences."""
        return tuple(f"{check.what}: {check.said}" for check in self.studied.checks if not check.ok)

    def to_json(self) -> dict[str, Any]:
        """Plain values with a ``schema_version``."""
        studied, sparse = self.studied, self.sparse
        losses = {} if sparse is None else {"loss_before": sparse.loss_before, "loss_after": sparse.loss_after}
        return {
            "schema_version": 1,
            "kind": "program_run",
            "model": self.model,
            "target": self.target,
            "headline": studied.headline,
            "bottleneck": studied.bottleneck,
            "advice": list(studied.advice),
            "step": None if studied.step is None else studied.step.to_json(),
            "memory": studied.memory.to_json(),
            "moved": asdict(studied.moved),
            "verification": [asdict(check) for check in studied.checks],
            **studied.details,
            "embeddings": None if sparse is None else {"chip": sparse.chip, **losses, "plan": sparse.plan.to_json()},
            "left_out": self.left_out,
            "stages": self.stages,
            "peak_rss_bytes": self.peak_rss_bytes,
        }
