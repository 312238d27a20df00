"""`tilewright warm`: every kernel by name, with its time."""

import json

from tilewright.layout import warm


def test_kernels_are_listed(run):
    code, out, err = run("warm", "--json")
    assert (code, err) == (0, "")
    value = json.loads(out)
    assert value["schema_version"] == 1
    names = []
    warm(lambda name, seconds: names.append(name))
    assert [kernel["name"] for kernel in value["kernels"]] == names
    assert all(kernel["seconds"] >= 0 for kernel in value["kernels"])


def test_the_table(run):
    out = run("warm")[1]
    assert out.startswith("kernels")
    assert "moves of 8-bit elements" in out
