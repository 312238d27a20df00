"""Every rule of the diagnosis: counters that trigger it, with its numbers, and counters beside them that do not."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tilewright.embed import (
    Counters,
    Limits,
    Seconds,
    SparseCoreConfig,
    diagnose,
    memory,
)
from tilewright.embed.diagnosis.diagnose import RULES
from tilewright.embed.model.counters import HbmCounters, StackCounters, TableCounters

GIB = 2**30
V5P = Counters("tpu-v5p", chips=4)


def times(**seconds):
    return replace(V5P, seconds=Seconds(**seconds))


def hbm(**sizes):
    return replace(V5P, hbm=HbmCounters(**{"capacity": 96 * GIB, **sizes}))


def stacks(**counted):
    return replace(V5P, stacks={"user": StackCounters(**{"width": 16, "tables": 5, "optimizer": "Adagrad", **counted})})


def alone(n, **counted):
    each = StackCounters(width=16, optimizer="Adagrad", samples_per_sparsecore=256, **counted)
    return replace(V5P, stacks={f"t{i}": each for i in range(n)})


def uneven(**counted):
    """A stack with a remedy that makes half of its wait go."""
    waits = {"remedies": {"ids hashed": (5, 5, 1.2)}, "remedy_waits": {"ids hashed": 1.5}}
    return stacks(imbalance=2.0, wait=2.0, wait_ids=2.0, wait_rows=1.5, mean_ids=90.0, **waits, **counted)


def tables(**shapes):
    return replace(V5P, tables={name: TableCounters(*shape) for name, shape in shapes.items()})


def knobs(counters, **changed):
    return replace(counters, sparsecore=SparseCoreConfig(**changed))


def steps(**counted):
    return replace(V5P, **counted)


BUSY = {"step": 0.010, "sparsecore": 0.008, "tensorcore": 0.009}
LOW = {"max_ids_per_partition": 100, "max_unique_ids_per_partition": 50}

# name, severity, counters that trigger, what must stand in the finding's text, counters that must not
CASES = [
    ("host-bound", "severe", times(**{**BUSY, "step": 0.04}, host=0.04), "4.5 times faster", times(**BUSY, host=0.005)),
    ("host-bound", "warning", times(step=0.010, wait=0.001), "9.00 ms instead", times(step=0.010, wait=0.0004)),
    (
        "host-bound",
        "severe",
        times(host=0.02, sparsecore=0.005, tensorcore=0.01),
        "2.00 times",
        times(host=0.009, sparsecore=0.005, tensorcore=0.01),
    ),
    (
        "host-bound",
        "note",
        times(host=0.02, modelled=0.001),
        "20.0 ms",
        times(host=0.02, modelled=0.03),
    ),
    (
        "host-bound",
        "severe",
        knobs(times(step=0.01, wait=0.004), maximum_parallel_iterations=0),
        "from 0 to 2",
        times(step=0.01, wait=0.0),
    ),
    (
        "missing-overlap",
        "severe",
        knobs(times(sparsecore=0.010, tensorcore=0.010), disable_full_embedding_pipelining=True),
        "2.00 times",
        knobs(times(sparsecore=0.010, tensorcore=0.010, step=0.011)),
    ),
    (
        "missing-overlap",
        "severe",
        times(step=0.0172, sparsecore=0.008, tensorcore=0.009),
        "though pipelining is on",
        times(**BUSY),
    ),
    (
        "missing-overlap",
        "warning",
        knobs(V5P, disable_full_embedding_pipelining=True),
        "tf_xla_disable_full_embedding_pipelining to false",
        knobs(V5P),
    ),
    (
        "hbm-bandwidth",
        "severe",
        replace(hbm(moved=2_488_500_000), seconds=Seconds(sparsecore=0.001)),
        "2 times the chips (8)",
        replace(hbm(moved=1_100_000_000), seconds=Seconds(sparsecore=0.001)),
    ),
    (
        "limits-too-low",
        "warning",
        stacks(**LOW, observed_ids=130, observed_unique_ids=40),
        "max_ids_per_partition of user to 136 and max_unique_ids_per_partition to 56",
        stacks(**LOW, observed_ids=100, observed_unique_ids=50),
    ),
    (
        "limits-too-low",
        "severe",
        stacks(**LOW, observed_ids=100, observed_unique_ids=51, ids=1000, dropped_ids=20),
        "max_unique_ids_per_partition to 56",
        stacks(**LOW, observed_ids=90, observed_unique_ids=45),
    ),
    (
        "limits-too-high",
        "note",
        stacks(max_ids_per_partition=1024, max_unique_ids_per_partition=512, observed_ids=300, observed_unique_ids=99),
        "user to 304 and max_unique_ids_per_partition to 104",
        stacks(max_ids_per_partition=512, max_unique_ids_per_partition=512, observed_ids=300, observed_unique_ids=99),
    ),
    (
        "limits-too-high",
        "note",
        stacks(**LOW, observed_ids=100, typical_ids=30, typical_unique_ids=20),
        "one partition in a hundred",
        stacks(**LOW, observed_ids=100, typical_ids=60, typical_unique_ids=20),
    ),
    ("mini-batching", "severe", steps(steps=100, minibatches=250), "2.50", steps(steps=100, minibatches=100)),
    ("mini-batching", "warning", steps(steps=100, minibatches=101), "1.01", steps(steps=100, minibatches=100)),
    ("mini-batching", "severe", steps(steps=100, steps_over=0.5), "50.0 %", steps(steps=100, steps_over=0.0)),
    (
        "mini-batching",
        "severe",
        steps(steps=100, minibatches=75, uncut=25, uncut_because="id 1198 of city (49)"),
        "25.0 % of the batches are made that are refused now",
        steps(steps=100, minibatches=100),
    ),
    (
        "idle-mini-batching",
        "warning",
        steps(steps=9, minibatches=9, minibatch_layout=True, buffer_bytes=64 * 2**20),
        "1.00 MiB a batch and chip instead of 64.0 MiB",
        steps(steps=9, minibatches=10, minibatch_layout=True),
    ),
    (
        "id-dropping",
        "severe",
        stacks(ids=1000, dropped_ids=10, observed_ids=300),
        "max_ids_per_partition of user to 304",
        stacks(ids=1000, dropped_ids=0),
    ),
    ("id-dropping", "warning", stacks(dropped_share=0.001), "0.1 %", stacks(dropped_share=0.0)),
    (
        "recompilation",
        "severe",
        replace(times(step=0.01, compile=90.0), steps=1000, compilations=9),
        "1 min 20 s less compiling",
        replace(times(step=0.01, compile=90.0), steps=1000, compilations=1),
    ),
    ("recompilation", "severe", steps(steps=20, compilations=2), "1 program instead of 2", steps(steps=20)),
    (
        "recompilation",
        "warning",
        steps(steps=21, compilations=2),
        "2 times in 21 steps",
        steps(steps=1, compilations=1),
    ),
    ("skew", "severe", stacks(shard_ids=(300, 20, 40, 40), mean_ids=100.0), "3.00 times", stacks(imbalance=1.4)),
    (
        "skew",
        "warning",
        stacks(imbalance=1.6, hot=("user", 7, 0.5)),
        "id 7 of table user",
        stacks(imbalance=9, mean_ids=2.0),
    ),
    (
        "skew",
        "warning",
        replace(stacks(imbalance=5.0, mean_ids=0.05), chips=256, sparsecores=1024, steps=4),
        "5.00 times",
        replace(stacks(imbalance=1.5, mean_ids=0.02), chips=256, sparsecores=1024, steps=4),
    ),
    (
        "skew",
        "warning",
        stacks(imbalance=2.0, remedies={"as it is": (9, 9, 2.0), "ids hashed": (5, 5, 1.0)}),
        "ids hashed: imbalance 1.00 instead of 2.00",
        stacks(imbalance=1.2, remedies={"ids hashed": (5, 5, 1.0)}),
    ),
    (
        "skew",
        "warning",
        stacks(imbalance=3.2, wait=1.8, wait_rows=1.1, wait_ids=3.2, mean_ids=90.0),
        "1.80 times",
        stacks(imbalance=4.5, wait=1.2, wait_rows=1.04, wait_ids=4.5, mean_ids=90.0),
    ),
    (
        "skew",
        "warning",
        replace(stacks(imbalance=1.9, wait=1.8, mean_ids=1.0), steps=100),
        "1.80 times",
        replace(stacks(imbalance=1.1, wait=1.8, mean_ids=1.0), steps=100),
    ),
    (
        "skew",
        "severe",
        stacks(imbalance=2.0, wait=3.0, remedies={"ids hashed": (5, 5, 1.9)}, remedy_waits={"ids hashed": 1.5}),
        "ids hashed: wait 1.50 instead of 3.00",
        stacks(imbalance=3.0, wait=1.4),
    ),
    (
        "clustered-log",
        "warning",
        stacks(imbalance=1.1, mean_ids=20.0, observed_ids=900, remedies={"log shuffled": (40, 40, 1.0)}),
        "limits of 40 ids instead of 900",
        stacks(imbalance=1.1, mean_ids=20.0, observed_ids=60),
    ),
    ("too-few-tables-stacked", "warning", alone(6), "into 1 instead of 6 stacks", alone(4)),
    ("too-few-tables-stacked", "warning", alone(6, rows=10**9), "into 3 instead of 6 stacks", alone(6, rows=2**30)),
    (
        "too-few-tables-stacked",
        "warning",
        knobs(alone(6), disable_table_stacking=True),
        "disable_table_stacking = false",
        replace(alone(0), stacks={"a": StackCounters(tables=26, width=16)}),
    ),
    (  # what gains less than 2 % of the modelled step is no advice
        "too-few-tables-stacked",
        "warning",
        replace(alone(6), seconds=Seconds(modelled=0.010, launches=0.0003)),
        "a step 2.5 % shorter, modelled",
        replace(alone(6), seconds=Seconds(modelled=0.010, launches=0.0002)),
    ),
    (
        "skew",
        "warning",
        replace(uneven(wait_seconds=0.0004), seconds=Seconds(modelled=0.010)),
        "ids hashed: wait 1.50 instead of 2.00",
        replace(uneven(wait_seconds=0.0001), seconds=Seconds(modelled=0.010)),
    ),
    (
        "skew",
        "warning",
        replace(uneven(wait_seconds=0.0003), seconds=Seconds(modelled=0.010)),
        "neither rotating, hashing nor shuffling helps",
        replace(uneven(wait_seconds=0.0004), seconds=Seconds(modelled=0.010, least=0.0099)),
    ),
    ("too-many-tables-stacked", "warning", stacks(tables=201), "3 stacks of 67", stacks(tables=100)),
    (
        "float32",
        "warning",
        replace(tables(user=(1000, 16)), target="tpu-v6e", seconds=Seconds(sparsecore=0.02, tensorcore=0.01)),
        "rows half as wide",
        replace(tables(user=(1000, 16)), seconds=Seconds(sparsecore=0.009, tensorcore=0.01)),
    ),
    (
        "float32",
        "note",
        replace(tables(user=(1000, 16)), hbm=HbmCounters(tables=60 * GIB, capacity=96 * GIB)),
        "62.5 % of HBM",
        replace(
            V5P,
            tables={"user": TableCounters(1000, 16, "bfloat16")},
            hbm=HbmCounters(tables=60 * GIB, capacity=96 * GIB),
        ),
    ),
    ("padding-of-width", "note", tables(user=(1280, 1), item=(128, 8)), "8 rows of 1 floats", tables(user=(128, 16))),
    (
        "padding-of-width",
        "warning",
        replace(tables(user=(10**9, 12)), hbm=HbmCounters(capacity=96 * GIB)),
        "make user 16 wide",
        tables(user=(1280, 16), item=(128, 12)),
    ),
    (
        "padding-of-vocabulary",
        "note",
        tables(a=(4, 16), b=(4, 16), c=(4, 16)),
        "7.25 KiB of padding are left",
        tables(a=(10**6 + 1, 16), b=(4, 16)),
    ),
    ("padding-of-vocabulary", "note", tables(a=(4, 16)), "96.9 %", tables(a=(128, 16))),
    (
        "spmem-overflow",
        "severe",
        stacks(max_ids_per_partition=15360, max_unique_ids_per_partition=15360),
        "lower both limits to 14,448 ids and 14,448 distinct ids",
        stacks(max_ids_per_partition=14000, max_unique_ids_per_partition=14000),
    ),
    ("gather-operand", "note", stacks(samples_per_sparsecore=262144), "50%", stacks(samples_per_sparsecore=65536)),
    (
        "hbm-stack-overflow",
        "severe",
        replace(
            V5P,
            stacks={
                "small": StackCounters(width=8, max_ids_per_partition=64, max_unique_ids_per_partition=64),
                "large": StackCounters(width=256, max_ids_per_partition=64, max_unique_ids_per_partition=64),
                "other": StackCounters(width=8, max_ids_per_partition=64, max_unique_ids_per_partition=64),
            },
            hbm=HbmCounters(tables=80 * GIB, backward_stack=16 * GIB + GIB // 2, capacity=96 * GIB),
        ),
        "from 0 to 2",
        hbm(tables=80 * GIB, backward_stack=16 * GIB),
    ),
    (
        "hbm-stack-overflow",
        "severe",
        replace(alone(4), hbm=HbmCounters(tables=80 * GIB, backward_stack=32 * GIB, capacity=96 * GIB)),
        "from 0 to 3",
        hbm(tables=80 * GIB, backward_stack=16 * GIB),
    ),
    (
        "hbm-heap-exhaustion",
        "severe",
        hbm(tables=60 * GIB, slots=60 * GIB),
        "take 8 chips",
        hbm(tables=40 * GIB, slots=40 * GIB),
    ),
    (
        "hbm-heap-exhaustion",
        "warning",
        knobs(hbm(tables=40 * GIB, inputs=50 * GIB), maximum_parallel_iterations=10),
        "from 10 to 9: 5.00 GiB less",
        hbm(tables=40 * GIB, inputs=4 * GIB),
    ),
    (
        "needless-serialization",
        "warning",
        knobs(hbm(tables=GIB, forward_stack=GIB), num_serialized_tables_to_optimize_hbm=4),
        "to 0",
        knobs(hbm(tables=GIB, forward_stack=GIB), num_serialized_tables_to_optimize_hbm=1),
    ),
    (
        "needless-serialization",
        "warning",
        knobs(hbm(tables=GIB, forward_stack=GIB), num_serialized_tables_to_optimize_hbm=2),
        "to 0",
        knobs(hbm(tables=GIB, forward_stack=96 * GIB), num_serialized_tables_to_optimize_hbm=4),
    ),
    (
        "limits-unsure",
        "warning",
        steps(fresh_over=(0.33, 1.0)),
        "about 0.33, at most 1 with",
        steps(fresh_over=(0.1, 0.4)),
    ),
    ("limits-unsure", "note", steps(fresh_over=(0.06, 0.71)), "--headroom 0.1", steps(fresh_over=(0.0, 0.5))),
    (
        "skew",
        "warning",
        uneven(common=("user", 24)),
        "ids of table user, multiples of 24 apart, reach 2 of 16 shards",
        stacks(imbalance=1.0, common=("user", 24)),
    ),
    ("too-few-ids", "note", tables(t=(99, 8, "float32", 4)), "t (4)", tables(t=(99, 8, "float32", 16))),
    ("checks-left-on", "warning", knobs(V5P, detect_nan=True), "xla_sc_detect_nan", knobs(V5P)),
    ("checks-left-on", "warning", knobs(V5P, assert_level="bounds"), "complex strided accesses", knobs(V5P)),
]


def found(name, counters):
    return [each for each in diagnose(counters).findings if each.bottleneck == name]


@pytest.mark.parametrize(("name", "severity", "bad", "says", "good"), CASES)
def test_a_rule_speaks_when_it_should_and_only_then(name, severity, bad, says, good):
    findings = found(name, bad)
    assert findings, diagnose(bad)
    first = findings[0]
    assert first.severity == severity
    assert says in " ".join((first.cause, *first.advice, first.effect))
    assert first.advice
    assert first.source
    assert all(isinstance(value, int | float) for value in first.evidence.values())
    assert not found(name, good)
    assert name not in diagnose(bad).clear


def test_every_rule_has_a_case():
    assert {name for name, *_ in CASES} == {rule.name for rule in RULES}


def test_nothing_known_nothing_guessed():
    made = diagnose(Counters())
    assert (made.findings, made.clear) == ((), ())
    assert set(made.not_judged) == {rule.name for rule in RULES}
    assert made.not_judged["host-bound"] == ("seconds.wait|seconds.host",)
    assert not made.severe


def test_the_worst_comes_first_and_is_severe():
    made = diagnose(replace(stacks(**LOW, observed_ids=130, typical_ids=9), seconds=Seconds(step=0.01, wait=0.005)))
    assert [each.bottleneck for each in made.findings] == ["host-bound", "limits-too-low", "limits-too-high"]
    assert [each.severity for each in made.findings] == ["severe", "warning", "note"]
    assert made.severe
    plain = json.loads(json.dumps(made.to_json()))
    assert plain["findings"][0]["bottleneck"] == "host-bound"


def test_limits_that_are_unsure_are_not_called_clear():
    sure = stacks(**LOW, observed_ids=9, typical_ids=9)
    assert "limits-too-low" in diagnose(sure).clear
    unsure = diagnose(replace(sure, fresh_over=(0.0, 0.9)))
    assert "limits-too-low" not in unsure.clear
    assert unsure.not_judged["limits-too-low"] == ("enough fresh batches (limits-unsure)",)


def test_of_one_severity_what_costs_most_comes_first():
    some = replace(tables(few=(10**6, 8, "float32", 4)), fresh_over=(0.0, 0.9))
    assert [each.bottleneck for each in diagnose(some).findings] == ["too-few-ids", "limits-unsure"]
    some = tables(few=(9, 1, "float32", 4), narrow=(10**6, 1))
    assert [each.bottleneck for each in diagnose(some).findings] == ["padding-of-width", "too-few-ids"]
    slow = times(step=0.01, wait=0.0006, sparsecore=0.005, tensorcore=0.005)
    assert [each.bottleneck for each in diagnose(slow).findings] == ["missing-overlap", "host-bound"]


def test_limits_advised_compile_and_hold():
    """What limits-too-low and spmem-overflow advise is true: memory() agrees."""
    low = found("limits-too-low", stacks(**LOW, observed_ids=130, observed_unique_ids=60))[0]
    assert "136" in low.advice[0]
    assert memory("tpu-v5p", 16, 16, Limits(136, 64), "adagrad").compiles
    assert memory("tpu-v5p", 16, 16, Limits(14448, 14448), "adagrad").compiles
    huge = stacks(**LOW, observed_ids=10**6, observed_unique_ids=10**5)
    assert "do not compile" in found("limits-too-low", huge)[0].advice[0]


def test_bounds_of_the_lookup_and_the_update_are_told_apart():
    """Forward 16,376 fails too; 15,360 fails in the update only, so a stack without a known optimizer passes."""
    limits = {"max_ids_per_partition": 15360, "max_unique_ids_per_partition": 15360}
    assert not found("spmem-overflow", stacks(**limits, optimizer="mine"))
    limits = {"max_ids_per_partition": 16376, "max_unique_ids_per_partition": 16376}
    assert "lookup" in found("spmem-overflow", stacks(**limits, optimizer="mine"))[0].cause


def test_the_pages_table_is_the_rules(root):
    page = (root / "docs" / "embedding_diagnosis.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.*?)` \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert rows == [(rule.name, rule.when, rule.source) for rule in RULES]
