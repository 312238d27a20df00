"""The docs are true: commands, sessions and claims of every page, links that lead somewhere, the README's promises."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import os
import re
import subprocess
import sys

import markdown
import pytest

from tests.browser import in_browser
from tests.conftest import ROOT, by_night

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


#: Pages whose Python says in a comment what an expression gives, and how many do.
CLAIMS = {
    "layout.md": 8,
    "embedding_plan.md": 6,
    "embedding_diagnosis.md": 2,
    "embedding_statistics.md": 3,
    "tutorial_embedding_plan.md": 3,
    "tutorial_training.md": 4,
    "tutorial_pod.md": 2,
    "tutorial_serving.md": 5,
}
#: Pages with a Python session, and how many examples it has at least.
SESSIONS = {
    "compile_to_the_machine.md": 4,
    "embedding_checkpoints.md": 20,
    "embeddings.md": 15,
    "jax.md": 24,
    "layout_memories.md": 40,
    "matrix_unit.md": 50,
    "meshes.md": 15,
    "matrix_unit_tools.md": 12,
    "tutorial_matmul.md": 8,
}


def name_of(page):
    return str(page.relative_to(ROOT))


HEADS = {page.name: page.read_text().partition("\n")[0].removeprefix("# ") for page in (ROOT / "docs").glob("*.md")}
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: Pages that build on one long training: tests/cli/test_embed_train_cli.py kills, resumes and reads one by day,
#: tests/embed/test_serving.py exports and reads its tables. And one that plans two days of clicks five times:
#: tests/embed/test_days.py and test_embed_cli, test_embed_check_cli of tests/cli, docs/tutorial_pod.md.
#: tests/hlo/test_advice.py: a page that searches shardings.
AT_NIGHT = ("tutorial_slice.md", "tutorial_training.md", "tutorial_serving.md", "tutorial_embedding_plan.md")
WITH_COMMANDS = [
    pytest.param(page, id=name_of(page), marks=[pytest.mark.nightly] if page.name in AT_NIGHT else [])
    for page in PAGES
    if "\n$ " in page.read_text()
]


@pytest.mark.long
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_a_page_shows_what_is_printed(page, tmp_path, monkeypatch):
    """Its commands run in their order, then the Python that makes claims, in the same folder.

    By day all but a few long ones: their answers are tested in tests/isa (test_autotune, test_sweep, test_explore,
    test_spread, test_conv_tune, test_compile), tests/hlo (test_verify, test_gate, test_time_faces, test_optimize_docs),
    tests/embed/test_pods.py and
    tests/cli.
    """
    transcripts, text = script("transcripts"), page.read_text()
    assert not re.search(r"^\$ ", transcripts.BLOCK.sub("", text), re.MULTILINE), "a command outside a console block"
    left_out = transcripts.NOT_RUN + (transcripts.LONG if not by_night() else ())
    again = transcripts.replayed(text, page.name, tmp_path, left_out)
    assert again == text, f"run: ./run python docs/transcripts.py {name_of(page)}"
    for drawn in (tmp_path / "docs" / "pictures").iterdir():
        assert drawn.read_text() == (ROOT / "docs" / "pictures" / drawn.name).read_text(), drawn.name
        assert f"(pictures/{drawn.name})" in text
    monkeypatch.chdir(tmp_path)
    if page.name in CLAIMS:
        assert claims_that_hold(text) == CLAIMS[page.name]


def claims_that_hold(text):
    """How many expressions of a page's Python stand before a comment with their value; all of it is run."""
    names, held = {}, 0
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        lines = block.splitlines()
        for statement in ast.parse(block).body:
            code = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
            value = claimed(code.partition("  # ")[2]) if isinstance(statement, ast.Expr) else None
            if value is None:
                exec(code, names)
            else:
                assert eval(code, names) == eval(value), code
                held += 1
    return held


def claimed(comment):
    """The Python in front of a remark, or None where the comment is words."""
    for value in (comment, comment.partition(": ")[0]):
        try:
            ast.parse(value, mode="eval")
        except SyntaxError:
            continue
        return value
    return None


