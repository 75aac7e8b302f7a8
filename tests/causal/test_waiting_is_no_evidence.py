"""An idle GPU's low clock is the waiting's doing: it must not count as evidence against the GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rca
from rca.causal import Mechanisms
from rca.causal.graph import IDLE_RESOURCES, PHASES
from rca.causal.intervals import Margin
from rca.causal.scores import BusyEvidence
from rca.errors import BundleError
from rca.features import extract
from rca.features.resource_evidence import resource_names
from rca.lab.training.cause_graph import cause_edges, graph_as_dot

CLOCK = resource_names().index("gpu_clock")


def mechanisms(**idle: float) -> Mechanisms:
    shape = (len(PHASES), len(resource_names()))
    return Mechanisms(resource_names(), np.zeros(shape), np.zeros(shape[0]), np.ones(shape[0]), idle=idle)


def with_clocks(window: rca.Window, clocks: dict[int, float]) -> rca.Window:
    times = np.linspace(window.job.start + 1.1, window.job.end - 0.2, 40)
    ranks = np.repeat(sorted(clocks), times.size)
    metrics = pa.table(
        {
            "time": np.tile(times, len(clocks)),
            "node": pa.array([f"node-{rank // 2}" for rank in ranks]),
            "rank": pa.array(ranks, pa.int32()),
            "device": pa.nulls(ranks.size, pa.string()),
            "name": pa.array(["DCGM_FI_DEV_SM_CLOCK"] * ranks.size),
            "value": np.array([clocks[rank] for rank in ranks.tolist()]),
        }
    )
    return rca.Window.from_tables(window.job, window.steps, metrics)


def test_a_waiting_ranks_low_clock_is_explained_by_its_waiting(make_window) -> None:
    """Rank 1's loader stalls, rank 0 waits for it at 600 MHz."""
    window = with_clocks(make_window(2, late={1: 0.2}, phase="data_loading_seconds"), {0: 600.0, 1: 1755.0})
    features = extract(window)
    raw = BusyEvidence.from_features(features, mechanisms()).scores([0, 1])[:, CLOCK]
    explained = BusyEvidence.from_features(features, mechanisms(gpu_clock=20.0)).scores([0, 1])[:, CLOCK]
    assert raw[0] > 5
    assert explained[0] == 0
    assert explained[1] == raw[1]


def test_a_busy_ranks_low_clock_stays_evidence(make_window) -> None:
    """Rank 5 is late at 1170 MHz; it does not wait, so waiting explains nothing of its clock."""
    clocks = dict.fromkeys(range(8), 1755.0) | {5: 1170.0}
    features = extract(with_clocks(make_window(late={5: 0.1}), clocks))
    scores = BusyEvidence.from_features(features, mechanisms(gpu_clock=20.0)).scores([5])
    assert scores[0, CLOCK] > 3


@given(
    score=st.floats(-8, 8),
    waiting=st.floats(-2, 4) | st.just(float("nan")),
    slope=st.floats(0, 10),
)
def test_waiting_never_makes_evidence(score: float, waiting: float, slope: float) -> None:
    scores = np.full((1, len(resource_names())), score)
    found = mechanisms(gpu_clock=slope).without_waiting(scores, np.array([[waiting]]))
    assert (found <= scores).all()
    assert np.sign(found[0, CLOCK]) in (0, np.sign(score))
    assert (np.delete(found, CLOCK, 1) == score).all()


def test_more_waiting_explains_more() -> None:
    scores = np.full((4, len(resource_names())), 5.0)
    waiting = np.array([[-1.0], [0.5], [1.0], [9.0]])
    found = mechanisms(gpu_clock=2.0).without_waiting(scores, waiting)[:, CLOCK]
    assert found.tolist() == [5.0, 4.0, 3.0, 0.0]


def test_the_graph_is_acyclic_and_has_waiting_above_idle_signals_only() -> None:
    edges = cause_edges()
    order: list[str] = []
    nodes = {node for edge in edges for node in edge}
    while nodes:
        free = sorted(node for node in nodes if all(a not in nodes for a, b in edges if b == node))
        assert free, f"a cycle among {sorted(nodes)}"
        order += free
        nodes -= set(free)
    assert order.index("waiting") > order.index("arrival") > order.index("forward")
    idle = {target for source, target in edges if source == "waiting"}
    assert idle == {f"{name}_signal" for name in IDLE_RESOURCES}
    assert all(f'"{a}" -> "{b}"' in graph_as_dot() for a, b in edges)


def test_idle_effects_survive_their_document_and_a_foreign_arrow_is_refused() -> None:
    fitted = replace(
        mechanisms(gpu_clock=2.0), margins={"any": Margin(0.8, 0.35)}, report={"graph": {"holds": True}}
    )
    document = fitted.to_document()
    again = Mechanisms.from_document(document)
    assert (again.idle, again.margins, again.report) == (fitted.idle, fitted.margins, fitted.report)
    document["idle"]["nic"] = 1.0
    with pytest.raises(BundleError, match="waiting has no arrow to nic"):
        Mechanisms.from_document(document)


def test_a_bundle_from_before_idle_effects_still_loads() -> None:
    document = mechanisms().to_document()
    for name in ("idle", "interval_margins", "report"):
        del document[name]
    assert Mechanisms.from_document(document).idle == {}
