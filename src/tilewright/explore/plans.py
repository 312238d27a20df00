"""What the page asks about an embedding plan: what limits would mean, counted on the batches themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import embed
from tilewright.errors import LimitError
from tilewright.explore.worker import Question, known_target
from tilewright.render import bytes_text, percent_text
from tilewright.targets import target as find_target
from tilewright.targets import target_names

_BATCHES = 4
_MOST_BATCH = 8192
_MOST_TABLE = 4_000_000
_MOST_SHOWN = 12


_kept: tuple[str, embed.Plan, list[Mapping[str, Any]]] | None = None
"""The last question's model, its plan and the batches that this was learnt from."""


def plan(asked: Question) -> dict[str, Any]:
    """The plan of a model, and what ``limits`` (stack -> [ids, distinct ids]) would mean for its batches."""
    learnt, batches = _planned(asked)
    observed = learnt.limits
    limits = _limits(asked, observed)
    under = learnt.under(limits)
    cuts, lost = list[int | None](), dict.fromkeys(limits, 0)
    for batch in batches:
        try:
            cuts.append(embed.preprocess(batch, under.stacking, limits, minibatch_layout="needed").num_minibatches)
        except LimitError:  # one hash bucket alone exceeds a limit, so that no cut helps
            cuts.append(None)
        dropped = embed.preprocess(batch, under.stacking, limits, overflow="drop").stats
        for name in limits:
            lost[name] += int(dropped[name].dropped_ids.sum())
    per_stack = {stack.name: sum(stack.per_shard) for stack in learnt.stacks}
    dropped_share = sum(lost.values()) / max(1, sum(per_stack.values()))
    return {
        **{name: getattr(under, name) for name in ("verdict", "fits", "batch")},
        "batches": len(batches),
        **{name: getattr(under.stacking.topology, name) for name in ("chips", "sparsecores")},
        "targets": [name for name in target_names() if find_target(name).sparse is not None],
        "optimizers": sorted(embed.OPTIMIZERS),
        "minibatches": cuts,
        "dropped": percent_text(dropped_share),
        "droppedShare": dropped_share,
        "figures": _figures(under, cuts),
        "heap": [(name, size, bytes_text(size)) for name, size in under.heap_parts()],
        "stacks": [
            {
                "name": stack.name,
                "label": stack.label,
                "tables": len(stack.tables),
                "width": stack.padded_width,
                "ids": stack.limits.max_ids_per_partition,
                "unique": stack.limits.max_unique_ids_per_partition,
                "most": [observed[stack.name].max_ids_per_partition, observed[stack.name].max_unique_ids_per_partition],
                "dropped": percent_text(lost[stack.name] / max(1, per_stack[stack.name])),
                "buffers": bytes_text(stack.buffer_bytes),
                "programs": [
                    {"op": program.op, "compiles": program.compiles, "reason": program.reason,
                     "stack": bytes_text(program.stack_bytes)}
                    for program in stack.programs
                ],
            }
            for stack in under.stacks[:_MOST_SHOWN]
        ],
    }  # fmt: skip


def _planned(asked: Question) -> tuple[embed.Plan, list[Mapping[str, Any]]]:
    """The plan of what is asked about, made once: a model file's tables, or Criteo's, and generated batches."""
    global _kept
    names = ("chips", "batch", "width", "scale", "target", "optimizer")
    key = json.dumps([asked.path, *(asked.values.get(name) for name in names)], default=str)
    if _kept is None or _kept[0] != key:
        config = _config(asked)
        batches = _batches(config)
        made = embed.plan(batches, config.narrow.features, config.topology, target=config.target, table_stacking=True)
        _kept = key, made, batches
    return _kept[1:]


def _config(asked: Question) -> embed.EmbedConfig:
    target = find_target(asked.target("tpu-v5p")).name
    chips, batch = asked.number("chips", 1, 1, 64), asked.number("batch", 1024, 1, _MOST_BATCH)
    if asked.path is not None:
        config = replace(embed.read_config(Path(asked.path)), hashed=None)
        config = replace(config, target=known_target(config.target), batch=min(config.batch, _MOST_BATCH))
    else:
        name = asked.text("optimizer", 100) or "adagrad"
        rule = embed.optimizer_of({"kind": name, "learning_rate": 0.01}, "optimizer")
        scale = asked.number("scale", 10, 1, 100) / 1000
        vocabs = embed.scale_vocabs(embed.CRITEO_CARDINALITIES["kaggle"], scale)
        width = asked.number("width", 16, 1, 512)
        features = tuple(
            embed.Feature(f"C{k}", embed.Table(f"C{k}", n, width, optimizer=rule)) for k, n in enumerate(vocabs, 1)
        )
        config = embed.EmbedConfig(features, target, chips, batch)
    cores = config.topology.sparsecores
    return replace(config, batch=max(1, config.batch // cores) * cores)


def _batches(config: embed.EmbedConfig) -> list[Mapping[str, Any]]:
    """A few batches of a generated click log for Criteo's tables; for others one id a sample, low ones far oftener."""
    features = config.narrow.original
    vocabs, names = [feature.table.vocab for feature in features], [feature.name for feature in features]
    if len(vocabs) == 26 and max(vocabs) <= _MOST_TABLE:
        log = embed.synthetic_criteo(0, _BATCHES * config.batch, vocabs)
        made = [dict(zip(names, clicks.features().values())) for clicks in log.batches(config.batch)]
    else:
        draw = np.random.Generator(np.random.PCG64(0))
        sizes = [(vocab, (config.batch, 1)) for vocab in vocabs]
        made = [
            {name: (n * draw.random(shape) ** 4).astype(np.int64) for name, (n, shape) in zip(names, sizes)}
            for _ in range(_BATCHES)
        ]
    return [config.narrow.batch(batch) for batch in made]


def _limits(asked: Question, observed: Mapping[str, embed.Limits]) -> dict[str, embed.Limits]:
    """The limits that were set; what was not is what the batches ask for."""
    given = asked.values.get("limits")
    limits = dict(observed)
    for name, pair in (given if isinstance(given, dict) else {}).items():
        if name in limits and isinstance(pair, list) and len(pair) == 2:
            ids, unique = (max(1, min(1 << 24, int(n))) if isinstance(n, (int, float)) else 1 for n in pair)
            limits[name] = embed.Limits(ids, min(ids, unique))
    return limits


def _figures(under: embed.Plan, cuts: list[int | None]) -> list[tuple[str, str, str]]:
    total = sum(stack.buffer_bytes for stack in under.stacks)
    can = [cut for cut in cuts if cut is not None]
    most = f"of a batch, {max(can)} at most" if can else "one hash bucket alone exceeds a limit"
    if len(can) < len(cuts):
        most += f"; {len(cuts) - len(can)} of {len(cuts)} batches cannot be cut"
    return [
        ("mini-batches", f"{sum(can) / len(can):.3g}" if can else "none", most),
        ("buffers", bytes_text(total), "of one batch on one device"),
        ("HBM", bytes_text(under.heap.total), f"of {bytes_text(under.heap.capacity)} a chip"),
    ]
