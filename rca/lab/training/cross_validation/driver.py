"""The cross-validation driver: learns without each fold, scores on it, and keeps the result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rca.errors import SourceError
from rca.files import replace_file
from rca.lab.training.cross_validation.folds import Fold
from rca.lab.training.cross_validation.pool import Pool
from rca.lab.training.heads import MAX_ROUNDS, PARAMETERS, PATIENCE
from rca.source_digest import package_folder, source_digest

#: Fits without a fold and scores on it; returns plain data for JSON.
Score = Callable[[Fold], dict[str, Any]]

#: Code of the package that has no influence on a result.
_WITHOUT_INFLUENCE = ("commands", "lab/testbed", "runbook", "lab/training/cross_validation/report.py")
_LIBRARIES = ("lightgbm", "numba", "numpy", "pyarrow", "scipy")


@dataclass(frozen=True)
class Results:
    """A folder of finished folds: one JSON file each, named after a digest of all that it depends on."""

    folder: Path

    def remember(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The kept result, or a new one that is then kept; NaN and infinity are kept as well.

        Raises
        ------
        SourceError
            If the folder cannot be written.
        """
        kept = self._kept(key)
        if kept is None:
            kept = make()
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                replace_file(self.folder / f"{key}.json", json.dumps(kept).encode())
            except OSError as error:
                raise SourceError(f"cannot write into {self.folder}: {error.strerror or error}") from error
        return kept

    def each(
        self, keys: Sequence[str], make: Callable[[Sequence[int]], Iterator[dict[str, Any]]]
    ) -> Iterator[dict[str, Any]]:
        """The kept results of keys in order, and new ones that are then kept.

        Parameters
        ----------
        make : callable
            From the positions of the keys that have no result to their results, in order.

        Raises
        ------
        SourceError
            If the folder cannot be written.
        """
        held = [self._kept(key) for key in keys]
        fresh = make([position for position, kept in enumerate(held) if kept is None])
        for key, kept in zip(keys, held, strict=True):
            yield self.remember(key, lambda: next(fresh)) if kept is None else kept

    def _kept(self, key: str) -> dict[str, Any] | None:
        try:
            kept: dict[str, Any] = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            return None
        return kept


def cross_validate(
    pool: Pool,
    folds: Iterable[Fold],
    score: Score,
    *,
    depends_on: Sequence[object],
    results: Results,
) -> list[dict[str, Any]]:
    """Score every fold, except those that were scored before with the same windows, settings and code.

    Parameters
    ----------
    depends_on : sequence
        All that `score` depends on besides the fold and the code: a name, the seed, settings.
    results : Results
        A run that was interrupted continues with them.
    """
    return [results.remember(key_of(pool, fold, depends_on), partial(score, fold)) for fold in folds]


def key_of(pool: Pool, fold: Fold | None, depends_on: Sequence[object]) -> str:
    """Name of the result of a fold, or of all windows, under today's code and libraries."""
    facts = [PARAMETERS, MAX_ROUNDS, PATIENCE, *depends_on]
    libraries = [f"{name}=={version(name)}" for name in _LIBRARIES]
    sha = hashlib.sha256(f"{_code_digest()}{libraries}{pool.digest}".encode())
    of_fold = None if fold is None else [fold.split, fold.held_out, fold.part, fold.tested]
    sha.update(json.dumps([of_fold, facts]).encode())
    return sha.hexdigest()


@cache
def _code_digest() -> str:
    root = package_folder()
    every = sorted(root.rglob("*.py"))
    return source_digest(
        file for file in every if not file.relative_to(root).as_posix().startswith(_WITHOUT_INFLUENCE)
    )
