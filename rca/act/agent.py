"""Rounds of an agent: read incidents, propose what their plans say, carry out what is approved, report it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from socket import gethostname
from typing import Any, Final
from urllib.parse import quote

import orjson

from rca.act.guards import forbidden
from rca.act.journal import ActionJournal, Proposal
from rca.act.kubernetes import cordon_and_evict
from rca.act.policy import TAKES_OUT, AgentPolicy, KubernetesJob, SlurmJob
from rca.act.processes import EndProcess, launcher_of, worker_of
from rca.act.slurm import DrainNode, RequeueJob
from rca.act.steps import AgentStep
from rca.act.tools import ToolError
from rca.client import Client
from rca.errors import InvalidInput, RcaError
from rca.recovery.option import Option
from rca.recovery.planner import Plan

#: A step that fails so often ends its action.
MAX_TRIES: Final = 5


@dataclass(frozen=True)
class ActReport:
    """What a round has done about one job or record."""

    job: str
    text: str
    proposal: Proposal | None = None


class PlanAgent:
    """Acts on the jobs of a policy.

    Parameters
    ----------
    clock : callable
        Unix seconds.
    """

    def __init__(
        self,
        policy: AgentPolicy,
        journal: ActionJournal,
        client: Client,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._policy, self._journal, self._client, self._clock = policy, journal, client, clock

    def round(self) -> list[ActReport]:
        """Carry out what is approved, report what is done, and propose what plans say."""
        reports = []
        for held in self._journal.all():
            reports += self._guarded(held.job, partial(self._further, held))
        for job in self._policy.jobs:
            reports += self._guarded(job, partial(self._proposals, job))
        return reports

    def _guarded(self, job: str, work: Callable[[], list[ActReport]]) -> list[ActReport]:
        """An error concerns its own job only; the next round tries again."""
        try:
            return work()
        except RcaError as error:
            return [ActReport(job, f"not now: {error.message}")]

    def _further(self, held: Proposal) -> list[ActReport]:
        now = self._clock()
        if held.state == "proposed" and now > held.at + self._policy.approval_seconds:
            return self._expired(held, "it was not approved in time")
        if held.state == "approved":
            reason = self._outdated(held) or forbidden(self._policy, held, self._journal.all(), now)
            if reason is not None:
                return self._expired(held, reason)
            begun = self._journal.change(held.id, ["approved"], state="acting", begun_at=now)
            return [] if begun is None else self._act(begun)
        if held.state == "acting":
            # An agent has ended in between, or a step failed in the last round.
            return self._act(held)
        if held.state == "done" and not held.reported:
            self._report(held)
        return []

    def _expired(self, held: Proposal, why: str) -> list[ActReport]:
        changed = self._journal.change(held.id, ["proposed", "approved"], state="expired", note=why)
        return [ActReport(held.job, f"{held.action} expired: {why}", changed)]

    def _outdated(self, held: Proposal) -> str | None:
        """Why an approved action is not wanted any more."""
        incident = self._incident(held.incident)
        if incident["state"] != "open":
            return "the incident is resolved"
        wanted = self._wanted(incident)
        if wanted is None:
            return "the plan does not recommend it any more"
        option, _ = wanted
        same = option.action == held.action and set(option.nodes) == set(held.nodes)
        return None if same else "the plan recommends another action by now"

    def _act(self, held: Proposal) -> list[ActReport]:
        """Carry out the steps that are left, each recorded before and after."""
        for number in range(held.n_done, len(held.steps)):
            step = held.steps[number]
            try:
                if not step.is_done():
                    step.carry_out()
            except ToolError as error:
                return [self._failed(held, step, error)]
            following = self._journal.change(held.id, ["acting"], n_done=number + 1, tries=0)
            if following is None:
                return []
            held = following
        done = self._journal.change(held.id, ["acting"], state="done", ended_at=self._clock())
        if done is None:
            return []
        self._report(done)
        return [ActReport(held.job, f"{held.action} is done: {'; '.join(s.text for s in held.steps)}", done)]

    def _failed(self, held: Proposal, step: AgentStep, error: ToolError) -> ActReport:
        ended = held.tries + 1 >= MAX_TRIES
        changes: dict[str, Any] = {"tries": held.tries + 1, "note": f"{step.text}: {error.message}"}
        if ended:
            changes |= {"state": "failed", "ended_at": self._clock()}
        changed = self._journal.change(held.id, ["acting"], **changes)
        says = "failed" if ended else "is tried again"
        return ActReport(held.job, f"{held.action} {says}: {changes['note']}", changed)

    def _report(self, held: Proposal) -> None:
        """Record the action on its incident: its windows then show the gain beside the prediction."""
        taken = datetime.fromtimestamp(held.ended_at or held.at, UTC)
        document = {
            "action": held.action,
            "taken_at": taken.isoformat(),
            "nodes": list(held.nodes),
            "ranks": list(held.ranks),
            "diagnosis_id": held.diagnosis,
            "note": f"by rca act on {gethostname()}: " + "; ".join(step.text for step in held.steps),
            "key": held.id,
        }
        self._client.post(f"/v1/incidents/{held.incident}/actions", document)
        self._journal.change(held.id, ["done"], reported=True)

    def _proposals(self, job: str) -> list[ActReport]:
        """Propose what the plan of the job's open incident recommends."""
        known = {each.incident for each in self._journal.all()}
        found = orjson.loads(self._client.get(f"/v1/incidents?state=open&job={quote(job, safe='')}"))
        reports = []
        for summary in found["items"]:
            if summary["id"] in known or summary["suspected"] or summary["uncertain"]:
                continue
            incident = self._incident(summary["id"])
            wanted = self._wanted(incident)
            if wanted is not None:
                reports.append(self._propose(job, incident, *wanted))
        return reports

    def _incident(self, incident_id: str) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self._client.get(f"/v1/incidents/{incident_id}"))
        return found

    def _wanted(self, incident: dict[str, Any]) -> tuple[Option, str] | None:
        """The option that the plan of an incident's newest certain diagnosis recommends now."""
        newest = next((each for each in incident["diagnoses"] if each["verdict"] == "sick"), None)
        if newest is None:
            return None
        answer = self._client.post("/v1/plans", {"diagnosis_id": newest["diagnosis_id"]})
        plan = Plan.model_validate(answer)
        options = [each for each in plan.options if each.action == plan.first]
        return (options[0], newest["diagnosis_id"]) if options else None

    def _propose(self, job: str, incident: dict[str, Any], option: Option, diagnosis: str) -> ActReport:
        if option.action not in TAKES_OUT:
            return ActReport(job, f"{option.action} is for people: {option.instruction}")
        state = {"dry-run": "tried", "approve": "proposed", "automatic": "approved"}[self._policy.mode]
        proposal = Proposal.model_validate(
            {
                "id": uuid.uuid4().hex,
                "incident": incident["id"],
                "job": job,
                "action": option.action,
                "cause": incident["cause"] or "unknown",
                "nodes": tuple(option.nodes),
                "ranks": tuple(option.ranks),
                "takes_out": TAKES_OUT[option.action],
                "chance": option.chance,
                "predicted": option.seconds_per_step_saved,
                "diagnosis": diagnosis,
                "steps": self._steps(job, incident, option),
                "state": state,
                "at": self._clock(),
            }
        )
        reason = forbidden(self._policy, proposal, self._journal.all(), proposal.at)
        if reason is None:
            for step in proposal.steps:
                step.check()
            reason = self._journal.add(
                proposal, lambda others: forbidden(self._policy, proposal, others, proposal.at)
            )
        if reason is not None:
            return ActReport(job, f"{option.action} is not proposed: {reason}")
        shown = "; ".join(step.text for step in proposal.steps)
        return ActReport(job, f"{state}: {option.action}: {shown}", proposal)

    def _steps(self, job: str, incident: dict[str, Any], option: Option) -> Sequence[AgentStep]:
        """The steps of an action on the job's platform."""
        target, takes_out = self._policy.jobs[job], TAKES_OUT[option.action]
        if isinstance(target, KubernetesJob):
            place = target.namespace, target.selector, incident["id"]
            return cordon_and_evict(option.nodes, *place, cordon=takes_out)
        if isinstance(target, SlurmJob):
            cause = incident["cause"] or "unknown"
            drains = [DrainNode(node=each, incident=incident["id"], cause=cause) for each in option.nodes]
            return [*(drains if takes_out else ()), RequeueJob.of(target.job)]
        return processes_of(job, option.ranks, takes_out=takes_out)


def processes_of(job: str, ranks: Sequence[int], *, takes_out: bool) -> list[EndProcess]:
    """The workers of some ranks on this machine, or their launchers if the machine is to leave the job.

    Raises
    ------
    InvalidInput
        If none of them runs here.
    """
    workers = [worker for rank in ranks if (worker := worker_of(job, rank)) is not None]
    if not workers:
        named = ", ".join(map(str, ranks)) or "none is named"
        raise InvalidInput(f"no worker of these ranks runs on this machine: {named}")
    if not takes_out:
        return workers[:1]
    launchers = [found for worker in workers if (found := launcher_of(worker)) is not None]
    return list({each.pid: each for each in launchers}.values())
