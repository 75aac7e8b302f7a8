"""`rca tune` end to end: corpus, one nested search per head, settings that `rca train` takes, a report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from rca.evaluation.tables import TextTable
from rca.telemetry.labels import Part
from rca.training.corpus import Corpus, stack
from rca.training.examples import gathered
from rca.training.feature_cache import FeatureCache
from rca.training.heads import MAX_ROUNDS, PARAMETERS, PATIENCE, targets
from rca.training.held_out import named
from rca.training.settings import TUNABLE
from rca.training.tuning.nested import LEAST_GAIN, Effort, TunedHead, tune_head
from rca.training.tuning.search import import_optuna
from rca.training.weighting import REAL_SHARE, balanced

Progress = Callable[[str, int, int], None]

DEFAULT_WINDOWS = 3000
#: Our code that has a say in a trial's loss, once the features are there.
_JUDGED_BY = (
    "classify/heads.py",
    "training/head_losses.py",
    "training/heads.py",
    "training/tuning/folds.py",
    "training/tuning/nested.py",
)
#: Of each capture, see `rca.training.incidents.varied`.
VARIANTS = 8


@dataclass(frozen=True)
class Tuning:
    """What a run found.

    Attributes
    ----------
    command, corpus_sha256 : str
    heads : tuple of TunedHead
    """

    command: str
    corpus_sha256: str
    heads: tuple[TunedHead, ...]

    @property
    def settings(self) -> dict[str, dict[str, float]]:
        """Of the heads for which tuning wins beyond chance; for all others the present ones stay."""
        return {head.name: head.chosen for head in self.heads if head.chosen is not None}

    def as_dict(self) -> dict[str, Any]:
        """Everything for JSON."""
        from rca.whatif.result import finite

        heads = [{**asdict(head), "gain": head.gain.as_row()} for head in self.heads]
        plain: dict[str, Any] = finite(
            {"command": self.command, "corpus_sha256": self.corpus_sha256, "heads": heads}
        )
        return plain

    def table(self) -> TextTable:
        """One row per head; losses in thousandths of a nat."""
        header = ("head", "groups", "log loss", "tuning takes away", "95 % interval", "verdict")
        return TextTable(
            "held-out log loss in thousandths, and what tuning takes away",
            header,
            tuple(_row(head) for head in self.heads),
        )


def _row(head: TunedHead) -> tuple[str, ...]:
    if head.lacking:
        return (head.name, "-", "-", "-", "-", f"not tuned: {head.lacking}")
    value, low, high = (number * 1e3 for number in head.gain[:3])
    reason = "not beyond chance" if low <= 0 else f"below {LEAST_GAIN:.0%} of the loss"
    verdict = f"{reason}: the present settings stay" if head.chosen is None else "tuned"
    return (
        head.name,
        str(head.groups),
        f"{head.present * 1e3:.0f}",
        f"{value:+.1f}",
        f"{low:+.1f} .. {high:+.1f}",
        verdict,
    )


def tune(
    n_windows: int,
    seed: int,
    collections: Sequence[Path],
    *,
    study: Path,
    heads: Sequence[str] = (),
    effort: Effort | None = None,
    variants: int = VARIANTS,
    processes: int = 1,
    cache: FeatureCache | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> Tuning:
    """Search settings for each head, and say what that is worth on groups that no search has seen.

    Parameters
    ----------
    n_windows, seed : int
        The simulated corpus, as of `rca.training.run.train`.
    collections : sequence of Path
        Captures that are learned from; their test parts are not touched.
    study : Path
        SQLite file of all trials: a run that was stopped goes on from there.
    heads : sequence of str
        Only these; all if empty.
    effort : Effort, optional
    variants : int
        Of each capture.
    processes : int
        For the features; without influence on the result.
    """
    import_optuna()
    given = effort or Effort()
    corpus = _corpus(n_windows, seed, collections, variants, processes, cache, progress)
    wanted = {name: target for name, target in targets(corpus).items() if name in heads or not heads}
    identity = _identity(corpus, seed, given)
    found = []
    for done, (name, target) in enumerate(wanted.items()):
        progress("tuning, head by head", done, len(wanted))
        found.append(
            tune_head(
                name,
                target,
                file=study,
                study=identity,
                seed=seed,
                effort=given,
                tell=lambda text: progress(text, 0, 0),
            )
        )
    progress("tuning, head by head", len(wanted), len(wanted))
    options = {"windows": n_windows, "seed": seed, "variants": variants, **asdict(given)}
    told = [f"--{option} {value}" for option, value in options.items()]
    told += [f"--collection {name}" for name in named(collections)] + [f"--head {name}" for name in heads]
    return Tuning(" ".join(["rca tune", *told]), corpus.digest, tuple(found))


def _corpus(
    n_windows: int,
    seed: int,
    collections: Sequence[Path],
    variants: int,
    processes: int,
    cache: FeatureCache | None,
    progress: Progress,
) -> Corpus:
    """What a training learns from: the test parts stay out, so that they remain a test of what is chosen."""
    examples = gathered(
        n_windows,
        seed,
        tuple(named(collections).values()),
        variants=variants,
        processes=processes,
        cache=cache,
        progress=progress,
    )
    corpus = stack([each for each in examples if each.part != "test"])
    # Every row is in some training fold, so every row weighs what it does there.
    everything: list[Part] = ["train"] * len(corpus.part)
    corpus = replace(corpus, part=tuple(everything))
    return replace(corpus, weight=balanced(corpus, REAL_SHARE))


def _identity(corpus: Corpus, seed: int, effort: Effort) -> str:
    """Of all that a trial's loss follows from, so that no study goes on with another's trials."""
    code = [hashlib.sha256((Path(str(files("rca"))) / name).read_bytes()).hexdigest() for name in _JUDGED_BY]
    facts = [corpus.digest, seed, effort.outer, effort.inner, PARAMETERS, MAX_ROUNDS, PATIENCE, TUNABLE]
    return hashlib.sha256(json.dumps([facts, code, version("lightgbm")]).encode()).hexdigest()[:16]
