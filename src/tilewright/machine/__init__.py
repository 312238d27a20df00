"""A whole model on a target: plan, study, prove, train, count, report."""

from tilewright.machine.fit import FitJob, Fitted, FitWatch, fit, join
from tilewright.machine.model import Model, RunData, auc, load_data, load_model
from tilewright.machine.movement import Movement, Proof
from tilewright.machine.products import MatrixRun
from tilewright.machine.report import RunReport
from tilewright.machine.running import run
from tilewright.machine.serve import Quantised, QuantiseJob, quantise
from tilewright.machine.train import Judgement
from tilewright.machine.whole.entry import run_program
from tilewright.machine.whole.report import ProgramReport

__all__ = [
    "FitJob",
    "FitWatch",
    "Fitted",
    "Judgement",
    "MatrixRun",
    "Model",
    "Movement",
    "ProgramReport",
    "Proof",
    "QuantiseJob",
    "Quantised",
    "RunData",
    "RunReport",
    "auc",
    "fit",
    "join",
    "load_data",
    "load_model",
    "quantise",
    "run",
    "run_program",
]
