"""Sparse cores: tables, stacking, host preprocessing, lookup and update, planning."""

from tilewright.embed._optimizers import SGD, Adagrad
from tilewright.embed._stacking import Placement, Stack, Stacking, stack
from tilewright.embed._tables import Feature, Limits, Table
from tilewright.embed._topology import Topology

__all__ = [
    "SGD",
    "Adagrad",
    "Feature",
    "Limits",
    "Placement",
    "Stack",
    "Stacking",
    "Table",
    "Topology",
    "stack",
]
