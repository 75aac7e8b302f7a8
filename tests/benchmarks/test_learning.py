"""Shares of the training scenarios are nested, and what is asked about is in none of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_corpus import made_up_corpus

from benchmarks.learning import curve, detection, main, some_of, table
from benchmarks.strangers import losses_on, strangers_of
from rca.features import WINDOW_FEATURES
from rca.training import heads
from rca.training.corpus import Corpus

DATA = Path(__file__).parents[2] / "data"
WINDOWS, PACKED = DATA / "windows", DATA / "outsiders" / "twelfth"


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Whatever is loud, in the first column, is a fault."""
    found = made_up_corpus(1200)
    found.window[:, 0] = np.array(found.mode) != "healthy"
    return found


def test_a_smaller_share_is_part_of_a_larger_one_and_validation_is_whole(corpus: Corpus) -> None:
    whole = heads.targets(corpus)["cause"]
    half, quarter = (some_of(whole, share, 1) for share in (0.5, 0.25))
    learned = [target.part == "train" for target in (whole, half, quarter)]
    assert learned[0].sum() > learned[1].sum() > learned[2].sum() > 0
    assert not (learned[2] & ~learned[1]).any()
    assert not (learned[1] & ~learned[0]).any()
    for part in ("validation", "calibration"):
        assert np.array_equal(quarter.part == part, whole.part == part)
    assert np.array_equal(some_of(whole, 1.0, 1).part, whole.part)


def test_a_threshold_lets_the_budget_through(corpus: Corpus) -> None:
    """One healthy window in ten is as loud as a fault: within a budget of a fifth, not of a twentieth."""
    head = heads.fit_head("mode", heads.targets(corpus)["mode"], 0)
    healthy = corpus.window[np.array(corpus.mode) == "healthy"][:200].copy()
    healthy[::10] = corpus.window[np.array(corpus.mode) == "fail_slow"][:20]
    assert detection(head, corpus, healthy, 0.2).value > 0.9
    assert detection(head, corpus, healthy, 0.05).value < 0.9


def test_every_head_is_asked_on_every_share(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MAX_ROUNDS", 8)
    told: list[str] = []
    innocents = np.zeros((40, len(WINDOW_FEATURES)))
    fits = curve(corpus, innocents, ["mode", "stop_cause"], [0.5, 1.0], 0, told.append)
    assert [(fit.head, fit.share, fit.more_healthy) for fit in fits] == [
        ("mode", 0.5, 0),
        ("mode", 1.0, 0),
        ("mode", 1.0, 20),
        ("stop_cause", 0.5, 0),
        ("stop_cause", 1.0, 0),
    ]
    assert len(told) == len(fits) == table(fits).row_count
    assert all((fit.detected is None) == (fit.head != "mode") for fit in fits)
    assert all(fit.elsewhere is None for fit in fits)
    assert not any("elsewhere" in str(column.header) for column in table(fits).columns)


def collection(folder: Path, windows: dict[str, str]) -> Path:
    """Some of our real windows with their parts."""
    folder.mkdir()
    for name in windows:
        shutil.copytree(WINDOWS / name, folder / name)
    entries = [{"id": name, "path": name, "split": part} for name, part in windows.items()]
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "windows": entries}))
    return folder


def test_strangers_are_all_windows_but_those_of_test_parts(tmp_path: Path) -> None:
    """Windows of one name in two folders are two; of one folder in two spellings one."""
    one = collection(
        tmp_path / "one", {"healthy": "train", "slow-dataset": "validation", "killed-rank": "test"}
    )
    other = collection(tmp_path / "other", {"healthy": "validation"})
    strangers = strangers_of([one, other, tmp_path / "other" / ".." / "other"])
    assert strangers.mode == ("healthy", "fail_slow", "healthy", "healthy")
    assert len(set(strangers.group)) == 3


def test_what_strangers_lose_stands_beside_validation(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "MAX_ROUNDS", 8)
    strangers = strangers_of(
        [collection(tmp_path / "one", {"healthy": "train", "slow-dataset": "validation"})]
    )
    innocents = np.zeros((40, len(WINDOW_FEATURES)))
    fits = curve(corpus, innocents, ["mode", "stop_cause"], [1.0], 0, lambda text: None, strangers)
    mode, _, stop_cause = (fit.elsewhere for fit in fits)
    assert mode is not None
    assert mode.weight.size == 2
    assert stop_cause is None
    assert list(table(fits).columns[-1].cells)[::2] == [rf"{mode.mean * 1e3:.1f}, 0.0 \[0.0, 0.0]", ""]


def test_labels_without_a_class_of_the_head_are_not_asked(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "MAX_ROUNDS", 8)
    target = heads.targets(corpus)["pattern"]
    head = heads.fit_head("pattern", target, 0)
    labels = ("", *target.labels[1:])
    found, whole = losses_on(head, replace(target, labels=labels)), losses_on(head, target)
    assert found is not None
    assert whole is not None
    assert found.weight.sum() < whole.weight.sum()


def test_what_cannot_be_asked_is_said_before_anything_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = collection(tmp_path / "asked", {"healthy": "test"})
    odd = collection(tmp_path / "odd", {"slow-dataset": "train"})
    label = json.loads((odd / "slow-dataset" / "label.json").read_text())
    label["causes"][0]["cause"] = "gremlins"
    (odd / "slow-dataset" / "label.json").write_text(json.dumps(label))
    for folder, said in (
        (tmp_path / "nowhere", "nowhere"),
        (PACKED, "rca testbed unpack"),
        (asked, "no window to ask"),
        (odd, "'gremlins' is no cause of the catalogue"),
    ):
        assert main(["--elsewhere", str(folder)]) == 2
        assert said in capsys.readouterr().err
