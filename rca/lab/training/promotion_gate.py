"""The promotion gate: whether the challenger may replace the champion, by their answers to the same windows.

The simulated scenarios and each real collection are judged separately: a gain on one source does not make up
for a loss on another. Per source:

- **scores** (`SCORES`): none may be worse. A score is worse if a paired bootstrap shows it
  (`rca.lab.evaluation.summary.differences`), or if it loses more windows than `SCORE_SLACK` allows.
- **false alarms**: the same with `ALARM_SLACK`, which allows nearly none.
- **calibration**: worse if the error grows by more than `CALIBRATION_SLACK` and the interval excludes 0.

Once for all sources:

- **latency**: worse if the median time of a diagnosis grows by more than `LATENCY_SLACK` and the interval
  excludes 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from rca.arrays import FloatArray
from rca.lab.evaluation.intervals import Estimate, bootstrap, calibration_difference
from rca.lab.evaluation.scores import Judged
from rca.lab.evaluation.summary import LOWER_IS_BETTER, Difference, differences, estimates

#: Failure mode, ranks, straggler type, and cause on its ranks.
SCORES = ("failure_mode_accuracy", "ranks_exact", "type_accuracy", "cause_ac@1")
FALSE_ALARMS = "false_alarm_rate"
CALIBRATION = "expected_calibration_error"
LATENCY = "latency"
EVERY_SOURCE = "all"

Outcome = Literal["better", "as good", "worse"]


class Slack(NamedTuple):
    """Allowed net loss of windows if no interval shows a loss: the larger of both."""

    windows: float
    share: float

    def of(self, n: int) -> float:
        """Allowed loss of `n` windows."""
        return max(self.windows, self.share * n)


SCORE_SLACK = Slack(windows=2, share=0.02)
ALARM_SLACK = Slack(windows=0, share=0.005)
#: Absolute, in probability.
CALIBRATION_SLACK = 0.01
#: Relative, in time per diagnosis.
LATENCY_SLACK = 0.10


@dataclass(frozen=True)
class Pair:
    """Both versions' judged answers to the same windows, in the same order."""

    champion: Sequence[Judged]
    challenger: Sequence[Judged]


@dataclass(frozen=True)
class Latency:
    """Time of each version for the same windows, shape (n_windows,), seconds."""

    champion: FloatArray
    challenger: FloatArray


@dataclass(frozen=True)
class GateCheck:
    """One comparison.

    Attributes
    ----------
    source : str
        ``simulated``, the name of a collection, or ``all``.
    difference : Estimate
        Challenger minus champion (of latency: challenger over champion), with its 95 % interval.
    finding : {"better", "as good", "worse"}
    reason : str
        Reason in one line.
    """

    source: str
    name: str
    champion: float
    challenger: float
    difference: Estimate
    finding: Outcome
    reason: str


@dataclass(frozen=True)
class Verdict:
    """Result of the gate.

    Attributes
    ----------
    objections : tuple of str
        Reasons against the comparison as a whole; one of them is enough to fail.
    """

    checks: tuple[GateCheck, ...]
    objections: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """Worse if any check is; better if any check is and none is worse."""
        findings = {check.finding for check in self.checks}
        if self.objections or "worse" in findings:
            return "worse"
        return "better" if "better" in findings else "as good"

    @property
    def passed(self) -> bool:
        return self.outcome != "worse"

    @property
    def reasons(self) -> tuple[str, ...]:
        """The objections and losses, or the gains if there are none."""
        decisive = "better" if self.passed else "worse"
        checks = [f"{check.source}: {check.reason}" for check in self.checks if check.finding == decisive]
        return (*self.objections, *checks) or ("no check shows a difference",)

    def to_document(self) -> dict[str, Any]:
        """Plain data for JSON."""
        checks = [asdict(check) | {"difference": check.difference.as_row()} for check in self.checks]
        return {
            "outcome": self.outcome,
            "passed": self.passed,
            "reasons": list(self.reasons),
            "checks": checks,
        }


def decide(sources: Mapping[str, Pair], latency: Latency | None, objections: Sequence[str] = ()) -> Verdict:
    """Compare two versions; deterministic for the same answers and times.

    Parameters
    ----------
    sources : mapping of str to Pair
        By the source of the windows.
    latency : Latency or None
        None if it was not measured; then it is not judged.
    objections : sequence of str
        Reasons against the comparison as such.
    """
    checks = [check for name, pair in sources.items() for check in _of_source(name, pair)]
    if latency is not None:
        checks.append(_latency(latency))
    return Verdict(tuple(checks), tuple(objections))


def _of_source(source: str, pair: Pair) -> list[GateCheck]:
    one, other = estimates(pair.champion), estimates(pair.challenger)
    found = {each.score: each for each in differences(pair.challenger, pair.champion)}
    checks = []
    for name in (*SCORES, FALSE_ALARMS):
        if name in found:
            slack = ALARM_SLACK if name == FALSE_ALARMS else SCORE_SLACK
            finding, reason = _score_finding(found[name], slack)
            values = one[name].value, other[name].value
            checks.append(GateCheck(source, name, *values, found[name].estimate, finding, reason))
    checks.append(_calibration(source, pair, one[CALIBRATION].value, other[CALIBRATION].value))
    return checks


def _score_finding(found: Difference, slack: Slack) -> tuple[Outcome, str]:
    estimate = found.estimate
    gain = -estimate.value if found.score in LOWER_IS_BETTER else estimate.value
    change = f"{found.score} {estimate.value:+.3f} ({estimate.low:+.3f} to {estimate.high:+.3f})"
    if found.verdict != "undecided":
        return found.verdict, f"{change} over {estimate.n} windows"
    lost, allowed = -gain * estimate.n, slack.of(estimate.n)
    # Rounding errors must not count as a lost window.
    if lost > allowed + 1e-9:
        return "worse", f"{change}: {lost:.3g} of {estimate.n} windows lost, {allowed:.3g} allowed"
    return "as good", f"{change}: no difference shown over {estimate.n} windows"


def _calibration(source: str, pair: Pair, champion: float, challenger: float) -> GateCheck:
    one, other = _confidence(pair.champion), _confidence(pair.challenger)
    found = calibration_difference(other, one, np.random.default_rng(0))
    worse = found.value > CALIBRATION_SLACK and found.low > 0
    reason = f"{CALIBRATION} {found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
    finding: Outcome = "worse" if worse else "as good"
    return GateCheck(source, CALIBRATION, champion, challenger, found, finding, reason)


def _confidence(judged: Sequence[Judged]) -> tuple[FloatArray, FloatArray]:
    confidence = np.array([each.confidence for each in judged], dtype=float)
    return confidence, np.array([each.mode_right for each in judged], dtype=float)


def _latency(latency: Latency) -> GateCheck:
    ratio = bootstrap(latency.challenger / latency.champion, np.random.default_rng(0), np.median)
    worse = ratio.value > 1 + LATENCY_SLACK and ratio.low > 1
    medians = float(np.median(latency.champion)), float(np.median(latency.challenger))
    reason = f"a diagnosis takes {ratio.value:.2f} times as long ({ratio.low:.2f} to {ratio.high:.2f})"
    return GateCheck(EVERY_SOURCE, LATENCY, *medians, ratio, "worse" if worse else "as good", reason)
