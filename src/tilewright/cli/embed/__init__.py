"""`tilewright embed`: plan embedding tables, check batches against limits, diagnose runs, read compiler errors."""

from tilewright.cli.embed.diagnose import check, diagnose, explain_error
from tilewright.cli.embed.plan import plan

COMMANDS = (check, diagnose, explain_error, plan)
