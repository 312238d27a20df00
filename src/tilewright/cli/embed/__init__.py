"""`tilewright embed`: plan embedding tables, check batches, train models, serve them, diagnose runs, read errors."""

from tilewright.cli.embed.diagnose import check, diagnose, explain_error, stats
from tilewright.cli.embed.plan import plan
from tilewright.cli.embed.train import export, quantise, train

COMMANDS = (check, diagnose, explain_error, export, plan, quantise, stats, train)
