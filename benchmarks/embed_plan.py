"""Planning a log from a Parquet file: seconds and peak memory of `tilewright embed plan` in a process of its own.

    python benchmarks/embed_plan.py --rows 10000000

The file (26 columns of ids that follow a Zipf law, with the cardinalities of Criteo's Kaggle data set) is generated
once and kept under --folder.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CHUNK = 1 << 18


def generate(path: Path, rows: int) -> None:
    """Write the log, one row group at a time."""
    import pyarrow
    from pyarrow import parquet

    from tilewright.embed import CRITEO_CARDINALITIES, synthetic_criteo

    names = [f"C{i}" for i in range(1, 27)]
    schema = pyarrow.schema([(name, pyarrow.int32()) for name in names])
    partial = path.with_suffix(".partial")
    with parquet.ParquetWriter(partial, schema, compression="snappy") as writer:
        for start in range(0, rows, CHUNK):
            count = min(CHUNK, rows - start)
            clicks = synthetic_criteo(start, count, CRITEO_CARDINALITIES["kaggle"])
            columns = [np.ascontiguousarray(clicks.categorical[:, i]) for i in range(26)]
            writer.write_table(pyarrow.table(dict(zip(names, columns)), schema=schema))
    partial.replace(path)


def measure(command: list[str]) -> tuple[float, float]:
    """Seconds and peak GB of a child process; it must end well."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"it ended with status {os.waitstatus_to_exitcode(status)}")
    child.returncode = 0
    return seconds, usage.ru_maxrss * 1024 / 1e9


def main() -> None:
    """Generate, plan, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=16384)
    parser.add_argument("--chips", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    log = args.folder / f"embed_plan_{args.rows}.parquet"
    if not log.exists():
        start = time.perf_counter()
        generate(log, args.rows)
        print(f"generated {log} in {time.perf_counter() - start:.0f} s, {log.stat().st_size / 1e6:.0f} MB")
    print(f"{args.rows:,} rows, batch {args.batch}, {os.environ.get('TILEWRIGHT_THREADS', os.cpu_count())} threads")
    for chips in args.chips:
        words = ["embed", "plan", str(log), "--batch", str(args.batch), "--chips", str(chips), "--json"]
        seconds, peak = measure([sys.executable, "-c", "from tilewright.cli import main; main()", *words])
        rate = args.rows * 26 / seconds / 1e6
        print(f"{4 * chips:5d} SparseCores: {seconds:6.1f} s, {peak:.2f} GB at most, {rate:.0f} million ids a second")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
