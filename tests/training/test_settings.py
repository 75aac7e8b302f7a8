"""A settings file says what a tuner may say, and reaches the fit it is about."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from made_up_corpus import made_up_corpus

from rca.errors import InvalidInput, SourceError
from rca.lab.training import heads, run
from rca.lab.training.heads import PARAMETERS, fit_head, targets
from rca.lab.training.settings import TUNABLE, read_settings, write_settings
from tests.for_each import for_each

TUNED = {"mode": {"num_leaves": 5, "lambda_l2": 0.5}}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_settings(tmp_path / "tuned.json", {**TUNED, "cause": {}})
    assert read_settings(tmp_path / "tuned.json") == TUNED


@for_each(
    ("heads_told", "complaint"),
    [
        ({"moods": {}}, "no head 'moods'"),
        ({"mode": []}, "an object of numbers"),
        ({"mode": {"num_threads": 8}}, "'num_threads' cannot be set"),
        ({"mode": {"num_leaves": 4.5}}, "num_leaves is 4.5"),
        ({"mode": {"num_leaves": 1000}}, "num_leaves is 1000"),
        ({"mode": {"num_leaves": True}}, "num_leaves is True"),
        ({"mode": {"learning_rate": "fast"}}, "learning_rate is 'fast'"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, heads_told: object, complaint: str) -> None:
    (tmp_path / "tuned.json").write_bytes(orjson.dumps({"format": 1, "heads": heads_told}))
    with pytest.raises(InvalidInput, match=complaint):
        read_settings(tmp_path / "tuned.json")


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"format": 2, "heads": {}}', b'{"format": 1}'])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tuned.json").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"tuned\.json: is not"):
        read_settings(tmp_path / "tuned.json")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot read"):
        read_settings(tmp_path / "none.json")


def test_present_settings_are_within_the_bounds() -> None:
    """A search begins with them."""
    for name, bounds in TUNABLE.items():
        assert bounds.low <= PARAMETERS[name] <= bounds.high


def test_settings_reach_their_head_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MAX_ROUNDS", 2)
    corpus = made_up_corpus(400)
    fitted = heads.fit_heads(corpus, 1, lambda *_: None, TUNED)
    assert "[num_leaves: 5]" in fitted["mode"].text
    assert "[lambda_l2: 0.5]" in fitted["mode"].text
    assert f"[num_leaves: {PARAMETERS['num_leaves']}]" in fitted["scope"].text
    assert fitted["scope"].text == fit_head("scope", targets(corpus)["scope"], 1).text


def test_a_bundle_says_which_settings_it_was_made_with() -> None:
    """And says nothing without any: the shipped bundle must stay what it is, byte for byte."""
    corpus = made_up_corpus(20)
    assert "settings" not in run._provenance(20, 1, (), corpus, None)
    told = run._provenance(20, 1, (), corpus, TUNED)
    assert told["settings"] == TUNED
    parameters = run._parameters({"fault": 0.9}, told)
    assert parameters["lightgbm_mode_num_leaves"] == 5
    assert parameters["lightgbm_num_leaves"] == PARAMETERS["num_leaves"]
