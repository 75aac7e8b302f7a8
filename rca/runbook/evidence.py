"""One observation in words: what it is, its value, what it is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from rca.diagnosis.result import Evidence, Finding, WindowSpan
from rca.runbook.numbers import quantity
from rca.runbook.phrases import Phrase, clean, label_of, name, place_of_finding


def evidence_lines(evidence: Sequence[Evidence], *, verbose: bool) -> tuple[Phrase, ...]:
    """A line for each observation."""
    return tuple(evidence_line(item, verbose=verbose) for item in evidence)


def evidence_line(item: Evidence, *, verbose: bool = False, brief: bool = False) -> Phrase:
    """One observation.

    Parameters
    ----------
    verbose : bool
        Also the internal name.
    brief : bool
        Without the note, if value and reference speak for themselves.
    """
    label, note = label_of(item.signal), clean(item.note)
    if brief:
        label = label.split(";")[0]
    if not label:
        label, note = note or clean(item.signal) or "(empty)", ""
    if label and item.device is not None:
        label = f"{label}, {name(item.device)}"
    unmeasured = item.value is None and item.reference is None
    # That there is an event says it all.
    unmeasured |= brief and item.unit == "events" and item.value == 1
    value = "" if unmeasured else f": {quantity(item.value, item.unit)}"
    parts = [label[0].upper(), f"{label[1:]}{value}"]
    # None at all is what a stop is compared with.
    told = item.reference is not None and not (brief and item.compared_with is None and item.reference == 0)
    if told:
        against = clean(item.compared_with or "") or "compared with"
        parts.append(f", {against} {quantity(item.reference, item.unit)}")
    if note and not (brief and item.reference is not None):
        parts.append(f" ({note})")
    if item.direction == "against":
        parts.append("; normal")
    if verbose:
        return ("".join(parts), " [", name(item.signal), "]")
    return ("".join(parts),)


def finding_line(finding: Finding, span: WindowSpan | None = None) -> Phrase:
    """One finding: ``GPU, rank 13 on gpu-001: SM clock 337 MHz, peers 1,918 MHz, since 14:17:48 UTC``."""
    label = (label_of(finding.signal) or clean(finding.signal)).split(";")[0]
    component = f"{finding.component[0].upper()}{finding.component[1:]}"
    where: Phrase = (f"{component}, ", *place_of_finding(finding, span), ": ")
    if finding.against == "events":
        times = "" if finding.value in (None, 1) else f", {quantity(finding.value, '')} times"
        what = f"{label} {clean(finding.note)}".rstrip() + times
    else:
        what = f"{label} {quantity(finding.value, finding.unit)}"
        if finding.reference is not None:
            what += f", {finding.against} {quantity(finding.reference, finding.unit)}"
    return (*where, f"{what}{_since(finding, span)}")


def _since(finding: Finding, span: WindowSpan | None) -> str:
    """The onset, with its date where the window ends on another day."""
    if finding.since is None:
        return ""
    same_day = span is not None and span.end is not None and span.end.date() == finding.since.date()
    return f", since {finding.since:{'%H:%M:%S' if same_day else '%Y-%m-%d %H:%M:%S'}} UTC"
