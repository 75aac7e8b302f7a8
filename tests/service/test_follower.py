"""Following the registry: what is promoted answers here, what is broken never does."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
import pytest

import rca
from rca.diagnosis.result import Diagnosis
from rca.errors import InvalidInput
from rca.telemetry.window import Window
from rca_api.metrics import Metrics
from rca_api.models.current import BundleRef, CurrentModels
from rca_api.models.follower import STATE_FILE, Follower
from rca_api.models.registry import RegistryAway
from rca_api.models.smoke import TryLater
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
            alias: {"version": number, "sha256": self.bundles[number][1]}
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

    def __init__(self, folder: Path, registry: Any, healthy: Window, **options: Any) -> None:
        settings = Settings(data_dir=folder, tracking_uri="http://registry", shadow_share=0.5)
        self.current = CurrentModels(BundleRef(None))
        self.metrics = Metrics()
        self.follower = Follower(
            settings,
            self.current,
            registry,
            self.metrics,
            **({"diagnose": diagnose_here, "healthy": lambda: healthy} | options),
        )

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

    def diagnose(ref: BundleRef, window: Window) -> Diagnosis:
        if window is stored:
            raise ZeroDivisionError("no rank")
        return diagnose_here(ref, window)

    service = serve(diagnose=diagnose, recent=lambda: [stored])
    digest = registry.add(1)
    registry.aliases_of = {"champion": 1}
    service.follower.poll()
    assert service.current.choice.rejected == {digest: "unexpected ZeroDivisionError: no rank"}


def test_a_busy_pool_is_no_objection(serve: Serve, registry: FakeRegistry) -> None:
    busy = True

    def diagnose(ref: BundleRef, window: Window) -> Diagnosis:
        if busy:
            raise TryLater("the pool is busy")
        return diagnose_here(ref, window)

    service = serve(diagnose=diagnose)
    registry.add(1)
    registry.aliases_of = {"champion": 1}
    service.follower.poll()
    assert (service.answers, dict(service.current.choice.rejected)) == (None, {})
    busy = False
    service.follower.poll()
    assert service.answers == 1


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


def test_bundles_that_nobody_needs_are_deleted_after_a_while(
    serve: Serve, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = serve()
    held = []
    for number in (1, 2, 3):
        held.append(registry.add(number))
        registry.aliases_of = {"champion": number}
        service.follower.poll()
    folder = service.follower._folder
    assert {each.name for each in folder.iterdir()} == {*held, STATE_FILE}
    monkeypatch.setattr("rca_api.models.follower._KEEP_SECONDS", -1.0)
    service.follower.poll()
    assert {each.name for each in folder.iterdir()} == {*held[1:], STATE_FILE}
