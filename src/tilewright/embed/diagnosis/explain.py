"""A TPU compiler's error about SparseCore memory -> the limits it was asked for, and the changes that would compile."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from tilewright.embed.model.counters import plain
from tilewright.embed.model.formulas import round8
from tilewright.embed.model.tables import Limits, count
from tilewright.embed.planning.memory import REPLICATIONS, RULE_VERSION, SPARE, TileRule
from tilewright.errors import UsageError
from tilewright.render import bytes_text
from tilewright.targets import target as find_target
from tilewright.targets import target_names

# What to change so that a stack compiles: every change alone, with the numbers at which it does.


def advice_for(rule: TileRule, limits: Limits, best: Limits | None, *, ids_known: bool) -> tuple[str, ...]:
    """Changes that make a program of these limits compile, the smallest first; ``best``: the largest limits that do."""
    if rule.fits(limits.max_unique_ids_per_partition, limits.max_ids_per_partition):
        return (f"by the rules measured against {RULE_VERSION} these limits compile: compare the compiler's version",)
    lines = []
    if rule.width % 8:
        lines.append(_padding_advice(rule, limits))
    lines += _limits_advice(rule, limits, best, ids_known)
    if best is not None:
        share = best.max_unique_ids_per_partition / limits.max_unique_ids_per_partition
        lines.append(
            f"keep the limits of the log and cut the batch to {share:.0%} or less (ids fall in proportion, "
            "distinct ids more slowly: check it with `embed plan --batch`)"
        )
        times = math.ceil(1 / share)
        lines.append(
            f"or take {times} times the chips: each source then has 1/{times} of the samples, each shard 1/{times} of "
            f"the rows, so even ids need 1/{times * times} of the limits and the hottest ones 1/{times}"
        )
    lines.append(
        "or let the host cut mini-batches, which keep every id: `embed check` says whether limits that fit can be held "
        "so"
    )
    return tuple(lines)


def _padding_advice(rule: TileRule, limits: Limits) -> str:
    padded = round8(rule.width)
    wide = TileRule(rule.tile_limit, rule.fixed, rule.op, rule.sparsecores, padded)
    same = wide.fits(limits.max_unique_ids_per_partition, limits.max_ids_per_partition)
    then = "the same limits then compile" if same else f"limits up to {_limits_text(wide.largest(limits))} then compile"
    return f"make the width {padded}, a multiple of 8: {then}"


def _limits_advice(rule: TileRule, limits: Limits, best: Limits | None, ids_known: bool) -> list[str]:
    """One limit lowered alone, in steps of 8, where that is enough; then both in the proportion asked for."""
    ids, unique = limits.max_ids_per_partition, limits.max_unique_ids_per_partition
    most = 8 * (rule.tile_limit // 36) + 16  # no program holds more: see TileRule.largest
    distinct = np.arange(8, min(round8(ids), most) + 8, 8, dtype=np.int64)
    entries = np.arange(round8(unique), 64 * rule.tile_limit // 12 + 512, 8, dtype=np.int64)
    lines = []
    for knob, now, candidates, pair in (
        ("max_unique_ids_per_partition", unique, distinct, (distinct, np.full_like(distinct, round8(ids)))),
        ("max_ids_per_partition", ids, entries, (np.full_like(entries, round8(unique)), entries)),
    ):
        lower = int(candidates[rule.replication(*pair) != 0].max(initial=0))
        if ids_known and rule.width > 1 and 0 < lower < now:
            lines.append(f"lower {knob} alone from {now:,} to {lower:,}")
    if best is not None:
        lines.append(f"lower both limits to {_limits_text(best)}")
    else:
        lines.append("no limits of this proportion compile: lower max_ids_per_partition first")
    return lines


def _limits_text(limits: Limits | None) -> str:
    if limits is None:
        return "none"
    return f"{limits.max_ids_per_partition:,} ids and {limits.max_unique_ids_per_partition:,} distinct ids"


# Errors of memory other than a tile's scratchpad rules: HBM that is full, a gather operand of an older compiler.

_SIZE = r"(\d[\d,]{0,30}(?:\.\d{1,12})?)\s*([KMGT]i?B?|B|bytes)?"
_HBM = re.compile(
    rf"(?:Ran out of memory in memory space hbm|[Ee]xceeded hbm capacity)[^\0]{{0,60}}?Used {_SIZE} of {_SIZE} hbm"
)
_GATHER = re.compile(r"Gather operand too large[^\n]*")
_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _bytes(number: str, unit: str | None) -> int:
    return round(float(number.replace(",", "")) * _UNITS["" if unit in (None, "bytes") else unit[0]])


def _read_hbm_full(match: re.Match[str], known: _Known) -> ErrorExplanation:
    """Explain "Ran out of memory in memory space hbm. Used 110.5G of 95.74G hbm"."""
    used, capacity = _bytes(match[1], match[2]), _bytes(match[3], match[4])
    over, times = used - capacity, max(2, math.ceil(used / max(1, capacity)))
    figures = {"used": used, "HBM of the chip": capacity, "too much": over}
    meaning = (
        f"heap (tables, optimizer slots, inputs fetched ahead, dense weights) and stack of one chip need "
        f"{bytes_text(over)} more than its HBM"
    )
    advice = (
        "see which it is: `tilewright embed plan LOG --config MODEL` splits HBM into tables, slots, inputs and "
        "stack (the compiler's own estimate of the stack is a 32-bit number and wraps above 4 GiB)",
        "stack too large: set xla_sc_num_serialized_tables_to_optimize_hbm to 2 or more, or lower the limits: the "
        f"stack follows max_unique_ids_per_partition; {bytes_text(over)} must go",
        f"tables too large: take {times} times the chips, each then holds 1/{times} of the rows",
        "inputs too large: lower maximum_parallel_iterations, or preprocess without the mini-batch layout, which is 64 "
        "times as long",
    )
    return ErrorExplanation(_one_line(match), "", "", meaning, figures, advice, "the guide", known.width or 0)


def _read_gather(match: re.Match[str], known: _Known) -> ErrorExplanation:
    """Explain "Gather operand too large ...", with its two numbers where it has them."""
    sizes = sorted(_whole_number(n) for n in re.findall(r"\d[\d,]{3,}", match.group()))
    figures = {"operand of one tile": sizes[-1], "TileSpmem per tile": sizes[-2]} if len(sizes) > 1 else {}
    if figures:
        share, times = sizes[-2] / sizes[-1], math.ceil(sizes[-1] / sizes[-2])
        fewer = f"cut the batch to {share:.0%} or take {times} times the chips: both divide the samples per SparseCore"
    else:
        fewer = "halve the batch or double the chips: both halve the samples per SparseCore"
    meaning = "samples per SparseCore * width / 16 floats, gathered by one tile, do not fit in its TileSpmem"
    advice = (
        f"use a newer compiler: {RULE_VERSION} stages gather operands in HBM and does not raise this error",
        fewer,
        "put fewer features into one stack: its samples are those of all its features",
    )
    chip, _ = _chip(figures.get("TileSpmem per tile", 0))
    basis = f"the guide; not in {RULE_VERSION}"
    return ErrorExplanation(_one_line(match), "", chip, meaning, figures, advice, basis, known.width or 0)


# What jax-tpu-embedding's host code prints when a batch exceeds its limits: it ends the process, or warns and drops.

_OVERFLOW = re.compile(
    r"(?:(?P<drops>Allowing ID dropping for table: (?P<warned>\S+) )observed|Observed) max (?P<unique>unique )?ids per "
    r"partition: (?P<observed>\d+)(?: for table: (?P<table>\S+))? is greater than the set max (?:unique )?ids per "
    r"partition: (?P<limit>\d+)"
)


def _read_overflow(match: re.Match[str], known: _Known) -> ErrorExplanation:
    """Explain a batch above its limits: the most that any line of the text says of the table."""
    table, unique = match["table"] or match["warned"], bool(match["unique"])
    hits = _OVERFLOW.finditer(match.string)
    alike = [hit for hit in hits if (hit["table"] or hit["warned"]) == table and bool(hit["unique"]) == unique]
    limit, most = _whole_number(match["limit"]), max(_whole_number(hit["observed"]) for hit in alike)
    knob = "max_unique_ids_per_partition" if unique else "max_ids_per_partition"
    figures = {f"{knob} of {table} (ids)": limit, "most observed (ids)": most, "lines that say so": len(alike)}
    kind = "distinct ids" if unique else "ids"
    then = "it drops what is above, the highest local ids first" if match["drops"] else "it ends the process"
    meaning = f"one SparseCore has {most:,} {kind} of {table} for one shard, and the limit is {limit:,}: {then}"
    advice = [f"set {knob} of {table} to at least {round8(most):,} (the most in this text, rounded up to 8)"]
    if unique:
        advice.append(
            "raise max_unique_ids_per_partition, not max_ids_per_partition as the text says (which must not be below)"
        )
    advice += [
        "find limits that hold a whole log before the run: `tilewright embed plan LOG --config MODEL -o limits.json`; "
        "later batches may ask for more than this one",
        "see whether they compile: `embed plan` says so, or memory(target, sparsecores, width, limits)",
        "or let the host cut mini-batches (enable_minibatching), where no hash bucket alone exceeds the limit: every "
        "id is kept",
    ]
    basis = "jax-tpu-embedding 0.2.0"
    return ErrorExplanation(_one_line(match), "host", "", meaning, figures, tuple(advice), basis)


_NUMBER = r"([\d,]+)"
_WITHIN = r"[^\0]{0,400}?"
_ROW = re.compile(rf"Can't fit a single row{_WITHIN}TileSpmem bytes:\s*{_NUMBER}{_WITHIN}Row bytes:\s*{_NUMBER}")
_REPLICAS = re.compile(
    rf"No viable logical replica count{_WITHIN}fixed_size_allocation_bytes\s*=\s*{_NUMBER}{_WITHIN}"
    rf"row_dependent_size_allocation_bytes\s*=\s*{_NUMBER}{_WITHIN}total_spmem_size_bytes\s*=\s*{_NUMBER}"
)
_FIXED = re.compile(rf"Fixed size allocations \(\D*{_NUMBER}[^)]*\) do not fit in TileSpmem \(\D*{_NUMBER}[^)]*\)")
_HEADS = ("Can't fit a single row", "No viable logical replica count", "Fixed size allocations", "memory space hbm")
_WIDEST = 2048


@dataclass(frozen=True)
class ErrorExplanation:
    """One compiler error, read.

    ==================  =========================================================================================
    ``error``           the compiler's words, on one line
    ``program``         ``forward`` (the lookup), ``backward`` (the update), ``host``, or "" where the text is silent
    ``target``          the chip whose TileSpmem the text names, "" if none has so many bytes
    ``meaning``         what was too large, in a sentence
    ``figures``         name -> number read or deduced (bytes, unless the name says otherwise)
    ``advice``          changes that would compile, the smallest first
    ``basis``           ``measured``, or ``modelled`` where no measurement covers the case
    ``width``           floats per row: given, deduced, or 0 where neither
    ``limits``          limits the program was compiled with, rounded up to 8; None if they cannot be told
    ``largest_limits``  the largest of the same proportion that compile; None if unknown
    ==================  =========================================================================================
    """

    error: str
    program: str
    target: str
    meaning: str
    figures: dict[str, int]
    advice: tuple[str, ...]
    basis: str
    width: int = 0
    limits: Limits | None = None
    largest_limits: Limits | None = None

    @staticmethod
    def is_in(text: str) -> bool:
        """Whether a text holds an error of the SparseCores, or the head of one; a full HBM may be any program's."""
        heads = (head for head in _HEADS if "hbm" not in head)
        return any(head in text for head in heads) or bool(_GATHER.search(text) or _OVERFLOW.search(text))

    def to_json(self) -> dict[str, Any]:
        return {**plain(self), "rules": RULE_VERSION}


