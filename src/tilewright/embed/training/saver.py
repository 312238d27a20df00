"""Checkpoints of a training: when they are taken, what they hold, and how a training is taken up from one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from tilewright.embed.checkpoint.restore import restore, restore_extra
from tilewright.embed.checkpoint.save import Saving, save
from tilewright.embed.checkpoint.steps import finished_steps, saved_steps
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import Limits
from tilewright.embed.training.step import Carry, TrainStep


@dataclass
class Checkpoints:
    """Takes a checkpoint of a :class:`Loop` every ``every`` steps, and after the last one.

    A checkpoint holds tables, slots, dense parameters and the state of their optimizer. ``on_saved`` is called with a
    step when all of it is on disk: from then on it cannot be lost. ``saved``: the steps that were.
    """

    folder: str
    every: int
    limits: Mapping[str, Limits] | None = None
    on_saved: Callable[[int], None] = lambda step: None
    saved: list[int] = field(default_factory=list)
    _under_way: Saving | None = None

    def save(self, carry: Carry, step: int) -> None:
        """Begin to write a drained carry; training goes on."""
        self.settle(wait=True)
        extra = {"params": carry.params, "optimizer_state": carry.optimizer_state}
        self._under_way = save(self.folder, carry.state, step, extra, limits=self.limits)

    def settle(self, wait: bool) -> None:
        """Tell of the step under way if it is finished; with ``wait`` once it is.

        Raises :class:`TilewrightError` where it could not be written.
        """
        saving = self._under_way
        if saving is None or not (wait or saving.step in finished_steps(self.folder)):
            return
        self._under_way = None
        saving.wait()
        self.saved.append(saving.step)
        self.on_saved(saving.step)


def resume(one: TrainStep, params: Any, stacking: Stacking, folder: str, step: int | None = None) -> tuple[Carry, int]:
    """The carry of a checkpoint (the last one), and how many batches it was trained on.

    ``params``: dense parameters of the model, whose values do not matter. Chips, stacks and pipelining may be others
    than when it was saved.

    Raises :class:`UsageError` that says what does not fit, or what is missing or damaged.
    """
    state = restore(folder, stacking, step, mesh=one.mesh, axis=one.axis)
    step = saved_steps(folder)[-1] if step is None else step
    fresh = one.start(params, state, donate=True)
    like = {"params": fresh.params, "optimizer_state": fresh.optimizer_state}
    extra = restore_extra(folder, like, step)
    # Orbax gives lists and dicts for containers of other kinds.
    structure = jax.tree.structure(like)
    extra = jax.tree.unflatten(structure, jax.tree.leaves(extra))
    return replace(fresh, params=extra["params"], optimizer_state=extra["optimizer_state"]), step
