"""`tilewright warm`: every room's kernels by name, with their times."""

import json

from tilewright.layout import warm


def test_kernels_are_listed(run):
    code, out, err = run("warm", "--json")
    assert (code, err) == (0, "")
    value = json.loads(out)
    assert value["schema_version"] == 1
    names = []
    warm(lambda name, seconds: names.append(name))
    assert [kernel["name"] for kernel in value["kernels"] if kernel["room"] == "layout"] == names
    assert {kernel["room"] for kernel in value["kernels"]} == {"layout", "isa", "embed"}
    assert all(kernel["seconds"] >= 0 for kernel in value["kernels"])
    assert value["folder"]
    assert value["compiled"] >= 0


def test_the_table(run):
    _, out, err = run("warm")
    assert out.startswith("for     kernels")
    assert "interleaving of 8-bit elements" in out
    assert "kept in" in err
