"""Who stopped a job, and how: first who got least far; who still works did not die, who died did not hang."""

from __future__ import annotations

import numpy as np

from rca.classify.components import Component
from rca.classify.priors import reweighted
from rca.features import FeatureSet
from rca.robust import nan_median

CRASH, HANG = "process_crash", "hang"
#: Suspicion without an ending of its own names a stopped rank from here on.
LIKELIER_THAN_NOT = 0.5
#: Share of the belief in a hang that is left where the process was seen to die, and of that in a crash where
#: it was seen to work: clocks of logs differ, and a container may hold another process.
CONTRADICTED = 0.01
#: Steps by which ranks may differ that stopped at the same point: clocks and timers are not exact.
SAME_POINT = 0.1
#: CPU time relative to before from which a process is alive, and its least share of what is usual among the
#: others: what a rank took before it died reaches into the last samples.
ALIVE, LIKE_OTHERS = 0.05, 0.25
#: Steps of silence after which that is over.
LONG_SILENCE = 15.0
#: A rank above the first, relative to before, works while all others, below the second, wait for it; of two
#: ranks the one that works may as well be the one that lives.
WORKING, WAITING, ENOUGH_OTHERS = 0.5, 0.3, 2
#: Belief in the one rank that works on while all others wait.
WORKS_ALONE = 0.9


def stop_origin(components: list[Component], features: FeatureSet) -> list[Component]:
    """Keep who stopped first: slow ranks of a stopped job are another matter.

    Parameters
    ----------
    components : list of Component
    features : FeatureSet
    """
    stopped = [component for component in components if _stopped(component, features)]
    if stopped:
        return _least_far(stopped, features)
    # Nobody is seen to stop first; suspicion alone names a rank only if it is likelier than not.
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
    """Those that got least far, and whom events name: who waits for the first of all stops a phase later."""
    first = min(_behind(component, features) for component in stopped)
    return [
        component
        for component in stopped
        if _behind(component, features) <= first + SAME_POINT or _named_by_events(component, features)
    ]


def _works_alone(features: FeatureSet) -> Component | None:
    """The one rank that keeps its processor busy while all others rest: they wait for it, it goes in circles.

    Where waiting spins, all are busy, and nothing is told.
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
    """Beliefs in the causes of a stop, after what was seen of the processes.

    Who died before anybody was missed did not hang: peers of a dead rank wait until their watchdogs fire, so
    the job's end looks like that of a hang. Neither did several ranks of a node with which the end began:
    ranks hang one by one, and go down together. Whose processes took CPU time to the end did not die.
    """
    ranks, job_end = list(component.ranks), features.job_end
    together = len(ranks) > 1 and bool(job_end.origin[ranks].all())
    if together or job_end.died[ranks].any():
        return reweighted(causes, {HANG: CONTRADICTED})
    told = job_end.fatal[ranks].any() or job_end.origin[ranks].any()
    if told or not _are_alive(ranks, features):
        return causes
    return reweighted(causes, {CRASH: CONTRADICTED})


def _are_alive(ranks: list[int], features: FeatureSet) -> bool:
    """Whether the ranks' processes still took CPU time long after the end, each about as much as is usual."""
    used = features.job_end.cpu_ratio
    if used is None or not features.job_end.steps_since_progress >= LONG_SILENCE:
        return False
    usual = float(nan_median(np.delete(used, ranks)[:, None])[0]) if used.size > len(ranks) else 0.0
    needed = max(ALIVE, LIKE_OTHERS * float(np.nan_to_num(usual)))
    return bool((used[ranks] > needed).all())
