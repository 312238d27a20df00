"""What the embedding commands share: the model (a TOML file, or Criteo's 26 tables) and the batches of a log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Annotated, Any

from typer import Option

from tilewright import embed
from tilewright.errors import UsageError
from tilewright.render.delivery import remark

Batch = Annotated[int | None, "Samples of a batch on all chips, over the limits file's and the model's (4096)."]
TableStacking = Annotated[bool | None, "--stacking/--no-stacking", "Stack tables, over the file's (stack)."]
NarrowPacking = Annotated[bool | None, "--narrow-packing/--no-narrow-packing", "Rows of up to 4 floats share lines."]
BadIds = Annotated[str, "Ids outside a table: error, clip or drop."]
InitArgs = Annotated[str | None, Option(envvar="LIBTPU_INIT_ARGS", help="Flags in use, the guide's knobs among them.")]
Rows = Annotated[int, "Rows of the log to read at most (0: all)."]


@dataclass(frozen=True)
class ModelOptions:
    """The options that describe a model: a file and what is over the file's, or Criteo's tables."""

    config: Annotated[str | None, "The model: a TOML file of tables and features. None: Criteo's 26 tables."] = None
    target: Annotated[str | None, "--target", "-t", "The chip, over the file's (tpu-v5p)."] = None
    chips: Annotated[int | None, "How many chips, over the file's (1)."] = None
    batch: Batch = None
    vocab: Annotated[str | None, "Rows per table: kaggle (the default), terabyte, a number, or 26 numbers."] = None
    scale: Annotated[float | None, "Factor on the vocabularies, above 0, at most 1 (1)."] = None
    width: Annotated[int | None, "Floats per row of every table (16)."] = None
    optimizer: Annotated[
        str | None,
        "sgd, adagrad, rowwise_adagrad, adagrad_momentum, adam, ftrl, laprop or f2a (adagrad); values behind "
        "a colon, as in adam:learning_rate=0.1,b1=0.8.",
    ] = None

    def configured(self, **others: Any) -> embed.EmbedConfig:
        """The file's model, or Criteo's tables; ``others``: more fields over the file's, None for none."""
        given = {name: value for name, value in (vars(self) | others).items() if value is not None}
        tables = {name: given.pop(name) for name in ("vocab", "scale", "width", "optimizer") if name in given}
        if (config := given.pop("config", None)) is None:
            result = _criteo(**tables)
        else:
            if tables:
                raise UsageError(f"--{next(iter(tables))} beside --config", how="the tables are those of the file")
            result = embed.read_config(config)
        result = replace(result, **given)
        result.topology.check_batch(result.batch, "--batch")
        return result


def with_stacking(config: embed.EmbedConfig, stacking: bool | None) -> embed.EmbedConfig:
    """The model with --stacking over its own knob, where it is given."""
    if stacking is None:
        return config
    return replace(config, sparsecore=replace(config.sparsecore, disable_table_stacking=not stacking))


def _criteo(
    vocab: str = "kaggle", scale: float = 1.0, width: int = 16, optimizer: str = "adagrad"
) -> embed.EmbedConfig:
    vocabs, rule = _vocabs(vocab, scale), _optimizer(optimizer)
    features = [embed.Feature(f"C{i}", embed.Table(f"C{i}", n, width, optimizer=rule)) for i, n in enumerate(vocabs, 1)]
    return embed.EmbedConfig(tuple(features))


def _vocabs(text: str, scale: float) -> tuple[int, ...]:
    known = embed.CRITEO_CARDINALITIES.get(text)
    if known is None:
        words = text.split(",")
        if not all(word.strip().isdecimal() for word in words) or len(words) not in (1, 26):
            how = f"{', '.join(embed.CRITEO_CARDINALITIES)}, one number, or 26 with commas"
            raise UsageError(f"unknown vocabularies {text!r}", where="--vocab", how=f"give {how}")
        known = tuple(int(word) for word in words) * (26 if len(words) == 1 else 1)
    return embed.scale_vocabs(known, scale)


def _optimizer(text: str) -> Any:
    """``adam`` or ``adam:learning_rate=0.1,b1=0.8``."""
    name, _, given = text.partition(":")
    arguments: dict[str, Any] = {}
    for part in filter(None, given.split(",")):
        key, _, value = part.partition("=")
        try:
            arguments[key.strip()] = json.loads(value)
        except ValueError:
            raise UsageError(f"{part!r}", where="--optimizer", how="such as adam:learning_rate=0.1,b1=0.8") from None
    return embed.optimizer_of({"kind": name, **arguments}, "--optimizer")


def generated(config: embed.EmbedConfig, rows: int) -> Iterator[embed.LogBatch]:
    """Batches of a generated click log for Criteo's tables."""
    if len(config.features) != 26:
        raise UsageError("no log", how="name a file: only Criteo's 26 tables have a generated one")
    vocabs = {feature.name: feature.table.vocab for feature in config.features}
    for clicks in embed.synthetic_criteo(0, rows or 16 * config.batch, [*vocabs.values()]).batches(config.batch):
        yield embed.LogBatch(len(clicks), dict(config.counted(dict(zip(vocabs, clicks.features().values())))))


