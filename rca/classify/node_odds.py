"""What a cluster remembers of its nodes: a setting that moves beliefs about who straggles.

The classifier takes every node to be as trustworthy as the next. Where history says that one is at fault more
often, the odds that its ranks straggle are that much higher before the window is looked at, and by Bayes'
rule after it as well. Whether the job is slow at all stays with the window alone: history must not raise
alarms.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

import numpy as np

from rca.arrays import FloatArray
from rca.classify.operator_inputs import check_positive, read_numbers
from rca.telemetry.job import Topology

#: History moves no odds further than this, either way: a window that shows another culprit must prevail.
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
    moved: FloatArray = chances * factor / (chances * factor + 1.0 - chances)
    return moved