#: By day tests/isa does what this long session does: test_matmul, test_autotune, test_silent_costs, test_blocks.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name == "matrix_unit.md")) for name in SESSIONS]
)
def test_a_pages_session(name):
    text = re.sub(r"^```.*$", "", (ROOT / "docs" / name).read_text(), flags=re.MULTILINE)
    session = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    assert len(session.examples) > SESSIONS[name]
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(session)
    assert runner.failures == 0


def test_every_page_with_a_session_is_run():
    assert {page.name for page in PAGES if "\n>>> " in page.read_text()} == set(SESSIONS)


@pytest.mark.parametrize("name", ["commands.md", "rules.md", "fidelity.md"])
def test_a_page_is_generated(name):
    assert (ROOT / "docs" / name).read_text() == script("generate").PAGES[name](), "run: ./run python docs/generate.py"


def test_what_a_text_says_is_held_by_tests_that_exist():
    """That they pass is the suite's to show. Modules that a row names exist, too, and every text has its rows."""
    generate = script("generate")
    names = {path: set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)) for path in TESTS}
    rows = generate.fidelity_rows()
    assert {row["text"] for row in rows} == set(generate.TEXTS)
    for row in rows:
        assert row["verdict"] in generate.VERDICTS, row
        assert row["tests"] or row["verdict"] != "done", row
        module = row["where"].partition("; ")[0]
        assert not module or (ROOT / "src" / "tilewright" / module).exists(), row
        for test in row["tests"].split():
            path, _, name = test.partition("::")
            assert name in names[ROOT / path], row


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_listed():
    listed = (ROOT / "docs" / "README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in listed, page.name


def commands(text):
    """The arguments of every `./run tilewright ...` in a page."""
    return re.findall(r"\./run tilewright ([a-z-]+)", text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_pages_exist(page):
    known = {line.split()[2] for line in (ROOT / "docs" / "commands.md").read_text().splitlines() if "## " in line[:3]}
    assert set(commands(page.read_text())) <= known


def test_the_readme_keeps_its_two_commands_and_its_picture():
    text = (ROOT / "README.md").read_text()
    assert "./run tilewright run examples/dlrm.py" in text
    assert "./run pytest" in text
    assert (ROOT / "run").stat().st_mode & 0o111
    assert (ROOT / "examples" / "dlrm.py").is_file()
    picture = re.search(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert picture
    assert (ROOT / picture[1]).read_bytes().startswith(b"\x89PNG")


def test_nothing_names_the_machine_it_was_made_on():
    for path in [
        *PAGES,
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "src").rglob("*.toml"),
        *(ROOT / "docs").rglob("*.svg"),
    ]:
        assert "/work/" not in path.read_text(encoding="utf-8"), path


@pytest.fixture
def site(monkeypatch):
    """What the site is made by, without building it (CI does, where a warning is an error)."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    module = script("site")
    for name in ("reference", "docstrings", "transcripts"):
        monkeypatch.delitem(sys.modules, name)
    return module


@pytest.mark.parametrize(
    "text",
    ["2 = 1*2 + 0, 3 = 1*2", "`f32&#91;3]`", "1. a\n\n   ```\n   b\n   ```\n\n2. c", "a `b c"],
    ids=["emphasis", "entity", "list", "code"],
)
def test_the_site_says_what_would_be_misread(site, text):
    plain = "2 = `1*2` + 0, *so*: `f32[3]`\n\n1.  a\n\n    ```\n    b\n    ```\n\n2.  c"
    found = [site.misread(markdown.markdown(each, extensions=["pymdownx.superfences"])) for each in (text, plain)]
    assert found[0]
    assert not found[1]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_the_site_copies_is_what_a_page_runs(site, page):
    """No prompt, no output: the shell blocks of the rendered page are the commands and files of the written one."""
    text = page.read_text()
    made = site.BLOCK.sub(site.as_pasted, text)
    assert "```console" not in made
    pasted = "".join(re.findall(r"^```sh\n(.*?)^```", made, re.MULTILINE | re.DOTALL))
    for name, toml, body, block in site.BLOCK.findall(text):
        if name or toml:
            assert f"cat > {name or toml} <<'EOF'\n" in pasted
            assert body in pasted
        else:
            ran = [command for command, _ in site.commands(block)]
            assert all(f"{command}\n" in pasted for command in ran)
    assert not re.search(r"^\$ ", pasted, re.MULTILINE)


def test_the_site_wraps_sentences_and_no_tables(site):
    assert doctest.testmod(site).failed == 0
    lines = ["a   limit  &lt;b&gt;" + " " * 80 + "holds", "a sentence &lt;b&gt;: " + "words " * 30, "", "| 1 | 2 |"]
    block = '<div class="language-text output highlight"><pre><span></span><code>{}</code></pre></div>'
    made = site.TEXT.sub(site.with_rows, block.format("\n".join(lines)))
    rows = [f'<span class="row">{line}</span>' if k in (0, 3) else line for k, line in enumerate(lines)]
    assert made == block.replace("output ", "output wide ").format("\n".join(rows))
    assert "wide" not in site.TEXT.sub(site.with_rows, block.format("\n".join(lines[1:])))


@pytest.mark.nightly
@in_browser
def test_the_site_is_read_on_a_desktop_and_a_phone(visit, tmp_path):
    """By day: what the site makes of blocks and links, above; axe-core on all pages of results (tests/render)."""
    built = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path)]
    subprocess.run(built, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=600)
    tutorials = ("layout", "tutorial_rules", "tutorial_matmul", "tutorial_embedding_plan", "tutorial_training")
    notebooks = ("examples/tour", "examples/embeddings", "examples/matmul")
    for page in ("index", *tutorials, *notebooks, "rules", "commands"):
        for width, scheme in ((1280, "light"), (390, "dark")):
            visit(tmp_path / f"{page}.html", width, scheme).check()


def test_the_site_shows_titles_instead_of_files(site):
    made = site.NAMED.sub(site.titled, "see [`time.md`](time.md), [docs/run.md](docs/run.md), [run](run.md)")
    assert made == f"see [{HEADS['time.md']}](time.md), [{HEADS['run.md']}](docs/run.md), [run](run.md)"


def test_every_public_name_stands_in_the_reference_with_an_example_or_a_link(site):
    reference = site.reference
    names = reference.public_names()
    shown = {(each.room, each.name) for each in names if each.example or each.pages}
    for _ in names:  # a link may lead on: a part to its whole, that to the function that makes it
        more = {(each.room, each.name) for each in names if any((each.room, other) in shown for other in each.near)}
        if more <= shown:
            break
        shown |= more
    assert [each.path for each in names if (each.room, each.name) not in shown] == []
    assert all((ROOT / "docs" / page).is_file() for each in names for page in each.pages)
    for room in reference.ROOMS:
        page = reference.page(room)
        exported = [each for each in reference.room_module(room).__all__ if each != "__version__"]
        assert sorted(re.findall(r"^::: .*\.(\w+)$", page, re.MULTILINE)) == sorted(exported)
    rooms = {path.parent.name for path in (ROOT / "src" / "tilewright").glob("*/__init__.py")}
    assert rooms - set(reference.ROOMS) == {"cli", "kernels"}


def test_every_page_has_a_place_in_the_sites_navigation():
    listed = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f"- {page.name}\n" in listed, page.name


def test_docstrings_become_markdown():
    docstrings = script("docstrings")
    assert doctest.testmod(docstrings).failed == 0
    text = "A table:\n\n====  =====\n``a``  what :class:`B` is,\n      and more\n====  =====\n\n>>> 1 | 2\n3\n"
    made = docstrings.as_markdown(text.replace("``a``  what", "``a`` what"))
    assert "| `a` | what `B` is, and more |" in made
    assert made.endswith("```pycon\n>>> 1 | 2\n3\n```")
