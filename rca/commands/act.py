"""`rca act`: carry out what plans say, behind guards and with the approval of a person."""

from __future__ import annotations

import os
import pwd
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from rca.terminal import OutputFormat, write

if TYPE_CHECKING:
    from rca.act.agent import ActReport
    from rca.act.journal import ActionJournal, Proposal
    from rca.act.policy import AgentPolicy

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Carry out what the plans of incidents recommend: on Kubernetes, Slurm or torchrun.\n\n"
    "By default each step is only tried without an effect (mode: dry-run). In mode approve a person approves "
    "each action. An incident gets one action at most.",
    epilog="\b\nA policy:\n"
    "  service: http://rca:8080\n"
    "  mode: approve              dry-run (default), approve, automatic\n"
    "  jobs:                      the agent acts on no other job\n"
    "    llama-17: {platform: kubernetes, namespace: train, selector: jobset.sigs.k8s.io/jobset-name=llama}\n"
    "    bert-3: {platform: slurm, job: '4711'}\n"
    "  max_nodes_per_day: 2\n\n"
    "\b\nExamples:\n"
    "  rca act run policy.yaml --once      one round; exit code 0\n"
    "  rca act list policy.yaml\n"
    "  rca act approve policy.yaml 5f0c",
)
PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="YAML file with what the agent may do.")]
ProposalId = Annotated[str, typer.Argument(metavar="ID", help="Id of a proposal, or its begin.")]
As = Annotated[OutputFormat, typer.Option("--format", "-f", help="Output format.")]


@app.command("run")
def run_command(
    policy: PolicyFile,
    once: Annotated[bool, typer.Option("--once", help="End after one round.")] = False,
    format_: As = OutputFormat.table,
) -> None:
    """Propose actions for open incidents, and carry out those that are approved, until Ctrl-C."""
    from rca.act.agent import PlanAgent
    from rca.client import Client

    found, journal = _opened(policy)
    agent = PlanAgent(found, journal, Client(found.service))
    said: list[ActReport] = []
    while True:
        reports = agent.round()
        for report in reports:
            if report not in said:
                write(_line(report, format_))
        said = reports
        if once:
            return
        time.sleep(found.every_seconds)


@app.command("list")
def list_command(policy: PolicyFile, format_: As = OutputFormat.table) -> None:
    """List the proposals, the newest first."""
    _, journal = _opened(policy)
    held = journal.all()
    if format_ is OutputFormat.json:
        write(orjson.dumps([each.model_dump(mode="json") for each in held]).decode())
        return
    write("\n".join(map(_shown, held)) or "nothing was proposed yet")


@app.command("approve")
def approve_command(policy: PolicyFile, proposal: ProposalId) -> None:
    """Approve a proposal: the running agent carries it out if its incident still needs it."""
    _decide(policy, proposal, "approved")


@app.command("reject")
def reject_command(policy: PolicyFile, proposal: ProposalId) -> None:
    """Reject a proposal, for good."""
    _decide(policy, proposal, "rejected")


def _decide(policy: Path, proposal: str, state: str) -> None:
    from rca.errors import InvalidInput

    allowed, journal = _opened(policy)
    if state == "approved" and allowed.mode == "dry-run":
        raise InvalidInput("the policy's mode is dry-run, so nothing is carried out")
    found = journal.get(proposal)
    changed = journal.change(found.id, ["proposed"], state=state, by=_person())
    if changed is None:
        raise InvalidInput(f"proposal {found.id[:8]} is {journal.get(found.id).state}, and not open")
    write(_shown(changed))


def _person() -> str:
    """The account of this process; its environment may name another one."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _opened(policy: Path) -> tuple[AgentPolicy, ActionJournal]:
    from rca.act.journal import ActionJournal
    from rca.act.policy import journal_of, read_policy

    found = read_policy(policy)
    return found, ActionJournal(journal_of(policy, found))


def _line(report: ActReport, format_: OutputFormat) -> str:
    if format_ is OutputFormat.json:
        held = None if report.proposal is None else report.proposal.model_dump(mode="json")
        return orjson.dumps({"job": report.job, "text": report.text, "proposal": held}).decode()
    return f"{report.job}: {report.text}"


def _shown(proposal: Proposal) -> str:
    at = datetime.fromtimestamp(proposal.at, UTC)
    saved = "" if proposal.predicted is None else f", saves {1e3 * proposal.predicted:.0f} ms per step"
    what = f"{proposal.job}: {proposal.action}{saved}"
    head = f"{proposal.id[:8]}  {at:%Y-%m-%d %H:%M} UTC  {proposal.state}  {what}"
    steps = [
        f"  {'done' if number < proposal.n_done else 'step'}: {step.text}"
        for number, step in enumerate(proposal.steps)
    ]
    return "\n".join([head, *steps, *([f"  note: {proposal.note}"] if proposal.note else [])])
