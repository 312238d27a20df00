"""Exported tables: the file, its readers, what they share with training, and what can be wrong with a file."""

from __future__ import annotations

import errno
import json
import os

import jax
import ml_dtypes  # noqa: F401, numpy learns its bfloat16
import numpy as np
import pytest

from tilewright import files
from tilewright.embed import (
    Feature,
    Quantization,
    Table,
    Topology,
    device_lookup,
    export,
    from_tables,
    open_export,
    preprocess,
    stack,
)
from tilewright.errors import UsageError

DRAW = np.random.default_rng(3)
LEVELS = {"int8": 256, "int4": 16, "bf16": 256}


def model(dtype="int8"):
    """Widths that fill vectors and that do not, every combiner, a table with simulated quantisation."""
    tables = (
        Table("wide", 50, 88, combiner="mean"),
        Table("odd", 37, 21, combiner="sqrtn"),
        Table("seen", 40, 8, quantization=Quantization(-1.0, 1.5, LEVELS[dtype])),
    )
    features = [Feature("wide", tables[0]), Feature("again", tables[0]), *(Feature(t.name, t) for t in tables[1:])]
    return stack(features, Topology(2, 2))


VALUES = {p.table.name: DRAW.normal(size=(p.table.vocab, p.table.width)).astype(np.float32) for p in model().placements}
VALUES["odd"][5] = 0
VOCABS = {"wide": 50, "again": 50, "odd": 37, "seen": 40}


@pytest.fixture(scope="module", params=[("int8", "row"), ("int8", "table"), ("int4", "row"), ("bf16", "row")], ids=str)
def served(request, tmp_path_factory):
    dtype, scale = request.param
    path = tmp_path_factory.mktemp("export") / "model.tables"
    made = export(path, from_tables(model(dtype), VALUES), dtype, scale=scale)
    assert made.file_bytes == path.stat().st_size
    assert [p.name for p in path.parent.iterdir()] == ["model.tables"]
    return made, open_export(path)


def one_id(samples=8):
    return {name: DRAW.integers(0, vocab, (samples, 1)).astype(np.int32) for name, vocab in VOCABS.items()}


def ragged(weights, samples=8):
    batch = {}
    for name, vocab in VOCABS.items():
        offsets = np.concatenate([[0], np.cumsum(DRAW.integers(0, 4, samples))])
        parts = DRAW.integers(0, vocab, offsets[-1]), offsets
        batch[name] = (*parts, DRAW.random(offsets[-1]).astype(np.float32) + 0.1) if weights else parts
    return batch


def test_a_row_has_the_same_bits_in_every_reader(served):
    made, opened = served
    batch = one_id()
    rows, by_jax = device_lookup(opened)
    found = [opened.lookup(batch), jax.jit(by_jax)(rows, batch)]
    if made.dtype == "int8":
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (rows, batch))
        found.append(jax.export.export(jax.jit(by_jax))(*shapes).call(rows, batch))
    for name, ids in batch.items():
        expected = opened.table(opened.header.features[name])[ids[:, 0]]
        for values in found:
            np.testing.assert_array_equal(np.asarray(values[name]), expected)


@pytest.mark.parametrize("weights", [False, True])
def test_samples_are_combined_as_in_training(served, weights):
    """Gains as ``preprocess`` makes them, times the rows that are served."""
    made, opened = served
    batch, stacking = ragged(weights), model(made.dtype)
    one = stack(stacking.features, Topology(1, 1))
    host, found = preprocess(batch, one), [opened.lookup(batch)]
    if made.dtype == "int8" and made.tables[0].encoding == "row":
        rows, by_jax = device_lookup(opened)
        found.append(jax.jit(by_jax)(rows, batch))
    for feature in one.features:
        place = one.tables[feature.table.name]
        ids, samples, gains = host.partition(place.stack, 0, 0)
        first = one.stacks[place.stack].sample_offsets(host.batch_sizes)[feature.name]
        mine = (samples >= first) & (samples < first + 8)
        expected = np.zeros((8, feature.table.width))
        values = opened.table(feature.table.name)[ids[mine] - place.row_offset]
        np.add.at(expected, samples[mine] - first, values * gains[mine, None])
        for values in found:
            np.testing.assert_allclose(np.asarray(values[feature.name]), expected, rtol=1e-5, atol=1e-5)


