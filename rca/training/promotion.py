"""From challenger to champion: fetch both, try both, ask the gate, move the aliases, keep the record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rca.errors import BundleError, InvalidInput
from rca.training.data_facts import learned_from, tested_on
from rca.training.gate import Verdict, decide
from rca.training.held_out import named
from rca.training.registry import CHALLENGER, CHAMPION, RegisteredVersion, Registry
from rca.training.trial import TEST_WINDOWS, Trial, run_trial

Progress = Callable[[str, int, int], None]

#: Artifact of a training run that says what it saw.
FACTS_FILE = "data.json"
SHIPPED = "shipped"
OUTCOME, AGAINST, REASONS, FORCED = "gate.outcome", "gate.against", "gate.reasons", "promotion.forced"
#: MLflow's limit for the value of a version's tag, with room to spare; the whole verdict is an artifact.
_TAG_LENGTH = 900


@dataclass(frozen=True)
class Promotion:
    """What came of an attempt to promote.

    Attributes
    ----------
    version : int
    against : int or None
        The champion it was compared with; None is the shipped bundle.
    verdict : Verdict
    windows : dict of str to int
        Test windows by source; empty where no comparison was possible.
    promoted : bool
    forced : str or None
        Why it was promoted against the verdict.
    """

    version: int
    against: int | None
    verdict: Verdict
    windows: dict[str, int]
    promoted: bool
    forced: str | None

    def to_document(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "version": self.version,
            "against": SHIPPED if self.against is None else self.against,
            "promoted": self.promoted,
            "forced": self.forced,
            "windows": self.windows,
            **self.verdict.to_document(),
        }


def promote(
    registry: Registry,
    name: str = CHALLENGER,
    *,
    collections: Sequence[Path] = (),
    n_windows: int = TEST_WINDOWS,
    processes: int = 1,
    force: str | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> Promotion:
    """Make a version the champion if the gate lets it through.

    Where there is no champion, the shipped bundle stands in for it: whoever trains for the first time must at
    least match what comes with the package.

    Parameters
    ----------
    registry : Registry
    name : str
        Number or alias of the version.
    collections : sequence of Path
        Real windows; those that either version was tested on must be among them.
    n_windows : int
        Simulated scenarios of the frozen test set.
    processes : int
    force : str, optional
        Promote whatever the gate says, for this reason, which is kept as a tag.

    Raises
    ------
    InvalidInput
        If there is no such version or it is the champion already.
    """
    challenger, champion = registry.get(name), registry.find(CHAMPION)
    if champion is not None and champion.number == challenger.number:
        raise InvalidInput(f"version {challenger.number} is the champion already")
    verdict, trial = _verdict(registry, champion, challenger, collections, n_windows, processes, progress)
    forced = None if verdict.passed else force
    result = Promotion(
        version=challenger.number,
        against=None if champion is None else champion.number,
        verdict=verdict,
        windows={} if trial is None else trial.windows,
        promoted=verdict.passed or forced is not None,
        forced=forced,
    )
    if result.promoted:
        registry.promote(challenger, champion)
    _record(registry, challenger, result, trial)
    return result


def _verdict(
    registry: Registry,
    champion: RegisteredVersion | None,
    challenger: RegisteredVersion,
    collections: Sequence[Path],
    n_windows: int,
    processes: int,
    progress: Progress,
) -> tuple[Verdict, Trial | None]:
    given = named(collections)
    versions = [each for each in (champion, challenger) if each is not None]
    facts = [_facts(registry, each) for each in versions]
    tested: set[str] = set().union(*map(tested_on, facts))
    missing = sorted(tested - set(given))
    if missing:
        return _no_comparison(f"collection {name!r} was tested on and is not given" for name in missing), None
    try:
        with TemporaryDirectory(prefix="rca-gate-") as folder:
            trial = run_trial(
                None if champion is None else registry.fetch(champion, Path(folder, "champion")),
                registry.fetch(challenger, Path(folder, "challenger")),
                collections=given,
                learned=set().union(*map(learned_from, facts)),
                n_windows=n_windows,
                processes=processes,
                progress=progress,
            )
    except BundleError as error:
        return _no_comparison([f"no comparison was possible: {error.message}"]), None
    lost = sorted(tested - set(trial.sources))
    objections = [f"no test window of collection {name!r} is left: all were learned from" for name in lost]
    return decide(trial.sources, trial.latency, objections), trial


def _no_comparison(objections: Iterable[str]) -> Verdict:
    return Verdict((), tuple(objections))


def _facts(registry: Registry, found: RegisteredVersion) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(registry.document(found, FACTS_FILE) or "{}")
    return facts


def _record(
    registry: Registry, challenger: RegisteredVersion, result: Promotion, trial: Trial | None
) -> None:
    against = SHIPPED if result.against is None else str(result.against)
    reasons = "; ".join(result.verdict.reasons)[:_TAG_LENGTH]
    forced = result.forced and result.forced[:_TAG_LENGTH]
    registry.tag(
        challenger,
        {OUTCOME: result.verdict.outcome, AGAINST: against, REASONS: reasons, FORCED: forced},
    )
    document = result.to_document()
    if trial is not None:
        document |= {"test_sha256": trial.digest, "left_out_as_learned": trial.left_out}
    registry.attach(challenger, f"gate/against-{against}.json", document)
