"""What counts how much in a fit."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import orjson
import pytest
from made_up_corpus import made_up_corpus

from rca.lab.training.examples import gathered
from rca.lab.training.weighting import balanced
from rca.workers import HERE

WINDOWS = Path(__file__).resolve().parents[2] / "data" / "windows"


def test_real_windows_get_their_share_and_small_collections_more_of_it_per_window() -> None:
    n = 600
    real = np.arange(n) < 120
    group = [f"ours/{i}" if i < 100 else f"theirs/{i}" if i < 120 else f"simulation-{i}" for i in range(n)]
    corpus = made_up_corpus(
        n, real=tuple(real.tolist()), group=tuple(group), part=("train",) * 550 + ("calibration",) * 50
    )
    weight = balanced(corpus, 0.4)
    train = np.arange(n) < 550
    assert weight[real & train].sum() / weight[train].sum() == pytest.approx(0.4)
    assert (weight[~real] == 1).all()
    ours, theirs = weight[:100].sum(), weight[100:120].sum()
    assert ours / theirs == pytest.approx(np.sqrt(100 / 20))


def test_outside_training_a_capture_is_a_witness() -> None:
    corpus = made_up_corpus(
        60, real=(True,) * 24 + (False,) * 36, group=("mine/a",) * 24 + tuple(f"s-{i}" for i in range(36)),
        part=("calibration",) * 60,
    )  # fmt: skip
    assert balanced(corpus, 0.9)[:24].sum() == pytest.approx(4.8)


def test_without_real_windows_all_count_alike() -> None:
    assert (balanced(made_up_corpus(50), 0.4) == 1).all()


def test_examples_go_by_the_name_of_their_collection(tmp_path: Path) -> None:
    """Two collections that were captured alike still share the weight of real windows as two."""
    for name in ("ours", "theirs"):
        shutil.copytree(WINDOWS / "healthy", tmp_path / name / "one")
        entry = {"id": "one", "path": "one", "split": "train"}
        (tmp_path / name / "manifest.json").write_bytes(orjson.dumps({"format": 1, "windows": [entry]}))
    found = gathered(
        1, 5, [tmp_path / "ours", tmp_path / "theirs"], variants=2, workers=HERE, cache=None,
        progress=lambda *_: None,
    )  # fmt: skip
    assert [each.group.split("/")[0] for each in found if each.real] == ["ours", "ours", "theirs", "theirs"]
    assert not any("/" in each.group for each in found if not each.real)
