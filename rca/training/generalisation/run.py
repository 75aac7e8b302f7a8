"""`rca generalise` end to end: pool, folds, one fit and one test per fold, and what came of it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rca.training.feature_cache import FeatureCache
from rca.training.generalisation.answers import Answered, Kept, answer
from rca.training.generalisation.folds import folds
from rca.training.generalisation.pool import Origin, build_pool
from rca.training.held_out import named
from rca.training.settings import Settings

Progress = Callable[[str, int, int], None]

#: Enough to see every cause at every severity a few dozen times.
DEFAULT_WINDOWS = 3000
#: Simulated windows asked of each cause and severity.
DEFAULT_PER_CELL = 20
#: Of each capture; a third of what `rca train` makes, as every capture is fitted again in most folds.
DEFAULT_VARIANTS = 8


@dataclass(frozen=True)
class Generalisation:
    """Answers of all folds.

    Attributes
    ----------
    command : str
        What reproduces them.
    corpus_sha256 : str
    origins : dict of str to Origin
        Asked windows' facts by id.
    answered : tuple of Answered
    """

    command: str
    corpus_sha256: str
    origins: dict[str, Origin]
    answered: tuple[Answered, ...]


def generalise(
    n_windows: int,
    seed: int,
    collections: Sequence[Path],
    *,
    keep: Path,
    per_cell: int = DEFAULT_PER_CELL,
    variants: int = DEFAULT_VARIANTS,
    settings: Settings | None = None,
    processes: int = 1,
    cache: FeatureCache | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> Generalisation:
    """Fit every fold's model and let it answer what it has never seen.

    Parameters
    ----------
    n_windows, seed : int
        The simulated corpus, as of `rca.training.run.train`.
    collections : sequence of Path
        Captures; without any, only the simulated questions are asked.
    keep : Path
        Folder of finished folds: a run that was stopped goes on from there.
    per_cell : int
        Simulated windows asked of each cause and severity.
    variants : int
        Of each capture that is learned from.
    settings : mapping, optional
        LightGBM's settings by head.
    processes : int
        Without influence on the result.
    """
    pool = build_pool(
        n_windows, seed, collections, variants=variants, processes=processes, cache=cache, progress=progress
    )
    todo, found = folds(pool, per_cell), []
    for done, fold in enumerate(todo):
        progress("fitting and asking, fold by fold", done, len(todo))
        progress(f"{fold.question}: {fold.name}", 0, 0)
        found.append(answer(pool, fold, seed, kept=Kept(keep), settings=settings, processes=processes))
    progress("fitting and asking, fold by fold", len(todo), len(todo))
    options = {"windows": n_windows, "seed": seed, "per-cell": per_cell, "variants": variants}
    given = [f"--{name} {value}" for name, value in options.items()]
    given += [f"--collection {name}" for name in named(collections)]
    asked = {position for fold in todo for position in fold.asked}
    return Generalisation(
        command=" ".join(["rca generalise", *given]),
        corpus_sha256=pool.corpus.digest,
        origins={pool.origins[position].id: pool.origins[position] for position in sorted(asked)},
        answered=tuple(found),
    )
