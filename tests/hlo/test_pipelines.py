"""Pipelines as texts: every one prints and parses back; options are the fields of the dataclasses."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hlo.stablehlo_values import module
from tilewright.errors import ParseError
from tilewright.hlo import (
    DEFAULT_PIPELINE,
    REWRITES,
    parse_pipeline,
    record_passes,
    run_pipeline,
)


@st.composite
def steps(draw):
    cls = REWRITES[draw(st.sampled_from(sorted(REWRITES)))]
    values = {
        f.name: draw(st.booleans() if isinstance(f.default, bool) else st.integers(0, 10**9)) for f in fields(cls)
    }
    return cls(**values)


@given(st.lists(steps(), min_size=1))
def test_pipelines_print_and_parse_back(pipeline):
    text = ",".join(map(str, pipeline))
    assert parse_pipeline(text) == tuple(pipeline)
    assert ",".join(map(str, parse_pipeline(text))) == text
    assert parse_pipeline(text.replace(",", " , ")) == tuple(pipeline)


def test_options_may_be_separated_by_commas():
    [step] = parse_pipeline("inline{limit=3,}")
    assert str(step) == "inline{limit=3}"


@given(st.text("abc-{}=, reduce", max_size=30))
def test_any_text_is_a_pipeline_or_a_mistake_with_its_column(text):
    try:
        assert parse_pipeline(text)
    except ParseError as error:
        assert 0 <= error.column <= len(text)


def test_every_rewrite_is_a_frozen_dataclass_that_says_what_it_does():
    for name, cls in REWRITES.items():
        assert is_dataclass(cls)
        with pytest.raises(FrozenInstanceError):
            cls().name = "other"
        assert name == cls.name
        assert cls.summary
        assert all(option.summary for option in cls.options())
        assert cls.__doc__
    assert DEFAULT_PIPELINE.split(",") == list(REWRITES)


TEXT = module(
    {"x": "tensor<6x8xf32>"},
    """%y = stablehlo.reshape %x : (tensor<6x8xf32>) -> tensor<6x4x2xf32>
    %s = stablehlo.sine %y : tensor<6x4x2xf32>
    %z = stablehlo.reshape %s : (tensor<6x4x2xf32>) -> tensor<6x8xf32>""",
    {"z": "tensor<6x8xf32>"},
)


def test_a_record_ends_where_the_pipeline_ends():
    chosen = parse_pipeline("inline,reshape-of-elementwise,canonicalize,dead-code")
    runs = record_passes(TEXT, chosen)
    assert [(run.step, run.round, run.changes) for run in runs][:3] == [
        ("inline", 1, 0), ("reshape-of-elementwise", 1, 1), ("canonicalize", 1, 1)
    ]  # fmt: skip
    assert runs[-1].after == run_pipeline(TEXT, chosen)[0]
    assert all(run.after == following.before for run, following in pairwise(runs))
    assert all((run.before == run.after) == (run.changes == 0) == (run.diff() == "") for run in runs)


def test_a_record_of_a_pipeline_that_does_nothing():
    runs = record_passes(TEXT, parse_pipeline("inline,common-subexpressions"))
    assert [(run.step, run.changes) for run in runs] == [("inline", 0), ("common-subexpressions", 0)]
