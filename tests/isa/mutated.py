"""Programs of the generators with a few lines changed: numbers and registers replaced, lines moved, left out, added."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.isa.wild import VECTORS, vector
from tilewright.errors import ParseError
from tilewright.isa import (
    Input,
    Machine,
    MatrixUnit,
    MatrixUnitConfig,
    Op,
    Output,
    VectorSpec,
    assemble,
    conv2d,
    layer_norm,
    matmul,
    softmax,
)

NUMBERS = (0, 1, 2, 3, 7, 8, 16, 63, 255, 256, 300, 511, 4096, 2**31 - 1)
SMALL = {"threads": 8, "registers": 448, "l1_bytes": 512, "l2_bytes": 8192, "max_instructions": 2500}


def product(r: Random, config: MatrixUnitConfig) -> Any:
    m, n, k = r.randint(1, 20), r.randint(1, 12), r.randint(1, 40)
    kind = r.choice((np.int8, np.int8, np.float32, np.int16))
    how: dict[str, Any] = {"ka": r.choice((1, 1, 2)), "kb": r.choice((1, 1, 2)), "transpose_b": r.random() < 0.4}
    how["order"] = r.choice(("k_outer", "k_outer", "column_outer"))
    if how["kb"] == 1 and how["order"] == "k_outer":
        how["block_a"] = r.randint(1, 3)
    if r.random() < 0.3:
        how["segments"] = 2
    if r.random() < 0.4:
        wide, narrow = ("s32", "s8") if kind != np.float32 else ("f32", "bf16")
        body = (Op("add", (0, 1), wide), Op("convert", (2,), narrow))
        inputs = (Input("acc", wide), Input("bias", wide, "col"))
        how["epilogue"] = VectorSpec(m, n, inputs, body, (Output("y", 3, narrow),))
        how["operands"] = {"bias": np.ones((1, n), np.int32 if wide == "s32" else np.float32)}
    return matmul(np.ones((m, k), kind), np.ones((k, n), kind), config, split="columns", **how)


def convolution(r: Random, config: MatrixUnitConfig) -> Any:
    x = np.ones((1, r.randint(3, 6), r.randint(3, 6), 16), np.int8)
    w = np.ones((r.randint(1, 3), r.randint(1, 3), 16, r.randint(1, 9)), np.int8)
    how: dict[str, Any] = {"block_a": 1, "buffers": r.choice((1, 2)), "stream": config.pes == 1 and r.random() < 0.3}
    return conv2d(x, w, padding=1, stride=r.randint(1, 2), config=config, **how)


def vectors(r: Random, config: MatrixUnitConfig) -> Any:
    x = np.ones((r.randint(1, 20), r.randint(1, 30)), np.float32)
    one = np.ones(x.shape[1], np.float32)
    return softmax(x, config) if r.random() < 0.5 else layer_norm(x, one, one, config=config)


def mutated(r: Random, text: str, config: MatrixUnitConfig) -> str:
    """A program that assembles, with one to four changes."""
    for _ in range(r.randint(1, 4)):
        for _ in range(20):
            lines = text.split("\n")
            at, other = r.randrange(len(lines)), r.randrange(len(lines))
            how = r.randrange(6)
            if how == 0:
                del lines[at]
            elif how == 1:
                lines.insert(at, lines[other])
            elif how == 2:
                lines[at], lines[other] = lines[other], lines[at]
            elif how == 3:
                lines.insert(at, vector(r, config, [3, 4, 5], r.choice(VECTORS)))
            else:
                places = list(re.finditer(r"(?<![\w$])(u?rf?|p|-?)(\d+)", lines[at]))
                if not places:
                    continue
                found = r.choice(places)
                number = r.choice((*NUMBERS, int(found[2]) + 1, max(0, int(found[2]) - 1)))
                lines[at] = f"{lines[at][: found.start(2)]}{number}{lines[at][found.end(2) :]}"
            try:
                assemble("\n".join(lines), config)
            except ParseError:
                continue
            text = "\n".join(lines)
            break
    return text


def run_mutated(seed: int) -> tuple[MatrixUnitConfig, Callable[[], Any]]:
    """A machine, and a call that runs a changed program on it (the same every time)."""
    r = Random(seed)
    config = MatrixUnitConfig(
        **SMALL,
        pes=r.choice((1, 1, 2)),
        retention=r.choice(("bypass", "evict", "off")),
        l1_ways=r.choice((0, 1)),
        dram=r.choice(("flat", "hbm2")),
        dram_bytes_per_cycle=r.choice((1, 32)),
        arbitration=r.choice(("round_robin", "slots")),
    )
    kernel = r.choice((product, product, convolution, vectors))
    again = r.getrandbits(32)

    def call() -> Any:
        own = Random(again)
        start, run = Machine.start, MatrixUnit.run

        def changed(program: Any) -> str:
            return mutated(own, str(program), config)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Machine, "start", lambda self, program, *a, **k: start(self, changed(program), *a, **k))
            patch.setattr(MatrixUnit, "run", lambda self, program, *a, **k: run(self, changed(program), *a, **k))
            return kernel(own, config)

    return config, call
