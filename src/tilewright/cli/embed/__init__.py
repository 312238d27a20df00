"""`tilewright embed`: plan embedding tables, check batches, train models, diagnose runs, read compiler errors."""

from tilewright.cli.embed.diagnose import check, diagnose, explain_error
from tilewright.cli.embed.plan import plan
from tilewright.cli.embed.train import train

COMMANDS = (check, diagnose, explain_error, plan, train)
