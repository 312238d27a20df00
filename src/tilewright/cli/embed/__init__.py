"""`tilewright embed`: plan embedding tables, check batches, train models, serve them, diagnose runs, read errors."""

from tilewright.cli.embed.diagnose import check, diagnose, explain_error
from tilewright.cli.embed.plan import plan
from tilewright.cli.embed.serve import export, quantise
from tilewright.cli.embed.stats import stats
from tilewright.cli.embed.train import train

COMMANDS = (check, diagnose, explain_error, export, plan, quantise, stats, train)
