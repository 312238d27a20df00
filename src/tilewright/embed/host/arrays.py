"""What the host side works in: array types."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Keys: TypeAlias = NDArray[np.uint64]
Mask: TypeAlias = NDArray[np.bool_]
Ids: TypeAlias = Ints | Longs
"""Ids as given: either width is read without a copy."""
Entries: TypeAlias = tuple[Ints, Ints, Floats]
"""Embedding ids (local rows), sample ids, gains."""
Index: TypeAlias = int | np.int64
"""A number inside a kernel."""
