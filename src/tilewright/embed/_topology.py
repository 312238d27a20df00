"""How many SparseCores there are, and how they are grouped into devices and chips."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.embed._tables import count
from tilewright.errors import UsageError
from tilewright.targets import Target, target

__all__ = ["Topology"]


@dataclass(frozen=True)
class Topology:
    """``chips`` with ``sparsecores_per_chip`` each; ``devices`` counts what a program sees (0 = one per chip).

    >>> t = Topology(chips=2, sparsecores_per_chip=4)
    >>> t.sparsecores, t.devices, t.sparsecores_per_device
    (8, 2, 4)
    """

    chips: int
    sparsecores_per_chip: int
    devices: int = 0

    def __post_init__(self) -> None:
        """Every device has the same number of SparseCores, at least one."""
        chips = count(self.chips, "chips", "topology")
        object.__setattr__(self, "chips", chips)
        per_chip = count(self.sparsecores_per_chip, "sparsecores_per_chip", "topology")
        object.__setattr__(self, "sparsecores_per_chip", per_chip)
        devices = count(self.devices, "devices", "topology", least=0) or chips
        object.__setattr__(self, "devices", devices)
        if self.sparsecores % devices:
            what = f"{self.sparsecores} SparseCores do not divide over {devices} devices"
            raise UsageError(what, where="topology", how="give a number of devices that divides them")

    @property
    def sparsecores(self) -> int:
        """S, the number of SparseCores, which is also the number of shards of every table."""
        return self.chips * self.sparsecores_per_chip

    @property
    def sparsecores_per_device(self) -> int:
        """SparseCores behind one device of the program."""
        return self.sparsecores // self.devices

    @classmethod
    def for_target(cls, name: str | Target, chips: int = 1) -> Topology:
        """The topology of ``chips`` chips of a target.

        >>> Topology.for_target("tpu-v5p", chips=4).sparsecores
        16
        """
        chip = target(name)
        if chip.sparse is None:
            how = "take one with SparseCores, such as tpu-v5p, or give a Topology of your own"
            raise UsageError(f"{chip.name} has no SparseCores", where="target", how=how)
        chips = count(chips, "chips", "topology")
        return cls(chips, chip.sparse.per_chip, devices=chips * chip.sparse.devices_per_chip)
