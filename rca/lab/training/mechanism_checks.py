"""Test the cause graph with DoWhy: falsify its independences, refute its arrows.

Importing DoWhy takes seconds, so only training and tests import this module.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rca.arrays import FloatArray
from rca.errors import MissingExtra

if TYPE_CHECKING:
    import pandas as pd

#: Rows per test: enough for relevant effects, and few enough for a training run.
MAX_ROWS = 2000
MAX_FALSIFIED_ROWS = 1000
#: Permuted graphs that the given one is compared with, and the level of single tests.
PERMUTATIONS = 20
SIGNIFICANCE = 0.05
#: Share of implied independences that may fail. DoWhy's own verdict compares with permuted graphs and accepts
#: one without a fifth of its arrows. This share shows it: 0.4, and 0.1 for the true graph.
MAX_VIOLATION_RATE = 0.2
MAX_SUGGESTIONS = 10
SIMULATIONS = 10
#: Limits, as shares of the effect: for a placebo, and for the shift by random causes and subsets.
MAX_PLACEBO = 0.3
MAX_SHIFT = 0.1
MAX_SUBSET_SHIFT = 0.3
#: Slopes below this (relative step time, or units, per unit) count as no effect.
NO_EFFECT = 5e-4


@dataclass(frozen=True)
class Arrow:
    """An arrow of the graph, its effect, and the effect after each refutation.

    Attributes
    ----------
    slope : float
        As exported: non-negative, fitted with all parents.
    effect : float
        The same by DoWhy's unconstrained regression, which is the base of the refutations.
    placebo, random_common_cause, subset : float
        Mean effect with a permuted treatment, with a random further parent, and on half of the rows.
    holds : bool
        Whether all three are as they should be; False also for arrows without an effect.
    """

    source: str
    target: str
    slope: float
    effect: float
    placebo: float
    random_common_cause: float
    subset: float
    holds: bool

    def to_document(self) -> dict[str, Any]:
        """Plain data for a report."""
        return asdict(self)


def refutation(
    data: pd.DataFrame, treatment: str, outcome: str, others: Sequence[str], slope: float, seed: int
) -> Arrow:
    """Try to refute an arrow by a placebo treatment, a random common cause and a random subset of the rows.

    Parameters
    ----------
    others : sequence of str
        The outcome's other parents, held fixed.
    slope : float
        The mechanism's coefficient for the arrow.
    """
    if slope < NO_EFFECT:
        return Arrow(treatment, outcome, slope, 0.0, 0.0, 0.0, 0.0, False)
    from dowhy import CausalModel

    rows = _some(data[[treatment, outcome, *others]], seed, MAX_ROWS)
    # A constant parent explains nothing and makes the regression singular.
    others = [name for name in others if rows[name].std() > 0]
    rows = rows[[treatment, outcome, *others]]
    with quiet_dowhy():
        # DoWhy needs at least one other parent; without any, it gets noise.
        chance = np.random.default_rng(seed).normal(size=len(rows))
        rows = rows if others else rows.assign(chance=chance)
        model = CausalModel(rows, treatment, outcome, common_causes=list(others) or ["chance"])
        estimand = model.identify_effect(proceed_when_unidentifiable=True, method_name="maximal-adjustment")
        estimate = model.estimate_effect(
            estimand, method_name="backdoor.linear_regression", test_significance=False
        )
        effect = float(estimate.value)
        placebo, common, subset = (
            float(
                model.refute_estimate(
                    estimand,
                    estimate,
                    method_name=method,
                    num_simulations=SIMULATIONS,
                    random_state=np.random.RandomState(seed),
                    **options,
                ).new_effect
            )
            for method, options in (
                ("placebo_treatment_refuter", {"placebo_type": "permute"}),
                ("random_common_cause", {}),
                ("data_subset_refuter", {"subset_fraction": 0.5}),
            )
        )
    effect, placebo, common, subset = map(_repeatable, (effect, placebo, common, subset))
    holds = survives(effect, placebo, common, subset)
    return Arrow(treatment, outcome, slope, effect, placebo, common, subset, holds)


def _repeatable(value: float) -> float:
    """A regression's result without the digits that depend on the number of threads."""
    return float(f"{value:.8g}")


def survives(effect: float, placebo: float, random_common_cause: float, subset: float) -> bool:
    """Whether an effect is positive and passes all refutations."""
    return (
        effect > 0
        and abs(placebo) <= MAX_PLACEBO * effect
        and abs(random_common_cause - effect) <= MAX_SHIFT * effect
        and abs(subset - effect) <= MAX_SUBSET_SHIFT * effect
    )


