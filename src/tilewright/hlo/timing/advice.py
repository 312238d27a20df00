"""What to do about a step first: the lines of the program that take most of it, and what would help each."""

from __future__ import annotations

from collections import defaultdict

from tilewright.hlo.timing.step import StepTime, TimeRow
from tilewright.render import bytes_text, count_text, percent_text, seconds_text
from tilewright.render.formats import place_text

_WAITS = {
    "matrix": "computes on the matrix unit",
    "vector": "computes on the vector unit",
    "hbm": "waits for HBM",
    "vmem": "waits for vector memory",
    "relayout": "turns its data",
    "latency": "waits for its start",
    "link": "waits for links",
    "sparsecore": "waits for the SparseCores",
}
_HELPS = {
    "vector": "fewer transcendental functions, a narrower type, or work on smaller arrays",
    "vmem": "fuse it with its neighbours",
    "relayout": "keep the order of dims that its users want, or leave a transpose out",
    "link": "exchange less, or start the exchange earlier",
    "sparsecore": "start the lookup earlier, or gather fewer rows",
}
_SMALL = 0.03
"""Share of the step from which a line is worth a word."""
_FULL = 0.6
"""Share of the matrix peak from which products are well used."""


def advice(step: StepTime, count: int = 5) -> list[str]:
    """Sentences, the one that concerns most time first."""
    groups: dict[tuple[str, str], list[TimeRow]] = defaultdict(list)
    for row in step.rows:
        if row.seconds:
            groups[row.source or row.name, row.bound].append(row)
    whole = step.seconds or 1.0
    found = [(sum(row.seconds for row in rows), place, bound, rows) for (place, bound), rows in groups.items()]
    said: list[tuple[float, str]] = [
        (
            seconds,
            f"{_head(seconds, whole)}: {place_text(place)} {_WAITS.get(bound, bound)}{_what_helps(step, bound, rows)}",
        )
        for seconds, place, bound, rows in found
        if seconds >= _SMALL * whole
    ]
    if step.call_seconds >= _SMALL * whole:
        words = "the call itself, whatever it computes: run several steps in one call (a loop under jit)"
        said.append((step.call_seconds, f"{_head(step.call_seconds, whole)}: {words}"))
    said.sort(key=lambda item: -item[0])
    sentences = [words for _, words in said[:count]]
    if step.priced < 1:
        reasons = list(dict.fromkeys(row.unpriced for row in step.rows if row.unpriced))
        sentences.append(
            f"{percent_text(1 - step.priced_flops)} of the flops and {percent_text(1 - step.priced_bytes)} of the "
            "bytes have no time, so the step takes longer: "
            f"{'; '.join(reasons[:2])}"
        )
    return sentences or ["no line of the program takes more than a few per cent of the step"]


def _head(seconds: float, whole: float) -> str:
    return f"{seconds_text(seconds)} ({percent_text(seconds / whole)} of the step)"


def _what_helps(step: StepTime, bound: str, rows: list[TimeRow]) -> str:
    seconds = sum(row.seconds for row in rows)
    if bound == "hbm" and all(row.lane == "dma" for row in rows):
        moved = bytes_text(sum(row.bytes for row in rows))
        return f", a transfer of {moved}: fewer bytes, or more work that can stand before it"
    if bound == "hbm":
        moved = bytes_text(sum(row.bytes for row in rows))
        return f" for {moved}: a narrower type, less padding, or results used where they are made"
    if bound == "latency":
        kernels = sum(row.runs for row in rows)
        many = f" in {count_text(kernels)} small kernels" if kernels > 1 else ""
        return f"{many}: fuse them, or give each more to do"
    if bound == "matrix" and step.matrix_peak:
        share = sum(row.flops for row in rows) / seconds / step.matrix_peak
        words = f" at {percent_text(share)} of its peak"
        return words if share >= _FULL else f"{words}: dims that fill its tiles, larger products, or a narrower type"
    return f": {_HELPS[bound]}" if bound in _HELPS else ""
