"""Runs every method once on every window of a labelled collection, and judges the answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import pyarrow as pa

from rca.diagnosis import Bundle, Diagnosis, diagnose
from rca.diagnosis.bundle import baseline
from rca.errors import InvalidInput, RcaError
from rca.lab.evaluation.answer import MethodAnswer
from rca.lab.evaluation.baseline_inputs import Observed
from rca.lab.evaluation.baselines import mad_per_cohort, relative_median
from rca.lab.evaluation.baselines_forest import Forest, ForestExample, forest_example
from rca.lab.evaluation.baselines_signals import signal_ranking
from rca.lab.evaluation.detection_delay import detection_delay
from rca.lab.evaluation.judged_rows import PRODUCT, JudgedRow, judged_row, select
from rca.lab.evaluation.scores import Judged
from rca.lab.evaluation.signal_sets import restrict
from rca.sources.labels import Collection, CollectionEntry, WindowLabel, read_collection
from rca.window.window import Window
from rca.workers import HERE, Workers, counted

Progress = Callable[[int, int], None]
Method = Callable[[Observed], MethodAnswer]

RULES: dict[str, Method] = {
    "relative median < 0.75": relative_median,
    "median - 2 MAD": mad_per_cohort,
    "robust signal ranking": signal_ranking,
}
FOREST = "random forest"
#: Windows of one task.
CHUNK = 4


@dataclass(frozen=True)
class EvaluationPlan:
    """Methods and signals of an evaluation.

    Attributes
    ----------
    signals : tuple of str
        Keys of `rca.lab.evaluation.signal_sets.SIGNAL_SETS`; cases and totals use the first.
    bundle : Path or None
        Bundle folder; None is the shipped one.
    baselines : bool
        Also run the rules `RULES`.
    forest : Forest or None
        Also run this fitted forest.
    delay : bool
        Also measure the detection delay on truncated windows.
    """

    signals: tuple[str, ...] = ("all",)
    bundle: Path | None = None
    baselines: bool = False
    forest: Forest | None = None
    delay: bool = False

    @property
    def methods(self) -> dict[str, Method]:
        """Baselines by name."""
        rules = dict(RULES) if self.baselines else {}
        return rules if self.forest is None else {**rules, FOREST: self.forest}


@dataclass(frozen=True)
class Case:
    """One evaluated window.

    Attributes
    ----------
    diagnosis : Diagnosis
        The product's answer with the plan's first set of signals.
    rows : tuple of JudgedRow
        One per method and set of signals; the first is of that diagnosis.
    """

    id: str
    label: WindowLabel
    diagnosis: Diagnosis
    rows: tuple[JudgedRow, ...]

    @property
    def judged(self) -> Judged:
        """The diagnosis, judged."""
        return self.rows[0].judged


@dataclass(frozen=True)
class Evaluation:
    """All cases of a collection, in its order."""

    plan: EvaluationPlan
    model: str
    cases: list[Case]

    @property
    def rows(self) -> list[JudgedRow]:
        """All judged answers."""
        return [row for case in self.cases for row in case.rows]

    @property
    def signals(self) -> str:
        """The set of signals of the totals."""
        return self.plan.signals[0]

    @property
    def product_rows(self) -> list[JudgedRow]:
        """The product's rows with that set of signals, one per window."""
        return select(self.rows, signals=self.signals, method=PRODUCT)


@dataclass(frozen=True)
class _Read:
    """A labelled window that was read."""

    id: str
    window: Window
    earlier: Window | None
    label: WindowLabel

    @classmethod
    def of(cls, entry: CollectionEntry) -> _Read:
        return cls(entry.id, entry.read_window(), entry.read_earlier(), entry.read_label())


