"""docs/time.md: the tables of the time model's errors, made by ``benchmarks/calibrate_time.py --docs docs/time.md``."""

from __future__ import annotations

import importlib.util
import platform
import re
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import resources
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import measured_times
import networks
import numpy as np
import shared_kernels
import time_rows
from measured_times import CHIPS, OPERATIONS, Gpt2, Measured, training

from tilewright.hlo import estimate, load
from tilewright.targets import target, target_names
from tilewright.targets.chips import common_time

ROOT = Path(__file__).resolve().parent.parent
DIFFERS = 1.05
"""Measured times of a pair differ by more than this, or the pair is not counted."""
ALIKE = 1.05
"""Work of a pair of equal work differs by no more than this."""

PAGE = """# How long a step takes

The tables of this page are made by one command, `./run python benchmarks/calibrate_time.py --docs docs/time.md`; a test
holds the model to them.

## What to do

**Price a program.** Give the optimised dump of the TPU compiler where you have it (`--xla_dump_to`): its layouts,
fusions, memory spaces and order are facts. From StableHLO or a JAX function they are predicted, and the result says so.

```console
$ ./run tilewright time examples/group_norm.mlir --target tpu-v6e
```

`-o page.html` draws a roofline and lanes over time, `-o trace.pftrace` is a timeline for Perfetto, `--json` prints all
of it. `--compile` prices what an installed TPU compiler (libtpu) makes of StableHLO: facts instead of predictions.

**Ask what if.** `--sweep` tries sizes of a JAX function, a second `--target` another chip, `--set` a chip with other
figures:

```sh
cat > model.py <<'EOF'
import jax


def step(tokens, weights):
    return tokens + jax.nn.gelu(tokens @ weights) @ weights.T
EOF
```

```console
$ ./run tilewright time model.py:step -a 'bf16[n,2048]' -a 'bf16[2048,8192]' --sweep n=32,512,8192 -t tpu-v6e --top 3
$ ./run tilewright time examples/group_norm.mlir -t tpu-v6e -t tpu-v5e --set tpu-v6e.hbm_bandwidth=3.2e12 --top 1
```

`--set` takes `hbm_bandwidth`, `matrix_peak`, `link_bandwidth` (between chips), `host_bandwidth`, `network_bandwidth`
(between slices), or any constant of the model, such as `tpu-v6e.kernel.launch_us=0.5`.

**Change what pays.** Above the operations stand the changes that are known to save more than a hundredth of the step,
the most first: the line, what costs now, the code to write, the command that does or checks it. What each saves is the
modelled step less that of the program with the change, so two of them that meet in one place do not add up. `report`,
`optimize`, `run` and `lint` show the same list; it needs StableHLO or a function, as a dump is the compiler's own.

* `fused-attention`, `fused-loss`: scores or logits and their softmax are written out. Modelled instead: a kernel for
  each result, of its products as they fill the matrix unit, an exponential for each score with what a softmax has
  beside it, the sum that each step carries on, and its arrays once through HBM; of scores under a causal mask (places
  compared in the program itself) the blocks that it keeps. `./run python
  benchmarks/time_rows.py --pairs ROWS FOLDER` holds this to functions that were timed as XLA's and as such kernels.
* `float32-product`: both operands of a product are float32. Instead: bfloat16 for them and what is made of them alone,
  and for arguments that nothing else reads, unless the program returns an array of that size, as a step its weights.
* `cast-every-step`: an argument is float32 and only used narrow, also in the layers of a loop, in a program that does
  not return it.
* `thin-products`: products of one array with weights of fewer than 256 columns, with those of their gradients. Instead:
  one product, its result cut.
* `computed-again`: a product that `jax.checkpoint` computes again, and memory has room for its result. It is kept.
* `one-hot-dispatch`: products with zeros and ones send rows to places. Instead: rows scattered and gathered by index.
  `one-hot-lookup` with its gradient likewise.
  Where tokens are sent within small groups nothing is said, for the products are short there: 32 groups of 256 tokens
  to 8 experts take 70 us so on v6e, by index 249; 8,192 tokens in one group 386 and 134 (libtpu's modules, modelled).
* [rules](rules.md): heads repeated, one-hot lookups, gradients of small tables, and more.

**Compare two dumps** of one program, of two compiler or code versions: `tilewright diff before.hlo after.hlo`.

**In Python**:

```python
from tilewright.hlo import estimate, load

step = estimate(load(text), "tpu-v6e")
step.device_seconds, step.call_seconds  # of the device, as a profiler shows it; the call from the host beside it
step.priced  # the share of its flops and bytes that have a time
for row in step.slowest(10):
    print(row.name, row.seconds, row.bound, row.source, row.calibrated, row.error)
```

## What kind of number is this?

Every time that Tilewright prints is *modelled*: computed from layouts, bytes and passes with the constants below. Only
the columns called *measured* hold times of real chips: one TPU v4 and one TPU v6e, measured by others
([where from](../benchmarks/data/tpu_measured/README.md)).

* All of it is of one *device*, which is what runs one program: a chip up to v6e (on v4 and v5p two cores together), one
  of a chip's two cores on 7x and 8i. So are a target's peaks, its HBM and its links; plans over chips count both.
* `.device_seconds` is what is printed, ranked, swept and compared. What a call from the host takes beside it,
  `.call_seconds`, is the same for every program of a chip, and `.seconds` is both.
* A step's `.bytes` pass through HBM, padding included. What a report calls *moved* is another thing: bytes read and
  written for layout's sake.
* `.calibrated` of a row: operations of its kind, type, size and bound were measured on this chip. `.error`: how far off
  they were seen, and `.seen` on what: on how many functions that no constant was fitted on and that are mostly of its
  `.kind` (*product bf16*) and bound, else of its kind, else of all kinds. A kernel that takes longer or shorter than
  theirs is *not measured in this range*; an error is claimed for nothing else, and `.note` says *not measured there*.
  The step's own `.seen` is the error and the functions of the kind that two thirds of its time are of, else of
  functions of many kinds. Trust differences between two versions of one program before absolute times.
* No row is below its `.bytes` at HBM's published peak, nor below its `.flops` at the peak of their type, and no step
  below the sum of either. A model that thinks otherwise is raised to the peak; then `.bound` names it and `.note` says
  so. What runs beside other work (a transfer, streamed weights: the row `arguments`) passes its bytes in `.beside`.
* One exception: arguments that an earlier step may have left near the core, `.resident` bytes. Single operations were
  measured so, in loops over one array; a first call reads them as well. What is larger than that memory never counts.
  A TPU's compiler brings the largest argument of a product there between calls (a *cross-program prefetch*), where a
  profiler's time of the device does not see it: a step of few rows can seem to read less than its weights. `.brought`
  and a line beside the step say which argument that is, how much, and how long HBM takes (`.brought_seconds`); calls in
  a row wait for it where the step is shorter.
* More bytes, more flops or lower rates never make a step quicker, as long as the compiler goes the same way. Real chips
  are quicker for more where it goes another: where a dim of 1 or an array of one tile grows, where the order of dims
  in memory changes, for reshapes of more rows, where operands of a concatenation meet on a tile's edge.
* `.priced` below 1: some operations have no time, their rows say why, and the total is a lower bound. It is the lesser
  of `.priced_flops` and `.priced_bytes`, the shares that have a time.

## Single operations

Mean absolute errors in per cent, in bf16. All kinds have one set of constants, `time.alone`, fitted together on 60 % of
the rows of each (*fit*), chosen by a seed; *held out* and *median* are of the other rows, which no constant has seen.
*families*: fitted again with whole families of shapes left out (those of a leading dim; for products a range of
depths), and judged on them. Beside them, on the same held-out rows: a *constant*, a cubic curve over the *size*, and
boosted *trees* on layout features (the best of four set-ups, chosen on the very rows they are judged by). *published*:
what SCALE-Sim's authors print for their models of v4, on rows of theirs. The *bar* is what this model must stay below.

The rules (which way the compiler goes, what fits where) were found by looking at all rows given, so expect up to a
point more on rows that nobody has looked at.

{single}

## A whole model

gpt2 forward, bf16; errors in per cent, modelled against measured. The measured passes are torch_xla's, the programs
ours in JAX: same mathematics and sizes, not the same graph. What a call costs
beyond its kernels is one constant per chip ({calls}). Half of the passes with a dump are among the programs that the
constants of kernels are fitted on; all are shown. Bars: 12 % from dumps, 20 % from StableHLO.

{models}

## Whole functions of a kernel library

Errors in per cent on functions of a public kernel library that were timed on v5e, v5p, v6e and 7x (the profiler's
device times of Tokamax's tuning records), from StableHLO and, on the right, from modules that a TPU compiler made ahead
of time (libtpu 0.0.50; 0.0.42 or 0.0.52 where that has the measured peak of memory and 0.0.50 has not). From
StableHLO it is all rows of XLA's programs but 13, which cannot be lowered, and 1,038 of 1,186 Pallas kernels; most of
the others are losses of v5p, which count here where they are lowered for both cores. Attention in chunks is the
library's public one, of chunks of 512 by 1024. The constants are fitted on one half of the families of
shapes, from modules and kernels; every figure here is of the other half. The passes of gpt2 above stand
among them, without what their calls cost. `benchmarks/data/time_rows.csv` has each row; `./run python
benchmarks/time_rows.py ROWS FOLDER --docs docs/time.md` makes it anew from the records and a folder of
programs, and without them the tables and pictures from it.

{rows}

## Functions of a line or two

Timed in public, from StableHLO (bars: 15 % in the mean, none beyond 50 %). What an index costs is read off the
gathers among them. Gathers of many rows run on the TensorCore in what was timed on v6e; a compiler from libtpu 0.0.50
leaves them to SparseCores on v5p and v6e, too (`--compile` says what yours does).

{functions}

## Which operations share a kernel

Functions of public models, forward, gradient and decoding steps, as StableHLO and as modules that the TPU's compiler
(libtpu 0.0.42.1) made of them: what is predicted, held to what it did. The packages and their versions stand in
`benchmarks/public_models.py`. `benchmarks/data/shared_kernels.csv` has every function; `./run python
benchmarks/shared_kernels.py table FOLDER --docs docs/time.md` makes it and these tables anew.

{kernels}

## Which of two is faster

Pairs whose measured times differ by more than 5 %, and in how many the model names the faster one (bar: 90 %). *all*:
any two held-out rows of one operation on one chip. *equal work*: those whose elements (products: multiplications)
agree within 5 %, so that only layout and shape decide; the hardest. *gpt2*: two lengths or batches on one chip.

{ranking}

{gpt2_ranking}

## How fast the model itself is

The dump of gpt2 repeated behind itself, every time with names, fusions and sizes of its own; and StableHLO of a decoder
whose layers are unrolled, as JAX lowers it. On
{machine};
measured processor seconds of one thread, each text in a process of its own. Bars: 1 s and 8 s, reading the text
included. StableHLO takes longer, as what the compiler makes of it is predicted first: 100,000 operations of it take
7.7 to 8.6 s on the same machine at different times, so they are not safely within the bar.

{speed}

## Which constants are fitted, and on what

What a chip takes for a thing stands in its TOML file ({own}); what an operation asks
of any chip, such as how many operations of the vector unit an exponential is, in one file for all (`tpu_time.toml`),
much of it in cycles of a core. Each constant has its source there, `./run tilewright targets tpu-v6e` prints them: most
are fitted, others published, counted, or seen in modules that the compiler made ahead of time. Operations alone in a
program have theirs in `time.alone`; the sections of their kinds hold no constants, but what was fitted and seen.
*seen*: megabytes of the operations whose errors are stated; `[time.SECTION.seen]` has their types, bounds, flops and
depths.

{constants}

The constants of `time.kernel` price the kernels of whole programs. They are fitted by
`benchmarks/calibrate_kernels.py` on functions of a public kernel library that were timed on v5p, v6e and 7x (Tokamax's
tuning records, rows of XLA's programs; modules made ahead of time by libtpu 0.0.50) and on gpt2; families of shapes are
either fitted or held back. *error*: mean over the programs of that chip that were held back, from their modules or
from source, whichever is larger; those are included that another version of the compiler made when they were timed. By
kind of kernel it stands in [the table above](#whole-functions-of-a-kernel-library) and in `[errors]` of a chip's file.
What a call costs is read off all passes of gpt2, those that are held back from the other constants too. It and v4's own
constants were fitted last (`--only`). A fit of all of them at once, from what stands,
is not written: it is better on modules, and worse from source (12.2 / 7.1 % of the functions held back for 11.8 / 6.3).

{kernel}

## Chips without measurements

{others} take the constants of the measured chip most like them, scaled by published peaks: rates of HBM
by its bandwidth, the units' work by the matrix peak and the clock in it; latencies and the cost of a call stay as they
are. Nothing of it was fitted there, and a note says so; their rows are not `.calibrated` and have no `.error` but where
functions that were timed there say how far off they are (v5e). Of 7x
public times of square bf16 products on one device are at hand (128 to 32768): those of 8192 and 16384 are met within
5 %, all within 30 %, the small ones too quick. Nobody has measured 8t and 8i in public, and no public compiler knows
them; a first note says that.

### With a chip of your own

Measure whole functions or steps (the profiler's device times) and write a CSV file: a program (a file of HLO or
StableHLO, or `model.py:function` with its arguments in a column `args`) and its microseconds.

```
program,us
prefill.hlo,1834.2
decode.mlir,92.7
model.py:step,512.0
```

```sh
tilewright time --calibrate rows.csv -t tpu-v6e -o mine.json
tilewright time model.py:step -a 'bf16[8,2048]' -t tpu-v6e --calibration mine.json
```

The first scales what HBM, the matrix unit, the vector unit, vector memory and the start of a kernel take, each by one
factor, prints every row before and after, and keeps the factors. Of six rows and more every third is held back, and
the errors are of those. Fewer rows are judged by themselves. `--calibrate profile.xplane.pb` with the dump of what ran
takes the profile's kernels as rows.

**Two measured steps of a model** say more than any constant. Rows whose programs have the same kinds of operations are
steps of one model, of other batches, lengths or numbers of layers. What they took besides, measured over modelled, is
kept with the factors (of fewer than six rows it is all that is kept), and `--calibration` takes it for every step of
that model, between the two measured ones next in size; a note says by how much.

Single operations have constants of their own, which say what starts, streams and registers cost. To fit these,
measure single operations (bf16, one operation a program, times from the profiler) and write a CSV file:

```
op,d0,d1,d2,kernel_us
transpose,16,512,300,2.41
gemm,1024,1024,4096,15.2
```

| column | holds |
|---|---|
| `op` | {operations} |
| `d0`, `d1`, `d2` | sizes as in [the data](../benchmarks/data/tpu_measured/README.md); products: rows, columns, depth |
| `b` | of `batched_gemm` only: how many products |
| `kernel_us` | microseconds on the device, the mean of several runs |

```sh
./run python benchmarks/calibrate_time.py --csv mine.csv --chip tpu-v5e --write
```

fits the chip's own constants that these operations depend on, on 60 % of the rows, prints the errors on the others,
and writes them into the chip's file (`--chip my_chip.toml` for a chip described by a file of your own). What no row
says anything of keeps its value. Take at least three rows for each constant, over the sizes you care for.

## What is not calibrated

* Types other than bf16 in single operations, and sizes that nobody measured; batched products bound by the matrix
  unit; kernels of programs of kinds, types and lengths that no timed function holds, of which most are those of a few
  microseconds; collectives (published link rates); SparseCores but for v6e's gathers. Their rows say
  `calibrated: false` and *not measured there*. Gathers and scatters were timed in a few functions.
* Infeeds, most custom calls and work on the host have no time: their rows say why.
* A loop of unknown length counts as one trip, and a note says so.
* Everything was measured on one chip running one program at a time.
"""


