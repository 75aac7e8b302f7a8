"""A head with many rows grows on the workers of a real cluster, about as well as here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from rca.classify.classifier import HEADS
from rca.errors import InvalidInput, SourceError
from rca.lab.training import distributed_heads as module
from rca.lab.training import heads
from rca.lab.training.distributed_heads import is_distributed, sample_of
from rca.lab.training.heads import Target, fit_head
from rca.lab.training.tune import held_out_losses
from rca.workers import HERE, Workers

pytest.importorskip("distributed", reason="the extra [scale] is not installed")
pytest.importorskip("lightgbm.dask")

pytestmark = pytest.mark.system
CLASSES = ("healthy", "fail_slow", "fail_stop")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Workers]:
    from rca.dask_client import local_cluster

    with local_cluster(2) as held, Workers(1, held.scheduler_address) as workers:
        yield workers


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE_BYTES", 1000)
    monkeypatch.setattr(module, "PART_ROWS", 500)
    monkeypatch.setattr(heads, "SAMPLE_ROWS", 1000)
    monkeypatch.setattr(heads, "MAX_ROUNDS", 40)


def target(seed: int = 0, n: int = 4000) -> Target:
    """Two rows per group; the sum of three features is the class, with noise, and one in ten is missing."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, len(HEADS["mode"])))
    codes = np.digitize(rows[:, :3].sum(1) + rng.normal(0, 0.3, n), [-1.0, 1.0])
    rows[rng.random(rows.shape) < 0.1] = np.nan
    part = np.array(["train", "train", "calibration", "test"]).repeat(2)[np.arange(n) % 8]
    labels = tuple(CLASSES[code] for code in codes)
    group = np.array([f"group-{number // 2}" for number in range(n)])
    return Target(rows, labels, CLASSES, part, rng.uniform(0.5, 2.0, n), group)


def test_only_many_rows_and_a_cluster_of_several_machines_are_distributed(cluster: Workers) -> None:
    assert is_distributed(1001, cluster)
    assert not is_distributed(1000, cluster)
    assert not is_distributed(1001, HERE)
    assert not is_distributed(1001, Workers(8))


def test_a_sample_has_whole_groups() -> None:
    group = np.array([f"{number // 7}" for number in range(700)])
    kept = sample_of(group, 100, seed=1)
    assert 93 < kept.sum() <= 100
    assert not set(group[kept]) & set(group[~kept])
    assert sample_of(group, 10_000, seed=1).all()
    assert sample_of(group, 1, seed=1).sum() == 7


def test_a_distributed_head_is_about_as_good_and_says_so(cluster: Workers) -> None:
    data = target()
    here, there = fit_head("mode", data, 3), fit_head("mode", data, 3, workers=cluster)
    tested = data.part == "test"
    usual, shared = (held_out_losses(each, data, tested).mean for each in (here, there))
    assert shared < 1.1 * usual < 0.9 * np.log(3)
    assert here.distribution is None
    assert there.distribution is not None
    assert there.distribution.as_dict() == {
        "workers": 2, "rows": 2000, "sample_rows": 1000, "rounds": there.rounds,
    }  # fmt: skip
    assert not any(word in there.text for word in ("127.0.0.1", "listen_port"))


def test_a_class_without_rows_keeps_its_place(cluster: Workers) -> None:
    data = target()
    kept = np.array(data.labels) != "fail_slow"
    without = replace(
        data,
        rows=data.rows[kept],
        labels=tuple(label for label in data.labels if label != "fail_slow"),
        part=data.part[kept],
        weight=data.weight[kept],
        group=data.group[kept],
    )
    assert fit_head("mode", without, 3, workers=cluster).text.count("num_class=3") == 1


def test_earlier_trees_are_refused(cluster: Workers) -> None:
    with pytest.raises(InvalidInput, match="head mode has more than"):
        fit_head("mode", target(), 3, earlier=Mock(), workers=cluster)


def test_a_lost_worker_is_named(cluster: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    import lightgbm

    def lost(self: Any, *given: Any, **options: Any) -> None:
        raise lightgbm.basic.LightGBMError("Socket recv error, Connection reset by peer")

    monkeypatch.setattr(lightgbm.DaskLGBMRegressor, "fit", lost)
    with pytest.raises(SourceError, match="cannot be grown on the cluster: Socket recv error"):
        fit_head("mode", target(), 3, workers=cluster)
