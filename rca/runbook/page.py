"""The content of a runbook page as plain data: the one place that decides content and words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rca.diagnosis.format_1 import NOTABLE_SLOWING
from rca.diagnosis.result import (
    Cause,
    Diagnosis,
    EarlierWindow,
    Straggler,
    WindowSpan,
)
from rca.probability import probability
from rca.runbook.evidence import evidence_lines, finding_line
from rca.runbook.headline import COST_UNKNOWN
from rca.runbook.numbers import (
    UNKNOWN,
    count,
    percent,
    quantity,
    ratio,
    seconds,
    seconds_interval,
    steps,
)
from rca.runbook.phrases import Name, Phrase, clean, joined, name, place_of
from rca.runbook.summary import Summary, action_phrase
from rca.window.causes import SPECS

_MAX_UNKNOWN_METRICS = 12
_COST_COLUMNS = ("Cost per step", "Interval", "Share")


@dataclass(frozen=True)
class Entry:
    """A statement and its evidence."""

    title: Phrase
    evidence: tuple[Phrase, ...]


@dataclass(frozen=True)
class CauseEntry(Entry):
    """One cause: statement, evidence and table row."""

    row: tuple[Phrase, ...]


@dataclass(frozen=True)
class RunbookPage:
    """Sections of a runbook page, in reading order; an empty section is left out.

    Attributes
    ----------
    summary : Summary
        Comes first on every page.
    facts : tuple of Phrase
        Why there is no verdict, if there is none; slowdown, interval and what it cost.
    findings : tuple of Phrase
        What the machines show.
    straggler_rows : tuple of rows
        One cell per `STRAGGLER_COLUMNS`.
    suspicions : tuple of Entry
        Per straggler: causes not ruled out.
    causes : tuple of CauseEntry
        Rows have one cell per `cause_columns`.
    cause_columns : tuple of str
        A stopped job's causes have no cost per step, so they have no columns for it either.
    footer : Phrase
        Identity of the answer: ids, model, time.
    """

    summary: Summary
    facts: tuple[Phrase, ...]
    findings: tuple[Phrase, ...]
    straggler_rows: tuple[tuple[Phrase, ...], ...]
    suspicions: tuple[Entry, ...]
    causes: tuple[CauseEntry, ...]
    cause_columns: tuple[str, ...]
    unexplained: Phrase
    actions: tuple[Phrase, ...]
    next_check: Phrase
    missing: tuple[Phrase, ...]
    quality: tuple[Phrase, ...]
    footer: Phrase

    @property
    def verdict(self) -> str:
        """``healthy``, ``fail-slow``, ``fail-stop`` or ``undecided``: what colours the page."""
        return self.summary.verdict.replace("_", "-")

    STRAGGLER_COLUMNS = ("Who", "Type", "Pattern", "Steps", "Probability")

    @classmethod
    def from_diagnosis(
        cls, diagnosis: Diagnosis, *, verbose: bool = False, path: str | None = None
    ) -> RunbookPage:
        """Put a diagnosis into words; `verbose` adds internal names, `path` as for `Summary`."""
        priced = _is_priced(diagnosis)
        return cls(
            summary=Summary.from_diagnosis(diagnosis, path),
            facts=_facts(diagnosis),
            findings=tuple(finding_line(each, diagnosis.window) for each in diagnosis.findings),
            straggler_rows=tuple(_straggler_row(group, diagnosis.window) for group in diagnosis.stragglers),
            suspicions=tuple(
                entry for group in diagnosis.stragglers for entry in _suspicions(group, diagnosis)
            ),
            causes=tuple(
                _cause_entry(cause, diagnosis.window, priced=priced, verbose=verbose)
                for cause in diagnosis.causes
            ),
            cause_columns=("Cause", "Who", *(_COST_COLUMNS if priced else ()), "Probability", "Owner"),
            unexplained=_unexplained(diagnosis),
            actions=tuple(action_phrase(action) for action in diagnosis.actions),
            next_check=(clean(diagnosis.next_check),) if diagnosis.next_check.strip() else (),
            missing=tuple((name(signal),) for signal in diagnosis.missing_signals),
            quality=_quality(diagnosis),
            footer=_footer(diagnosis),
        )


def _is_priced(diagnosis: Diagnosis) -> bool:
    """Whether any cause has a cost per step; a cause of the stop has none."""
    return not all(cause.stops_the_job for cause in diagnosis.causes)


def _facts(diagnosis: Diagnosis) -> tuple[Phrase, ...]:
    slow = diagnosis.slowdown
    facts: list[Phrase] = []
    if diagnosis.abstention_reason is not None:
        reason = diagnosis.abstention_reason
        facts.append(("Not certain, ", Name(reason.code), f":{_sentence(reason.sentence)}"))
    facts.append((_slowdown(diagnosis),))
    if diagnosis.earlier is not None:
        facts.append(_comparison(diagnosis.earlier))
    if slow.versus_own_past is not None and not _past_is_earlier_window(diagnosis):
        trend = "slower" if slow.versus_own_past >= NOTABLE_SLOWING else "about the same"
        facts.append(
            (f"Compared with before the onset: steps are {ratio(slow.versus_own_past)} as long ({trend}).",)
        )
    if slow.gpu_hours_lost:
        idle = slow.gpu_hours_idle
        standing = f", of them {quantity(idle, 'GPU-hours')} idle after the stop" if idle else ""
        facts.append((f"Lost in this window: {quantity(slow.gpu_hours_lost, 'GPU-hours')}{standing}.",))
    odds = diagnosis.failure_mode_probability
    chances = ", ".join(f"{mode.replace('_', '-')} {probability(odds[mode])}" for mode in odds)
    if chances:
        facts.append((f"Probabilities: {chances}.",))
    if diagnosis.failure_mode_set and diagnosis.set_level is not None:
        plausible = ", ".join(mode.replace("_", "-") for mode in diagnosis.failure_mode_set)
        facts.append((f"Not ruled out at {percent(diagnosis.set_level)}: {plausible}.",))
    return tuple(facts)


def _slowdown(diagnosis: Diagnosis) -> str:
    slow = diagnosis.slowdown
    if slow.seconds_per_step is None:
        why = "no step was timed" if diagnosis.quality.steps_used == 0 else "nothing faster to compare with"
        return f"Cost unknown: {why}."
    return (
        f"Steps take {ratio(slow.ratio)} the time that a replay without stragglers takes: "
        f"{seconds(slow.seconds_per_step, signed=True)} per step "
        f"(interval {seconds_interval(slow.interval)})."
    )


def _past_is_earlier_window(diagnosis: Diagnosis) -> bool:
    """Whether the job's own past is the earlier window."""
    return diagnosis.earlier is not None and diagnosis.slowdown.versus_own_past == diagnosis.earlier.ratio