def explain_error(
    text: str, *, width: int | None = None, max_ids: int | None = None, sparsecores: int = 16, hbm: bool = True
) -> tuple[ErrorExplanation, ...]:
    """Every SparseCore memory error in ``text`` (an error message, or a whole log), each once; and what
    jax-tpu-embedding prints of batches above their limits, once for each table and limit with the most observed.

    ``width``: floats per row of the stack, and ``max_ids``: its max_ids_per_partition, where the text does not tell
    them (a lookup's error names neither alone). ``sparsecores``: how many there are in all; below 16 the compiler has
    a second lookup program. ``hbm``: messages of a full HBM count too, which any program may have.

    Raises :class:`UsageError` where ``text`` holds no such error, or only the head of one.

    >>> text = ("E3001: CompileTimeSparseCoreInvalidReplicaCount: No viable logical replica count; "
    ...     "fixed_size_allocation_bytes = 553984, row_dependent_size_allocation_bytes = 184320, "
    ...     "total_spmem_size_bytes = 524128")
    >>> error = explain_error(text)[0]
    >>> error.target, error.limits.max_ids_per_partition, error.largest_limits.max_ids_per_partition
    ('tpu-v5p', 15360, 14448)
    """
    width = None if width is None else count(width, "width", "explain_error")
    max_ids = None if max_ids is None else count(max_ids, "max_ids", "explain_error")
    told = _Known(width, max_ids, count(sparsecores, "sparsecores", "explain_error"))
    readers = (
        (_ROW, _read_lookup),
        (_REPLICAS, _read_update),
        (_FIXED, _read_update),
        (_GATHER, _read_gather),
        (_HBM, _read_hbm_full),
        (_OVERFLOW, _read_overflow),
    )
    hits = [
        (match, read) for pattern, read in readers if hbm or pattern is not _HBM for match in pattern.finditer(text)
    ]
    ordered = sorted(hits, key=lambda hit: hit[0].start())
    first: dict[tuple[str, ...], tuple[re.Match[str], _Read]] = {}
    for match, read in ordered:
        first.setdefault(_error_key(match), (match, read))
    if first:
        return tuple(read(match, told) for match, read in first.values())
    if head := next((head for head in _HEADS if head in text), None):
        raise UsageError(f"only the head of an error: {head!r}", where="explain-error", how="paste it with its figures")
    known = (
        "Can't fit a single row, E3001 No viable logical replica count, Fixed size allocations, Gather operand, "
        "Ran out of memory in memory space hbm, Observed max ids per partition"
    )
    raise UsageError("no SparseCore memory error in the text", where="explain-error", how=f"known are: {known}")


