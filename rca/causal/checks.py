"""Does the data contradict the graph? Falsification of its independences, refutation of its arrows (DoWhy).

Importing DoWhy takes seconds, so this module is only imported by training and by tests.
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

#: Rows that tests look at: enough power for effects worth having, and a training run stays affordable.
MAX_ROWS = 2000
MAX_FALSIFIED_ROWS = 1000
#: Permuted graphs that the given one has to beat, and the level of single tests.
PERMUTATIONS = 20
SIGNIFICANCE = 0.05
#: Share of implied independences that may fail. DoWhy's own verdict compares with permuted graphs and does
#: not notice a fifth of missing arrows, which shows in this share (0.4 against 0.1 for the true graph).
MAX_VIOLATION_RATE = 0.2
MAX_SUGGESTIONS = 10
SIMULATIONS = 10
#: Of the estimated effect: what a placebo may reach, and how far random causes and subsets may move it.
MAX_PLACEBO = 0.3
MAX_SHIFT = 0.1
MAX_SUBSET_SHIFT = 0.3
#: Slopes below this (relative step time, or units, per unit) are no effect anyone could use.
NO_EFFECT = 5e-4


@dataclass(frozen=True)
class Arrow:
    """An arrow, its effect, and the effect after each refutation.

    Attributes
    ----------
    slope : float
        As exported: non-negative, all parents together.
    effect : float
        The same by DoWhy's unconstrained regression, which the refutations start from.
    placebo, random_common_cause, subset : float
        Mean effect with permuted treatment, with a random further parent, and on half of the rows.
    holds : bool
        Whether all three left it as it should be; False also for arrows without any effect.
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
    """Try to refute one arrow: placebo treatment, random common cause, random subset of the rows.

    Parameters
    ----------
    data : DataFrame
    treatment, outcome : str
    others : sequence of str
        The outcome's other parents: held fixed.
    slope : float
        What the mechanism exports for the arrow.
    seed : int
    """
    if slope < NO_EFFECT:
        return Arrow(treatment, outcome, slope, 0.0, 0.0, 0.0, 0.0, False)
    from dowhy import CausalModel

    rows = _some(data[[treatment, outcome, *others]], seed, MAX_ROWS)
    # A parent that never moved among these rows explains nothing and makes the regression singular.
    others = [name for name in others if rows[name].std() > 0]
    rows = rows[[treatment, outcome, *others]]
    with quiet_dowhy():
        # Without any other parent pure noise stands in: DoWhy asks for at least one.
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


def _repeatable(figure: float) -> float:
    """A regression's figure without the digits that change with how many threads added up its sums."""
    return float(f"{figure:.8g}")


def survives(effect: float, placebo: float, random_common_cause: float, subset: float) -> bool:
    """Whether an effect is positive and what the refutations say it should be."""
    return (
        effect > 0
        and abs(placebo) <= MAX_PLACEBO * effect
        and abs(random_common_cause - effect) <= MAX_SHIFT * effect
        and abs(subset - effect) <= MAX_SUBSET_SHIFT * effect
    )


def falsification(graph: Any, data: pd.DataFrame, seed: int) -> dict[str, Any]:
    """Test the independences that the graph implies, beside those of permuted graphs.

    Parameters
    ----------
    graph : networkx.DiGraph
        Acyclic; its nodes are columns of `data`.
    data : DataFrame
    seed : int

    Returns
    -------
    dict
        ``violations`` of ``tests``, their ``rate``, ``better_than_permuted`` (share of permuted graphs with
        more violations), ``holds`` (DoWhy does not reject the graph and the rate is small), and as
        ``suggestions`` the pairs whose claimed independence fails most clearly: for a person to judge.
    """
    import networkx
    from dowhy.gcm.falsify import FalsifyConst, falsify_graph
    from dowhy.gcm.util.general import set_random_seed

    rows = _some(data, seed, MAX_FALSIFIED_ROWS)
    # A constant column is independent of everything: its tests would only dilute the rate.
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
    """Pairs that the graph calls independent given one's parents, and that are not, the clearest first."""
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
    """p-value of no (rank) correlation between x and y once z is accounted for linearly.

    Parameters
    ----------
    x, y, z : ndarray of shape (n_rows,) or (n_rows, n_columns)
        Already ranks, which makes the test indifferent to monotone scales and outliers.
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
    """Silence what DoWhy's own code is told off for by newer pandas and statsmodels, and small subsets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        # Half of the rows may not move a parent at all; what comes of it is judged by `survives`.
        warnings.filterwarnings("ignore", message="The design matrix is rank-deficient")
        # Nor do we ask for the normality that a summary tests, of however few rows.
        warnings.filterwarnings("ignore", message="`kurtosistest` p-value")
        yield


def gcm_module() -> Any:
    """``dowhy.gcm`` without progress bars and without processes of its own."""
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