def page(kinds: Sequence[Any]) -> str:
    """The whole page; ``kinds`` are the errors that the calibration has seen."""
    errors = gpt2_errors(list(measured_times.gpt2()))
    others = [name for name in target_names() if name.startswith("tpu-") and not target(name).time]
    text = PAGE.format(
        single=_single(kinds),
        calls=", ".join(f"{target(chip).time['kernel']['call_us']:.0f} us on {chip}" for chip in CHIPS),
        models=_models(errors),
        rows=time_rows.section(time_rows.stored()),
        functions=_functions(),
        kernels=shared_kernels.section(shared_kernels.stored()),
        ranking=_ranking(),
        gpt2_ranking=_gpt2_ranking(errors),
        machine=f"{platform.machine()}, Python {platform.python_version()}, beside other work",
        speed=_speed(),
        constants=_constants(),
        own=", ".join(f"{len(own_constants(chip))} constants of {chip}" for chip in CHIPS),
        kernel=_kernel(),
        others=", ".join(others),
        operations=", ".join(OPERATIONS),
    )
    with tempfile.TemporaryDirectory() as folder:
        return _transcripts().replayed(text, "time.md", Path(folder).resolve())  # type: ignore[no-any-return]


def _transcripts() -> ModuleType:
    """docs/transcripts.py, which runs the commands a page shows."""
    spec = importlib.util.spec_from_file_location("transcripts", ROOT / "docs" / "transcripts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], texts: int) -> str:
    """A table whose first ``texts`` columns are words."""
    marks = "|" + "|".join(["---"] * texts + ["--:"] * (len(head) - texts)) + "|"
    lines = ["| " + " | ".join(map(str, line)) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], marks, *lines[1:]])


