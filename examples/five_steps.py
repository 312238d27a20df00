"""The five steps of a run, one after the other, with the machine's state between them.

    ./run python examples/five_steps.py

C = A B with B in pages: the host builds page tables, DMA brings pages in, the host starts a program on two processing
elements, descriptors tell each which part of the tensors is its own, and results go out. Source: paragraph [69].
"""

from __future__ import annotations

import numpy as np

from tilewright.isa import Machine, MatrixUnitConfig, Part, by_dim

PROGRAM = """
    segment ur3, $A
    segment ur4, $B
    segment ur5, $C
    tid   r280
    mov   r294, 0              # A: element 0 of my row
    mov   r295, r280
    mov   r290, 0              # B: element 0 of my column
    mov   r291, r280
    setmm 8, 4                 # eight columns, four rows
    clr   r0, 8
    ld    r256, ur3:rf294:0x00, 2
    mm8.sa.sb r0, ur4:rf290:0x00, r256
    st    r0, ur5:rf294:0x00, 8
    halt
"""


def pages(machine: Machine, name: str) -> str:
    """The entries of a tensor's page table."""
    return "\n".join(f"   {name} {entry}" for entry in machine.chip.storages[name].table.entries())


def main() -> Machine:
    """Run all five steps."""
    machine = Machine(MatrixUnitConfig(pes=2, threads=8, line_bytes=8, l1_bytes=512, l2_bytes=4096, dma_latency=40))
    a, b = np.arange(64, dtype=np.int8).reshape(8, 8), np.eye(8, dtype=np.int8) * 2
    machine.system |= {"A": a, "B": np.ascontiguousarray(b.T), "C": np.zeros((8, 8), np.int32)}

    print("1. page tables: every page of A, B and C has its place in device memory, none is on chip")
    machine.page_table("A", page=(4, 8))
    machine.page_table("B", page=(8, 8))
    machine.page_table("C", page=(4, 8))
    print(pages(machine, "A"))

    print("2. DMA: pages of A and B begin to move to L2, and room is made for C")
    for name in "ABC":
        machine.dma_in(name)
    print(pages(machine, "A"))

    print("3. the program starts on both processing elements")
    machine.start(PROGRAM)

    print("4. segments: each has rows of its own, and all of B")
    for pe, (rows,) in by_dim((8, 8), 0, 2).items():
        machine.segment("A", rows, pe=pe)
        machine.segment("C", rows, pe=pe)
        machine.segment("B", Part((0, 0), (8, 8)), pe=pe)
    for pe, result in enumerate(machine.run()):
        waited = {reason: cycles for reason, cycles in result.queue.items() if cycles}
        print(f"   PE {pe}: {result.counts.macs} multiplications, {result.cycles} cycles {waited}")
    print(pages(machine, "C"))

    print("5. results go out: pages that were stored to are written back, their entries deleted")
    machine.dma_out("C")
    print(pages(machine, "C"))
    machine.fetch("C")
    print(machine.system["C"])
    assert (machine.system["C"] == a.astype(np.int32) @ b).all()
    print(machine.log())
    return machine


if __name__ == "__main__":
    main()
