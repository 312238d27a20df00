"""Ten commands in a terminal of their own that are told to end; run as a program, at random moments, many times.

    ./run python tests/cli/interrupted.py [ROUNDS] [SEED]

A round sends Ctrl-C (through the terminal, as a keyboard does) or SIGTERM to each of the ten. Afterwards the exit code
must be 130 or 143 (0 where the command had ended before; the signal's own end, which a shell shows as the same, where
only the interpreter was left to end), the cursor visible, every output what it was before or a whole new one, and
nothing else may lie in the folder.
"""

from __future__ import annotations

import os
import pty
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLD = b"what was there before\n"
MODEL = str(ROOT / "examples" / "dlrm.py")
DUMP = str(ROOT / "tests" / "data" / "hlo_written" / "train_step.hlo")
STABLEHLO = str(ROOT / "tests" / "data" / "hlo_tpu" / "v5e_patent_rb.stablehlo.mlir")
LAYOUT = "f32[6000,6000]{1,0:T(8,128)}"

#: Words, the files they write, and for how many seconds from their start the signal may come.
COMMANDS = (
    (["layout", "pack", "x.npy", LAYOUT, "-o", "x.bin"], ["x.bin"], 1.5),
    (["layout", "unpack", "packed.bin", LAYOUT, "-o", "y.npy"], ["y.npy"], 1.5),
    (["report", DUMP, "-o", "report.html"], ["report.html"], 1.0),
    (["time", DUMP, "--target", "tpu-v5e", "-o", "step.pftrace"], ["step.pftrace"], 1.0),
    (["optimize", STABLEHLO, "--target", "vector8x128", "-o", "out.mlir"], ["out.mlir"], 3.0),
    (["verify", STABLEHLO, STABLEHLO, "--save", "worst.npz"], ["worst.npz"], 4.0),
    (["isa", "tune", "--m", "64", "--n", "64", "--k", "64", "-o", "tune.html"], ["tune.html"], 2.0),
    (["embed", "plan", "--rows", "40000", "--batch", "2048", "-o", "plan.html"], ["plan.html"], 3.0),
    (["embed", "train", MODEL, "--steps", "20", "--scale", "0.0001", "-o", "train.html"], ["train.html"], 8.0),
    (["run", MODEL, "--steps", "4", "--batch", "64", "--scale", "0.0001", "--out", "new"], [], 12.0),
)


#: A process takes the terminal and goes on as the command: a test's worker with jax's threads must not fork itself.
_WITH_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def interrupted(words, number, when, folder):
    """Exit code and all that a terminal showed of the command, or of Python's -c.

    ``when``: seconds, or bytes to wait for on the terminal.
    """
    ours, theirs = pty.openpty()
    command = [sys.executable, *(words if words[0] == "-c" else ["-m", "tilewright", *words])]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    started = subprocess.Popen(
        [sys.executable, "-c", _WITH_TERMINAL, *command], cwd=folder, env=environment, stdin=theirs, stdout=theirs,
        stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    begin, seen, sent = time.monotonic(), b"", False
    while True:
        if not sent and (when in seen if isinstance(when, bytes) else time.monotonic() - begin >= when):
            sent = True
            if number == signal.SIGINT:
                os.write(ours, b"\x03")
            else:
                started.send_signal(number)
        if select.select([ours], [], [], 0.005)[0]:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux says so when the last one has left the terminal
                break
            if not part:
                break
            seen += part
        elif time.monotonic() - begin > 600:
            started.kill()
            break
    os.close(ours)
    return started.wait(), seen


def complaints(code, seen, number, folder, before, outputs):
    """What is wrong after a command was told to end."""
    wrong, done = [], code in (0, -number)
    if code not in (128 + number, 0, -number):
        wrong.append(f"exit code {code}")
    if seen.rfind(b"\x1b[?25l") > seen.rfind(b"\x1b[?25h"):
        wrong.append("the cursor is hidden")
    if b"Traceback" in seen:
        wrong.append("a traceback")
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name not in before and not (done and name.startswith("new")):
            wrong.append(f"{name} was left")
    for name in outputs:
        made = (folder / name).read_bytes()
        if (made == OLD) if done else (made != OLD and not whole(name, made, folder)):
            wrong.append(f"{name} is neither the old one nor a whole new one")
    return wrong


def whole(name, made, folder):
    """Whether an output is complete, as far as that can be seen."""
    if name.endswith(".html"):
        return made.rstrip().endswith(b"</html>")
    expected = {"x.bin": "packed.bin", "y.npy": "x.npy"}.get(name)
    return made == (folder / expected).read_bytes() if expected else len(made) > 100


def prepare(folder):
    """The files that the commands read."""
    import numpy as np

    array = np.arange(36_000_000, dtype=np.float32).reshape(6000, 6000)
    np.save(folder / "x.npy", array)
    packed = [sys.executable, "-m", "tilewright", "layout", "pack", "x.npy", LAYOUT, "-o", "packed.bin"]
    subprocess.run(packed, cwd=folder, check=True, stderr=subprocess.DEVNULL)


def main(rounds, seed):
    draw, ended, wrong = random.Random(seed), Counter(), 0
    folder = Path(tempfile.mkdtemp())
    try:
        prepare(folder)
        for k in range(rounds):
            for words, outputs, most in COMMANDS:
                for name in outputs:
                    (folder / name).write_bytes(OLD)
                shutil.rmtree(folder / "new", ignore_errors=True)
                before = {str(path.relative_to(folder)) for path in folder.rglob("*")}
                number, moment = draw.choice((signal.SIGINT, signal.SIGTERM)), draw.uniform(0.08, most)
                code, seen = interrupted(words, number, moment, folder)
                ended[code] += 1
                for text in complaints(code, seen, number, folder, before, outputs):
                    wrong += 1
                    print(f"round {k}, {' '.join(words[:2])}, {number.name} after {moment:.3f} s: {text}", flush=True)
                    print(seen[-600:].decode(errors="replace"), flush=True)
                    for path in folder.rglob("*"):
                        if str(path.relative_to(folder)) not in before and path.is_file():
                            path.unlink()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{rounds * len(COMMANDS)} interrupts: {dict(ended)}; {wrong} complaints")
    return wrong


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(bool(main(*(numbers + [5, 1][len(numbers) :]))))