PUBLISHED = {
    "reshape": "23.5",
    "transpose": "8.1",
    "broadcast": "13.7",
    "concatenate": "9.8",
    "reduce": "12.5",
    "exponential": "8 to 14",
    "gemm": "13.5",
}
"""Held-out errors that SCALE-Sim's authors print for their models of v4."""


def _single(kinds: Sequence[Any]) -> str:
    head = ("chip", "operation", "rows", "fit", "held out", "median", "families", "constant", "size", "trees")
    rows = []
    for kind in kinds:
        numbers = (kind.train, kind.held, kind.median, kind.families, kind.constant, kind.size, kind.trees)
        published = PUBLISHED.get(kind.operation, "")
        cells = (f"{number:.1f}" for number in numbers)
        rows.append((kind.chip, kind.operation, kind.rows, *cells, published, f"{kind.bar:g}"))
    return _table((*head, "published", "bar"), rows, 2)


def gpt2_errors(points: Sequence[Gpt2]) -> list[tuple[Gpt2, float, float]]:
    """Each of these passes with the relative error from its dump (nan where there is none) and from its StableHLO."""
    errors = []
    for point in points:
        wanted = point.milliseconds / 1e3
        dump = estimate(load(point.dump), point.chip).seconds / wanted - 1 if point.dump else float("nan")
        errors.append((point, dump, estimate(load(point.stablehlo), point.chip).seconds / wanted - 1))
    return errors


