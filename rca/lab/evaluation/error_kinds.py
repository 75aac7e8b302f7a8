"""Kinds of errors of an answer: missed faults, wrong ranks, wrong causes."""

from __future__ import annotations

from rca.lab.evaluation.answer import MethodAnswer
from rca.sources.labels import WindowLabel, accepted, unfelt
from rca.window.causes import UNKNOWN

#: Kinds in the order of a diagnosis; an answer has the first kind that applies.
KINDS: dict[str, str] = {
    "right": "right failure mode, ranks, and first cause on its ranks",
    "false alarm": "healthy, called anything else",
    "missed": "faulty, called healthy with a verdict",
    "left open": "faulty, called healthy while abstaining",
    "other failure mode": "fail-slow called fail-stop, or the reverse",
    "no ranks named": "right failure mode, no ranks",
    "one of several": "exactly the ranks of one true cause, of several",
    "too many ranks": "all true ranks, and others",
    "too few ranks": "some of the true ranks, no others",
    "some other ranks": "some of the true ranks, and others",
    "only other ranks": "none of the true ranks",
    "cause left open": "right ranks without a named cause, where the label has one",
    "other cause": "right ranks, first cause is none of the true ones",
    "divided otherwise": "right ranks and cause, but split where the label has one fault, or the reverse",
}


def kind_of_error(answer: MethodAnswer, label: WindowLabel) -> str:
    """Key of `KINDS`.

    "" for a fault without visible effect, and for a method that does not name ranks and causes.
    """
    if unfelt(label) or not {"ranks", "causes"} <= answer.aspects:
        return ""
    if label.failure_mode == "healthy":
        return "right" if answer.mode == "healthy" else "false alarm"
    if answer.mode == "healthy":
        return "left open" if answer.abstained else "missed"
    if answer.mode != label.failure_mode:
        return "other failure mode"
    return _kind_by_ranks(answer, label) or _kind_by_cause(answer, label)


def _kind_by_ranks(answer: MethodAnswer, label: WindowLabel) -> str:
    """Kind of a wrong set of ranks; "" if it is right or not known."""
    truth = {rank for cause in label.causes for rank in cause.ranks}
    named = answer.ranks
    if not truth or truth == named:
        return ""
    if not named:
        return "no ranks named"
    if any(named == set(cause.ranks) for cause in label.causes):
        return "one of several"
    if not truth & named:
        return "only other ranks"
    return "too many ranks" if truth < named else "too few ranks" if named < truth else "some other ranks"


def _kind_by_cause(answer: MethodAnswer, label: WindowLabel) -> str:
    first = answer.causes[0] if answer.causes else None
    true = [cause for cause in label.causes if first is not None and first.cause in accepted(cause)]
    if not label.causes or (answer.names_no_cause and any(UNKNOWN in accepted(c) for c in label.causes)):
        return "right"
    if first is not None and first.cause == UNKNOWN and not true:
        return "cause left open"
    if first is None or not true:
        return "other cause"
    return "right" if any(first.ranks == set(cause.ranks) for cause in true) else "divided otherwise"
