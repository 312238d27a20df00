"""A program as Model Explorer's graphs: what that tool refuses, the layers, and the report's figures on its nodes."""

from __future__ import annotations

import json
import re

import pytest

from tests.conftest import ROOT
from tilewright.hlo import load, report

NESTED = """
HloModule nested
fused {
  p = f32[8,128]{1,0} parameter(0)
  ROOT t = f32[128,8]{1,0} transpose(p), dimensions={1,0}
}
ENTRY main {
  a = f32[8,128]{1,0} parameter(0)
  f = f32[128,8]{1,0} fusion(a), kind=kLoop, calls=fused, metadata={op_name="jit(step)/layer_0/attention/transpose"}
  c = f32[128,8]{0,1} copy(f), metadata={op_name="jit(step)/layer_0/copy" source_file="/app/model.py" source_line=7}
  ROOT n = f32[128,8]{0,1} negate(c), metadata={op_name="jit(step)/neg"}
}
"""


def checked(program, found):
    """The graphs, in a shape that Model Explorer takes: unique ids, none empty, edges between nodes that are there."""
    collection = found.model_explorer(program)
    assert json.loads(json.dumps(collection, allow_nan=False)) == collection
    graphs = {graph["id"]: graph for graph in collection["graphs"]}
    assert len(graphs) == len(collection["graphs"]) == len(program.computations)
    for graph in graphs.values():
        nodes = {node["id"]: node for node in graph["nodes"]}
        assert len(nodes) == len(graph["nodes"])
        for node in nodes.values():
            assert node["id"]
            assert node["label"]
            assert set(node.get("subgraphIds", ())) <= graphs.keys()
            assert {edge["sourceNodeId"] for edge in node["incomingEdges"]} <= nodes.keys()
            assert all(isinstance(fact["value"], str) and fact["value"] for fact in node["attrs"])
        assert all(isinstance(value, str) for value in graph["groupNodeAttributes"][""].values())
    data = found.model_explorer_data(program)
    for figures in data.values():
        for graph, about in figures.items():
            assert about["results"].keys() <= {node["id"] for node in graphs[graph]["nodes"]}
    return graphs, data


def total(figures):
    return sum(each["value"] for about in figures.values() for each in about["results"].values())


def test_layers_edges_and_figures():
    program = load(NESTED)
    found = report(program)
    graphs, data = checked(program, found)
    assert next(iter(graphs)) == "main"
    nodes = {node["id"]: node for node in graphs["main"]["nodes"]}
    assert [nodes[name]["namespace"] for name in "afcn"] == ["", "layer_0/attention", "layer_0", ""]
    assert nodes["f"]["subgraphIds"] == ["fused"]
    facts = {fact["key"]: fact["value"] for fact in nodes["c"]["attrs"]}
    assert (facts["moved"], facts["source"], facts["movement"]) == ("8.00 KiB", "/app/model.py:7", "relayout")
    assert total(data["moved_bytes"]) == found.moved_bytes == 16384
    assert data["moved_bytes"]["main"]["results"]["c"] == {"value": 8192}


def test_lines_are_layers_where_the_framework_names_none():
    program = load(NESTED.replace("jit(step)/layer_0/attention/", "").replace("jit(step)/layer_0/", ""))
    graphs, _ = checked(program, report(program))
    assert [node["namespace"] for node in graphs["main"]["nodes"]] == ["", "", "model.py/line 7", ""]


@pytest.mark.parametrize("path", sorted((ROOT / "tests/data/hlo_tpu").glob("*")), ids=lambda path: path.name)
def test_what_compilers_write(path):
    program = load(path)
    found = report(program, "tpu-v6e")
    _, data = checked(program, found)
    if found.moved_bytes:
        assert total(data["moved_bytes"]) == found.moved_bytes
    timed = sum(row.modelled_us or 0.0 for row in found.rows)
    assert total(data.get("modelled_us", {})) == pytest.approx(timed, abs=0.001 * len(found.rows))


def test_names_of_any_kind():
    strange = NESTED.replace("layer_0", "\\\\//<b>'é").replace("/app/model.py", "///")
    program = load(re.sub("f32.8,128..1,0. param", "f32[8,128]{1,0} param", strange))
    checked(program, report(program))
