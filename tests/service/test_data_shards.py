"""Shards in the service's store: durable, each sample counted once, over HTTP."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import func, select
from starlette.testclient import TestClient

from rca.errors import InvalidInput, SourceError, TooLarge
from rca.runtime.data_shards import shard_client, shard_plan
from rca.runtime.data_shards.leases import ShardReport
from rca.runtime.data_shards.shard_client import ShardClient
from rca.runtime.data_shards.shard_plan import ShardPlan
from rca.runtime.data_shards.shard_sampler import ShardSampler
from rca_api.data_shards import repository
from rca_api.data_shards.repository import StoredShards
from rca_api.data_shards.tables import ShardLeaseRow, ShardSetRow
from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.base import new_id, now
from rca_api.shell.store.database import Database
from rca_api.shell.store.old_rows import Ages, OldRows
from tests.for_each import for_each
from tests.telemetry.prometheus_servers import dripping, talking

sys.path.append(str(Path(__file__).parents[1] / "recovery" / "antdt"))
from shard_machine import Clock, ShardMachine
from stored_shards import InStore

pytestmark = [pytest.mark.system, pytest.mark.smoke]


def test_random_workers_lose_and_repeat_no_sample(database: Database) -> None:
    def opened(plan: ShardPlan, clock: Clock) -> InStore:
        name = new_id()
        with database.session() as session:
            assert repository.create(session, name, plan, now())
            assert not repository.create(session, name, plan, now())
        return InStore(database, plan, clock, name)

    class Stored(ShardMachine):
        open = opened

    few = settings(max_examples=6, stateful_step_count=20, phases=[Phase.generate])
    run_state_machine_as_test(Stored, settings=few)


def test_a_restarted_service_has_all_that_it_answered(database_url: str) -> None:
    clock, plan = Clock(), ShardPlan(20, 8, lease_seconds=10.0)
    with closing(Database(database_url)) as first:
        with first.session() as session:
            repository.create(session, "set", plan, now())
        lease = InStore(first, plan, clock, "set").lease("a").lease
        InStore(first, plan, clock, "set").report([ShardReport(lease.id, 3)])
    with closing(Database(database_url)) as second:
        service = InStore(second, plan, clock, "set")
        assert service.progress().samples == 3
        assert service.report([ShardReport(lease.id, 5)])[0].accepted
        clock.at += 60
        assert service.lease("b").lease.start == 5


def test_workers_at_the_same_time_get_different_shards(database: Database) -> None:
    plan, clock = ShardPlan(64, 2, shuffle=False), Clock()
    with database.session() as session:
        repository.create(session, "set", plan, now())
    service = InStore(database, plan, clock, "set")

    def train(worker: int) -> list[int]:
        trained = []
        while (lease := service.lease(f"worker-{worker}").lease) is not None:
            assert service.report([ShardReport(lease.id, lease.shard.size)])[0].accepted
            trained += plan.samples(lease.shard, lease.start).tolist()
        return trained

    with ThreadPoolExecutor(4) as pool:
        trained = [sample for each in pool.map(train, range(4)) for sample in each]
    assert sorted(trained) == list(range(64))
    assert service.progress().finished


def test_forgotten_data_sets_go_with_their_leases(database: Database) -> None:
    plan, clock = ShardPlan(20, 8), Clock()
    with database.session() as session:
        repository.create(session, "old", plan, now())
        repository.create(session, "new", plan, now())
    InStore(database, plan, clock, "old").lease("a")
    assert OldRows(database, Ages.of(Settings(data_shard_days=30))).delete()["data shards"] == 1
    with database.reading() as session:
        assert list(session.scalars(select(ShardSetRow.name))) == ["new"]
        assert session.scalar(select(func.count()).select_from(ShardLeaseRow)) == 0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, migrated_file: Path) -> Iterator[TestClient]:
    data = tmp_path_factory.mktemp("data")
    shutil.copyfile(migrated_file, data / "rca.db")
    # The pool's processes are not needed, so the app is not started.
    app = create_app(Settings(data_dir=data, database_url=f"sqlite:///{data / 'rca.db'}"))
    held = TestClient(app, raise_server_exceptions=False)
    yield held
    app.state.parts.database.close()


def call(client: TestClient, method: str, place: str, body: Any = None, status: int = 200) -> Any:
    answer = client.request(method, f"/v1/data-shards{place}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def test_an_epoch_over_http(client: TestClient) -> None:
    wanted = {"name": "epoch", "n_samples": 20, "shard_size": 8, "lease_seconds": 30}
    call(client, "POST", "", wanted, 201)
    assert call(client, "POST", "", wanted)["n_samples"] == 20
    assert call(client, "POST", "", wanted | {"seed": 1}, 409)["code"] == "conflict"
    lease = call(client, "POST", "/epoch/leases", {"worker": "0", "lease_id": "mine"})["lease"]
    assert call(client, "POST", "/epoch/leases", {"worker": "0", "lease_id": "mine"})["lease"] == lease
    report = {"reports": [{"lease_id": "mine", "done": 3}, {"lease_id": "other", "done": 1}]}
    kept, unknown = call(client, "POST", "/epoch/reports", report)["receipts"]
    assert kept == {"lease_id": "mine", "accepted": True, "done": 3, "state": "held"}
    assert (unknown["accepted"], unknown["state"]) == (False, "unknown")
    assert call(client, "POST", "/epoch/releases", {"worker": "0"}) == {"returned": 1}
    again = call(client, "POST", "/epoch/leases", {"worker": "1"})["lease"]
    assert (again["position"], again["start"], again["size"]) == (lease["position"], 3, lease["size"])
    found = call(client, "GET", "/epoch")
    assert (found["samples"], found["finished"], found["samples_of_workers"]) == (3, False, {"0": 3, "1": 0})
    assert found["epochs"] == [{"epoch": 0, "todo": 2, "doing": 1, "done": 0, "samples": 3}]
    kept = call(client, "GET", "/epoch/checkpoint")
    assert kept == {"next_position": 1, "open": [{"position": 0, "done": 3, "stop": 8}]}
    call(client, "POST", "/epoch/reports", {"reports": [{"lease_id": again["id"], "done": again["stop"]}]})
    call(client, "POST", "/epoch/restore", kept)
    # An earlier report and an earlier id are of no use after the restore.
    assert call(client, "POST", "/epoch/leases", {"worker": "z", "lease_id": "mine"}, 400)["detail"]
    late = {"reports": [{"lease_id": "mine", "done": 8}, {"lease_id": again["id"], "done": 8}]}
    stale = call(client, "POST", "/epoch/reports", late)["receipts"]
    assert [(each["accepted"], each["state"]) for each in stale] == [(False, "unknown")] * 2
    found = call(client, "GET", "/epoch")
    assert (found["samples"], found["samples_of_workers"]) == (3, {})
    assert (found["n_open"], found["n_done"]) == (1, 0)
    assert "epoch" in [each["name"] for each in call(client, "GET", "")["items"]]
    call(client, "DELETE", "/epoch", None, 204)
    assert call(client, "GET", "/epoch", None, 404)["code"] == "not-found"


@for_each(
    ("place", "body", "status"),
    [
        ("", {"name": "a/b", "n_samples": 1, "shard_size": 1}, 422),
        ("", {"name": "a", "n_samples": 0, "shard_size": 1}, 422),
        ("", {"name": "a", "n_samples": 1 << 40, "shard_size": 1}, 400),
        ("/none/leases", {"worker": "0"}, 404),
        ("/bad/leases", {"worker": ""}, 422),
        ("/bad/reports", {"reports": []}, 422),
        ("/bad/reports", {"reports": [{"lease_id": "one", "done": 99}]}, 400),
        ("/bad/restore", {"next_position": 99, "open": []}, 400),
        ("/bad/restore", {"next_position": 1, "open": [{"position": 0, "done": 8}]}, 400),
    ],
)
def test_bad_requests_are_refused(client: TestClient, place: str, body: Any, status: int) -> None:
    answer = client.post("/v1/data-shards", json={"name": "bad", "n_samples": 20, "shard_size": 8})
    assert answer.status_code in (200, 201)
    call(client, "POST", "/bad/leases", {"worker": "0", "lease_id": "one"})
    assert call(client, "POST", place, body, status)["detail"]


def test_requests_about_the_largest_set_stay_small(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of a million shards took 0.3 s for each epoch, while all workers waited."""
    monkeypatch.setattr(shard_plan, "_order", None)
    wanted = {"name": "vast", "n_samples": (1 << 21) - 1, "shard_size": 2, "n_epochs": 10_000}
    call(client, "POST", "", wanted, 201)
    call(client, "POST", "", wanted | {"name": "longer", "n_epochs": 10_001}, 422)
    opened = [{"position": epoch << 20, "done": 1} for epoch in range(200)]
    call(client, "POST", "/vast/restore", {"next_position": (9_999 << 20) + 1, "open": opened})
    lease = call(client, "POST", "/vast/leases", {"worker": "0"})["lease"]
    report = {"reports": [{"lease_id": lease["id"], "done": lease["size"]}]}
    assert call(client, "POST", "/vast/reports", report)["receipts"][0]["state"] == "finished"
    found = call(client, "GET", "/vast")
    assert (len(found["epochs"]), found["n_open"], found["n_done"]) == (100, 200, 9_800)
    # A wrong checkpoint is refused before anything is locked.
    monkeypatch.setattr(StoredShards, "__init__", None)
    wrong = {"next_position": 1, "open": [{"position": 0, "done": 2}]}
    call(client, "POST", "/vast/restore", wrong, 400)


