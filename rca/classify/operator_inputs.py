"""What operators know of their cluster: how often each cause occurs, and which nodes were at fault before.

In the training corpus causes occur as often as its authors chose. Real clusters differ: on one the network
dominates, on another the jobs themselves. Let ``pi`` be a cause's share on the cluster and ``pi_0`` its share
in training. Then ``P'(cause | window)`` is proportional to ``P(cause | window) pi / pi_0``
(Saerens et al., 2002).

The classifier treats all nodes alike. If a node was at fault more often than others, the odds that its ranks
straggle are higher. The failure mode depends on the window alone: history must not raise alarms.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from os import PathLike
from typing import Any

import numpy as np
import orjson

from rca.arrays import FloatArray
from rca.errors import InvalidInput, SourceError
from rca.files import read_file
from rca.window.causes import CAUSES, SLOW_CAUSES
from rca.window.job import Topology

#: Bound on the factor, in both directions: a window that shows another node at fault must prevail.
MAX_FACTOR = 8.0


def read_numbers(path: str | PathLike[str], example: str) -> dict[str, Any]:
    """Read a JSON object of name to number; the numbers are not checked.

    Raises
    ------
    SourceError
        If the file cannot be read.
    InvalidInput
        If it holds anything else than an object; the message shows `example`.
    """
    try:
        document = orjson.loads(read_file(path))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{path}: is not JSON: {error.msg}") from None
    if not isinstance(document, dict):
        raise InvalidInput(f"{path}: expected an object of name to number, as in {example}")
    return document


def check_positive(numbers: Mapping[str, Any], what: str, hint: str) -> None:
    """Refuse entries that are not finite positive numbers.

    Raises
    ------
    InvalidInput
        Naming the first entry that is not, as one of `what`.
    """
    for name, value in numbers.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not isfinite(value)
            or value <= 0
        ):
            raise InvalidInput(f"{what}: {name} has {value!r}, expected a positive number", hint=hint)


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


def checked_node_odds(odds: Mapping[str, float]) -> dict[str, float]:
    """Odds factors per node, cut at `MAX_FACTOR` and its inverse.

    Parameters
    ----------
    odds : mapping of node to float
        How many times the odds of an ordinary node these are; 1 says nothing.

    Raises
    ------
    InvalidInput
        For a number that is not positive.
    """
    check_positive(
        odds,
        "node odds",
        "4 says that the node is at fault about four times as often as others, 1 says nothing",
    )
    return {node: float(np.clip(value, 1 / MAX_FACTOR, MAX_FACTOR)) for node, value in odds.items()}


def read_node_odds(path: str | PathLike[str]) -> dict[str, float]:
    """Read and check a JSON object of node to odds factor.

    Raises
    ------
    SourceError
        If the file cannot be read.
    InvalidInput
        If it holds anything else.
    """
    return checked_node_odds(read_numbers(path, '{"node-17": 4}'))


def with_history(chances: FloatArray, odds: Mapping[str, float], topology: Topology) -> FloatArray:
    """Probabilities of the ranks, shape (n_ranks,), with the odds of their nodes."""
    factor = np.array([*(odds.get(name, 1.0) for name in topology.node_names), 1.0])[topology.node]
    shifted: FloatArray = chances * factor / (chances * factor + 1.0 - chances)
    return shifted
