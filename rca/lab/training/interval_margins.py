"""Margins that widen the cost intervals to their promised coverage, measured on held-out scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rca.causal.attribution import COST_LEVEL
from rca.causal.intervals import HeldOutCost, Margin, coverage, fit_margins, share_beyond_lost
from rca.diagnosis.bundle import Bundle
from rca.diagnosis.cause_pooling import PricedCause
from rca.diagnosis.pipeline import analyse
from rca.diagnosis.pricing import Pricing
from rca.lab.evaluation.scores import true_seconds
from rca.lab.simulation.corpus import simulated_window
from rca.lab.training.corpus import Corpus
from rca.sources.labels import LabelledCause, WindowLabel, accepted
from rca.workers import Workers, counted

#: Largest number of scenarios; enough for the margins of every group, about a minute.
MAX_SCENARIOS = 2500
CHUNK = 16
NO_MARGINS: dict[str, Margin] = {}

Progress = Callable[[int, int], None]


def interval_margins(
    corpus: Corpus, bundle: Path, *, workers: Workers, progress: Progress = lambda done, total: None
) -> tuple[dict[str, Margin], dict[str, Any]]:
    """Margins for the bundle's intervals, and a report about the fit.

    Parameters
    ----------
    corpus : Corpus
        Its simulated validation scenarios are diagnosed; no fit has used them.
    bundle : Path
        Folder of the bundle, written without margins.

    Returns
    -------
    margins : dict of interval group to Margin
    report : dict
        Number of ``causes``, share of true costs covered ``before`` widening, and share of true costs
        ``beyond`` the whole loss of the ranks, which no margin reaches.
    """
    seeds = [
        int(group.rsplit("-", 1)[1])
        for group, part, real, mode in zip(corpus.group, corpus.part, corpus.real, corpus.mode, strict=True)
        if part == "validation" and not real and mode == "fail_slow"
    ][:MAX_SCENARIOS]
    held = held_costs(seeds, bundle, workers=workers, progress=progress)
    margins = fit_margins(held, COST_LEVEL)
    report = {
        "causes": len(held),
        "before": coverage(held, NO_MARGINS),
        "beyond": share_beyond_lost(held),
        "level": COST_LEVEL,
    }
    return margins, report


def held_costs(
    seeds: Iterable[int],
    bundle: Path,
    *,
    workers: Workers,
    progress: Progress = lambda done, total: None,
) -> list[HeldOutCost]:
    """Interval and true cost of every correctly named cause of the seeds' scenarios.

    An interval is about the cost only. The probability is about the ranks and the cause.
    """
    todo = list(seeds)
    costs = workers.map(partial(_costs, Bundle.load(bundle)), todo, chunk=CHUNK)
    return list(chain.from_iterable(counted(costs, len(todo), progress)))


def _costs(bundle: Bundle, seed: int) -> list[HeldOutCost]:
    window, label = simulated_window(seed, with_steps=True)
    pricing = analyse(window, bundle).pricing
    return matched(label, pricing)


def matched(label: WindowLabel, pricing: Pricing) -> list[HeldOutCost]:
    """Interval and true cost of every labelled cause that is named on exactly its ranks."""
    found = []
    for true in label.causes:
        cost = true_seconds(true)
        named = [index for index, priced in enumerate(pricing.causes) if _is(priced, true)]
        if cost <= 0 or not named:
            continue
        best = max(named, key=lambda index: float(pricing.attribution.seconds[index]))
        low, high = pricing.attribution.intervals[best]
        group, lost = pricing.interval_group(best), pricing.most_lost(best)
        found.append(HeldOutCost(group, float(low), float(high), lost, cost))
    return found


def _is(priced: PricedCause, true: LabelledCause) -> bool:
    return priced.removal.cause in accepted(true) and set(priced.removal.ranks) == set(true.ranks)
