"""Limits of the days before, held against every later day: judged by brute force, and read from logs of every kind."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.conftest import by_night
from tests.embed.slow_batch import partitions
from tests.embed.test_pods import FEATURES, TOPOLOGY, made_batch
from tilewright.embed import Feature, Table, Topology, check_batches, plan, read_log
from tilewright.embed.logs.log import day_of
from tilewright.embed.model.formulas import round8
from tilewright.embed.planning.confidence import week_headroom
from tilewright.errors import UsageError


def test_a_log_of_several_days_is_judged_day_by_day():
    """Limits of the days before against every later day, by brute force; a headroom as said would have held."""
    batches = [made_batch(n) for n in range(9)]
    days = ["mon"] * 3 + ["tue"] * 2 + ["wed"] * 4
    made = plan(batches, FEATURES, TOPOLOGY, days=days)
    sure = made.confidence
    begin, expected = 3, []
    for name, number in (("tue", 2), ("wed", 4)):
        limits = plan(batches[:begin], FEATURES, TOPOLOGY, stacking=made.stacking).limits
        own = batches[begin : begin + number]
        check = check_batches(own, made.stacking, limits)
        day = next(day for day in sure.days if day.name == name)
        assert (day.batches, day.exceeded) == (number, check.batches_over)
        expected.append(check.batches_over)
        if day.exceeded:
            worst = max((e for e in check.limits), key=lambda e: e.observed / e.limit)
            assert (day.limit, day.observed) == (worst.limit, worst.observed)
            for headroom, holds in ((day.headroom, True), (day.headroom - 0.01, day.headroom <= 0.01)):
                roomy = plan(batches[:begin], FEATURES, TOPOLOGY, headroom=headroom, stacking=made.stacking).limits
                assert check_batches(own, made.stacking, roomy).passed == holds or headroom == 0
        begin += number
    assert (sure.held_out, sure.exceeded, sure.expected) == (6, sum(expected), sum(expected) / 6)
    assert sure.at_least <= sure.expected <= sure.at_most
    assert "2 later days" in sure.sentence
    assert (
        plan(batches, FEATURES, TOPOLOGY, days=["one"] * 9).confidence == plan(batches, FEATURES, TOPOLOGY).confidence
    )
    with pytest.raises(UsageError, match="8 days for 9 batches"):
        plan(batches, FEATURES, TOPOLOGY, days=days[1:])
    with pytest.raises(UsageError, match="the batches of mon do not stand together"):
        plan(batches, FEATURES, TOPOLOGY, days=["mon", *days[1:8], "mon"])


def test_a_quiet_first_day_is_not_trusted():
    """What a recommender saw: a confident page on Monday, and every batch of Wednesday exceeds its limits."""
    busy = [{**made_batch(n), "friend": np.arange(32 * 6).reshape(32, 6) * 4 % 300} for n in range(4)]
    quiet = [made_batch(n) for n in range(8)]
    sure = plan([*quiet, *busy], FEATURES, TOPOLOGY, days=["mon"] * 4 + ["tue"] * 4 + ["wed"] * 4).confidence
    assert sure.days[-1].exceeded == 4
    assert "wed in 100% of its batches" in sure.sentence
    assert f"a headroom of {sure.days[-1].headroom:.2f} would have held them" in sure.sentence


def fullest_by_feature(batches, stacking, stack, distinct):
    """Feature -> its part of the fullest partition of these batches, by the slow reference; the first of equal ones."""
    found = []
    for batch in batches:
        rows = {f.name: samples_of(batch[f.name]) for f in stacking.features}
        parts = partitions(rows, stacking, stack)
        of = {key: len({row for row, _, _ in part} if distinct else part) for key, part in parts.items()}
        key = max(sorted(of), key=lambda one: of[one])
        alone = {
            f.name: partitions({g: r if g == f.name else [[]] * len(r) for g, r in rows.items()}, stacking, stack)
            for f in stacking.stacks[stack].features
        }
        filled, seen = {}, set()
        for name, parts in alone.items():
            here = [row for row, _, _ in parts.get(key, [])]
            filled[name] = len(set(here) - seen) if distinct else len(here)
            seen |= set(here)
        found.append((of[key], filled))
    return max(found, key=lambda one: one[0])[1]


def samples_of(value):
    rows = value if not isinstance(value, tuple) else [value[0][a:b] for a, b in itertools.pairwise(value[1])]
    return [[(int(i), 1.0) for i in row] for row in rows]


@pytest.mark.parametrize("seed", range(10) if by_night() else range(2))
def test_features_that_drift_are_named(seed):
    """By how much each fills the fullest partition of the day more than that of the days before, by brute force."""
    early, late = [made_batch(10 * seed + n) for n in range(3)], [made_batch(10 * seed + n) for n in range(3, 5)]
    late[0] = {**late[0], "friend": np.tile(np.arange(9) * 4 + seed, (32, 1))}
    made = plan([*early, *late], FEATURES, TOPOLOGY, days=["mon"] * 3 + ["tue"] * 2)
    [day] = made.confidence.days
    distinct = day.knob == "max_unique_ids_per_partition"
    then, now = (fullest_by_feature(some, made.stacking, day.stack, distinct) for some in (early, late))
    more = {name: now[name] - then[name] for name in now if now[name] > then[name]}
    least = sum(more.values()) / 10
    assert dict(day.grown) == {name: n for name, n in more.items() if n >= least}
    assert next(iter(day.grown)) == "friend"
    assert f"friend +{day.grown['friend']}" in made.confidence.sentence
    assert made.to_json()["confidence"]["days"][0]["grown"] == dict(day.grown)


@pytest.mark.parametrize("growth", [0.05, 0.0, 0.02] if by_night() else [0.05])
def test_a_headroom_is_proposed_that_the_next_week_needs(growth):
    """Four days teach, seven more judge: histories that get longer each day stay within limits so raised."""

    def batch(day):
        draw = np.random.default_rng(day)
        return {"user": draw.integers(0, 20_000, (256, round(40 * (1 + growth * (day // 3)))))}

    topology, features = Topology(1, 4), [Feature("user", Table("user", 20_000, 8))]
    made = plan([batch(n) for n in range(12)], features, topology, days=[str(n // 3) for n in range(12)])
    week = made.confidence.week
    assert f"--headroom {week:.2f}" in made.confidence.sentence or not week
    raised = plan([batch(n) for n in range(12)], features, topology, headroom=week, stacking=made.stacking)
    assert check_batches([batch(n) for n in range(12, 33)], made.stacking, raised.limits).passed
    assert week <= 2 * 7 * growth + 0.15, "and not much more than it needs"
    if growth:
        assert not check_batches([batch(n) for n in range(12, 33)], made.stacking, made.limits).passed


@pytest.mark.parametrize(("days", "batches"), [(3, 13), (4, 3), (7, 10), (3, 100)] if by_night() else [(3, 13)])
@pytest.mark.parametrize(("growth", "ids"), [(0, 60), (0.02, 12), (0.02, 60), (0.05, 60)] if by_night() else [(0, 60)])
def test_a_week_exceeds_limits_of_that_headroom_seldom(days, batches, growth, ids):
    """Of weeks that grow and whose fullest partitions are a matter of chance, one in twenty exceeds them."""
    draw, held, headrooms = np.random.default_rng(batches), [], []

    def peaks(begin, number):
        means = ids * (1 + growth * np.arange(begin, begin + number)).repeat(batches)
        return draw.poisson(means[:, None], (len(means), 256)).max(axis=1)[:, None, None]

    for _ in range(100 if by_night() else 25):
        learnt = peaks(0, days)
        headrooms.append(week_headroom(learnt, np.arange(days) * batches))
        [[limit]] = round8(np.ceil(learnt.max(axis=0) * (1 + headrooms[-1])).astype(int))
        held.append(peaks(days, 7).max() <= limit)
    assert np.mean(held) >= 0.9
    assert np.mean(headrooms) <= 0.25 + 7 * growth, "and not much more than it needs"


NOON = [datetime(2026, 11, 24 + k // 8, 12, tzinfo=UTC) for k in range(24)]
DAYS = ["2026-11-24"] * 2 + ["2026-11-25"] * 2 + ["2026-11-26"] * 2
USER = [Feature("user", Table("user", 100, 8))]


def written(folder, name, times):
    """A log of a row per time, three days of as many; on the third day all ids are one."""
    ids = [k if k < len(times) * 2 // 3 else 7 for k in range(len(times))]
    path = folder / name
    if name.endswith(".parquet"):
        parquet.write_table(pyarrow.table({"user": ids, "at": times}), path)
    elif name.endswith(".npz"):
        np.savez(path, user=np.array(ids), at=np.array(times))
    else:
        path.write_text("user,at\n" + "".join(f"{i},{t}\n" for i, t in zip(ids, times)))
    return path


@pytest.mark.parametrize(
    ("name", "times", "days"),
    [
        ("stamps.parquet", NOON, DAYS),
        ("dates.parquet", [t.date() for t in NOON], DAYS),
        ("seconds.parquet", [int(t.timestamp()) for t in NOON], DAYS),
        ("milliseconds.parquet", [int(t.timestamp()) * 1000 for t in NOON], DAYS),
        ("nanoseconds.npz", [int(t.timestamp()) * 10**9 for t in NOON], DAYS),
        ("numbers.npz", [k // 8 for k in range(24)], ["0", "0", "1", "1", "2", "2"]),
        ("texts.csv", [t.isoformat() for t in NOON], DAYS),
        ("dates.csv", [t.date() for t in NOON], DAYS),
        ("seconds.csv", [int(t.timestamp()) for t in NOON], DAYS),
    ],
)
def test_days_are_read_from_every_kind_of_log(tmp_path, name, times, days):
    log = read_log(written(tmp_path, name, times), USER, 4, time="at")
    assert [part.day for part in log] == days
    assert [part.day for part in read_log(tmp_path / name, USER, 4)] == [""] * 6


def test_a_time_that_is_none(tmp_path):
    path = written(tmp_path, "words.csv", ["soon"] * 24)
    with pytest.raises(UsageError, match=r"words\.csv: rows 1 to 4, column 'at': 'soon' is no time"):
        list(read_log(path, USER, 4, time="at"))
    with pytest.raises(UsageError, match="no column when"):
        list(read_log(path, USER, 4, time="when"))
    assert day_of(date(2026, 1, 2), "") == "2026-01-02"
    for wrong in (None, -1, [1]):
        with pytest.raises(UsageError, match="is no time"):
            day_of(wrong, "")
