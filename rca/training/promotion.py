"""From challenger to champion: fetch both, try both, ask the gate, move the aliases, keep the record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rca.errors import BundleError, InvalidInput
from rca.training.bundle_comparison import TEST_WINDOWS, Trial, run_trial
from rca.training.data_facts import learned_from, tested_on
from rca.training.held_out import named
from rca.training.promotion_gate import Verdict, decide
from rca.training.registry import CHALLENGER, CHAMPION, RegisteredVersion, Registry

Progress = Callable[[str, int, int], None]

#: Artifact of a training run that says what it saw.
FACTS_FILE = "data.json"
SHIPPED = "shipped"
GATE_FOLDER = "gate"
OUTCOME, AGAINST, REASONS = "gate.outcome", "gate.against", "gate.reasons"
FORCED, BY = "promotion.forced", "promotion.by"
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


@dataclass(frozen=True)
class Judgement:
    """What the gate found of a bundle.

    Attributes
    ----------
    against : int or None
        The champion it was compared with; None is the shipped bundle.
    verdict : Verdict
    trial : Trial or None
        None where no comparison was possible.
    """

    against: int | None
    verdict: Verdict
    trial: Trial | None

    @property
    def windows(self) -> dict[str, int]:
        """Test windows by source."""
        return {} if self.trial is None else self.trial.windows

    @property
    def file(self) -> str:
        """Artifact of the bundle's run that keeps it."""
        return f"{GATE_FOLDER}/against-{_opponent(self.against)}.json"

    def tags(self) -> dict[str, str | None]:
        """Tags of the version."""
        reasons = _short("; ".join(self.verdict.reasons))
        return {OUTCOME: self.verdict.outcome, AGAINST: _opponent(self.against), REASONS: reasons}

    def to_document(self) -> dict[str, Any]:
        """Plain data for JSON."""
        document = {
            "against": SHIPPED if self.against is None else self.against,
            "windows": self.windows,
            **self.verdict.to_document(),
        }
        if self.trial is not None:
            document |= {"test_sha256": self.trial.digest, "left_out_as_learned": self.trial.left_out}
        return document


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
    with TemporaryDirectory(prefix="rca-gate-") as folder:
        judged = judge(
            registry,
            lambda: registry.fetch(challenger, Path(folder)),
            facts_of(registry, challenger),
            collections=collections,
            n_windows=n_windows,
            processes=processes,
            progress=progress,
        )
    verdict = judged.verdict
    forced = None if verdict.passed else force
    result = Promotion(
        version=challenger.number,
        against=judged.against,
        verdict=verdict,
        windows=judged.windows,
        promoted=verdict.passed or forced is not None,
        forced=forced,
    )
    if result.promoted:
        registry.promote(challenger, champion)
    keep_judgement(registry, challenger, judged)
    registry.tag(challenger, {FORCED: _short(forced)})
    return result


def judge(
    registry: Registry,
    bundle: Callable[[], Path],
    facts: dict[str, Any],
    *,
    collections: Sequence[Path] = (),
    n_windows: int = TEST_WINDOWS,
    processes: int = 1,
    progress: Progress = lambda phase, done, total: None,
) -> Judgement:
    """Compare a bundle, registered or not, with the champion; nothing is written anywhere.

    Parameters
    ----------
    registry : Registry
        Whose champion it has to match; without one, the shipped bundle.
    bundle : callable
        Gives the folder; asked only if there is a comparison.
    facts : dict
        What the bundle's run saw, as of `rca.training.data_facts.data_facts`.
    """
    champion = registry.find(CHAMPION)
    verdict, trial = _verdict(registry, champion, bundle, facts, collections, n_windows, processes, progress)
    return Judgement(None if champion is None else champion.number, verdict, trial)


def keep_judgement(registry: Registry, found: RegisteredVersion, judged: Judgement) -> None:
    """Keep what the gate found with the version: the outcome as tags, the whole with its run."""
    registry.attach(found, judged.file, judged.to_document())
    registry.tag(found, judged.tags())


def pass_judged(
    registry: Registry, found: RegisteredVersion, *, by: str, forced: str | None = None
) -> RegisteredVersion | None:
    """Make a version the champion by the verdict that is kept with it; nothing is compared.

    Parameters
    ----------
    registry : Registry
    found : RegisteredVersion
    by : str
        Who wants it; kept as a tag.
    forced : str, optional
        Reason to promote whatever was found, or without a verdict; kept as a tag where it mattered.

    Returns
    -------
    RegisteredVersion or None
        The champion before.

    Raises
    ------
    InvalidInput
        If there is no verdict against the present champion, or it says no.
    """
    champion = registry.find(CHAMPION)
    passed = has_passed(found, champion)
    if not passed and forced is None:
        told = found.tags.get(REASONS, "it was never compared with the present champion")
        raise InvalidInput(f"the gate does not let version {found.number} through: {told}")
    registry.promote(found, champion)
    registry.tag(found, {FORCED: None if passed else _short(forced), BY: _short(by)})
    return champion


def has_passed(found: RegisteredVersion, champion: RegisteredVersion | None) -> bool | None:
    """What the kept verdict says of a version against this champion; None where there is none."""
    if OUTCOME not in found.tags or found.tags.get(AGAINST) != _opponent(
        None if champion is None else champion.number
    ):
        return None
    return found.tags[OUTCOME] != "worse"


def _verdict(
    registry: Registry,
    champion: RegisteredVersion | None,
    bundle: Callable[[], Path],
    facts: dict[str, Any],
    collections: Sequence[Path],
    n_windows: int,
    processes: int,
    progress: Progress,
) -> tuple[Verdict, Trial | None]:
    given = named(collections)
    seen = [facts] if champion is None else [facts, facts_of(registry, champion)]
    tested: set[str] = set().union(*map(tested_on, seen))
    missing = sorted(tested - set(given))
    if missing:
        return _no_comparison(f"collection {name!r} was tested on and is not given" for name in missing), None
    try:
        with TemporaryDirectory(prefix="rca-gate-") as folder:
            trial = run_trial(
                None if champion is None else registry.fetch(champion, Path(folder, "champion")),
                bundle(),
                collections=given,
                learned=set().union(*map(learned_from, seen)),
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


def facts_of(registry: Registry, found: RegisteredVersion) -> dict[str, Any]:
    """What a version's run saw."""
    facts: dict[str, Any] = json.loads(registry.document(found, FACTS_FILE) or "{}")
    return facts


def _opponent(number: int | None) -> str:
    return SHIPPED if number is None else str(number)


def _short(text: str | None) -> str | None:
    return text and text[:_TAG_LENGTH]
