"""The same window without some of its steps: what a verdict rests on shows when they are left out."""

from __future__ import annotations

from dataclasses import replace

from rca.arrays import BoolArray
from rca.features.aftermath import Aftermath
from rca.features.comparison import Comparison
from rca.features.extract import FeatureSet, table_rows
from rca.features.work import Work
from rca.robust import nan_median


def without_steps(features: FeatureSet, left_out: BoolArray) -> FeatureSet:
    """Features of the window had some steps not happened.

    Parameters
    ----------
    features : FeatureSet
    left_out : ndarray of shape (n_steps,), bool
        Over the steps of ``features.work``.

    Returns
    -------
    FeatureSet
        Exporters keep their scores: their samples are too coarse to take single steps out of them.
    """
    work = _shorter(features.work, ~left_out)
    comparison = Comparison.from_work(work, features.topology)
    per_rank, per_window = table_rows(
        work,
        comparison,
        features.evidence,
        features.endings,
        features.topology,
        Aftermath.unknown(features.topology.n_ranks),
    )
    return replace(features, rank=per_rank, window=per_window, work=work, comparison=comparison)


def _shorter(work: Work, kept: BoolArray) -> Work:
    step = work.step[:, kept]
    usual = float(nan_median(nan_median(step)[None, :], axis=1)[0])
    return Work(
        steps=work.steps[kept],
        warmup=work.warmup,
        step=step,
        own=work.own[:, kept],
        wait=work.wait[:, kept],
        transfer=work.transfer[:, kept],
        phases={name: seconds[:, kept] for name, seconds in work.phases.items()},
        load={name: values[:, kept] for name, values in work.load.items()},
        start=work.start[:, kept],
        step_reference=usual if usual > 0 else float("nan"),
    )