def _comparison(earlier: EarlierWindow) -> Phrase:
    window: Phrase = (" ", name(earlier.window_id)) if earlier.window_id else ()
    when = f", which ended {seconds(earlier.seconds_before)} before this one"
    if earlier.ratio is None:
        return (
            "Compared with the earlier window",
            *window,
            f"{when}: at least one of them has no step times.",
        )
    basis = " The answer is based on this comparison." if earlier.decided else ""
    return (
        "Compared with the earlier window",
        *window,
        f"{when}: the median step took {seconds(earlier.step_seconds)} then and takes "
        f"{ratio(earlier.ratio)} as long now.{basis}",
    )


def _straggler_row(group: Straggler, span: WindowSpan | None) -> tuple[Phrase, ...]:
    return (
        place_of(group, span),
        (group.straggler_type or UNKNOWN,),
        (group.pattern or UNKNOWN,),
        (steps(group.first_step, group.last_step),),
        (probability(group.probability),),
    )


def _suspicions(group: Straggler, diagnosis: Diagnosis) -> Iterator[Entry]:
    if group.plausible_causes and diagnosis.set_level is not None:
        causes = joined((Name(cause),) for cause in group.plausible_causes)
        left = f", causes not ruled out at {percent(diagnosis.set_level)}: "
        yield Entry((*place_of(group, diagnosis.window), left, *causes), ())


