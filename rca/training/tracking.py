"""MLflow tracking of a training run: parameters, metrics with intervals, data sets, bundle, reports."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from rca.errors import MissingExtra, SourceError

#: Default tracking URI: one file, no server.
DEFAULT_URI = "sqlite:///mlflow.db"
EXPERIMENT = "straggler-rca"
SQLITE = "sqlite:///"
#: Largest length of a data set's digest in MLflow; the whole digests are in ``data.json`` and in the tags.
_DIGEST_LENGTH = 32
_REMARKS = ("Any type hint is inferred as AnyType", "An input example was not provided")


def import_mlflow() -> Any:
    """MLflow without its telemetry.

    Raises
    ------
    MissingExtra
        If it is not installed.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    # Otherwise MLflow copies the lock file of the current folder's project into every model.
    os.environ.setdefault("MLFLOW_UV_AUTO_DETECT", "false")
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtra(
            "tracking runs and versions needs MLflow", hint="pip install 'straggler-rca[train]'"
        ) from error
    return mlflow


def import_pyfunc() -> Any:
    """MLflow with its generic model flavour."""
    mlflow = import_mlflow()
    with without_remarks():
        import_module("mlflow.pyfunc")
    return mlflow


@contextmanager
def without_remarks() -> Iterator[None]:
    """Suppress MLflow's warnings about type hints and input examples."""
    with warnings.catch_warnings():
        for text in _REMARKS:
            warnings.filterwarnings("ignore", message=f".*{text}", category=UserWarning)
        yield


@contextmanager
def store_errors(uri: str) -> Iterator[None]:
    """Turn MLflow's errors about its store into `SourceError`."""
    mlflow = import_mlflow()
    try:
        yield
    except mlflow.exceptions.MlflowException as error:
        text = str(error.message).splitlines()
        raise SourceError(f"MLflow at {uri}: {text[0] if text else error!r}") from error


def check_store(uri: str) -> None:
    """Send a small query to the store.

    Raises
    ------
    MissingExtra
        If MLflow is not installed.
    SourceError
        If the store does not answer, or if MLflow does not know the kind of URI.
    """
    with store_errors(uri):
        import_mlflow().MlflowClient(tracking_uri=uri, registry_uri=uri).search_experiments(max_results=1)


def log_run(
    uri: str,
    *,
    parameters: Mapping[str, Any],
    metrics: Mapping[str, float],
    facts: Mapping[str, Any],
    bundle: Path,
    documents: Mapping[str, Any],
    artifacts: Path | None = None,
    tags: Mapping[str, str] | None = None,
) -> str:
    """Log one finished training run; return its MLflow run id.

    Parameters
    ----------
    uri : str
        MLflow tracking URI.
    parameters, metrics : mapping
    facts : mapping
        As of `rca.training.data_facts.data_facts`; each source becomes a data set with its digest.
    bundle : Path
        Folder, logged as the artifact ``bundle``.
    documents : mapping of str to JSON-serialisable
        Reports, logged as artifacts under their names.
    artifacts : Path, optional
        Folder whose content is logged as it is.
    tags : mapping of str to str, optional
        Set when the run starts.
    """
    mlflow = import_mlflow()
    with store_errors(uri):
        mlflow.set_tracking_uri(uri)
        if mlflow.get_experiment_by_name(EXPERIMENT) is None:
            _create_experiment(mlflow, uri)
        mlflow.set_experiment(EXPERIMENT)
        with mlflow.start_run(tags=dict(tags or {})) as run:
            mlflow.log_params(dict(parameters))
            mlflow.log_metrics(dict(metrics))
            mlflow.set_tag("dataset.sha256", facts["corpus_sha256"])
            _log_inputs(mlflow, facts)
            for name, document in documents.items():
                mlflow.log_dict(document, name)
            mlflow.log_artifacts(str(bundle), "bundle")
            if artifacts is not None:
                mlflow.log_artifacts(str(artifacts))
            run_id: str = run.info.run_id
    return run_id


def _log_inputs(mlflow: Any, facts: Mapping[str, Any]) -> None:
    from mlflow.data.code_dataset_source import CodeDatasetSource
    from mlflow.data.meta_dataset import MetaDataset

    # MLflow's annotations declare the class abstract.
    dataset: Any = MetaDataset
    simulated = facts["simulated"]
    generated = {"generator": "rca simulate", "windows": simulated["windows"], "seed": simulated["seed"]}
    sources = [("simulated", facts["corpus_sha256"], generated)]
    sources += [(name, each["sha256"], each["parts"]) for name, each in facts["collections"].items()]
    for name, digest, described_by in sources:
        source = CodeDatasetSource({key: str(value) for key, value in described_by.items()})
        described = dataset(source, name=name, digest=digest[:_DIGEST_LENGTH])
        mlflow.log_input(described, context="training and test")


def metric_name(text: str) -> str:
    """Text with the characters that MLflow allows in the name of a metric or a folder."""
    return re.sub(r"[^\w.-]+", "-", text.replace("@", "_at_"))


def _create_experiment(mlflow: Any, uri: str) -> None:
    """Create the experiment; a local store has its artifacts in its own folder."""
    location = None
    if uri.startswith(SQLITE):
        store = Path(uri.removeprefix(SQLITE)).resolve()
        store.parent.mkdir(parents=True, exist_ok=True)
        location = (store.parent / "mlartifacts").as_uri()
    mlflow.create_experiment(EXPERIMENT, artifact_location=location)