def falsification(graph: Any, data: pd.DataFrame, seed: int) -> dict[str, Any]:
    """Test the independences that the graph implies, compared with those of permuted graphs.

    Parameters
    ----------
    graph : networkx.DiGraph
        Acyclic; its nodes are columns of `data`.

    Returns
    -------
    dict
        ``violations`` of ``tests`` and their ``rate``; ``better_than_permuted``, the share of permuted graphs
        with more violations; ``holds``, if DoWhy does not reject the graph and the rate is small; and
        ``suggestions``, the pairs with the clearest failures, for a person to judge.
    """
    import networkx
    from dowhy.gcm.falsify import FalsifyConst, falsify_graph
    from dowhy.gcm.util.general import set_random_seed

    rows = _some(data, seed, MAX_FALSIFIED_ROWS)
    # A constant column is independent of everything; its tests would only lower the rate.
    moving = [name for name in graph.nodes if rows[name].std() > 0]
    plain = networkx.DiGraph()
    plain.add_nodes_from(moving)
    plain.add_edges_from((a, b) for a, b in graph.edges if a in moving and b in moving)
    rows = rows[moving].rank()
    with quiet_dowhy():
        set_random_seed(seed)
        result = falsify_graph(
            plain,
            rows,
            independence_test=partial_correlation_p,
            conditional_independence_test=partial_correlation_p,
            significance_level=SIGNIFICANCE,
            significance_ci=SIGNIFICANCE,
            n_permutations=PERMUTATIONS,
            show_progress_bar=False,
            n_jobs=1,
        )
    markov = result.summary[FalsifyConst.VALIDATE_LMC]
    violations, tests = int(markov[FalsifyConst.GIVEN_VIOLATIONS]), int(markov[FalsifyConst.N_TESTS])
    rate = violations / tests if tests else 0.0
    return {
        "rows": len(rows),
        "tests": tests,
        "violations": violations,
        "rate": rate,
        "better_than_permuted": 1.0 - float(markov[FalsifyConst.P_VALUE]),
        "holds": not result.falsified and rate <= MAX_VIOLATION_RATE,
        "suggestions": _most_dependent(plain, rows),
    }


def _most_dependent(graph: Any, rows: pd.DataFrame) -> list[list[str]]:
    """Dependent pairs that the graph calls independent given one's parents, the clearest first."""
    import networkx

    found: dict[tuple[str, str], float] = {}
    for node in graph.nodes:
        parents = sorted(graph.predecessors(node))
        others = set(graph.nodes) - networkx.descendants(graph, node) - {node, *parents}
        given = rows[parents].to_numpy() if parents else None
        for other in sorted(others):
            chance = partial_correlation_p(rows[node].to_numpy(), rows[other].to_numpy(), given)
            first, second = sorted((node, other))
            if chance < SIGNIFICANCE:
                found[first, second] = min(chance, found.get((first, second), 1.0))
    clearest = sorted(found, key=lambda pair: (found[pair], pair))[:MAX_SUGGESTIONS]
    return [list(pair) for pair in clearest]


def partial_correlation_p(x: FloatArray, y: FloatArray, z: FloatArray | None = None) -> float:
    """p-value of no (rank) correlation between x and y, given a linear effect of z.

    Parameters
    ----------
    x, y, z : ndarray of shape (n_rows,) or (n_rows, n_columns)
        Ranks, so that monotone scales and outliers do not matter.
    """
    from scipy.stats import t

    columns = [np.ones((len(x), 1))] + ([] if z is None else [np.asarray(z, float).reshape(len(x), -1)])
    design = np.hstack(columns)
    pair = np.column_stack([np.ravel(x), np.ravel(y)]).astype(float)
    residual = pair - design @ np.linalg.lstsq(design, pair, rcond=None)[0]
    spread = residual.std(axis=0)
    freedom = len(x) - design.shape[1] - 1
    if (spread < 1e-9).any() or freedom < 1:
        return 1.0
    r = float(np.clip((residual[:, 0] * residual[:, 1]).mean() / spread.prod(), -1 + 1e-12, 1 - 1e-12))
    return float(2 * t.sf(abs(r) * np.sqrt(freedom / (1 - r * r)), freedom))


@contextmanager
def quiet_dowhy() -> Iterator[None]:
    """Silence warnings of newer pandas and statsmodels about DoWhy's code, and those about small subsets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        # A parent may be constant on half of the rows; `survives` judges the result.
        warnings.filterwarnings("ignore", message="The design matrix is rank-deficient")
        # A summary tests normality, even of few rows; we do not need it.
        warnings.filterwarnings("ignore", message="`kurtosistest` p-value")
        # Effects on small subsets may be equal; the test of their significance divides by their spread.
        warnings.filterwarnings("ignore", message="divide by zero encountered in scalar divide")
        yield


def gcm_module() -> Any:
    """``dowhy.gcm`` without progress bars and worker processes."""
    try:
        from dowhy import gcm
    except ImportError as error:
        raise MissingExtra(
            "fitting the causal mechanisms needs DoWhy", hint="pip install 'straggler-rca[causal]'"
        ) from error
    gcm.config.disable_progress_bars()
    gcm.config.set_default_n_jobs(1)
    return gcm


def _some(data: pd.DataFrame, seed: int, most: int) -> pd.DataFrame:
    if len(data) <= most:
        return data.reset_index(drop=True)
    return data.sample(most, random_state=seed).reset_index(drop=True)
