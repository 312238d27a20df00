"""`tilewright mcp` as an agent's client meets it: its tools, their bounds, and what they refuse."""

from __future__ import annotations

import json
import sys

import anyio
import pytest

from tests.cli.conftest import completed
from tilewright.errors import TilewrightError

DUMP = (
    "HloModule m\nENTRY e {\n p = f32[64,60]{1,0:T(8,128)} parameter(0)\n ROOT c = f32[64,60]{0,1:T(8,128)} copy(p)\n}"
)
TOOLS = ["compare_layouts", "explain_layout", "plan_embeddings", "report", "time"]


async def here(words, stdin, folder, bounds):
    """The command in this process, as `run_bounded` runs it in one of its own."""
    done = completed(*words, stdin=stdin, COLUMNS="120", NO_COLOR="1")
    if done.returncode:
        raise TilewrightError(done.stderr.decode().splitlines()[0].removeprefix("tilewright: "))
    return done.stdout.decode()


@pytest.fixture
def ask(tmp_path):
    """ask(tool, **arguments) -> (is it an error, the text) from a server in this process, for the folder tmp_path."""

    from mcp import Client  # here, since it takes two seconds that every worker would spend

    from tilewright.cli.mcp.server import Bounds, make_server

    def call(tool, **arguments):
        async def session():
            async with Client(make_server(tmp_path, Bounds(), here)) as client:
                return await client.call_tool(tool, arguments)

        answer = anyio.run(session)
        return answer.is_error, answer.content[0].text

    return call


def test_over_stdio_the_tools_are_there_and_answer(tmp_path):
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

    async def session():
        command = StdioServerParameters(
            command=sys.executable, args=["-m", "tilewright", "mcp", "--root", str(tmp_path)]
        )
        async with Client(command) as client:
            tools = (await client.list_tools()).tools
            answer = await client.call_tool("explain_layout", {"layout": "f32[3,5]{1,0:T(2,4)}", "index": [1, 2]})
        return tools, answer

    tools, answer = anyio.run(session)
    assert sorted(tool.name for tool in tools) == TOOLS
    assert all(tool.description and tool.annotations.read_only_hint for tool in tools)
    assert (answer.is_error, answer.content[0].text) == (False, here_text("layout", "explain", "f32[3,5]{1,0:T(2,4)}"))


def here_text(*words):
    return completed(*words, "--index=1,2", COLUMNS="120", NO_COLOR="1").stdout.decode()


def test_layouts(ask):
    assert "element (0,0)" in ask("explain_layout", layout="f32[3,5]{1,0}", offset=0)[1]
    assert json.loads(ask("explain_layout", layout="f32[3,5]{1,0}", format="json")[1])["data_bytes"] == 60
    failed, text = ask("compare_layouts", before="f32[3,5]{1,0}", after="f32[5,3]{0,1}", permutation=[1, 0])
    assert not failed
    assert "bitcast" in text
    assert ask("explain_layout", layout="f32[3,5}")[0]


@pytest.mark.parametrize("tool", ["report", "time"])
def test_programs(ask, tmp_path, tool):
    (tmp_path / "dump.txt").write_text(DUMP)
    target = {"target": "tpu-v6e"}
    failed, text = ask(tool, text=DUMP, **target)
    assert not failed
    assert "copy" in text
    assert ask(tool, file="dump.txt", **target) == (False, text)
    assert json.loads(ask(tool, file="dump.txt", **target, format="json")[1])["schema_version"]


def test_plans(ask, tmp_path):
    failed, text = ask("plan_embeddings", tables=2, rows_per_table=1000)
    assert not failed
    assert "2 tables" in text
    assert ask("plan_embeddings") == (
        True,
        "Error executing tool plan_embeddings: nothing to plan: give tables and rows_per_table, or a config, or a log",
    )
    (tmp_path / "model.py").write_text("raise SystemExit('it ran')")
    assert "does not end in .toml" in ask("plan_embeddings", config="model.py")[1]


def test_what_is_refused(ask, tmp_path):
    (tmp_path / "sub.py:step").write_text(DUMP)
    (tmp_path / "out").symlink_to("/etc")
    for arguments, words in (
        ({}, "the program's text, or its file"),
        ({"text": DUMP, "file": "dump.txt"}, "and not both"),
        ({"file": "/etc/passwd"}, "does not lie below"),
        ({"file": "../../etc/passwd"}, "does not lie below"),
        ({"file": "out/passwd"}, "does not lie below"),
        ({"file": "nothing.txt"}, "is no file"),
        ({"file": "a\0b"}, "cannot read"),
        ({"file": "."}, "is no file"),
        ({"text": ""}, "neither HLO text"),
        ({"text": "\ud800"}, "valid string"),
        ({"text": DUMP, "target": "/tmp/own.toml"}, "no chip is called"),
        ({"text": DUMP, "top": 0}, "greater than or equal to 1"),
    ):
        failed, text = ask("report", **arguments)
        assert failed
        assert words in text, arguments
    assert ask("report", file="sub.py:step")[0] is False  # a dump, whatever it is called: nothing is imported
    for layout in ("--help", "-", "", "\0", "-o"):
        assert ask("explain_layout", layout=layout)[0]


def bounded(words, stdin=b"", **limits):
    from tilewright.cli.mcp.server import Bounds, run_bounded

    async def call():
        return await run_bounded(words, stdin, "/", Bounds(**limits))

    return anyio.run(call)


def test_a_call_is_bounded_in_time_and_in_output():
    with pytest.raises(TilewrightError, match="stopped after 1 s"):
        bounded(["embed", "plan", f"--tables={2**40}", "--rows-per-table=9"], seconds=1)
    with pytest.raises(TilewrightError, match="longer than 100 bytes"):
        bounded(["report", "-"], DUMP.encode(), output=100)


def test_an_older_protocol_library_is_named(monkeypatch, run):
    for name in [name for name in sys.modules if name.startswith("tilewright.cli.mcp.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    code, out, err = run("mcp")
    assert (code, out) == (2, "")
    assert "older than version 2; pip install -U 'tilewright[mcp]'" in err
