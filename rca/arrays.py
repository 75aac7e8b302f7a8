"""Array types that all packages share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
#: Times of operations, as trace files store them.
Seconds32 = npt.NDArray[np.float32]