def _models(errors: Sequence[tuple[Gpt2, float, float]]) -> str:
    rows: list[tuple[object, ...]] = []
    for point, dump, stablehlo in errors:
        from_dump = "" if np.isnan(dump) else f"{100 * dump:+.1f}"
        cells = (f"{point.milliseconds:.3f}", from_dump, f"{100 * stablehlo:+.1f}")
        rows.append((point.chip, point.sequence, point.batch, *cells))
    for chip in CHIPS:
        dumps = [abs(dump) for point, dump, _ in errors if point.chip == chip and not np.isnan(dump)]
        programs = [abs(stablehlo) for point, _, stablehlo in errors if point.chip == chip]
        means = (f"**{100 * np.mean(dumps):.1f}**", f"**{100 * np.mean(programs):.1f}**")
        rows.append((chip, "mean", "", "", *means))
    return _table(("chip", "sequence", "batch", "measured ms", "dump %", "StableHLO %"), rows, 1)


def pairs(timed: Sequence[tuple[Measured, float]], alike: bool) -> tuple[int, int]:
    """Pairs whose measured times differ by more than 5 %, and in how many the model names the faster one.

    ``alike``: only pairs of equal work, within 5 %.
    """
    counted = right = 0
    for (a, mine), (b, other) in combinations(timed, 2):
        if alike and max(a.work / b.work, b.work / a.work) > ALIKE:
            continue
        if max(a.microseconds / b.microseconds, b.microseconds / a.microseconds) <= DIFFERS:
            continue
        counted += 1
        right += (mine > other) == (a.microseconds > b.microseconds)
    return counted, right


