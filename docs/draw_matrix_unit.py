"""Draw docs/pictures/matrix-unit.svg, the machine on one page: ./run python docs/draw_matrix_unit.py.

Sizes and latencies are those of the default configuration; a test keeps the file true.
"""

from __future__ import annotations

from pathlib import Path

from tilewright.isa import MatrixUnitConfig
from tilewright.render.drawing import Drawing

PICTURE = Path(__file__).with_name("pictures") / "matrix-unit.svg"
WIDTH, HEIGHT = 940, 684


def box(d: Drawing, x: float, y: float, width: float, height: float, style: str, title: str, *lines: str) -> None:
    """A unit: its name, and what it is for."""
    d.rect(x, y, width, height, f"cell {style}", radius=5)
    d.text(x + 12, y + 21, title, "strong")
    for number, line in enumerate(lines):
        d.text(x + 12, y + 39 + 16 * number, line, "small")


def arrow(d: Drawing, x1: float, y1: float, x2: float, y2: float, both: bool = False) -> None:
    """A straight arrow along one axis."""
    d.line(x1, y1, x2, y2, "axis")
    head(d, x1, y1, x2, y2)
    if both:
        head(d, x2, y2, x1, y1)


def head(d: Drawing, x1: float, y1: float, x2: float, y2: float) -> None:
    """Its head, at (x2, y2)."""
    dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    a, b = (x2 - 8 * dx - 4 * dy, y2 - 8 * dy - 4 * dx), (x2 - 8 * dx + 4 * dy, y2 - 8 * dy + 4 * dx)
    d.polygon([(x2, y2), a, b], "bar s0")


def chip(d: Drawing, c: MatrixUnitConfig) -> None:
    """Everything the processing elements share."""
    box(d, 20, 20, 200, 74, "c5", "Host", "system memory: tensors by name,", "commands in their order")
    box(
        d,
        290,
        20,
        250,
        74,
        "c5",
        "Stream processor",
        "takes the commands, gives every PE",
        "its part of the tensor's logical space",
    )
    box(d, 610, 20, 310, 74, "c6", "Page table", "page -> where it is now; deleted when it moves out")
    for i, (state, style) in enumerate((("absent", "pad"), ("loading", "c1"), ("loaded", "c2"))):
        d.rect(622 + 98 * i, 65, 88, 20, f"cell {style}", radius=3)
        d.text(666 + 98 * i, 79, state, "small", anchor="middle")
    box(
        d,
        20,
        136,
        270,
        74,
        "c0",
        "Device memory (DDR)",
        f"{c.dram_latency} cycles, {c.dram_bytes_per_cycle} bytes a cycle",
        "tensors: segments, pages, lines, elements",
    )
    box(
        d,
        350,
        136,
        200,
        74,
        "c1",
        "DMA controller",
        "whole pages, one by one;",
        f"{c.dma_latency} cycles and the bytes",
    )
    box(
        d,
        610,
        136,
        310,
        74,
        "c0",
        f"L2, {c.l2_bytes >> 20} MiB",
        f"{c.l2_latency} cycles, {c.l2_bytes_per_cycle} bytes a cycle",
        "pages that DMA brought, lines of the others",
    )
    arrow(d, 220, 57, 290, 57)
    arrow(d, 540, 57, 610, 57)
    arrow(d, 450, 94, 450, 136)
    arrow(d, 290, 173, 350, 173, both=True)
    arrow(d, 550, 173, 610, 173, both=True)
    arrow(d, 765, 94, 765, 136)


def element(d: Drawing, c: MatrixUnitConfig) -> None:
    """One processing element."""
    for shift in (8, 4, 0):
        d.rect(20 + shift, 258 + shift, 892, 404, "cell pad", radius=6)
    d.text(34, 281, "Processing element (PE)", "strong")
    d.text(
        260,
        281,
        f"{c.threads} threads run the same instruction; there may be several PEs, over one tensor",
        "small soft",
    )
    left = 34
    box(
        d,
        left,
        296,
        196,
        86,
        "c0",
        f"L1, {c.l1_bytes >> 10} KiB",
        f"{c.l1_latency} cycles, {c.l1_ports} line ({c.line_bytes} bytes) a cycle",
        "t1: keeps a line until each of",
        "its elements was used once",
    )
    box(
        d,
        left,
        396,
        196,
        102,
        "c4",
        "Issue queue, in order",
        "phase 1: loaders ask for columns",
        "phase 2: a step of math when its",
        "column is there; until A is",
        "there, nothing younger issues",
    )
    box(
        d,
        left,
        512,
        196,
        138,
        "c5",
        "Other registers",
        f"ur0 .. ur{c.uniform_registers - 1}: for all threads,",
        "as ur4, a segment's handle",
        f"p0 .. p{c.predicates - 1}: a bit in every thread",
        "tokens: when each register",
        "is ready, pending until then",
    )
    loaders(d)
    threads(d, c)


