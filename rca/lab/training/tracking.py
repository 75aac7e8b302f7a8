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
from urllib.parse import unquote, urlsplit

from rca.errors import MissingExtra, SourceError
from rca.files import data_folder
from rca.lab.training.store_file import complete_file, store_file

EXPERIMENT = "straggler-rca"
#: Largest length of a data set's digest in MLflow; the whole digests are in ``data.json`` and in the tags.
_DIGEST_LENGTH = 32
_REMARKS = ("Any type hint is inferred as AnyType", "An input example was not provided")


def default_uri() -> str:
    """URI of the store where none is given: a file in the user's data folder, which the service uses too."""
    return f"sqlite:///{data_folder() / 'mlflow.db'}"


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
    # Standard error has lines of JSON in the service.
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
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
def open_store(uri: str) -> Iterator[None]:
    """Make the file of a SQLite store complete, then turn errors about the store into `SourceError`.

    They do not hold the URI, which may hold a password.
    """
    mlflow = import_mlflow()
    if not is_uri(uri):
        raise SourceError("the URI of the MLflow store cannot be read")
    file = store_file(uri)
    try:
        if file is not None:
            complete_file(file)
        yield
    except mlflow.exceptions.MlflowException as error:
        lines = _without_secrets(str(error.message), uri).strip().splitlines()
        reason = lines[0] if lines else "MLflow gives no reason"
        raise SourceError(f"the MLflow store cannot be used: {reason}") from error
    except _driver_errors() as error:
        raise SourceError(f"the MLflow store cannot be used: {type(error).__name__}") from error


def is_uri(text: str) -> bool:
    """Whether a URI has parts that libraries can read; they show the others in their errors."""
    try:
        return urlsplit(text).port != 0
    except ValueError:
        return False


def _driver_errors() -> tuple[type[Exception], ...]:
    """Errors of a database, of its missing driver, and of the system, which MLflow does not translate."""
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        return OSError, ImportError
    return OSError, ImportError, SQLAlchemyError


def _without_secrets(text: str, uri: str) -> str:
    """Replace the URI of the store, its password and its parameters."""
    rest = uri.partition("://")[2]
    password = rest.rpartition("@")[0].partition(":")[2]
    for part in (uri, uri.rstrip("/"), password, unquote(password), rest.partition("?")[2]):
        text = text.replace(part, "***") if part else text
    return text


def check_store(uri: str) -> None:
    """Send a small query to the store.

    Raises
    ------
    MissingExtra
        If MLflow is not installed.
    SourceError
        If the store does not answer, or if MLflow does not know the kind of URI.
    """
    with open_store(uri):
        import_mlflow().MlflowClient(tracking_uri=uri, registry_uri=uri).search_experiments(max_results=1)


def log_run(
    uri: str,
    *,
    name: str,
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
    name : str
        Of the run, in lists.
    facts : mapping
        As of `rca.lab.training.data_facts.data_facts`; each source becomes a data set with its digest.
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
    with open_store(uri):
        mlflow.set_tracking_uri(uri)
        if mlflow.get_experiment_by_name(EXPERIMENT) is None:
            _create_experiment(mlflow, uri)
        mlflow.set_experiment(EXPERIMENT)
        with mlflow.start_run(run_name=name, tags=dict(tags or {})) as run:
            mlflow.log_params(dict(parameters))
            mlflow.log_metrics(dict(metrics))
            mlflow.set_tag("dataset.sha256", facts["corpus_sha256"])
            _log_inputs(mlflow, facts)
            for file, document in documents.items():
                mlflow.log_dict(document, file)
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
    file = store_file(uri)
    location = None if file is None else (file.resolve().parent / "mlartifacts").as_uri()
    mlflow.create_experiment(EXPERIMENT, artifact_location=location)
