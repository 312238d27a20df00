"""Sparse cores: tables, stacking, host preprocessing, lookup and update, planning.

The host side needs no jax; the device side (``init``, ``lookup``, ``update`` and their arrays) imports it on first use.
"""

from typing import TYPE_CHECKING, Any

from tilewright.embed.diagnosis.counters import Counters, HbmCounters, Seconds, StackCounters, TableCounters
from tilewright.embed.diagnosis.diagnose import diagnose
from tilewright.embed.diagnosis.explain import Explanation, explain_error
from tilewright.embed.diagnosis.finding import Diagnosis, Finding
from tilewright.embed.diagnosis.sources import batch_counters, plan_counters, read_counters
from tilewright.embed.host.batch import Agreement, HostBatch, StackStats, check_host_batch
from tilewright.embed.host.check import Check, Excess, check_batches
from tilewright.embed.host.inputs import COO
from tilewright.embed.host.narrow import NarrowTables, pack_narrow
from tilewright.embed.host.preprocess import preprocess, preprocess_samples, sample_order
from tilewright.embed.logs.clicks import CATEGORICAL, CRITEO_CARDINALITIES, Clicks, scale_vocabs, synthetic_criteo
from tilewright.embed.logs.config import EmbedConfig, read_config
from tilewright.embed.logs.criteo import read_criteo
from tilewright.embed.logs.log import Column, Log, LogBatch, read_log
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.limits import read_limits
from tilewright.embed.model.specs import as_feature, as_table, spec_batch_sizes, spec_limits
from tilewright.embed.model.stacking import Placement, Stack, Stacking, stack
from tilewright.embed.model.tables import SGD, Adagrad, Feature, Limits, Quantization, Table, Topology
from tilewright.embed.planning.faces import plan_html, print_plan
from tilewright.embed.planning.memory import SparseMemory, memory
from tilewright.embed.planning.plan import plan
from tilewright.embed.planning.types import CurvePoint, Heap, Plan, StackPlan, TablePlan

if TYPE_CHECKING:
    from tilewright.embed.device.batch import DeviceBatch, device_batch
    from tilewright.embed.device.state import EmbeddingState, from_tables, init, tables
    from tilewright.embed.device.step import lookup, update

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
    "DeviceBatch": "device.batch",
    "EmbeddingState": "device.state",
    "device_batch": "device.batch",
    "from_tables": "device.state",
    "init": "device.state",
    "lookup": "device.step",
    "tables": "device.state",
    "update": "device.step",
}


def __getattr__(name: str) -> Any:
    if name not in _DEVICE_SIDE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_DEVICE_SIDE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
