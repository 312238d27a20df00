"""The explorer's server: who is answered, what is asked, and that hostile input does no harm."""

import json
import os
import random
import re
import signal
import string
import subprocess
import sys

import pytest
from starlette.testclient import TestClient

from tests.conftest import VECTORS
from tilewright.explore import Explorer, server
from tilewright.explore.worker import Worker, answer
from tilewright.hlo import from_python

DUMP = VECTORS / "hlo_tpu" / "v5e_transformer2_grad.after.hlo"
STABLEHLO = VECTORS / "hlo_tpu" / "v5e_patent_rb.stablehlo.mlir"
TILED = "f32[3,5]{1,0:T(2,2)}"


def engine(question, of=None, /, **values):
    """An answer without the server and without its worker."""
    return json.loads(answer({"ask": question, "values": values, "path": of and str(of)}))


def value(question, of=None, /, **values):
    found = engine(question, of, **values)
    assert "value" in found, found
    return found["value"]


def error(question, **values):
    return engine(question, **values)["error"]["what"]


@pytest.fixture(scope="module")
def explorer():
    made = Explorer(token="a-token")
    with TestClient(made.app, base_url="http://127.0.0.1:8000") as client:
        yield client
    assert not made.folder.exists()


def asked(explorer, question, values=None, **headers):
    given = {"authorization": "Bearer a-token", **headers}
    return explorer.post(f"/api/{question}", content=json.dumps(values or {}), headers=given)


# -- who is answered --


@pytest.mark.parametrize("path", ["/", "/?token=", "/?token=wrong", "/assets/wrong/main.js", "/assets/", "/nothing"])
def test_without_the_token_nothing_is_answered(explorer, path):
    assert explorer.get(path).status_code == 403


