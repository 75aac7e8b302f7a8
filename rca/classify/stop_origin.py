"""Where a stop began, and whether by a crash or a hang.

The origin is the component that stopped first. A process that still takes CPU time did not crash; a process
that died did not hang.
"""

from __future__ import annotations

import numpy as np

from rca.classify.components import Component
from rca.classify.decision_table import LIKELIER_THAN_NOT, WORKS_ALONE
from rca.classify.operator_inputs import reweighted
from rca.features import FeatureSet
from rca.robust import nan_median

CRASH, HANG = "process_crash", "hang"
#: Factor on the probability of a hang where the process died, and of a crash where it still works. It is not
#: 0: clocks of logs differ, and a container may hold another process.
CONTRADICTED = 0.01
#: Steps by which ranks may differ that stopped at the same point, because clocks and timers are not exact.
SAME_POINT = 0.1
#: A process is alive from this CPU time on, relative to before, and from this share of the other ranks' usual
#: value on. CPU time from before a crash reaches into the last samples.
ALIVE, LIKE_OTHERS = 0.05, 0.25
#: Steps without rows after which the samples no longer contain time from before the stop.
LONG_SILENCE = 15.0
#: One rank works and all others wait if its CPU time, relative to before, is above the first bound and theirs
#: below the second. Needs more than two ranks: of two, the working one may be the surviving one.
WORKING, WAITING, ENOUGH_OTHERS = 0.5, 0.3, 2


def stop_origin(components: list[Component], features: FeatureSet) -> list[Component]:
    """Keep the components that stopped first; slow ranks of a stopped job are not its cause."""
    stopped = [component for component in components if _stopped(component, features)]
    if stopped:
        return _least_far(stopped, features)
    # No component is known to have stopped first; a suspicion alone has to be likelier than not.
    likely = [component for component in components if component.probability >= LIKELIER_THAN_NOT]
    alone = None if likely else _works_alone(features)
    return likely if alone is None else [alone]


def _stopped(component: Component, features: FeatureSet) -> bool:
    return _behind(component, features) < 0 or _named_by_events(component, features)


def _named_by_events(component: Component, features: FeatureSet) -> bool:
    return bool(features.job_end.fatal[list(component.ranks)].any())


def _behind(component: Component, features: FeatureSet) -> float:
    """Steps before the others at which the component's first rank stopped; 0 if it did not."""
    return float(np.nanmin(np.append(features.job_end.behind[list(component.ranks)], 0.0)))


def _least_far(stopped: list[Component], features: FeatureSet) -> list[Component]:
    """The components that stopped first, and those that events name: a waiting rank stops a phase later."""
    first = min(_behind(component, features) for component in stopped)
    return [
        component
        for component in stopped
        if _behind(component, features) <= first + SAME_POINT or _named_by_events(component, features)
    ]


def _works_alone(features: FeatureSet) -> Component | None:
    """The one rank that keeps its CPU busy while all others wait for it, as in an endless loop.

    None where waiting ranks spin, because then all CPUs are busy.
    """
    used = features.job_end.cpu_ratio
    if used is None or used.size <= ENOUGH_OTHERS or not np.isfinite(used).all():
        return None
    if features.job_end.died.any() or features.job_end.steps_since_progress < LONG_SILENCE:
        return None
    busiest = int(used.argmax())
    if used[busiest] < WORKING or np.delete(used, busiest).max() > WAITING:
        return None
    return Component("rank", (busiest,), WORKS_ALONE)


def refine_stop_cause(
    component: Component, causes: dict[str, float], features: FeatureSet
) -> dict[str, float]:
    """Probabilities of the causes of a stop, given what is known of the processes.

    The end of a crashed job looks like a hang, because the peers wait until their watchdogs fire. A rank that
    died before the first timeout did not hang. Nor did several ranks of a node that stopped first: ranks hang
    one by one and crash together. A process that took CPU time to the end did not crash.
    """
    ranks, job_end = list(component.ranks), features.job_end
    together = len(ranks) > 1 and bool(job_end.origin[ranks].all())
    if together or job_end.died[ranks].any():
        return reweighted(causes, {HANG: CONTRADICTED})
    named = job_end.fatal[ranks].any() or job_end.origin[ranks].any()
    if named or not _are_alive(ranks, features):
        return causes
    return reweighted(causes, {CRASH: CONTRADICTED})


def _are_alive(ranks: list[int], features: FeatureSet) -> bool:
    """Whether the ranks' processes still take a usual CPU time long after the stop."""
    used = features.job_end.cpu_ratio
    if used is None or not features.job_end.steps_since_progress >= LONG_SILENCE:
        return False
    usual = float(nan_median(np.delete(used, ranks)[:, None])[0]) if used.size > len(ranks) else 0.0
    needed = max(ALIVE, LIKE_OTHERS * float(np.nan_to_num(usual)))
    return bool((used[ranks] > needed).all())
