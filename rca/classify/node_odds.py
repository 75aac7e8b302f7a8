"""Odds factors from the fault history of nodes: a setting that shifts which ranks are suspected.

The classifier treats all nodes alike. If a node was at fault more often than others, the prior odds that its
ranks straggle are higher. By Bayes' rule so are the posterior odds. The failure mode depends on the window
alone: history must not raise alarms.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

import numpy as np

from rca.arrays import FloatArray
from rca.classify.operator_inputs import check_positive, read_numbers
from rca.telemetry.job import Topology

#: Bound on the factor, in both directions: a window that shows another node at fault must prevail.
MAX_FACTOR = 8.0


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