def test_what_training_simulated_is_what_is_served(served):
    """A table with a Quantization: the rows its lookups see, to the bit; under jit XLA rounds product and sum once."""
    made, opened = served
    table = model(made.dtype).tables["seen"].table
    seen = table.quantization.apply(VALUES["seen"], np)
    if made.dtype == "bf16":
        seen = seen.astype("bfloat16").astype(np.float32)
    np.testing.assert_array_equal(opened.table("seen"), seen)
    if made.dtype == "int8":
        jitted = jax.jit(lambda rows: table.quantization.apply(rows, jax.numpy))(VALUES["seen"])
        np.testing.assert_allclose(opened.table("seen"), jitted, atol=1.2e-7, rtol=0)


def test_errors_are_those_of_the_codes(served):
    made, opened = served
    for table in made.tables:
        error = np.abs(opened.table(table.name) - VALUES[table.name])
        assert table.largest_error == pytest.approx(error.max())
        assert table.mean_square_error == pytest.approx((error**2).mean(), rel=1e-4)
    bound = {"int8": 0.012, "int4": 0.12, "bf16": 0.003}[made.dtype]
    assert all(table.relative_error < bound for table in made.tables if table.name != "seen")
    assert (opened.table("odd")[5] == 0).all()


def test_a_file_of_width_64_is_small(tmp_path):
    stacking = stack([Feature("t", Table("t", 400, 64))], Topology(1, 2))
    state = from_tables(stacking, {"t": DRAW.normal(size=(400, 64)).astype(np.float32)})
    shares = [export(tmp_path / "x", state, dtype) for dtype in ("int8", "int4", "bf16")]
    assert [made.file_bytes < share * made.float_bytes for made, share in zip(shares, (0.3, 0.16, 0.51), strict=True)]


def test_kernels_do_not_care_how_a_batch_comes(served):
    _, opened = served
    batch = one_id(24)
    plain = opened.lookup(batch)
    strided = {name: np.asfortranarray(np.repeat(ids, 2, axis=1))[:, :1] for name, ids in batch.items()}
    lists = {name: [[int(i)] for i in ids[:, 0]] for name, ids in batch.items()}
    long = {name: ids.astype(np.int64) for name, ids in batch.items()}
    parts = {name: opened.lookup({name: ids}) for name, ids in batch.items()}
    many = opened.lookup({name: np.tile(ids, (3000, 1)) for name, ids in batch.items()})
    for name in batch:
        for other in opened.lookup(strided), opened.lookup(lists), opened.lookup(long), parts[name]:
            np.testing.assert_array_equal(other[name], plain[name])
        np.testing.assert_array_equal(many[name], np.tile(plain[name], (3000, 1)))
    assert opened.lookup({}) == {}
    np.testing.assert_array_equal(opened.lookup({"odd": [[], [5]]})["odd"], np.zeros((2, 21), np.float32))
    hot = np.arange(3000)[None] % 37  # more than the kernel's working arrays hold at first
    expected = opened.table("odd")[hot[0]].sum(0, dtype=np.float64) / np.sqrt(3000)
    np.testing.assert_allclose(opened.lookup({"odd": hot})["odd"][0], expected, rtol=1e-3, atol=1e-3)


