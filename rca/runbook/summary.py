"""The summary of an answer: who, since when, what to do, what to check, why, how sure.

Every surface shows it: terminal, Markdown, HTML, Slack and incident. They decide the looks only.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from rca.diagnosis.result import PRICE, Action, Diagnosis, Evidence, Straggler, Verdict
from rca.probability import probability
from rca.runbook.evidence import evidence_line, finding_line
from rca.runbook.headline import headline, open_cause
from rca.runbook.numbers import (
    count,
    percent,
    quantity,
    seconds,
    seconds_interval,
    steps,
)
from rca.runbook.phrases import Name, Phrase, clean, joined
from rca.window.catalogue import channels
from rca.window.causes import UNKNOWN, CauseOwner
from rca.window.names import DROPPED_COLUMNS

#: Lines of evidence in a summary.
MAX_REASONS = 3
#: Least strength of a finding in the summary of a healthy answer, nats.
LOUD_IN_HEALTHY = 3.5
_MAX_OWNERS = 3
_OWNERS: dict[CauseOwner, str] = {
    "infrastructure": "infrastructure",
    "workload": "workload",
    "either": "infrastructure or workload",
}
#: Clocks that began before are no calendar clocks.
_FIRST_YEAR = 2000


@dataclass(frozen=True)
class Summary:
    """The summary of one answer; a part without content is empty.

    Attributes
    ----------
    verdict : {"healthy", "fail_slow", "fail_stop", "undecided"}
    headline : Phrase
        Verdict, who, cost and cause in one line.
    since : Phrase
        When it began, and when it was over.
    do : tuple of Phrase
        The action to take, with its gain and break-even.
    check : Phrase
        What to look at before.
    runbook : Phrase
        The command that shows the runbook of the first cause, with the window's path if that is given.
    why : tuple of Phrase
        The observations that say most, at most `MAX_REASONS`.
    lost : Phrase
        GPU-hours in this window.
    sure : Phrase
        Probabilities of the verdict and of the cause; why it is undecided.
    owner : Phrase
        Who mends each cause.
    note : Phrase
        Columns that are not in the format, and so were not used.
    """

    verdict: Verdict
    headline: Phrase
    since: Phrase
    do: tuple[Phrase, ...]
    check: Phrase
    runbook: Phrase
    why: tuple[Phrase, ...]
    lost: Phrase
    sure: Phrase
    owner: Phrase
    note: Phrase

    @classmethod
    def from_diagnosis(cls, diagnosis: Diagnosis, path: str | None = None) -> Summary:
        """Summarize a diagnosis; `path` of its window goes into the command that shows the runbook."""
        return cls(
            verdict=diagnosis.verdict,
            headline=headline(diagnosis),
            since=_since(diagnosis),
            do=_do(diagnosis),
            check=(sentence(diagnosis.next_check),) if diagnosis.next_check.strip() else (),
            runbook=_runbook(diagnosis, path),
            why=_why(diagnosis),
            lost=_lost(diagnosis),
            sure=_sure(diagnosis),
            owner=_owner(diagnosis),
            note=_note(diagnosis),
        )

    @property
    def rows(self) -> Iterator[tuple[str, tuple[Phrase, ...]]]:
        """Title and lines of each part that has content, in reading order; without the headline."""
        parts: tuple[tuple[str, tuple[Phrase, ...]], ...] = (
            ("Since", (self.since,)),
            ("Do this", self.do),
            ("Check", (self.check,)),
            ("Runbook", (self.runbook,)),
            ("Why", self.why),
            ("Lost", (self.lost,)),
            ("How sure", (self.sure,)),
            ("Owner", (self.owner,)),
            ("Not used", (self.note,)),
        )
        return ((title, lines) for title, lines in parts if any(lines))


def sentence(text: str) -> str:
    """`text` on one line, with a full stop unless it ends a sentence already."""
    cleaned = clean(text)
    return cleaned if not cleaned or cleaned.endswith((".", "?", "!")) else f"{cleaned}."


def _since(diagnosis: Diagnosis) -> Phrase:
    """When the trouble began and ended, in clock time where the window has it, and in steps."""
    groups = _groups(diagnosis)
    first = _first_step(diagnosis)
    lasts = [each.last_step for each in groups]
    last = None if None in lasts else max((each for each in lasts if each is not None), default=None)
    if diagnosis.since is None or diagnosis.since.year < _FIRST_YEAR:
        return () if first is None and last is None else (f"step {steps(first, last)}",)
    start = began(diagnosis)
    if diagnosis.failure_mode == "fail_stop":
        return (start,)
    if diagnosis.until is None:
        return (f"{start}, until the window's end",)
    at = "" if last is None else f" (step {last})"
    return (f"{start} until {moment(diagnosis.until, diagnosis.since)}{at}",)


def began(diagnosis: Diagnosis) -> str:
    """When the trouble began: ``2026-03-01 03:00:00 UTC (step 12)``; empty if that is not known."""
    first = _first_step(diagnosis)
    if diagnosis.since is None or diagnosis.since.year < _FIRST_YEAR:
        return "" if first is None else f"step {first}"
    start = moment(diagnosis.since)
    stopped = diagnosis.failure_mode == "fail_stop"
    if first is not None:
        start += f" (after step {first})" if stopped else f" (step {first})"
    earlier = not stopped and _from_the_beginning(diagnosis, first)
    return start + (" or before the window" if earlier else "")


def _first_step(diagnosis: Diagnosis) -> int | None:
    known = (each.first_step for each in _groups(diagnosis) if each.first_step is not None)
    return min(known, default=None)


def _from_the_beginning(diagnosis: Diagnosis, first: int | None) -> bool:
    span = diagnosis.window
    if first is None or span is None or span.first_step is None:
        return False
    return first <= span.first_step + diagnosis.quality.warmup_steps


def _groups(diagnosis: Diagnosis) -> list[Straggler]:
    """The stragglers that the failure mode is about."""
    if diagnosis.failure_mode != "fail_stop":
        return list(diagnosis.stragglers)
    return [each for each in diagnosis.stragglers if each.last_step is None]


def moment(at: datetime, after: datetime | None = None) -> str:
    """``2026-03-01 03:00:00 UTC``; without the date if it is that of `after`."""
    form = "%H:%M:%S UTC" if after is not None and at.date() == after.date() else "%Y-%m-%d %H:%M:%S UTC"
    return at.strftime(form)


def _do(diagnosis: Diagnosis) -> tuple[Phrase, ...]:
    """The action to take now, or what to wait for and the action then; empty if nothing is wrong."""
    if diagnosis.verdict == "healthy":
        return ()
    wanted, reason = diagnosis.recommended, diagnosis.abstention_reason
    if reason is not None and reason.code == "machine_stands_out" and diagnosis.actions:
        # Whether waiting is cheaper is not known without the cost.
        return ("Do the check first.",), ("If it confirms the fault: ", *action_phrase(diagnosis.actions[0]))
    if diagnosis.failure_mode != "fail_stop" and (diagnosis.abstained or diagnosis.cause_is_unknown):
        # The check is free, and may show a better action.
        first = [each for each in diagnosis.actions if wanted is not None and each.action == wanted.action]
        offered = [("Then ", *action_phrase(each)) for each in [*first, *diagnosis.actions][:1]]
        checked = (
            (("Do the check first.",), *offered) if offered else (("Nothing yet: do the check first.",),)
        )
        return checked if wanted is not None or diagnosis.next_check.strip() else ()
    if wanted is not None and wanted.action == "none":
        if not diagnosis.actions:
            return (("Nothing yet: do the check first.",),)
        named = [each for each in diagnosis.actions if each.action in wanted.why]
        return (f"Wait: {sentence(wanted.why)}",), ("Then ", *action_phrase([*named, *diagnosis.actions][0]))
    named = [each for each in diagnosis.actions if wanted is None or each.action == wanted.action]
    if named:
        return (action_phrase(named[0]),)
    if wanted is not None:
        return ((Name(clean(wanted.action)), f": {sentence(wanted.why)}"),)
    return (("Nothing yet: do the check first.",),) if diagnosis.next_check.strip() else ()


def action_phrase(action: Action) -> Phrase:
    """An action with its gain, price and break-even, and how to take it."""
    gains: list[str] = []
    if action.expected_seconds_per_step_saved is not None:
        gain = f"saves {seconds(action.expected_seconds_per_step_saved)} per step"
        if action.interval is not None:
            gain += f" ({seconds_interval(action.interval)})"
        gains.append(gain)
    if action.cost_seconds:
        gains.append(f"costs {seconds(action.cost_seconds)} once")
    if action.break_even_steps:
        gains.append(f"pays back after {count(action.break_even_steps, 'step')}")
    if action.escalate_after_steps:
        gains.append(f"due if the slowness lasts {count(action.escalate_after_steps, 'more step')}")
    gain = f": {', '.join(gains)}." if gains else "."
    how = clean(action.runbook)
    told = f" {how[0].upper()}{how[1:].rstrip('.')}." if how else ""
    return (Name(clean(action.action)), gain, told)


def _runbook(diagnosis: Diagnosis, path: str | None) -> Phrase:
    """The runbook of the first cause: the commands of its check, and how to go on."""
    if not diagnosis.causes or diagnosis.verdict == "healthy":
        return ()
    command = f"rca runbook {clean(diagnosis.causes[0].cause)}"
    # A path with control characters could not be copied from a page.
    if path is not None and clean(path) == path:
        command += f" --diagnosis {shlex.quote(path)}"
    return (Name(command),)


def _why(diagnosis: Diagnosis) -> tuple[Phrase, ...]:
    """The observations that say most: signals of the cause, then its times, then other findings."""
    first = diagnosis.causes[0] if diagnosis.causes else None
    told: list[Evidence] = []
    if first is not None:
        told = [each for each in first.evidence if each.signal != PRICE and each.direction == "for"]
    seen = {each.signal for each in told}
    others = [each for each in diagnosis.findings if each.signal not in seen]
    if diagnosis.verdict == "healthy":
        others = [each for each in others if each.strength >= LOUD_IN_HEALTHY]
    elif first is not None:
        blamed = set(first.ranks)
        others.sort(key=lambda each: (not blamed & set(each.ranks), -each.strength))
    # Sorting is stable, so each kind keeps its order.
    told.sort(key=lambda each: each.signal not in channels())
    lines = [evidence_line(each, brief=True) for each in told]
    lines += [finding_line(each, diagnosis.window) for each in others]
    return tuple(lines[:MAX_REASONS])


def _lost(diagnosis: Diagnosis) -> Phrase:
    slowdown = diagnosis.slowdown
    if not slowdown.gpu_hours_lost or diagnosis.failure_mode == "healthy":
        return ()
    if slowdown.gpu_hours_idle:
        idle = f", {quantity(slowdown.gpu_hours_idle, 'GPU-hours')} of them idle after the stop"
    else:
        idle = ""
    return (f"{quantity(slowdown.gpu_hours_lost, 'GPU-hours')} in this window{idle}",)


def _sure(diagnosis: Diagnosis) -> Phrase:
    """Probabilities of the failure mode and of the first cause; for open answers why they are open."""
    odds = diagnosis.failure_mode_probability.get(diagnosis.failure_mode)
    parts: list[Phrase] = []
    if odds is not None:
        parts.append((f"{diagnosis.failure_mode.replace('_', '-')} {probability(odds)}",))
    if diagnosis.causes:
        best = diagnosis.causes[0]
        likely = probability(best.probability)
        alone = " by timing alone" if best.basis == "timing" else ""
        named = (Name(best.cause), f" {likely}{alone}")
        parts.append(open_cause(diagnosis.causes) if best.cause == UNKNOWN else named)
    left = [mode for mode in diagnosis.failure_mode_set if mode != diagnosis.failure_mode]
    if left and diagnosis.set_level is not None:
        words = ", ".join(mode.replace("_", "-") for mode in left)
        parts.append((f"not ruled out at {percent(diagnosis.set_level)}: {words}",))
    told = joined(parts, "; ")
    reason = diagnosis.abstention_reason
    return told if reason is None else (*told, f". {_capital(sentence(reason.sentence))}")


def _capital(text: str) -> str:
    """`text` with a capital first, unless it begins with an identifier."""
    is_name = "_" in text.split(maxsplit=1)[0] if text.strip() else True
    return text if is_name else f"{text[0].upper()}{text[1:]}"


def _owner(diagnosis: Diagnosis) -> Phrase:
    """Who mends each cause."""
    if diagnosis.verdict == "healthy":
        return ()
    owners = {cause.cause: cause.owner for cause in diagnosis.causes}
    if len(set(owners.values())) == 1:
        return (_OWNERS[next(iter(owners.values()))],)
    shown = list(owners.items())[:_MAX_OWNERS]
    return joined((Name(cause), f": {_OWNERS[owner]}") for cause, owner in shown)


def _note(diagnosis: Diagnosis) -> Phrase:
    """The first note on dropped columns, rather one with a column that may be misspelt."""
    notes = [note for note in diagnosis.quality.notes if f": {DROPPED_COLUMNS}: " in note]
    meant = [note for note in notes if "did you mean" in note]
    chosen = next(iter([*meant, *notes]), None)
    return () if chosen is None else (clean(chosen.replace(f"{DROPPED_COLUMNS}: ", "unknown columns: ")),)
