"""What ``print`` shows of a processing element: registers, tensors, tokens, pages, caches, accounts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa._run import result_of
from tilewright.isa._segments import ELEMENT_TYPES
from tilewright.isa._state import Pe
from tilewright.layout import paged

__all__ = ["Answer", "look", "shortened", "small_number"]

_MOST_THREADS = 16
_REGISTER = re.compile(r"(r|ur|p)([0-9]+)(?:\[([0-9]+)(?:(:)([0-9]*))?\])?(?:\s+as\s+([a-z]+[0-9]*))?", re.IGNORECASE)
_TENSOR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*(?:\[(.*)\])?")
_INDEX = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class Answer:
    """What a command has to say: ``text``; what it shows as a ``value`` (numbers, lists, dicts; else None); ``ok``:
    whether it was understood.
    """

    text: str
    value: Any = None
    ok: bool = True


def small_number(text: str) -> int | None:
    """A number of at most nine digits, or None: nothing here is larger, and longer texts are no numbers."""
    return int(text.lstrip("0") or "0") if re.fullmatch(r"0*[0-9]{1,9}", text) else None


def look(pe: Pe, text: str) -> Answer:
    """What ``text`` names of a processing element. Raises :class:`UsageError` where there is no such thing."""
    text = " ".join(text.split())
    if text in _WHOLE:
        return _WHOLE[text](pe)
    register = _REGISTER.fullmatch(text)
    if register is not None:
        return _register(pe, text, register)
    tensor = _TENSOR.fullmatch(text)
    if tensor is not None and tensor[1] in pe.chip.storages:
        return _tensor(pe, text, tensor[1], tensor[2])
    known = ", ".join([*filter(None, _WHOLE), *pe.chip.storages])
    raise UsageError(f"cannot print {shortened(text)}", how=f"a register as r0, ur4 or p1, or one of {known}")


def shortened(text: str) -> str:
    """Somebody's words in quotes, not too many of them."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _register(pe: Pe, text: str, found: re.Match[str]) -> Answer:
    kind, digits, first, colon, end, form = found.groups()
    kind, form, c = kind.lower(), form and form.lower(), pe.config
    limit = {"r": c.registers, "ur": c.uniform_registers, "p": c.predicates}[kind]
    number = small_number(digits)
    if number is None or number >= limit:
        raise UsageError(f"there is no {shortened(kind + digits)}", how=f"{kind}0 to {kind}{limit - 1}")
    if kind == "ur" and first is not None:
        raise UsageError(f"{kind}{number} is shared by all threads", how=f"print {kind}{number}")
    if kind == "p" and form is not None:
        raise UsageError(f"{kind}{number} is true or false", how=f"print {kind}{number}")
    if form not in (None, "hex", *ELEMENT_TYPES):
        raise UsageError(f"no type {shortened(str(form))}", how=f"hex, or one of {', '.join(ELEMENT_TYPES)}")
    if kind == "ur":
        values = np.array(pe.uniform[number : number + 1], np.int64).astype(np.int32)
    else:
        values = np.ascontiguousarray((pe.registers if kind == "r" else pe.predicates)[:, number])
    threads = len(values)
    if first is not None:
        values = values[_threads(first, colon, end, threads)]
    shown = values[:_MOST_THREADS] if first is None else values
    rest = f" ... ({kind}{number}[0:{threads}] shows all)" if len(shown) < len(values) else ""
    value = _plain(_formed(values, form))
    one = kind == "ur" or (first is not None and colon is None)
    return Answer(f"{text} = {' '.join(_words(shown, form))}{rest}", value[0] if one else value)


def _threads(first: str, colon: str | None, end: str | None, threads: int) -> slice:
    """The threads of ``[3]``, ``[0:8]`` or ``[8:]``."""
    low = small_number(first)
    high = small_number(end) if end else threads if colon else None if low is None else low + 1
    if low is None or high is None or not low < min(high, threads):
        asked = shortened(f"{first}{colon or ''}{end or ''}")
        raise UsageError(f"no threads {asked}", how=f"0 to {threads - 1}, as [3], [0:8] or [8:]")
    return slice(low, high)


def _formed(values: np.ndarray[Any, Any], form: str | None) -> np.ndarray[Any, Any]:
    """Words of threads as another type; of several elements to a word a row for each thread, low bytes first."""
    if form is None or form == "s32":
        return values
    found = values.view(np.uint32 if form == "hex" else paged((1,), form).numpy_dtype)
    return found if len(found) == len(values) else found.reshape(len(values), -1)


def _words(values: np.ndarray[Any, Any], form: str | None) -> list[str]:
    if values.dtype == bool:
        return ["1" if v else "0" for v in values]
    pattern = "{:#010x}" if form == "hex" else "{:g}" if form and form in ("f32", "f16", "bf16") else "{}"
    rows = _formed(values, form).reshape(len(values), -1).tolist()
    return [",".join(pattern.format(v) for v in row) for row in rows]


def _plain(values: np.ndarray[Any, Any]) -> Any:
    """Numbers for JSON: None for what it has none for."""
    if values.dtype.kind in "biu":
        return values.tolist()
    wide = np.asarray(values.astype(np.float64))
    plain = wide.astype(object)
    plain[~np.isfinite(wide)] = None
    return plain.tolist()


