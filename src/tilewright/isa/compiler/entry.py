"""``isa.compile``: nothing of it is imported before it is called."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

from tilewright.isa.language.config import MatrixUnitConfig

if TYPE_CHECKING:
    from tilewright.isa.compiler.bundle import Bundle
    from tilewright.isa.compiler.compiled import Compiled


def compile(program_or_fn: Any, *args: Any, config: MatrixUnitConfig | None = None) -> Compiled:
    """A JAX function (traced on ``args``), a :class:`tilewright.hlo.Program` or StableHLO text for this machine.

    Products and convolutions become programs of ``mm``, work on elements vector programs, what only moves elements
    copies where memory has another order. What the machine has no program for is left to XLA, and says why in
    ``layers[i].fallback``. ``args`` are arrays or ``jax.ShapeDtypeStruct``. ``config``: the machine; without one, one
    with ``kb_mode="chunk"``, where threads that share a dot product take a chunk of A each.

    >>> import numpy as np
    >>> x = np.ones((2, 3), np.float32)
    >>> compile(lambda x, y: x @ y.T, x, x).run(x, x)[0].tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    from tilewright.isa.compiler.compiled import compiled

    return compiled(program_or_fn, args, config)


def is_bundle(path: str) -> bool:
    """Whether a file looks like a model that :meth:`Compiled.save` wrote."""
    return path != "-" and zipfile.is_zipfile(path)


def load_bundle(path: str) -> Bundle:
    """A compiled model that :meth:`Compiled.save` wrote; ``.run()`` runs it with the arguments it was saved with."""
    from tilewright.isa.compiler.bundle import load_bundle

    return load_bundle(path)
