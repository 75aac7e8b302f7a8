"""MLflow tracking of a training run: parameters, metrics with intervals, data set digest, bundle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rca.errors import MissingExtra

#: Where runs go unless a tracking URI is given: one file, no server.
DEFAULT_URI = "sqlite:///mlflow.db"
EXPERIMENT = "straggler-rca"


def log_run(
    uri: str,
    *,
    parameters: dict[str, Any],
    metrics: dict[str, float],
    digest: str,
    bundle: Path,
    documents: dict[str, Any],
) -> str:
    """Log one finished training run; return its MLflow run id.

    Parameters
    ----------
    uri : str
        MLflow tracking URI.
    parameters, metrics : dict
    digest : str
        SHA-256 of the training data; logged as the data set's digest.
    bundle : Path
        Folder, logged as the artifact ``bundle``.
    documents : dict of str to JSON-serialisable
        Reports, logged as artifacts under their names.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtra(
            "tracking a run needs MLflow", hint="pip install 'straggler-rca[train]'"
        ) from error
    mlflow.set_tracking_uri(uri)
    if mlflow.get_experiment_by_name(EXPERIMENT) is None:
        _create_experiment(mlflow, uri)
    mlflow.set_experiment(EXPERIMENT)
    with mlflow.start_run() as run:
        mlflow.log_params(parameters)
        mlflow.log_metrics(metrics)
        mlflow.set_tag("dataset.sha256", digest)
        for name, document in documents.items():
            mlflow.log_dict(document, name)
        mlflow.log_artifacts(str(bundle), "bundle")
        run_id: str = run.info.run_id
    return run_id


def _create_experiment(mlflow: Any, uri: str) -> None:
    """Keep artifacts beside a local store, wherever the command was started."""
    location = None
    if uri.startswith("sqlite:///"):
        store = Path(uri.removeprefix("sqlite:///")).resolve()
        store.parent.mkdir(parents=True, exist_ok=True)
        location = (store.parent / "mlartifacts").as_uri()
    mlflow.create_experiment(EXPERIMENT, artifact_location=location)
