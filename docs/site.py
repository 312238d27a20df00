"""What the site has beside docs/: a reference page for every room, notebooks, and files that pages link to.

Links that leave docs/ hold in the repository as they are. For the site the files they lead to are taken along, in the
folders they have in the repository, and the links follow.
"""

from __future__ import annotations

import base64
import logging
import posixpath
import re
from html import unescape
from pathlib import Path
from typing import Any

import reference  # beside this file: mkdocs puts its folder on the path
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, InclusionLevel
from mkdocs.utils import get_relative_url
from transcripts import BLOCK, commands

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(\]\()([^)#:]+)((?:#[^)]*)?\))")
NAMED = re.compile(r"\[(`?)(?:docs/)?([\w-]+\.md)\1\]\(")
TEXT = re.compile(
    r'<div class="language-text (?P<kind>[^"]*)highlight"><pre><span></span><code>(?P<lines>.*?)</code>', re.S
)
#: Characters that a line of a table has room for on a desktop's page; tables that are wider are set smaller.
WIDE = 86
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md")


def on_config(config: Any) -> None:
    """The notebooks have a place in the navigation, behind the first pages."""
    notebooks = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*.ipynb"))
    notebooks.sort(key=lambda name: "tour" not in name)  # first of all
    if notebooks:
        config.nav[0]["Start"].insert(-1, {"Notebooks": notebooks})
    missing = "Alternative text is missing"  # nbconvert knows none for SVG; on_page_content adds them
    logging.getLogger("traitlets").addFilter(lambda record: missing not in record.getMessage())


@event_priority(100)
def on_files(files: Any, config: Any) -> Any:
    """Add the reference, the notebooks and whatever a page links to outside docs/."""
    for room in reference.ROOMS:
        files.append(File.generated(config, f"reference/{room}.md", content=reference.page(room)))
    wanted = {*BESIDE, *(str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*.ipynb"))}
    pages = {f"docs/{file.src_uri}" for file in files if file.src_uri.endswith(".md") and file.src_dir} | {*BESIDE}
    while pages:
        place = pages.pop()
        if (ROOT / place).suffix == ".md" and (ROOT / place).is_file():
            for link in LINK.findall((ROOT / place).read_text(encoding="utf-8")):
                target = resolved(place, link[1])
                if (ROOT / target).is_file() and not target.startswith(("docs/", "..")) and target not in wanted:
                    wanted.add(target)
                    pages.add(target)
    for target in sorted(wanted):
        file = File(target, str(ROOT), config.site_dir, config.use_directory_urls)
        file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links as the site has its files."""
    place = page.file.src_uri
    if page.file.generated_by or (ROOT / "docs" / place).is_file():
        place = f"docs/{place}"

    def led(found: re.Match[str]) -> str:
        target = resolved(place, found[2])
        if target.endswith("/"):
            target = target.rstrip("/")
        on_site = target.removeprefix("docs/") if target.startswith("docs/") else target
        if files.get_file_from_path(on_site) is None:
            return found[0]
        here = place.removeprefix("docs/")
        return f"{found[1]}{posixpath.relpath(on_site, posixpath.dirname(here) or '.')}{found[3]}"

    return BLOCK.sub(as_pasted, LINK.sub(led, NAMED.sub(titled, markdown)))


def titled(found: re.Match[str]) -> str:
    """A link that shows a page's file shows its title."""
    title = reference.titles().get(found[2])
    return found[0] if title is None else f"[{title}]("


def as_pasted(found: re.Match[str]) -> str:
    """A block whose Copy button gives what to paste: commands without prompts, output apart, a file as a command."""
    if name := found[1] or found[2]:
        before = found[0].partition("```")[0]
        body = found[3] if found[1] else f"# {name}\n{found[3]}"
        return f"{before}```sh\ncat > {name} <<'EOF'\n{body}EOF\n```"
    if not found[0].startswith("```console"):
        return found[0]
    blocks, pasted = [], ""
    for command, shown in commands(found[4]):
        pasted += f"{command}\n"
        if shown:
            blocks.append(f"```sh\n{pasted}```\n\n```{{ .text .no-copy .output }}\n{shown}```")
            pasted = ""
    return "\n\n".join([*blocks, *([f"```sh\n{pasted}```"] if pasted else [])])


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The theme would fetch what lets a page from disk search; it lies here instead. Its search box gets a name."""
    output = output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
    return output.replace("https://unpkg.com/iframe-worker/shim", get_relative_url("iframe-worker.js", page.url))


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Notebooks come as HTML already: their links, and their drawings' titles as descriptions."""
    place = page.file.src_uri
    if not place.endswith(".ipynb"):
        if found := misread(html):
            logging.getLogger("mkdocs.site").warning("%s would be misread: %s", place, "; ".join(found))
        return TEXT.sub(with_rows, html)

    def led(found: re.Match[str]) -> str:
        file = files.get_file_from_path(resolved(place, found[1]).removeprefix("docs/"))
        return f'href="{file.url_relative_to(page.file)}' if file else found[0]

    def described(found: re.Match[str]) -> str:
        title = re.search(r"<title>(.*?)</title>", base64.b64decode(found[2]).decode())
        return f'<img alt="{title[1] if title else "a drawing"}" src="{found[1]}{found[2]}"'

    html = re.sub(r'<img alt="[^"]*" src="(data:image/svg\+xml;base64,)([^"]+)"', described, html)
    return re.sub(r'href="(\.\.?/[^"#]+)', led, html)


def with_rows(block: re.Match[str]) -> str:
    """A block of text whose sentences are wrapped where the page ends, and whose tables and drawings are not."""
    lines = block["lines"].split("\n")
    tables = [not is_sentence(unescape(line)) for line in lines]
    widest = max((len(unescape(line)) for line, of_table in zip(lines, tables) if of_table), default=0)
    shown = (f'<span class="row">{line}</span>' if of_table and line else line for line, of_table in zip(lines, tables))
    head = block[0][: block.start("lines") - block.start()].replace(
        "highlight", "wide highlight" if widest > WIDE else "highlight"
    )
    return head + "\n".join(shown) + "</code>"


def is_sentence(line: str) -> bool:
    """Whether a line may be wrapped: nothing in it stands below anything else.

    >>> [is_sentence(line) for line in ("  -> set the limit to 368 (most seen)", "user  max_ids  296", "| 0 1 | 2 3 |")]
    [True, False, False]
    """
    marks = line.replace(" ", "")
    return "  " not in line.strip() and 2 * sum(map(str.isalpha, marks)) > len(marks)


def misread(html: str) -> list[str]:
    """What a page shows otherwise than it was meant: products as emphasis, entities, lists that begin anew."""
    words = re.sub(r"<(pre|code|svg)\b.*?</\1>", "", html, flags=re.DOTALL)
    found = re.findall(r"<em>[^<]*[=+][^<]*</em>|[^<>]{0,10}`[^<>]{0,10}", words)
    found += re.findall(r"&amp;#\w+;", html)
    return found + [part[:40] for part in re.split(r"<h[1-6]\b", words) if part.count("<ol>") > 1]


def resolved(place: str, link: str) -> str:
    """The file in the repository that a link on a page leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), link))
