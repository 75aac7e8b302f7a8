"""An agent does what a plan says, once, within its guards, and after approval unless the policy waives it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acting import KUBERNETES, SPARE, Acting
from played_cluster import BUDGET, PlayedCluster, PlayedService, window
from typer.testing import CliRunner

from rca.act.agent import MAX_ACTING_SECONDS
from rca.act.policy import AgentPolicy, journal_of, read_policy
from rca.cli import app
from rca.errors import InvalidInput, SourceError
from tests.for_each import for_each

SLURM = {"platform": "slurm", "job": "4711"}
EVERYTHING = ["cordon node-2", "evict llama-2 uid-2", "evict llama-3 uid-3"]


def begun_in_part(cluster: PlayedCluster, mine: Acting) -> Acting:
    """An approved action whose node is cordoned, and whose pods cannot be evicted yet."""
    mine.round()
    mine.approve()
    real = cluster.output

    def protected(command: Any, content: str | None = None) -> str:
        answer = real(command, content)
        cluster.protected = cluster.cordoned["node-2"]
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rca.act.kubernetes.output", protected)
        mine.round()
    assert cluster.done == EVERYTHING[:1]
    assert mine.newest.state == "acting"
    return mine


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


def test_the_action_is_recorded_with_its_incident_before_its_first_step(
    cluster: PlayedCluster, acting: Callable[..., Acting]
) -> None:
    mine = acting(mode="automatic")
    mine.service.away = True
    mine.round()
    for _ in range(2):
        assert mine.round() == ["not now: the service cannot be reached"]
    assert cluster.done == []
    mine.service.away = False
    for _ in range(3):
        mine.round()
    assert cluster.done == EVERYTHING
    [report] = mine.service.reports
    assert (report["action"], report["nodes"], report["diagnosis_id"]) == ("drain_node", ["node-2"], "d" * 32)
    assert report["taken_at"].startswith("2027-01-15")


def test_two_agents_with_journals_of_their_own_act_once(tmp_path: Path, cluster: PlayedCluster) -> None:
    service = PlayedService()
    both = [Acting(tmp_path / name, service, mode="automatic") for name in ("a", "b")]
    for mine in (*both, *both, *both):
        mine.round()
    assert cluster.done == EVERYTHING
    assert [mine.newest.state for mine in both] == ["done", "expired"]
    assert len(service.reports) == 1


def test_an_agent_whose_journal_was_deleted_acts_on_no_incident_again(
    tmp_path: Path, cluster: PlayedCluster
) -> None:
    service = PlayedService()
    for name in ("a", "b"):
        mine = Acting(tmp_path / name, service, mode="automatic")
        mine.round()
        mine.round()
    assert cluster.done == EVERYTHING
    assert mine.journal.all() == []


def on_another_job(service: PlayedService, job: str, *nodes: str) -> None:
    """An agent with another journal has acted an hour ago."""
    service.answered_at -= 3600.0
    said = {
        "action": "drain_node",
        "nodes": list(nodes),
        "note": "rca act, record 17: cordon",
        "key": "rca act",
    }
    service.others.append((service.recorded({**said, "incident_id": "b" * 32}), job))
    service.answered_at += 3600.0


@for_each(
    ("nodes", "limit", "says"),
    [
        (("n-7",), {"max_actions_per_day": 1}, "1 actions were begun within a day; the policy allows 1"),
        (("n-7", "n-8"), {"max_nodes_per_day": 2}, "3 nodes would leave within a day; the policy allows 2"),
        (("node-2",), {"max_nodes_per_day": 1}, "proposed: drain_node"),
    ],
)
def test_budgets_count_the_actions_of_all_agents_on_the_jobs_of_the_policy(
    nodes: tuple[str, ...], limit: dict[str, int], says: str, cluster: PlayedCluster, tmp_path: Path
) -> None:
    mine = Acting(tmp_path / says[:3], PlayedService(), **limit)
    mine.change(jobs=mine.policy.model_dump()["jobs"] | {"bert": KUBERNETES | SPARE})
    on_another_job(mine.service, "bert", *nodes)
    on_another_job(mine.service, "of another team", "n-9", "n-10", "n-11")
    [text] = mine.round()
    assert says in text


def test_a_job_cools_down_after_the_action_of_another_agent(acting: Callable[..., Acting]) -> None:
    mine = acting(cool_down_seconds=7200.0)
    on_another_job(mine.service, mine.service.incident["job_id"], "n-7")
    assert mine.round() == ["nothing is proposed: the job had an action already, and cools down for 3,600 s"]
    mine.now += 3601.0
    mine.service.incident["diagnoses"] = [window("sick", "2027-01-15T08:59:00Z")]
    [text] = mine.round()
    assert text.startswith("proposed")


def test_a_clock_of_this_machine_that_jumps_frees_no_budget(
    cluster: PlayedCluster, acting: Callable[..., Acting], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = acting(mode="automatic", max_actions_per_day=1)
    mine.round()
    mine.round()
    assert cluster.done == EVERYTHING
    mine.service.incident |= {"id": "c" * 32, "actions": []}
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 2 * 86_400.0)
    [text] = mine.round()
    assert text.startswith("nothing is proposed: 1 actions were begun within a day")


def test_an_agent_does_nothing_with_a_service_that_says_no_time(acting: Callable[..., Acting]) -> None:
    mine = acting(mode="automatic")
    mine.service.answered_at = None  # type: ignore[assignment]
    assert mine.round() == ["not now: the answers of the service have no Date"]


def test_an_incident_of_another_job_is_left_alone(
    cluster: PlayedCluster, acting: Callable[..., Acting]
) -> None:
    """As of a service, or a proxy before it, that ignores the filter of a list."""
    mine = acting(mode="automatic")
    mine.service.incident["job_id"] = "bert"
    mine.service.list_everything = True
    assert mine.round() == ["nothing is proposed: the service answers with an incident of the job 'bert'"]
    assert cluster.done == []


def test_a_time_ahead_counts_as_little_as_an_old_one(
    cluster: PlayedCluster, acting: Callable[..., Acting]
) -> None:
    mine = acting()
    mine.round()
    mine.approve()
    mine.now -= 86_400.0
    assert mine.round()[0] == "drain_node expired: it was not approved and begun in time"
    assert mine.round() == ["nothing is proposed: its newest window is old, or its clock is wrong"]
    assert cluster.done == []


def test_policies_of_one_folder_have_journals_of_their_own(tmp_path: Path) -> None:
    for name, more in (("vision", ""), ("speech", ""), ("own", "journal: held.db\n")):
        jobs = "jobs: {a: {platform: torchrun}}\n"
        (tmp_path / f"{name}.yaml").write_text(f"service: http://rca\n{jobs}{more}")
    paths = [tmp_path / f"{name}.yaml" for name in ("vision", "speech", "own")]
    held = [journal_of(path, read_policy(path)) for path in paths]
    assert held == [tmp_path / name for name in ("vision.sqlite", "speech.sqlite", "held.db")]


def test_a_journal_has_one_agent(acting: Callable[..., Acting]) -> None:
    mine = acting(mode="automatic")
    with mine.journal.one_agent(), pytest.raises(SourceError, match="another agent works with"):
        mine.round()


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
    assert cluster.done == []
    assert "its steps are others by now" in {each.note for each in mine.journal.all()}


def test_a_disruption_budget_is_waited_for(cluster: PlayedCluster, acting: Callable[..., Acting]) -> None:
    mine = begun_in_part(cluster, acting())
    cluster.done.clear()
    for _ in range(20):
        mine.now += 10.0
        assert mine.round()[0].startswith("drain_node is tried again: evict pod llama-2")
    cluster.protected = False
    mine.round()
    assert cluster.done == EVERYTHING[1:]


def test_an_action_that_cannot_be_finished_fails_and_says_what_it_left(
    cluster: PlayedCluster, acting: Callable[..., Acting]
) -> None:
    mine = begun_in_part(cluster, acting())
    mine.now += MAX_ACTING_SECONDS + 1.0
    [text] = mine.round()
    assert BUDGET in text
    assert mine.newest.state == "failed"
    assert mine.newest.note.endswith("to undo what was done: kubectl uncordon node-2")
    assert mine.service.reports[1]["action"] == "other"
    assert "done: kubectl cordon node-2" in mine.service.reports[1]["note"]
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
    assert mine.round()[0] == "drain_node expired: it was not approved and begun in time"
    assert cluster.done == []


CHANGES = [
    ({"state": "resolved"}, "the incident is resolved"),
    ({"diagnoses": []}, "its newest window is healthy"),
    ({"diagnoses": [window("unsure"), window("healthy"), window("sick")]}, "its newest window is healthy"),
    ({"diagnoses": [window("sick", "2027-01-15T06:00:00Z")]}, "its newest window is old"),
    ({"uncertain": True}, "the incident is not certain"),
    ({"suspected": True}, "the incident is not certain"),
    ({"actions": [{"note": "I drained it", "key": "x"}]}, "an action was taken on the incident already"),
]


@for_each("case", [*CHANGES, ({"acknowledged_at": "2027-01-15T07:59:30Z"}, "a person works"),
                   ({"assigned_to": "ana"}, "a person works")])  # fmt: skip
def test_an_action_that_was_decided_and_is_not_needed_any_more_expires(
    case: tuple[dict[str, Any], str], tmp_path: Path
) -> None:
    changes, says = case
    cluster = PlayedCluster()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rca.act.kubernetes.output", cluster.output)
        mine = Acting(tmp_path / str(time.time_ns()), PlayedService(), mode="automatic")
        mine.round()
        mine.service.incident |= changes
        mine.round()
    assert mine.newest.state == "expired"
    assert says in mine.newest.note
    assert cluster.done == []


@for_each("case", CHANGES)
def test_an_interrupted_action_does_not_go_on_when_it_is_not_needed_any_more(
    case: tuple[dict[str, Any], str], tmp_path: Path
) -> None:
    changes, says = case
    cluster = PlayedCluster()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rca.act.kubernetes.output", cluster.output)
        mine = begun_in_part(cluster, Acting(tmp_path / str(time.time_ns()), PlayedService()))
        cluster.protected = False
        mine.service.incident |= changes
        mine.round()
    assert (mine.newest.state, says in mine.newest.note) == ("failed", True)
    assert cluster.done == EVERYTHING[:1]


@for_each(
    "option", [{"chance": 0.05}, {"nodes": ["node-1"]}, {"ranks": [0]}, {"action": "evict_other_process"}]
)
def test_an_approved_action_that_the_plan_does_not_recommend_any_more_expires(
    option: dict[str, Any], tmp_path: Path
) -> None:
    cluster = PlayedCluster()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rca.act.kubernetes.output", cluster.output)
        mine = Acting(tmp_path / str(time.time_ns()), PlayedService())
        mine.round()
        mine.approve()
        mine.service.option |= option
        mine.service.first = mine.service.option["action"]
        mine.round()
    assert mine.newest.state in ("expired", "proposed")
    assert cluster.done == []


STOPPED = [
    {"mode": "dry-run"},
    {"actions": ["replace_gpu"]},
    {"jobs": {"other": {"platform": "slurm", "job": "1"}}},
]


@for_each("policy", STOPPED)
def test_a_changed_policy_stops_what_was_approved(policy: dict[str, Any], tmp_path: Path) -> None:
    cluster = PlayedCluster()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rca.act.kubernetes.output", cluster.output)
        mine = Acting(tmp_path / str(time.time_ns()), PlayedService())
        mine.round()
        mine.approve()
        mine.change(**policy)
        mine.round()
    assert "expired" in {each.state for each in mine.journal.all()}
    assert cluster.done == []


@for_each("policy", STOPPED)
def test_a_changed_policy_stops_an_action_between_its_steps(policy: dict[str, Any], tmp_path: Path) -> None:
    cluster = PlayedCluster()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rca.act.kubernetes.output", cluster.output)
        mine = begun_in_part(cluster, Acting(tmp_path / str(time.time_ns()), PlayedService()))
        cluster.protected = False
        mine.change(**policy)
        mine.round()
    assert mine.newest.state == "failed"
    assert cluster.done == EVERYTHING[:1]


def test_what_was_decided_without_a_person_waits_for_one_in_mode_approve(
    cluster: PlayedCluster, acting: Callable[..., Acting]
) -> None:
    mine = acting(mode="automatic")
    mine.round()
    mine.change(mode="approve")
    assert mine.round()[0] == "drain_node expired: no person has approved it"
    assert {each.state for each in mine.journal.all()} == {"expired", "proposed"}
    assert cluster.done == []


def test_an_incident_that_was_tried_is_acted_on_in_another_mode(
    cluster: PlayedCluster, acting: Callable[..., Acting]
) -> None:
    mine = acting(mode="dry-run")
    mine.round()
    mine.change(mode="automatic")
    mine.round()
    mine.round()
    assert cluster.done == EVERYTHING


NAMES = ["node-9", "--selector=kubernetes.io/os=linux", "node-[1-2]", "node-1,node-2", "nodes/node-1", ""]


@for_each("name", NAMES)
@for_each("target", [KUBERNETES, SLURM])
def test_only_nodes_that_the_job_runs_on_are_taken_out(
    name: str, target: dict[str, Any], tmp_path: Path
) -> None:
    cluster = PlayedCluster()
    with pytest.MonkeyPatch.context() as patched:
        for module in ("kubernetes", "slurm"):
            patched.setattr(f"rca.act.{module}.output", cluster.output)
        service = PlayedService(nodes=["node-2", name])
        mine = Acting(tmp_path / str(time.time_ns()), service, {**SPARE, **target}, mode="automatic")
        [text] = mine.round()
        mine.round()
    assert "the job does not run on" in text or "is not the name of a node" in text
    assert cluster.done == []


@for_each("state", ["COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "PENDING"])
@for_each("when", ["before the proposal", "after the proposal"])
def test_a_slurm_job_that_has_ended_is_not_started_again(state: str, when: str, tmp_path: Path) -> None:
    cluster = PlayedCluster()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rca.act.slurm.output", cluster.output)
        mine = Acting(tmp_path / str(time.time_ns()), PlayedService(), SLURM, mode="automatic")
        if when.startswith("after"):
            mine.round()
        cluster.job_state = state
        text = "".join(mine.round() + mine.round())
    assert f"job 4711 does not run: it is {state}" in text
    assert cluster.done == []


def test_a_job_that_its_trainer_has_ended_is_left_alone(
    cluster: PlayedCluster, acting: Callable[..., Acting]
) -> None:
    mine = acting(mode="automatic")
    mine.round()
    mine.service.ended_at = "2027-01-15T07:59:59Z"
    assert mine.round()[0] == "drain_node expired: the job has ended"
    assert cluster.done == []


def test_a_tool_that_says_yes_and_does_nothing_ends_no_step(
    cluster: PlayedCluster, acting: Callable[..., Acting]
) -> None:
    mine = acting(mode="automatic", target=SLURM)
    mine.round()
    cluster.deaf = True
    assert mine.round()[0].endswith("it has no effect")
    assert cluster.done == []


@for_each("site", [{}, {"elastic": False}, {"spare_nodes": 0}])
def test_no_node_leaves_a_job_that_may_not_go_on_without_it(site: dict[str, Any], tmp_path: Path) -> None:
    cluster = PlayedCluster()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rca.act.kubernetes.output", cluster.output)
        target = KUBERNETES | {"site": site}
        mine = Acting(tmp_path / str(time.time_ns()), PlayedService(), target, mode="automatic")
        [text] = mine.round()
    assert "1 of the job's 2 nodes would leave, and nothing says that it goes on" in text
    assert cluster.done == []


def test_a_second_cause_to_end_the_round_of_another_job_is_none(
    cluster: PlayedCluster, acting: Callable[..., Acting], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = acting(mode="automatic")
    for answer in (b"<html>", b"[]", b'{"items": null}', b"{}"):
        monkeypatch.setattr(mine.service, "get", lambda _, answer=answer: answer)
        assert all("not now" in text for text in mine.round())
    assert cluster.done == []


def test_a_record_that_cannot_be_read_is_named(acting: Callable[..., Acting]) -> None:
    mine = acting()
    mine.round()
    mine.journal._held.execute("UPDATE proposals SET document = '{}'")
    assert mine.round()[0].endswith("cannot be read")


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
    assert mine.round() == ["nothing is proposed: the incident is not certain"]
    assert mine.journal.all() == []


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
    mine.service.incident |= {"id": "b" * 32, "actions": []}
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
    path.write_text(path.read_text().replace("approve", "dry-run"))
    refused = run(app, ["act", "approve", str(path), mine.newest.id[:6]])
    assert "the policy's mode is dry-run" in refused.stderr
    path.write_text(path.read_text().replace("dry-run", "approve"))
    assert run(app, ["act", "approve", str(path), mine.newest.id[:6]]).exit_code == 0
    assert mine.newest.state == "approved"
    again = run(app, ["act", "reject", str(path), mine.newest.id])
    assert (again.exit_code, "is approved, and not open" in again.stderr) == (2, True)
    assert cluster.done == []
