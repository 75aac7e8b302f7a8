"""The closed form against DoWhy's own counterfactual samples on the same fitted model."""

from __future__ import annotations

import numpy as np
import pytest

from rca.causal.attribution import JobWork, RemovedCause, attribute, shapley
from rca.causal.graph import IDLE_RESOURCES, PHASES, WAITING, mechanism_parents
from rca.features.resource_evidence import resource_names
from rca.lab.training.cause_graph import signal_of

pd = pytest.importorskip("pandas")
gcm = pytest.importorskip("dowhy.gcm")

pytestmark = [pytest.mark.slow, pytest.mark.long]

UNIT = 0.2
N_RANKS, N_STEPS = 4, 12


@pytest.fixture(scope="module", autouse=True)
def _few_simulations():
    from rca.lab.training import mechanism_checks as checks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "SIMULATIONS", 3)
        patch.setattr(checks, "PERMUTATIONS", 4)
        yield


@pytest.fixture(scope="module")
def rows():
    """Ranks and steps with phases that follow the graph: every arrow adds 0.2 of a step per unit.

    Only heat *shortens* the backward pass, which physics rules out.
    """
    rng = np.random.default_rng(3)
    names = [*resource_names(), *PHASES]
    data = pd.DataFrame(np.abs(rng.normal(0, 1, (400, len(names)))), columns=names)
    for phase, parents in mechanism_parents().items():
        data[phase] = 0.1 + 0.2 * data[list(parents)].sum(axis=1) + rng.normal(0, 0.02, 400)
    data["backward"] -= 0.25 * data["gpu_heat"]
    return data


@pytest.fixture(scope="module")
def healthy():
    rng = np.random.default_rng(4)
    waiting = rng.uniform(0, 1.5, 300)
    return pd.DataFrame(
        {WAITING: waiting}
        | {signal_of(name): 2.0 * waiting + rng.normal(0, 0.1, 300) for name in IDLE_RESOURCES}
    )


@pytest.fixture(scope="module")
def mechanisms(rows, healthy):
    from rca.lab.training.mechanism_fit import fit_mechanisms

    return fit_mechanisms(rows, seed=0, healthy=healthy)


@pytest.fixture(scope="module")
def model(rows):
    from rca.lab.training.mechanism_checks import quiet_dowhy
    from rca.lab.training.mechanism_fit import causal_model

    model = causal_model()
    with quiet_dowhy():
        gcm.fit(model, rows)
    return model


def sampled(model, observed, *nominal):
    return gcm.counterfactual_samples(
        model, {name: lambda _: 0.0 for name in nominal}, observed_data=observed
    )


@pytest.mark.parametrize("nominal", [("gpu_clock",), ("nic", "tcp"), ("cpu_wait", "memory", "storage")])
def test_phases_are_those_of_dowhys_counterfactual_samples(rows, mechanisms, model, nominal) -> None:
    observed = rows.iloc[[7]]
    effects = mechanisms.effects(observed[list(resource_names())].to_numpy()[0])
    reset = np.isin(resource_names(), nominal)
    # The noise of an additive mechanism stays: only the effects of the reset resources go.
    ours = observed[list(PHASES)].to_numpy()[0] - np.nansum(effects[:, reset], axis=1)
    theirs = sampled(model, observed, *nominal)[list(PHASES)].to_numpy()[0]
    assert ours == pytest.approx(theirs, abs=1e-9)


