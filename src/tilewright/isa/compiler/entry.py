"""``isa.compile``: nothing of it is imported before it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.isa.language.config import MatrixUnitConfig

if TYPE_CHECKING:
    from tilewright.isa.compiler.compiled import Compiled


def compile(program_or_fn: Any, *args: Any, config: MatrixUnitConfig | None = None) -> Compiled:
    """A JAX function (traced on ``args``), a :class:`tilewright.hlo.Program` or StableHLO text for this machine.

    Products and convolutions become programs of ``mm``, work on elements vector programs, what only moves elements
    copies where memory has another order. What the machine has no program for is left to XLA, and says why in
    ``layers[i].fallback``. ``args`` are arrays or ``jax.ShapeDtypeStruct``.

    >>> import numpy as np
    >>> x = np.ones((2, 3), np.float32)
    >>> compile(lambda x, y: x @ y.T, x, x).run(x, x)[0].tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    from tilewright.isa.compiler.compiled import compiled

    return compiled(program_or_fn, args, config)
