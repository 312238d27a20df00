"""A whole model on a target: plan, study, prove, train, count, report."""

from tilewright.machine._data import RunData, load_data
from tilewright.machine._matrix import MatrixRun
from tilewright.machine._metrics import auc
from tilewright.machine._model import Model, load_model
from tilewright.machine._movement import Movement, Proof
from tilewright.machine._report import RunReport, make_folder
from tilewright.machine._run import run
from tilewright.machine._train import Judgement

__all__ = [
    "Judgement",
    "MatrixRun",
    "Model",
    "Movement",
    "Proof",
    "RunData",
    "RunReport",
    "auc",
    "load_data",
    "load_model",
    "make_folder",
    "run",
]
