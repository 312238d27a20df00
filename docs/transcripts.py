"""Run the commands a page shows and write what they print today: ./run python docs/transcripts.py docs/PAGE.md ...

A block of text that follows a name such as `first.tasm`: is that file, and so is one that begins with the comment
`# run.toml`. Commands run in a folder of their own, one after the other: Tilewright and Python in this process, the
rest in bash. What a page leaves out stays out: the lines that `...` stands for, the end of a README's or a tutorial's
output, remarks on stderr, times. tests/test_docs.py replays every page.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

from tilewright.cli import main

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r"(?:`(\w+\.\w+)`:\n\n```text|```toml\n# (\w+\.toml))\n(.*?)```|```(?:console|sh)\n(.*?)```", re.DOTALL
)
#: Commands that take minutes, need the reader's own files, or verify what verify.md verifies.
NOT_RUN = (
    "./run python examples/resnet_groupnorm.py",
    "./run tilewright verify examples/resnet_groupnorm.py:group_norm",
    "./run tilewright embed plan clicks.tsv",
    "XLA_FLAGS=",
)
#: Commands that take half a second to 20: tests run them at night.
LONG = (
    "./run tilewright isa tune-conv2d 1x7x7x512",
    "./run tilewright isa conv2d 1x7x7x512",
    "./run tilewright isa roofline --m 512",
    "./run tilewright isa tune --m 512",
    "./run tilewright isa tune --m 16 --n 64",
    "./run tilewright isa matmul --m 512",
    "./run tilewright isa sweep --m 512",
    "./run tilewright isa explore block",
    "./run tilewright isa compile examples/int8_mlp.py:forward --run",
    "./run tilewright report examples/resnet_groupnorm.py",
    "./run tilewright embed plan --scale 0.01 --chips 4",
    "./run tilewright embed plan --tables 1000 --rows-per-table",
    "./run tilewright time examples/maxtext_step.hlo.xz -t tpu-v6e --top 6",
    "./run tilewright time examples/serving_step.hlo.xz -t tpu-v6e --set",
    "./run tilewright verify examples/group_norm.mlir",
    "./run tilewright verify decode.py",
    "./run tilewright embed plan --vocab 1000000",
    "./run tilewright embed plan monday.csv --config model.toml -o plan.html",
    "./run tilewright embed plan monday.csv --config model.toml --target",
    "./run tilewright embed plan monday.csv --config model.toml --engine",
    "./run tilewright embed train examples/movielens.py --data ratings.csv --batch 1024 --steps 150",
    "./run tilewright optimize examples/resnet_groupnorm.py",
)
#: Pages that show how an output begins.
BEGINNINGS = ("README.md", "tutorial_group_norm.md", "verify.md")


class Shell:
    """What a reader's terminal does: commands in one folder, each with its output and exit code."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.code = folder, 0
        (folder / "examples").symlink_to(ROOT / "examples")
        (folder / "docs" / "pictures").mkdir(parents=True)

    def run(self, command: str) -> tuple[str, str]:
        """stdout and stderr of a command line, here-documents and pipes included."""
        if command == "echo $?":
            return f"{self.code}\n", ""
        first, *rest = [command] if "<<" in command else re.split(r" \| (?=head|cut|\./run)", command)
        out, err = self._stage(first, b"")
        for part in rest:
            out, more = self._stage(part, out)
            err += more
        # Only where the machine was slow.
        err = re.sub(rb"(?m)^(still at .*|.*: about .* in all, at the pace of its first .*)\n", b"", err)
        return tuple(text.decode().replace(f"{self.folder}/", "") for text in (out, err))  # type: ignore[return-value]

    def _stage(self, command: str, given: bytes) -> tuple[bytes, bytes]:
        if not command.startswith("./run "):
            done = subprocess.run(
                ["bash", "-c", command], input=given, capture_output=True, cwd=self.folder, check=False
            )
            self.code = done.returncode
            return done.stdout, done.stderr
        program, *words = shlex.split(command)[1:]
        streams = [
            io.TextIOWrapper(io.BytesIO(each), encoding="utf-8", write_through=True) for each in (given, b"", b"")
        ]
        self.code = 0
        with (
            contextlib.chdir(self.folder),
            patch.object(sys, "argv", [program, *words] if program == "tilewright" else words),
            patch.object(sys, "stdin", streams[0]),
            contextlib.redirect_stdout(streams[1]),
            contextlib.redirect_stderr(streams[2]),
        ):
            try:
                main() if program == "tilewright" else self._python(words)
            except SystemExit as stop:
                self.code = int(stop.code or 0)
        return streams[1].buffer.getvalue(), streams[2].buffer.getvalue()  # type: ignore[attr-defined]

    def _python(self, words: list[str]) -> None:
        own = {file.stem for file in self.folder.glob("*.py")}  # the reader's modules: other pages have the same names
        known = {name: sys.modules.pop(name) for name in own & set(sys.modules)}
        with patch.object(sys, "path", [str(self.folder), *sys.path]):
            if words[0] == "-c":
                exec(words[1], {"__name__": "__main__"})
            else:
                runpy.run_path(words[0], run_name="__main__")
        for name in own & set(sys.modules):
            del sys.modules[name]
        sys.modules.update(known)


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Every command of a console block with the output that is shown for it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        if end := re.search(r"<<'(\w+)'$", command):
            body, _, shown = shown.partition(f"\n{end[1]}\n")
            command = f"{command}\n{body}\n{end[1]}"
        yield command, shown


