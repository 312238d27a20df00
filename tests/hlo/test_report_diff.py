"""Two reports compared: how rows pair, what counts as a regression, and reports read back from JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import UsageError
from tilewright.hlo import MovementReport, diff_reports, load, report


def module(*lines):
    body = "\n".join(f"  {line}" for line in lines)
    return report(load(f"HloModule m\nENTRY e {{\n  p = f32[8,128]{{1,0:T(8,128)}} parameter(0)\n{body}\n}}"))


def copy(name, source, order="0,1", line=1):
    at = f', metadata={{source_file="{source}" source_line={line}}}' if source else ""
    return f"{name} = f32[8,128]{{{order}:T(8,128)}} copy(p){at}"


def statuses(before, after):
    return [(row.status, (row.before or row.after).name) for row in diff_reports(before, after).rows]


def test_names_do_not_matter_but_lines_and_shapes_do():
    before = module(copy("copy.1", "a.py"), copy("copy.2", "b.py"))
    after = module(copy("copy.7", "b.py"), copy("copy.9", "a.py"))
    assert statuses(before, after) == [("same", "copy.2"), ("same", "copy.1")]


def test_checkouts_lie_in_different_folders_and_files_are_renamed():
    before = module(copy("c1", "/home/me/a.py"), copy("c2", "b.py", order="1,0"))
    after = module(copy("d1", "/build/7/a.py"), copy("d2", "renamed.py", order="1,0"))
    assert statuses(before, after) == [("same", "c1"), ("same", "c2")]


def test_new_gone_and_changed():
    before = module(copy("c1", "a.py"), copy("c2", "b.py"))
    turn = 'r = f32[1024]{0:T(1024)} reshape(p), metadata={source_file="c.py" source_line=3}'
    after = module(copy("c1", "a.py", order="1,0"), turn)
    found = diff_reports(before, after)
    assert [(row.status, row.change) for row in found.rows] == [
        ("changed", (4096 - 65536)),
        ("new", 0),
        ("gone", -(4096 + 65536)),
    ]
    assert found.count("same") == 0
    assert found.totals["moved_bytes"] == (2 * (4096 + 65536), 2 * 4096)
    assert [row.status for row in found.ranked()] == ["gone", "changed"]  # the free reshape moves nothing


def test_a_bitcast_that_became_a_copy_is_seen():
    before = module("b = f32[128,8]{0,1:T(8,128)} bitcast(p)")
    after = module("b = f32[128,8]{1,0:T(8,128)} transpose(p), dimensions={1,0}")
    assert [row.status for row in diff_reports(before, after).rows] == ["new", "gone"]
    assert diff_reports(before, after).ranked()[0].change == 4096 + 65536


def test_lines_added_above_still_pair():
    before = module(copy("c1", "a.py", line=10))
    after = module(copy("c1", "a.py", line=12))
    assert statuses(before, after) == [("same", "c1")]


def test_a_changed_shape_pairs_by_line():
    before = module(copy("c1", "a.py", line=10))
    after = report(
        load(
            "HloModule m\nENTRY e {\n p = f32[16,128]{1,0:T(8,128)} parameter(0)\n"
            ' c = f32[16,128]{0,1:T(8,128)} copy(p), metadata={source_file="a.py" source_line=10}\n}'
        )
    )
    (row,) = diff_reports(before, after).rows
    assert (row.status, row.change) == ("changed", (8192 + 65536) - (4096 + 65536))


keys = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.sampled_from(["0,1", "1,0"])), max_size=8)


@given(keys, keys)
def test_every_row_is_paired_or_told(left, right):
    before = module(*(copy(f"c{i}", f"{f}.py", order, line) for i, (f, line, order) in enumerate(left)))
    after = module(*(copy(f"c{i}", f"{f}.py", order, line) for i, (f, line, order) in enumerate(right)))
    found = diff_reports(before, after)
    assert sorted(id(row.before) for row in found.rows if row.before) == sorted(map(id, before.rows))
    assert [id(row.after) for row in found.rows if row.after] == list(map(id, after.rows))
    assert sum(row.change for row in found.rows) == after.moved_bytes - before.moved_bytes
    assert all(row.status == "same" for row in diff_reports(before, before).rows)
    common = sum(min(left.count(key), right.count(key)) for key in set(left))
    assert found.count("same") <= min(len(left), len(right))
    assert sum(row.before is not None and row.after is not None for row in found.rows) >= common


def test_regressions_are_judged_one_by_one():
    one, two = module(copy("c1", "a.py")), module(copy("c1", "a.py"), copy("c2", "b.py"))
    assert diff_reports(one, one).regressions(0) == []
    assert diff_reports(two, one).regressions(0) == []
    failed = diff_reports(one, two).regressions(0.05)
    assert [line.partition(" +")[0] for line in failed] == ["bytes moved", "bytes of padding", "peak memory"]
    assert failed[0] == "bytes moved +100.0%: 69632 -> 139264"
    assert diff_reports(one, two).regressions(1.0) == []
    assert diff_reports(module(), one).regressions(0.5)[0] == "bytes moved from nothing: 0 -> 69632"


def test_reports_come_back_from_json(data_folder):
    for name in ("v5e_reshape_zoo.after.hlo", "v5e_transformer2_grad.stablehlo.mlir"):
        found = report(load(data_folder / "hlo_tpu" / name), "tpu-v5e")
        again = MovementReport.from_json(json.loads(json.dumps(found.to_json())))
        assert again == found
        assert again.to_json() == found.to_json()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "run_report"}, "not a movement report"),
        ({"schema_version": 1}, "schema_version 1, but this version reads 2"),
        ({"schema_version": None}, "schema_version None"),
        ({"rows": [{}]}, "missing required field `op`"),
        ({"rows": 3}, "not a whole movement report"),
        ({"peaks": None}, "not a whole movement report"),
        ({"program": []}, "not a whole movement report"),
    ],
)
def test_other_json_is_refused(change, words):
    plain = {**module(copy("c1", "a.py")).to_json(), **change}
    with pytest.raises(UsageError, match=words):
        MovementReport.from_json(plain, where="old.json")


def test_json_that_is_no_object():
    with pytest.raises(UsageError, match="not a movement report"):
        MovementReport.from_json([1])
