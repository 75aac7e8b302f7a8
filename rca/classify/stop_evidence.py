"""Done, or stopped? What words tell of a job that fell silent, and who of many kept his device.

No tree reads either: of events they know which kinds there were, of devices the means over all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from rca.classify.preconditions import alarm_thresholds, fell_silent
from rca.features import FeatureSet

#: Jobs that stop have so many times as often somebody who complains, or who stays, as jobs that are done.
#: A judgement: simulated jobs have no such witnesses, so neither budgets nor prediction sets allow for it.
WITNESSED = 20.0


def after_witnesses(probability: Mapping[str, float], features: FeatureSet) -> dict[str, float]:
    """Beliefs in the failure modes, with more in a stop where a silent job has a witness.

    Without a witness a job that is done looks like one that died, and the trees believe in either; nobody
    writes a traceback because a job is done, nor keeps its device when the others gave theirs back.
    """
    if not has_witnesses(features):
        return dict(probability)
    raised = {**probability, "fail_stop": WITNESSED * probability["fail_stop"]}
    total = sum(raised.values())
    return {mode: chance / total for mode, chance in raised.items()}


def alarm_threshold(
    thresholds: Mapping[str, float], features: FeatureSet, probability: Mapping[str, float]
) -> float:
    """Probability of a fault from which this job is called faulty.

    A job that stopped loses all of its time: where that is the likelier fault and its end has a witness, it
    alarms as what costs much does. Of strangers' silent jobs that were done none has one.

    Parameters
    ----------
    thresholds : mapping of str to float
        Of a bundle.
    features : FeatureSet
    probability : mapping of str to float
        Of each failure mode.
    """
    usual = float(alarm_thresholds(thresholds, features.window))
    stopped = probability["fail_stop"] > probability["fail_slow"] and has_witnesses(features)
    return min(usual, thresholds.get("fault_costly", usual)) if stopped else usual


def has_witnesses(features: FeatureSet) -> bool:
    """Whether the job fell silent and anybody complains, or stayed when most had left."""
    job_end = features.job_end
    return fell_silent(features) and (job_end.trouble_events > 0 or job_end.partly_released)