def test_the_page_and_its_assets_come_with_the_token(explorer):
    page = explorer.get("/?token=a-token")
    assert page.status_code == 200
    assert "{{" not in page.text
    for name in ("main.js", "cells.js", "explore.css", "page.css", "figure.css"):
        assert explorer.get(f"/assets/a-token/{name}").status_code == 200
    for name in ("server.py", "..%2fserver.py", "page.html", "%2e%2e%2fworker.py"):
        assert explorer.get(f"/assets/a-token/{name}").status_code == 404
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.nip.io:8000", "127.0.0.1", "127.0.0.1:9", "[::1]:8000"])
def test_other_names_of_this_machine_are_refused(explorer, host):
    assert explorer.get("/?token=a-token", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8000", "http://127.0.0.1:8001"])
def test_pages_of_other_sites_are_refused(explorer, origin):
    assert asked(explorer, "layout", {"text": TILED}, origin=origin).status_code == 403


def test_this_page_is_answered(explorer):
    for host in ("127.0.0.1:8000", "localhost:8000"):
        reply = asked(explorer, "layout", {"text": TILED}, origin=f"http://{host}", host=host)
        assert reply.json()["value"]["layout"] == TILED


def test_the_address_is_the_first_line_and_a_signal_ends_it(tmp_path):
    command = [sys.executable, "-m", "tilewright", "explore", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:")
        assert "/?token=" in line
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


# -- what is asked --


def test_a_layout_and_its_cells():
    found = value("layout", text=TILED)
    panel = found["scene"]["panels"][0]
    at = panel["indices"].index([2, 3])
    assert (panel["labels"][at], panel["places"][at]) == ("17", [17])
    assert sum(panel["padding"]) == 24 - 15
    assert found["scene"]["levels"] == [{"name": "T(2,2)", "rows": 2, "columns": 2}]


def test_an_element_and_a_place():
    there = value("element", text=TILED, index="2, 3")
    assert (there["index"], there["place"]) == ([2, 3], [17])
    assert ["offset", "(1*3+1)*4+1 = 17"] in there["lines"]
    assert value("place", text=TILED, place=[17])["lines"] == there["lines"]
    padding = value("place", text=TILED, place="9")
    assert padding["index"] is None
    assert padding["lines"] == [["why", "d1 = 2*2 + 1 = 5 would be outside 0..4"]]


def test_a_part_of_a_large_layout():
    large = "f32[4,1000,3000]{2,1,0:T(8,128)}"
    panel = value("layout", text=large, around=[3, 500, 1500])["scene"]["panels"][0]
    assert [3, 500, 1500] in panel["indices"]
    assert (panel["height"], panel["width"], panel["first"]) == (64, 256, [464, 1280])
    panel = value("layout", text=large, window="0:1, 8:16, 0:4")["scene"]["panels"][0]
    assert (panel["indices"][0], panel["first"]) == ([0, 8, 0], [8, 0])
    assert "no range" in error("layout", text=large, window="a,b,c")
    combined = value("layout", text="f32[10,2000,300]{2,1,0:T(*,8)}", around=[9, 1999, 299])["scene"]["panels"][0]
    assert [9, 1999, 299] in combined["indices"]


def test_a_tuple_has_arrays_to_choose_from():
    text = f"({TILED}, (s8[4]{{0}}, u8[2]{{0}}))"
    assert [leaf["path"] for leaf in value("layout", text=text)["leaves"]] == ["0", "1,0", "1,1"]
    assert value("layout", text=text, leaf="1,1")["scene"]["title"] == "u8[2]{0}"


def test_two_layouts_and_where_each_element_goes():
    found = value("compare", a="f32[2,4]{1,0}", b="f32[2,4]{1,0:T(2,2)}")
    assert found["costs"].startswith("4 of 8 elements move")
    panel = found["sides"][0]["scene"]["panels"][0]
    moved = [index for index, moves in zip(panel["indices"], panel["moved"]) if moves]
    assert moved == [[0, 2], [0, 3], [1, 0], [1, 1]]
    assert [other for other, moves in zip(panel["others"], panel["moved"]) if moves] == moved
    turned = value("compare", a="f32[2,4]{1,0}", b="f32[4,2]{1,0}", permutation="1,0")["sides"][0]["scene"]["panels"][0]
    assert turned["others"][turned["indices"].index([0, 3])] == [3, 0]


def test_a_dump_folds_by_module_and_by_line():
    summary = value("program", DUMP)
    assert (summary["kind"], summary["target"]) == ("HLO", None)
    by_module, by_line = (value("graph", DUMP, by=way, path=[]) for way in ("module", "source"))
    assert by_module["operations"] == by_line["operations"] == 143
    assert by_module["path"] == ["jit(<lambda>)"]
    group = next(node for node in by_module["nodes"] if node["label"] == "jvp()")
    inside = value("graph", DUMP, by="module", path=["jit(<lambda>)", "jvp()"])
    assert group["says"].startswith(f"{inside['operations']} operations")
    assert sum(node["moved"] for node in by_module["nodes"]) == sum(node["moved"] for node in by_line["nodes"])
    names = {node["name"] for node in inside["nodes"]} | {""}
    assert {end for start, end, _ in inside["edges"]} <= names
    assert {node["label"].partition(" in ")[0] for node in by_line["nodes"]} >= {"line 31", "line 36"}


def test_an_operation_stands_beside_its_texts():
    row = value("graph", DUMP, by="source", path=[])["rows"][0]
    found = value("operation", DUMP, key=row["key"])
    text = found["text"]
    assert f"%{found['name']} = " in text["lines"][text["at"] - text["first"]]
    named = [value("operation", DUMP, key=key)["source"] for key in with_lines()]
    assert all(source["line"] > 0 and source["file"].endswith("aot3.py") for source in named)


def with_lines():
    """Keys of fusions under jvp() whose line is known."""
    nodes = value("graph", DUMP, path=["jit(<lambda>)", "jvp()"])["nodes"]
    fusions = [node["key"] for node in nodes if node["says"] == "fusion"]
    return [key for key in fusions if value("operation", DUMP, key=key)["source"]]


def test_stablehlo_has_layouts_predicted_and_a_whole_report():
    assert value("program", STABLEHLO)["layouts"] == "predicted for tpu-v5e"
    assert value("program", STABLEHLO, target="tpu-v4")["target"] == "tpu-v4"
    assert value("program", STABLEHLO, page=True)["html"].startswith("<!DOCTYPE html>")


def test_stablehlo_is_shown_as_its_compiler_begins_with_it():
    """The report's rows are of its normal form, and so are the graph and the list; the text is the program as it is."""
    of = VECTORS.parent.parent / "examples" / "group_norm.mlir"
    found = value("program", of)
    assert found["figures"][0][2] == "by 6 operations"
    assert {"tpu-v4", "vector8x128"} <= set(found["targets"])
    rows = value("graph", of, by="source", path=[])["rows"]
    assert sum("moved" in row["cost"] for row in rows) == 6
    chosen = value("operation", of, key=rows[0]["key"])
    line = chosen["text"]["lines"][chosen["text"]["at"] - chosen["text"]["first"]]
    assert line == re.sub(r" loc\(.*\)$", "", of.read_text().split("\n")[chosen["text"]["at"] - 1])
    assert "stablehlo." in line
    assert "loc(" not in line
    assert chosen["source"] is None  # the text names no line of the user's
    assert chosen["normal"]
    assert not value("program", of, target="vector8x128")["notes"][0].startswith("what the compiler does")


KERNEL = "examples/pallas_matmul.py:rows_last"


def test_a_kernel_is_walked_step_by_step(tmp_path):
    """16 x 4 steps: the right operand's block changes in every step, the left one's in every fourth."""
    of = tmp_path / "rows.mlir"
    of.write_text(from_python(KERNEL).text)
    nodes = value("graph", of, path=[])["nodes"]
    chosen = [value("operation", of, key=node["key"])["kernel"] for node in nodes if node["key"]]
    assert 0 in chosen
    first, later = value("kernel", of, target="tpu-v6e"), value("kernel", of, target="tpu-v6e", step=18)
    assert (first["steps"], first["step"], later["step"], later["target"]) == (64, 0, 18, "tpu-v6e")
    parts = {name: markup for name, _, markup in later["sections"]}
    assert "Step 19 of 64, (4, 2) of the grid" in parts["windows"]
    held = re.findall(r"<td[^>]*>(stays|comes in for it|goes out after it)</td>", parts["windows"])
    assert held == ["stays", "comes in for it", "goes out after it"]
    assert parts["windows"].count('class="mark"') == 3
    assert "<style" not in "".join(parts.values())
    assert value("kernel", of, target="tpu-v6e", step=10**9, number=7)["step"] == 63
    assert "no Pallas kernel" in engine("kernel", STABLEHLO)["error"]["what"]


PRODUCT = (VECTORS.parent.parent / "examples" / "product.tasm").read_text()
MEMORY = "A = s8[4,4] iota\nB = s8[4,4] iota\nC = s32[4,4]"


def test_a_program_is_stepped_forth_and_back():
    after = value("matrix", program=PRODUCT, tensors=MEMORY, step=13)
    assert after["pc"] == 13
    first = next(row for row in after["registers"] if row["name"] == "r0")
    assert first["values"][:4] == [14, 38, 62, 86]
    assert first["changed"][:4] == [True] * 4
    assert next(cache for cache in after["caches"] if cache["name"] == "L1")["count"] == 4
    end = value("matrix", program=PRODUCT, tensors=MEMORY, step=999)
    assert end["done"]
    assert end["step"] == 17
    assert end["tensors"][2]["values"][0] == ["14", "38", "62", "86"]
    assert value("matrix", program=PRODUCT, tensors=MEMORY, step=13)["registers"] == after["registers"]


def test_limits_are_moved_and_counted():
    model = {"batch": 64, "scale": 1, "chips": 1}
    free = value("plan", **model)
    assert (free["minibatches"], free["droppedShare"]) == ([1] * 4, 0)
    stack = free["stacks"][0]
    tight = value("plan", **model, limits={stack["name"]: [stack["most"][0] // 2, stack["most"][1] // 2]})
    assert max(tight["minibatches"]) > 1
    assert 0 < tight["droppedShare"] < 1
    inputs = [size for plan in (tight, free) for name, size, _ in plan["heap"] if name == "inputs fetched ahead"]
    assert inputs[0] < inputs[1]


MODEL = """
chips = 2
batch = 64
[[table]]
name = "user"
vocab = 5_000
width = 32
[[table]]
name = "item"
vocab = 300
width = 8
"""


def test_a_model_file_is_planned(tmp_path):
    (tmp_path / "model.toml").write_text(MODEL)
    made = Explorer(tmp_path / "model.toml", token="a-token")
    with TestClient(made.app, base_url="http://127.0.0.1:8000") as client:
        page = client.get("/?token=a-token").text
        assert "model.toml" in page
        found = asked(client, "plan", {"file": "file", "chips": 1, "batch": 1024}).json()["value"]
        assert (found["chips"], found["batch"]) == (2, 64)  # the file's, not the fields'
        assert sorted((stack["label"], stack["width"]) for stack in found["stacks"]) == [("item", 8), ("user", 32)]
        stack = found["stacks"][0]
        limits = {stack["name"]: [most // 4 for most in stack["most"]]}
        tight = asked(client, "plan", {"file": "file", "limits": limits}).json()["value"]
        assert max(tight["minibatches"]) > 1
        (tmp_path / "model.toml").write_text(MODEL + "vocab = 3")
        assert "model.toml" in asked(client, "plan", {"file": "file", "chips": 3}).json()["error"]["what"]


# -- hostile input --

HOSTILE = [
    ("layout", {"text": "f32[" + "9" * 5000 + "]"}),
    ("layout", {"text": "f32[4]{0:" + "T(1)" * 3000 + "}"}),
    ("layout", {"text": "(" * 9000}),
    ("layout", {"text": "f32[4611686018427387904,4611686018427387904]"}),
    ("layout", {"text": "f32[?]"}),
    ("layout", {"text": None}),
    ("layout", {"text": "f32[2]", "colour": "<script>"}),
    ("element", {"text": "f32[2]", "index": "1e99"}),
    ("element", {"text": "f32[2]", "index": [2**80]}),
    ("place", {"text": "f32[2]", "place": "-1"}),
    ("compare", {"a": "f32[2]", "b": "f32[3]"}),
    ("compare", {"a": "f32[2]", "b": "f32[2]", "permutation": "7,7"}),
    ("program", {"target": "../../etc/passwd"}),
    ("graph", {"path": "x" * 100}),
    ("operation", {"key": [1, 2]}),
    ("matrix", {"program": "halt", "tensors": "A = s8[99999,99999]"}),
    ("matrix", {"program": "halt", "settings": "threads=999999999 registers=x"}),
    ("matrix", {"program": "\0" * 100}),
    ("plan", {"optimizer": "__import__", "batch": -1}),
    ("plan", {"target": "bm1684x"}),
    ("plan", {"target": "/etc/a_chip.toml"}),
]


@pytest.mark.parametrize(("question", "values"), HOSTILE, ids=lambda it: it if isinstance(it, str) else "")
def test_nonsense_is_answered_with_what_is_wrong(question, values):
    what = error(question, **values)
    assert "fault in tilewright" not in what
    assert len(what) < 30_000


def test_mutated_texts_have_no_foreign_exception(tmp_path):
    draw, text = random.Random(5), DUMP.read_text()[:4000]
    for _ in range(60):
        letters = list(text)
        for _ in range(draw.randrange(1, 40)):
            letters[draw.randrange(len(letters))] = draw.choice(string.printable)
        path = tmp_path / f"{draw.random()}"
        path.write_text("".join(letters))
        found = engine("program", path)
        assert "fault in tilewright" not in json.dumps(found.get("error", ""))
    for _ in range(200):
        letters = list("bf16[20,300]{1,0:T(8,128)(2,1)}")
        for _ in range(draw.randrange(1, 6)):
            letters[draw.randrange(len(letters))] = draw.choice("0123456789[]{}():,T?<=*fsbu#")
        assert "fault in tilewright" not in json.dumps(engine("layout", text="".join(letters)).get("error", ""))


def test_work_ends_when_its_time_is_up():
    """A question that never ends; what is asked next is answered by a fresh process."""
    worker = Worker()
    try:
        endless = {"program": "again:\njump again", "step": 200_000}
        reply = json.loads(worker.ask("matrix", endless, None, 0.5))
        assert "longer than" in reply["error"]["what"]
        assert json.loads(worker.ask("layout", {"text": TILED}, None, 600.0))["value"]["layout"] == TILED
        os.kill(worker.child.pid, signal.SIGSEGV)
        os.waitid(os.P_PID, worker.child.pid, os.WEXITED | os.WNOWAIT)
        assert json.loads(worker.ask("layout", {"text": TILED}, None, 600.0))["value"]["layout"] == TILED
    finally:
        worker.close()


def test_what_is_sent_is_bounded(explorer, monkeypatch):
    headers = {"authorization": "Bearer a-token"}
    monkeypatch.setattr(server, "MOST_DROPPED", 1000)
    monkeypatch.setattr(server, "MOST_QUESTION", 1000)
    assert "larger" in explorer.post("/drop", content=b"x" * 1001, headers=headers).json()["error"]["what"]
    assert "longer" in asked(explorer, "layout", {"text": "x" * 1001}).json()["error"]["what"]
    for body in ("", "[]", "{", "[" * 900):
        assert "error" in explorer.post("/api/layout", content=body, headers=headers).json()
    assert "error" in asked(explorer, "__init__").json()


def test_no_file_is_read_but_the_one_given_and_what_was_dropped(explorer):
    headers = {"authorization": "Bearer a-token", "x-name": "../../evil name<b>.hlo"}
    assert "not here" in asked(explorer, "program", {"file": "/etc/passwd"}).json()["error"]["what"]
    assert "no program" in asked(explorer, "program", {"path": "/etc/passwd"}).json()["error"]["what"]
    assert asked(explorer, "source", {"name": "/etc/passwd"}).json() == {"value": None}
    kept = explorer.post(
        "/drop", content=b"HloModule m\nENTRY e { ROOT p = f32[4] parameter(0) }", headers=headers
    ).json()
    assert kept["value"]["name"] == "evil name_b_.hlo"
    assert asked(explorer, "program", {"file": kept["value"]["id"]}).json()["value"]["name"] == "m"
    chip = asked(explorer, "program", {"file": kept["value"]["id"], "target": "../chip.toml"}).json()["error"]["what"]
    assert chip.startswith("no target called '../chip.toml'")
    page = explorer.get(f"/report/{kept['value']['id']}?token=a-token")
    assert page.status_code == 200
    assert page.headers["content-security-policy"].startswith("sandbox")
    assert explorer.get("/report/..%2f..%2fetc?token=a-token").status_code == 404


def test_the_oldest_dropped_file_goes(explorer):
    headers = {"authorization": "Bearer a-token"}
    ids = [explorer.post("/drop", content=b"%d" % n, headers=headers).json()["value"]["id"] for n in range(10)]
    assert "not here" in asked(explorer, "program", {"file": ids[0]}).json()["error"]["what"]
    assert "not here" not in asked(explorer, "program", {"file": ids[-1]}).json()["error"]["what"]
