"""Logs of every kind give what a plain reading of the same rows gives; broken ones are one clear error each."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.embed import CATEGORICAL, Feature, LogColumn, Table, Topology, preprocess, read_criteo, read_log, stack
from tilewright.errors import UsageError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FEATURES = [Feature("one", Table("one", 50, 8)), Feature("many", Table("many", 90, 8, combiner="mean"))]
ROWS = [(k % 7, [k % 5, k % 3 + 40][: k % 3]) for k in range(37)]
WEIGHTS = [[0.5 + i for i in range(len(many))] for _, many in ROWS]


def columns():
    return {"one": [one for one, _ in ROWS], "many": [many for _, many in ROWS], "w": WEIGHTS, "x": ["?"] * len(ROWS)}


def write_parquet(path, table=None, **options):
    pq.write_table(pa.table(table or columns()), path, **options)
    return path


def lists(given, rows):
    """Any input as a list of lists."""
    if isinstance(given, tuple):
        return [given[0][a:b].tolist() for a, b in zip(given[1], given[1][1:])]
    return np.asarray(given).reshape(rows, -1).tolist()


def read(path, batch=16, features=FEATURES, **named):
    """[(one, many)] of all rows, the batches' lengths, and the last batch."""
    found, sizes = [], []
    for each in read_log(path, features, batch, named or None):
        sizes.append(each.rows)
        parts = [lists(each.features[f.name], each.rows) for f in features]
        found += list(zip(*parts))
    return found, sizes, each


@pytest.mark.parametrize("group", [1000, 10, 3])
def test_parquet_rows_come_back_whatever_the_row_groups(tmp_path, group):
    path = write_parquet(tmp_path / "log.parquet", row_group_size=group)
    found, sizes, _ = read(path)
    assert found == [([one], many) for one, many in ROWS]
    assert sizes == [16, 16, 5]
    assert read_log(path, FEATURES, 16).rows == 37


def test_every_text_and_array_form_gives_the_same(tmp_path):
    rows = [f"{one},{'|'.join(map(str, many))},{'|'.join(map(str, w))}" for (one, many), w in zip(ROWS, WEIGHTS)]
    (tmp_path / "log.csv").write_text("one,many,w\n" + "\n".join(rows) + "\n")
    (tmp_path / "log.tsv").write_text("one\tmany\tw\n" + "\n".join(r.replace(",", "\t") for r in rows))
    offsets = np.cumsum([0, *(len(m) for _, m in ROWS)])
    values, weights = np.array([i for _, m in ROWS for i in m]), np.array([x for w in WEIGHTS for x in w])
    one = np.array([o for o, _ in ROWS])
    np.savez(tmp_path / "log.npz", **{"one": one, "many.values": values, "many.offsets": offsets, "w": weights})
    write_parquet(tmp_path / "log.parquet")
    named = {"one": LogColumn(ids="direct"), "many": LogColumn(ids="direct", weights="w")}
    stacking = stack(FEATURES, Topology(1, 4))
    first = None
    for name in ("log.parquet", "log.csv", "log.tsv", "log.npz"):
        found, sizes, _ = read(tmp_path / name, **named)
        assert (found, sizes) == ([([o], m) for o, m in ROWS], [16, 16, 5]), name
        log = iter(read_log(tmp_path / name, FEATURES, 16, named))
        host = preprocess(next(log).features, stacking)
        made = [host.partition(s, 1, 2) for s in stacking.stacks]
        first = first or made
        assert all(np.array_equal(a, b) for x, y in zip(made, first) for a, b in zip(x, y)), name


def test_a_folder_and_missing_values(tmp_path):
    folder = tmp_path / "day"
    folder.mkdir()
    half = {k: v[:20] for k, v in columns().items()}, {k: v[20:] for k, v in columns().items()}
    for i, part in enumerate(half):
        write_parquet(folder / f"part-{i}.parquet", part)
    assert read(folder)[0] == [([one], many) for one, many in ROWS]
    assert read_log(folder, FEATURES, 16).rows == 37
    holes = {"one": [1, None, 3, None], "many": [[1], None, [], [2, 3]]}
    found, _, _ = read(write_parquet(tmp_path / "holes.parquet", holes))
    assert found == [([1], [1]), ([], []), ([3], []), ([], [2, 3])]
    (tmp_path / "holes.csv").write_text("one,many\n1,1\n,\n3,\n,2|3\n")
    direct = {"one": LogColumn(ids="direct"), "many": LogColumn(ids="direct")}
    assert read(tmp_path / "holes.csv", **direct)[0] == found