def gpt2_pairs(errors: Sequence[tuple[Gpt2, float, float]], chip: str, dumps: bool) -> tuple[int, int]:
    """The same of the passes of one chip."""
    counted = right = 0
    timed = []
    for point, dump, stablehlo in errors:
        error = dump if dumps else stablehlo
        if point.chip == chip and not np.isnan(error):
            timed.append((point.milliseconds, point.milliseconds * (1 + error)))
    for (a, mine), (b, other) in combinations(timed, 2):
        if max(a / b, b / a) > DIFFERS:
            counted, right = counted + 1, right + ((mine > other) == (a > b))
    return counted, right


def modelled(chip: str, operation: str) -> list[tuple[Measured, float]]:
    """The measured rows with their modelled seconds."""
    return [(row, estimate(load(row.text), chip).device_seconds) for row in measured_times.measured(chip, operation)]


def held_out(timed: Sequence[tuple[Measured, float]]) -> list[tuple[Measured, float]]:
    """Of all rows of an operation on a chip, those that no constant was fitted on."""
    return [row for row, taken in zip(timed, training(len(timed))) if not taken]


def functions() -> list[tuple[str, str, str, float, float]]:
    """The chip, function, arguments, measured and modelled microseconds of functions.csv."""
    rows = measured_times.functions()
    return [(*row[:3], row[3], 1e6 * estimate(load(row[4]), row[0]).device_seconds) for row in rows]


