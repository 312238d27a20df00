"""Draw docs/pictures/matrix-unit-heat.svg, the L1 misses of a product: ./run python docs/draw_matrix_heat.py.

The product is the one that matrix_unit_tools.md profiles; a test keeps the file true.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tilewright.isa import MatrixUnitConfig, matmul, profile

PICTURE = Path(__file__).with_name("pictures") / "matrix-unit-heat.svg"


def drawing() -> str:
    """The picture, as the file has it."""
    config = MatrixUnitConfig(threads=16, l1_bytes=1024)
    tensors = {"A": np.ones((32, 24), np.int8), "B": np.ones((24, 200), np.int8), "C": np.zeros((32, 200), np.int32)}
    program = matmul(tensors["A"], tensors["B"], config=config, transpose_b=True).program
    return profile(program, tensors, config).heat("B").to_svg("misses") + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
