"""The DMA controller and the page table's side of it: pages between device memory and L2, shared by all PEs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.isa._config import MatrixUnitConfig
from tilewright.isa._storage import ABSENT, LOADED, LOADING, Storage

if TYPE_CHECKING:
    from tilewright.isa._state import Chip

__all__ = ["Dma", "Transfer", "map_page", "move_in", "move_out", "unmap_page"]


@dataclass(frozen=True)
class Transfer:
    """One page on its way: ``direction`` is in (device memory to L2) or out; cycles are the model's.

    >>> print(Transfer("B", 2, "in", 4096, 0, 528))
    B page 2 in: 4096 bytes, cycles 0 to 528
    """

    storage: str
    page: int
    direction: str
    bytes: int
    start: int
    end: int

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.storage} page {self.page} {self.direction}: {self.bytes} bytes, cycles {self.start} to {self.end}"
        )


@dataclass
class Dma:
    """The controller: transfers one behind the other, in the order they were asked for."""

    config: MatrixUnitConfig
    free: int = 0
    transfers: list[Transfer] = field(default_factory=list)

    def move(self, storage: Storage, page: int, direction: str, now: int) -> int:
        """Start a transfer when the controller is free; the cycle at which it is done."""
        start, size = max(now, self.free), storage.page_bytes
        self.free = start + self.config.dma_latency + -(-size // self.config.dram_bytes_per_cycle)
        self.transfers.append(Transfer(storage.name, page, direction, size, start, self.free))
        return self.free

    def bytes(self, direction: str) -> int:
        """Bytes moved so far, in or out: whole pages."""
        return sum(t.bytes for t in self.transfers if t.direction == direction)


def move_in(chip: Chip, storage: Storage, page: int, now: int) -> bool:
    """Bring a page to L2 and make its entry; False where L2 has no room. Values are there at once."""
    table, size = storage.table, storage.page_bytes
    if table.in_l2[page]:
        return True
    begin = chip.room(size)
    if begin is None:
        return False
    home = storage.home_of(page)
    chip.store[begin : begin + size] = chip.store[home : home + size]
    chip.l2_pages[begin] = size
    chip.forget(begin, size)
    table.create(page, begin, LOADING, in_l2=True, ready=chip.dma.move(storage, page, "in", now))
    return True


def move_out(chip: Chip, storage: Storage, page: int, now: int) -> int:
    """Delete a page's entry, after writing it back if it was stored to; the cycle at which that is done."""
    table, size, done = storage.table, storage.page_bytes, now
    if table.state[page] == ABSENT:
        return done
    if table.in_l2[page] and table.dirty[page]:
        home, begin = storage.home_of(page), int(table.phys[page])
        chip.store[home : home + size] = chip.store[begin : begin + size]
        done = chip.dma.move(storage, page, "out", max(now, int(table.ready[page])))
    unmap_page(chip, storage, page)
    return done


def map_page(chip: Chip, storage: Storage, page: int) -> None:
    """Make an entry for a page without one: loaded, where it stands in device memory."""
    if storage.table.state[page] == ABSENT:
        storage.table.create(page, storage.home_of(page), LOADED, in_l2=False)


def unmap_page(chip: Chip, storage: Storage, page: int) -> None:
    """Delete a page's entry; what stands in L2 is given up."""
    table = storage.table
    if table.in_l2[page]:
        del chip.l2_pages[int(table.phys[page])]
    table.delete(page)
