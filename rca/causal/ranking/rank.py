"""`rca.rank_causes`: which column of a telemetry table is the root cause."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from rca.arrays import FloatArray
from rca.causal.ranking.columns import Columns, label_order, read_columns
from rca.causal.ranking.evidence import gather
from rca.causal.ranking.graphs import ColumnGraph, read_graph
from rca.causal.ranking.scales import standardise
from rca.causal.ranking.shifts import locations
from rca.causal.ranking.weights import WEIGHTS, scores
from rca.errors import InvalidInput

if TYPE_CHECKING:
    import networkx
    import pandas as pd

Worse = Literal["higher", "lower", "either"]
#: Two-sided level of the intervals.
SCORE_LEVEL = 0.95
#: Scores are rounded to these digits, so that a column's unit does not break a tie.
DIGITS = 9


def rank_causes(
    normal: pd.DataFrame,
    anomalous: pd.DataFrame,
    graph: networkx.DiGraph[Any] | None = None,
    target: Hashable | None = None,
    worse: Worse = "higher",
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """Rank the columns of any telemetry table by their probability of being the root cause.

    Parameters
    ----------
    normal : DataFrame of shape (n_normal, n_columns)
        Samples from before the incident, in time order. At least two; a few hundred are enough.
    anomalous : DataFrame of shape (n_anomalous, n_columns)
        Samples of the incident, in time order, from its detection or a little before. One is enough. With
        a graph and a target, also give rows from before and after the trouble.
        Both frames may have missing values. Columns that are not numeric, not in both, without values, or a
        clock are ignored. ``result.attrs["ignored"]`` lists them with the reason.
    graph : networkx.DiGraph, optional
        Edges from cause to effect, nodes named like columns. For latencies of a call graph, an edge leads
        from callee to caller. Paths pass through nodes without a column. Columns without a node are judged as
        without a graph. Columns on one cycle are not ordered. ``result.attrs["notes"]`` lists these cases.
    target : hashable, optional
        Column with the problem to explain. Similar columns get higher scores. With a graph, nodes without a
        path to the target score 0. Columns that are as extreme while their effects are usual get lower
        scores.
    worse : {"higher", "lower", "either"}
        Which direction of a change is a problem.
    seed : int
        Of the bootstrap for the intervals. The same input and seed give the same answer.

    Returns
    -------
    DataFrame
        ``cause`` (label of the column), ``score``, ``lower``, ``upper``; best first, ties in order of the
        labels. ``score`` is the chance that this column is the root cause if at most one of them is, as
        calibrated on synthetic faults; scores add up to one less ``attrs["none_of_them"]``. ``lower`` and
        ``upper`` bound it at 95 % over resampled rows. Columns that did not move for the worse score 0.

    Raises
    ------
    InvalidInput
        If a frame is empty or repeats a column, or if no numeric column is in both. Also if `target` is not a
        ranked column, `graph` not a directed graph over them, or `worse` none of the three.

    Examples
    --------
    >>> import numpy as np, pandas as pd, rca
    >>> rng = np.random.default_rng(0)
    >>> disk = rng.gamma(9.0, 1.0, 400)
    >>> usual = pd.DataFrame({"disk_wait": disk, "latency": 3 * disk + rng.gamma(4.0, 1.0, 400)})
    >>> slow = pd.DataFrame({"disk_wait": [31.0, 35.0], "latency": [97.0, 109.0]})
    >>> rca.rank_causes(usual, slow, target="latency")["cause"].tolist()
    ['disk_wait', 'latency']
    """
    if worse not in get_args(Worse):
        raise InvalidInput(f"worse is {worse!r}", hint="use 'higher', 'lower' or 'either'")
    columns = read_columns(normal, anomalous)
    aim = None if target is None else _position(target, columns)
    drawn = None if graph is None else read_graph(graph, columns.names)
    evidence = gather(*oriented(columns, worse), drawn, aim, seed=seed)
    rounds, nothing = scores(evidence, WEIGHTS[drawn is not None, aim is not None])
    # The size of their shift orders columns with a score of 0.
    order = _order(columns.names, rounds[0], evidence.values[0, :, 0])
    result = _table(columns.names, rounds, order)
    result.attrs = {
        "ignored": columns.ignored,
        "notes": _notes(drawn, aim, target),
        "none_of_them": round(float(nothing[0]), DIGITS),
    }
    return result


def _position(target: Hashable, columns: Columns) -> int:
    if target in columns.names:
        return columns.names.index(target)
    reason = columns.ignored.get(target)
    raise InvalidInput(
        f"target {target!r} is not a column of both frames"
        if reason is None
        else f"target {target!r}: {reason}",
        hint=f"the ranked columns begin with {', '.join(map(repr, columns.names[:5]))}",
    )


def oriented(columns: Columns, worse: Worse) -> tuple[FloatArray, FloatArray]:
    """Both tables in units of spread, with the worse direction of every column positive.

    Under "either" that is the direction in which the column moved.
    """
    before, after = standardise(columns.normal, columns.anomalous)
    if worse == "lower":
        return -before, -after
    if worse == "either":
        sign = np.where(locations(before, after, seed=0, rounds=0)[0] < 0, -1.0, 1.0)
        return before * sign, after * sign
    return before, after


def _order(names: tuple[Hashable, ...], score: FloatArray, shift: FloatArray) -> list[int]:
    ranks = zip(np.round(score, DIGITS).tolist(), np.round(shift, DIGITS).tolist(), names, strict=True)
    keys = [(-of, -shifted, *label_order(name)) for of, shifted, name in ranks]
    return sorted(range(len(names)), key=keys.__getitem__)


def _table(names: tuple[Hashable, ...], rounds: FloatArray, order: list[int]) -> pd.DataFrame:
    import pandas as pd

    score = rounds[0]
    low, high = np.quantile(rounds, [(1 - SCORE_LEVEL) / 2, (1 + SCORE_LEVEL) / 2], axis=0)
    cause = [names[index] for index in order]
    return pd.DataFrame(
        {
            "cause": pd.Series(cause, dtype=object),
            "score": np.round(score, DIGITS)[order],
            "lower": np.round(np.minimum(low, score), DIGITS)[order],
            "upper": np.round(np.maximum(high, score), DIGITS)[order],
        }
    )


def _notes(graph: ColumnGraph | None, aim: int | None, target: Hashable | None) -> list[str]:
    if graph is None:
        return []
    notes = list(graph.notes)
    if aim is not None and not graph.known[aim]:
        notes.append(f"target {target!r} is not a node of the graph, so no column was excluded")
    return notes
