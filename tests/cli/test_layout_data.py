"""`tilewright layout pack` and `unpack`: what goes in comes out, and no file ends them with anything but one line."""

import io
import json
import random

import ml_dtypes
import numpy as np
import pytest

from tilewright.layout import parse

ARRAYS = [
    (np.arange(6000).reshape(20, 300).astype(ml_dtypes.bfloat16), "bf16[20,300]{1,0:T(8,128)(2,1)}"),
    (np.arange(15, dtype=np.float32).reshape(3, 5), "f32[3,5]{0,1:T(2,2)}"),
    ((np.arange(45) % 7).reshape(5, 9).astype(ml_dtypes.int4), "s4[5,9]{1,0:T(2,4)E(4)}"),
    (np.zeros((0, 3), np.float64), "f64[0,3]"),
    (np.array(3 + 4j, np.complex64), "c64[]"),
    (np.arange(8).reshape(2, 4) % 2 == 0, "pred[2,4]{1,0:T(2,2)}"),
    (np.arange(15, dtype=np.float32).reshape(3, 5), "f32[3,5]{0,1:T(2,2)L(32)}"),
]


@pytest.mark.parametrize(("array", "text"), ARRAYS, ids=[text for _, text in ARRAYS])
def test_there_and_back(run, tmp_path, array, text):
    source, raw, back = (str(tmp_path / name) for name in ("in.npy", "out.bin", "back.npy"))
    np.save(source, array)
    code, out, err = run("layout", "pack", source, text, "-o", raw)
    assert (code, out) == (0, "")
    assert err.startswith(f"wrote {raw}")
    packed = (tmp_path / "out.bin").read_bytes()
    assert packed == parse(text).pack(array).tobytes()
    assert len(packed) == parse(text).size_bytes
    code, out, err = run("layout", "unpack", raw, text, "-o", back, "--json")
    assert (code, json.loads(out)["size_bytes"]) == (0, len(packed))
    assert (tmp_path / "back.npy").read_bytes() == (tmp_path / "in.npy").read_bytes()


@pytest.mark.parametrize(
    ("array", "text", "wide"),
    [
        (np.arange(15, dtype=np.float32).reshape(3, 5), "f32[3,5]{1,0:T(2,2)E(64)}", "u8"),
        (np.arange(15).reshape(3, 5) % 2 == 0, "pred[3,5]{1,0:T(2,2)E(32)}", "u4"),
        ((np.arange(15) % 8).reshape(3, 5).astype(ml_dtypes.int4), "s4[3,5]{1,0:T(2,2)E(16)}", "u2"),
    ],
)
def test_elements_with_more_room_than_they_need(run, tmp_path, array, text, wide):
    """E(n) above the type's width: the file is the memory, place p at byte p * n / 8, zeros behind the element."""
    source, raw, back = (str(tmp_path / name) for name in ("in.npy", "out.bin", "back.npy"))
    np.save(source, array)
    layout = parse(text)
    assert run("layout", "pack", source, text, "-o", raw)[0] == 0
    memory = (tmp_path / "out.bin").read_bytes()
    assert len(memory) == layout.size_bytes
    places = np.frombuffer(memory, wide)
    for index in np.ndindex(3, 5):
        assert places[layout.offset(*index)] == array[index].reshape(1).view(f"u{array.itemsize}")[0]
    assert np.count_nonzero(places) == np.count_nonzero(array.view(f"u{array.itemsize}"))
    assert run("layout", "unpack", raw, text, "-o", back)[0] == 0
    assert (tmp_path / "back.npy").read_bytes() == (tmp_path / "in.npy").read_bytes()


def test_places_of_no_whole_bytes_are_no_file(run, tmp_path):
    np.save(tmp_path / "in.npy", np.zeros(4, np.int8))
    words = (str(tmp_path / "in.npy"), "s8[4]{0:E(12)}", "-o", str(tmp_path / "x.bin"))
    code, out, err = run("layout", "pack", *words)
    assert (code, out) == (3, "")
    assert "elements of 12 bits, no whole bytes; E(16)" in err


def test_numpy_is_told_of_types_it_lacks(run, tmp_path):
    (tmp_path / "x.bin").write_bytes(bytes(8))
    err = run("layout", "unpack", str(tmp_path / "x.bin"), "bf16[2,2]", "-o", str(tmp_path / "x.npy"))[2]
    assert ".view(ml_dtypes.bfloat16)" in err
    err = run("layout", "unpack", str(tmp_path / "x.bin"), "f32[2]", "-o", str(tmp_path / "y.npy"))[2]
    assert "ml_dtypes" not in err


