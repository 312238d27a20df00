"""A whole model on a target: plan, study, prove, train, count, report."""

from tilewright.machine.fit import FitJob, Fitted, FitWatch, fit, join
from tilewright.machine.model import Model, auc, load_data, load_model
from tilewright.machine.report import ProgramReport, RunReport
from tilewright.machine.running import run
from tilewright.machine.serve import Quantised, QuantiseJob, quantise

__all__ = [
    "FitJob",
    "FitWatch",
    "Fitted",
    "Model",
    "ProgramReport",
    "QuantiseJob",
    "Quantised",
    "RunReport",
    "auc",
    "fit",
    "join",
    "load_data",
    "load_model",
    "quantise",
    "run",
]
