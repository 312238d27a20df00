"""`tilewright report`, `diff`, `optimize`, `time` and `verify`: commands about a program."""

from tilewright.cli.programs.optimize import optimize
from tilewright.cli.programs.report import diff, report
from tilewright.cli.programs.time import time
from tilewright.cli.programs.verify import verify

COMMANDS = (diff, optimize, report, time, verify)