def loaders(d: Drawing) -> None:
    """The columns, and the bus they go to."""
    d.text(264, 311, "Loaders", "strong")
    d.text(264, 327, "thread j fetches column j of B", "small")
    for row, name in enumerate(("0", "1", "2", "3")):
        y = 342 + 44 * row
        d.rect(264, y, 150, 32, "cell c3", radius=4)
        d.text(276, y + 20, f"loader {name}", "small")
        d.text(402, y + 20, f"column {name}", "small soft", anchor="end")
        arrow(d, 414, y + 16, 466, y + 16)
        d.text(440, y + 10, f"step {name}", "small soft", anchor="middle")
    d.text(339, 530, "its address:", "small", anchor="middle")
    d.text(339, 548, "ur4 : rf290 : 0x00", "mono small", anchor="middle")
    d.text(339, 566, "segment, own offsets, immediate", "small soft", anchor="middle")
    d.text(339, 592, "predicate off: no access,", "small soft", anchor="middle")
    d.text(339, 608, "and its products stay as they are", "small soft", anchor="middle")
    arrow(d, 230, 360, 264, 360)
    d.rect(466, 296, 30, 354, "cell c1", radius=4)
    for at, letter in enumerate("BUS"):
        d.text(481, 440 + 18 * at, letter, "strong", anchor="middle")


def threads(d: Drawing, c: MatrixUnitConfig) -> None:
    """Rows of C, and what each thread holds of A."""
    x = 532
    d.text(x, 311, "Compute threads", "strong")
    d.text(x, 327, "each has a row of C; all multiply the same column at once", "small")
    d.text(x + 62, 348, "A", "small soft")
    d.text(x + 162, 348, "C, a register per column", "small soft")
    for row, name in enumerate(("0", "1", "2", "3", "..", str(c.threads - 1))):
        y = 356 + 38 * row
        arrow(d, 496, y + 13, x, y + 13)
        d.text(x + 6, y + 18, f"row {name}" if name != ".." else "...", "small")
        for cell, register in enumerate(("r256", "r257")):
            d.rect(x + 60 + 46 * cell, y, 44, 26, "cell c2", radius=2)
            d.text(x + 82 + 46 * cell, y + 17, register, "small mono", anchor="middle")
        for cell, register in enumerate(("r0", "r1", "r2", "r3", "..")):
            d.rect(x + 162 + 40 * cell, y, 38, 26, f"cell r{2 if cell == 1 else 0}", radius=2)
            d.text(x + 181 + 40 * cell, y + 17, register, "small mono", anchor="middle")
    d.text(x, 604, "step 1 (shaded): r1 of every row += its A times column 1.", "small")
    d.text(x, 622, f"One mm: {c.chunk(1)} elements of 8 bits, as many columns as loaders.", "small soft")
    d.text(x, 640, "ka: threads that share a row's columns; kb: its depth.", "small soft")


def drawing() -> str:
    """The picture, as the file has it."""
    c = MatrixUnitConfig()
    about = "Host and stream processor, page table, DMA, device memory and L2; one PE with loaders, bus and threads."
    d = Drawing(WIDTH, HEIGHT, title="The matrix unit's machine", description=about, ground=True)
    chip(d, c)
    d.line(132, 258, 132, 234, "axis")
    d.line(132, 234, 765, 234, "axis")
    d.line(765, 234, 765, 210, "axis")
    d.text(440, 228, "lines and loads", "small soft", anchor="middle")
    element(d, c)
    arrow(d, 132, 286, 132, 296)
    return f"{d.svg()}\n"


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
