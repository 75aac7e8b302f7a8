"""Margins that widen the cost intervals to their promised coverage, measured on held-out scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from math import ceil, floor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rca.causal.attribution import COST_LEVEL
from rca.causal.intervals import ANY, Margin, widened, wider_groups
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
#: A group with fewer held-out windows than this uses the margin of the next wider group.
MIN_GROUP = 80
_TINY = 1e-12

Progress = Callable[[int, int], None]


class HeldOutCost(NamedTuple):
    """One cause of a held-out window: its bootstrap interval and its true cost, seconds per step.

    `lost` is the upper end of the whole slowdown: in the diagnosis no cause costs more.
    """

    group: str
    low: float
    high: float
    lost: float
    true: float


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


def fit_margins(held: Sequence[HeldOutCost], level: float) -> dict[str, Margin]:
    """Margins for intervals that cover at `level`; each end may miss half of the rest.

    A group of fewer than `MIN_GROUP` has no margin of its own and uses that of the next wider group. For
    ``peers-unsure-part`` these are ``peers-unsure``, ``peers`` and `ANY`.

    Notes
    -----
    True costs above `HeldOutCost.lost` do not count for the upper end: the measured slowdown was too small
    there, and no share of it can cover them.
    """
    groups: dict[str, list[HeldOutCost]] = {ANY: list(held)}
    for each in held:
        for name in wider_groups(each.group):
            groups.setdefault(name, []).append(each)
    return {
        name: _margin(members, (1.0 + level) / 2)
        for name, members in sorted(groups.items())
        if name == ANY or len(members) >= MIN_GROUP
    }


def coverage(held: Sequence[HeldOutCost], margins: Mapping[str, Margin]) -> float:
    """Share of the true costs within the widened intervals; NaN without costs."""
    inside = []
    for each in held:
        low, high = widened(margins, each.group, each.low, each.high, each.lost)
        inside.append(low <= each.true <= high)
    return float(np.mean(inside)) if inside else float("nan")


def share_beyond_lost(held: Sequence[HeldOutCost]) -> float:
    """Share of the true costs above the upper end of the whole slowdown; NaN without costs."""
    return float(np.mean([each.true > each.lost for each in held])) if held else float("nan")


def _margin(held: Sequence[HeldOutCost], level: float) -> Margin:
    """Margins with which each end is on its side of the true cost in `level` of the cases."""
    ratios = np.sort([1.0 if each.true >= each.low else each.true / each.low for each in held])
    ways = np.sort([_position(each) for each in held if each.true <= each.lost])
    if not held:
        return Margin()
    lowest, highest = floor((ratios.size + 1) * (1.0 - level)), ceil((ways.size + 1) * level)
    return Margin(
        below=float(ratios[lowest - 1]) if lowest else 0.0,
        above=float(ways[highest - 1]) if highest <= ways.size else 1.0,
    )


def _position(held: HeldOutCost) -> float:
    """Position of the true cost between the interval's upper end (0) and the whole slowdown (1)."""
    left = held.lost - held.high
    return min(max((held.true - held.high) / left, 0.0), 1.0) if left > _TINY else 0.0
