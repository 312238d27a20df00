"""`tilewright report`, `diff`, `lint`, `optimize`, `shard`, `time` and `verify`: commands about a program."""

from tilewright.cli.programs.kernel import check, explain, run
from tilewright.cli.programs.kernel import time as kernel_time
from tilewright.cli.programs.lint import lint
from tilewright.cli.programs.optimize import optimize, verify
from tilewright.cli.programs.report import diff, report
from tilewright.cli.programs.time import shard, time

COMMANDS = (diff, lint, optimize, report, shard, time, verify)
KERNEL_COMMANDS = (check, explain, run, kernel_time)
