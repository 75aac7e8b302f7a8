"""A bundle is tried in a process of its own: whose fault it is when that does not end well."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from rca.diagnosis.result import ModelVersion
from rca.errors import BundleError, RcaError
from rca_api.compute import bundles
from rca_api.compute.bundles import LoadedBundles, small_window
from rca_api.compute.process import Context, Setup
from rca_api.models import bundle_trial
from rca_api.models.bundle_check import Hindered, TryLater, Unfinished, WindowUnreadable
from rca_api.models.bundle_trial import Trial, attempt
from rca_api.models.current import BundleRef
from rca_api.store.window_store import WindowStore

SHIPPED = Path(str(files("rca_models"))) / "baseline"
REF = BundleRef(SHIPPED, version=7)


def end_at_once(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def never_end(*_: object) -> None:
    signal.pause()


def crash(*_: object) -> None:
    raise ZeroDivisionError("no rank")


def hinder(*_: object) -> None:
    raise Hindered("OSError: too many open files")


Attempt = Callable[..., Any]


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Attempt], Trial]:
    def make(act: Attempt, seconds: float = 60.0) -> Trial:
        monkeypatch.setattr(bundle_trial, "attempt", act)
        setup = Setup(BundleRef(None), None, str(tmp_path))
        return Trial(lambda: setup, seconds, lambda ref, model: None)

    return make


def outcome(made: Trial) -> None:
    with made() as diagnose:
        diagnose(REF, small_window())


def test_a_sound_bundle_answers_and_is_told_of(tmp_path: Path) -> None:
    told: dict[BundleRef, ModelVersion] = {}
    setup = Setup(BundleRef(None), None, str(tmp_path))
    with Trial(lambda: setup, 60.0, told.__setitem__)() as diagnose:
        assert diagnose(REF, small_window()).failure_mode == "healthy"
        with pytest.raises(WindowUnreadable, match="no window"):
            diagnose(REF, "0" * 64)
        assert diagnose(REF, small_window()).failure_mode == "healthy"
    assert told[REF].name == "baseline"


@pytest.mark.parametrize(
    ("act", "raised", "reason"),
    [
        (end_at_once, Unfinished, "process that tried it ended"),
        (crash, RcaError, "unexpected ZeroDivisionError: no rank"),
        (hinder, TryLater, "too many open files"),
    ],
)
def test_whose_fault_it_is(
    tried: Callable[..., Trial], act: Attempt, raised: type[Exception], reason: str
) -> None:
    with pytest.raises(raised, match=reason) as caught:
        outcome(tried(act))
    assert type(caught.value) is raised


def test_one_that_hangs_is_ended_in_time(tried: Callable[..., Trial]) -> None:
    with pytest.raises(Unfinished, match=r"within 0.5 s"):
        outcome(tried(never_end, 0.5))


def test_closing_ends_what_is_being_tried(tried: Callable[..., Trial]) -> None:
    made = tried(never_end)
    with ThreadPoolExecutor(1) as thread:
        hangs = thread.submit(outcome, made)
        while made._slot is None or made._slot.report is None:
            pass
        made.close()
        with pytest.raises(TryLater):
            hangs.result(30)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(LoadedBundles(), WindowStore(str(tmp_path / "windows")))


def test_what_is_wrong_with_a_bundle_counts_against_it(context: Context, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(SHIPPED, folder)
    (folder / "cause.txt").write_text("tree")
    with pytest.raises(BundleError, match=r"cause\.txt does not match"):
        attempt(context, BundleRef(folder), small_window())
    (folder / "cause.txt").unlink()
    with pytest.raises(BundleError, match="cannot read"):
        attempt(context, BundleRef(folder), small_window())


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError()])
def test_what_is_wrong_with_the_machine_does_not(
    context: Context, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(bundles.rca, "diagnose", fail)
    with pytest.raises(Hindered, match=type(error).__name__):
        attempt(context, REF, small_window())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        if isinstance(error, OSError):
            with pytest.raises(Hindered, match="Input/output error"):
                attempt(context, BundleRef(SHIPPED, version=8), small_window())
