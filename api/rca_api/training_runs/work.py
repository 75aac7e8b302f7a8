"""The work of a run: train, compare with the champion and register; or compare a version and promote it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rca.errors import SourceError
from rca.lab.training.data_facts import tested_on
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.promotion import (
    Judgement,
    describe_run,
    facts_of,
    has_passed,
    judge,
    keep_judgement,
    pass_judged,
)
from rca.lab.training.registration import withdraw_unfinished
from rca.lab.training.registry import CHAMPION, ORDER, RegisteredVersion, Registry
from rca.lab.training.run import RECORDING, Trained, fit
from rca.lab.training.run_record import record
from rca.workers import Workers
from rca_api.models.registry_process import gate_of, scores_of
from rca_api.training_runs.task import Task

_FIRST_WAIT_SECONDS, _MAX_WAIT_SECONDS = 1.0, 60.0
WAITING = "waiting for the registry"
Result = TypeVar("Result")


class Reporter(Protocol):
    """Receiver of progress."""

    def progress(self, phase: str, completed: int, total: int) -> None:
        """Report how far a phase is."""

    def may_write(self) -> None:
        """Return when the registry may be written to; never, if the run is lost or cancelled."""


def work(task: Task, reporter: Reporter) -> dict[str, Any]:
    """Do a task; steps that an earlier attempt has finished are not repeated.

    Returns
    -------
    dict
        The run's result.

    Raises
    ------
    RcaError
        If it cannot be done.
    """
    with Workers(task.processes, task.scheduler) as workers:
        return (_train if task.kind == "train" else _promote)(task, reporter, workers)


def _train(task: Task, reporter: Reporter, workers: Workers) -> dict[str, Any]:
    registry = Registry(task.tracking_uri)
    found = retry_while_away(task, reporter, lambda: _registered_before(task, reporter, registry))
    if found is None:
        trained = fit(
            task.folder / "bundle",
            n_windows=task.windows,
            seed=task.seed,
            collections=list(task.collections.values()),
            workers=workers,
            cache=FeatureCache(task.cache),
            progress=reporter.progress,
        )
        judged = retry_while_away(
            task,
            reporter,
            lambda: _judged(
                task, reporter, registry, workers, lambda: trained.bundle, dict(trained.card.facts)
            ),
        )
        found = retry_while_away(task, reporter, lambda: _recorded(task, reporter, registry, trained, judged))
    if task.auto_promote:
        found = _promoted(task, reporter, registry, found)
    return _result(task, reporter, registry, found)


def _registered_before(task: Task, reporter: Reporter, registry: Registry) -> RegisteredVersion | None:
    """The version that an earlier attempt registered before it was killed."""
    found = registry.ordered(task.id)
    if found is None:
        return None
    reporter.may_write()
    withdraw_unfinished(registry, task.id)
    return registry.get(str(found.number))


def _promote(task: Task, reporter: Reporter, workers: Workers) -> dict[str, Any]:
    registry = Registry(task.tracking_uri)
    found = retry_while_away(task, reporter, lambda: registry.get(task.version))
    if CHAMPION not in found.aliases:
        facts = retry_while_away(task, reporter, lambda: facts_of(registry, found))
        fetched = task.folder / "fetched"
        judged = retry_while_away(
            task,
            reporter,
            lambda: _judged(task, reporter, registry, workers, lambda: registry.fetch(found, fetched), facts),
        )
        found = retry_while_away(task, reporter, lambda: _kept(reporter, registry, found, judged))
        found = _promoted(task, reporter, registry, found)
    return _result(task, reporter, registry, found)


def _judged(
    task: Task,
    reporter: Reporter,
    registry: Registry,
    workers: Workers,
    bundle: Callable[[], Path],
    facts: dict[str, Any],
) -> Judgement:
    return judge(
        registry,
        bundle,
        facts,
        collections=_gate_collections(task, registry, facts),
        n_windows=task.gate_windows,
        workers=workers,
        progress=reporter.progress,
    )


def _gate_collections(task: Task, registry: Registry, facts: dict[str, Any]) -> Sequence[Path]:
    """Collections that the version or the champion was tested on; the gate refuses if one is missing."""
    champion = registry.find(CHAMPION)
    names = set(task.collections) | tested_on(facts)
    names |= tested_on(facts_of(registry, champion)) if champion is not None else set()
    return [folder for name, folder in sorted((task.available | task.collections).items()) if name in names]


def _recorded(
    task: Task, reporter: Reporter, registry: Registry, trained: Trained, judged: Judgement
) -> RegisteredVersion:
    reporter.progress(RECORDING, 0, 0)
    reporter.may_write()
    tags = {key: value for key, value in judged.tags().items() if value}
    _, number = record(
        task.tracking_uri,
        trained.bundle,
        trained.card,
        trained.parameters,
        registered=True,
        tags={ORDER: task.id, **tags},
        documents={judged.file: judged.to_document()},
    )
    found = registry.get(str(number))
    describe_run(registry, found, judged)
    return found


def _kept(
    reporter: Reporter, registry: Registry, found: RegisteredVersion, judged: Judgement
) -> RegisteredVersion:
    reporter.may_write()
    keep_judgement(registry, found, judged)
    return registry.get(str(found.number))


def _promoted(
    task: Task, reporter: Reporter, registry: Registry, found: RegisteredVersion
) -> RegisteredVersion:
    """Promote a version if its stored verdict allows it."""

    def attempt() -> RegisteredVersion:
        now = registry.get(str(found.number))
        if CHAMPION in now.aliases or not has_passed(now, registry.find(CHAMPION)):
            return now
        reporter.may_write()
        pass_judged(registry, now, by=f"training run {task.id}")
        return registry.get(str(now.number))

    return retry_while_away(task, reporter, attempt)


def _result(task: Task, reporter: Reporter, registry: Registry, found: RegisteredVersion) -> dict[str, Any]:
    (scored,) = retry_while_away(task, reporter, lambda: registry.with_scores([found]))
    return {
        "mlflow_run_id": found.run_id,
        "version": found.number,
        "sha256": found.sha256,
        "scores": scores_of(scored.scores),
        "gate": gate_of(found.tags),
        "promoted": CHAMPION in found.aliases,
    }


def retry_while_away(
    task: Task,
    reporter: Reporter,
    attempt: Callable[[], Result],
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Retry while the registry is away; any answer of it, even a refusal, ends the retries.

    Raises
    ------
    SourceError
        If the registry was away for ``task.patience_seconds``.
    """
    waited, pause = 0.0, _FIRST_WAIT_SECONDS
    while True:
        try:
            return attempt()
        except SourceError as error:
            if waited >= task.patience_seconds:
                raise SourceError(
                    f"the registry could not be used for {waited:.0f} s: {error.message}", hint=error.hint
                ) from error
        reporter.progress(WAITING, 0, 0)
        sleep(pause)
        waited, pause = waited + pause, min(2 * pause, _MAX_WAIT_SECONDS)
