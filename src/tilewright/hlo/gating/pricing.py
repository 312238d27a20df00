"""What a region costs before and after a rule, on one target, and what kind of number that is.

================  ====================================================================================================
a TPU             modelled time of both regions (``../timing``); where an operation has no time, unpriced
``cpu``, ``gpu``  the factor measured at the rule's example, where there is one
other targets     padded bytes of every array the region makes and reads
================  ====================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import TilewrightError
from tilewright.hlo.gating.moves import layout_of
from tilewright.hlo.graphs.graph import Block
from tilewright.hlo.graphs.mlir import block_program
from tilewright.hlo.rules.catalogue import factor_on
from tilewright.hlo.timing.estimate import estimate
from tilewright.render import bytes_text
from tilewright.targets import Target

#: A gain below this is taken for noise of the model.
LEAST = 1.02


@dataclass(frozen=True)
class Gain:
    """How many times as fast (or as small) a region becomes.

    ``kind``: ``predicted`` (the time model), ``confirmed`` (the compiler or a measurement, at the example's shapes),
    ``counted`` (padded bytes) or ``unpriced``. ``seconds`` is the modelled time saved, 0 where there is no model.
    """

    factor: float
    kind: str
    note: str
    seconds: float = 0.0


def measured_kind(target: Target) -> bool:
    """A target whose rules are judged by measurement alone."""
    return target.name in ("cpu", "gpu")


def price(rule: str, before: Block, after: Block, target: Target) -> Gain:
    """What a rule gains on a region: blocks that hold what it replaces, and what it puts in its place."""
    known = factor_on(rule, target.name)
    if measured_kind(target):
        if known is None:
            return Gain(1.0, "unpriced", f"nobody has measured it on {target.name}")
        return Gain(known.factor, "confirmed", f"{known} at the example's shapes")
    if target.family == "tpu":
        gain = _modelled(before, after, target)
        if known is not None and (gain.kind == "unpriced" or gain.factor < LEAST):
            return Gain(known.factor, "confirmed", f"{known} at the example's shapes; the time model does not see it")
        note = f"; at the example's shapes {known}" if known is not None else ""
        return Gain(gain.factor, gain.kind, gain.note + note, gain.seconds)
    sizes = [padded_bytes(block, target) for block in (before, after)]
    factor = sizes[0] / max(sizes[1], 1)
    return Gain(factor, "counted", f"its arrays take {bytes_text(sizes[1])} instead of {bytes_text(sizes[0])}")


def _modelled(before: Block, after: Block, target: Target) -> Gain:
    try:
        steps = [estimate(block_program(block), target) for block in (before, after)]
    except TilewrightError as error:
        return Gain(1.0, "unpriced", f"the time model has no price for it ({error})")
    seconds = [step.seconds - step.call_seconds for step in steps]
    if min(step.priced for step in steps) < 1 or min(seconds) <= 0:
        return Gain(1.0, "unpriced", "the time model has no price for some of its operations")
    factor = seconds[0] / seconds[1]
    note = f"predicted {seconds[1] * 1e6:.3g} us instead of {seconds[0] * 1e6:.3g} us"
    return Gain(factor, "predicted", note, seconds[0] - seconds[1])


def padded_bytes(block: Block, target: Target) -> int:
    """Padded bytes of all that a block's operations make, constants and counting left out."""
    made = (value for op in block.operations[:-1] if op.name not in ("constant", "iota") for value in op.results)
    return sum(layout.size_bytes for value in made if (layout := layout_of(value, target)) is not None)
