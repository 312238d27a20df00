"""Fixtures every test may use."""

from __future__ import annotations

import gc
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.browser import _pages, chromium, document_of, visit  # noqa: F401  fixtures
from tilewright.kernels import cache_folder

ROOT = Path(__file__).resolve().parent.parent
VECTORS = ROOT / "tests" / "data"
ORIGINALS = ROOT.parent / "shared" / "data"

#: How many examples a property draws where its test does not say: as tests are written, by day, and in a night.
EXAMPLES, DAY, NIGHT = 25, 6, 1000
#: Programs that XLA compiled, kept for later sessions: some 2,400 are compiled by one.
MOST_PROGRAMS = 10_000
# Kernels compile on a first call and machines are shared, so the time of a test says nothing. CI draws the same
# examples every time; `--hypothesis-profile nightly` (tests/nightly) draws many, and others every night.
settings.register_profile(
    "tilewright",
    max_examples=DAY,
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "nightly", settings.get_profile("tilewright"), max_examples=NIGHT, derandomize=False, print_blob=True
)
settings.load_profile("tilewright")


def tries(number: int) -> int:
    """How often a test of random cases tries: a quarter of ``number`` by day, 40 times ``number`` at night."""
    return max(1, number * settings().max_examples // EXAMPLES)


def by_night() -> bool:
    return settings().max_examples == NIGHT


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """At night the block takes at most so much processor time; by day, beside other work, no clock is read."""
    begin = time.process_time()
    yield
    assert not by_night() or time.process_time() - begin < seconds


@pytest.fixture(autouse=True)
def own_numbers(request: pytest.FixtureRequest) -> None:
    """A generator that the tests of a file share gives each of them numbers of its own, whatever ran before."""
    for value in vars(request.module).values():
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = np.random.default_rng(crc32(request.node.name.encode())).bit_generator.state


@pytest.fixture(scope="session")
def vectors() -> Any:
    """vectors(name) -> the parsed tests/data/NAME.json."""
    return lambda name: json.loads((VECTORS / f"{name}.json").read_text())


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """tests/data: all that tests read; its README says where each file comes from."""
    return VECTORS


@pytest.fixture(scope="session")
def click_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred generated rows in the form of Criteo's CSV files: missing values, numbers with and without .0."""
    draw = random.Random(11)
    columns = [*(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    lines = [",".join(["label", *columns])]
    for _ in range(200):
        number = [str(int(draw.lognormvariate(3, 2))) + draw.choice(("", ".0")) for _ in range(13)]
        number[1] = str(draw.randrange(-2, 500))
        word = [f"{draw.randrange(1 << draw.choice((3, 32))) * 0x9E3779B1 % (1 << 32):08x}" for _ in range(26)]
        cells = [cell if draw.random() < 0.8 else "" for cell in (*number, *word)]
        lines.append(",".join([draw.choice("0001"), *cells]))
    path = tmp_path_factory.mktemp("clicks") / "clicks.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def pytest_xdist_auto_num_workers() -> int:
    """One more worker than processors: an eighth of the tests' time is waiting, for browsers and for processes."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """XLA compiles quickly and seldom, in programs that a test starts as well.

    Hundreds of small programs are compiled and run once; unoptimised they give the same values but for rounding.
    JAX_DISABLE_MOST_OPTIMIZATIONS=0 compiles them as users do, and so does .ci/wheel. What was compiled is kept for
    later sessions. jax does not lock its folder, so every worker has one of its own, which begins with
    links to what is kept.
    """
    if os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") == "1" and version("jaxlib").startswith("0.10."):
        # XLA aborts on a flag it does not know, so these are set for the versions that have them.
        quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        os.environ["XLA_FLAGS"] = f"{quick} {os.environ.get('XLA_FLAGS', '').removeprefix(quick)}".strip()
    kept = programs_folder()
    kept.mkdir(parents=True, exist_ok=True)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        drop_old(kept)
        if config.args_source is config.ArgsSource.TESTPATHS:
            compile_kernels()
    folder = tempfile.TemporaryDirectory(prefix="session-", dir=kept.parent)
    config.add_cleanup(folder.cleanup)
    config.add_cleanup(lambda: link_files(Path(folder.name), kept))  # before the folder goes: last in, first out
    link_files(kept, Path(folder.name))
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder.name
    os.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"  # else the folder is part of a program's key
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def compile_kernels() -> None:
    """Once for a whole run, by two processes: workers that need the same kernel would each compile it."""
    rooms = [room for room in (("layout", "isa"), ("embed",)) if not all(cache_folder(one).is_dir() for one in room)]
    code = "import sys, importlib\nfor room in sys.argv[1:]: importlib.import_module(f'tilewright.{room}').warm()"
    made = [subprocess.Popen([sys.executable, "-c", code, *room]) for room in rooms]
    for process in made:
        assert process.wait() == 0


def programs_folder() -> Path:
    """Where programs that XLA compiled are kept: for this processor's instructions, by this Python's jaxlib."""
    listed = Path("/proc/cpuinfo")
    cpu = re.search(r"^(flags|Features)\b.*", listed.read_text(), re.MULTILINE) if listed.exists() else None
    name = f"{version('jaxlib')} {platform.platform()} {cpu[0] if cpu else platform.processor()}"
    return ROOT / ".cache" / "xla" / f"{crc32(name.encode()):08x}"


def link_files(source: Path, target: Path) -> None:
    """Link to ``target`` what it lacks of ``source``, whose files are whole."""
    have = {entry.name for entry in os.scandir(target)}
    for entry in os.scandir(source):
        if entry.name not in have:
            with suppress(FileExistsError, FileNotFoundError):  # another session was first, with the same program
                os.link(entry.path, target / entry.name)


def drop_old(kept: Path) -> None:
    """Programs beyond the newest, and folders of sessions that were killed a day ago or earlier."""
    files = sorted(kept.iterdir(), key=lambda file: file.stat().st_mtime)
    for file in files[:-MOST_PROGRAMS]:
        file.unlink(missing_ok=True)
    for folder in kept.parent.glob("session-*"):
        if folder.stat().st_mtime < time.time() - 86400:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The collector would look through all that is imported again and again, for two fifths of the time that takes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # nor through it while the tests run
        gc.enable()


def pytest_collection_finish() -> None:
    """What the tests have imported stays, so the collector need not look at it again and again.

    Each time jax looks through what it holds, too, so it is done a fortieth as often.
    """
    gc.freeze()
    gc.set_threshold(30_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    """One order is as good as another; which one is said by a number, so that a failure can be had again."""
    parser.addoption("--shuffle", type=int, metavar="SEED", help="files, and the tests in each, in a random order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests of the original files where they are not beside the checkout, and of a peer not installed.

    By day also those of the night: each says which test of the suite covers the most of it.
    """
    absent = {
        "originals": not ORIGINALS.is_dir(),
        "peer": find_spec("jax_tpu_embedding") is None,
        "nightly": not by_night(),
    }
    left_out = [item for item in items if any(absent.get(mark.name) for mark in item.iter_markers())]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
    # One worker begins with what needs a browser, so that it alone starts one; whole files, for what a file shares.
    browsed = {item.path for item in items if "chromium" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in browsed)
    # Another begins with what takes longest, so that no worker ends long after the others: each has its part in order.
    long = [item for item in items if any(item.iter_markers("long")) and item.path not in browsed]
    items[:] = [item for item in items if item not in long]
    second = len(items) // 3
    items[second:second] = long
    if (seed := config.getoption("--shuffle")) is not None:
        draw = random.Random(seed)
        place = {path: draw.random() for path in sorted({item.path for item in items})}
        items.sort(key=lambda item: (place[item.path], draw.random()))


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT
