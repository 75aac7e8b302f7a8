"""Agents of `rca act` with a real service: what they begin stays within the budget, whenever they ask."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from diagnosed import SECONDS, START
from incident_service import ids, live, service_without_model
from starlette.testclient import TestClient

from rca.act.agent import PlanAgent
from rca.act.journal import ActionJournal
from rca.act.policy import AgentPolicy
from rca.client import ServiceError
from rca_api.shell.store.base import new_id
from tests.for_each import for_each

sys.path.append(str(Path(__file__).parents[1] / "act"))
from acting import KUBERNETES, SPARE
from played_cluster import PlayedCluster, PlayedService, cluster

__all__ = ["cluster"]

pytestmark = [pytest.mark.system, pytest.mark.smoke]

CLAIM = {"action": "drain_node", "key": "rca act"}
#: Of the budget, unless a test gives others.
USUAL = {"cool_down_seconds": 1.0, "max_actions_per_day": 1, "max_nodes_per_day": 9}


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[TestClient]:
    """The service on each kind of database."""
    with service_without_model(database_url, tmp_path) as held:
        yield held


def sick(client: TestClient, *said: str, job: str | None = None, days_ago: int = 0) -> tuple[str, str]:
    """A job with a slow window, at the moment or earlier, and its newest incident."""
    job, first = job or new_id(), int((time.time() - days_ago * 86_400.0 - START) / SECONDS) - 1
    live(client, "nic_degradation", *said, job=job, first=first)
    return job, ids(client, f"/v1/incidents?job={job}")[0]


class AtOnce:
    """The client of an agent, which claims at the moment in which all others do; plans are made up."""

    def __init__(self, client: TestClient, node: str, meet: Barrier) -> None:
        self.client, self.meet = client, meet
        option = PlayedService(nodes=[node]).option
        self.plan = {"options": [option], "first": option["action"]}

    @property
    def answered_at(self) -> float:
        return time.time()

    def get(self, path: str) -> bytes:
        return self.client.get(path).content

    def telemetry(self, job: str) -> dict[str, Any]:
        return {}

    def post(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        if path == "/v1/plans":
            return self.plan
        self.meet.wait(30.0)
        answer = self.client.post(path, json=document)
        if answer.is_error:
            problem = answer.json()
            raise ServiceError(problem["detail"], code=problem["code"], status=answer.status_code)
        found: dict[str, Any] = answer.json()
        return found


def test_agents_that_ask_at_the_same_moment_stay_within_the_budget(
    service: TestClient, cluster: PlayedCluster, tmp_path: Path
) -> None:
    jobs, meet = [sick(service)[0] for _ in range(2)], Barrier(2)

    def agent(number: int) -> list[str]:
        # The job that was proposed last is the first one to be acted on: another one for each agent.
        order = dict.fromkeys(jobs[:: 1 - 2 * number], KUBERNETES | SPARE)
        policy = {"service": "http://rca", "mode": "automatic", "jobs": order} | USUAL
        mine = PlanAgent(
            AgentPolicy.model_validate(policy),
            ActionJournal(tmp_path / f"{number}.sqlite"),
            AtOnce(service, f"node-{number + 1}", meet),  # type: ignore[arg-type]
        )
        mine.round()
        return [report.text for report in mine.round()]

    with ThreadPoolExecutor(2) as threads:
        texts = [text for found in threads.map(agent, range(2)) for text in found]
    assert sum(text.startswith("drain_node is done") for text in texts) == 1
    assert "drain_node expired: 1 actions were begun within a day; the policy allows 1" in texts
    assert len([each for each in cluster.done if each.startswith("cordon")]) == 1


def claim(client: TestClient, incident: str, **more: Any) -> Any:
    return client.post(f"/v1/incidents/{incident}/actions", json=CLAIM | more)


def test_many_reservations_at_the_same_moment_get_what_is_left(service: TestClient) -> None:
    held = [sick(service) for _ in range(8)]
    meet = Barrier(len(held))
    budget = USUAL | {"jobs": [job for job, _ in held], "max_actions_per_day": 3}

    def reserve(incident: str) -> int:
        meet.wait(30.0)
        return int(claim(service, incident, budget=budget).status_code)

    with ThreadPoolExecutor(len(held)) as threads:
        codes = list(threads.map(reserve, [incident for _, incident in held]))
    assert sorted(codes) == [201] * 3 + [409] * 5
    assert len(ids(service, "/v1/actions")) == 3


def test_a_reservation_counts_though_its_agent_has_ended_and_is_the_same_when_repeated(
    service: TestClient,
) -> None:
    (one, first), (two, second) = sick(service), sick(service)
    budget = USUAL | {"jobs": [one, two]}
    made = claim(service, first, budget=budget)
    assert claim(service, second, budget=budget).json()["code"] == "budget-spent"
    again = claim(service, first, budget=budget | {"max_actions_per_day": 2})
    assert (again.status_code, again.json()) == (200, made.json())
    assert claim(service, second, budget=USUAL | {"jobs": []}).status_code == 201


@for_each(
    ("limit", "asked", "says"),
    [
        ({}, {}, "1 actions were begun within a day; the policy allows 1"),
        ({"max_actions_per_day": 9, "max_nodes_per_day": 1}, {"nodes": ["node-2"]}, "2 nodes would leave"),
        ({"max_actions_per_day": 9, "max_nodes_per_day": 1}, {"nodes": ["node-1"]}, None),
        ({"max_actions_per_day": 9, "max_nodes_per_day": 1},
         {"nodes": ["node-2"], "action": "restart_from_checkpoint"}, None),
        ({"max_actions_per_day": 9, "cool_down_seconds": 99.0}, {}, None),
        ({}, {"key": "of another program"}, None),
    ],
)  # fmt: skip
def test_a_budget_counts_what_its_jobs_had(
    limit: dict[str, Any], asked: dict[str, Any], says: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / new_id()
    folder.mkdir()
    with service_without_model(f"sqlite:///{folder}/rca.db", folder) as service:
        (one, first), (two, second) = sick(service), sick(service)
        budget = USUAL | limit | {"jobs": [one, two]}
        assert claim(service, first, budget=budget, nodes=["node-1"]).status_code == 201
        answer = claim(service, second, budget=budget, **asked)
        found = (answer.status_code, says is None or answer.json()["detail"].startswith(says))
        assert found == (201 if says is None else 409, True)


def test_a_job_cools_down_between_two_reservations(service: TestClient) -> None:
    job, first = sick(service, *["healthy"] * 5, days_ago=2)
    budget = USUAL | {"jobs": [], "max_actions_per_day": 9, "cool_down_seconds": 99.0}
    assert claim(service, first, budget=budget).status_code == 201
    second = sick(service, job=job)[1]
    assert second != first
    answer = claim(service, second, budget=budget)
    assert answer.json()["detail"].startswith("the job had an action already, and cools down for 9")


def test_a_budget_without_a_key_is_refused(service: TestClient) -> None:
    _, incident = sick(service)
    answer = claim(service, incident, key=None, budget=USUAL | {"jobs": []})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameters")
