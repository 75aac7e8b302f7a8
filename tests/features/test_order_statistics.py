"""Order statistics and groups of ranks: the same values by every way of finding them."""

from __future__ import annotations

import numpy as np

from rca.robust import PARTITION_FROM, group_members, nan_max, nan_mean, nan_quantile, zero_if_nan
from tests.for_each import for_each


@for_each("n_rows", [1, 2, PARTITION_FROM - 1, PARTITION_FROM, PARTITION_FROM + 1])
@for_each("q", [0.0, 0.35, 0.5, 0.9, 1.0])
def test_quantiles_are_those_of_numpy_at_every_size(n_rows: int, q: float) -> None:
    values = np.random.default_rng(1).normal(size=(n_rows, 3)).round(1)
    np.testing.assert_allclose(
        nan_quantile(values, q), np.quantile(values, q, axis=0), rtol=1e-12, atol=1e-12
    )
    np.testing.assert_array_equal(nan_quantile(values.T, q, axis=1), nan_quantile(values, q))


def test_a_missing_value_changes_no_other_column() -> None:
    values = np.random.default_rng(2).normal(size=(PARTITION_FROM, 2))
    missing = values.copy()
    missing[3, 0] = np.nan
    for statistic in (nan_max, nan_mean, lambda each: nan_quantile(each, 0.35)):
        assert statistic(missing)[1] == statistic(values)[1]
        assert statistic(missing)[0] == statistic(np.delete(values, 3, axis=0))[0]


def test_groups_are_ascending_and_without_ranks_of_no_group() -> None:
    found = group_members(np.array([2, -1, 0, 2, -1, 0]))
    assert [members.tolist() for members in found] == [[2, 5], [0, 3]]
    assert group_members(np.array([-1, -1])) == group_members(np.array([], dtype=int)) == []


def test_missing_values_count_as_zero() -> None:
    np.testing.assert_array_equal(zero_if_nan(np.array([1.5, np.nan])), [1.5, 0.0])
