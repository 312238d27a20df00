"""Sparse cores: tables, stacking, host preprocessing, lookup and update, planning."""

from tilewright.embed._clicks import CRITEO_CARDINALITIES, Clicks, scale_vocabs
from tilewright.embed._criteo import read_criteo
from tilewright.embed._host_batch import HostBatch, StackStats
from tilewright.embed._optimizers import SGD, Adagrad
from tilewright.embed._stacking import Placement, Stack, Stacking, stack
from tilewright.embed._synthetic import synthetic_criteo
from tilewright.embed._tables import Feature, Limits, Table
from tilewright.embed._topology import Topology

__all__ = [
    "CRITEO_CARDINALITIES",
    "SGD",
    "Adagrad",
    "Clicks",
    "Feature",
    "HostBatch",
    "Limits",
    "Placement",
    "Stack",
    "StackStats",
    "Stacking",
    "Table",
    "Topology",
    "read_criteo",
    "scale_vocabs",
    "stack",
    "synthetic_criteo",
]
