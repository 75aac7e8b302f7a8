"""Who stopped a job, and how: first who got least far; who still works did not die, who died did not hang."""

from __future__ import annotations

import numpy as np

from rca.classify.components import Component
from rca.features import FeatureSet

CRASH, HANG = "process_crash", "hang"
#: Suspicion without an ending of its own names a stopped rank from here on.
LIKELIER_THAN_NOT = 0.5
#: Share of the belief in a hang that is left where the process was seen to die, and of that in a crash where
#: it was seen to work: clocks of logs differ, and a container may hold another process.
CONTRADICTED = 0.01
#: Steps by which ranks may differ that stopped at the same point: clocks and timers are not exact.
SAME_POINT = 0.1
#: CPU time relative to before: above the first a process is alive; a rank above the second works while all
#: others, below the third, wait for it.
ALIVE, WORKING, WAITING = 0.01, 0.5, 0.3
#: Belief in the one rank that works on while all others wait.
WORKS_ALONE = 0.9


def settle_stopped(components: list[Component], features: FeatureSet) -> list[Component]:
    """Keep who stopped first: slow ranks of a stopped job are another matter.

    Parameters
    ----------
    components : list of Component
    features : FeatureSet
    """
    stopped = [component for component in components if _stopped(component, features)]
    if stopped:
        return _least_far(stopped, features)
    if (alone := _works_alone(features)) is not None:
        return [alone]
    # Nobody is seen to stop first; suspicion alone names a rank only if it is likelier than not.
    return [component for component in components if component.probability >= LIKELIER_THAN_NOT]


def _stopped(component: Component, features: FeatureSet) -> bool:
    return _behind(component, features) < 0 or bool(features.endings.fatal[list(component.ranks)].any())


def _behind(component: Component, features: FeatureSet) -> float:
    """Steps before the others at which the component's first rank stopped; 0 if it did not."""
    return float(np.nanmin(np.append(features.endings.behind[list(component.ranks)], 0.0)))


def _least_far(stopped: list[Component], features: FeatureSet) -> list[Component]:
    """Those that got least far, and whom events name: who waits for the first of all stops a phase later."""
    first = min(_behind(component, features) for component in stopped)
    return [
        component
        for component in stopped
        if _behind(component, features) <= first + SAME_POINT
        or features.endings.fatal[list(component.ranks)].any()
    ]


def _works_alone(features: FeatureSet) -> Component | None:
    """The one rank that keeps its processor busy while all others rest: they wait for it, it goes in circles.

    Where waiting spins, all are busy, and nothing is told.
    """
    used = features.endings.used
    if used is None or used.size < 2 or not np.isfinite(used).all():
        return None
    busiest = int(used.argmax())
    if used[busiest] < WORKING or np.delete(used, busiest).max() > WAITING:
        return None
    return Component("rank", (busiest,), WORKS_ALONE)


def settle_stop_cause(
    component: Component, causes: dict[str, float], features: FeatureSet
) -> dict[str, float]:
    """Beliefs in the causes of a stop, after what was seen of the processes.

    Who died before anybody was missed did not hang: peers of a dead rank wait until their watchdogs fire, so
    the job's end looks like that of a hang. Neither did several ranks of a node with which the end began:
    ranks hang one by one, and go down together. Whose processes took CPU time to the end did not die.
    """
    ranks, endings = list(component.ranks), features.endings
    together = len(ranks) > 1 and bool(endings.began[ranks].all())
    if together or endings.died[ranks].any():
        return _without(HANG, causes)
    if endings.used is not None and (endings.used[ranks] > ALIVE).all():
        return _without(CRASH, causes)
    return causes


def _without(contradicted: str, causes: dict[str, float]) -> dict[str, float]:
    """Beliefs in all causes after one of them was contradicted."""
    weighed = {
        name: chance * (CONTRADICTED if name == contradicted else 1.0) for name, chance in causes.items()
    }
    total = sum(weighed.values())
    return {name: chance / total for name, chance in weighed.items()} if total > 0 else causes