def _functions() -> str:
    rows = [
        (f"`{chip}`", name, f"`{arguments}`", f"{us:.4g}", f"{told:.4g}", f"{100 * (told / us - 1):+.0f}")
        for chip, name, arguments, us, told in functions()
    ]
    return _table(("chip", "function", "arguments", "measured us", "modelled us", "off by %"), rows, 3)


def _ranking() -> str:
    rows: list[tuple[str, ...]] = []
    sums = {True: np.zeros(2, int), False: np.zeros(2, int)}
    for chip in CHIPS:
        for operation in OPERATIONS:
            timed = held_out(modelled(chip, operation))
            if not timed:
                continue
            found = {alike: pairs(timed, alike) for alike in (False, True)}
            for alike, counts in found.items():
                sums[alike] += counts
            rows.append((chip, operation, *_share(*found[False]), *_share(*found[True])))
    rows.append(("both", "**together**", *_share(*sums[False]), *_share(*sums[True])))
    return _table(("chip", "operation", "all pairs", "right %", "of equal work", "right %"), rows, 2)


def _gpt2_ranking(errors: Sequence[tuple[Gpt2, float, float]]) -> str:
    rows = [
        (chip, entrance, *_share(*gpt2_pairs(errors, chip, entrance == "dumps")))
        for chip in CHIPS
        for entrance in ("dumps", "StableHLO")
    ]
    return _table(("chip", "gpt2 from", "pairs", "right %"), rows, 2)


