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

from benchmarks.measure import print_table
from benchmarks.retold_incidents import INCIDENTS
from benchmarks.retold_incidents.expected import Expected
from benchmarks.retold_incidents.incident import ReportedIncident
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
class JudgedAnswer:
    """The answer to one window, and what it is worth."""

    name: str
    incident: ReportedIncident
    variant: str
    outcome: str
    answer: str
    wanted: str

    def row(self, held_out: bool) -> dict[str, Any]:
        """For the file of `--json`; what is held out has no answer there either."""
        row: dict[str, Any] = {"window": self.name, "kind": self.incident.kind, "variant": self.variant}
        row |= {"held_out": self.incident.held_out, "outcome": self.outcome}
        if self.incident.held_out and not held_out:
            return row | {"window": None}
        return row | {"answer": self.answer, "right": self.wanted}


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
    judged: list[JudgedAnswer] = []
    for each in incidents:
        if each.held_out and given.open:
            continue
        for variant, seed in product(each.variants, range(given.seed, given.seed + given.seeds)):
            judged.append(_judged(each, variant, seed, bundle))
            if not each.held_out or given.held_out:
                _print_answer(judged[-1], given.failures)
    if given.json:
        given.json.write_text(json.dumps([each.row(given.held_out) for each in judged], indent=1) + "\n")
    shown = [each for each in judged if not each.incident.held_out or given.held_out]
    _print_by(judged, "half", lambda each: "held out" if each.incident.held_out else "open")
    _print_by(shown, "kind", lambda each: each.incident.kind)
    _print_by(shown, "variant", lambda each: VARIANTS.get(each.variant, "other"))
    return 0


def _judged(incident: ReportedIncident, variant: str, seed: int, bundle: Bundle | None) -> JudgedAnswer:
    name = f"{incident.id}-{variant}" + (f" (seed {seed})" if seed else "")
    right = "an error" if incident.refused else "an answer"
    try:
        retold = incident.retell(variant, seed)
    except RcaError as error:
        worth = "right" if incident.refused else "wrong"
        return JudgedAnswer(name, incident, variant, worth, f"refused: {error}", right)
    if not incident.refused:
        right = wanted(retold.expected)
    try:
        answer = diagnose(retold.window, bundle=bundle, earlier=retold.earlier).to_dict()
    except RcaError as error:
        return JudgedAnswer(name, incident, variant, "wrong", f"refused: {error}", right)
    worth = "wrong" if incident.refused else outcome(answer, retold.expected)
    return JudgedAnswer(name, incident, variant, worth, described(answer), right)


def outcome(answer: dict[str, Any], expected: Expected) -> str:
    """What an answer, a diagnosis as the interface writes it, is worth: one of `OUTCOMES`."""
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
    first = answer["causes"][0]["cause"] if answer["causes"] else "unknown"
    named = not expected.causes or first in expected.causes
    return "right" if placed and named and priced else "wrong"


def blamed(answer: dict[str, Any]) -> set[int]:
    """Ranks of all stragglers and causes; every rank of the job where the scope is the job."""
    groups = [*answer["stragglers"], *answer["causes"]]
    ranks = {rank for group in groups for rank in group["ranks"]}
    if any(group["scope"] == "job" for group in answer["stragglers"]):
        ranks |= set(range(answer["window"]["world_size"]))
    return ranks


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
    lost = f"at least {expected.lost / 2:.3g} s per step" if expected.lost else ""
    place = f"ranks {places}" if places else ""
    parts = ["/".join(sorted(expected.verdicts)), place, "/".join(sorted(expected.causes)), lost]
    return "; ".join(part for part in parts if part) + (" (or undecided)" if expected.may_abstain else "")


def _ranks(ranks: set[int]) -> str:
    ordered = sorted(ranks)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    more = f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return ",".join(map(str, ordered[:SHOWN])) + more if ordered else "none"


def _print_answer(judged: JudgedAnswer, failures: bool) -> None:
    acceptable = judged.outcome in {"right", "abstains"}
    if acceptable and failures:
        return
    right = "" if acceptable else f"\n{'':10s}right: {judged.wanted}"
    print(f"{judged.outcome:8s}  {judged.name}: {judged.answer}{right}", flush=True)


def _print_by(judged: list[JudgedAnswer], title: str, key: Callable[[JudgedAnswer], str]) -> None:
    """Windows by outcome, one row per value of the key and one for all."""
    rows = []
    for value in (*sorted(set(map(key, judged))), "all"):
        chosen = [each for each in judged if value in {"all", key(each)}]
        found = Counter(each.outcome for each in chosen)
        faulty = sum(not each.wanted.startswith(("healthy", "an error")) for each in chosen)
        rows.append((value, len(chosen), faulty, *(found[name] for name in OUTCOMES)))
    print_table(f"windows by {title}", (title, "windows", "faulty", *OUTCOMES), rows)


def _write(incidents: list[ReportedIncident], folder: Path, seed: int) -> int:
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
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks retold", description=__doc__, formatter_class=style
    )
    option = parser.add_argument
    option("--bundle", type=Path, help="model bundle; the shipped one if absent")
    option("--only", default="*", metavar="PATTERN", help="incidents with such an id")
    option("--seed", type=int, default=0, help="of the noise; every seed makes other windows")
    option("--seeds", type=int, default=1, metavar="N", help="this seed and N - 1 more")
    option("--open", action="store_true", help="leave the held-out half out")
    option("--held-out", action="store_true", help="print the answers of the held-out half, too")
    option("--json", type=Path, metavar="FILE", help="write outcomes and answers here, too")
    option("--failures", action="store_true", help="print no acceptable answers")
    option("--output", type=Path, metavar="FOLDER", help="write the windows there, diagnose none")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
