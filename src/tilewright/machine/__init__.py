"""A whole model on a target: plan, study, prove, train, count, report."""

from typing import TYPE_CHECKING

from tilewright.exports import public_names

if TYPE_CHECKING:
    from tilewright.machine.fitting import FitJob, FitWatch, QuantiseJob, fit, join, quantise
    from tilewright.machine.model import Model, load_model
    from tilewright.machine.report import ProgramReport, RunReport
    from tilewright.machine.running import run

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
