"""Sparse cores: tables, stacking, host preprocessing, lookup and update, planning, diagnosis.

Every name is loaded on first use: numba comes with the first batch, jax with the first lookup.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.embed import tpu_embedding as tpu_embedding
    from tilewright.embed.checkpoint.restore import restore, restore_extra, saved_features, saved_limits, whole_step
    from tilewright.embed.checkpoint.save import Saving, save
    from tilewright.embed.checkpoint.steps import saved_steps
    from tilewright.embed.device.batch import DeviceBatch, device_batch
    from tilewright.embed.device.hot import HotState, lookup_hot, put_hot, take_hot, update_hot
    from tilewright.embed.device.state import EmbeddingState, from_tables, init, tables
    from tilewright.embed.device.step import layer, lookup, update, update_rows, zero_rows
    from tilewright.embed.diagnosis.diagnose import diagnose, diagnosis_html, diagnosis_lines, diagnosis_text
    from tilewright.embed.diagnosis.explain import ErrorExplanation, explain_error, names_sparsecores
    from tilewright.embed.diagnosis.finding import Diagnosis, Finding
    from tilewright.embed.diagnosis.sources import (
        COUNTERS_TEMPLATE,
        batch_counters,
        check_counters,
        log_counters,
        read_counters,
    )
    from tilewright.embed.diagnosis.xprof import is_trace, read_trace
    from tilewright.embed.host.batch import Agree, Agreement, HostBatch, StackStats, check_host_batch
    from tilewright.embed.host.inputs import COO
    from tilewright.embed.host.overflow import Check, Excess, check_batches
    from tilewright.embed.host.preprocess import preprocess, preprocess_samples, sample_order
    from tilewright.embed.host.tables import (
        Collisions,
        HashedTables,
        HotEntries,
        MultiHash,
        NarrowTables,
        hash_tables,
        hot_rows,
        pack_narrow,
        split_hot,
    )
    from tilewright.embed.logs.config import EmbedConfig, optimizer_of, read_config
    from tilewright.embed.logs.criteo import (
        CATEGORICAL,
        CRITEO_CARDINALITIES,
        Clicks,
        read_criteo,
        scale_vocabs,
        synthetic_criteo,
    )
    from tilewright.embed.logs.log import Log, LogBatch, LogColumn, hashed_numbers, read_log
    from tilewright.embed.model.knobs import SparseCoreConfig, paste_text
    from tilewright.embed.model.limits import (
        check_packing,
        learnt_batch,
        limits_json,
        read_hot_rows,
        read_limits,
        read_rotation,
    )
    from tilewright.embed.model.optimizers import (
        F2A,
        FTRL,
        OPTIMIZERS,
        SGD,
        Adagrad,
        AdagradMomentum,
        Adam,
        Clipped,
        LaProp,
        RowOptimizer,
        RowwiseAdagrad,
        hyperparameters_at,
    )
    from tilewright.embed.model.specs import as_feature, as_table, spec_batch_sizes, spec_limits
    from tilewright.embed.model.stacking import Stack, Stacking, TablePlacement, stack
    from tilewright.embed.model.tables import Feature, Limits, Quantization, Table, Topology
    from tilewright.embed.planning.confidence import Confidence
    from tilewright.embed.planning.counters import Counters, HbmCounters, Seconds, StackCounters, TableCounters
    from tilewright.embed.planning.faces import plan_head_html, plan_html, print_plan
    from tilewright.embed.planning.fdo import FDO_SUFFIXES, FdoStats, fdo_stats, read_fdo, write_fdo
    from tilewright.embed.planning.memory import SparseMemory, memory
    from tilewright.embed.planning.plan import plan, under_limits
    from tilewright.embed.planning.torchrec import (
        TorchrecShard,
        TorchrecTable,
        chip_bytes,
        rank_bytes,
        read_torchrec,
        torchrec_plan,
    )
    from tilewright.embed.planning.types import CurvePoint, Heap, Plan, StackPlan, TablePlan, plan_counters
    from tilewright.embed.pods.plan import PodPlan, PodStack, plan_pod
    from tilewright.embed.pods.sources import BatchSource, LogBatches, MadeBatches
    from tilewright.embed.serving.export import Exported, ExportedTable, device_lookup, export
    from tilewright.embed.serving.read import Export, open_export
    from tilewright.embed.tpu_embedding.specs import as_specs
    from tilewright.embed.training.loop import Feed, Loop, Trained, agree_over_processes
    from tilewright.embed.training.saver import Checkpoints, resume
    from tilewright.embed.training.step import Carry, TrainStep, train_step
    from tilewright.embed.warming import warm

__all__ = [
    "CATEGORICAL",
    "COO",
    "COUNTERS_TEMPLATE",
    "CRITEO_CARDINALITIES",
    "F2A",
    "FDO_SUFFIXES",
    "FTRL",
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "AdagradMomentum",
    "Adam",
    "Agree",
    "Agreement",
    "BatchSource",
    "Carry",
    "Check",
    "Checkpoints",
    "Clicks",
    "Clipped",
    "Collisions",
    "Confidence",
    "Counters",
    "CurvePoint",
    "DeviceBatch",
    "Diagnosis",
    "EmbedConfig",
    "EmbeddingState",
    "ErrorExplanation",
    "Excess",
    "Export",
    "Exported",
    "ExportedTable",
    "FdoStats",
    "Feature",
    "Feed",
    "Finding",
    "HashedTables",
    "HbmCounters",
    "Heap",
    "HostBatch",
    "HotEntries",
    "HotState",
    "LaProp",
    "Limits",
    "Log",
    "LogBatch",
    "LogBatches",
    "LogColumn",
    "Loop",
    "MadeBatches",
    "MultiHash",
    "NarrowTables",
    "Plan",
    "PodPlan",
    "PodStack",
    "Quantization",
    "RowOptimizer",
    "RowwiseAdagrad",
    "Saving",
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
    "TablePlacement",
    "TablePlan",
    "Topology",
    "TorchrecShard",
    "TorchrecTable",
    "TrainStep",
    "Trained",
    "agree_over_processes",
    "as_feature",
    "as_specs",
    "as_table",
    "batch_counters",
    "check_batches",
    "check_counters",
    "check_host_batch",
    "check_packing",
    "chip_bytes",
    "device_batch",
    "device_lookup",
    "diagnose",
    "diagnosis_html",
    "diagnosis_lines",
    "diagnosis_text",
    "explain_error",
    "export",
    "fdo_stats",
    "from_tables",
    "hash_tables",
    "hashed_numbers",
    "hot_rows",
    "hyperparameters_at",
    "init",
    "is_trace",
    "layer",
    "learnt_batch",
    "limits_json",
    "log_counters",
    "lookup",
    "lookup_hot",
    "memory",
    "names_sparsecores",
    "open_export",
    "optimizer_of",
    "pack_narrow",
    "paste_text",
    "plan",
    "plan_counters",
    "plan_head_html",
    "plan_html",
    "plan_pod",
    "preprocess",
    "preprocess_samples",
    "print_plan",
    "put_hot",
    "rank_bytes",
    "read_config",
    "read_counters",
    "read_criteo",
    "read_fdo",
    "read_hot_rows",
    "read_limits",
    "read_log",
    "read_rotation",
    "read_torchrec",
    "read_trace",
    "restore",
    "restore_extra",
    "resume",
    "sample_order",
    "save",
    "saved_features",
    "saved_limits",
    "saved_steps",
    "scale_vocabs",
    "spec_batch_sizes",
    "spec_limits",
    "split_hot",
    "stack",
    "synthetic_criteo",
    "tables",
    "take_hot",
    "torchrec_plan",
    "tpu_embedding",
    "train_step",
    "under_limits",
    "update",
    "update_hot",
    "update_rows",
    "warm",
    "whole_step",
    "write_fdo",
    "zero_rows",
]

_HOMES = {
    "checkpoint.restore": "restore restore_extra saved_features saved_limits whole_step",
    "checkpoint.save": "Saving save",
    "checkpoint.steps": "saved_steps",
    "device.batch": "DeviceBatch device_batch",
    "device.hot": "HotState lookup_hot put_hot take_hot update_hot",
    "device.state": "EmbeddingState from_tables init tables",
    "device.step": "layer lookup update update_rows zero_rows",
    "diagnosis.diagnose": "diagnose diagnosis_html diagnosis_lines diagnosis_text",
    "diagnosis.explain": "ErrorExplanation explain_error names_sparsecores",
    "diagnosis.finding": "Diagnosis Finding",
    "diagnosis.xprof": "is_trace read_trace",
    "diagnosis.sources": "COUNTERS_TEMPLATE batch_counters check_counters log_counters read_counters",
    "host.batch": "Agree Agreement HostBatch StackStats check_host_batch",
    "host.inputs": "COO",
    "host.overflow": "Check Excess check_batches",
    "host.preprocess": "preprocess preprocess_samples sample_order",
    "host.tables": "Collisions HashedTables HotEntries MultiHash NarrowTables hash_tables hot_rows pack_narrow"
    " split_hot",
    "logs.config": "EmbedConfig optimizer_of read_config",
    "logs.criteo": "CATEGORICAL CRITEO_CARDINALITIES Clicks read_criteo scale_vocabs synthetic_criteo",
    "logs.log": "Log LogBatch LogColumn hashed_numbers read_log",
    "model.knobs": "SparseCoreConfig paste_text",
    "model.limits": "check_packing learnt_batch limits_json read_hot_rows read_limits read_rotation",
    "model.optimizers": "F2A FTRL OPTIMIZERS SGD Adagrad AdagradMomentum Adam Clipped LaProp RowOptimizer"
    " RowwiseAdagrad hyperparameters_at",
    "model.specs": "as_feature as_table spec_batch_sizes spec_limits",
    "model.stacking": "Stack Stacking TablePlacement stack",
    "model.tables": "Feature Limits Quantization Table Topology",
    "planning.confidence": "Confidence",
    "planning.counters": "Counters HbmCounters Seconds StackCounters TableCounters",
    "planning.faces": "plan_head_html plan_html print_plan",
    "planning.fdo": "FDO_SUFFIXES FdoStats fdo_stats read_fdo write_fdo",
    "planning.memory": "SparseMemory memory",
    "planning.plan": "plan under_limits",
    "planning.torchrec": "TorchrecShard TorchrecTable chip_bytes rank_bytes read_torchrec torchrec_plan",
    "planning.types": "CurvePoint Heap Plan StackPlan TablePlan plan_counters",
    "pods.plan": "PodPlan PodStack plan_pod",
    "pods.sources": "BatchSource LogBatches MadeBatches",
    "serving.export": "Exported ExportedTable device_lookup export",
    "serving.read": "Export open_export",
    "tpu_embedding.specs": "as_specs",
    "training.loop": "Feed Loop Trained agree_over_processes",
    "training.saver": "Checkpoints resume",
    "training.step": "Carry TrainStep train_step",
    "warming": "warm",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "tpu_embedding":
        return import_module(f"{__name__}.tpu_embedding")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