def lasting(line: str) -> str:
    """A line without the times that this machine took."""
    if line.startswith("speed: "):
        return re.sub(r"[0-9][0-9.,]*( (m|µ)?s|%)?", "_", line.rstrip())
    if not line.startswith("feeding: "):
        return line.rstrip()
    known = re.sub(r"[0-9.]+ (m|µ)?s|[0-9]+ threads?", "_", line.rstrip())
    return re.sub(r": (it keeps up|fed by it alone, a step waits for the host)$", ": _", known)


def agrees(shown: str, out: str, err: str, beginning: bool) -> bool:
    """Whether the page shows what was printed, or the parts of it that it means to."""
    wanted = [lasting(line) for line in shown.strip().splitlines()]
    remarks = [line for line in err.splitlines() if line in wanted or not line.startswith(("note:", "wrote "))]
    printed = [lasting(line) for line in "\n".join([*out.splitlines(), *remarks]).strip().splitlines()]
    if "..." in wanted:
        pieces = re.split(r"^\.\.\.\n", "\n".join(wanted) + "\n", flags=re.MULTILINE)
        return re.search(".*".join(map(re.escape, pieces)), "\n".join(printed) + "\n", re.DOTALL) is not None
    return (printed[: len(wanted)] if beginning else printed) == wanted


def replayed(page: str, name: str, folder: Path, left_out: tuple[str, ...] = NOT_RUN) -> str:
    """The page's text with what its commands print today, but for those left out; ``folder`` is empty."""
    shell = Shell(folder)

    def block(found: re.Match[str]) -> str:
        if file := found[1] or found[2]:
            (folder / file).write_text(found[3], encoding="utf-8")
        elif found[0].startswith("```sh"):
            for command in re.findall(r"^cat > \S+ <<'(?:\w+)'\n.*?^EOF$", found[4], re.MULTILINE | re.DOTALL):
                shell.run(command)
        else:
            return f"```console\n{''.join(map(again, commands(found[4])))}```"
        return found[0]

    def again(step: tuple[str, str]) -> str:
        command, shown = step
        if not command.startswith(left_out):
            out, err = shell.run(command)
            lasts = shown
            if ".py:" in command and not version("jax").startswith("0.10."):  # it names the operations that are shown
                lasts = shown.partition("\n")[0]
            if not agrees(lasts, out, err, beginning=name in BEGINNINGS or lasts != shown):
                shown = out + err
        return f"$ {command}\n{shown}"

    with patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1"}):
        return BLOCK.sub(block, page)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name).resolve()
        with tempfile.TemporaryDirectory() as folder:
            text = replayed(path.read_text(encoding="utf-8"), path.name, Path(folder).resolve())
        path.write_text(text, encoding="utf-8")