@pytest.mark.parametrize("ids", ["auto", "direct", "hash"])
def test_an_empty_cell_is_no_id_in_any_reader(tmp_path, ids):
    """Also with weights, and between two separators; hashed or not."""
    ones, lists_, weights = ["4", "", "6", None], ["1|2", "", "|3||4|", "5"], ["0.5|1", "", "|2||3", "4"]
    rows = [",".join(cell or "" for cell in row) for row in zip(ones, lists_, weights)]
    (tmp_path / "log.csv").write_text("one,many,w\n" + "\n".join(rows) + "\n")
    (tmp_path / "log.tsv").write_text("one\tmany\tw\n" + "\n".join(row.replace(",", "\t") for row in rows))
    split = [[part for part in cell.split("|") if part] for cell in lists_]
    numbers = [[float(x) for x in cell.split("|") if x] for cell in weights]
    write_parquet(tmp_path / "texts.parquet", {"one": ones, "many": lists_, "w": weights})
    write_parquet(tmp_path / "lists.parquet", {"one": [[x or ""] for x in ones], "many": split, "w": numbers})
    write_parquet(tmp_path / "bytes.parquet", {"one": [x and x.encode() for x in ones], "many": split, "w": numbers})
    if ids == "direct":
        ones = [int(x) if x else None for x in ones]
        split = [[int(x) for x in cell] for cell in split]
        write_parquet(tmp_path / "bytes.parquet", {"one": ones, "many": split, "w": numbers})
    named = {"one": LogColumn(ids=ids), "many": LogColumn(ids=ids, weights="w")}
    first = None
    for name in ("log.csv", "log.tsv", "texts.parquet", "lists.parquet", "bytes.parquet"):
        found, _, last = read(tmp_path / name, **named)
        assert [tuple(map(len, row)) for row in found] == [(1, 2), (0, 0), (1, 2), (0, 1)], name
        assert last.features["many"][2].tolist() == [0.5, 1, 2, 3, 4]
        first = first or found
        assert found == first, name
        assert ids == "direct" or all(i > 0 for row in found for of_feature in row for i in of_feature)


def test_texts_are_hashed_as_the_criteo_reader_does(tmp_path):
    """The same values as Criteo's TSV, as a CSV of other features, and as texts, dictionaries and lists in Parquet."""
    values = [f"{k * 7919 % 31:08x}" if k % 5 else "" for k in range(24)]
    tsv = tmp_path / "log.tsv"
    tsv.write_text("".join("\t".join(["0", *["1"] * 13, v, *["a"] * 25]) + "\n" for v in values))
    want = next(read_criteo(tsv, [50] * 26)).categorical[:, 0].tolist()
    assert want[0] == 0
    criteo = [Feature(name, Table(name, 50, 8)) for name in CATEGORICAL]
    assert next(iter(read_log(tsv, criteo, 24))).features["C1"][:, 0].tolist() == want
    (tmp_path / "log.csv").write_text("one,n\n" + "".join(f"{v},1\n" for v in values))
    forms = {
        "text": pa.array([v or None for v in values]),
        "large": pa.array(values, pa.large_string()),
        "dictionary": pa.array(values).dictionary_encode(),
        "bytes": pa.array([v.encode() for v in values]),
        "lists": pa.array([[v] for v in values]),
    }
    paths = [write_parquet(tmp_path / f"{name}.parquet", {"one": array}) for name, array in forms.items()]
    for path in (tmp_path / "log.csv", *paths):
        found, _, _ = read(path, features=FEATURES[:1])
        assert [row[0] for row in found] == [[i] if i else [] for i in want], path.name


