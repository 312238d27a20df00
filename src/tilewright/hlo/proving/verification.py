"""What a verification found: one record per trial, and the verdict over all of them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Difference:
    """One element of one output, as both programs and the reference (or "") give it."""

    output: int
    index: tuple[int, ...]
    before: str
    after: str
    reference: str

    def __str__(self) -> str:
        """``output 0 at (3, 1): original 1.5, result 1.25, float64 reference 1.5``."""
        place = f"output {self.output} at {self.index}" if self.index else f"output {self.output}"
        text = f"{place}: original {self.before}, result {self.after}"
        return f"{text}, float64 reference {self.reference}" if self.reference else text


@dataclass(frozen=True)
class Trial:
    """Both programs on one set of inputs, run in one way.

    ====================  ==========================================================================================
    ``inputs``            the kind: ``normal``, ``wide``, ``zeros``, ``denormal``, ``large``, ``lowest``, ``special`` or
                          ``given``
    ``run``               ``jit`` or ``op by op``
    ``seed``              with ``inputs``, makes the same arrays again (``trial_inputs``)
    ``ok``                every element agrees to rounding (integers exactly), is right by the reference, or has an
                          error that is rounding in both programs and at most twice the original's
    ``bit_equal``         every output is equal bit for bit (any NaN equals any NaN, and the two zeros are equal)
    ``max_difference``    largest difference of two elements, in units of the largest element of that output
    ``error_before``      the original's largest distance from the float64 reference, in the same units, or None
    ``error_after``       the rewritten program's
    ``reason``            why it is not ok: the output, and an element that is wrong; "" if it is
    ``difference``        the element the two are furthest apart in, None if they are nowhere apart
    ====================  ==========================================================================================
    """

    inputs: str
    run: str
    seed: int
    ok: bool
    bit_equal: bool
    max_difference: float
    error_before: float | None
    error_after: float | None
    reason: str
    difference: Difference | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: infinities as the text ``inf``."""
        plain = asdict(self)
        for name in ("max_difference", "error_before", "error_after"):
            value = plain[name]
            plain[name] = value if value is None or math.isfinite(value) else str(value)
        return plain


@dataclass(frozen=True)
class Verification:
    """How far two programs are apart on the same inputs.

    ``trials`` holds every :class:`Trial`; ``reference`` says who computed in float64 (``numpy``, ``XLA in float64``,
    or ``none: `` and why); ``remarks`` what else there is to know. The figures are those of the first trial (normal
    inputs, or the given ones), the verdicts are over all.
    """

    trials: tuple[Trial, ...] = field(repr=False)
    reference: str
    remarks: tuple[str, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """Every trial is."""
        return all(trial.ok for trial in self.trials)

    @property
    def bit_equal(self) -> bool:
        """Every trial gave the same bits."""
        return all(trial.bit_equal for trial in self.trials)

    @property
    def worst(self) -> Trial:
        """The first trial that failed, else the one with the largest error or difference."""
        return max(self.trials, key=lambda t: (not t.ok, _finite(t.error_after), t.max_difference))

    @property
    def reason(self) -> str:
        """Why it is not ok: the trial, the output, an element that is wrong; "" if it is."""
        failed = next((trial for trial in self.trials if not trial.ok), None)
        return f"{failed.inputs} inputs, {failed.run}: {failed.reason}" if failed else ""

    @property
    def max_difference(self) -> float:
        """Of the first trial."""
        return self.trials[0].max_difference

    @property
    def error_before(self) -> float | None:
        """Of the first trial."""
        return self.trials[0].error_before

    @property
    def error_after(self) -> float | None:
        """Of the first trial."""
        return self.trials[0].error_after

    def to_json(self) -> dict[str, Any]:
        """Plain values: ok, bit_equal, reference, reason, remarks, trials."""
        return {
            "ok": self.ok, "bit_equal": self.bit_equal, "reference": self.reference, "reason": self.reason,
            "remarks": list(self.remarks), "trials": [trial.to_dict() for trial in self.trials],
        }  # fmt: skip

    def __str__(self) -> str:
        """A few lines: how many trials, the worst case, why not if not."""
        ways = ", ".join(dict.fromkeys(trial.run for trial in self.trials))
        kinds = ", ".join(dict.fromkeys(trial.inputs for trial in self.trials))
        verdict = "equal bit for bit" if self.bit_equal else "they agree" if self.ok else "THEY DIFFER"
        lines = [f"{verdict} in {len(self.trials)} trials ({ways}; {kinds} inputs), reference: {self.reference}"]
        if self.reason:
            lines.append(self.reason)
        elif self.worst.difference:
            lines.append(f"furthest apart on {self.worst.inputs} inputs, {self.worst.run}: {self.worst.difference}")
        return "\n".join([*lines, *self.remarks])


def _finite(error: float | None) -> float:
    return error if error is not None and math.isfinite(error) else -1.0
