"""An agent does what a plan says, once, within its guards, and after approval unless the policy waives it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from played_cluster import BUDGET, PlayedCluster, PlayedService
from typer.testing import CliRunner

from rca.act.agent import MAX_TRIES, PlanAgent
from rca.act.journal import ActionJournal, Proposal
from rca.act.policy import AgentPolicy, read_policy
from rca.cli import app
from rca.errors import InvalidInput
from tests.for_each import for_each

KUBERNETES = {
    "platform": "kubernetes",
    "namespace": "train",
    "selector": "jobset.sigs.k8s.io/jobset-name=llama",
}
SLURM = {"platform": "slurm", "job": "4711"}
EVERYTHING = ["cordon node-2", "evict llama-2 uid-2", "evict llama-3 uid-3"]


class Acting:
    """An agent, its journal, and a clock that is set by hand."""

    def __init__(
        self, folder: Path, service: PlayedService, target: dict[str, Any] = KUBERNETES, **more: Any
    ) -> None:
        given = {"service": "http://rca", "jobs": {service.incident["job_id"]: target}, "mode": "approve"}
        self.policy = AgentPolicy.model_validate(given | more)
        self.journal = ActionJournal(folder / "act.sqlite")
        self.service, self.now = service, 1.8e9
        self.agent = PlanAgent(self.policy, self.journal, service, lambda: self.now)  # type: ignore[arg-type]

    def round(self) -> list[str]:
        return [report.text for report in self.agent.round()]

    def approve(self) -> None:
        [held] = [each for each in self.journal.all() if each.state == "proposed"]
        assert self.journal.change(held.id, ["proposed"], state="approved", by="someone") is not None

    @property
    def newest(self) -> Proposal:
        return self.journal.all()[0]


@pytest.fixture
def acting(tmp_path: Path, cluster: PlayedCluster) -> Callable[..., Acting]:
    return lambda service=None, **more: Acting(tmp_path, service or PlayedService(), **more)


def test_a_dry_run_changes_nothing_and_is_the_default(
    cluster: PlayedCluster, acting: Callable[..., Acting]
) -> None:
    mine = acting(mode=AgentPolicy.model_fields["mode"].default)
    [text] = mine.round()
    assert text.startswith("tried: drain_node: kubectl cordon node-2; evict pod llama-2")
    assert mine.round() == []
    assert cluster.done == []


def test_nothing_acts_before_a_person_approves(cluster: PlayedCluster, acting: Callable[..., Acting]) -> None:
    mine = acting()
    mine.round()
    mine.round()
    assert cluster.done == []
    mine.approve()
    mine.round()
    assert cluster.done == EVERYTHING
    assert mine.newest.state == "done"


def test_an_incident_gets_one_action(cluster: PlayedCluster, acting: Callable[..., Acting]) -> None:
    mine = acting(mode="automatic", cool_down_seconds=1.0)
    for _ in range(5):
        mine.round()
        mine.now += 100.0
    assert cluster.done == EVERYTHING


def test_the_action_is_recorded_with_its_incident_once(acting: Callable[..., Acting]) -> None:
    mine = acting(mode="automatic")
    mine.service.away = True
    mine.round()
    assert mine.round() == ["not now: the service cannot be reached"]
    assert mine.newest.state == "done"
    mine.service.away = False
    for _ in range(3):
        mine.round()
    [report] = mine.service.reports
    assert (report["action"], report["nodes"], report["diagnosis_id"]) == ("drain_node", ["node-2"], "d" * 32)
    assert report["taken_at"].startswith("2027-01-15")


def test_slurm_drains_with_a_reason_and_requeues(
    cluster: PlayedCluster, acting: Callable[..., Acting]
) -> None:
    acting(mode="automatic", target=SLURM).round()
    mine = acting(mode="automatic", target=SLURM)
    mine.round()
    assert cluster.done == ["drain node-2", "requeue 4711"]
    assert cluster.reasons["node-2"].startswith("straggler-rca gpu_throttling incident aaaa")


def test_a_node_that_a_person_drained_keeps_its_reason(
    cluster: PlayedCluster, acting: Callable[..., Acting]
) -> None:
    cluster.states["node-2"] = "IDLE+DRAIN"
    mine = acting(mode="automatic", target=SLURM)
    mine.round()
    mine.round()
    assert cluster.done == ["requeue 4711"]
    assert cluster.reasons == {}


def test_a_restart_takes_no_node_out(cluster: PlayedCluster, acting: Callable[..., Acting]) -> None:
    mine = acting(PlayedService(action="restart_from_checkpoint", takes_out=False), mode="automatic")
    mine.round()
    mine.round()
    assert cluster.done == EVERYTHING[1:]


class EndedError(BaseException):
    """The agent is killed."""


@for_each("after", [1, 2, 3])
def test_an_agent_that_is_killed_within_a_step_repeats_nothing(tmp_path: Path, after: int) -> None:
    cluster, patch = PlayedCluster(), pytest.MonkeyPatch()

    def killed(command: Any, content: str | None = None) -> str:
        answer = cluster.output(command, content)
        if len(cluster.done) == after:
            # The step has its effect, and the journal does not know.
            raise EndedError
        return answer

    with patch.context() as patched:
        for module in ("kubernetes", "slurm"):
            patched.setattr(f"rca.act.{module}.output", killed)
        mine = Acting(tmp_path / str(after), PlayedService(), mode="automatic")
        mine.round()
        with pytest.raises(EndedError):
            mine.round()
        assert mine.newest.state == "acting"
        for module in ("kubernetes", "slurm"):
            patched.setattr(f"rca.act.{module}.output", cluster.output)
        again = Acting(tmp_path / str(after), mine.service, mode="automatic")
        again.round()
    assert cluster.done == EVERYTHING
    assert again.newest.state == "done"


def test_the_successor_of_a_pod_is_left_alone(cluster: PlayedCluster, acting: Callable[..., Acting]) -> None:
    mine = acting()
    mine.round()
    cluster.pods["llama-2"] = {"uid": "uid-2-again", "node": "node-2"}
    mine.approve()
    mine.round()
    assert cluster.done == ["cordon node-2", "evict llama-3 uid-3"]


def test_a_disruption_budget_is_waited_for_and_then_ends_the_action(
    cluster: PlayedCluster, acting: Callable[..., Acting]
) -> None:
    mine = acting()
    mine.round()
    mine.approve()
    cluster.protected = True
    texts = [mine.round()[0] for _ in range(MAX_TRIES)]
    assert [text.split(":")[0] for text in texts] == ["drain_node is tried again"] * 4 + ["drain_node failed"]
    assert BUDGET in mine.newest.note
    assert mine.newest.state == "failed"
    assert mine.round() == []


def test_what_would_be_refused_is_not_proposed(cluster: PlayedCluster, acting: Callable[..., Acting]) -> None:
    cluster.protected = True
    mine = acting()
    assert BUDGET in mine.round()[0]
    assert mine.journal.all() == []


def test_an_approval_that_comes_too_late_does_nothing(
    cluster: PlayedCluster, acting: Callable[..., Acting]
) -> None:
    mine = acting(approval_seconds=60.0)
    mine.round()
    mine.now += 61.0
    assert mine.round() == ["drain_node expired: it was not approved in time"]
    assert cluster.done == []


@for_each("changes", [{"state": "resolved"}, {"diagnoses": []}])
def test_an_approved_action_that_is_not_needed_any_more_expires(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    cluster = PlayedCluster()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rca.act.kubernetes.output", cluster.output)
        mine = Acting(tmp_path / str(len(changes.get("state", ""))), PlayedService())
        mine.round()
        mine.approve()
        mine.service.incident |= changes
        mine.round()
    assert mine.newest.state == "expired"
    assert cluster.done == []


@pytest.mark.parametrize(
    ("option", "policy", "says"),
    [
        ({"chance": 0.6}, {}, "acts on the true cause with 0.60"),
        ({}, {"actions": ["restart_from_checkpoint"]}, "does not allow drain_node"),
        ({}, {"max_nodes_per_day": 0}, "1 nodes would leave within a day; the policy allows 0"),
        ({"action": "evict_other_process"}, {}, "evict_other_process is for people"),
    ],
)
def test_a_guard_says_why_nothing_is_proposed(
    acting: Callable[..., Acting], option: dict[str, Any], policy: dict[str, Any], says: str
) -> None:
    mine = acting(PlayedService(**option), **policy)
    assert says in mine.round()[0]
    assert mine.journal.all() == []


@pytest.mark.parametrize("flag", ["suspected", "uncertain"])
def test_a_doubtful_incident_gets_no_action(acting: Callable[..., Acting], flag: str) -> None:
    mine = acting()
    mine.service.incident[flag] = True
    assert mine.round() == []


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"cool_down_seconds": 500.0}, "cools down for 400 s"),
        ({"cool_down_seconds": 1.0, "max_actions_per_day": 1}, "1 actions were begun within a day"),
        ({"cool_down_seconds": 1.0, "max_nodes_per_day": 1}, "2 nodes would leave within a day"),
    ],
)
def test_a_second_incident_waits_for_the_guards(
    cluster: PlayedCluster, acting: Callable[..., Acting], policy: dict[str, Any], says: str
) -> None:
    mine = acting(mode="automatic", **policy)
    mine.round()
    mine.round()
    done = len(cluster.done)
    mine.now += 100.0
    mine.service.incident |= {"id": "b" * 32}
    mine.service.option |= {"nodes": ["node-1"]}
    assert says in mine.round()[0]
    assert len(cluster.done) == done


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("service: http://rca\njobs: {}", "jobs: Dictionary should have at least 1 item"),
        ("service: x\njobs: {a: {platform: slurm, job: '1; rm'}}", "String should match pattern"),
        ("service: x\njobs: {a: {platform: swarm}}", "platform"),
        ("service: x\njobs: {a: {platform: torchrun}}\nactions: [reboot]", "no steps exist for reboot"),
        ("service: x\njobs: {a: {platform: torchrun}}\nmode: yolo", "mode"),
    ],
)
def test_a_wrong_policy_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(InvalidInput, match=says):
        read_policy(tmp_path / "policy.yaml")


def test_commands_list_approve_and_reject(tmp_path: Path, cluster: PlayedCluster) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("service: http://rca\nmode: approve\njobs: {llama: {platform: slurm, job: '4711'}}")
    mine = Acting(tmp_path, PlayedService(), SLURM)
    mine.round()
    run = CliRunner().invoke
    listed = run(app, ["act", "list", str(path)])
    assert "proposed  llama: drain_node, saves 50 ms per step" in listed.output
    assert "  step: scontrol requeue 4711" in listed.output
    assert run(app, ["act", "approve", str(path), mine.newest.id[:6]]).exit_code == 0
    assert mine.newest.state == "approved"
    again = run(app, ["act", "reject", str(path), mine.newest.id])
    assert isinstance(again.exception, InvalidInput)
    assert "is approved, and not open" in str(again.exception)
    assert cluster.done == []
