"""What a tuning says: the reason in a sentence, how sure it is, and the whole as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.isa._autotune import Tuned, Tuning

__all__ = ["certainty", "to_dict", "why"]

_WAITS = {
    "columns of B": "waiting for columns of B",
    "A": "waiting for A",
    "no mm": "no mm issued",
    "after": "after the last mm",
}


def why(tuning: Tuning) -> str:
    """The winner against the default: cycles, then the account of the math unit, the largest change first."""
    best, default = tuning.best, tuning.default
    limit = f"its {best.limit} is busy for {best.bound:,} of them"
    if default.cycles is None:
        return f"{best.choice} takes {best.cycles:,} cycles; {limit}. The default cannot run: {default.refused}."
    if best is default:
        return f"The default, {best.choice}, is the fastest: {best.cycles:,} cycles; {limit}."
    return f"{best.choice} takes {best.cycles:,} cycles, {tuning.speedup:.3g} times fewer than the default's " + (
        f"{default.cycles:,}: {_changes(default, best)}; {limit}."
    )


def _account(each: Tuned) -> dict[str, int]:
    """Every cycle of a run, by what the math unit did."""
    return {"multiplying": each.math_cycles} | {_WAITS.get(name, name): n for name, n in (each.stalls or {}).items()}


def _changes(default: Tuned, best: Tuned) -> str:
    before, after = _account(default), _account(best)
    changed = sorted(before, key=lambda name: -abs(before[name] - after[name]))
    return ", ".join(f"{name} {before[name]:,} -> {after[name]:,}" for name in changed if before[name] != after[name])


def certainty(tuning: Tuning) -> str:
    """How the choice was made, and how sure it is."""
    timed, all_ = len(tuning.timed), len(tuning.ranking)
    text = f"{all_:,} choices, {timed} of them timed"
    if tuning.proved:
        more = f" by more than {100 * tuning.within:.3g} percent" if tuning.within else ""
        text += f"; no other can be faster{more} (closed forms: some unit alone is busy for longer)" * (timed < all_)
    else:
        text += f"; one that was left out may take {tuning.best_left:,} cycles: raise most"
    if tuning.best.scaled:
        text += "; timed on three row blocks, the others taken to cost what the third does"
    return text


def to_dict(tuning: Tuning) -> dict[str, Any]:
    """As JSON has it: sizes, the choice, the reason, every choice with its numbers."""
    p = tuning.problem
    sizes = {"m": p.m, "n": p.n, "k": p.k, "dtype": tuning.dtype}
    chosen = {"best": _row(tuning.best), "default": _row(tuning.default), "speedup": tuning.speedup}
    sure = {"proved": tuning.proved, "best_left": tuning.best_left, "why": tuning.why, "how": certainty(tuning)}
    return {**sizes, **chosen, **sure, "ranking": [_row(each) for each in tuning.ranking]}


def _row(each: Tuned) -> dict[str, Any]:
    found: dict[str, Any] = {"choice": str(each.choice), "options": each.choice.options, "bound": each.bound}
    found |= {"limit": each.limit, "cycles": each.cycles}
    if each.counts is None:
        return found | ({"refused": each.refused} if each.refused else {})
    found |= {"math_cycles": each.math_cycles, "utilisation": each.utilisation, "stall": each.stall}
    found |= {"stalls": each.stalls, "queue": each.queue, "counts": each.counts.to_dict()}
    return found | {"buffering": each.buffering, "scaled": each.scaled}
