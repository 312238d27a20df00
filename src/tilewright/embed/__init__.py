"""Sparse cores: tables, stacking, host preprocessing, lookup and update, planning, diagnosis.

Every name is loaded on first use: numba comes with the first batch, jax with the first lookup.
"""

from typing import TYPE_CHECKING

from tilewright.exports import public_names

if TYPE_CHECKING:
    from tilewright.embed import tpu_embedding
    from tilewright.embed.checkpoint.folder import saved_steps
    from tilewright.embed.checkpoint.restore import restore, restore_extra, saved_features, saved_limits, whole_step
    from tilewright.embed.checkpoint.save import save
    from tilewright.embed.device.batch import device_batch
    from tilewright.embed.device.state import EmbeddingState, from_tables, init, put_hot, tables, take_hot
    from tilewright.embed.device.step import layer, lookup, lookup_hot, update, update_hot
    from tilewright.embed.diagnosis.diagnose import diagnose
    from tilewright.embed.diagnosis.explain import ErrorExplanation, explain_error
    from tilewright.embed.diagnosis.finding import Diagnosis
    from tilewright.embed.diagnosis.sources import (
        COUNTERS_TEMPLATE,
        batch_counters,
        check_counters,
        log_counters,
        read_counters,
    )
    from tilewright.embed.host.batch import Agreement, HostBatch, check_host_batch
    from tilewright.embed.host.inputs import COO
    from tilewright.embed.host.preprocess import Check, check_batches, preprocess, preprocess_samples, sample_order
    from tilewright.embed.host.tables import HashedTables, MultiHash, hash_tables, hot_rows, pack_narrow, split_hot
    from tilewright.embed.logs.config import EmbedConfig, optimizer_of, read_config
    from tilewright.embed.logs.criteo import (
        CATEGORICAL,
        CRITEO_CARDINALITIES,
        Clicks,
        read_criteo,
        scale_vocabs,
        synthetic_criteo,
    )
    from tilewright.embed.logs.exchange import FdoStats, read_fdo, read_torchrec, torchrec_plan
    from tilewright.embed.logs.log import Log, LogBatch, LogColumn, read_log
    from tilewright.embed.model.counters import Counters, Seconds
    from tilewright.embed.model.knobs import SparseCoreConfig
    from tilewright.embed.model.lookup_time import gather_seconds
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
    )
    from tilewright.embed.model.specs import spec_batch_sizes, spec_limits
    from tilewright.embed.model.stacking import Stacking, stack
    from tilewright.embed.model.tables import (
        Feature,
        Limits,
        LimitsFile,
        Quantization,
        Table,
        Topology,
        read_hot_rows,
        read_limits,
    )
    from tilewright.embed.planning.memory import SparseMemory, memory
    from tilewright.embed.planning.plan import plan
    from tilewright.embed.planning.result import Plan
    from tilewright.embed.pods.plan import LogBatches, MadeBatches, plan_pod
    from tilewright.embed.serving.export import Exported, device_lookup, export
    from tilewright.embed.serving.read import open_export
    from tilewright.embed.tpu_embedding.specs import as_specs
    from tilewright.embed.training.loop import Feed, Loop, Trained, agree_over_processes
    from tilewright.embed.training.saver import Checkpoints, resume
    from tilewright.embed.training.step import TrainStep, train_step
    from tilewright.embed.warming import warm

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