@dataclass(frozen=True)
class _Known:
    width: int | None
    max_ids: int | None
    sparsecores: int


_Read: TypeAlias = Callable[[re.Match[str], _Known], ErrorExplanation]


def _error_key(match: re.Match[str]) -> tuple[str, ...]:
    """A key that is equal for hits of one error: the words, or of a batch that overflows, table and kind of limit."""
    if match.re is _OVERFLOW:
        return match["table"] or match["warned"], match["unique"] or "", "drops" if match["drops"] else ""
    return (match.group(),)


def _numbers(match: re.Match[str]) -> list[int]:
    return [_whole_number(group) for group in match.groups()]


def _whole_number(text: str) -> int:
    """A whole number of a message; :class:`UsageError` for one that no chip has."""
    digits = text.replace(",", "")
    if len(digits) > 12:
        raise UsageError(f"a figure of {len(digits)} digits", where="explain-error", how="is the text damaged?")
    return int(digits)


def _one_line(match: re.Match[str]) -> str:
    return " ".join(match.group().split())


def _chip(total: int) -> tuple[str, int]:
    """The chip with ``total`` bytes of TileSpmem and its rule's constant; "" and the usual one where there is none."""
    if total > 1 << 26:
        raise UsageError(f"{total:,} bytes of TileSpmem are no chip's", where="explain-error")
    for name in target_names():
        sparse = find_target(name).sparse
        if sparse and sparse.tile_spmem_bytes == total:
            return name, sparse.fixed_tile_bytes
    return "", 1024