def _cause_entry(cause: Cause, span: WindowSpan | None, *, priced: bool, verbose: bool) -> CauseEntry:
    meaning = _meaning(cause.cause)
    place = place_of(cause, span)
    cost: tuple[Phrase, ...]
    if cause.seconds_per_step is None:
        cost = (("-",) if cause.stops_the_job else (COST_UNKNOWN,), ("-",), ("-",))
    else:
        share = UNKNOWN if cause.share is None else percent(cause.share)
        cost = (
            (seconds(cause.seconds_per_step, signed=True),),
            (seconds_interval(cause.interval),),
            (share,),
        )
    row = (
        (Name(cause.cause),),
        place,
        *(cost if priced else ()),
        (probability(cause.probability),),
        (cause.owner,),
    )
    title = (Name(cause.cause), ", ", *place, f": {meaning}" if meaning else "")
    return CauseEntry(title, evidence_lines(cause.evidence, verbose=verbose), row)


def _meaning(cause: str) -> str:
    """One line on `cause`; empty for an id newer than this program."""
    return SPECS[cause].meaning if cause in SPECS else ""


def _unexplained(diagnosis: Diagnosis) -> Phrase:
    if not _is_priced(diagnosis) and diagnosis.failure_mode != "fail_slow":
        return ()
    left = diagnosis.unexplained_seconds_per_step
    total = diagnosis.slowdown.seconds_per_step
    if left is None or total is None:
        return ()
    share = f" ({percent(left / total)} of the slowdown)" if total > 0 and left >= 0 else ""
    return (f"Unexplained: {seconds(left, signed=True)} per step{share}.",)


def _sentence(text: str) -> str:
    """`text` as a further sentence: a blank before it, a capital first, a full stop last."""
    cleaned = clean(text)
    return f" {cleaned[0].upper()}{cleaned[1:].rstrip('.')}." if cleaned else ""


def _quality(diagnosis: Diagnosis) -> tuple[Phrase, ...]:
    quality = diagnosis.quality
    warmup = f", of them {quality.warmup_steps:,} warm-up" if quality.warmup_steps else ""
    lines: list[Phrase] = [
        (
            f"{count(quality.rows_used, 'row')} of steps used, {quality.rows_unused:,} not; "
            f"{count(quality.steps_used, 'step')}{warmup}.",
        ),
        (
            f"{count(quality.metric_samples_used, 'metric sample')} used, "
            f"{quality.metric_samples_unused:,} not.",
        ),
    ]
    if quality.events_used or quality.events_unused:
        lines.append((f"{count(quality.events_used, 'event')} used, {quality.events_unused:,} not.",))
    if quality.unknown_metrics:
        shown = joined((name(metric),) for metric in quality.unknown_metrics[:_MAX_UNKNOWN_METRICS])
        n_unknown = len(quality.unknown_metrics) + diagnosis.left_out.get("quality.unknown_metrics", 0)
        rest = n_unknown - _MAX_UNKNOWN_METRICS
        more = f" and {rest:,} more" if rest > 0 else ""
        lines.append(("Metrics not in the signal catalogue: ", *shown, f"{more}."))
    lines.extend((clean(note),) for note in quality.notes)
    if quality.out_of_distribution:
        lines.append(
            ("The window is unlike those the model learned from: its probabilities are less reliable.",)
        )
    lines.extend((clean(line),) for line in quality.unfamiliar)
    return tuple(lines)


def _footer(diagnosis: Diagnosis) -> Phrase:
    window: Phrase = (", window ", name(diagnosis.window_id)) if diagnosis.window_id else ()
    return (
        "Job ",
        name(diagnosis.job_id),
        *window,
        ", diagnosis ",
        name(diagnosis.diagnosis_id),
        f", {diagnosis.created_at:%Y-%m-%d %H:%M:%S %Z}".rstrip(),
        ", model ",
        name(str(diagnosis.model)),
        ".",
    )
