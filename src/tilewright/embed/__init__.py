"""Sparse cores: tables, stacking, host preprocessing, lookup and update, planning.

The host side needs no jax; the device side (``init``, ``lookup``, ``update`` and their arrays) imports it on first use.
"""

from typing import TYPE_CHECKING, Any

from tilewright.embed._check import Check, Excess, check_batches
from tilewright.embed._clicks import CATEGORICAL, CRITEO_CARDINALITIES, Clicks, scale_vocabs
from tilewright.embed._config import EmbedConfig, read_config
from tilewright.embed._criteo import read_criteo
from tilewright.embed._diagnose import diagnose
from tilewright.embed._diagnose_batches import batch_counters
from tilewright.embed._diagnose_counters import Counters, HbmCounters, Seconds, StackCounters, TableCounters
from tilewright.embed._diagnose_file import read_counters
from tilewright.embed._diagnose_plan import plan_counters
from tilewright.embed._diagnose_types import Diagnosis, Finding
from tilewright.embed._explain import Explanation, explain_error
from tilewright.embed._guard_batch import check_host_batch
from tilewright.embed._host_batch import HostBatch, StackStats
from tilewright.embed._inputs import COO
from tilewright.embed._knobs import SparseCoreConfig
from tilewright.embed._limits_file import read_limits
from tilewright.embed._log import Column, Log, LogBatch, read_log
from tilewright.embed._memory import SparseMemory, memory
from tilewright.embed._minibatch import Agreement
from tilewright.embed._narrow import NarrowTables, pack_narrow
from tilewright.embed._optimizers import SGD, Adagrad
from tilewright.embed._plan import plan
from tilewright.embed._plan_faces import print_plan
from tilewright.embed._plan_page import plan_html
from tilewright.embed._plan_types import CurvePoint, Heap, Plan, StackPlan, TablePlan
from tilewright.embed._preprocess import preprocess
from tilewright.embed._quantization import Quantization
from tilewright.embed._sample_parts import preprocess_samples, sample_order
from tilewright.embed._specs import as_feature, as_table, spec_batch_sizes, spec_limits
from tilewright.embed._stacking import Placement, Stack, Stacking, stack
from tilewright.embed._synthetic import synthetic_criteo
from tilewright.embed._tables import Feature, Limits, Table
from tilewright.embed._topology import Topology

if TYPE_CHECKING:
    from tilewright.embed._device_batch import DeviceBatch, device_batch
    from tilewright.embed._state import EmbeddingState, from_tables, init, tables
    from tilewright.embed._step import lookup, update

__all__ = [
    "CATEGORICAL",
    "COO",
    "CRITEO_CARDINALITIES",
    "SGD",
    "Adagrad",
    "Agreement",
    "Check",
    "Clicks",
    "Column",
    "Counters",
    "CurvePoint",
    "DeviceBatch",
    "Diagnosis",
    "EmbedConfig",
    "EmbeddingState",
    "Excess",
    "Explanation",
    "Feature",
    "Finding",
    "HbmCounters",
    "Heap",
    "HostBatch",
    "Limits",
    "Log",
    "LogBatch",
    "NarrowTables",
    "Placement",
    "Plan",
    "Quantization",
    "Seconds",
    "SparseCoreConfig",
    "SparseMemory",
    "Stack",
    "StackCounters",
    "StackPlan",
    "StackStats",
    "Stacking",
    "Table",
    "TableCounters",
    "TablePlan",
    "Topology",
    "as_feature",
    "as_table",
    "batch_counters",
    "check_batches",
    "check_host_batch",
    "device_batch",
    "diagnose",
    "explain_error",
    "from_tables",
    "init",
    "lookup",
    "memory",
    "pack_narrow",
    "plan",
    "plan_counters",
    "plan_html",
    "preprocess",
    "preprocess_samples",
    "print_plan",
    "read_config",
    "read_counters",
    "read_criteo",
    "read_limits",
    "read_log",
    "sample_order",
    "scale_vocabs",
    "spec_batch_sizes",
    "spec_limits",
    "stack",
    "synthetic_criteo",
    "tables",
    "update",
]

_DEVICE_SIDE = {
    "DeviceBatch": "_device_batch",
    "EmbeddingState": "_state",
    "device_batch": "_device_batch",
    "from_tables": "_state",
    "init": "_state",
    "lookup": "_step",
    "tables": "_state",
    "update": "_step",
}


def __getattr__(name: str) -> Any:
    if name not in _DEVICE_SIDE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_DEVICE_SIDE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
