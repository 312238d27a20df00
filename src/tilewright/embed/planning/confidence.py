"""How far limits learnt from some batches can be trusted on the next: counted on batches that did not teach them.

Without days batches are taken to come in no particular order: the answer is of days like the log's. With the day of
each batch the limits of the days before are held against every later day, which is how limits are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import ClassVar, TypeAlias

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.model.counters import key
from tilewright.embed.model.formulas import round8
from tilewright.embed.model.tables import Limits
from tilewright.errors import UsageError
from tilewright.render import Field
from tilewright.render.formats import counted

LEVEL = 0.95
"""How sure the bounds are."""


@dataclass(frozen=True)
class Day:
    """A day's batches against the limits that the days before it gave.

    ===============================  ===============================================================================
    ``name``                         the day; ``batches``: how many it has
    ``exceeded``                     those that exceed some limit
    ``stack``, ``knob``              the limit exceeded by most; "": none was
    ``limit``, ``observed``          that limit and the most that was asked of it
    ``headroom``                     with which (in hundredths, at least) the limits would have held the day
    ``grown``                        features that drift: by how much more of that count each fills the day's fullest
                                     partition than the fullest of the days before, most first
    ===============================  ===============================================================================
    """

    name: str
    batches: int
    exceeded: int = 0
    stack: str = ""
    knob: str = ""
    limit: int = 0
    observed: int = 0
    headroom: float = 0.0
    grown: Mapping[str, int] = field(default_factory=dict, hash=False)

    COLUMNS: ClassVar = (
        Field("day", "code", of=lambda d: d.name),
        Field("batches", "count", of=lambda d: d.batches),
        Field("exceed", "percent", "batches above some limit of the days before", lambda d: d.exceeded / d.batches),
        Field("most exceeded", "code", of=lambda d: f"{d.knob} of {d.stack}" if d.exceeded else ""),
        Field("allowed", "count", "by the days before", lambda d: d.limit if d.exceeded else None),
        Field("observed", "count", of=lambda d: d.observed if d.exceeded else None),
        Field("grown", "code", "features that fill its fullest partition more than the days before", lambda d: d.drift),
        Field("headroom", "number", "how much higher limits would have held the day", lambda d: round(d.headroom, 2)),
    )

    @property
    def drift(self) -> str:
        """The features that grew most, in words."""
        most = [f"{feature} +{more:,}" for feature, more in self.grown.items()][:_SHOWN]
        return ", ".join(most) + ", ..." * (len(self.grown) > _SHOWN)


@dataclass(frozen=True)
class Confidence:
    """What a batch that is not in the log does to the limits.

    ================  ============================================================================================
    ``batches``       the log's; ``records``: those that alone hold some maximum, which limits from the other
                      batches would not have held
    ``held_out``      batches that judged the limits of the others; ``exceeded``: those that exceeded some limit
    ``days``          every day but the first, where days are known: its batches are the held-out ones, and the others
                      are the days before
    ``week``          the headroom, in hundredths, that limits of these days need for seven more, drift and chance
                      counted: see :func:`week_headroom`
    ``expected``      the chance that a batch exceeds: records / batches, without bias for days like the log's; with
                      days the share of the held-out ones that did
    ``at_least``      a fresh batch exceeds the limits of those others with a probability between this and
    ``at_most``       this, with a confidence of 95 %; limits from all batches are exceeded no more often. Batches of
                      one day are alike, so with days it is days that are counted: those with a batch that exceeds
    ================  ============================================================================================
    """

    batches: int
    records: int
    held_out: int = field(metadata=key("held_out_batches"))
    exceeded: int = field(metadata=key("held_out_exceeded"))
    days: tuple[Day, ...] = ()
    week: float = field(metadata=key("headroom_for_a_week"), default=0.0)

    @property
    def expected(self) -> float:
        return self.exceeded / self.held_out if self.days else self.records / self.batches

    @property
    def at_least(self) -> float:
        return 0.0 if self.days else 1 - upper_bound(self.held_out - self.exceeded, self.held_out)

    @property
    def at_most(self) -> float:
        over = sum(day.exceeded > 0 for day in self.days) if self.days else self.exceeded
        return upper_bound(over, len(self.days) or self.held_out)

    @property
    def sentence(self) -> str:
        if self.days:
            return self._sentence_of_days()
        fresh = f"a fresh batch like these exceeds the limits with a chance of about {self.expected:.2g}"
        if self.batches == 1:
            return "limits from one batch: whether another one keeps them is not known"
        if not self.held_out:
            return f"{fresh} ({self.records} of {self.batches} batches hold a maximum alone)"
        judged = f"{self.exceeded} of {self.held_out} held-out batches exceeded what the others gave"
        return f"{fresh}, at most {self.at_most:.2g} with {LEVEL:.0%} confidence ({judged})"

    def _sentence_of_days(self) -> str:
        over = [day for day in self.days if day.exceeded]
        judged = f"{len(over)} of {counted(len(self.days), 'later day')} exceeded what the days before gave"
        ahead = f"; for seven days more plan with --headroom {self.week:.2f}" if self.week else ""
        if not over:
            chance = f"the next one does with a chance of at most {self.at_most:.2g} ({LEVEL:.0%} confidence)"
            return f"{judged}; {chance}{ahead}"
        some = ", ".join(f"{day.name} in {day.exceeded / day.batches:.0%} of its batches" for day in over[:_SHOWN])
        more = f" and {len(over) - _SHOWN} more" if len(over) > _SHOWN else ""
        worst = max(over, key=lambda day: day.headroom)
        grown = f"; {worst.drift} in the fullest partition of {worst.name}" if worst.grown else ""
        return f"{judged} ({some}{more}){grown}; a headroom of {worst.headroom:.2f} would have held them{ahead}"

    confidence: ClassVar = LEVEL
    DERIVED: ClassVar = {name: name for name in ("expected", "at_least", "at_most", "sentence", "confidence")}


_SHOWN = 4
"""Days that a sentence names."""
HELD_OUT = 5
"""Every fifth batch is held out: it judges the limits that the others give."""


Fillings: TypeAlias = Mapping[tuple[int, int, int], Mapping[str, int]]
"""(batch, stack, kind of limit) -> feature -> its part of a partition fuller than all before."""


def allowed(most: Longs, headroom: float) -> Longs:
    """The limits learnt from the fullest partitions int64[stacks, 2], raised by the headroom, in that form."""
    limits = (Limits.holding(*counts).with_headroom(headroom) for counts in most.tolist())
    return np.array([list(vars(limit).values()) for limit in limits])


def confidence_in(
    batches: int, fullest: tuple[Longs, Longs, Longs], learnt: Longs, judges: Longs, headroom: float
) -> Confidence:
    """The confidence in limits of so many batches. ``fullest`` int64[stacks, 2] each: the fullest partition, that
    without the batch that holds it, and this batch's number; ``learnt``: the fullest of the batches that are not held
    out; ``judges`` int64[held out, stacks, 2]."""
    most, second, holder = fullest
    records = len(set(holder[most > allowed(second, headroom)].tolist())) if batches > 1 else 1
    return Confidence(batches, records, len(judges), int((judges > allowed(learnt, headroom)).any(axis=(1, 2)).sum()))


def confidence_of_all(
    peaks: Longs, fillings: Fillings, headroom: float, days: Sequence[str] = (), stacks: Sequence[str] = ()
) -> Confidence:
    """The confidence in limits learnt from peaks int64[batches, stacks, 2].

    ``fillings``: what the fullest partitions are full of. ``days``: of every batch, in their order, and the names of
    the ``stacks``. Raises :class:`UsageError` for a day that comes again: then early and late cannot be told apart.
    """
    batches, runs = len(peaks), _runs(days)
    judges = np.arange(batches) % HELD_OUT == HELD_OUT - 1
    second, most = np.sort(peaks, axis=0)[[-min(2, batches), -1]]
    fullest = most, second, peaks.argmax(axis=0)
    plain = confidence_in(batches, fullest, peaks[~judges].max(axis=0), peaks[judges], headroom)
    if len(runs) < 2:
        return plain
    judged = tuple(_judged(*run, peaks, fillings, headroom, stacks) for run in runs[1:])
    held_out, exceeded = sum(day.batches for day in judged), sum(day.exceeded for day in judged)
    week = week_headroom(peaks, np.array([begin for _, begin, _ in runs]))
    return replace(plain, held_out=held_out, exceeded=exceeded, days=judged, week=week)


def _runs(days: Sequence[str]) -> list[tuple[str, int, int]]:
    """Every day with its first batch and the one behind its last."""
    starts = [k for k, name in enumerate(days) if k == 0 or days[k - 1] != name]
    names = [days[k] for k in starts]
    if again := [name for name in names if names.count(name) > 1]:
        how = "sort the log by time, or plan it without"
        raise UsageError(f"the batches of {again[0]} do not stand together", where="days", how=how)
    return list(zip(names, starts, [*starts[1:], len(days)]))


def _judged(
    name: str, begin: int, end: int, peaks: Longs, fillings: Fillings, headroom: float, stacks: Sequence[str]
) -> Day:
    """The batches ``begin`` .. ``end`` - 1 against the limits of all before; what grew are the features that fill the
    fullest partition by a tenth of the growth more, or more."""
    own, before = peaks[begin:end], peaks[:begin].max(axis=0)
    most, limits = own.max(axis=0), allowed(before, headroom)
    exceeded = int((own > limits).any(axis=(1, 2)).sum())
    if not exceeded:
        return Day(name, len(own))
    k, kind = divmod(int((most / limits).argmax()), 2)
    knob, limit, observed = fields(Limits)[kind].name, int(limits[k, kind]), int(most[k, kind])
    fuller = {batch: filled for (batch, *of), filled in fillings.items() if of == [k, kind] and batch < end}
    now, then = fuller[max(fuller)], fuller[max(batch for batch in fuller if batch < begin)]
    more = {feature: n - then[feature] for feature, n in now.items() if n > then[feature]}
    least = sum(more.values()) / 10
    grown = dict(sorted(((f, n) for f, n in more.items() if n >= least), key=lambda item: -item[1]))
    return Day(name, len(own), exceeded, stacks[k], knob, limit, observed, headroom_for(before, most), grown)


WEEK = 7
"""Days that limits are planned for."""


def week_headroom(peaks: Longs, starts: Longs) -> float:
    """The headroom, in hundredths, that limits of so many days need for the next seven to exceed them with a chance of
    some 5 %; ``peaks``: int64[batches, stacks, 2], the fullest partitions; ``starts``: of the days, their first batch.

    By chance alone the fullest of many batches is fuller than that of few: a batch's peak is itself a maximum of many
    partitions, so Gumbel's law has the peak that one week in twenty exceeds, from how the batches of a day differ. And
    days grow: their mean peak by the share that it did at most from the days before some day to one up to seven behind
    it; where the log has fewer, by as much more for each day that it lacks. 0.0 where it has but two days, of which
    nobody knows what grows.

    >>> week_headroom(np.array([[[100, 10]], [[104, 10]], [[108, 10]], [[112, 10]]]), np.arange(4))  # 4 more a day
    0.22
    """
    days = len(starts)
    if days < 3:
        return 0.0
    most, sizes = peaks.max(axis=0), np.diff([*starts, len(peaks)])
    means = np.add.reduceat(peaks, starts) / sizes[:, None, None]
    before, far = np.maximum(np.maximum.accumulate(means), 1), min(WEEK, days - 1)
    grows = np.array([(means[h:] / before[:-h]).max(axis=0) - 1 for h in range(1, far + 1)]).clip(0).max(axis=0)
    apart = ((peaks - means.repeat(sizes, axis=0)) ** 2).sum(axis=0) / max(1, len(peaks) - days)
    reduced = math.log(WEEK * len(peaks) / days) - math.log(-math.log(LEVEL)) - np.euler_gamma
    level = np.maximum(most, means.max(axis=0) + np.sqrt(6 * apart) / math.pi * reduced)
    return headroom_for(most, np.ceil(level * (1 + grows * WEEK / far)))


def headroom_for(before: Longs, most: Longs) -> float:
    """The least headroom, in hundredths, with which limits of ``before``, rounded up to 8, hold ``most``.

    >>> headroom_for(np.array([100, 1]), np.array([130, 5]))
    0.29
    """
    if (most <= before).all():
        return 0.0
    before = np.maximum(before, 1)
    least = max(1, math.floor(100 * float(((round8(most) - 8) / before).max() - 1)))
    return next(n for n in count(least) if (round8(np.ceil(before * (1 + n / 100)).astype(int)) >= most).all()) / 100


def upper_bound(hits: int, tries: int) -> float:
    """The largest probability under which so few hits have a chance of (1 - LEVEL) / 2 (Clopper and Pearson); 1 less
    that of as many misses is the smallest one.

    >>> round(upper_bound(0, 100), 4), upper_bound(5, 5), upper_bound(0, 0)
    (0.0362, 1.0, 1.0)
    """
    if hits >= tries:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        chance = sum(math.exp(log_chance(k, tries, middle)) for k in range(hits + 1))
        low, high = (middle, high) if chance > (1 - LEVEL) / 2 else (low, middle)
    return high


def log_chance(hits: int, tries: int, p: float) -> float:
    """Logarithm of the binomial chance of exactly ``hits`` in ``tries``; 0 < p < 1."""
    ways = math.lgamma(tries + 1) - math.lgamma(hits + 1) - math.lgamma(tries - hits + 1)
    return ways + hits * math.log(p) + (tries - hits) * math.log1p(-p)
