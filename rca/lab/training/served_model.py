"""The bundle as an MLflow model: a table of windows in, a table of diagnoses out.

MLflow stores the bundle's own files (LightGBM text and JSON) and the name of this module. There is no pickle
and no code in the store. The manifest of the bundle is verified when it is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rca.diagnosis import Bundle, Diagnosis, diagnose
from rca.sources.read import read_window

if TYPE_CHECKING:
    import pandas as pd

    from rca.diagnosis.result import Cause

INPUT = "window"
#: Column -> MLflow type.
OUTPUTS = {
    "failure_mode": "string",
    "probability": "double",
    "abstained": "boolean",
    "cause": "string",
    "ranks": "string",
    "seconds_per_step": "double",
    "diagnosis": "string",
}


class ServedBundle:
    """The model that `mlflow.pyfunc.load_model` wraps."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Diagnose every row's window.

        Parameters
        ----------
        model_input : DataFrame of shape (n_windows, 1)
            Column ``window``: the path of a window, or a whole window as JSON text.
        params : dict, optional
            None are known.

        Returns
        -------
        DataFrame of shape (n_windows, n_outputs)
            Columns `OUTPUTS`. `cause`, `ranks` and `seconds_per_step` are of the first cause, or "" and 0
            without a cause. Unknown seconds are NaN. `diagnosis` is the whole answer as JSON.
        """
        import pandas as pd

        del params
        rows = [_row(diagnose(_window(text), bundle=self.bundle)) for text in model_input[INPUT]]
        return pd.DataFrame(rows, columns=list(OUTPUTS))


def _window(text: str) -> Any:
    return read_window(text.encode() if text.lstrip().startswith("{") else text)


def _row(diagnosis: Diagnosis) -> dict[str, Any]:
    first = diagnosis.causes[0] if diagnosis.causes else None
    return {
        "failure_mode": diagnosis.failure_mode,
        "probability": diagnosis.failure_mode_probability[diagnosis.failure_mode],
        "abstained": diagnosis.abstained,
        "cause": "" if first is None else first.cause,
        "ranks": "" if first is None else ",".join(map(str, first.ranks)),
        "seconds_per_step": _seconds(first),
        "diagnosis": diagnosis.to_json(),
    }


def _seconds(first: Cause | None) -> float:
    """Seconds per step of the first cause: 0 without one, NaN if they are unknown."""
    if first is None:
        return 0.0
    return float("nan") if first.seconds_per_step is None else first.seconds_per_step


def _load_pyfunc(path: str) -> ServedBundle:
    """Load a logged bundle; MLflow calls it by this name."""
    from mlflow.store.artifact.models_artifact_repo import REGISTERED_MODEL_META_FILE_NAME

    bundle = Bundle.load(path)
    registered = Path(path).parent.parent / REGISTERED_MODEL_META_FILE_NAME
    if registered.is_file():
        bundle = bundle.registered_as(int(yaml.safe_load(registered.read_bytes())["model_version"]))
    return ServedBundle(bundle)
