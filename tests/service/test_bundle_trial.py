"""A bundle is tried in a child process; failures count against the bundle or against the machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import child_processes
import pytest

from rca.diagnosis.result import Diagnosis, ModelVersion
from rca.errors import BundleError, RcaError
from rca_api.models import bundle_trial
from rca_api.models.bundle_trial import BundleTrial, Hindered, TryLater, Unfinished, WindowUnreadable, attempt
from rca_api.shell.processes import bundles
from rca_api.shell.processes.bundles import BundleRef, LoadedBundles, small_window
from rca_api.shell.processes.process import Context, Setup
from rca_api.shell.store.window_store import WindowStore

pytestmark = [pytest.mark.slow, pytest.mark.system]

SHIPPED = Path(str(files("rca_models"))) / "baseline"
REF = BundleRef(SHIPPED, version=7)


def trial(folder: Path, program: Callable[..., None], seconds: float = 60.0) -> BundleTrial:
    setup = Setup(BundleRef(None), None, str(folder))
    return BundleTrial(lambda: setup, seconds, lambda ref, model: None, program)


def outcome(made: BundleTrial) -> None:
    with made() as diagnose:
        diagnose(REF, small_window())


def test_a_healthy_bundle_answers_and_its_version_is_reported(tmp_path: Path) -> None:
    loaded: dict[BundleRef, ModelVersion] = {}
    setup = Setup(BundleRef(None), None, str(tmp_path))
    with BundleTrial(lambda: setup, 60.0, loaded.__setitem__)() as diagnose:
        assert diagnose(REF, small_window()).failure_mode == "healthy"
        with pytest.raises(WindowUnreadable, match="no window"):
            diagnose(REF, "0" * 64)
        assert diagnose(REF, small_window()).failure_mode == "healthy"
    assert loaded[REF].name == "baseline"


@pytest.mark.parametrize(
    ("program", "raised", "reason"),
    [
        (child_processes.try_and_die, Unfinished, "process that tried it ended"),
        (child_processes.try_and_crash, RcaError, "unexpected IndexError: list index out of range"),
        (child_processes.try_and_be_hindered, TryLater, "too many open files"),
        (child_processes.try_and_answer_in_a_later_format, TryLater, "later version"),
    ],
)
def test_failures_of_the_bundle_and_of_the_process_differ(
    tmp_path: Path, program: Callable[..., None], raised: type[Exception], reason: str
) -> None:
    with pytest.raises(raised, match=reason) as caught:
        outcome(trial(tmp_path, program))
    assert type(caught.value) is raised


def test_a_trial_that_hangs_is_ended_in_time(tmp_path: Path) -> None:
    with pytest.raises(Unfinished, match=r"within 0.5 s"):
        outcome(trial(tmp_path, child_processes.try_for_ever, 0.5))


def test_a_child_that_cannot_be_started_postpones_the_trial(tmp_path: Path) -> None:
    with pytest.raises(TryLater, match="no process can be started"):
        outcome(trial(tmp_path, child_processes.break_down))


def test_closing_ends_the_trial_in_progress(tmp_path: Path) -> None:
    made = trial(tmp_path, child_processes.try_for_ever)
    with ThreadPoolExecutor(1) as thread:
        hangs = thread.submit(outcome, made)
        while made._child is None or not made._child.ready:
            pass
        made.close()
        with pytest.raises(TryLater, match="the service ends"):
            hangs.result(30)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(LoadedBundles(), WindowStore(str(tmp_path / "windows")))


def test_what_is_wrong_with_a_bundle_counts_against_it(context: Context, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(SHIPPED, folder)
    (folder / "cause.txt.gz").write_text("tree")
    with pytest.raises(BundleError, match=r"cause\.txt\.gz does not match"):
        attempt(context, BundleRef(folder), small_window())
    (folder / "cause.txt.gz").unlink()
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


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
def test_a_full_memory_or_disk_around_a_diagnosis_is_not_the_bundles_fault(
    context: Context, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    assert bundle_trial.diagnose(context, REF, small_window())
    monkeypatch.setattr(Diagnosis, "to_json", fail)
    with pytest.raises(Hindered, match=type(error).__name__):
        bundle_trial.diagnose(context, REF, small_window())


def test_the_log_of_a_failure_names_the_bundle(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    crashes = trial(tmp_path, child_processes.try_and_crash_with_a_log)
    with pytest.raises(RcaError, match="IndexError"), crashes() as diagnose:
        diagnose(BundleRef(SHIPPED, "e" * 64, version=9), small_window())
    logged = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert (logged["sha256"], logged["version"]) == ("e" * 64, 9)
    assert "IndexError" in logged["exception"]
