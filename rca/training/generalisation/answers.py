"""One fold: fit on what it may learn, write the bundle, let the product answer, keep what it answered."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from rca.diagnosis.bundle import baseline
from rca.errors import SourceError
from rca.evaluation.rows import JudgedRow
from rca.evaluation.run import Plan, evaluate_entries
from rca.evaluation.scores import Judged
from rca.evaluation.simulated import evaluate_simulated
from rca.telemetry.files import replace_file
from rca.training.bundle import write_bundle
from rca.training.classifier_fit import learn
from rca.training.corpus import Corpus
from rca.training.digests import files_digest
from rca.training.generalisation.folds import Fold, parts
from rca.training.generalisation.pool import Pool
from rca.training.heads import PARAMETERS, targets
from rca.training.held_out import SIGNALS
from rca.training.settings import Settings
from rca.training.weighting import REAL_SHARE, balanced

#: Code of ours that no answer depends on.
_WITHOUT_A_SAY = ("commands", "testbed", "runbook", "training/generalisation/tables.py", "training/tuning")
_LIBRARIES = ("lightgbm", "numba", "numpy", "pyarrow", "scipy")


@dataclass(frozen=True)
class Answered:
    """What a fold's model answered.

    Attributes
    ----------
    question, name : str
        The fold's.
    learned : int
        Windows it learned from, variants included.
    rows : tuple of JudgedRow
        Per asked window and set of signals.
    lacking : str
        Why there are none; empty otherwise.
    """

    question: str
    name: str
    learned: int
    rows: tuple[JudgedRow, ...] = ()
    lacking: str = ""


@dataclass(frozen=True)
class Kept:
    """A folder of finished folds, one file each, named after a digest of all that the answers follow from."""

    folder: Path

    def read(self, key: str) -> Answered | None:
        """The fold's answers, or None where it is not finished."""
        try:
            held = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            return None
        rows = (JudgedRow(**{**row, "judged": Judged(**row["judged"])}) for row in held.pop("rows"))
        return Answered(**held, rows=tuple(rows))

    def write(self, key: str, answered: Answered) -> None:
        """Keep the answers; NaN and infinity are written as Python's JSON reads them."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._path(key), json.dumps(asdict(answered)).encode())
        except OSError as error:
            raise SourceError(f"cannot keep answers in {self.folder}: {error.strerror or error}") from error

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def answer(
    pool: Pool,
    fold: Fold,
    seed: int,
    *,
    kept: Kept,
    settings: Settings | None,
    processes: int,
) -> Answered:
    """Fit and ask, unless that was done before with the same windows, settings and code."""
    corpus = replace(pool.corpus, part=parts(pool, fold))
    corpus = replace(corpus, weight=balanced(corpus, REAL_SHARE))
    key = _key(corpus, pool, fold, seed, settings)
    known = kept.read(key)
    if known is not None:
        return known
    lacking = what_lacks(corpus)
    learned = int(fold.learned.sum())
    if lacking:
        found = Answered(fold.question, fold.name, learned, lacking=lacking)
    else:
        rows = _asked(corpus, pool, fold, seed, settings, processes)
        found = Answered(fold.question, fold.name, learned, tuple(rows))
    kept.write(key, found)
    return found


def what_lacks(corpus: Corpus) -> str:
    """What a corpus has none of although a head needs it; empty if every head can be fitted."""
    for name, target in targets(corpus).items():
        # Thresholds follow from the failure mode; what else is chosen on validation windows can do without.
        for part in ("train", "calibration", "validation") if name == "mode" else ("train", "calibration"):
            if not (target.part == part).any():
                return f"no {part} windows for the head {name}"
    return ""


def _asked(
    corpus: Corpus,
    pool: Pool,
    fold: Fold,
    seed: int,
    settings: Settings | None,
    processes: int,
) -> list[JudgedRow]:
    """Rows of simulated and captured windows, with every set of signals."""
    asked = [pool.origins[position] for position in fold.asked]
    seeds = [origin.seed for origin in asked if origin.seed is not None]
    entries = [origin.entry for origin in asked if origin.entry is not None]
    learned = learn(corpus, seed, lambda text: None, settings)
    rows: list[JudgedRow] = []
    with TemporaryDirectory(prefix="rca-fold-") as folder:
        bundle = Path(folder) / "bundle"
        # Prices are not asked about here, so the mechanisms behind them stay those that are shipped.
        write_bundle(bundle, learned, baseline().mechanisms, {}, name="fold", version="1")
        if seeds:
            found, *_ = evaluate_simulated(seeds, [bundle], signals=SIGNALS, processes=processes)
            rows += found
        if entries:
            plan = Plan(signals=SIGNALS, bundle=bundle)
            rows += evaluate_entries(entries, plan, processes=processes).rows
    return rows


def _key(corpus: Corpus, pool: Pool, fold: Fold, seed: int, settings: Settings | None) -> str:
    sha = hashlib.sha256()
    for fact in (
        _code_digest(),
        *(f"{name}=={version(name)}" for name in _LIBRARIES),
        baseline().model.sha256,
        corpus.digest,
        fold.question,
        fold.name,
        seed,
        json.dumps([PARAMETERS, {name: dict(held) for name, held in (settings or {}).items()}]),
        *(_identity(pool, position) for position in fold.asked),
    ):
        sha.update(f"{fact}\n".encode())
    return sha.hexdigest()


def _identity(pool: Pool, position: int) -> str:
    origin = pool.origins[position]
    return origin.id if origin.entry is None else files_digest(origin.entry.path)


@cache
def _code_digest() -> str:
    root = Path(str(files("rca")))
    sha = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root).as_posix()
        if not name.startswith(_WITHOUT_A_SAY):
            sha.update(name.encode() + b"\0" + file.read_bytes())
    return sha.hexdigest()
