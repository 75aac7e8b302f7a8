"""Exact Shapley shares of a handful of causes from the values of all their coalitions."""

from __future__ import annotations

from math import factorial

import numpy as np

from rca.arrays import FloatArray


def shapley(values: FloatArray) -> FloatArray:
    """Shapley value of each player.

    Parameters
    ----------
    values : ndarray of shape (2 ** n_players, ...)
        Worth of every coalition; bit ``i`` of the index says whether player ``i`` takes part.

    Returns
    -------
    ndarray of shape (n_players, ...)
        Sums to ``values[-1] - values[0]``.
    """
    n_players = int(values.shape[0]).bit_length() - 1
    coalitions = np.arange(values.shape[0])
    sizes = np.array([int(index).bit_count() for index in coalitions])
    shares = np.zeros((n_players, *values.shape[1:]))
    for player in range(n_players):
        without = coalitions[(coalitions >> player) & 1 == 0]
        weights = np.array(
            [
                factorial(int(size)) * factorial(n_players - int(size) - 1) / factorial(n_players)
                for size in sizes[without]
            ]
        )
        marginal = values[without | (1 << player)] - values[without]
        shares[player] = np.tensordot(weights, marginal, axes=1)
    return shares
