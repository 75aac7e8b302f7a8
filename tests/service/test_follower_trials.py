"""What a bundle is tried on before it answers: what rejects it, and what is only passing trouble."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
from following import FakeRegistry, Serve, damage, diagnose_here, followed

from rca.diagnosis.result import Diagnosis
from rca.errors import BundleError, RcaError, SourceError
from rca.window.window import Window
from rca_api.models.bundle_trial import TryLater, Unfinished, WindowUnreadable
from rca_api.models.follower import MAX_UNFINISHED
from rca_api.shell.processes.bundles import BundleRef


def unfinish(folder: Path) -> None:
    (folder / "mode.txt.gz").unlink()


def redirect(folder: Path) -> None:
    manifest = orjson.loads((folder / "manifest.json").read_bytes())
    manifest["files"]["../../etc/passwd"] = "0" * 64
    (folder / "manifest.json").write_bytes(orjson.dumps(manifest))


@pytest.mark.system
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (damage, "cause.txt.gz does not match its SHA-256"),
        (unfinish, "mode.txt.gz cannot be read"),
        (redirect, "not the one that was registered"),
    ],
)
def test_a_damaged_bundle_never_answers_and_is_not_tried_again(
    serve: Serve, registry: FakeRegistry, spoil: Callable[[Path], None], reason: str
) -> None:
    service = serve()
    registry.add(1)
    registry.aliases_of = {"champion": 1}
    service.follower.poll()
    digest = registry.add(2)
    spoil(registry.bundles[2][0])
    registry.aliases_of = {"champion": 2}
    for _ in range(3):
        service.follower.poll()
    assert service.answers == 1
    assert reason in service.current.choice.rejected[digest]
    assert (registry.fetched, service.count("rca_models_rejected_total")) == ([1, 2], 1)
    registry.add(3)
    registry.aliases_of = {"champion": 3}
    service.follower.poll()
    assert service.answers == 3


def test_a_version_whose_files_cannot_be_read_is_rejected_once(serve: Serve, registry: FakeRegistry) -> None:
    service = serve()
    for number in (1, 2):
        registry.add(number)
    registry.unreadable[2] = BundleError("version 2: its MLmodel cannot be read: TypeError")
    followed(service, registry, 1)
    with structlog.testing.capture_logs() as logged:
        followed(service, registry, 2, 2, 2)
    assert service.answers == 1
    assert (registry.fetched, service.count("rca_models_rejected_total")) == ([1, 2], 1)
    assert list(service.current.choice.rejected.values()) == [registry.unreadable[2].message]
    assert service.count("rca_registry_failures_total") == 0
    assert service.current.choice.failure is None
    assert [each["event"] for each in logged] == ["a model of the registry is not used"]
    assert "exc_info" not in logged[0]


def test_a_manifest_cannot_name_files_elsewhere(serve: Serve, registry: FakeRegistry) -> None:
    service = serve()
    registry.add(1)
    folder = registry.bundles[1][0]
    redirect(folder)
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    registry.bundles[1] = (folder, digest)
    registry.aliases_of = {"champion": 1}
    service.follower.poll()
    assert "outside the bundle" in service.current.choice.rejected[digest]


def test_a_bundle_that_blames_a_healthy_job_never_answers(serve: Serve, registry: FakeRegistry) -> None:
    service = serve()
    digest = registry.add(1, fault=-1.0, fault_whole=-1.0, fault_costly=-1.0, fault_unseen=-1.0)
    registry.aliases_of = {"champion": 1}
    service.follower.poll()
    assert service.answers is None
    assert "calls a healthy window fail_slow" in service.current.choice.rejected[digest]


def test_a_bundle_that_fails_on_a_stored_window_never_answers(
    serve: Serve, registry: FakeRegistry, make_window: Any
) -> None:
    stored = make_window(n_ranks=2, n_steps=10)

    def diagnose(ref: BundleRef, window: Window | str) -> Diagnosis:
        if window is stored:
            raise RcaError("unexpected ZeroDivisionError: no rank")
        return diagnose_here(ref, window)

    service = serve(diagnose=diagnose, recent=lambda: [stored])
    digest = registry.add(1)
    registry.aliases_of = {"champion": 1}
    service.follower.poll()
    assert service.current.choice.rejected == {digest: "unexpected ZeroDivisionError: no rank"}
    assert service.trials_that("rejected") == 1


@pytest.mark.parametrize("failure", [TryLater("the window store is away"), RuntimeError("too many threads")])
def test_passing_trouble_is_no_objection_and_costs_ever_fewer_trials(
    serve: Serve, registry: FakeRegistry, failure: Exception
) -> None:
    trouble = True

    def diagnose(ref: BundleRef, window: Window | str) -> Diagnosis:
        if trouble:
            raise failure
        return diagnose_here(ref, window)

    service = serve(diagnose=diagnose)
    digest = registry.add(1)
    registry.aliases_of = {"champion": 1}
    for _ in range(3600):
        service.moment += 1.0
        service.follower.poll()
    assert (service.answers, dict(service.current.choice.rejected)) == (None, {})
    assert str(failure) in service.current.choice.postponed[digest]
    assert 6 <= service.trials <= 12
    assert service.trials_that("postponed") == service.trials
    trouble = False
    service.moment += 600.0
    service.follower.poll()
    assert (service.answers, dict(service.current.choice.postponed)) == (1, {})


def test_a_bundle_that_never_ends_is_rejected_after_few_trials(serve: Serve, registry: FakeRegistry) -> None:
    def diagnose(ref: BundleRef, window: Window | str) -> Diagnosis:
        raise Unfinished("it did not answer within 60 s")

    service = serve(diagnose=diagnose)
    digest = registry.add(1)
    registry.aliases_of = {"champion": 1}
    for _ in range(100):
        service.moment += 60.0
        service.follower.poll()
    assert service.trials == MAX_UNFINISHED
    assert service.current.choice.rejected == {digest: "it did not answer within 60 s, 3 times"}
    assert service.count("rca_models_rejected_total") == 1
    assert service.trials_that("unfinished") == MAX_UNFINISHED - 1


def test_a_rejected_bundle_is_tried_again_on_request(serve: Serve, registry: FakeRegistry) -> None:
    broken = True

    def diagnose(ref: BundleRef, window: Window | str) -> Diagnosis:
        if broken:
            raise RcaError("unexpected ImportError: a library is half installed")
        return diagnose_here(ref, window)

    service = serve(diagnose=diagnose)
    digest = registry.add(1)
    registry.aliases_of = {"champion": 1}
    service.follower.poll()
    broken = False
    service.follower.poll()
    assert digest in service.current.choice.rejected
    registry.asked = "again"
    service.follower.poll()
    assert (service.answers, dict(service.current.choice.rejected)) == (1, {})


def test_stored_windows_that_cannot_be_read_do_not_count(
    serve: Serve, registry: FakeRegistry, make_window: Any
) -> None:
    readable, asked = make_window(n_ranks=2, n_steps=10), []

    def diagnose(ref: BundleRef, window: Window | str) -> Diagnosis:
        asked.append(window)
        if isinstance(window, str):
            raise WindowUnreadable(f"there is no window {window}")
        return diagnose_here(ref, window)

    stored: list[Any] = ["gone", "damaged"]
    service = serve(diagnose=diagnose, recent=lambda: stored)
    digest = registry.add(1)
    registry.aliases_of = {"champion": 1}
    service.follower.poll()
    assert service.answers is None
    assert service.current.choice.postponed == {digest: "no stored window can be read"}
    stored = ["gone", readable, readable, readable, readable]
    asked.clear()
    service.moment += 60.0
    service.follower.poll()
    assert (service.answers, len(asked)) == (1, 5)


def test_an_unavailable_database_rejects_no_bundle(serve: Serve, registry: FakeRegistry) -> None:
    def recent() -> list[str]:
        raise SourceError("the database does not answer")

    service = serve(recent=recent)
    registry.add(1)
    registry.aliases_of = {"champion": 1}
    service.follower.poll()
    assert (service.answers, dict(service.current.choice.rejected)) == (None, {})
    assert service.count("rca_registry_failures_total") == 0


def test_an_unreadable_disk_rejects_no_bundle(
    serve: Serve, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = serve()
    registry.add(1)
    registry.aliases_of = {"champion": 1}

    def read_bytes(path: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", read_bytes)
        service.follower.poll()
    assert (service.answers, dict(service.current.choice.rejected)) == (None, {})
    service.moment += 60.0
    service.follower.poll()
    assert (service.answers, registry.fetched) == (1, [1])
