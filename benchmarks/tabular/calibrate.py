"""``python -m benchmarks.tabular.calibrate``: fit the weights of `rca.rank_causes`, and print them.

The fit is a conditional logit by maximum likelihood on random structural causal models, with a small penalty
on large weights. Signs are fixed: more evidence does not count against a column. Half of the cases are held
out for the printed scores. The weights of the time course are fitted last, on incidents that have one, with
the others held. `benchmarks.tabular_ranking` measures other kinds of incidents.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from benchmarks.tabular.cases import TabularCase
from benchmarks.tabular.scms import draw
from rca.causal.ranking.columns import read_columns
from rca.causal.ranking.evidence import BootstrapEvidence, gather
from rca.causal.ranking.graphs import read_graph
from rca.causal.ranking.rank import oriented
from rca.causal.ranking.weights import NOTHING, scores

#: Evidence that may only count against a column.
AGAINST = ("inherited", "outside")
#: Evidence that only incidents with a course have.
OF_COURSE = ("outside",)
PENALTY = 0.01


@dataclass(frozen=True)
class JudgedEvidence:
    """Evidence of one case and the index of its true column, None for no fault."""

    evidence: BootstrapEvidence
    truth: int | None


def judge(case: TabularCase, with_graph: bool, with_target: bool) -> JudgedEvidence:
    """The evidence that `rca.rank_causes` would weigh."""
    columns = read_columns(case.normal, case.anomalous)
    graph = read_graph(case.graph, columns.names) if with_graph else None
    target = columns.names.index(case.target) if with_target else None
    before, after = oriented(columns, case.worse)
    truth = next((columns.names.index(name) for name in case.causes), None)
    return JudgedEvidence(gather(before, after, graph, target, rounds=0), truth)


def fit(judged: Sequence[JudgedEvidence], held: Mapping[str, float] | None = None) -> dict[str, float]:
    """Most likely weights by name, those that are held at their value."""
    usable = [one for one in judged if one.truth is None or one.evidence.candidates[one.truth]]
    features = usable[0].evidence.features
    signs = np.array([-1.0 if name in AGAINST else 1.0 for name in features])
    tables = [one.evidence.values[0][one.evidence.candidates] * signs for one in usable]
    truths = [
        None if one.truth is None else int(one.evidence.candidates[: one.truth].sum()) for one in usable
    ]

    def loss(guess: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = PENALTY * float(guess @ guess), 2 * PENALTY * guess
        for table, truth in zip(tables, truths, strict=True):
            logits = np.append(table @ guess[:-1], guess[-1])
            odds = np.exp(logits - logits.max())
            odds /= odds.sum()
            at = len(table) if truth is None else truth
            value -= np.log(odds[at]) / len(tables)
            odds[at] -= 1.0
            slope[:-1] += odds[:-1] @ table / len(tables)
            slope[-1] += odds[-1] / len(tables)
        return value, slope

    at_value = {name: abs(value) for name, value in (held or {}).items()}
    bounds = [(at_value.get(name, 0.0), at_value.get(name)) for name in features] + [(None, None)]
    start = np.array([at_value.get(name, 1.0) for name in features] + [1.0])
    found = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B")
    weights = {name: float(sign * size) for name, sign, size in zip(features, signs, found.x, strict=False)}
    return {NOTHING: float(found.x[-1]), **weights}


def first_right(judged: Sequence[JudgedEvidence], weights: dict[str, float]) -> tuple[float, float]:
    """Share of faults with their column first, and mean log-likelihood of the true column."""
    right, likelihood = [], []
    for one in judged:
        of, nothing = scores(one.evidence, weights)
        chance = nothing[0] if one.truth is None else of[0, one.truth]
        likelihood.append(np.log(max(float(chance), 1e-6)))
        if one.truth is not None:
            right.append(of[0].argmax() == one.truth)
    return float(np.mean(right)), float(np.mean(likelihood))


def main() -> None:
    """Draw, fit and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    cases = [draw(rng) for _ in range(given.cases)]
    courses = [draw(rng, course=True) for _ in range(given.cases)]
    for with_graph in (False, True):
        for with_target in (False, True):
            judged = [judge(case, with_graph, with_target) for case in cases]
            weights = fit(judged[::2], dict.fromkeys(OF_COURSE, 0.0))
            if with_graph and with_target:
                judged = [judge(case, with_graph, with_target) for case in courses]
                others = weights.keys() - {NOTHING, *OF_COURSE}
                weights = fit(judged[::2], {name: round(weights[name], 2) for name in others})
            share, likelihood = first_right(judged[1::2], weights)
            told = ", ".join(f'"{name}": {value:.2f}' for name, value in weights.items())
            print(f"({with_graph}, {with_target}): {{{told}}},")
            print(f"  # held back: first in {share:.3f}, log-likelihood {likelihood:.3f}")


if __name__ == "__main__":
    main()
