"""Checkpoints of a training: when they are taken, what they hold, and how a training is taken up from one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax

from tilewright.embed.checkpoint.folder import finished_steps, from_first, release, saved_steps, step_folder
from tilewright.embed.checkpoint.restore import damage, restore, restore_extra, whole_step
from tilewright.embed.checkpoint.save import Saving, own_folder, save
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import Limits
from tilewright.embed.training.step import Carry, TrainStep


@dataclass
class Checkpoints:
    """Takes a checkpoint of a :class:`Loop` every ``every`` steps, and after the last one.

    A checkpoint holds tables, slots, dense parameters and the state of their optimizer. ``on_saved`` is called with a
    step when all of it is on disk: from then on it cannot be lost. ``saved``: the steps that were.

    The process that makes one owns the folder until :meth:`close` or its end; over several processes all make one.
    Raises :class:`UsageError` where another training owns the folder, or it cannot be written.
    """

    folder: str
    every: int
    limits: Mapping[str, Limits] | None = None
    on_saved: Callable[[int], None] = lambda step: None
    saved: list[int] = field(default_factory=list)
    _under_way: Saving | None = None

    def __post_init__(self) -> None:
        own_folder(self._path)

    @property
    def _path(self) -> Path:
        return Path(os.path.abspath(self.folder))

    def close(self) -> None:
        """Give the folder back, so that another process may go on; call it when all is saved."""
        release(self._path)

    def pass_over_damaged(self) -> tuple[int | None, dict[str, str]]:
        """The newest step that is whole, every byte of it read; later ones are renamed, as they will be saved again.

        Returns that step, None where none is whole, and what is wrong with the others, by their new names.
        """

        def look() -> tuple[int | None, dict[str, str]]:
            wrong: dict[str, str] = {}
            whole = whole_step(self.folder)
            for step in saved_steps(self.folder):
                if whole is not None and step > whole:
                    aside = f"{step}.damaged-{secrets.token_hex(4)}"
                    wrong[aside] = damage(self._path / str(step))[:300]
                    (self._path / str(step)).rename(self._path / aside)
            return whole, wrong

        found: tuple[int | None, dict[str, str]] = from_first(look)
        return found

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
    if step is None:
        step = int(step_folder(folder, None).name)
    state = restore(folder, stacking, step, mesh=one.mesh, axis=one.axis)
    fresh = one.start(params, state, donate=True)
    like = {"params": fresh.params, "optimizer_state": fresh.optimizer_state}
    extra = restore_extra(folder, like, step)
    # Orbax gives lists and dicts for containers of other kinds.
    structure = jax.tree.structure(like)
    extra = jax.tree.unflatten(structure, jax.tree.leaves(extra))
    return replace(fresh, params=extra["params"], optimizer_state=extra["optimizer_state"]), step
