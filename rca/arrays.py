"""The kinds of arrays that the product passes around, named once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
#: Operations' times as trace files keep them.
Seconds32 = npt.NDArray[np.float32]
