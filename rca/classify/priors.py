"""How often each cause occurs on a cluster: a setting that reweights causes by Bayes' rule.

In the training corpus causes occur as often as its authors chose. Real clusters differ: on one the network
dominates, on another the jobs themselves. Let ``pi`` be a cause's share on the cluster and ``pi_0`` its share
in training. Then ``P'(cause | window)`` is proportional to ``P(cause | window) pi / pi_0``
(Saerens et al., 2002).
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

from rca.classify.operator_inputs import check_positive, read_numbers
from rca.errors import InvalidInput
from rca.telemetry.causes import CAUSES, SLOW_CAUSES


def checked_priors(priors: Mapping[str, float]) -> dict[str, float]:
    """Shares of all slow causes, adding up to 1.

    Parameters
    ----------
    priors : mapping of cause to float
        Positive, in any unit, for example counts from an incident log. A cause without a number counts as
        the rarest of the others: a fault that was never seen may still occur.

    Raises
    ------
    InvalidInput
        For an unknown cause, a cause of stopped jobs, a number that is not positive, or no number at all.
    """
    for name in priors:
        if name not in SLOW_CAUSES:
            why = "stops jobs; priors are about slow ones" if name in CAUSES else "is not in the catalogue"
            raise InvalidInput(f"cluster priors: {name!r} {why}", hint=f"known: {', '.join(SLOW_CAUSES)}")
    check_positive(
        priors, "cluster priors", "give a cause that never occurred a small number, or leave it out"
    )
    if not priors:
        raise InvalidInput("cluster priors: no cause is given")
    rarest = min(priors.values())
    full = {name: float(priors.get(name, rarest)) for name in SLOW_CAUSES}
    total = sum(full.values())
    return {name: value / total for name, value in full.items()}


def read_priors(path: str | PathLike[str]) -> dict[str, float]:
    """Read and check a JSON object of cause to frequency.

    Raises
    ------
    SourceError
        If the file cannot be read.
    InvalidInput
        If it holds anything else.
    """
    return checked_priors(read_numbers(path, '{"nic_degradation": 12}'))


def ratios(priors: Mapping[str, float], trained: Mapping[str, float]) -> dict[str, float]:
    """Share of each cause on the cluster over its share in training.

    Parameters
    ----------
    priors : mapping of cause to float
        From `checked_priors`.
    trained : mapping of cause to float
        Shares in the training data; if the bundle has none, all causes count alike.
    """
    floor = min(trained.values(), default=1.0 / len(priors))
    return {name: share / max(trained.get(name, floor), 1e-9) for name, share in priors.items()}


def reweighted(beliefs: Mapping[str, float], factors: Mapping[str, float]) -> dict[str, float]:
    """Probabilities times factors, with the same sum as before."""
    weighted = {name: belief * factors.get(name, 1.0) for name, belief in beliefs.items()}
    total, before = sum(weighted.values()), sum(beliefs.values())
    return {name: value / total * before for name, value in weighted.items()} if total > 0 else dict(beliefs)
