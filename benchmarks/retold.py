"""``python -m benchmarks retold``: windows retold from public incident reports, diagnosed and judged.

Half of the incidents, by a hash of their id, is held out: thresholds are tuned on the open half only, so the
answers of the held-out half are not printed without ``--held-out``.

Outcomes: *right*; *abstains* (undecided, where the window does not tell); *silent* (undecided, though it
tells); *healthy* (a healthy verdict on a faulty job); *wrong* (any other answer, alarms on sound jobs too).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.retold_incidents import INCIDENTS, Expected, Incident
from rca.diagnosis import Bundle, diagnose
from rca.errors import RcaError

OUTCOMES = ("right", "abstains", "silent", "healthy", "wrong")
#: What the windows of a variant have, for the table.
VARIANTS = {
    "rich": "phases and exporters",
    "poor": "few phases",
    "overlapped": "waiting within backward",
    "events": "events",
    "bare": "exporters, step times",
    "steps": "exporters, step times",
    "none": "exporters alone",
}
#: Ranks of a place that are printed.
SHOWN = 6


@dataclass(frozen=True)
class Judged:
    """The answer to one window, and what it is worth."""

    name: str
    incident: Incident
    variant: str
    outcome: str
    answer: str
    wanted: str


def main(arguments: list[str]) -> int:
    """Retell, diagnose, print."""
    given = _options(arguments)
    incidents = [each for each in INCIDENTS.values() if fnmatch(each.id, given.only)]
    if not incidents:
        sys.stderr.write(f"no incident is called {given.only}; known are {', '.join(INCIDENTS)}\n")
        return 2
    if given.output is not None:
        return _write(incidents, given.output, given.seed)
    bundle = Bundle.load(given.bundle) if given.bundle else None
    console = Console(width=170)
    judged: list[Judged] = []
    for each in incidents:
        if each.held_out and given.open:
            continue
        for variant, seed in product(each.variants, range(given.seed, given.seed + given.seeds)):
            judged.append(_judged(each, variant, seed, bundle))
            if not each.held_out or given.held_out:
                _tell(console, judged[-1], given.failures)
    if given.json:
        given.json.write_text(json.dumps([_row(each, given.held_out) for each in judged], indent=1) + "\n")
    console.print(_by(judged, "half", lambda each: "held out" if each.incident.held_out else "open"))
    shown = [each for each in judged if not each.incident.held_out or given.held_out]
    console.print(_by(shown, "kind", lambda each: each.incident.kind))
    console.print(_by(shown, "variant", lambda each: VARIANTS.get(each.variant, "other")))
    return 0


def _judged(incident: Incident, variant: str, seed: int, bundle: Bundle | None) -> Judged:
    name = f"{incident.id}-{variant}" + (f" (seed {seed})" if seed else "")
    try:
        retold = incident.retell(variant, seed)
    except RcaError as error:
        worth = "right" if incident.refused else "wrong"
        return Judged(
            name,
            incident,
            variant,
            worth,
            f"refused: {error}",
            "an error" if incident.refused else "an answer",
        )
    try:
        answer = diagnose(retold.window, bundle=bundle, earlier=retold.earlier).to_dict()
    except RcaError as error:
        return Judged(name, incident, variant, "wrong", f"refused: {error}", wanted(retold.expected))
    if incident.refused:
        return Judged(name, incident, variant, "wrong", described(answer), "an error")
    return Judged(
        name, incident, variant, outcome(answer, retold.expected), described(answer), wanted(retold.expected)
    )


def outcome(answer: dict[str, Any], expected: Expected) -> str:
    """What an answer is worth, one of `OUTCOMES`.

    Parameters
    ----------
    answer : dict
        A diagnosis as the interface writes it.
    expected : Expected

    Returns
    -------
    str
    """
    verdict = answer["verdict"]
    placed = not expected.places or any(place.fits(blamed(answer)) for place in expected.places)
    price = answer["slowdown"]["seconds_per_step"]
    priced = price is None or price >= expected.lost / 2
    if verdict == "undecided":
        # Where the window does not tell the cause, the right ranks without one are an answer.
        open_cause = placed and "unknown" in expected.causes and answer["failure_mode"] in expected.verdicts
        return "abstains" if priced and (expected.may_abstain or open_cause) else "silent"
    if verdict not in expected.verdicts:
        return "healthy" if verdict == "healthy" else "wrong"
    if verdict == "healthy":
        return "right"
    named = not expected.causes or first_cause(answer) in expected.causes
    return "right" if placed and named and priced else "wrong"


def blamed(answer: dict[str, Any]) -> set[int]:
    """Ranks of all stragglers and causes; every rank of the job where the scope is the job."""
    groups = [*answer["stragglers"], *answer["causes"]]
    ranks = {rank for group in groups for rank in group["ranks"]}
    if any(group["scope"] == "job" for group in answer["stragglers"]):
        ranks |= set(range(answer["window"]["world_size"]))
    return ranks


def first_cause(answer: dict[str, Any]) -> str:
    """The first cause; ``unknown`` if there is none."""
    return str(answer["causes"][0]["cause"]) if answer["causes"] else "unknown"


def described(answer: dict[str, Any]) -> str:
    """One line about an answer."""
    verdict = answer["verdict"]
    if verdict == "undecided":
        verdict += f" ({answer['failure_mode']}, {answer['abstention_reason']['code']})"
    causes = [f"{each['cause']} {each['probability']:.2f}" for each in answer["causes"][:2]]
    cost = answer["slowdown"]["seconds_per_step"]
    price = "cost unknown" if cost is None else f"{cost:+.3g} s per step"
    probability = answer["failure_mode_probability"][answer["failure_mode"]]
    place = f"ranks {_ranks(blamed(answer))}"
    return "; ".join([f"{verdict} {probability:.2f}", place, ", ".join(causes) or "no cause", price])


def wanted(expected: Expected) -> str:
    """One line about the right answers."""
    places = " or ".join(
        _ranks(set(place.at_least or place.at_most)) + ("" if place.at_least == place.at_most else " or part")
        for place in expected.places
    )
    parts = [
        "/".join(sorted(expected.verdicts)),
        f"ranks {places}" if places else "",
        "/".join(sorted(expected.causes)),
    ]
    if expected.lost:
        parts.append(f"at least {expected.lost / 2:.3g} s per step")
    return "; ".join(part for part in parts if part) + (" (or undecided)" if expected.may_abstain else "")


def _ranks(ranks: set[int]) -> str:
    if not ranks:
        return "none"
    ordered = sorted(ranks)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(map(str, ordered[:SHOWN])) + (
        f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    )


def _tell(console: Console, judged: Judged, failures: bool) -> None:
    if judged.outcome in {"right", "abstains"}:
        if not failures:
            console.print(
                f"{judged.outcome:8s}  {judged.name}: {judged.answer}", highlight=False, markup=False
            )
        return
    console.print(
        f"{judged.outcome:8s}  {judged.name}: {judged.answer}\n{'':10s}right: {judged.wanted}",
        highlight=False,
        markup=False,
    )


def _row(judged: Judged, held_out: bool) -> dict[str, Any]:
    """One window for the file of `--json`; what is held out has no answer there either."""
    row: dict[str, Any] = {"window": judged.name, "kind": judged.incident.kind, "variant": judged.variant}
    row |= {"held_out": judged.incident.held_out, "outcome": judged.outcome}
    if judged.incident.held_out and not held_out:
        return row | {"window": None}
    return row | {"answer": judged.answer, "right": judged.wanted}


def _by(judged: list[Judged], title: str, key: Callable[[Judged], str]) -> Table:
    """Windows by outcome, one row per value of the key and one for all."""
    table = Table(title=f"windows by {title}", title_justify="left")
    for name in (title, "windows", "faulty", *OUTCOMES):
        table.add_column(name, justify="left" if name == title else "right")
    groups = {
        value: [each for each in judged if key(each) == value] for value in sorted(set(map(key, judged)))
    }
    for value, chosen in (groups | {"all": judged}).items():
        found = Counter(each.outcome for each in chosen)
        faulty = sum(not each.wanted.startswith(("healthy", "an error")) for each in chosen)
        table.add_row(value, str(len(chosen)), str(faulty), *(str(found[name]) for name in OUTCOMES))
    return table


def _write(incidents: list[Incident], folder: Path, seed: int) -> int:
    """Write the windows, and those of earlier days, as directories for `rca diagnose`."""
    for each in incidents:
        for variant in each.variants:
            try:
                retold = each.retell(variant, seed)
            except RcaError as error:
                sys.stderr.write(f"not written: {each.id}-{variant} is refused: {error}\n")
                continue
            retold.window.to_directory(folder / f"{each.id}-{variant}")
            if retold.earlier is not None:
                retold.earlier.to_directory(folder / f"{each.id}-{variant}-earlier")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks retold",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bundle", type=Path, help="model bundle; the shipped one if absent")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="incidents with such an id")
    parser.add_argument("--seed", type=int, default=0, help="of the noise; every seed makes other windows")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="this seed and N - 1 more")
    parser.add_argument("--open", action="store_true", help="leave the held-out half out")
    parser.add_argument("--held-out", action="store_true", help="print the answers of the held-out half, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write outcomes and answers here, too")
    parser.add_argument("--failures", action="store_true", help="print no acceptable answers")
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="write the windows there, diagnose none"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