@dataclass(frozen=True)
class _Judging:
    """A plan with its bundle loaded."""

    plan: EvaluationPlan
    bundle: Bundle

    @classmethod
    def start(cls, plan: EvaluationPlan) -> _Judging:
        return cls(plan, baseline() if plan.bundle is None else Bundle.load(plan.bundle))

    def case(self, given: CollectionEntry | _Read) -> Case:
        """Run all methods and sets of signals of the plan on one window."""
        read = given if isinstance(given, _Read) else _Read.of(given)
        whole, earlier, label = read.window, read.earlier, read.label
        diagnoses, rows = [], []
        for signals in self.plan.signals:
            window = restrict(whole, signals)
            before = None if earlier is None else restrict(earlier, signals)
            try:
                diagnosis = diagnose(window, bundle=self.bundle, earlier=before)
            except RcaError as error:
                raise error.restated(f"window {read.id!r}: {error.message}") from error
            diagnoses.append(diagnosis)
            delay = self._delay(window, before, label, diagnosis) if self.plan.delay else float("nan")
            for method, answer in self._answers(window, diagnosis):
                rows.append(
                    judged_row(
                        read.id,
                        whole,
                        label,
                        signals=signals,
                        method=method,
                        answer=answer,
                        delay_steps=delay if method == PRODUCT else float("nan"),
                    )
                )
        return Case(read.id, label, diagnoses[0], tuple(rows))

    def _delay(
        self, window: Window, earlier: Window | None, label: WindowLabel, diagnosis: Diagnosis
    ) -> float:
        def mode_of(cut: Window) -> str:
            # The whole window has its diagnosis already.
            if cut is window:
                return diagnosis.failure_mode
            return diagnose(cut, bundle=self.bundle, earlier=earlier).failure_mode

        return detection_delay(window, label, mode_of)

    def _answers(self, window: Window, diagnosis: Diagnosis) -> Iterator[tuple[str, MethodAnswer]]:
        yield PRODUCT, MethodAnswer.from_diagnosis(diagnosis)
        methods = self.plan.methods
        if methods:
            observed = Observed.from_window(window)
            for name, method in methods.items():
                yield name, method(observed)


def evaluate_collection(
    path: str | PathLike[str],
    plan: EvaluationPlan | None = None,
    *,
    workers: Workers = HERE,
    progress: Progress = lambda done, total: None,
) -> Evaluation:
    """Answer and judge every labelled window of a collection folder.

    Parameters
    ----------
    path : path
        Folder with ``manifest.json``.
    plan : EvaluationPlan, optional
        By default the product with all signals.
    workers : Workers
        Without influence on the result.
    progress : callable
        ``(done, total)`` windows.
    """
    entries = list(read_collection(path))
    if not entries:
        raise InvalidInput(f"{path}: the collection has no windows")
    return evaluate_entries(entries, plan or EvaluationPlan(), workers=workers, progress=progress)


def evaluate_entries(
    entries: list[CollectionEntry],
    wanted: EvaluationPlan,
    *,
    workers: Workers = HERE,
    progress: Progress = lambda done, total: None,
) -> Evaluation:
    """As `evaluate_collection`, for some windows of a collection."""
    # Loaded before the workers start, so that a damaged bundle is refused at once.
    judging = _Judging.start(wanted)
    cases = list(counted(_cases(judging, entries, workers), len(entries), progress))
    return Evaluation(wanted, str(judging.bundle.model), cases)


def _cases(judging: _Judging, entries: list[CollectionEntry], workers: Workers) -> Iterator[Case]:
    few = workers.for_few(len(entries))
    # A cluster gets the content of files.
    given: Iterable[CollectionEntry | _Read] = entries if workers.share_files else map(_Read.of, entries)
    yield from few.map(judging.case, given, chunk=CHUNK)


def forest_from_collection(
    path: str | PathLike[str], evaluated: str | PathLike[str], progress: Progress = lambda done, total: None
) -> Forest:
    """Fit the forest on a training collection that shares no window with the evaluated one.

    Raises
    ------
    InvalidInput
        If a window of the training collection is also evaluated, under any name.
    """
    held_out = {_fingerprint(entry.read_window()) for entry in read_collection(evaluated)}
    return Forest.fit(_examples(read_collection(path), held_out, progress))


def _examples(collection: Collection, held_out: set[str], progress: Progress) -> Iterator[ForestExample]:
    for position, entry in enumerate(collection, start=1):
        window = entry.read_window()
        if _fingerprint(window) in held_out:
            raise InvalidInput(
                f"window {entry.id!r} of the training collection is also evaluated",
                hint="fit baselines on other windows than the evaluated ones",
            )
        yield forest_example(window, entry.read_label())
        progress(position, len(collection))


def _fingerprint(window: Window) -> str:
    """Identity of the measurements, without the window's name."""
    sha = hashlib.sha256()
    for name in ("rank", "step", "start_time", "step_seconds"):
        column: pa.ChunkedArray = window.steps.column(name)
        sha.update(column.to_numpy().tobytes())
    return sha.hexdigest()
