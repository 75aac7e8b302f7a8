"""``make demo``: the first screen of an answer of the service, and the errors of `rca diagnose`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

import rca
from rca_api.shell import demo


class _Service:
    """A client whose service answers at once."""

    def __init__(self, url: str) -> None:
        self.url = url

    def diagnose(self, window: rca.Window) -> rca.Diagnosis:
        return rca.diagnose(window)


def test_the_first_screen_is_printed_and_the_way_to_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "running_service", lambda: nullcontext("http://127.0.0.1"))
    monkeypatch.setattr(demo, "Client", _Service)
    monkeypatch.setenv("COLUMNS", "80")
    assert demo.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAIL-SLOW: node node-1 (ranks 2-3), ")
    assert len(lines) <= 30
    assert lines[-1].startswith(f"The rest: rca diagnose {demo.DEFAULT_WINDOW} --verbose")


def test_what_the_reader_dropped_is_noted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "running_service", lambda: nullcontext("http://127.0.0.1"))
    monkeypatch.setattr(demo, "Client", _Service)
    sent = json.loads(rca.read_window(demo.DEFAULT_WINDOW).to_json())
    sent["steps"]["foward_seconds"] = sent["steps"].pop("forward_seconds")
    (tmp_path / "window.json").write_text(json.dumps(sent))
    assert demo.main(["--window", str(tmp_path / "window.json")]) == 0
    assert "did you mean forward_seconds by foward_seconds?" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"\x89PNG\r\n\x1a\n" + bytes(20)])
def test_a_window_that_cannot_be_read_is_bad_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes | None
) -> None:
    given = tmp_path / "given.png"
    if content is not None:
        given.write_bytes(content)
    assert demo.main(["--window", str(given)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error (")
    assert "`rca sources` lists what can be read" in printed.err
    assert "x89" not in printed.err