def fitted(config: embed.EmbedConfig, files: str | Sequence[str] | None, rows: int) -> embed.EmbedConfig:
    """The model; where its one log is shorter than a batch, with a batch of what the log holds."""
    names = [files] if isinstance(files, str) else files or ()
    if len(names) != 1 or rows or names[0] == "-" or names[0].endswith(".toml"):
        return config

    log = embed.read_log(names[0], config.in_log, config.batch, config.columns)
    with options_named():
        held = next((part.rows for part in log), 0) if log.rows is None else log.rows
    fits = held // config.topology.sparsecores * config.topology.sparsecores
    if held >= config.batch or not fits:
        return config
    remark(f"{log.path}: less than a batch of {config.batch}, so the batch is {fits}; --batch sets another")
    return replace(config, batch=fits)


def settled(config: embed.EmbedConfig, of: ModelOptions, file: str, rows: int, limits: str | None) -> embed.EmbedConfig:
    """The model with its batch: that of ``of``, else what the limits file was learnt with, else the model's; and with
    the rotation and the hot rows of the limits file. Where nobody chose one, a log shorter than a batch is one batch.
    """
    learnt = None
    if limits is not None:
        learnt_limits = embed.LimitsFile(limits)
        config, learnt = config.under(learnt_limits), learnt_limits.batch
    if learnt is None:
        return fitted(config, file, rows) if of.config is None and of.batch is None else config
    if learnt == config.batch:
        return config
    if of.batch is not None:
        remark(f"{limits}: learnt with batches of {learnt}, these are of {of.batch}, whose partitions are others")
        return config
    remark(f"{limits}: learnt with batches of {learnt}, which are taken here; --batch sets another")
    config.topology.check_batch(learnt, "--batch")
    return replace(config, batch=learnt)


def batches(
    config: embed.EmbedConfig, files: str | Sequence[str] | None, rows: int
) -> tuple[Iterator[embed.LogBatch], int | None]:
    """Whole batches of one log or several in turn (None: a generated one), and how many there will be, if known.

    A batch's day is that of its times, or its file where there are several.
    """
    if rows < 0 or 0 < rows < config.batch:
        problem = f"{rows} rows are less than one batch of {config.batch}"
        raise UsageError(problem, where="--rows", how="give a multiple of --batch")
    if not files:
        return generated(config, rows), (rows or 16 * config.batch) // config.batch

    names = [files] if isinstance(files, str) else files
    if wrong := next((name for name in names if name.endswith(".toml")), None):
        raise UsageError("a model, not a log", where=wrong, how=f"name the log, and this file as --config {wrong}")
    logs = [embed.read_log(name, config.in_log, config.batch, config.columns, time=config.time) for name in names]
    known = [log.rows // config.batch for log in logs if log.rows is not None]
    total = sum(known) if len(known) == len(logs) else None
    if rows:
        total = rows // config.batch if total is None else min(total, rows // config.batch)
    parts = chain.from_iterable(_whole(log, config, "" if len(logs) == 1 else log.path) for log in logs)
    return islice(parts, rows // config.batch if rows else None), total or None


def say_collisions(config: embed.EmbedConfig, files: Sequence[str] | None) -> None:
    """What ids of hashed tables share, in the first batches of the log."""
    if config.hashed is None or not files or "-" in files:
        return
    import numpy as np

    rules = config.hashed.hashes
    seen: dict[str, list[Any]] = {}
    for part in islice(embed.read_log(files[0], config.in_log, config.batch, config.columns), _LOOKED_AT):
        for feature in (each for each in config.in_log if each.table.name in rules):
            raw = part.features[feature.name]
            seen.setdefault(feature.table.name, []).append(np.unique(raw[0] if isinstance(raw, tuple) else raw))
    for name, ids in seen.items():
        rule = rules[name]
        found = rule.collisions(np.concatenate(ids))
        share = f"{found.sharing / found.ids:.1%} share a row with another, {found.alike / found.ids:.2%} all"
        remark(f"{name}: {found.ids:,} distinct ids in {rule.rows:,} rows by {rule.hashes} hashes: {share} of theirs")


_LOOKED_AT = 16
"""Batches whose collisions are counted."""


@contextmanager
def options_named() -> Iterator[None]:
    """Errors that name a Python argument name the option instead; hint at --config where a log is not Criteo's."""
    try:
        yield
    except UsageError as error:
        options = 'hash them (ids = "hash" of the feature in --config), or give --bad-ids clip or --bad-ids drop'
        how = error.how.replace('or pass bad_ids="clip" or bad_ids="drop"', options)
        if "columns where" in error.what:
            how += "; a log of other columns needs its model: --config model.toml"
        raise UsageError(error.what, where=error.where, how=how) from None


def _whole(log: embed.Log, config: embed.EmbedConfig, day: str) -> Iterator[embed.LogBatch]:
    """The log's whole batches; ``day``: that of those whose times do not say it."""
    batch, seen, file = config.batch, 0, log.path
    for part in log:
        if part.rows < batch:
            if not seen:
                fits = part.rows // config.topology.sparsecores * config.topology.sparsecores
                how = f"give --batch of at most {fits}" if fits else "take a longer log, or fewer --chips"
                raise UsageError(f"only {part.rows} rows, less than one batch of {batch}", where=file, how=how)
            remark(f"{file}: the last {part.rows} rows are less than a batch and left out")
            return
        if not seen and (hashed := log.hashed_numbers()):
            many = "hold" if len(hashed) > 1 else "holds"
            remark(
                f"{file}: {', '.join(hashed)} {many} whole numbers, which are hashed as texts are; in the model, "
                'ids = "direct" takes them as rows, ids = "hash" says that it is meant'
            )
        yield replace(part, features=dict(config.counted(part.features)), day=part.day or day)
        seen += batch
