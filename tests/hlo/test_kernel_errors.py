"""Messages about Pallas kernels, as jax and the TPU compiler print them."""

import json
import re

import pytest

from tests.conftest import VECTORS
from tilewright.hlo import explain_kernel

TEXTS = json.loads((VECTORS / "kernel_messages.json").read_text())

#: Of each text, words of its meaning, its place, and words of what to do.
EXPECTED = {
    "any": ("nothing is fetched", "args[0] of copy at kernel.py:15", "pltpu.async_copy"),
    "any_load": ("in HBM", "", "scratch buffer"),
    "block": ("multiples of 8 and 128", "args[0] of copy at kernel.py:15", "(128, 128) for instance"),
    "block_rank": ("array of shape (256, 256)", "args[0]", "pl.squeezed"),
    "buffers": ("not 3 times", "", "pl.Buffered(2)"),
    "captured": ("an array from outside of it, [f32[256,256]]", "<lambda> at kernel.py:44", "as an argument"),
    "cpu": ("was to run on a CPU", "", "interpret=True"),
    "cumsum": ("cumsum has no lowering for the core 'tc'", "", "a triangle of ones"),
    "gather": ("the device here is cpu", "", "where a TPU is"),
    "index_rank": ("block indices", "args[0], its index map <lambda> at kernel.py:46", "return 2"),
    "pid": ("dim 0 of the grid ()", "", "another axis"),
    "rank1": ("the device here is cpu", "", "blocks of two dims"),
    "scalar_store": ("written by vectors", "", "pltpu.SMEM"),
    "sem": ("another length than the grid", "", "each of the 2 dims"),
    "smem_load": ("one number at a time", "", "x[i, j]"),
    "sort": ("sort has no lowering", "", "outside of the kernel"),
    "store_shape": ("shape (128, 256) is stored where (256, 256)", "", "broadcast"),
    "udot": ("this product is of uint8", "", "signed type"),
    "umax": ("reduction over unsigned integers", "", "int32"),
    "verdict_1": ("multiples of 8 and 128", "", "the array's own"),
    "verdict_2": ("narrow types have taller tiles", "input 0", "32 rows"),
    "verdict_3": ("cumsum has no lowering", "", "a triangle"),
    "verdict_4": ("not 3 times", "", "pl.Buffered(1)"),
}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_every_message_is_known_once(name):
    meaning, where, how = EXPECTED[name]
    (error,) = explain_kernel(TEXTS[name])
    assert meaning in error.meaning
    assert error.where == where
    assert how in error.how
    assert not re.search(r"[{}]", error.meaning + error.how)


def test_a_log_of_all_with_lines_broken_and_prefixed():
    log = "\n".join(re.sub(r"(.{60}\S*) ", r"\1\n  ", text) for text in TEXTS.values())
    assert {error.meaning for error in explain_kernel(log)} == {
        error.meaning for text in TEXTS.values() for error in explain_kernel(text)
    }
    assert explain_kernel("Pallas says something new. Mosaic failed to compile TPU kernel: who knows") == ()


@pytest.mark.parametrize(
    ("block", "array", "works"),
    [
        ("(Blocked(block_size=12), Blocked(block_size=100))", "(256, 256)", "(16, 128)"),
        ("(Blocked(block_size=12), Blocked(block_size=100))", "(13, 120)", "(13, 120)"),
        ("(Blocked(block_size=2), Blocked(block_size=8), Blocked(block_size=1))", "(4, 8, 1000)", "(2, 8, 128)"),
        ("(Squeezed(), Blocked(block_size=8), Blocked(block_size=1))", "(4, 8, 1000)", None),
    ],
)
def test_a_block_shape_that_works(block, array, works):
    text = (
        TEXTS["block"].replace("(Blocked(block_size=128), Blocked(block_size=96))", block).replace("(256, 256)", array)
    )
    (error,) = explain_kernel(text)
    assert works is None or f"{works} for instance" in error.how
    assert ("for instance" in error.how) == (works is not None)


@pytest.mark.parametrize(
    ("text", "meaning", "how"),  # as users pasted them in public threads
    [
        ("Matmul operandlhs must have a shape divisible by (16, 1), but got: (8, 2048)", "(8, 2048)", "(16, 1)"),
        ("Unsupported matmul RHS type on target: vector<128x128xi8>", "no i8", "bf16"),
        ("'vector.transpose' op Padded transposes unsupported", "whole tiles", "128"),
        ("'tpu.enqueue_dma' op DMA source and target shape mismatch", "of another", "pl.ds"),
    ],
)
def test_messages_of_mosaic_as_users_paste_them(text, meaning, how):
    head = "E2001: CompileTimeMosaicUnsupportedRhsType: " if "RHS" in text else ""
    (found,) = explain_kernel(f"INTERNAL: Mosaic failed to compile TPU kernel: {head}{text}")
    assert meaning in found.meaning
    assert how in found.how
