"""Following the registry: what is promoted answers here, what is broken never does."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
import pytest

import rca
from rca.diagnosis.result import Diagnosis
from rca.errors import InvalidInput, RcaError, SourceError
from rca.telemetry.window import Window
from rca_api.metrics import Metrics
from rca_api.models.current import BundleRef, CurrentModels
from rca_api.models.follower import Follower
from rca_api.models.patience import MOST_UNFINISHED, Patience
from rca_api.models.registry import RegistryAway
from rca_api.models.shelf import STATE_FILE, Shelf
from rca_api.models.smoke import Diagnose, TryLater, Unfinished, WindowUnreadable
from rca_api.settings import Settings

SHIPPED = Path(str(files("rca_models"))) / "baseline"


@lru_cache(maxsize=4)
def loaded(folder: Path) -> rca.Bundle:
    return rca.Bundle.load(folder)


def diagnose_here(ref: BundleRef, window: Window | str) -> Diagnosis:
    """What the pool does, in this process."""
    assert isinstance(window, Window)
    return rca.diagnose(window, bundle=None if ref.folder is None else loaded(ref.folder))


class FakeRegistry:
    """Aliases, and bundles by version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.aliases_of: dict[str, int] = {}
        self.bundles: dict[int, tuple[Path, str]] = {}
        self.away: Exception | None = None
        self.fetched: list[int] = []
        self.asked = "at first"

    def add(self, number: int, **thresholds: float) -> str:
        """A copy of the shipped bundle with a name of its own, and other thresholds; its digest."""
        folder = self.folder / str(number)
        shutil.copytree(SHIPPED, folder)
        heads = orjson.loads((folder / "heads.json").read_bytes())
        heads["thresholds"] |= thresholds
        (folder / "heads.json").write_bytes(orjson.dumps(heads))
        manifest = orjson.loads((folder / "manifest.json").read_bytes())
        manifest["version"] = str(number)
        manifest["files"]["heads.json"] = hashlib.sha256((folder / "heads.json").read_bytes()).hexdigest()
        (folder / "manifest.json").write_bytes(orjson.dumps(manifest))
        digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
        self.bundles[number] = (folder, digest)
        return digest

    def aliases(self) -> dict[str, dict[str, Any]]:
        if self.away is not None:
            raise self.away
        return {
            alias: {"version": number, "sha256": self.bundles[number][1], "asked": self.asked}
            for alias, number in self.aliases_of.items()
        }

    def fetch(self, number: int, output: Path) -> None:
        self.fetched.append(number)
        shutil.copytree(self.bundles[number][0], output)

    def rest(self) -> None:
        pass


@pytest.fixture
def registry(tmp_path: Path) -> FakeRegistry:
    return FakeRegistry(tmp_path / "registry")