def test_foreign_byte_order_and_fortran_order(run, tmp_path):
    array = np.asfortranarray(np.arange(15).reshape(3, 5).astype(">f4"))
    np.save(tmp_path / "in.npy", array)
    assert run("layout", "pack", str(tmp_path / "in.npy"), "f32[3,5]", "-o", str(tmp_path / "out.bin"))[0] == 0
    assert (tmp_path / "out.bin").read_bytes() == np.arange(15, dtype="<f4").tobytes()


def saved(array, **how):
    made = io.BytesIO()
    np.save(made, array, **how)
    return made.getvalue()


GOOD = saved(np.arange(15, dtype=np.float32).reshape(3, 5))


@pytest.mark.parametrize(
    ("data", "text", "code", "message"),
    [
        (b"", "f32[3,5]", 2, "not a whole .npy file"),
        (b"PK\x03\x04 an archive", "f32[3,5]", 2, "not a whole .npy file"),
        (GOOD[:40], "f32[3,5]", 2, "not a whole .npy file"),
        (GOOD[:-4], "f32[3,5]", 2, "not a whole .npy file"),
        (saved(np.array([{}], object), allow_pickle=True), "f32[1]", 2, "allow_pickle=False"),
        (GOOD, "f32[5,3]", 2, "reshape it to (5, 3)"),
        (GOOD, "s32[3,5]", 2, "convert it to int32"),
        (GOOD, "bf16[3,5]", 2, "convert it to bfloat16, a type of ml_dtypes"),
        (saved(np.zeros(3, "V3")), "bf16[3]", 2, "an array of |V3"),
        (saved(np.zeros(3, [("a", "u1"), ("b", "u1")])), "bf16[3]", 2, "for the layout bf16[3]"),
        (GOOD, "f32[3,?]", 3, "unbounded"),
        (GOOD, "(f32[3,5])", 2, "is a tuple"),
        (GOOD, "f32[3,5", 2, "column 8"),
    ],
)
def test_what_cannot_be_packed(run, tmp_path, data, text, code, message):
    (tmp_path / "in.npy").write_bytes(data)
    got, out, err = run("layout", "pack", str(tmp_path / "in.npy"), text, "-o", str(tmp_path / "out.bin"))
    assert (got, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) == (3 if "column" in message else 1)
    assert not (tmp_path / "out.bin").exists()


@pytest.mark.parametrize(
    ("count", "message"), [(95, "95 bytes, but f32[3,5]{1,0:T(2,2)} takes 96; is it cut off?"), (97, "another layout")]
)
def test_what_cannot_be_unpacked(run, tmp_path, count, message):
    (tmp_path / "in.bin").write_bytes(bytes(count))
    words = (str(tmp_path / "in.bin"), "f32[3,5]{1,0:T(2,2)}", "-o", str(tmp_path / "out.npy"))
    got, out, err = run("layout", "unpack", *words)
    assert (got, out) == (2, "")
    assert message in err
    assert not (tmp_path / "out.npy").exists()


def test_missing_files_and_one_stdout(run, tmp_path):
    for name, out in (("pack", str(tmp_path / "x.bin")), ("unpack", str(tmp_path / "x.npy"))):
        assert "cannot read it" in run("layout", name, str(tmp_path / "none"), "f32[3]", "-o", out)[2]
        assert "both want stdout" in run("layout", name, "in", "f32[3]", "-o", "-", "--json")[2]
        assert "cannot read it" in run("layout", name, str(tmp_path), "f32[3]", "-o", out)[2]


def test_the_two_kinds_of_file_are_not_mixed_up(run, tmp_path):
    (tmp_path / "in.npy").write_bytes(GOOD)
    source = str(tmp_path / "in.npy")
    assert "no .npy file" in run("layout", "pack", source, "f32[3,5]", "-o", str(tmp_path / "x.npy"))[2]
    assert "end the name in .npy" in run("layout", "unpack", source, "f32[3,5]", "-o", str(tmp_path / "x.bin"))[2]
    code, out, err = run("layout", "unpack", source, "f32[3,5]", "-o", str(tmp_path / "x.npy"))
    assert (code, out) == (2, "")
    assert "it is an .npy file, which `pack` reads" in err
    assert [path.name for path in tmp_path.iterdir()] == ["in.npy"]


def test_broken_headers_are_one_error(run, tmp_path):
    rng = random.Random(7)
    for _ in range(40):
        raw = bytearray(GOOD)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(min(len(raw), 130))
            if rng.random() < 0.6:
                raw[at] = rng.randrange(256)
            else:
                del raw[at]
        (tmp_path / "in.npy").write_bytes(raw)
        code, out, err = run("layout", "pack", str(tmp_path / "in.npy"), "f32[3,5]", "-o", str(tmp_path / "out.bin"))
        assert (code, out) in ((0, ""), (2, "")), err
        assert len(err.splitlines()) == 1
