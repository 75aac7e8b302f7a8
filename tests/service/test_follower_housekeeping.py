"""Which downloaded bundles are kept, and which are deleted after a while."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from following import FakeRegistry, Serve, followed

from rca_api.models.bundle_cache import STATE_FILE, BundleCache
from rca_api.models.registry import RegistryAway


def age(folder: Path, seconds: float = 7200.0) -> None:
    for path in folder.iterdir():
        os.utime(path, (time.time() - seconds,) * 2)


@pytest.mark.system
def test_unused_bundles_are_deleted_after_a_while(serve: Serve, registry: FakeRegistry) -> None:
    service = serve()
    held = [registry.add(number) for number in (1, 2, 3)]
    followed(service, registry, 1, 2, 3)
    (service.folder / f".{held[0]}-download").mkdir()
    left = {*held, STATE_FILE}
    assert {each.name for each in service.folder.iterdir()} == {*left, f".{held[0]}-download"}
    age(service.folder)
    service.follower.poll()
    assert {each.name for each in service.folder.iterdir()} == left - {held[0]}


@pytest.mark.system
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


@pytest.mark.system
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
    BundleCache(service.folder).tidy(())
    assert {each.name for each in service.folder.iterdir()} == {digest, STATE_FILE}
    monkeypatch.undo()
    age(service.folder)
    BundleCache(service.folder).tidy(())
    assert {each.name for each in service.folder.iterdir()} == {STATE_FILE}
