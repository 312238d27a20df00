"""A slow `mm`, element by element in plain Python, written from the specification's words and nothing else."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

f32 = np.float32


@dataclass
class Mm:
    """One instruction and the machine it runs on; `offsets` = rfO, dims d1 first."""

    type_a: str
    type_b: str
    ka: int = 1
    kb: int = 1
    t: int = 0
    product: int = 0
    a: int = 32
    offset: int = 36
    immediate: int = 0
    columns: int = 4
    rows: int = 4
    threads: int = 8
    registers: int = 40
    kb_acc: str = "first"
    ka_split: str = "blocked"
    group_order: str = "consecutive"
    pred_scope: str = "loader"
    float_order: str = "chunk"
    overflow: str = "wrap"
    acc_window: tuple | None = None
    kb_mode: str = "chunk"
    column_numbering: str = "gap"
    loaders: int | None = None  # not None: the first so many threads load, the others compute


@dataclass
class Outcome:
    words: list
    macs: int = 0
    column_loads: int = 0
    broadcast_elements: int = 0
    steps: set = field(default_factory=set)
    accumulators: int = 0
    kb_transfers: int = 0
    errors: list = field(default_factory=list)


def decode(word_bytes, dtype):
    """Elements of a run of register bytes."""
    size = int(dtype.lstrip("subf")) // 8
    parts = [bytes(word_bytes[i : i + size]) for i in range(0, len(word_bytes), size)]
    if dtype == "bf16":
        return [f32(struct.unpack("<f", b"\0\0" + p)[0]) for p in parts]
    if dtype == "f16":
        return [f32(np.frombuffer(p, np.float16)[0]) for p in parts]
    if dtype == "f32":
        return [np.frombuffer(p, np.float32)[0] for p in parts]
    return [int.from_bytes(p, "little", signed=dtype[0] == "s") for p in parts]


def reinterpret(value, dtype):
    """An element of the segment as the type the instruction names."""
    if dtype[0] in "su":
        bits = int(dtype[1:])
        return int(value) % 2**bits - (2**bits if dtype[0] == "s" and int(value) % 2**bits >= 2 ** (bits - 1) else 0)
    return f32(value)


def fma(x, y, z):
    """x * y + z, rounded once."""
    if not all(np.isfinite((x, y, z))):
        return f32(x) * f32(y) + f32(z)
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if exact == 0:
        return f32(float(x) * float(y) + float(z))
    # Candidates around the double; the nearest, ties to the even mantissa.
    guess = f32(float(exact))
    near = [guess, np.nextafter(guess, f32(np.inf)), np.nextafter(guess, f32(-np.inf))]
    near = [c for c in near if np.isfinite(c)]
    return min(near, key=lambda c: (abs(Fraction(float(c)) - exact), int(c.view(np.uint32)) & 1))


def slow_mm(mm, words, predicate, b):
    """`words`: list of lists of unsigned words; `predicate`: list of bool; `b`: the segment, numpy shape (d2, d1)."""
    out = Outcome([list(row) for row in words])
    size = int(mm.type_a.lstrip("subf")) // 8
    chunk, depth = 8 // size, mm.kb * (8 // size)
    if mm.kb_mode == "split":
        chunk, depth = -(-chunk // mm.kb), chunk
    group, begin = mm.ka * mm.kb, mm.loaders or 0
    fit = (mm.threads - begin) // group
    c = -(-mm.columns // mm.ka)
    sources = [mm.a, mm.a + 1, mm.offset, mm.offset + 1]
    low, high = mm.product, min([mm.registers, *(s for s in sources if s >= mm.product)])
    if mm.acc_window:
        low, high = mm.acc_window
    keeper = mm.kb - 1 if mm.kb_acc == "last" else 0

    def thread(row, qa, qb):
        if mm.group_order == "strided":
            return begin + (qa * mm.kb + qb) * fit + row
        return begin + row * group + qa * mm.kb + qb

    taken = [0] * mm.ka
    for j in range(mm.columns):
        if mm.pred_scope != "compute" and not predicate[j]:
            continue
        qa, i = (j % mm.ka, j // mm.ka) if mm.ka_split == "interleaved" else (j // c, j % c)
        if mm.column_numbering == "compact":
            i = taken[qa]
            taken[qa] += 1
        if not low <= mm.product + i < high:
            out.errors.append((j, mm.product + i))
            continue
        out.steps.add(i)
        signed = [w - 2**32 * (w >= 2**31) for w in words[j][mm.offset : mm.offset + 2]]
        x1, x2 = signed[0] + mm.immediate, signed[1]
        column = []
        for u in range(depth):
            y1, y2 = (x1 + u, x2) if mm.t == 0 else (x1, x2 + u)
            inside = 0 <= y1 < b.shape[1] and 0 <= y2 < b.shape[0]
            column.append(reinterpret(b[y2, y1], mm.type_b) if inside else None)
        present = sum(v is not None for v in column)
        if not present:
            continue
        out.column_loads += 1
        out.broadcast_elements += present
        for row in range(min(mm.rows, fit)):
            keep = thread(row, qa, keeper)
            if mm.pred_scope != "loader" and not predicate[keep]:
                continue
            parts = []
            for qb in range(mm.kb):
                raw = b"".join(w.to_bytes(4, "little") for w in words[thread(row, qa, qb)][mm.a : mm.a + 2])
                pairs = zip(decode(raw, mm.type_a), column[qb * chunk : (qb + 1) * chunk])
                parts.append([(x, y) for x, y in pairs if y is not None])
            place = (keep, mm.product + i)
            out.words[keep][mm.product + i] = accumulate(mm, out.words[place[0]][place[1]], parts)
            out.macs += present
            out.accumulators += 1
            out.kb_transfers += mm.kb - 1
    return out


def accumulate(mm, word, parts):
    if mm.type_a[0] in "su":
        total = word - 2**32 * (word >= 2**31) + sum(x * y for part in parts for x, y in part)
        if mm.overflow == "saturate":
            total = max(-(2**31), min(2**31 - 1, total))
        return total % 2**32
    value = np.frombuffer(word.to_bytes(4, "little"), np.float32)[0]
    with np.errstate(all="ignore"):
        if mm.float_order == "fma" and len(parts) == 1:
            for x, y in parts[0]:
                value = fma(x, y, value)
        elif mm.float_order == "exact":
            total = None
            for x, y in (pair for part in parts for pair in part):
                product = np.float64(x) * np.float64(y)
                total = product if total is None else total + product
            value = f32(np.float64(value) + total)
        else:
            dot = None
            for part in parts:
                d = None
                for x, y in part:
                    product = f32(x) * f32(y)
                    fused = mm.float_order == "fma" and d is not None
                    d = fma(x, y, d) if fused else product if d is None else f32(d + product)
                if d is not None:
                    dot = d if dot is None else f32(dot + d)
            value = f32(value + dot)
    return int(np.array(value, np.float32).view(np.uint32))