@pytest.mark.parametrize("ids", ["auto", "hash"])
def test_whole_numbers_of_any_type_are_ids(tmp_path, ids):
    """As pandas writes a column where one is missing, or a database its keys; a text may begin with its byte order."""
    whole = [3, None, 41, 3, 1, 0]
    want = read(write_parquet(tmp_path / "want.parquet", {"one": whole}), 6, FEATURES[:1], one=LogColumn(ids=ids))[0]
    forms = [pa.array([math.nan if i is None else float(i) for i in whole]), pa.array(whole).cast("float32")]
    for array in [*forms, pa.array(whole).cast(pa.decimal128(20, 0))]:
        path = write_parquet(tmp_path / "log.parquet", {"one": array})
        assert read(path, 6, FEATURES[:1], one=LogColumn(ids=ids))[0] == want, array.type
    path = write_parquet(tmp_path / "log.parquet", {"one": pa.array([True, False, True])})
    assert read(path, 3, FEATURES[:1])[0] == [([1],), ([0],), ([1],)]
    (tmp_path / "listed.csv").write_text('one\n"[1, 2]"\n[]\n')
    with pytest.raises(UsageError, match=r"such as '\[1, 2\]' would be one id each; part ids by \|"):
        read_log(tmp_path / "listed.csv", FEATURES[:1], 2).hashed_numbers()
    (tmp_path / "log.csv").write_text("\ufeffone\n3\n4\n", encoding="utf-8")
    assert read(tmp_path / "log.csv", 2, FEATURES[:1], one=LogColumn(ids="direct"))[0] == [([3],), ([4],)]


def test_integers_can_be_hashed(tmp_path):
    path = write_parquet(tmp_path / "log.parquet", {"one": [-5, 2**62, 7, 7]})
    found, _, _ = read(path, features=FEATURES[:1], one=LogColumn(ids="hash"))
    ids = [row[0][0] for row in found]
    assert ids[2] == ids[3]
    assert all(1 <= i < 50 for i in ids)


@pytest.mark.parametrize(
    ("table", "named", "message"),
    [
        ({"one": [1]}, {}, "no column many; it has one"),
        ({"one": [1.5], "many": [[1]]}, {}, "column 'one': '1.500000' is not a whole number; ids are whole numbers"),
        ({"one": [1], "many": [[{"id": 1}]]}, {}, "column 'many': values of type struct"),
        ({"one": [1], "many": [[1.0, math.nan]]}, {}, "column 'many': 'nan' is not a whole number"),
        ({"one": [1], "many": [[1, None]]}, {}, "a list with a missing id"),
        ({"one": ["a"], "many": [[1]]}, {"one": LogColumn(ids="direct")}, "'a' is not a whole number"),
        ({"one": [1], "many": [[1]], "w": ["x"]}, {"many": LogColumn(weights="w")}, "weights that are not numbers"),
        ({"one": [1], "many": [[1, 2]], "w": [[1.0]]}, {"many": LogColumn(weights="w")}, "1 weights for 2 ids in row"),
        ({"one": pa.array([], pa.int32()), "many": pa.array([], pa.list_(pa.int32()))}, {}, "no rows in the file"),
    ],
)
def test_bad_columns(tmp_path, table, named, message):
    path = write_parquet(tmp_path / "bad.parquet", table)
    with pytest.raises(UsageError) as error:
        list(read_log(path, FEATURES, 4, named))
    assert message in str(error.value)
    assert "bad.parquet" in str(error.value)


def test_files_that_are_not_what_they_say(tmp_path):
    """Not Parquet, cut off, damaged inside, not an archive; the process lives on and good files still read."""
    good = write_parquet(tmp_path / "good.parquet", row_group_size=8)
    raw = good.read_bytes()
    damaged = bytearray(raw)
    damaged[4:40] = b"\xff" * 36
    cases = {
        "text.parquet": b"label,C1\n1,2\n",
        "short.parquet": raw[: len(raw) // 2],
        "damaged.parquet": bytes(damaged),
        "empty.parquet": b"",
        "bad.npz": b"PK\x03\x04 not really",
        "empty.csv": b"",
        "ragged.csv": b"one,many\n1,2\n1,2,3\n",
        "wrong.csv": b"one,other\n1,2\n",
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError) as error:
            list(read_log(tmp_path / name, FEATURES, 16))
        assert name in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="No such file"):
        read_log(tmp_path / "nothing.parquet", FEATURES, 16)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"no \.parquet file"):
        read_log(tmp_path / "folder", FEATURES, 16)
    assert len(read(good)[0]) == 37