def test_a_service_that_answers_byte_by_byte_holds_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_client, "_MAX_BYTES", 1000)
    slow = dripping(b" " * 500, b"HTTP/1.1 200 OK\r\n\r\n")
    began = time.monotonic()
    with talking(slow) as url, pytest.raises(SourceError, match="cannot be used"):
        ShardClient(url, "a", timeout_seconds=0.3, retries=0)
    assert time.monotonic() - began < 5
    with (
        talking(lambda link: link.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 5000)) as url,
        pytest.raises(TooLarge),
    ):
        ShardClient(url, "a", retries=0)


def test_a_sampler_trains_an_epoch_of_a_service(client: TestClient) -> None:
    config = uvicorn.Config(client.app, port=0, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        plan = ShardPlan(50, 8, 2, seed=3)
        service = ShardClient(f"http://{host}:{port}", "sampled", plan)
        assert ShardClient(f"http://{host}:{port}", "sampled").plan == plan
        with pytest.raises(InvalidInput, match="cut in another way"):
            ShardClient(f"http://{host}:{port}", "sampled", ShardPlan(51, 8))
        with pytest.raises(SourceError, match="there is no data set 'absent'"):
            ShardClient(f"http://{host}:{port}", "absent")
        killed = ShardSampler(service, "killed", report_seconds=0)
        trained = killed.take(11).tolist()
        killed.confirm()
        kept = service.checkpoint()
        killed.take(5)
        assert service.release("killed") == 1
        service.restore(kept)
        trained += [sample for batch in ShardSampler(service, "other", 7) for sample in batch]
        assert sorted(trained) == sorted([*range(50), *range(50)])
        assert service.progress().finished
    finally:
        server.should_exit = True
        thread.join()