def _tensor(pe: Pe, text: str, name: str, place: str | None) -> Answer:
    values = pe.chip.storages[name].values(pe.chip.store)
    how = f"{name} is {list(values.shape)}; print {name}[0, 2:4] is a part of it"
    index = tuple(_index(part.strip(), how) for part in place.split(",")) if place is not None else ()
    try:
        part = np.asarray(values[index])
    except (IndexError, ValueError) as error:
        raise UsageError(f"{shortened(text)}: {error}", how=how) from None
    return Answer(f"{text} =\n{part}" if part.ndim else f"{text} = {part}", _plain(part))


def _index(part: str, how: str) -> int | slice:
    """``3``, ``-1``, ``2:4``, ``::2``."""
    ends = [each.strip() for each in part.split(":")]
    wrong = len(ends) > 3 or part == "" or not all(each == "" or _INDEX.fullmatch(each) for each in ends)
    if wrong:
        raise UsageError(f"{shortened(part)} is neither a number nor first:end:step", how=how)
    numbers = [int(each) if each else None for each in ends]
    return slice(*numbers) if len(ends) > 1 else int(ends[0])


def _tokens(pe: Pe) -> Answer:
    clock, kinds = (
        pe.clock,
        (("r", pe.config.registers), ("ur", pe.config.uniform_registers), ("p", pe.config.predicates)),
    )
    waits = {
        f"{kind}{n}": int(clock.tokens[clock.span(kind, n)][0]) - clock.issue
        for kind, limit in kinds
        for n in range(limit)
    }
    waits = {name: cycles for name, cycles in waits.items() if cycles > 0}
    rows = [f"{name} in {cycles} cycle{'s' * (cycles != 1)}" for name, cycles in [*waits.items()][:32]]
    rows += [f"... and {len(waits) - 32} more"] if len(waits) > 32 else []
    text = "\n".join([f"next issue at cycle {clock.issue}", *(rows or ["every register is there"])])
    return Answer(text, {"issue": clock.issue, "waits": waits})


def _pages(pe: Pe) -> Answer:
    lines, tables = [], {}
    for name, storage in pe.chip.storages.items():
        entries = storage.table.entries()
        lines.append(f"{name}: {len(entries)} page{'s' * (len(entries) != 1)} of {storage.page_bytes} bytes")
        lines += [f"  {entry}" for entry in entries[:64]]
        lines += [f"  ... and {len(entries) - 64} more"] if len(entries) > 64 else []
        tables[name] = [vars(entry) for entry in entries]
    return Answer("\n".join(lines) or "no tensors", tables)


def _caches(pe: Pe) -> Answer:
    held = {name: len(cache.lines()) for name, cache in (("L1", pe.l1), ("L2", pe.chip.l2))}
    c = pe.counts
    numbers = {"touches": c.l1_touches, "L1 misses": c.l1_misses, "L2 misses": c.l2_misses}
    lines = [f"{name}: {count} lines held" for name, count in held.items()]
    return Answer(
        "\n".join([*lines, ", ".join(f"{n} {name}" for name, n in numbers.items())]), {"held": held, **numbers}
    )


def _account(of: Callable[[Pe], Mapping[str, int]]) -> Callable[[Pe], Answer]:
    def account(pe: Pe) -> Answer:
        numbers = of(pe)
        rows = [f"{name:20} {value:,}" for name, value in numbers.items() if value]
        return Answer("\n".join(rows) or "nothing yet", dict(numbers))

    return account


def _rows(of: Callable[[Pe], list[Any]], none: str) -> Callable[[Pe], Answer]:
    def rows(pe: Pe) -> Answer:
        lines = [str(each) for each in of(pe)]
        more = [f"... and {len(lines) - 64} more"] if len(lines) > 64 else []
        return Answer("\n".join([*lines[:64], *more]) or none, lines)

    return rows


_WHOLE: dict[str, Callable[[Pe], Answer]] = {
    "": lambda pe: Answer(str(pe)),
    "state": lambda pe: Answer(str(pe.chip)),
    "tokens": _tokens,
    "segments": _rows(lambda pe: [_segment(handle, each) for handle, each in pe.segments.items()], "no segments yet"),
    "pages": _pages,
    "caches": _caches,
    "counts": _account(lambda pe: pe.counts.to_dict()),
    "traffic": _account(lambda pe: pe.traffic.to_dict()),
    "queue": _account(lambda pe: result_of(pe).queue),
    "stalls": _account(lambda pe: result_of(pe).stalls),
    "errors": _rows(lambda pe: list(pe.errors), "no errors"),
}


def _segment(handle: int, segment: Any) -> str:
    sizes, base = segment.sizes[::-1].tolist(), segment.base[::-1].tolist()
    name = f"${segment.name}" if segment.name else "made by the program"
    where = f" from {base}" if any(base) or sizes != list(segment.storage.map.shape) else ""
    return f"handle {handle}: {name}, {segment.dtype}{sizes} of {segment.storage.name}{where}"