def test_seconds_are_the_shapley_values_over_dowhys_counterfactual_jobs(rows, mechanisms, model) -> None:
    """Every coalition of two causes: DoWhy's phases through the replay, against removals through it."""
    causes = {"gpu_throttling": "gpu_clock", "cpu_contention": "cpu_wait"}
    observed = rows.iloc[: N_RANKS * N_STEPS].reset_index(drop=True)

    def job(phases) -> JobWork:
        own = UNIT * phases[[name for name in PHASES if name != "transfer"]].sum(axis=1).to_numpy()
        transfer = UNIT * phases["transfer"].to_numpy().reshape(N_RANKS, N_STEPS)[0]
        return JobWork(own.reshape(N_RANKS, N_STEPS), transfer)

    def step_of(work: JobWork):
        return work.own.max(axis=0) + work.transfer

    coalitions = [(), ("gpu_clock",), ("cpu_wait",), ("gpu_clock", "cpu_wait")]
    steps = np.stack([step_of(job(sampled(model, observed, *each))) for each in coalitions])
    expected = shapley(steps[0] - steps).mean(axis=1)

    scores = observed[list(resource_names())].to_numpy()
    effects = np.array([mechanisms.effects(row) for row in scores]).reshape(
        N_RANKS, N_STEPS, len(PHASES), len(resource_names())
    )
    removals = []
    for cause, resource in causes.items():
        seconds = UNIT * effects[..., resource_names().index(resource)]
        moved = PHASES.index("transfer")
        removals.append(
            RemovedCause(
                cause, tuple(range(N_RANKS)), np.delete(seconds, moved, 2).sum(axis=2), seconds[0, :, moved]
            )
        )
    found = attribute(job(observed), np.zeros(N_STEPS), removals, step_of)
    assert found.seconds == pytest.approx(expected, abs=1e-9)
    assert found.seconds.sum() + found.unexplained == pytest.approx(found.slowdown)


def test_signals_without_waiting_are_those_of_dowhys_counterfactual_samples(healthy, mechanisms) -> None:
    from rca.lab.training.mechanism_checks import quiet_dowhy
    from rca.lab.training.mechanism_fit import idle_model

    column = resource_names().index("gpu_clock")
    model = idle_model("gpu_clock")
    data = healthy[[WAITING, signal_of("gpu_clock")]]
    with quiet_dowhy():
        gcm.fit(model, data)
    observed = data[data[signal_of("gpu_clock")] > 1.0].iloc[:5]
    theirs = gcm.counterfactual_samples(model, {WAITING: lambda _: 0.0}, observed_data=observed)
    scores = np.zeros((5, len(resource_names())))
    scores[:, column] = observed[signal_of("gpu_clock")]
    ours = mechanisms.without_waiting(scores, observed[[WAITING]].to_numpy())
    assert ours[:, column] == pytest.approx(
        np.maximum(theirs[signal_of("gpu_clock")].to_numpy(), 0), abs=1e-9
    )


def test_arrows_that_are_there_survive_and_impossible_ones_are_not_exported(mechanisms) -> None:
    assert mechanisms.report["mechanisms"]["backward"]["r_squared"] > 0.9
    arrows = {(each["source"], each["target"]): each for each in mechanisms.report["arrows"]}
    true = arrows["gpu_clock", "backward"]
    assert true["holds"]
    assert true["effect"] == pytest.approx(0.2, abs=0.02)
    assert abs(true["placebo"]) < 0.05
    assert true["random_common_cause"] == pytest.approx(true["effect"], rel=0.05)
    assert true["subset"] == pytest.approx(true["effect"], rel=0.2)
    assert not arrows["gpu_heat", "backward"]["holds"]
    row, column = PHASES.index("backward"), resource_names().index("gpu_heat")
    assert mechanisms.coefficients[row, column] == 0.0
    assert mechanisms.coefficients[row, resource_names().index("gpu_clock")] > 0.15
    assert mechanisms.idle["gpu_clock"] == pytest.approx(2.0, abs=0.1)


def test_the_graph_holds_on_data_that_follow_it(mechanisms) -> None:
    graph = mechanisms.report["graph"]
    assert graph["holds"]
    assert graph["tests"] > 20
    assert graph["rate"] <= 0.2


def test_a_graph_with_arrows_missing_denies_more_of_what_is_seen(rows) -> None:
    """Half of the arrows removed: what they carried shows as dependence that the graph denies."""
    from rca.lab.training.mechanism_checks import falsification
    from rca.lab.training.mechanism_fit import tested_graph

    whole = falsification(tested_graph(), rows, seed=0)
    graph = tested_graph()
    graph.remove_edges_from(list(graph.edges)[::2])
    found = falsification(graph, rows, seed=0)
    assert found["violations"] > whole["violations"]
    assert found["rate"] > 1.3 * whole["rate"]