def _share(counted: int, right: int) -> tuple[str, str]:
    return str(counted), f"{100 * right / counted:.0f}" if counted else ""


def long_dump(operations: int) -> str:
    """A scheduled module whose entry has at least so many operations: gpt2's behind itself again and again.

    Every repetition has names, fusions and sizes of its own.
    """
    text = next(point.dump for point in measured_times.gpt2() if point.dump)
    begin, first = text.index("\nENTRY"), text.index("\n%")
    head, bodies, entry = text[:first], text[first:begin], text[begin:].strip("\n").split("\n")
    lines = [line for line in entry[1:-1] if line.strip()]
    copies = -(-operations // len(lines))
    name, size = re.compile(r"%[\w.\-]+"), re.compile(r"(?<=[\[,])(?:128|256|768|3072)(?=[,\]])")
    parts, body = [head], []
    for copy in range(copies):

        def own(part: str) -> str:
            part = size.sub(lambda found: str(int(found[0]) + 8 * copy), part)  # noqa: B023
            return name.sub(lambda found: f"{found[0]}.r{copy}", part)  # noqa: B023

        parts.append(own(bodies))
        body += [own(line if copy == copies - 1 else line.replace("  ROOT ", "  ")) for line in lines]
    return "\n".join([*parts, entry[0], *body, "}", ""])


_TEXTS = {"dump": ("tpu-v4", long_dump), "StableHLO": ("tpu-v6e", networks.decoder)}


def _priced(kind: str, operations: int) -> tuple[str, ...]:
    """One row: how long a text of so many operations is read and priced, in a process of its own."""
    chip, text_of = _TEXTS[kind]
    estimate(load(text_of(100)), chip)  # imports, dialects and tables
    text = text_of(operations)
    begin = time.process_time()
    program = load(text)
    loaded = time.process_time()
    estimate(program, chip)
    done = time.process_time()
    seconds = (f"{part:.1f}" for part in (loaded - begin, done - loaded, done - begin))
    whole = sum(len(computation.operations) for computation in program.computations)
    return kind, f"{operations:,}", f"{whole:,}", *seconds


def _speed() -> str:
    asked = [(kind, operations) for kind in _TEXTS for operations in (10_000, 100_000)]
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        rows = list(pool.map(_priced, *zip(*asked)))
    return _table(("text", "operations", "in all bodies", "reading s", "estimate s", "together s"), rows, 1)


def own_constants(chip: str, section: str = "") -> list[str]:
    """The constants of time that a chip has for itself, in one section of its file or in all."""
    text = (resources.files("tilewright.targets") / "data" / f"{chip}.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text).get("time", {})
    chosen = [tables[name] for name in tables if not section or name == section]
    return [key for of in chosen for key, value in of.items() if isinstance(value, float | int) and key != "error"]


def _constants() -> str:
    rows = []
    for chip in CHIPS:
        machine = target(chip)
        for name, constants in machine.time.items():
            own = own_constants(chip, name)
            common = common_time()[0][name].values if name in common_time()[0] else ()
            low, high = constants.seen.ranges["megabytes"] if constants.seen else (0, 0)
            counts = (len(own) or "", len(common) or "") if constants.values else ("", "")
            seen = f"{low:.2g} to {high:,.0f}" if constants.seen else ""
            rows.append((chip, f"`time.{name}`", constants.fitted_on, *counts, seen))
    return _table(("chip", "section", "fitted on", "its own", "of all chips", "seen MB"), rows, 3)


def _kernel() -> str:
    chips = [chip for chip in target_names() if "kernel" in target(chip).time]
    kernels = [target(chip).time["kernel"] for chip in chips]
    rows = [
        ("error %", "of the programs held back", *(f"{100 * target(chip).errors['all'].error:.1f}" for chip in chips))
    ]
    for name in kernels[0].values:
        source = target(chips[0]).sources[f"time.kernel.{name}"]
        rows.append((f"`{name}`", source, *(f"{kernel[name]:g}" for kernel in kernels)))
    return _table(("constant", "where from", *chips), rows, 2)
