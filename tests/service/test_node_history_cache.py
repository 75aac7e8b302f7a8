"""What other jobs say of nodes reaches the next diagnosis, where the setting lets it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from diagnosed import SETTINGS, Clock, diagnosed
from hypothesis import given
from hypothesis import strategies as st

import rca
from rca_api.diagnoses.history import NodeOdds
from rca_api.diagnoses.history_cache import Polled, node_odds
from rca_api.incidents.announce import Announcer
from rca_api.incidents.service import IncidentTracker
from rca_api.nodes.fault_prior import fault_odds
from rca_api.nodes.service import Exposures
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.processes.bundles import BundleRef, LoadedBundles
from rca_api.shell.store.database import Database, StoreError

PRIOR = 0.01
WINDOW = Path(__file__).parents[2] / "data" / "windows" / "cpu-contention-node"


def blame(database: Database, *jobs: str) -> None:
    """Each job blames node-1 once, on another day."""
    clock = Clock()
    told = (IncidentTracker(SETTINGS, Announcer(Metrics()), clock), Exposures(clock))
    for number, job in enumerate(jobs):
        with database.session() as session:
            diagnosed(session, told, job=job, number=2000 * number, said="cpu_contention")


def test_a_node_blamed_by_several_jobs_is_cached_with_these_jobs(database: Database) -> None:
    blame(database, "a", "b", "c")
    memory = Polled(database, partial(node_odds, prior=PRIOR), NodeOdds(), "nodes")
    assert memory.current == NodeOdds()
    memory.refresh()
    assert set(memory.current.odds) == {"node-1"}
    assert memory.current.odds["node-1"] > 8
    assert memory.current.jobs["node-1"] == {"a", "b", "c"}
    # A job that blamed the node gets no odds for it: it would confirm itself.
    assert memory.current.excluding("a") == {}
    assert memory.current.excluding("new") == memory.current.odds


def test_what_was_known_stays_while_the_database_is_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    blame(database, "a", "b", "c")
    memory = Polled(database, partial(node_odds, prior=PRIOR), NodeOdds(), "nodes")
    memory.refresh()
    known = memory.current

    def away() -> None:
        raise StoreError("away")

    monkeypatch.setattr(database, "reading", away)
    memory.refresh()
    assert memory.current is known


def test_a_diagnosis_uses_it_and_says_so() -> None:
    bundles, window = LoadedBundles(), rca.read_window(WINDOW)
    plain = bundles.diagnose(BundleRef(None), window)
    node = plain.causes[0].nodes[0]

    def told(jobs: set[str]) -> list[str]:
        history = NodeOdds({node: 4.0}, {node: frozenset(jobs)})
        found = bundles.diagnose(BundleRef(None), window, history.excluding(window.job.job_id))
        assert found.failure_mode_probability == plain.failure_mode_probability
        return [note for note in found.quality.notes if "was at fault before" in note]

    assert len(told({"another job"})) == 1
    assert told({"another job", window.job.job_id}) == []


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_odds_rise_with_the_probability_of_a_lemon(one: float, other: float) -> None:
    assert fault_odds(PRIOR, PRIOR) == pytest.approx(1.0)
    low, high = sorted((one, other))
    assert fault_odds(low, PRIOR) <= fault_odds(high, PRIOR)
    # A certain lemon is at fault in a fifth of its jobs and more, an ordinary node in one of 200.
    assert 30 < fault_odds(1.0, PRIOR) < 40
