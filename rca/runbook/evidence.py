"""One observation in words: what it is, its value, what it is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from rca.diagnosis.result import Contribution, Evidence
from rca.runbook.numbers import quantity
from rca.runbook.phrases import Phrase, clean, label_of, name


def evidence_lines(evidence: Sequence[Evidence], *, verbose: bool) -> tuple[Phrase, ...]:
    """A line for each observation."""
    return tuple(evidence_line(item, verbose=verbose) for item in evidence)


def evidence_line(item: Evidence, *, verbose: bool = False, brief: bool = False) -> Phrase:
    """One observation.

    Parameters
    ----------
    verbose : bool
        Also the internal name and the log-odds.
    brief : bool
        Without the note, if value and reference speak for themselves.
    """
    label, note = label_of(item.signal), clean(item.note)
    if brief:
        label = label.split(";")[0]
    # A feature of the model is compared with healthy training windows, a signal with peers or other steps.
    usual = isinstance(item, Contribution) and not label
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
        against = clean(item.compared_with or "") or ("usually" if usual else "compared with")
        parts.append(f", {against} {quantity(item.reference, item.unit)}")
    if note and not (brief and item.reference is not None):
        parts.append(f" ({note})")
    if item.direction == "against":
        parts.append("; argues against it")
    if verbose:
        odds = f", log-odds {item.log_odds:+.1f}" if isinstance(item, Contribution) else ""
        return ("".join(parts), " [", name(item.signal), f"{odds}]")
    return ("".join(parts),)
