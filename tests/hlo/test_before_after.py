"""The page of a rewritten program: every accepted region, or every pass, before and after."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tests.cli.conftest import completed
from tests.conftest import ROOT
from tilewright.hlo import from_jax, optimize


def scores(q, k):
    keys = jnp.repeat(k, 8, axis=2)
    return jnp.einsum("bhd,bkhd->bhk", q, keys)


def test_the_page_has_each_rule_before_and_after():
    arrays = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((8, 64, 64), (8, 2048, 8, 64)))
    program = from_jax(scores, *arrays)
    done = optimize(program, "tpu-v5e", regions=True)
    (verdict,) = done.rewrites
    assert "8x2048x64x64" in verdict.before
    assert "8x2048x64x64" not in verdict.after
    page = done.to_html()
    assert "grouped-query-attention" in page
    assert page.index("stablehlo.broadcast_in_dim") < page.index("The whole program</h2>")
    assert f"test_before_after.py:{scores.__code__.co_firstlineno + 1}" in page
    assert "before" not in verdict.to_dict()
    assert not optimize(program, "tpu-v5e").rewrites[0].before


def test_the_command_writes_the_page_by_suffix(tmp_path):
    source = ROOT / "examples" / "group_norm.mlir"
    gated, passes = tmp_path / "gated.html", tmp_path / "passes.html"
    assert completed("optimize", source, "-t", "vector8x128", "-o", gated).returncode == 0
    page = gated.read_text()
    assert "reduce-of-reshape + reshape-of-elementwise" in page
    assert page.count("<figcaption>before</figcaption>") == 2  # the region, and the whole program
    assert completed("optimize", source, "--passes", "canonicalize,reduce-of-reshape", "-o", passes).returncode == 0
    page = passes.read_text()
    assert "passes changed something" in page
    assert "reduce-of-reshape, round 1" in page
