"""Following the registry: a promoted version answers, also after failures of registry and service."""

from __future__ import annotations

from pathlib import Path

import pytest
from following import FakeRegistry, Serve, damage, followed

import rca
from rca.diagnosis.result import Diagnosis
from rca.errors import InvalidInput
from rca.window.window import Window
from rca_api.models.bundle_cache import STATE_FILE
from rca_api.models.bundle_trial import TryLater
from rca_api.models.registry import RegistryAway
from rca_api.shell.processes.bundles import BundleRef

pytestmark = pytest.mark.system


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
