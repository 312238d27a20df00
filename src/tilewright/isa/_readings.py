"""Every question the source leaves open, with the paragraphs it comes from, and how this machine answers it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AMBIGUITIES", "Ambiguity"]


@dataclass(frozen=True)
class Ambiguity:
    """``paragraphs`` of the source, the question, the answer, and the fields that give another (none: a slip of it)."""

    paragraphs: str
    question: str
    answer: str
    fields: tuple[str, ...] = ()


AMBIGUITIES = (
    Ambiguity(
        "5, 94, 102", "are loaders and compute threads different threads?", "roles; may overlap", ("disjoint_sets",)
    ),
    Ambiguity("94", "the first set broadcasts, and the first set computes?", "a slip: the second computes"),
    Ambiguity("10, 113, 115", "is a group's further thread of the first set or the second?", "the second, computing"),
    Ambiguity("12, 120, 136", "which group of registers takes the fourth dot product?", "that of the keeping thread"),
    Ambiguity("115", "columns 1 to 127 and 128 to 256?", "a slip: halves of 128; ceil(n / ka) in general"),
    Ambiguity("115, 121", "which columns does a thread of a ka group hold?", "blocks of neighbours", ("ka_split",)),
    Ambiguity("118, 119", "which thread of a kb group adds and keeps?", "the first", ("kb_acc",)),
    Ambiguity(
        "106, 118-121", "does kb divide each thread's chunk?", "no: the group covers kb whole chunks", ("kb_mode",)
    ),
    Ambiguity("10, 112", "which threads form a group?", "neighbours, qb the fastest", ("group_order",)),
    Ambiguity("95, 97, 105", "what does a false predicate stop?", "its loader, and so its column", ("pred_scope",)),
    Ambiguity(
        "100", "where do product registers end?", "at the first own source register, or the file", ("acc_window",)
    ),
    Ambiguity("100, 22", "does an error end the program?", "no: in-range work, then a record", ("on_error",)),
    Ambiguity("60, 95", "one register for an offset of several dims?", "one per dim", ("offset_mode",)),
    Ambiguity("95, 59", "is rf290 a register of each thread?", "yes: loaders have their own addresses; urN is shared"),
    Ambiguity("106", "how many registers of A for other types?", "two, 8 bytes, for every type", ("a_bytes",)),
    Ambiguity(
        "-",
        "overflow, and the order of float additions?",
        "modulo 2^32; float32, chunk by chunk",
        ("overflow", "float_order"),
    ),
    Ambiguity("77, 64", "in which order do pages and lines lie?", "d1 fastest; pages at the ends are whole"),
    Ambiguity("125", "what if all of a cache set is retained?", "the miss passes by", ("retention",)),
    Ambiguity("128", "in which order are folded slices stacked?", "the first folded dim slowest", ("slice_order",)),
    Ambiguity("98, 99", "how many math issues has an mm?", "one per step", ("math_issue",)),
    Ambiguity("37, 56, 124", "does one loader fetch the rows of t1?", "each its own column's; L1 shares the lines"),
    Ambiguity("118", "what does a kb transfer cost?", "counted, no cycles", ("kb_add_cycles",)),
    Ambiguity("109, 102", "several columns of a thread at once?", "one per part and step", ("columns_per_step",)),
    Ambiguity("97, 105", "do skipped columns close up in the registers?", "no: a gap", ("column_numbering",)),
    Ambiguity("87", "what do registers hold before a program clears them?", "zeros", ("uninitialized",)),
)
"""In the order of the specification; the last is ours."""
