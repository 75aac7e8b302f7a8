"""LightGBM inference through its C library, without importing the `lightgbm` package.

``import lightgbm`` pulls scikit-learn and pandas in where they are installed: 3 s of a 2 s cold start. The
shared library inside the same wheel has a documented, stable C interface that needs neither.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rca.arrays import FloatArray
from rca.errors import BundleError

_FLOAT64 = 1  # C_API_DTYPE_FLOAT64
_PREDICT_RAW = 1
_PREDICT_CONTRIBUTIONS = 3
# Marks in LightGBM's text format.
_TREE_SIZES = "tree_sizes="
_END = "end of trees"


_SILENCE = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda _message: None)


class Booster:
    """A trained LightGBM model, ready to predict.

    Parameters
    ----------
    text : str
        The model in LightGBM's own text format.
    threads : int
        OpenMP threads per call; 1 is fastest for the few rows of a window.
    """

    def __init__(self, text: str, *, threads: int = 1) -> None:
        self._text, self._spans = text, _tree_spans(text)
        self._of_class: dict[int, Booster] = {}
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
        return Booster, (self._text,)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle:
            self._library.LGBM_BoosterFree(handle)

    def raw(self, rows: FloatArray) -> FloatArray:
        """Raw scores (log-odds) of shape (n_rows, n_classes); n_classes is 1 for a binary model."""
        return self._predict(rows, _PREDICT_RAW, (rows.shape[0], self.n_classes))

    def contributions(self, rows: FloatArray, classes: Sequence[int]) -> FloatArray:
        """What every feature adds to some raw scores: exact Shapley values over the trees' paths.

        Parameters
        ----------
        rows : ndarray of shape (n_rows, n_features)
        classes : sequence of int
            Columns of `raw` to explain.

        Returns
        -------
        ndarray of shape (n_rows, len(classes), n_features + 1), log-odds
            The last column is the expected score. The columns of a row and class add up to its raw score.
            Costs a hundred times as much as `raw`, so it is for the few rows and classes that are shown.

        References
        ----------
        Lundberg et al., "From local explanations to global understanding with explainable AI for trees",
        Nature Machine Intelligence 2 (2020).
        """
        shape = (rows.shape[0], self.n_features + 1)
        parts = [self._trees_of(each)._predict(rows, _PREDICT_CONTRIBUTIONS, shape) for each in classes]
        return np.stack(parts, axis=1)

    def _trees_of(self, number: int) -> Booster:
        """The trees of one class as a model of its own: LightGBM explains all classes or none."""
        if self.n_classes == 1:
            return self
        if number not in self._of_class:
            self._of_class[number] = Booster(_one_class(self._text, self._spans[number :: self.n_classes]))
        return self._of_class[number]

    def _predict(self, rows: FloatArray, kind: int, shape: tuple[int, ...]) -> FloatArray:
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise ValueError(f"expected {self.n_features} columns, got shape {rows.shape}")
        data = np.ascontiguousarray(rows, dtype=np.float64)
        out = np.empty(shape)
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
            ctypes.c_int(kind),
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


def _tree_spans(text: str) -> list[slice]:
    """The span of every tree in the text. A damaged model is refused here; LightGBM would end the process.

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
    spans = []
    for number, width in enumerate(widths):
        if not text.startswith(f"Tree={number}\n", position):
            raise BundleError(f"the LightGBM model is damaged before tree {number}")
        spans.append(slice(position, position + width))
        position += width
    if not text.startswith(_END, position):
        raise BundleError("the LightGBM model is damaged or cut off")
    return spans


def _one_class(text: str, spans: Sequence[slice]) -> str:
    """A model with the score of one class only, given the spans of its trees.

    The text lists one tree per class and boosting round.
    """
    chosen = [
        f"Tree={position}" + text[text.index("\n", span.start) : span.stop]
        for position, span in enumerate(spans)
    ]
    only = {
        "num_class=": "1",
        "num_tree_per_iteration=": "1",
        # The model only computes contributions, which no objective transforms.
        "objective=": "regression",
        _TREE_SIZES: " ".join(str(len(block)) for block in chosen),
    }
    header, _, _ = text.partition("\n\n")
    lines = [
        next((start + value for start, value in only.items() if line.startswith(start)), line)
        for line in header.splitlines()
    ]
    return "\n".join(lines) + "\n\n" + "".join(chosen) + text[text.index(f"\n{_END}") + 1 :]


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