def test_bad_requests_are_one_clear_error(served):
    _, opened = served
    for batch, text in (
        ({"odd": np.array([[3], [37]])}, "feature 'odd': id 37 of sample 1 is not in 0 .. 36"),
        ({"odd": [[3], [1, -1]]}, "id -1 of sample 1"),
        ({"add": [[1]]}, "no feature called 'add'"),
        ({"wide": ([1, 2], [0, 2], [1.0, -1.0])}, "no finite sum to divide by"),
        ({"wide": ([1, 2], [0, 3])}, "offsets run from 0 to 3"),
    ):
        with pytest.raises(UsageError, match=text):
            opened.lookup(batch)
    clipped = opened.lookup({"odd": np.array([[99]])}, bad_ids="clip")["odd"]
    np.testing.assert_array_equal(clipped, opened.lookup({"odd": [[36]]})["odd"])
    dropped = opened.lookup({"wide": ([7, 99, -1], [0, 2, 3], [0.5, 1, 1])}, bad_ids="drop")["wide"]
    np.testing.assert_array_equal(dropped, [opened.table("wide")[7], np.zeros(88)])


# Files that are not what they should be.


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    path = tmp_path_factory.mktemp("intact") / "model.tables"
    export(path, from_tables(model(), VALUES))
    return path.read_bytes()


def rewritten(data, change):
    """The file with its header changed, checksum and all."""
    from tilewright.embed.serving import format as layout

    _, _, length, _ = layout._HEAD.unpack(data[:24])
    header = json.loads(data[24 : 24 + length])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (length - len(text))
    return (
        layout._HEAD.pack(layout.MAGIC, layout.VERSION, len(text), layout.zlib.crc32(text))
        + text
        + data[24 + len(text) :]
    )


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda d: b"", "not an export of embedding tables"),
        (lambda d: b"PK" + d, "not an export of embedding tables"),
        (lambda d: d[:8] + b"\7" + d[9:], "version 7 of the format"),
        (lambda d: d[:100], "its header does not have its checksum"),
        (lambda d: d[:40] + b"!" + d[41:], "its header does not have its checksum"),
        (lambda d: d[:-1], "cut short: "),
        (lambda d: d + b"\0", "bytes of"),
        (lambda d: d[:-300] + bytes([d[-300] ^ 1]) + d[-299:], "rows from 0 on of table 'seen' do not have their"),
        (lambda d: rewritten(d, lambda h: h.update(kind="plan")), "its schema is 'plan'"),
        (lambda d: rewritten(d, lambda h: h.pop("tables")), "tables missing"),
        (lambda d: rewritten(d, lambda h: h["tables"][0].update(vocab=10**9)), "its schema is wrong: table 'wide'"),
        (lambda d: rewritten(d, lambda h: h["tables"][0].update(offset=0)), "its schema is wrong: table 'wide'"),
        (lambda d: rewritten(d, lambda h: h["features"].update(odd="od")), "its schema is wrong: feature 'odd'"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path, intact, damage, text):
    path = tmp_path / "model.tables"
    path.write_bytes(damage(intact))
    with pytest.raises(UsageError, match=text) as error:
        open_export(path)
    assert error.value.where.startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_what_is_no_file_is_one_clear_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it: opening it must not wait
    for path, problem in (
        ("model\0tables", "cannot read it: embedded null byte"),
        (tmp_path, "cannot read it: Is a directory"),
        (tmp_path / "pipe", "neither a file nor standard input"),
    ):
        with pytest.raises(UsageError, match=problem):
            open_export(path)


def test_no_file_no_room_no_numbers(tmp_path, monkeypatch):
    path, state = tmp_path / "model.tables", from_tables(model(), VALUES)
    with pytest.raises(UsageError, match="cannot read it: No such file"):
        open_export(path)
    export(path, state)
    before = path.read_bytes()
    infinite = {**VALUES, "odd": np.where(np.arange(37)[:, None] == 9, np.inf, VALUES["odd"]).astype(np.float32)}
    with pytest.raises(UsageError, match="table 'odd': row 9 holds a number that is not finite"):
        export(path, from_tables(model(), infinite))
    for wrong in {"dtype": "int2"}, {"scale": "column"}:
        with pytest.raises(UsageError, match="one of"):
            export(path, state, **wrong)
    with pytest.raises(UsageError, match="256 levels of simulated quantisation do not fit int4"):
        export(path, state, "int4")
    with pytest.raises(UsageError, match="cannot write it"):
        export(tmp_path / "no" / "where", state)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UsageError, match="cannot write it: No space left on device"):
        export(path, state)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.tables"]
