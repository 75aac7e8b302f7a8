"""Promotion: compare the challenger with the champion, apply the gate, move the aliases, keep the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rca.errors import BundleError, InvalidInput
from rca.lab.training.bundle_comparison import TEST_WINDOWS, Trial, run_trial
from rca.lab.training.data_facts import learned_from, tested_on
from rca.lab.training.held_out import named
from rca.lab.training.promotion_gate import Verdict, decide
from rca.lab.training.registry import CHALLENGER, CHAMPION, RegisteredVersion, Registry
from rca.workers import HERE, Workers

Progress = Callable[[str, int, int], None]

#: Artifact of a training run with its data facts.
FACTS_FILE = "data.json"
SHIPPED = "shipped"
GATE_FOLDER = "gate"
OUTCOME, AGAINST, REASONS = "gate.outcome", "gate.against", "gate.reasons"
FORCED, BY = "promotion.forced", "promotion.by"
#: Largest length of a tag's value, below MLflow's limit; the whole verdict is an artifact.
_TAG_LENGTH = 900


@dataclass(frozen=True)
class Promotion:
    """Result of an attempt to promote.

    Attributes
    ----------
    against : int or None
        The champion it was compared with; None is the shipped bundle.
    windows : dict of str to int
        Test windows by source; empty if no comparison was possible.
    forced : str or None
        Reason for a promotion against the verdict.
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
    """Verdict of the gate on a bundle.

    Attributes
    ----------
    against : int or None
        The champion it was compared with; None is the shipped bundle.
    trial : Trial or None
        None if no comparison was possible.
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
        """Artifact of the bundle's run that holds it."""
        return f"{GATE_FOLDER}/against-{_opponent(self.against)}.json"

    def tags(self) -> dict[str, str | None]:
        """Tags of the version."""
        reasons = _short("; ".join(self.verdict.reasons))
        return {OUTCOME: self.verdict.outcome, AGAINST: _opponent(self.against), REASONS: reasons}

    @property
    def sentence(self) -> str:
        """The verdict in words, with its reasons."""
        other = "the shipped bundle" if self.against is None else f"version {self.against}"
        than = "as" if self.verdict.outcome == "as good" else "than"
        return f"{self.verdict.outcome.capitalize()} {than} {other}: {'; '.join(self.verdict.reasons)}."

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
    workers: Workers = HERE,
    force: str | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> Promotion:
    """Make a version the champion if the gate passes it.

    Without a champion the version is compared with the shipped bundle.

    Parameters
    ----------
    name : str
        Number or alias of the version.
    collections : sequence of Path
        Real windows; must include the collections that either version was tested on.
    n_windows : int
        Simulated scenarios of the frozen test set.
    force : str, optional
        Promote against the verdict for this reason, which is kept as a tag.

    Raises
    ------
    InvalidInput
        If there is no such version or it is already the champion.
    """
    challenger, champion = registry.get(name), registry.find(CHAMPION)
    if champion is not None and champion.number == challenger.number:
        raise InvalidInput(f"version {challenger.number} is already the champion")
    with TemporaryDirectory(prefix="rca-gate-") as folder:
        judged = judge(
            registry,
            lambda: registry.fetch(challenger, Path(folder)),
            facts_of(registry, challenger),
            collections=collections,
            n_windows=n_windows,
            workers=workers,
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
    workers: Workers = HERE,
    progress: Progress = lambda phase, done, total: None,
) -> Judgement:
    """Compare a bundle, registered or not, with the champion; nothing is written.

    Parameters
    ----------
    registry : Registry
        Its champion is compared with; without one, the shipped bundle.
    bundle : callable
        Returns the folder; called only if there is a comparison.
    facts : dict
        Data facts of the bundle's run, as of `rca.lab.training.data_facts.data_facts`.
    """
    champion = registry.find(CHAMPION)
    verdict, trial = _verdict(registry, champion, bundle, facts, collections, n_windows, workers, progress)
    return Judgement(None if champion is None else champion.number, verdict, trial)


def keep_judgement(registry: Registry, found: RegisteredVersion, judged: Judgement) -> None:
    """Keep the verdict: as tags of the version, and as description, tag and document of its run."""
    registry.attach(found, judged.file, judged.to_document())
    registry.tag(found, judged.tags())
    describe_run(registry, found, judged)


def describe_run(registry: Registry, found: RegisteredVersion, judged: Judgement) -> None:
    """Say on the page of a version's run how it compares."""
    registry.describe_run(found, judged.sentence, {OUTCOME: judged.verdict.outcome})


def pass_judged(
    registry: Registry, found: RegisteredVersion, *, by: str, forced: str | None = None
) -> RegisteredVersion | None:
    """Make a version the champion by its kept verdict; nothing is compared.

    Parameters
    ----------
    by : str
        User who promotes; kept as a tag.
    forced : str, optional
        Reason to promote against the verdict or without one; kept as a tag if it was needed.

    Returns
    -------
    RegisteredVersion or None
        The champion before.

    Raises
    ------
    InvalidInput
        If there is no verdict against the present champion, or the gate does not pass the version.
    """
    champion = registry.find(CHAMPION)
    passed = has_passed(found, champion)
    if not passed and forced is None:
        reason = found.tags.get(REASONS, "it was not compared with the present champion")
        raise InvalidInput(f"the gate does not pass version {found.number}: {reason}")
    registry.promote(found, champion)
    registry.tag(found, {FORCED: None if passed else _short(forced), BY: _short(by)})
    return champion


def has_passed(found: RegisteredVersion, champion: RegisteredVersion | None) -> bool | None:
    """Whether the kept verdict against this champion passes the version; None without a verdict."""
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
    workers: Workers,
    progress: Progress,
) -> tuple[Verdict, Trial | None]:
    given = named(collections)
    seen = [facts] if champion is None else [facts, facts_of(registry, champion)]
    tested: set[str] = set().union(*map(tested_on, seen))
    missing = sorted(tested - set(given))
    if missing:
        return _no_comparison(
            f"collection {name!r} is missing: a version was tested on it" for name in missing
        ), None
    try:
        with TemporaryDirectory(prefix="rca-gate-") as folder:
            trial = run_trial(
                None if champion is None else registry.fetch(champion, Path(folder, "champion")),
                bundle(),
                collections=given,
                learned=set().union(*map(learned_from, seen)),
                n_windows=n_windows,
                workers=workers,
                progress=progress,
            )
    except BundleError as error:
        return _no_comparison([f"no comparison was possible: {error.message}"]), None
    lost = sorted(tested - set(trial.sources))
    objections = [f"collection {name!r} has no test window left: all were learned from" for name in lost]
    return decide(trial.sources, trial.latency, objections), trial


def _no_comparison(objections: Iterable[str]) -> Verdict:
    return Verdict((), tuple(objections))


def facts_of(registry: Registry, found: RegisteredVersion) -> dict[str, Any]:
    """Data facts of a version's run."""
    text = registry.document(found, FACTS_FILE)
    try:
        facts: dict[str, Any] = json.loads(text or "{}")
        tested_on(facts), learned_from(facts)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise BundleError(f"version {found.number}: the artifact {FACTS_FILE} cannot be read") from None
    return facts


def _opponent(number: int | None) -> str:
    return SHIPPED if number is None else str(number)


def _short(text: str | None) -> str | None:
    return text and text[:_TAG_LENGTH]
