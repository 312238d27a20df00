"""Damages what every parser reads, and looks whether anything dies, hangs, grows or raises an error that is not ours.

    ./run python -m tests.nightly.texts [--trials 50000] [--seed 1] [--only NAME]

Every kind of attack runs in a process of its own, which is started again after the input that ended it. Prints for each
how many inputs were read and refused, and what failed; exits 1 where something did.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import pkgutil
import re
import resource
import select
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from tests.conftest import ROOT, VECTORS
from tilewright.errors import TilewrightError

MOST_SECONDS, MOST_BYTES = 10.0, 2 << 30
PLAUSIBLE = ("1", "2", "7", "31", "1000", "65536", "2000000000", "4e9", "0.5", "1e18", "1e-9", "5e-324")
PATIENCE = 300.0
"""Seconds of the clock after which a process that says nothing is ended: other work may keep the machine busy."""
HUGE = ("9" * 30, "9" * 400, "9" * 5000, "-1", "0", "1e308", "1e999", "-1e308", "nan", "1" * 19)
OTHER = ("true", '""', "[]", "{}", "null")
Attack = Callable[[Random], Callable[[], Any]]
"""Makes one damaged input, and gives what reads it."""


# -- the attacks: each gets ready once, and then makes one input after the other -------------------------------------


def notations() -> Attack:
    """Layouts as XLA, CuTe, oneDNN and linalg write them, and what people paste."""
    from tests.hlo.test_loading_fuzz import mutated
    from tests.layout.test_pastes import READ, REFUSED
    from tilewright import layout
    from tilewright.layout.kinds.tiled import parse_prefix

    texts = [paste["text"] for paste in READ + REFUSED if paste["text"]]
    texts += ["((2,4),8):((1,16),2)", "Sw<3,4,3> o ((8,8),8):((1,64),8)", "aBcd16b", "ABcd16b16a2b", "NCHW"]
    texts += ["%p = linalg.pack %a inner_dims_pos = [0, 1] inner_tiles = [8, 32] into %b : tensor<128x256xf32> -> "
              "tensor<16x8x8x32xf32>"]  # fmt: skip
    readers = [layout.parse, layout.find_shapes, parse_prefix, layout.from_cute, layout.parse_linalg_pack]
    readers += [lambda text: layout.from_onednn_tag(text, (2, 40, 3, 5), "f32")]

    def attack(rng: Random) -> Callable[[], Any]:
        text, reader = mutated(rng, rng.choice(texts), rng.choice(texts)), rng.choice(readers)
        return lambda: reader(text)

    return attack


def shardings() -> Attack:
    """Shardings, meshes and groups of devices, as XLA, Shardy and JAX write them; and programs that get shardings."""
    from tests.hlo.test_loading_fuzz import mutated
    from tests.layout.test_meshes import TEXTS
    from tilewright.hlo import load, sharded
    from tilewright.layout import Mesh, read_groups, read_sharding, shard
    from tilewright.layout.meshes.mesh import read_topology
    from tilewright.layout.meshes.text import mesh_of

    mesh, kind = (
        Mesh({"d": 4, "m": 4}),
        'tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>, a.b = ["}"]}',
    )
    program = load(
        'module @m {\n  sdy.mesh @mesh = <["d"=4, "m"=4]>\n'
        f'  func.func @main(%arg0: {kind} loc("a"), %arg1: tensor<16x8xf32> loc("b")) -> ({kind}) {{\n'
        "    return %arg0 : tensor<16x8xf32>\n  }\n}\n"
    )
    texts = [*TEXTS, '#sdy.sharding<@mesh, [{"d"}, {"m":(1)2, ?}p1]>', "P('d', ('m',), None)", "d+m,-", "{replicated}"]
    texts += ['{devices=[2,1,2,4]<=[4,4]T(1,0) last_tile_dims={manual, replicated} metadata={op_name="x"}}']
    texts += ["{{replicated}, {maximal device=0}}", "{mesh['d'=4,'m'=4], device_ids=([4,4]T(1,0)), [{'d'}, {'m'}]}"]
    texts += ["[4,2]<=[2,4]T(1,0)", "{{0,1},{2,3}}", "mesh['d'=4,'m'=4], device_ids=([4,4]T(1,0)) {'d','m':(1)2}"]
    texts += ['sdy.mesh @mesh = <["d"=4, "m"=4], device_ids=[3,2,1,0]>', "d=4,m=4"]
    readers: list[Callable[[str], Any]] = [
        read_groups,
        mesh_of,
        read_sharding,
        lambda text: str(read_sharding(text, mesh)),
    ]
    readers += [lambda text: shard("f32[9,5]{1,0:T(2,4)}", mesh, text).where(8, 4), read_topology]
    readers += [
        lambda text: sharded(program, mesh, {"a": text, text: "d,-"}),
        lambda text: sharded(load(text), mesh, {"a": "d"}),
    ]
    texts += [program.text, "2*4x8", "v5e:4x4", "a", "arg1", "*"]

    def attack(rng: Random) -> Callable[[], Any]:
        text, reader = mutated(rng, rng.choice(texts), rng.choice(texts)), rng.choice(readers)
        return lambda: reader(text)

    return attack


def programs() -> Attack:
    """HLO and StableHLO texts: read, reported, rewritten."""
    from tests.hlo.test_hlo_reader import LOOP, TABLES
    from tests.hlo.test_loading_fuzz import OLD, mutated, small_programs
    from tilewright.hlo import load, optimize, report

    texts = [LOOP, TABLES % (0, 1), OLD, (ROOT / "examples" / "group_norm.mlir").read_text()]
    texts += [path.read_text() for path in sorted((ROOT / "tests" / "filecheck").glob("*.mlir"))]
    for path in sorted(VECTORS.glob("hlo_*/*")):
        text = path.read_text()
        texts += [text] if len(text) < 12_000 else list(small_programs(text))[::5] if "HloModule" in text[:99] else []

    def attack(rng: Random) -> Callable[[], Any]:
        raw = mutated(rng, rng.choice(texts), rng.choice(texts)).encode()
        if rng.random() < 0.05:
            raw = gzip.compress(raw)
            raw = raw[: rng.randrange(len(raw) + 1)] if rng.random() < 0.5 else raw
        more = rng.random()

        def read() -> None:
            program = load(raw)
            if more < 0.3:
                report(program, "tpu-v5e" if program.kind == "stablehlo" else None)
            elif more < 0.4:
                optimize(program, "vector8x128")

        return read

    return attack


OPERATIONS = (
    "sine",
    "log",
    "rsqrt",
    "cbrt",
    "divide",
    "power",
    "remainder",
    "atan2",
    "not",
    "popcnt",
    "cholesky",
    "rng",
)
TYPES = ("4x8xi32", "4x8xf16", "4x8xcomplex<f64>", "8x4xf32", "4x8xi1", "4x8xf8E4M3FN", "4x0xf32", "99999x99999xf32")


def proofs() -> Attack:
    """Small StableHLO programs that are proved and run: what XLA is given, in the process that may die of it."""
    from tests.hlo.test_loading_fuzz import mutated
    from tilewright.hlo import load, verify

    lines = [
        "stablehlo.add %x, %x : tensor<4x8xf32>", "stablehlo.tanh %x : tensor<4x8xf32>",
        "stablehlo.transpose %x, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8xf32>",
        "stablehlo.slice %x [0:4, 0:8] : (tensor<4x8xf32>) -> tensor<4x8xf32>",
        "stablehlo.custom_call @Sharding(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>",
    ]  # fmt: skip
    head = "module {\n  func.func public @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {\n    %y = "
    texts = [f"{head}{line}\n    return %y : tensor<4x8xf32>\n  }}\n}}\n" for line in lines]

    def attack(rng: Random) -> Callable[[], Any]:
        text = rng.choice(texts)
        if rng.random() < 0.7:  # another operation, or another number: most of these are programs
            old, new = rng.choice(
                (("tanh", OPERATIONS), ("4x8xf32", TYPES), ("add", OPERATIONS), ("8", ("0", "7", "99")))
            )
            text = text.replace(old, rng.choice(new))
        else:
            text = mutated(rng, text, rng.choice(texts))

        def read() -> None:
            program = load(text.encode())
            verify(program, program, inputs=["normal"], eager=rng.random() < 0.2, seconds=PATIENCE / 2)

        return read

    return attack


def registered_calls() -> list[str]:
    """Every name of a custom call that jaxlib registers, or has for a platform that is not here."""
    import jax  # noqa: F401 - registers its own
    import jaxlib
    from jax._src.lib import xla_client

    names = {name for platform in ("Host", "cpu", "CUDA", "ROCM") for name in _targets(xla_client, platform)}
    for module in pkgutil.walk_packages(jaxlib.__path__, "jaxlib."):
        if "mlir" in module.name or "test" in module.name:
            continue
        try:
            known = getattr(import_module(module.name), "registrations", None)
            tables = known() if callable(known) else {}
        except Exception:
            continue
        names |= {str(entry[0]) for own in tables.values() for entry in own}
    for library in Path(jaxlib.__file__).parent.rglob("*.so"):
        pattern = rb"\b(?:lapack_[a-z]{4,9}_ffi|xla_\w*callback\w*|cu\w{4,40}_ffi|__\w+\$\w+|xla\.sdy\.\w+)\b"
        names |= {found.decode() for found in re.findall(pattern, library.read_bytes())}
    return sorted(names)


def _targets(client: Any, platform: str) -> list[str]:
    try:
        return list(client.custom_call_targets(platform))
    except Exception:
        return []


def custom_calls() -> Attack:
    """Programs that call each target jaxlib knows, with attributes that point anywhere."""
    from tilewright.hlo import load, optimize, report, verify

    names = registered_calls()
    print(json.dumps({"note": f"{len(names)} targets"}), flush=True)
    queue: list[str] = []

    def attack(rng: Random) -> Callable[[], Any]:
        if not queue:
            queue.extend(rng.sample(names, len(names)))
        name, version = queue.pop(), rng.choice((1, 2, 4))
        index = rng.choice((0, 1, 2**31, 2**63 - 1))
        config = f'backend_config = "{index}"' if version < 4 else f"backend_config = {{index = {index} : ui64}}"
        call = f'stablehlo.custom_call @"{name}"(%x) {{{config}, api_version = {version} : i32}}'
        text = f"module {{\nfunc.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {{\n%y = {call} : "
        text += "(tensor<4xf32>) -> tensor<4xf32>\nreturn %y : tensor<4xf32>\n}\n}\n"

        def read() -> None:
            program = load(text.encode())
            report(program, "tpu-v5e")
            optimize(program, "vector8x128", verify=True)
            verify(program, program, inputs=["normal"], seconds=PATIENCE / 2)

        return read

    return attack


def binaries() -> Attack:
    """Bytecode, portable artifacts and protos."""
    from jaxlib import _hlo
    from jaxlib.mlir import ir

    from tests.hlo.test_hlo_reader import LOOP
    from tests.hlo.test_loading_fuzz import OLD, mutated_bytes
    from tilewright.hlo import load
    from tilewright.hlo.ir import context

    with context():
        stream = io.BytesIO()
        ir.Module.parse((ROOT / "examples" / "group_norm.mlir").read_text()).operation.write_bytecode(stream)
    originals = [stream.getvalue(), (VECTORS / "step.jax_export").read_bytes()]
    originals += [_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto() for text in (LOOP, OLD)]

    def attack(rng: Random) -> Callable[[], Any]:
        raw = mutated_bytes(rng, rng.choice(originals))
        return lambda: load(raw)

    return attack


def assembler() -> Attack:
    """Programs of the matrix unit: assembled, and run for some instructions."""
    import numpy as np

    from tests.hlo.test_loading_fuzz import mutated
    from tilewright.isa import MatrixUnit, MatrixUnitConfig, assemble

    texts = [path.read_text() for path in sorted(ROOT.rglob("*.tasm")) if ".venv" not in path.parts]
    config = MatrixUnitConfig(threads=8, registers=448, l1_bytes=512, l2_bytes=8192, max_instructions=2000)

    def attack(rng: Random) -> Callable[[], Any]:
        text, runs = mutated(rng, rng.choice(texts), rng.choice(texts)), rng.random() < 0.1

        def read() -> None:
            program = assemble(text, config)
            if runs:
                memory = {name: np.ones((8, 16), np.int8) for name in ("A", "B", "C", "x", "w", "y")}
                MatrixUnit(config).run(program, memory)

        return read

    return attack


def changed(rng: Random, value: Any) -> Any:
    """JSON with one to three values replaced, keys left out or renamed."""
    text = json.dumps(value)
    for _ in range(rng.choice((1, 1, 2, 3))):
        words = list(re.finditer(r'-?\d+(?:\.\d+)?|"(?:[^"\\]|\\.)*"|true|false|null', text))
        found = rng.choice(words)
        other = rng.choice((*HUGE[3:8], HUGE[9], *OTHER, rng.choice(words)[0], str(rng.randrange(-5, 100_000))))
        if re.fullmatch(r"\d+", found[0]) and rng.random() < 0.7:  # a number that could be one
            other = str(rng.choice((0, 1, 2, 3, 5, 8, 31, 64, 1000, 65_536, 2**31, 2**40, 2**61, int(found[0]) + 1)))
        try:
            text = json.dumps(json.loads(text[: found.start()] + other + text[found.end() :]))
        except ValueError:
            continue
    return json.loads(text)


def bundles() -> Attack:
    """Compiled models: bytes of the archive, and values of its JSON, in an archive that is whole."""
    import jax
    import numpy as np

    from tests.hlo.test_loading_fuzz import mutated_bytes
    from tilewright import isa

    def step(x: Any, w: Any) -> Any:
        return jax.numpy.sort(jax.nn.relu(x @ w), 1).T, x > 0

    folder = Path(tempfile.mkdtemp(prefix="tilewright-nightly-"))
    given = np.ones((6, 5), np.float32), np.ones((5, 7), np.float32)
    isa.compile(step, *given, config=isa.MatrixUnitConfig(threads=16, max_instructions=20_000)).save(
        str(folder / "whole.bundle"), *given
    )
    whole = (folder / "whole.bundle").read_bytes()
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    content = json.loads(members["bundle.json"])

    def attack(rng: Random) -> Callable[[], Any]:
        if rng.random() < 0.4:
            raw = mutated_bytes(rng, whole)
        else:
            stream = io.BytesIO()
            with zipfile.ZipFile(stream, "w") as out:
                for name, own in members.items():
                    out.writestr(name, json.dumps(changed(rng, content)) if name == "bundle.json" else own)
            raw = stream.getvalue()
        (folder / "damaged.bundle").write_bytes(raw)

        def read() -> None:
            loaded = isa.load_bundle(str(folder / "damaged.bundle"))
            if loaded.config.max_instructions <= 20_000 and loaded.config.threads <= 64:
                loaded.run()

        return read

    return attack


def settings() -> Attack:
    """Counters, limits, configurations, plans and chips, as JSON and TOML: values and characters of them."""
    from tests.hlo.test_loading_fuzz import mutated
    from tilewright import embed, targets
    from tilewright.cli import main  # noqa: F401 - the commands' own readers are imported with it
    from tilewright.embed import COUNTERS_TEMPLATE

    folder = Path(tempfile.mkdtemp(prefix="tilewright-nightly-"))
    counters = COUNTERS_TEMPLATE.replace("# moved", "moved").replace(
        "# shard_ids = [1_000_000, ...]", "shard_ids = [1]"
    )
    model = 'target = "tpu-v5p"\nchips = 4\nbatch = 1024\n[table.user]\nvocab = 1000\nwidth = 32\n[feature.user]\n'
    model += 'table = "user"\nmean_ids = 3.5\n'
    chip = (ROOT / "src" / "tilewright" / "targets" / "data" / "tpu-v5e.toml").read_text()
    limits = json.dumps({"user": {"max_ids_per_partition": 64, "max_unique_ids_per_partition": 32}})
    readers: list[tuple[str, str, Callable[[str], Any]]] = [
        ("counters.toml", counters, lambda path: embed.diagnose(embed.read_counters(path))),
        ("counters.toml", counters, lambda path: embed.diagnose(embed.read_counters(path)).text()),
        ("model.toml", model, embed.read_config),
        ("chip.toml", chip, targets.target),
        ("limits.json", limits, embed.read_limits),
        ("plan.json", json.dumps({"plan": {"t": {"user": {"sharding_type": "row_wise", "ranks": [0, 1]}}}}),
         embed.read_torchrec),
    ]  # fmt: skip

    def attack(rng: Random) -> Callable[[], Any]:
        name, text, reader = rng.choice(readers)
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            if numbers := list(re.finditer(r"(?<![\w.])\d[\d_.]*", text)):
                found = rng.choice(numbers)
                text = text[: found.start()] + rng.choice((*HUGE, *OTHER, *PLAUSIBLE)) + text[found.end() :]
        if rng.random() < 0.3:
            text = mutated(rng, text, rng.choice(readers)[1])
        (folder / name).write_bytes(text.encode("utf-8", "replace"))
        return lambda: reader(str(folder / name))

    return attack


def messages() -> Attack:
    """What compilers and allocators say."""
    from tests.hlo.allocator_messages import TEXTS
    from tests.hlo.test_loading_fuzz import mutated
    from tilewright.embed import explain_error
    from tilewright.hlo import explain_allocation

    texts = list(TEXTS.values())

    def attack(rng: Random) -> Callable[[], Any]:
        text = mutated(rng, rng.choice(texts)[:20_000], rng.choice(texts))
        reader = rng.choice((explain_allocation, explain_error))
        return lambda: reader(text)

    return attack


def bombs() -> Attack:
    """Little that unpacks to much, and deep nesting."""
    from tilewright.hlo import load, optimize

    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1) as file:
        for _ in range(40):
            file.write(b" " * (1 << 24))

    def attack(rng: Random) -> Callable[[], Any]:
        deep, sign = rng.choice((3_000, 100_000)), rng.choice(("[]", "<>", "()", "{}"))
        nested = sign[0] * deep + "1" + sign[1] * deep
        text = rng.choice((f"module {{ func.func @main() {{ %0 = a.constant dense<{nested}> : tensor<1xf32> }} }}",
                           f"func.func @main(%x: tuple{nested}) {{ return }}",
                           f"HloModule m\nENTRY e {{ ROOT p = {nested} parameter(0) }}"))  # fmt: skip
        raw = stream.getvalue() if rng.random() < 0.3 else text.encode()
        return lambda: optimize(load(raw), "vector8x128")

    return attack


ATTACKS: dict[str, tuple[Callable[[], Attack], float]] = {
    "notations": (notations, 0.302),
    "shardings": (shardings, 2.0),
    "programs": (programs, 0.25),
    "assembler": (assembler, 0.12),
    "settings": (settings, 0.14),
    "messages": (messages, 0.08),
    "binaries": (binaries, 0.06),
    "bundles": (bundles, 0.03),
    "proofs": (proofs, 0.01),
    "custom_calls": (custom_calls, 0.008),
    "bombs": (bombs, 0.0005),
}
"""Each kind, and its share of the trials."""


# -- one process of attacks ------------------------------------------------------------------------------------------


def attack(name: str, seed: int, first: int, count: int) -> None:
    """Inputs ``first`` to ``count``: a line of JSON before each and one after it."""
    make = ATTACKS[name][0]()
    for number in range(first, count):
        print(json.dumps({"begin": number}), flush=True)
        read = make(Random(f"{name} {seed} {number}"))
        began, outcome = time.process_time(), "read"
        try:
            read()
        except TilewrightError as error:
            outcome = "refused" if str(error) else "an error without words"
        except BaseException as error:
            import traceback

            place = traceback.extract_tb(error.__traceback__)[-1]
            outcome = f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}: {str(error)[:100]}"
        took = time.process_time() - began
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        print(json.dumps({"end": number, "outcome": outcome, "seconds": took, "bytes": most}), flush=True)


class Run:
    """What all processes of one kind of attack have told."""

    def __init__(self, name: str, seed: int, count: int) -> None:
        self.name, self.seed, self.count = name, seed, count
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []
        self.slowest, self.most, self.note = 0.0, 0, ""

    def go(self) -> None:
        """All inputs, in as many processes as it takes."""
        done = 0
        while done < self.count:
            done = self._process(done)

    def _process(self, first: int) -> int:
        words = ["-c", "from tests.nightly.texts import main; main()", "--child", self.name]
        words += [str(self.seed), str(first), str(self.count)]
        environment = os.environ | {"TILEWRIGHT_CHILD_GIB": "2", "JAX_PLATFORMS": "cpu", "PYTHONFAULTHANDLER": "1"}
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, cwd=ROOT, env=environment)
        begun, ended = first, first
        for line in self._lines(process):
            told = json.loads(line)
            self.note = told.get("note", self.note)
            begun = told.get("begin", begun)
            if "end" in told:
                ended = told["end"] + 1
                self.add(told)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.most = max(self.most, usage.ru_maxrss << 10)
        if process.returncode == 0 and ended == self.count:
            return ended
        self.outcomes["died"] += 1
        self.failures.append(f"input {begun} ended its process ({process.returncode})")
        return begun + 1

    def _lines(self, process: subprocess.Popen[bytes]) -> Any:
        assert process.stdout is not None
        with process.stdout:
            while True:
                ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
                if not ready:
                    self.failures.append(f"nothing was heard for {PATIENCE:.0f} s")
                    process.kill()
                line = process.stdout.readline()
                if not line.endswith(b"\n"):
                    return
                if line.startswith(b"{"):
                    yield line

    def add(self, told: dict[str, Any]) -> None:
        """One input's end."""
        outcome, seconds = told["outcome"], told["seconds"]
        self.outcomes[outcome if outcome in ("read", "refused") else "foreign"] += 1
        self.slowest, self.most = max(self.slowest, seconds), max(self.most, told["bytes"])
        if outcome not in ("read", "refused"):
            self.failures.append(f"input {told['end']}: {outcome}")
        if seconds > MOST_SECONDS:
            self.failures.append(f"input {told['end']} took {seconds:.1f} s")

    def report(self) -> bool:
        """Print it; whether all held."""
        if self.most > MOST_BYTES:
            self.failures.append(f"{self.most / 2**30:.1f} GiB")
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items()))
        note = f" ({self.note})" if self.note else ""
        print(
            f"{self.name}{note}: {counts}; slowest {self.slowest:.1f} s, most {self.most / 2**20:.0f} MiB", flush=True
        )
        for failure in self.failures[:20]:
            print(f"    {failure}", flush=True)
        return not self.failures