def test_bad_arrays(tmp_path):
    path = tmp_path / "bad.npz"
    good = {"one": np.arange(4), "many.values": np.arange(4), "many.offsets": np.array([0, 1, 2, 3, 4])}
    for change, message in (
        ({"many.offsets": np.array([0, 3, 2, 3, 4])}, "offsets decrease: offsets[1] = 3, offsets[2] = 2"),
        ({"many.values": np.arange(4) / 2}, "values of type float64"),
        ({"one": np.arange(5)}, "4 samples of 'many', 5 of others"),
        ({"one": np.array([object()], object)}, "not a numpy archive"),
    ):
        np.savez(path, **{**good, **change})
        with pytest.raises(UsageError) as error:
            list(read_log(path, FEATURES, 4))
        assert message in str(error.value)
        assert str(path) in str(error.value)
    np.savez(path, one=np.arange(4))
    with pytest.raises(UsageError, match=r"no array 'many\.values'"):
        list(read_log(path, FEATURES, 4))


def test_wrong_questions(tmp_path):
    path = write_parquet(tmp_path / "log.parquet")
    with pytest.raises(UsageError, match="which is no feature"):
        read_log(path, FEATURES, 4, {"two": LogColumn()})
    with pytest.raises(UsageError, match="batch = 0"):
        read_log(path, FEATURES, 0)
    with pytest.raises(UsageError, match="ids = 'maybe'"):
        LogColumn(ids="maybe")


def test_one_table_is_not_read_in_two_ways(tmp_path):
    """A column of numbers and one of texts: guessed each by itself, the same item would be two rows."""
    path = write_parquet(tmp_path / "log.parquet", {"item": [3, 14], "seen": ["3|14", "3"]})
    item = Table("item", 100, 8)
    features = [Feature("item", item), Feature("seen", item)]
    with pytest.raises(UsageError, match='the same id would be two rows; give both features ids = "direct"'):
        next(iter(read_log(path, features, 2)))
    log = read_log(path, features, 2, {name: LogColumn(name, ids="direct") for name in ("item", "seen")})
    read = next(iter(log)).features
    assert set(np.ravel(read["item"])) == set(read["seen"][0]) == {3, 14}


def test_columns_of_numbers_come_beside_the_features(tmp_path, click_log):
    import pyarrow
    from pyarrow import parquet

    features = (Feature("id", Table("id", 10, 8)),)
    columns = {"id": np.arange(5), "age": np.array([1.5, 2, 3, 4, 5]), "label": np.array([0, 1, 1, 0, 1])}
    np.savez(tmp_path / "log.npz", **columns)
    parquet.write_table(pyarrow.table({**columns, "label": columns["label"] > 0}), tmp_path / "log.parquet")
    rows = zip(*(map(str, column) for column in columns.values()))
    (tmp_path / "log.csv").write_text("\n".join(["id,age,label", *map(",".join, rows)]) + "\n")
    for name in ("log.npz", "log.parquet", "log.csv"):
        batches = list(read_log(tmp_path / name, features, 3, values=["label", "age"]))
        for column in ("label", "age"):
            found = np.concatenate([batch.values[column] for batch in batches])
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, columns[column])
    (tmp_path / "gaps.csv").write_text("id,age\n1, 2.5\n2,\n")
    (batch,) = read_log(tmp_path / "gaps.csv", features, 3, values=["age"])
    assert batch.values["age"].tolist() == [2.5, 0]

    criteo = [Feature(f"C{i}", Table(f"C{i}", 100, 8)) for i in range(1, 27)]
    (batch,) = read_log(click_log, criteo, 500, values=["label", "I3"])
    assert set(batch.values["label"].tolist()) <= {0.0, 1.0}
    assert batch.values["I3"].shape == (200,)
    with pytest.raises(UsageError, match="no column clicks"):
        list(read_log(click_log, criteo, 500, values=["clicks"]))