class Service:
    """As much of the service as follows a registry."""

    def __init__(
        self,
        folder: Path,
        registry: Any,
        healthy: Window,
        diagnose: Diagnose = diagnose_here,
        keep_seconds: float = 3600.0,
        **options: Any,
    ) -> None:
        settings = Settings(data_dir=folder, tracking_uri="http://registry", shadow_share=0.5)
        self.current = CurrentModels(BundleRef(None))
        self.metrics = Metrics()
        self.folder = folder / "models"
        self.moment = 0.0
        self.trials = 0

        def trial() -> AbstractContextManager[Diagnose]:
            self.trials += 1
            return nullcontext(diagnose)

        self.follower = Follower(
            settings,
            self.current,
            registry,
            self.metrics,
            shelf=Shelf(self.folder, keep_seconds),
            trial=trial,
            healthy=lambda: healthy,
            patience=Patience(lambda: self.moment),
            **options,
        )

    def trials_that(self, outcome: str) -> float:
        labels = {"outcome": outcome}
        return self.metrics.registry.get_sample_value("rca_model_trials_total", labels) or 0.0

    @property
    def answers(self) -> int | None:
        return self.current.champion.version

    def count(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(name) or 0.0


Serve = Callable[..., Service]


@pytest.fixture
def serve(tmp_path: Path, registry: FakeRegistry, make_window: Any) -> Serve:
    healthy = make_window(n_ranks=4, n_steps=20)
    return lambda **options: Service(tmp_path / "data", registry, healthy, **options)


def test_the_champion_is_downloaded_tried_and_answers(serve: Serve, registry: FakeRegistry) -> None:
    service = serve()
    digest = registry.add(1)
    service.follower.poll()
    assert (service.answers, registry.fetched) == (None, [])
    registry.aliases_of = {"champion": 1}
    service.follower.poll()
    assert service.current.champion.sha256 == digest
    assert service.current.champion.folder is not None
    assert rca.Bundle.load(service.current.champion.folder).model.version == "1"
    service.follower.poll()
    assert (registry.fetched, service.count("rca_model_swaps_total")) == ([1], 1)


def test_the_one_before_is_kept_and_a_rollback_needs_no_download(
    serve: Serve, registry: FakeRegistry
) -> None:
    service = serve()
    for number in (1, 2):
        registry.add(number)
        registry.aliases_of = {"champion": number}
        service.follower.poll()
    assert service.current.previous is not None
    assert (service.answers, service.current.previous.version) == (2, 1)
    registry.aliases_of = {"champion": 1}
    service.follower.poll()
    assert (service.answers, registry.fetched) == (1, [1, 2])
    registry.aliases_of = {}
    service.follower.poll()
    assert service.current.champion == BundleRef(None)


def damage(folder: Path) -> None:
    (folder / "cause.txt").write_text("tree")


def unfinish(folder: Path) -> None:
    (folder / "mode.txt").unlink()


def redirect(folder: Path) -> None:
    manifest = orjson.loads((folder / "manifest.json").read_bytes())
    manifest["files"]["../../etc/passwd"] = "0" * 64
    (folder / "manifest.json").write_bytes(orjson.dumps(manifest))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (damage, "cause.txt does not match its SHA-256"),
        (unfinish, "mode.txt cannot be read"),
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


def test_a_bundle_that_calls_a_healthy_job_sick_never_answers(serve: Serve, registry: FakeRegistry) -> None:
    service = serve()
    digest = registry.add(1, fault=-1.0)
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
    assert service.trials == MOST_UNFINISHED
    assert service.current.choice.rejected == {digest: "it did not answer within 60 s, 3 times"}
    assert service.count("rca_models_rejected_total") == 1
    assert service.trials_that("unfinished") == MOST_UNFINISHED - 1


def test_a_rejected_bundle_is_tried_again_when_it_is_asked_for_again(
    serve: Serve, registry: FakeRegistry
) -> None:
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


def test_a_database_that_is_away_rejects_nobody(serve: Serve, registry: FakeRegistry) -> None:
    def recent() -> list[str]:
        raise SourceError("the database does not answer")

    service = serve(recent=recent)
    registry.add(1)
    registry.aliases_of = {"champion": 1}
    service.follower.poll()
    assert (service.answers, dict(service.current.choice.rejected)) == (None, {})
    assert service.count("rca_registry_failures_total") == 0


def test_a_disk_that_cannot_be_read_rejects_nobody(
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


@pytest.mark.parametrize(
    "failure", [RegistryAway("it did not answer"), InvalidInput("gone"), RuntimeError("anything")]
)
def test_whatever_the_registry_does_the_champion_answers_on(
    serve: Serve, registry: FakeRegistry, failure: Exception
) -> None:
    service = serve()
    registry.add(1)
    registry.aliases_of = {"champion": 1}
    service.follower.poll()
    registry.away = failure
    service.follower.poll()
    assert service.answers == 1
    assert service.current.choice.failure is not None
    assert service.count("rca_registry_failures_total") == 1
    registry.away = None
    service.follower.poll()
    assert service.current.choice.failure is None


def test_after_a_restart_without_registry_the_last_champion_answers(
    serve: Serve, registry: FakeRegistry
) -> None:
    for number in (1, 2):
        registry.add(number)
    before = serve()
    for number in (1, 2):
        registry.aliases_of = {"champion": number}
        before.follower.poll()
    registry.away = RegistryAway("it did not answer")
    after = serve()
    after.follower.resume()
    assert after.answers == 2
    folder = before.current.champion.folder
    assert folder is not None
    damage(folder)
    again = serve()
    again.follower.resume()
    assert again.answers == 1
    registry.away = None
    again.follower.poll()
    assert (again.answers, registry.fetched) == (2, [1, 2, 2])


@pytest.mark.parametrize("content", ["", "[]", '{"champion": {"sha256": "../../etc", "version": 1}}', "{"])
def test_a_state_file_of_nonsense_means_the_own_bundle(serve: Serve, tmp_path: Path, content: str) -> None:
    (tmp_path / "data" / "models").mkdir(parents=True)
    (tmp_path / "data" / "models" / STATE_FILE).write_text(content)
    service = serve()
    service.follower.resume()
    assert service.current.champion == BundleRef(None)


def test_the_challenger_is_kept_at_hand_for_shadow_mode(serve: Serve, registry: FakeRegistry) -> None:
    service = serve()
    registry.add(1)
    registry.aliases_of = {"challenger": 1}
    service.follower.poll()
    assert service.answers is None
    assert service.current.challenger is not None
    assert service.current.challenger.version == 1
    registry.aliases_of = {"champion": 1}
    service.follower.poll()
    assert (service.answers, service.current.challenger, registry.fetched) == (1, None, [1])


def followed(service: Service, registry: FakeRegistry, *numbers: int) -> None:
    for number in numbers:
        registry.aliases_of = {"champion": number}
        service.follower.poll()


def age(folder: Path, seconds: float = 7200.0) -> None:
    for path in folder.iterdir():
        os.utime(path, (time.time() - seconds,) * 2)


def test_bundles_that_nobody_needs_are_deleted_after_a_while(serve: Serve, registry: FakeRegistry) -> None:
    service = serve()
    held = [registry.add(number) for number in (1, 2, 3)]
    followed(service, registry, 1, 2, 3)
    (service.folder / f".{held[0]}-download").mkdir()
    left = {*held, STATE_FILE}
    assert {each.name for each in service.folder.iterdir()} == {*left, f".{held[0]}-download"}
    age(service.folder)
    service.follower.poll()
    assert {each.name for each in service.folder.iterdir()} == left - {held[0]}


def test_after_a_restart_the_one_before_is_still_known_and_kept(serve: Serve, registry: FakeRegistry) -> None:
    held = [registry.add(number) for number in (1, 2)]
    followed(serve(), registry, 1, 2)
    after = serve()
    after.follower.resume()
    assert (after.answers, after.current.previous and after.current.previous.version) == (2, 1)
    age(after.folder)
    after.follower.poll()
    assert all((after.folder / digest).exists() for digest in held)
    trials = after.trials
    followed(after, registry, 1)
    assert (after.answers, registry.fetched, after.trials) == (1, [1, 2], trials)


def test_replicas_that_share_the_folder_keep_what_the_other_one_uses(
    serve: Serve, registry: FakeRegistry
) -> None:
    held = [registry.add(number) for number in (1, 2, 3)]
    one, other = serve(), serve()
    followed(other, registry, 1)
    followed(one, registry, 1, 2, 3)
    os.utime(one.folder / held[0], (0, 0))
    registry.away = RegistryAway("it did not answer the other one")
    other.follower.poll()
    registry.away = None
    one.follower.poll()
    assert other.answers == 1
    assert all((one.folder / digest).exists() for digest in held)


def test_what_is_taken_up_while_it_is_deleted_is_put_back(
    serve: Serve, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = registry.add(1)
    service = serve()
    followed(service, registry, 1)
    folder = service.folder / digest
    age(service.folder)
    rename = Path.rename

    def touched_meanwhile(path: Path, target: Path) -> Path:
        if path == folder:
            os.utime(path)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", touched_meanwhile)
    Shelf(service.folder).tidy(())
    assert {each.name for each in service.folder.iterdir()} == {digest, STATE_FILE}
    monkeypatch.undo()
    age(service.folder)
    Shelf(service.folder).tidy(())
    assert {each.name for each in service.folder.iterdir()} == {STATE_FILE}


def test_at_a_restart_the_champion_answers_though_it_cannot_be_tried(
    serve: Serve, registry: FakeRegistry
) -> None:
    for number in (1, 2):
        registry.add(number)
    followed(serve(), registry, 1, 2)

    def busy(ref: BundleRef, window: Window | str) -> Diagnosis:
        raise TryLater("no process can be started")

    after = serve(diagnose=busy)
    after.follower.resume()
    assert after.answers == 2