def _read_lookup(match: re.Match[str], known: _Known) -> ErrorExplanation:
    """The lookup's error: row bytes = 4 * (width + 1) * max_unique_ids rounded up to 8."""
    total, row = _numbers(match)
    chip, fixed = _chip(total)
    figures = {"TileSpmem per tile": total, "row": row}
    widths = range(8, _WIDEST + 1, 8) if known.width is None else [known.width]
    choices = [(w, row // (4 * (w + 1))) for w in widths if row % (32 * (w + 1)) == 0]
    if known.width is not None and not choices:
        problem = f"a row of {row} bytes is not 4 * ({known.width} + 1) * a multiple of 8"
        raise UsageError(problem, where="explain-error", how="give the width of the stack the error is about")
    meaning = f"the lookup's rows need {row:,} bytes: 4 * (width + 1) * max_unique_ids_per_partition"
    choices = [(w, u) for w, u in choices if not TileRule(total, fixed, "forward", 16, w).fits(u, known.max_ids or u)]
    some = ", ".join(f"{w} ({u:,} distinct ids)" for w, u in choices[:6])
    hint = f"; those that fit the figures: {some}" if some else ""
    advice = (f"give the stack's width, from which the limits follow{hint}",)
    said = ErrorExplanation(_one_line(match), "forward", chip, meaning, figures, advice, _basis(chip))
    if len(choices) != 1:
        return said
    width, unique = choices[0]
    rule = TileRule(total, fixed, "forward", known.sparsecores, width)
    limits = Limits(max(unique, known.max_ids or unique), unique)
    return _with_limits(replace(said, width=width), rule, limits, known.max_ids is not None)


def _read_update(match: re.Match[str], known: _Known) -> ErrorExplanation:
    """The update's error: fixed = 36 * U8 + constant (or per row, where 8 does not divide the width); 12 * m8.

    The older wording names only the part that no replication makes smaller.
    """
    fixed, *per_row, total = _numbers(match)
    names = ("fixed", "row dependent", "TileSpmem per tile") if per_row else ("fixed", "TileSpmem per tile")
    figures, ids = dict(zip(names, (fixed, *per_row, total))), per_row[0] // 12 if per_row else known.max_ids or 0
    chip, constant = _chip(total)
    width, unique = _width_and_unique(fixed, constant, known.width, ids)
    meaning = (
        f"the update's fixed buffers take {fixed:,} bytes of a tile (36 for every distinct id, and {constant:,})"
        if width % 8 == 0
        else f"the update's fixed buffers take {fixed:,} bytes of a tile: at a width that 8 does not divide (padded to "
        f"{round8(width)}) it does not split vectors, and a distinct id takes {4 * (round8(width) + 1):,} instead of 36"
    )
    advice = ("give the stack's width: no width alone explains the figures", "lower max_unique_ids_per_partition")
    said = ErrorExplanation(_one_line(match), "backward", chip, meaning, figures, advice, _basis(chip))
    if not unique:
        return said
    rule = TileRule(total, constant, "sgd", known.sparsecores, width)
    limits, ids_known = Limits(max(ids, unique), unique), bool(per_row) or known.max_ids is not None
    return _with_limits(replace(said, width=known.width or 0), rule, limits, ids_known)


def _width_and_unique(fixed: int, constant: int, width: int | None, ids: int) -> tuple[int, int]:
    """(width, distinct ids rounded up to 8) that explain the fixed bytes, (0, 0) where nothing does."""

    def plausible(of_id: int, rest: int) -> bool:
        return rest > 0 and rest % (8 * of_id) == 0 and (not ids or rest // of_id <= round8(ids))

    if (width is None or width % 8 == 0) and plausible(36, fixed - constant):
        return width or 8, (fixed - constant) // 36
    for padded in [round8(width)] if width is not None else range(8, _WIDEST + 1, 8):
        rest = fixed - 124 * padded - (constant - 1024)
        if plausible(4 * (padded + 1), rest) and (width is None or width % 8):
            return width or padded - 1, rest // (4 * (padded + 1))
    return 0, 0


def _with_limits(said: ErrorExplanation, rule: TileRule, limits: Limits, ids_known: bool) -> ErrorExplanation:
    """The same, where the figures tell the limits, with those that would compile."""
    best, meaning = rule.largest(limits), said.meaning
    deduced = {"max_unique_ids_per_partition, rounded up to 8 (ids)": limits.max_unique_ids_per_partition}
    if ids_known:
        deduced["max_ids_per_partition, rounded up to 8 (ids)"] = limits.max_ids_per_partition
    else:
        meaning += "; max_ids_per_partition is not in the text and taken as equal"
    advice = advice_for(rule, limits, best, ids_known=ids_known)
    ids, unique = (np.asarray(most, np.int64) for most in vars(limits).values())
    least = int(rule.tile_bytes(unique, ids, REPLICATIONS[-1])) + SPARE  # at the most replicas
    figures = {**said.figures, **deduced, "needed per tile, at least": least}
    found: dict[str, Any] = {"meaning": meaning, "figures": figures, "advice": advice}
    return replace(said, **found, basis=_basis(said.target, rule), limits=limits, largest_limits=best)


def _basis(chip: str, rule: TileRule | None = None) -> str:
    return "measured" if chip and (rule is None or rule.width % 8 == 0) else "modelled"
