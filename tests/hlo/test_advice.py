"""Advice: what only the user can change is named where it is, and not where it merely looks so."""

from __future__ import annotations

import pytest

from tilewright.hlo import catalogue, optimize, suggest
from tilewright.hlo.gating.acting import LEAST
from tilewright.hlo.rules.catalogue import factor_on
from tilewright.hlo.rules.rule import bindings, program_of

ADVICE = [pytest.param(rule, id=rule.name) for rule in catalogue().values() if rule.build is None]


@pytest.mark.parametrize("rule", ADVICE)
def test_it_is_given_where_it_pays_and_optimize_passes_it_over(rule):
    program = program_of(rule, "before", bindings(rule.example.sizes))
    known = factor_on(rule.name, "tpu-v5e")
    said = [each for each in suggest(program, "tpu-v5e") if each.rule == rule.name]
    assert bool(said) is (known is None or known.factor >= LEAST)
    said = said or [each for each in suggest(program, "vector8x128") if each.rule == rule.name]
    assert rule.change in said[0].how
    assert "tilewright optimize" not in said[0].how
    assert rule.name not in {verdict.rule for verdict in optimize(program, "tpu-v5e").refusals}


@pytest.mark.parametrize("part", ["after", "away"])
@pytest.mark.parametrize("rule", ADVICE)
def test_it_is_not_given_where_nothing_is_to_be_done(rule, part):
    program = program_of(rule, part, bindings(rule.example.sizes))
    assert rule.name not in {each.rule for each in suggest(program, "vector8x128")}


def test_two_are_there():
    names = {rule.values[0].name for rule in ADVICE}
    assert names == {"one-pass-variance", "rotary-in-halves"}
