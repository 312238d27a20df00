"""Numbers by which a loop's instructions, and its reasons to stop, go to the kernel."""

from __future__ import annotations

__all__ = [
    "ALU",
    "BARE",
    "BR",
    "BUDGET",
    "CMP",
    "CONDITIONS",
    "DONE",
    "FULL",
    "IRREGULAR",
    "JUMP",
    "KINDS",
    "LD",
    "LOGIC",
    "LOGICS",
    "LOOP",
    "MM",
    "OPERATIONS",
    "ROW",
]

ALU, CMP, LOGIC, LOOP, BR, JUMP, BARE, LD, MM = range(9)
"""What an instruction is.

Its row: what it is; destination kind (1 uniform, 2 per thread, 3 predicate) and number; kinds (0 integer) and values
of X and Y; guard (-1: none) and whether it is negated; operation, condition or target; 10 to 13: places on the
scoreboard it reads (the guard's last), 14: the one it writes; 15: per-thread operands; 16: end of its offset registers.
An ``ld`` has its offset register and immediate for X, and the registers it writes for the value of Y.
"""
DONE, FULL, IRREGULAR, BUDGET = range(4)
"""The loop was left; sums must be added first; an mm for the general function; the instruction budget is spent."""
OPERATIONS = ("mov", "add", "sub", "mul", "min", "max", "and", "or", "xor", "not", "shl", "shr", "shru")
CONDITIONS = ("eq", "ne", "lt", "le", "gt", "ge", "ltu", "leu", "gtu", "geu")
LOGICS = ("pand", "por", "pxor", "pnot")
KINDS = ("s8", "u8", "s16", "u16", "s32", "f16", "bf16", "u32", "f32")
"""Element types; from s32 on but for the 16-bit floats a word is a word."""
ROW = 18
"""Numbers of an instruction."""
