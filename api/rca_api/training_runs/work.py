"""The work of a run: train, compare with the champion and register; or compare a version and promote it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
        run = _Run(task, reporter, workers, Registry(task.tracking_uri))
        return run.result(run.trained() if task.kind == "train" else run.compared())


@dataclass(frozen=True)
class _Run:
    """The steps of a run; each is repeated while the registry is away."""

    task: Task
    reporter: Reporter
    workers: Workers
    registry: Registry

    def trained(self) -> RegisteredVersion:
        """Train and register a version, and promote it if the setting and its verdict allow it."""
        found = self._retried(self._registered_before)
        if found is None:
            trained = fit(
                self.task.folder / "bundle",
                n_windows=self.task.windows,
                seed=self.task.seed,
                collections=list(self.task.collections.values()),
                workers=self.workers,
                cache=FeatureCache(self.task.cache),
                progress=self.reporter.progress,
            )
            judged = self._retried(lambda: self._judged(lambda: trained.bundle, dict(trained.card.facts)))
            found = self._retried(lambda: self._recorded(trained, judged))
        return self._promoted(found) if self.task.auto_promote else found

    def compared(self) -> RegisteredVersion:
        """Compare a version with the champion, and promote it if its verdict allows it."""
        found = self._retried(lambda: self.registry.get(self.task.version))
        if CHAMPION in found.aliases:
            return found
        facts = self._retried(lambda: facts_of(self.registry, found))
        fetched = self.task.folder / "fetched"
        judged = self._retried(lambda: self._judged(lambda: self.registry.fetch(found, fetched), facts))
        return self._promoted(self._retried(lambda: self._kept(found, judged)))

    def result(self, found: RegisteredVersion) -> dict[str, Any]:
        """What the service stores of the run."""
        (scored,) = self._retried(lambda: self.registry.with_scores([found]))
        return {
            "mlflow_run_id": found.run_id,
            "version": found.number,
            "sha256": found.sha256,
            "scores": scores_of(scored.scores),
            "gate": gate_of(found.tags),
            "promoted": CHAMPION in found.aliases,
        }

    def _retried(self, attempt: Callable[[], Result]) -> Result:
        return retry_while_away(self.task, self.reporter, attempt)

    def _registered_before(self) -> RegisteredVersion | None:
        """The version that an earlier attempt registered before it was killed."""
        found = self.registry.ordered(self.task.id)
        if found is None:
            return None
        self.reporter.may_write()
        withdraw_unfinished(self.registry, self.task.id)
        return self.registry.get(str(found.number))

    def _judged(self, bundle: Callable[[], Path], facts: dict[str, Any]) -> Judgement:
        return judge(
            self.registry,
            bundle,
            facts,
            collections=self._gate_collections(facts),
            n_windows=self.task.gate_windows,
            workers=self.workers,
            progress=self.reporter.progress,
        )

    def _gate_collections(self, facts: dict[str, Any]) -> Sequence[Path]:
        """Collections that the version or the champion was tested on; the gate refuses if one is missing."""
        champion = self.registry.find(CHAMPION)
        names = set(self.task.collections) | tested_on(facts)
        names |= tested_on(facts_of(self.registry, champion)) if champion is not None else set()
        known = self.task.available | self.task.collections
        return [folder for name, folder in sorted(known.items()) if name in names]

    def _recorded(self, trained: Trained, judged: Judgement) -> RegisteredVersion:
        self.reporter.progress(RECORDING, 0, 0)
        self.reporter.may_write()
        tags = {key: value for key, value in judged.tags().items() if value}
        _, number = record(
            self.task.tracking_uri,
            trained.bundle,
            trained.card,
            trained.parameters,
            registered=True,
            tags={ORDER: self.task.id, **tags},
            documents={judged.file: judged.to_document()},
        )
        found = self.registry.get(str(number))
        describe_run(self.registry, found, judged)
        return found

    def _kept(self, found: RegisteredVersion, judged: Judgement) -> RegisteredVersion:
        self.reporter.may_write()
        keep_judgement(self.registry, found, judged)
        return self.registry.get(str(found.number))

    def _promoted(self, found: RegisteredVersion) -> RegisteredVersion:
        """Promote a version if its stored verdict allows it."""

        def attempt() -> RegisteredVersion:
            now = self.registry.get(str(found.number))
            if CHAMPION in now.aliases or not has_passed(now, self.registry.find(CHAMPION)):
                return now
            self.reporter.may_write()
            pass_judged(self.registry, now, by=f"training run {self.task.id}")
            return self.registry.get(str(now.number))

        return self._retried(attempt)


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