# -- two writers of one name -----------------------------------------------------------------------------------------

WRITER = """
import sys
from tilewright.files import write_whole
path, letter, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    write_whole(path, letter * (200_000 + number))
"""


def torn_reads(folder: Path, count: int) -> tuple[int, int, int]:
    """Two processes write one name ``count`` times in all: (reads, reads that are no whole file, failed writers)."""
    path, half = folder / "one.txt", count // 2
    command = [sys.executable, "-c", WRITER, str(path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([*command, letter, str(half)], **pipes) for letter in "ab"]
    for writer in writers:
        writer.stdout.readline()
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    reads = torn = 0
    whole = re.compile("a+|b+")
    while any(writer.poll() is None for writer in writers) or not reads:
        if path.exists():
            text = path.read_text()
            reads += 1
            torn += not (200_000 <= len(text) < 200_000 + half and whole.fullmatch(text))
    for writer in writers:
        writer.communicate()
    left = [entry for entry in folder.iterdir() if entry != path]
    return reads, torn + len(left), sum(writer.returncode != 0 for writer in writers)


def main() -> None:
    """All attacks, or one process of one."""
    if sys.argv[1:2] == ["--child"]:
        attack(sys.argv[2], *map(int, sys.argv[3:6]))
        return
    options = argparse.ArgumentParser(description="Damage what every parser reads.")
    options.add_argument("--trials", type=int, default=50_000, help="inputs in all")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", choices=[*ATTACKS, "writers"], help="one kind of attack")
    given = options.parse_args()
    # What compiling kernels takes, once a machine, is no text's time.
    subprocess.run([sys.executable, "-m", "tilewright", "warm"], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    held, total = True, Counter[str]()
    for name, (_, share) in ATTACKS.items():
        if given.only in (None, name):
            run = Run(name, given.seed, max(1, round(given.trials * (1 if given.only else share))))
            run.go()
            held &= run.report()
            total += run.outcomes
    if given.only in (None, "writers"):
        with tempfile.TemporaryDirectory() as folder:
            reads, torn, failed = torn_reads(Path(folder), 1000)
        print(f"writers: 1000 writes by two processes, {reads} reads, {torn} of no whole file, {failed} writers failed")
        held &= not torn and not failed
    print(f"{sum(total.values())} inputs: {dict(total)}; {'all held' if held else 'SOMETHING FELL'}")
    sys.exit(not held)


if __name__ == "__main__":
    main()
