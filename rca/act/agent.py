"""Rounds of an agent: read incidents, propose what their plans say, carry out what is approved, report it.

The whole state is judged again before an action begins: policy, incident, plan and steps. What was proposed
and what would be proposed now have to be the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from rca.act.budget import TAKES_OUT, ActionBudget, Begun, leaving
from rca.act.facts import CLAIM, IncidentFacts, ServiceFacts
from rca.act.guards import forbidden
from rca.act.journal import ActionJournal, Proposal
from rca.act.kubernetes import cordon_and_evict
from rca.act.policy import AgentPolicy, KubernetesJob, SlurmJob
from rca.act.processes import processes_of
from rca.act.slurm import drain_and_requeue
from rca.act.steps import AgentStep
from rca.act.tools import ToolError
from rca.client import Client, ServiceError
from rca.errors import InvalidInput, RcaError, SourceError, cut
from rca.recovery.option import Option

#: An action that is not done so long after its begin fails, seconds. Until then its steps are tried again.
MAX_ACTING_SECONDS: Final = 900.0
#: Length of a note on an incident, characters.
MAX_NOTE: Final = 1000


@dataclass(frozen=True)
class ActReport:
    """What a round has done about one job or record."""

    job: str
    text: str
    proposal: Proposal | None = None


class PlanAgent:
    """Acts on the jobs of a policy.

    Its clock is that of the service: the one of this machine may jump, and would free a budget.
    """

    def __init__(self, policy: AgentPolicy, journal: ActionJournal, client: Client) -> None:
        self._policy, self._journal, self._client = policy, journal, client
        self._facts = ServiceFacts(client)

    def round(self) -> list[ActReport]:
        """Carry out what is approved, report what is done, and propose what plans say.

        Raises
        ------
        SourceError
            If the journal cannot be used, for example because another agent does.
        """
        with self._journal.one_agent():
            reports = []
            for held in self._journal.all():
                reports += self._guarded(held.job, partial(self._further, held))
            unreadable = [
                ActReport("journal", f"record {each} cannot be read") for each in self._journal.unreadable
            ]
            for job in self._policy.jobs:
                reports += self._guarded(job, partial(self._proposals, job))
            return unreadable + reports

    def _guarded(self, job: str, work: Callable[[], list[ActReport]]) -> list[ActReport]:
        """An error concerns its own job only; the next round tries again."""
        try:
            return work()
        except RcaError as error:
            return [ActReport(job, f"not now: {error.message}")]

    def _further(self, held: Proposal) -> list[ActReport]:
        if held.state in ("proposed", "approved") and self._is_off(held.at, self._policy.approval_seconds):
            return self._expired(held, "it was not approved and begun in time")
        if held.state == "approved":
            return self._begin(held)
        if held.state == "acting":
            # An agent has ended in between, or a step failed in the last round.
            return self._go_on(held)
        if held.state == "failed" and not held.reported:
            self._report_failure(held)
        return []

    def _is_off(self, at: float, seconds: float) -> bool:
        """Whether a time is not about now: long ago, or ahead, as after a clock was set back."""
        return abs(self._facts.now() - at) > seconds

    def _expired(self, held: Proposal, why: str) -> list[ActReport]:
        changed = self._journal.change(held.id, ["proposed", "approved", "acting"], state="expired", note=why)
        return [ActReport(held.job, f"{held.action} expired: {why}", changed)]

    def _begin(self, held: Proposal) -> list[ActReport]:
        """Begin an approved action if it would be proposed again just so."""
        try:
            reason = self._not_allowed(held)
            fresh = None if reason else self._proposal(held.job, self._facts.incident(held.incident), held)
        except InvalidInput as error:
            fresh, reason = None, error.message
        if isinstance(fresh, str):
            reason = fresh
        if reason is not None or not isinstance(fresh, Proposal):
            return self._expired(held, reason or "the plan does not recommend it any more")
        for name in ("action", "nodes", "ranks", "steps"):
            if getattr(fresh, name) != getattr(held, name):
                return self._expired(held, f"its {name} are others by now")
        if all(step.is_done() for step in fresh.steps):
            return self._expired(held, "all of it is done already")
        now = self._facts.now()
        begun = self._journal.begin(fresh, self._guard(fresh, now), now)
        return self._expired(held, begun) if isinstance(begun, str) else self._act(begun)

    def _guard(self, proposal: Proposal, now: float) -> Callable[[Sequence[Proposal]], str | None]:
        """What judges a proposal beside the records of the journal, and those that the service has."""
        since = now - self._policy.counted_seconds
        here = [each.id for each in self._journal.all()]
        elsewhere = [
            Begun(
                each.recorded_at.timestamp(),
                leaving(each.action, each.nodes),
                job == proposal.job,
            )
            for job in self._policy.jobs
            for each in self._facts.begun(job, since)
            if not any(record in each.note for record in here)
        ]
        return lambda others: forbidden(self._policy, proposal, others, elsewhere, now)

    def _not_allowed(self, held: Proposal) -> str | None:
        """Why the policy does not allow to carry out a record, as it is now."""
        if self._policy.mode == "dry-run":
            return "the policy's mode is dry-run"
        if self._policy.mode == "approve" and not held.by:
            return "no person has approved it"
        if held.job not in self._policy.jobs:
            return "the policy has no such job"
        return None if held.action in self._policy.actions else f"the policy does not allow {held.action}"

    def _not_needed(self, incident: IncidentFacts, held: Proposal | None) -> str | None:
        """Why an incident needs no action of an agent, or none beside what others have done."""
        if incident.state != "open":
            return "the incident is resolved"
        if incident.suspected or incident.uncertain:
            return "the incident is not certain"
        if any(held is None or held.id not in each.note for each in incident.actions):
            return "an action was taken on the incident already"
        by_person = held is not None and held.by
        if not by_person and (incident.acknowledged_at or incident.assigned_to):
            return "a person works on the incident"
        newest = incident.newest
        if newest is None or newest.verdict == "healthy":
            return "its newest window is healthy"
        if self._is_off(newest.window_end.timestamp(), self._policy.approval_seconds):
            return "its newest window is old, or its clock is wrong"
        return "the job has ended" if self._facts.has_ended(incident.job_id) else None

    def _go_on(self, held: Proposal) -> list[ActReport]:
        """Carry on with an action that was interrupted, unless it must not go on."""
        reason = self._not_allowed(held)
        if reason is None and self._is_off(held.begun_at or held.at, MAX_ACTING_SECONDS):
            reason = f"it was not done in {MAX_ACTING_SECONDS:.0f} s. {held.note}".strip()
        reason = reason or self._not_needed(self._facts.incident(held.incident), held)
        return self._act(held) if reason is None else self._failed(held, reason)

    def _act(self, held: Proposal) -> list[ActReport]:
        """Claim the incident, and carry out the steps that are left; each is recorded when it is done."""
        if not held.claimed:
            try:
                self._claim(held)
            except ServiceError as error:
                if error.status != 409:
                    raise
                spent = error.code == "budget-spent"
                return self._expired(held, error.message if spent else "another agent acts on the incident")
            held = self._journal.change(held.id, ["acting"], claimed=True) or held
        for number in range(held.n_done, len(held.steps)):
            step = held.steps[number]
            try:
                if not step.is_done():
                    step.carry_out()
                    if not step.is_done():
                        raise ToolError("it has no effect")
            except SourceError as error:
                note = f"{step.text}: {error.message}"
                changed = self._journal.change(held.id, ["acting"], note=note)
                return [ActReport(held.job, f"{held.action} is tried again: {note}", changed)]
            except InvalidInput as error:
                return self._failed(held, f"{step.text}: {error.message}")
            held = self._journal.change(held.id, ["acting"], n_done=number + 1) or held
        done = self._journal.change(held.id, ["acting"], state="done", ended_at=self._facts.now())
        return [ActReport(held.job, f"{held.action} is done: {'; '.join(s.text for s in held.steps)}", done)]

    def _failed(self, held: Proposal, why: str) -> list[ActReport]:
        undo = [step.undo for step in held.steps[: held.n_done] if step.undo]
        note = f"{why}; to undo what was done: {'; '.join(undo)}" if undo else why
        failed = self._journal.change(
            held.id, ["acting"], state="failed", ended_at=self._facts.now(), note=note
        )
        if failed is None:
            return []
        report = ActReport(held.job, f"{held.action} failed: {note}", failed)
        return [report, *self._guarded(held.job, partial(self._report_failure, failed))]

    def _claim(self, held: Proposal) -> None:
        """Record the action on its incident: the service takes it from one agent only, within the budget.

        It counts from then on, also if the agent ends. Later windows show its gain beside the prediction.
        """
        steps = "; ".join(step.text for step in held.steps)
        self._post_action(
            held,
            {
                "action": held.action,
                "taken_at": datetime.fromtimestamp(held.begun_at or held.at, UTC).isoformat(),
                "nodes": list(held.nodes),
                "ranks": list(held.ranks),
                "diagnosis_id": held.diagnosis,
                "note": cut(f"rca act, record {held.id}: {steps}", MAX_NOTE),
                "key": CLAIM,
                "budget": self._policy.model_dump(include=set(ActionBudget.model_fields))
                | {"jobs": list(self._policy.jobs)},
            },
        )

    def _report_failure(self, held: Proposal) -> list[ActReport]:
        if held.claimed:
            done = "; ".join(step.text for step in held.steps[: held.n_done]) or "nothing"
            note = f"rca act, record {held.id}: {held.action} failed: {held.note}; done: {done}"
            self._post_action(
                held, {"action": "other", "note": cut(note, MAX_NOTE), "key": f"{CLAIM} failed"}
            )
        self._journal.change(held.id, ["failed"], reported=True)
        return []

    def _post_action(self, held: Proposal, document: dict[str, Any]) -> None:
        self._client.post(f"/v1/incidents/{held.incident}/actions", document)

    def _proposals(self, job: str) -> list[ActReport]:
        """Propose what the plan of the job's open incident recommends."""
        reports = []
        for incident in self._facts.open_incidents(job):
            settled = [each for each in self._journal.all() if each.incident == incident]
            # A dry run is tried again in another mode, and what has expired at any time.
            free = {"expired"} if self._policy.mode == "dry-run" else {"expired", "tried"}
            if all(each.state in free for each in settled):
                found = self._proposal(job, self._facts.incident(incident), None)
                reports += (
                    [ActReport(job, f"nothing is proposed: {found}")]
                    if isinstance(found, str)
                    else self._propose(job, found)
                )
        return reports

    def _propose(self, job: str, proposal: Proposal) -> list[ActReport]:
        reason = self._journal.add(proposal, self._guard(proposal, proposal.at))
        if reason is not None:
            return [ActReport(job, f"nothing is proposed: {reason}")]
        shown = "; ".join(step.text for step in proposal.steps)
        return [ActReport(job, f"{proposal.state}: {proposal.action}: {shown}", proposal)]

    def _proposal(self, job: str, incident: IncidentFacts, held: Proposal | None) -> Proposal | str:
        """What is to be done about an incident now, each step tried without an effect, or why nothing is.

        Parameters
        ----------
        held : Proposal or None
            The record that is judged again; it keeps its id.

        Raises
        ------
        InvalidInput
            If the action cannot be carried out on this job.
        """
        if incident.job_id != job:
            return f"the service answers with an incident of the job {incident.job_id!r}"
        reason = self._not_needed(incident, held)
        if reason is not None:
            return reason
        option = None
        if incident.newest is not None:
            option = self._facts.recommended(incident.newest.diagnosis_id, self._policy.jobs[job].site)
        if option is None or incident.newest is None:
            return "the plan recommends to wait"
        if option.action not in TAKES_OUT:
            return f"{option.action} is for people: {option.instruction}"
        state = {"dry-run": "tried", "approve": "proposed", "automatic": "approved"}[self._policy.mode]
        found = Proposal.model_validate(
            {
                "id": uuid.uuid4().hex if held is None else held.id,
                "incident": incident.id,
                "job": job,
                "action": option.action,
                "cause": incident.cause or "unknown",
                "nodes": tuple(option.nodes),
                "ranks": tuple(option.ranks),
                "takes_out": TAKES_OUT[option.action],
                "chance": option.chance,
                "predicted": option.seconds_per_step_saved,
                "diagnosis": incident.newest.diagnosis_id,
                "steps": (),
                "state": state,
                "at": self._facts.now(),
            }
        )
        reason = self._guard(found, found.at)(self._journal.all())
        if reason is not None:
            return reason
        steps = self._steps(job, incident, option)
        for step in steps:
            step.check()
        return Proposal.model_validate(found.model_dump() | {"steps": steps})

    def _steps(self, job: str, incident: IncidentFacts, option: Option) -> list[AgentStep]:
        """The steps of an action on the job's platform."""
        target, takes_out = self._policy.jobs[job], TAKES_OUT[option.action]
        if isinstance(target, KubernetesJob):
            place = target.namespace, target.selector, incident.id
            steps, n_nodes = cordon_and_evict(option.nodes, *place, cordon=takes_out)
        elif isinstance(target, SlurmJob):
            place = target.job, incident.id, incident.cause or "unknown"
            steps, n_nodes = drain_and_requeue(option.nodes, *place, drain=takes_out)
        else:
            steps, n_nodes = processes_of(job, option.ranks, takes_out=takes_out)
        n_leaving = len(set(option.nodes))
        if takes_out and not target.spares(n_leaving, n_nodes):
            raise InvalidInput(
                f"{n_leaving} of the job's {n_nodes} nodes would leave, and nothing says that it goes on",
                hint="give the job a site with elastic: true, or with spare_nodes, in the policy",
            )
        if not steps:
            raise InvalidInput("there is nothing to do it on")
        return steps
