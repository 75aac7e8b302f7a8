"""What a model card must warn of: limits of the method, and those that the run's own scores show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rca.evaluation.rows import HEALTHY, JudgedRow, grouped
from rca.evaluation.summary import estimates
from rca.training.held_out import SIMULATED, with_all_signals

#: Groups below this are not ranked among the weakest: their score is noise.
MIN_GROUP = 5
#: Fewer test windows than this say little, whatever their score.
FEW = 30
#: How many of the weakest causes are told.
WEAKEST = 5

OF_THE_METHOD = (
    "A window of fewer than 20 finished steps stays open unless a fault is all but certain, and so does "
    "health where fewer than half of the ranks were timed.",
    "A link that was slow for the whole window shows in no timer: without network counters it passes for "
    "healthy.",
    "Half of a job's ranks slower from the first step to the last looks like two kinds of machine: the "
    "answer abstains.",
    "A crash and a hang are told apart by events and by how long the silence lasts; clocks of nodes seconds "
    "apart hide a short silence.",
    "A job that fell silent and told nobody was done, or it died: without events or device metrics the "
    "answer says so.",
    "Where waiting is not measured, a fault of one rank may be put on its node.",
    "Costs are means over the window's steps, warm-up left out, not over the slow steps only.",
)


def limits(
    rows: Mapping[str, Sequence[JudgedRow]], collections: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Sentences for the card, what the run shows first.

    Parameters
    ----------
    rows : mapping of str to sequence of JudgedRow
        Of held-out windows, by source.
    collections : mapping
        As in `rca.training.data_facts.data_facts`.
    """
    found = [sentence for name, held in rows.items() for sentence in _of_source(name, with_all_signals(held))]
    tested = [name for name in rows if name != SIMULATED]
    if not tested:
        found.insert(
            0,
            "No real window was tested on: the scores say how well the model knows its simulator, unseen "
            "scenarios included, and not how it does on other jobs.",
        )
    found += [f"Collection {name} has no test windows." for name in collections if name not in tested]
    return [*found, *OF_THE_METHOD]


def _of_source(source: str, rows: Sequence[JudgedRow]) -> list[str]:
    found = []
    if len(rows) < FEW:
        found.append(f"On {source}: {len(rows)} test windows are few; read the intervals, not the values.")
    weak = _weakest(rows)
    if weak:
        found.append(f"On {source}, first cause and its ranks are right least often for {', '.join(weak)}.")
    alarms = estimates([row.judged for row in rows])["false_alarm_rate"]
    if alarms.n:
        found.append(f"On {source}, {alarms.value:.1%} of {alarms.n:,} healthy windows are called faulty.")
    else:
        found.append(f"On {source} there is no healthy test window, so nothing is known about false alarms.")
    return found


def _weakest(rows: Sequence[JudgedRow]) -> list[str]:
    scored = []
    for cause, members in grouped(rows, "cause").items():
        right = estimates([row.judged for row in members])["cause_ac@1"]
        if cause != HEALTHY and right.n >= MIN_GROUP and right.value < 1:
            scored.append((right.value, cause, right.n))
    return [f"{cause} ({value:.2f} of {n})" for value, cause, n in sorted(scored)[:WEAKEST]]
