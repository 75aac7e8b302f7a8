"""The content of a runbook page as plain data: the one place that decides content and words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rca.diagnosis.result import (
    Action,
    Cause,
    Contribution,
    Diagnosis,
    EarlierWindow,
    Evidence,
    Preference,
    Straggler,
)
from rca.runbook.headline import NOTABLE_SLOWING, headline, untimed, verdict
from rca.runbook.numbers import (
    UNKNOWN,
    count,
    percent,
    probability,
    quantity,
    ratio,
    seconds,
    seconds_interval,
    steps,
)
from rca.runbook.phrases import Name, Phrase, clean, joined, label_of, name, place_of
from rca.telemetry.causes import SPECS
from rca.telemetry.causes import UNKNOWN as UNEXPLAINED

_MOST_UNKNOWN_METRICS = 12
#: Added where the evidence as a whole favours the other cause.
CLOSE_CALL = "; the model's observations point to the other one, so check both"
#: Log-odds from which the evidence favours the other cause: three to two.
LEANS = 0.4
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
class Page:
    """Sections of a runbook page, in reading order; an empty section is left out.

    Attributes
    ----------
    verdict : str
        ``healthy``, ``fail-slow``, ``fail-stop`` or ``abstained``.
    headline : Phrase
    facts : tuple of Phrase
        Why there is no verdict, if there is none; slowdown, interval and what it cost.
    verdict_evidence : tuple of Phrase
        Evidence for the failure mode.
    straggler_rows : tuple of rows
        One cell per `STRAGGLER_COLUMNS`.
    suspicions : tuple of Entry
        Per straggler: causes not ruled out, why it is one, and why its cause was preferred to another.
    causes : tuple of CauseEntry
        Rows have one cell per `cause_columns`.
    cause_columns : tuple of str
        A stopped job's causes have no cost per step, so they have no columns for it either.
    unexplained : Phrase
    actions, missing, quality : tuple of Phrase
    next_check : Phrase
    footer : Phrase
        Identity of the answer: ids, model, time.
    """

    verdict: str
    headline: Phrase
    facts: tuple[Phrase, ...]
    verdict_evidence: tuple[Phrase, ...]
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

    STRAGGLER_COLUMNS = ("Who", "Type", "Pattern", "Steps", "Probability")

    @classmethod
    def from_diagnosis(cls, diagnosis: Diagnosis, *, verbose: bool = False) -> Page:
        """Put a diagnosis into words; `verbose` adds internal names and log-odds."""
        priced = _is_priced(diagnosis)
        return cls(
            verdict=verdict(diagnosis),
            headline=headline(diagnosis),
            facts=_facts(diagnosis),
            verdict_evidence=_lines(diagnosis.failure_mode_evidence, verbose=verbose),
            straggler_rows=tuple(_straggler_row(group) for group in diagnosis.stragglers),
            suspicions=tuple(
                entry
                for group in diagnosis.stragglers
                for entry in _suspicions(group, diagnosis.set_level, verbose=verbose)
            ),
            causes=tuple(_cause_entry(cause, priced=priced, verbose=verbose) for cause in diagnosis.causes),
            cause_columns=("Cause", "Who", *(_COST_COLUMNS if priced else ()), "Probability", "Owner"),
            unexplained=_unexplained(diagnosis),
            actions=tuple(_action(action) for action in diagnosis.actions),
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
    facts.append(
        ("No step was timed: the cost per step is unknown.",)
        if untimed(diagnosis)
        else (
            f"Steps take {ratio(slow.ratio)} the time that a replay without stragglers takes: "
            f"{seconds(slow.seconds_per_step, signed=True)} per step "
            f"(interval {seconds_interval(slow.interval)}).",
        )
    )
    if diagnosis.earlier is not None:
        facts.append(_comparison(diagnosis.earlier))
    if slow.versus_own_past is not None and not _past_is_earlier_window(diagnosis):
        trend = "slower" if slow.versus_own_past >= NOTABLE_SLOWING else "about the same"
        facts.append(
            (f"Compared with before the onset: steps are {ratio(slow.versus_own_past)} as long ({trend}).",)
        )
    if slow.gpu_hours_lost > 0:
        facts.append((f"Lost in this window: {quantity(slow.gpu_hours_lost, 'GPU-hours')}.",))
    odds = diagnosis.failure_mode_probability
    chances = ", ".join(f"{mode.replace('_', '-')} {probability(odds[mode])}" for mode in odds)
    if chances:
        facts.append((f"Probabilities: {chances}.",))
    if diagnosis.failure_mode_set and diagnosis.set_level is not None:
        plausible = ", ".join(mode.replace("_", "-") for mode in diagnosis.failure_mode_set)
        facts.append((f"Not ruled out at {percent(diagnosis.set_level)}: {plausible}.",))
    return tuple(facts)


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


def _straggler_row(group: Straggler) -> tuple[Phrase, ...]:
    return (
        place_of(group),
        (group.straggler_type or UNKNOWN,),
        (group.pattern or UNKNOWN,),
        (steps(group.first_step, group.last_step),),
        (probability(group.probability),),
    )


def _suspicions(group: Straggler, level: float | None, *, verbose: bool) -> Iterator[Entry]:
    if group.plausible_causes or group.evidence:
        yield Entry(_suspicion(group, level), _lines(group.evidence, verbose=verbose))
    if (preferred := group.preference) is not None:
        two = (Name(preferred.cause), " rather than ", Name(preferred.rather_than))
        close = CLOSE_CALL if _is_close(preferred, group) else ""
        title = (*place_of(group), ": ", *two, close)
        yield Entry(title, _lines(preferred.evidence, verbose=verbose))


def _is_close(preferred: Preference, group: Straggler) -> bool:
    """Whether the evidence favours the other cause, and that cause is not ruled out."""
    other = preferred.rather_than
    possible = not group.plausible_causes or other in group.plausible_causes
    leans = preferred.log_odds is not None and preferred.log_odds <= -LEANS
    return leans and possible and UNEXPLAINED not in (preferred.cause, other)


def _suspicion(group: Straggler, level: float | None) -> Phrase:
    title = place_of(group)
    if group.plausible_causes and level is not None:
        causes = joined((Name(cause),) for cause in group.plausible_causes)
        title = (*title, f", causes not ruled out at {percent(level)}: ", *causes)
    return title


def _cause_entry(cause: Cause, *, priced: bool, verbose: bool) -> CauseEntry:
    meaning = _meaning(cause.cause)
    place = place_of(cause)
    cost: tuple[Phrase, ...] = (
        (seconds(cause.seconds_per_step, signed=True),),
        (seconds_interval(cause.interval),),
        (percent(cause.share),),
    )
    if cause.stops_the_job:
        cost = (("-",), ("-",), ("-",))
    elif cause.without_price:
        cost = (("unknown",), ("-",), ("-",))
    row = (
        (Name(cause.cause),),
        place,
        *(cost if priced else ()),
        (probability(cause.probability),),
        (cause.owner,),
    )
    title = (Name(cause.cause), ", ", *place, f": {meaning}" if meaning else "")
    return CauseEntry(title, _lines(cause.evidence, verbose=verbose), row)


def _meaning(cause: str) -> str:
    """One line on `cause`; empty for an id newer than this program."""
    return SPECS[cause].meaning if cause in SPECS else ""


def _lines(evidence: Sequence[Evidence], *, verbose: bool) -> tuple[Phrase, ...]:
    return tuple(_evidence(item, verbose=verbose) for item in evidence)


def _evidence(item: Evidence, *, verbose: bool) -> Phrase:
    """One observation: what it is, its value, what it is compared with."""
    label, note = label_of(item.signal), clean(item.note)
    # A feature of the model is compared with healthy training windows, a signal with peers or other steps.
    usual = isinstance(item, Contribution) and not label
    if not label:
        label, note = note or clean(item.signal), ""
    unmeasured = item.value is None and item.reference is None
    value = "" if unmeasured else f": {quantity(item.value, item.unit)}"
    parts = [label[0].upper(), f"{label[1:]}{value}"]
    if item.reference is not None:
        against = "usually" if usual else "compared with"
        parts.append(f", {against} {quantity(item.reference, item.unit)}")
    if note:
        parts.append(f" ({note})")
    if item.direction == "against":
        parts.append("; argues against it")
    if verbose:
        odds = f", log-odds {item.log_odds:+.1f}" if isinstance(item, Contribution) else ""
        return ("".join(parts), " [", name(item.signal), f"{odds}]")
    return ("".join(parts),)


def _unexplained(diagnosis: Diagnosis) -> Phrase:
    if not _is_priced(diagnosis) and diagnosis.failure_mode != "fail_slow":
        return ()
    left = diagnosis.unexplained_seconds_per_step
    total = diagnosis.slowdown.seconds_per_step
    share = f" ({percent(left / total)} of the slowdown)" if total > 0 and left >= 0 else ""
    return (f"Unexplained: {seconds(left, signed=True)} per step{share}.",)


def _action(action: Action) -> Phrase:
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
    return (Name(clean(action.action)), gain, _sentence(action.runbook))


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
        shown = joined((name(metric),) for metric in quality.unknown_metrics[:_MOST_UNKNOWN_METRICS])
        n_unknown = len(quality.unknown_metrics) + diagnosis.left_out.get("quality.unknown_metrics", 0)
        rest = n_unknown - _MOST_UNKNOWN_METRICS
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
    model = diagnosis.model
    window: Phrase = (", window ", name(diagnosis.window_id)) if diagnosis.window_id else ()
    return (
        "Job ",
        name(diagnosis.job_id),
        *window,
        ", diagnosis ",
        name(diagnosis.diagnosis_id),
        f", {diagnosis.created_at:%Y-%m-%d %H:%M:%S %Z}".rstrip(),
        ", model ",
        name(f"{model.name} {model.version} ({model.sha256[:12]})"),
        ".",
    )
