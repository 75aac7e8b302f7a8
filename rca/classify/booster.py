"""LightGBM inference through its C library, without importing the `lightgbm` package.

``import lightgbm`` pulls scikit-learn and pandas in where they are installed: 3 s of a 2 s cold start. The
shared library inside the same wheel has a documented, stable C interface that needs neither.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rca.arrays import FloatArray
from rca.errors import BundleError

_FLOAT64 = 1  # C_API_DTYPE_FLOAT64
_PREDICT_RAW = 1
# Marks in LightGBM's text format.
_TREE_SIZES = "tree_sizes="
_END = "end of trees"


_SILENCE = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda _message: None)


class Booster:
    """A trained LightGBM model, ready to predict.

    Parameters
    ----------
    text : str
        The model in LightGBM's own text format; also an attribute.
    threads : int
        OpenMP threads per call; 1 is fastest for the few rows of a window.
    """

    def __init__(self, text: str, *, threads: int = 1) -> None:
        _refuse_damaged(text)
        self.text = text
        self._library = _library()
        self._handle = ctypes.c_void_p()
        self._parameters = f"num_threads={threads} predict_disable_shape_check=false".encode()
        iterations = ctypes.c_int(0)
        self._call(
            "LGBM_BoosterLoadModelFromString",
            text.encode(),
            ctypes.byref(iterations),
            ctypes.byref(self._handle),
        )
        classes, features = ctypes.c_int(0), ctypes.c_int(0)
        self._call("LGBM_BoosterGetNumClasses", self._handle, ctypes.byref(classes))
        self._call("LGBM_BoosterGetNumFeature", self._handle, ctypes.byref(features))
        self.n_classes = classes.value
        self.n_features = features.value

    def __reduce__(self) -> tuple[type[Booster], tuple[str]]:
        # The handle is of this process; workers that get a bundle load the text again.
        return Booster, (self.text,)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle:
            self._library.LGBM_BoosterFree(handle)

    def raw(self, rows: FloatArray) -> FloatArray:
        """Raw scores (log-odds) of shape (n_rows, n_classes); n_classes is 1 for a binary model."""
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise ValueError(f"expected {self.n_features} columns, got shape {rows.shape}")
        data = np.ascontiguousarray(rows, dtype=np.float64)
        out = np.empty((rows.shape[0], self.n_classes))
        if data.shape[0] == 0:
            return out
        written = ctypes.c_int64(0)
        self._call(
            "LGBM_BoosterPredictForMat",
            self._handle,
            data.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int(_FLOAT64),
            ctypes.c_int32(data.shape[0]),
            ctypes.c_int32(data.shape[1]),
            ctypes.c_int(1),
            ctypes.c_int(_PREDICT_RAW),
            ctypes.c_int(0),
            ctypes.c_int(-1),
            ctypes.c_char_p(self._parameters),
            ctypes.byref(written),
            out.ctypes.data_as(ctypes.POINTER(ctypes.c_double)),
        )
        if written.value != out.size:
            raise BundleError(f"the model returned {written.value} values, expected {out.size}")
        return out

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, name)(*arguments) != 0:
            raise BundleError(f"LightGBM: {self._library.LGBM_GetLastError().decode(errors='replace')}")


def _refuse_damaged(text: str) -> None:
    """Refuse a damaged model, which would end the process within LightGBM.

    The header lists the size of every tree's block; each must begin where the one before it ends.
    """
    header, _, _ = text.partition("\n\n")
    sizes = [line for line in header.splitlines() if line.startswith(_TREE_SIZES)]
    if not header.startswith("tree\n") or len(sizes) != 1:
        raise BundleError("not a LightGBM model: its header is damaged")
    position = text.find("Tree=0\n")
    try:
        widths = [int(size) for size in sizes[0].removeprefix(_TREE_SIZES).split()]
    except ValueError as error:
        raise BundleError("not a LightGBM model: its list of tree sizes is damaged") from error
    for number, width in enumerate(widths):
        if not text.startswith(f"Tree={number}\n", position):
            raise BundleError(f"the LightGBM model is damaged before tree {number}")
        position += width
    if not text.startswith(_END, position):
        raise BundleError("the LightGBM model is damaged or cut off")


@cache
def _library() -> ctypes.CDLL:
    spec = importlib.util.find_spec("lightgbm")
    if spec is None or not spec.submodule_search_locations:
        raise BundleError("lightgbm is not installed", hint="pip install lightgbm")
    names = ("lib_lightgbm.so", "lib_lightgbm.dylib", "lib_lightgbm.dll")
    for place in spec.submodule_search_locations:
        for folder in (Path(place) / "lib", Path(place) / "bin", Path(place)):
            for name in names:
                if (folder / name).is_file():
                    library = ctypes.CDLL(os.fspath(folder / name))
                    library.LGBM_GetLastError.restype = ctypes.c_char_p
                    # Its messages would go to standard output, into the middle of a JSON answer.
                    library.LGBM_RegisterLogCallback(_SILENCE)
                    return library
    raise BundleError("LightGBM's shared library was not found inside the lightgbm package")
