"""Registers the bundle of a run as a version that MLflow can load: the bundle's files, no pickle, no code."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rca.lab.training.registry import CHALLENGER, MODEL, ORDER, RegisteredVersion, Registry
from rca.lab.training.served_model import INPUT, OUTPUTS
from rca.lab.training.tracking import EXPERIMENT, import_pyfunc, open_store, without_remarks


def register(registry: Registry, run_id: str, bundle: Path, tags: Mapping[str, str], description: str) -> int:
    """Log a bundle to its run as a model, register it, make it the challenger.

    Parameters
    ----------
    run_id : str
        The training run that made it.
    tags : mapping of str to str
        `rca.lab.training.registry.SHA256` among them.

    Returns
    -------
    int
        Number of the version.
    """
    mlflow = import_pyfunc()
    with open_store(registry.uri):
        mlflow.set_tracking_uri(registry.uri)
        with mlflow.start_run(run_id=run_id), without_remarks():
            logged = mlflow.pyfunc.log_model(
                name="model",
                loader_module="rca.lab.training.served_model",
                data_path=str(bundle.resolve()),
                signature=_signature(),
                pip_requirements=[f"straggler-rca[train]=={version('straggler-rca')}"],
            )
        client = registry.client()
        if not client.search_registered_models(f"name = '{MODEL}'"):
            client.create_registered_model(MODEL, description="Bundles for `rca diagnose --bundle`.")
        made = client.create_model_version(
            MODEL,
            logged.model_uri,
            run_id=run_id,
            model_id=logged.model_id,
            tags=dict(tags),
            description=description,
        )
        client.set_registered_model_alias(MODEL, CHALLENGER, made.version)
    return int(made.version)


def withdraw_unfinished(registry: Registry, order: str) -> RegisteredVersion | None:
    """Clean up after a process that was killed while it recorded an order.

    Returns
    -------
    RegisteredVersion or None
        The order's version, if the kill came after it was registered. Otherwise there is none, and what was
        logged of runs is deleted (MLflow keeps deleted runs restorable).
    """
    found = registry.ordered(order)
    with open_store(registry.uri):
        client = registry.client()
        if found is not None:
            if not found.aliases and found.number == registry.versions()[0].number:
                client.set_registered_model_alias(MODEL, CHALLENGER, str(found.number))
            return found
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is not None:
            for run in client.search_runs([experiment.experiment_id], f"tags.`{ORDER}` = '{order}'"):
                client.delete_run(run.info.run_id)
    return None


def _signature() -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    return ModelSignature(
        inputs=Schema([ColSpec("string", INPUT)]),
        outputs=Schema([ColSpec(kind, name) for name, kind in OUTPUTS.items()]),
    )
