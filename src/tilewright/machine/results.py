"""What a run found, and its JSON. The page reads it; :mod:`tilewright.machine.report` adds the files."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.embed import Plan
from tilewright.hlo import Verdict
from tilewright.machine.data import RunData
from tilewright.machine.movement import Movement, Proof
from tilewright.machine.products import MatrixRun
from tilewright.machine.train import Judgement
from tilewright.trace import Recorder


@dataclass(frozen=True)
class RunResults:
    """Everything a run measured.

    ====================  =======================================================================================
    ``plan``              the embeddings on the target: limits, buffers, HBM, padding, imbalance
    ``movement``          the dense step's data movement and the gate's verdicts per target
    ``proof``             how far the rewritten step is from the original
    ``before``, ``after`` loss and AUC on the evaluation rows
    ``losses``            the loss of every training step
    ``matrix``            the dense layers' products on the matrix unit
    ``stages``            stage -> wall seconds
    ``recorder``          the timeline's events
    ====================  =======================================================================================
    """

    model: str
    target: str
    chips: int
    batch: int
    steps: int
    data: RunData
    plan: Plan
    movement: Movement
    proof: Proof
    before: Judgement
    after: Judgement
    losses: tuple[float, ...]
    matrix: tuple[MatrixRun, ...]
    products_left_out: int
    stages: dict[str, float]
    recorder: Recorder
    peak_rss_bytes: int

    @property
    def loss_before(self) -> float:
        """Mean loss on the evaluation rows before training."""
        return self.before.loss

    @property
    def loss_after(self) -> float:
        """Mean loss on the evaluation rows after training."""
        return self.after.loss

    @property
    def auc_before(self) -> float:
        """Area under the ROC curve before training."""
        return self.before.auc

    @property
    def auc_after(self) -> float:
        """Area under the ROC curve after training."""
        return self.after.auc

    @property
    def counts_equal(self) -> bool | None:
        """Whether the matrix unit's counters equal the closed forms for every product; None where there is none."""
        return all(product.counts_equal for product in self.matrix) if self.matrix else None

    @property
    def values_equal(self) -> bool | None:
        """Whether the matrix unit's values equal XLA's within the rounding of float32; None where there is none."""
        return all(product.values_equal for product in self.matrix) if self.matrix else None

    @property
    def failures(self) -> tuple[str, ...]:
        """What the run found to be wrong, in sentences; empty when all agrees."""
        failures = []
        if self.counts_equal is False:
            failures.append("the matrix unit's counts differ from the closed forms")
        if self.values_equal is False:
            failures.append("the matrix unit's values differ from XLA's by more than rounding")
        if not math.isfinite(self.loss_after):
            failures.append(f"training diverged: the loss is {self.loss_after}")
        return tuple(failures)

    def to_json(self) -> dict[str, Any]:
        """Plain values with a ``schema_version``; what is not finite (a loss that diverged) becomes None."""
        plain: dict[str, Any] = _finite(self._plain())
        return plain

    def _plain(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "kind": "run",
            **{key: getattr(self, key) for key in ("model", "target", "chips", "batch", "steps")},
            "data": {
                "source": self.data.source,
                "training_rows": len(self.data.train),
                "evaluation_rows": len(self.data.evaluate),
                "held_out": self.data.held_out,
            },
            **{key: getattr(self, key) for key in _FIGURES},
            "losses": list(self.losses),
            "rewrites": {name: [_verdict(v) for v in done.rewrites] for name, done in self.movement.optimized.items()},
            "refusals": {name: [_verdict(v) for v in done.refusals] for name, done in self.movement.optimized.items()},
            "moved": {
                name: {"moved_before": done.moved_before, "moved_after": done.moved_after}
                for name, done in self.movement.optimized.items()
            },
            "modelled_step": {
                "dense_seconds": self.movement.time.seconds,
                "sparse_seconds": self.plan.feeding.step_seconds if self.plan.feeding else None,
                "priced": self.movement.time.priced,
                "notes": list(self.movement.time.notes),
            },
            "max_difference": self.proof.max_difference,
            "proof": asdict(self.proof),
            "counts_equal": self.counts_equal,
            "values_equal": self.values_equal,
            "products": [_product(product) for product in self.matrix],
            "products_left_out": self.products_left_out,
            "plan": self.plan.to_json(),
            "stages": self.stages,
            "peak_rss_bytes": self.peak_rss_bytes,
        }


_FIGURES = ("loss_before", "loss_after", "auc_before", "auc_after")


def _finite(value: Any) -> Any:
    """The same plain value with None for every number that JSON cannot write."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "name": verdict.name,
        "region": verdict.region,
        "source": str(verdict.source) if verdict.source else "",
        "moved_before": verdict.moved_before,
        "moved_after": verdict.moved_after,
        "reason": verdict.reason,
    }


def _product(product: MatrixRun) -> dict[str, Any]:
    return {
        "name": product.name,
        "counts": asdict(product.counts),
        "closed_forms": asdict(product.expected),
        "counts_equal": product.counts_equal,
        "above_minimum": list(product.above_minimum),
        "cycles": product.cycles,
        "error": product.error,
    }
