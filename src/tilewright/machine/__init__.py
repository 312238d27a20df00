"""A whole model on a target: plan, study, prove, train, count, report."""

from tilewright.machine.fit import FitJob, Fitted, FitWatch, Quantised, QuantiseJob, fit, join, quantise
from tilewright.machine.model import Model, load_model
from tilewright.machine.report import ProgramReport, RunReport
from tilewright.machine.running import run

__all__ = [
    "FitJob",
    "FitWatch",
    "Fitted",
    "Model",
    "ProgramReport",
    "QuantiseJob",
    "Quantised",
    "RunReport",
    "fit",
    "join",
    "load_model",
    "quantise",
    "run",
]
