"""Telemetry of running jobs: stored once, cut into windows, and diagnosed at a change or at silence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from incident_service import live, state_of
from sqlalchemy import func, select
from starlette.testclient import TestClient
from streaming import JSON, N_RANKS, START, body, diagnosed, fragments, send, step_rows, watch

from rca.client import Client, ServiceError
from rca.collect.faults import Faults
from rca.collect.identity import Identity
from rca.collect.push import Pusher, PushSettings
from rca.collect.timers import COLUMNS
from rca.errors import SourceError, TooLarge
from rca.window.window import Window
from rca_api.jobs import repository, watcher, work
from rca_api.shell.app import create_app
from rca_api.shell.demo import running_service
from rca_api.shell.processes.process import Context
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.base import now
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.smoke]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = Settings(
        processes=1, data_dir=tmp_path_factory.mktemp("data"), watch_seconds=1e6, job_silence_seconds=3600.0
    )
    with TestClient(create_app(settings), raise_server_exceptions=False) as held:
        yield held


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with running_service(settings={"RCA_PROCESSES": "1", "RCA_WATCH_SECONDS": "0.2"}) as url:
        yield url


def test_rows_in_any_order_and_again_make_the_window_of_the_job(client: TestClient) -> None:
    rows = step_rows(30)
    bodies = fragments("shuffled", rows)
    random.Random(0).shuffle(bodies)
    for content in [*bodies, *bodies[:5]]:
        send(client, "shuffled", content)
    window = client.get("/v1/jobs/shuffled/window", headers={"Accept": "application/json"}).json()
    steps = {name: np.array(values) for name, values in window["steps"].items()}
    order = np.lexsort((steps["rank"], steps["step"]))
    for name, values in rows.items():
        assert steps[name][order] == pytest.approx(values), name
    again = client.post("/v1/diagnoses", content=orjson.dumps(window), headers=JSON)
    assert again.status_code == 200


def test_a_repeated_body_is_stored_once(client: TestClient) -> None:
    content = fragments("repeated", step_rows(10))[0]
    first, second = send(client, "repeated", content), send(client, "repeated", content)
    assert (first["new"], second["new"]) == (True, False)
    assert first["segment"] == second["segment"]


def test_telemetry_is_on_the_disk_before_it_is_known(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, known = state_of(client), []
    flush = state.windows.flush

    def flushed(digest: str) -> None:
        with state.database.reading() as session:
            known.append((digest, repository.newest_segments(session, "durable")))
        flush(digest)

    monkeypatch.setattr(state.windows, "flush", flushed)
    receipt = send(client, "durable", fragments("durable", step_rows(10))[0])
    assert known == [(receipt["segment"], [])]


def test_of_rows_with_one_key_the_last_counts(client: TestClient) -> None:
    rows = step_rows(5)
    chosen = rows["rank"] == 0
    send(client, "corrected", body("corrected", rows, chosen))
    rows["forward_seconds"] = rows["forward_seconds"] + 1.0
    send(client, "corrected", body("corrected", rows, chosen))
    window = client.get("/v1/jobs/corrected/window", headers={"Accept": "application/json"}).json()
    assert window["steps"]["forward_seconds"] == pytest.approx(rows["forward_seconds"][chosen].tolist())


def test_a_window_of_a_time_has_the_steps_that_began_then(client: TestClient) -> None:
    rows = step_rows(40)
    for content in fragments("timed", rows):
        send(client, "timed", content)
    since, until = float(rows["start_time"][20 * N_RANKS]), float(rows["start_time"][30 * N_RANKS])
    moments = {
        name: f"{np.datetime64(round(value * 1e6), 'us')}Z"
        for name, value in (("since", since), ("until", until))
    }
    window = client.get(
        "/v1/jobs/timed/window", params=moments, headers={"Accept": "application/json"}
    ).json()
    assert set(window["steps"]["step"]) <= set(range(20, 31))
    assert set(range(21, 30)) <= set(window["steps"]["step"])


def test_a_straggler_is_diagnosed_within_twenty_steps_without_a_request(client: TestClient) -> None:
    rows = step_rows(160, slow_from=140)
    for content in fragments("straggling", rows, every=20):
        send(client, "straggling", content)
    job = watch(client, "straggling")
    assert job["changed_step"] == pytest.approx(140, abs=2)
    answer = diagnosed(client, job["diagnosis_id"])
    assert answer["failure_mode"] == "fail_slow"
    assert answer["stragglers"][0]["ranks"] == [1]
    assert answer["causes"][0]["cause"] == "data_loader_stall"


def test_a_rank_that_becomes_late_in_a_noisy_job_is_diagnosed(client: TestClient) -> None:
    rows = step_rows(160)
    draw = np.random.default_rng(1)
    # The ranks' steps vary together by more than the rank loses: the step time alone shows nothing.
    noise = np.repeat(0.1 * draw.random(160), N_RANKS)
    late = np.where((rows["rank"] == 2) & (rows["step"] >= 140), 0.012, 0.0)
    lost = np.where(rows["step"] >= 140, 0.012, 0.0)
    rows["forward_seconds"] += noise + late
    rows["communication_wait_seconds"] += lost - late
    rows["step_seconds"] += noise + lost
    per_step = rows["step_seconds"][::N_RANKS]
    rows["start_time"] = np.repeat(START + np.concatenate([[0.0], per_step.cumsum()[:-1]]), N_RANKS)
    for content in fragments("noisy", rows, every=20):
        send(client, "noisy", content)
    job = watch(client, "noisy")
    assert job["changed_step"] == pytest.approx(140, abs=4)
    assert diagnosed(client, job["diagnosis_id"])["slowdown"]["ratio"] is not None


def test_the_collector_and_the_client_send_without_glue(served: str, tmp_path: Path) -> None:
    api = Client(served)
    rows = step_rows(100)
    for rank in range(N_RANKS):
        who = Identity(rank, N_RANKS, 0, f"node-{rank}", "pushed/1", None)
        pusher = Pusher(PushSettings(served, None, tmp_path), {}, Faults())
        pusher.start(who)
        held = np.full((100, len(COLUMNS)), np.nan)
        for number, name in enumerate(COLUMNS):
            if name in rows:
                held[:, number] = rows[name][rows["rank"] == rank]
        pusher.add(held, [], None)
        pusher.end(over=False, seconds=20.0)
    assert until(lambda: api.telemetry("pushed/1")["diagnosis_id"])
    assert api.telemetry("pushed/1")["last_step"] == 99
    event = {"time": [START + 9.0], "kind": ["log"], "rank": [1]}
    job = {"job_id": "pushed/1", "world_size": N_RANKS, "start": START, "end": START + 10.0}
    window = Window.from_tables(job, events=pa.table(event), scope="fragment")
    assert api.send_telemetry(window)["new"]
    assert api.end_job("pushed/1")["ended_at"] is not None
    with pytest.raises(ServiceError, match="no telemetry of job 'other'"):
        api.telemetry("other")


def test_a_lasting_change_is_diagnosed_again_in_growing_intervals() -> None:
    wanted, due = work.WantedLook(None, None, None), []
    for last in range(104, 200):
        change = work.StepTimeChange(100)
        queued = work.is_due(change, last, wanted)
        due += [last] if queued else []
        looked = work.Look(change, last, None, None)
        wanted = work.WantedLook(*watcher.followed(looked, wanted, queued=queued)[:2], None)
    assert due == [104, 108, 112, 118, 127, 140, 160, 190]


def test_the_incident_of_a_change_that_ends_is_resolved_by_the_steps_after_it(client: TestClient) -> None:
    rows = step_rows(420, slow_from=140)
    over = rows["step"] >= 160
    rows["data_loading_seconds"][over & (rows["rank"] == 1)] -= 0.08
    own = rows["data_loading_seconds"] + rows["forward_seconds"] + rows["backward_seconds"]
    last = own.reshape(-1, N_RANKS).max(axis=1).repeat(N_RANKS)
    rows["communication_wait_seconds"] = last - own
    rows["step_seconds"] = last + 0.01
    starts = START + np.concatenate([[0.0], rows["step_seconds"][::N_RANKS].cumsum()[:-1]])
    rows["start_time"] = starts.repeat(N_RANKS)
    diagnoses = []
    for content in _joined("healed", rows, every=20):
        send(client, "healed", content)
        job = watch(client, "healed")
        if job["diagnosis_id"] is not None and job["diagnosis_id"] not in diagnoses:
            diagnoses.append(job["diagnosis_id"])
            diagnosed(client, job["diagnosis_id"])
    [incident] = client.get("/v1/incidents?job=healed").json()["items"]
    assert (incident["state"], incident["resolution"]) == ("resolved", "healthy")


def _joined(job_id: str, rows: dict[str, np.ndarray], every: int) -> list[bytes]:
    """One body of all ranks for some steps each."""
    steps = range(0, int(rows["step"].max()) + 1, every)
    return [body(job_id, rows, (rows["step"] >= one) & (rows["step"] < one + every)) for one in steps]


def test_the_first_diagnosis_of_a_steady_job_is_repeated_a_few_times(client: TestClient) -> None:
    """A job that is slow from its start needs several windows for an incident, and shows no change."""
    rows = step_rows(640)
    found: list[str] = []
    sent = fragments("steady", rows, every=40)
    for at in range(0, len(sent), N_RANKS):
        for content in sent[at : at + N_RANKS]:
            send(client, "steady", content)
        job = watch(client, "steady")
        assert job["changed_step"] is None
        if job["diagnosis_id"] and job["diagnosis_id"] not in found:
            found.append(job["diagnosis_id"])
    answers = [diagnosed(client, each) for each in found]
    assert [each["quality"]["steps_used"] for each in answers] == [80, *[64] * 5]
    assert {each["failure_mode"] for each in answers} == {"healthy"}


def test_a_late_look_is_followed_by_windows_of_new_steps() -> None:
    """Each window of a steady job begins after the one before, however late the looks are."""
    wanted, ends = work.WantedLook(None, None, watcher.FIRST_STEPS), []
    for last in (64, *range(1000, 2000)):
        due = work.is_due(None, last, wanted)
        ends += [last] * due
        changed, following, steady = watcher.followed(work.Look(None, last, None, None), wanted, queued=due)
        wanted = work.WantedLook(changed, following, None, steady_since=steady)
    assert ends == [64, *range(1000, 1257, 64)]


def test_a_job_that_goes_on_from_a_checkpoint_is_diagnosed_after_its_first_steps(client: TestClient) -> None:
    rows = step_rows(80)
    rows["step"] += 50_000
    bodies = fragments("resumed", rows, first=50_000, every=40)
    for content in bodies[:N_RANKS]:
        send(client, "resumed", content)
    assert watch(client, "resumed")["diagnosis_id"] is None
    for content in bodies[N_RANKS:]:
        send(client, "resumed", content)
    found = diagnosed(client, watch(client, "resumed")["diagnosis_id"])
    assert (found["failure_mode"], found["quality"]["steps_used"]) == ("healthy", 80)


def test_a_silence_is_diagnosed_again_once_it_is_twice_as_long_for_an_hour(client: TestClient) -> None:
    """The first diagnosis of a short silence may be undecided, as it may be a pause."""
    for content in fragments("hanging", step_rows(90), every=90):
        send(client, "hanging", content)

    def after(minutes: int) -> str:
        found: str = watch(client, "hanging", timedelta(minutes=minutes), silence=600.0)["diagnosis_id"]
        return found

    first = after(11)
    assert after(20) == first
    second = after(23)
    assert after(40) == second != first
    third = after(47)
    assert third != second
    assert after(200) == third


def test_a_silence_that_is_first_seen_after_an_hour_is_diagnosed_once(client: TestClient) -> None:
    for content in fragments("stopped", step_rows(90), every=90):
        send(client, "stopped", content)
    before = watch(client, "stopped")["diagnosis_id"]
    after = watch(client, "stopped", timedelta(hours=2))["diagnosis_id"]
    assert after != before
    # Either the model doubts that the job is healthy, or the silence does.
    assert diagnosed(client, after)["abstention_reason"]["code"] in ("fell_silent", "undecided_mode")
    assert watch(client, "stopped", timedelta(hours=3))["diagnosis_id"] == after


def test_a_job_that_sends_metrics_but_no_steps_is_silent_once(client: TestClient) -> None:
    for content in fragments("hung", step_rows(100)):
        send(client, "hung", content)
    before = watch(client, "hung")["diagnosis_id"]

    def metrics(second: int) -> None:
        times = [START + 20.0 + second]
        series = {"name": "process_cpu_seconds_total", "rank": 1, "times": times, "values": [1.0 + second]}
        job = {"job_id": "hung", "world_size": N_RANKS, "start": START, "end": START + 60.0}
        send(client, "hung", orjson.dumps({"job": job, "metrics": [series]}))

    metrics(0)
    later = timedelta(hours=2)
    after = watch(client, "hung", later)["diagnosis_id"]
    assert after != before
    metrics(1)
    assert watch(client, "hung", later)["diagnosis_id"] == after


def test_a_service_that_was_away_calls_no_job_silent(client: TestClient) -> None:
    for content in fragments("waiting", step_rows(90), every=90):
        send(client, "waiting", content)
    before = watch(client, "waiting")["diagnosis_id"]
    assert watch(client, "waiting", timedelta(hours=2), listened=3599.0)["diagnosis_id"] == before
    assert watch(client, "waiting", timedelta(hours=2), listened=3600.0)["diagnosis_id"] != before


LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:7012: Connection reset by peer"


def killed(job_id: str, code: str) -> bytes:
    """A job whose rank 1 sent its last rows before the others, which lost it and ended with a code."""
    rows = step_rows(90)
    last = float(rows["start_time"].max())
    kept = (rows["rank"] != 1) | (rows["step"] < 86)
    for name in ("communication_wait_seconds", "communication_transfer_seconds", "step_seconds"):
        rows[name] = np.where(rows["step"] == 89, np.nan, rows[name])
    sent = orjson.loads(body(job_id, rows, kept))
    for name, values in sent["steps"].items():
        sent["steps"][name] = [None if value != value else value for value in values]
    sent["events"] = [
        {"time": last + 0.3, "rank": rank, "kind": kind, "code": number, "message": message}
        for rank in (0, 2, 3)
        for kind, number, message in (("log", None, LOST), ("process_exit", code, "stopped"))
    ]
    sent["job"]["end"] = last + 0.3
    return orjson.dumps(sent)


@pytest.mark.parametrize("code", ["0", "1"])
@pytest.mark.parametrize("end", ["silence", "end"])
def test_a_job_whose_ranks_lost_their_peer_is_a_stop_of_that_peer(
    client: TestClient, code: str, end: str
) -> None:
    """A trainer may end the job in a `finally`, as it stops a collector."""
    job_id = f"killed-{code}-{end}"
    send(client, job_id, killed(job_id, code))
    watch(client, job_id)
    if end == "end":
        client.post(f"/v1/jobs/{job_id}/end")
    found = watch(client, job_id, timedelta(hours=2))["diagnosis_id"]
    answer = diagnosed(client, found)
    assert (answer["failure_mode"], [each["ranks"] for each in answer["stragglers"]]) == ("fail_stop", [[1]])
    assert watch(client, job_id, timedelta(hours=3))["diagnosis_id"] == found


def test_samples_after_the_end_of_a_failed_job_are_no_news(client: TestClient) -> None:
    def sampled(at: float, later: int) -> object:
        sample = {"times": [START + at], "node": "node-0", "name": "node_load1", "values": [1.0]}
        job = {"job_id": "over-failed", "world_size": N_RANKS, "start": START, "end": START + at + 1.0}
        send(client, "over-failed", orjson.dumps({"job": job, "metrics": [sample]}))
        return watch(client, "over-failed", timedelta(hours=later))["diagnosis_id"]

    send(client, "over-failed", killed("over-failed", "1"))
    client.post("/v1/jobs/over-failed/end")
    found = sampled(20.0, 2)
    assert diagnosed(client, str(found))["failure_mode"] == "fail_stop"
    assert [sampled(21.0 + hour, hour) for hour in (3, 4)] == [found, found]


def test_the_silence_of_an_ended_job_is_no_stop(client: TestClient) -> None:
    for content in fragments("ended", step_rows(90), every=90):
        send(client, "ended", content)
    before = watch(client, "ended")["diagnosis_id"]
    assert client.post("/v1/jobs/ended/end").json()["ended_at"] is not None
    assert watch(client, "ended", timedelta(hours=2))["diagnosis_id"] == before


def test_the_end_of_a_job_resolves_its_suspected_incident(client: TestClient) -> None:
    for content in fragments("over", step_rows(10), every=10):
        send(client, "over", content)
    live(client, "suspect", "suspect", "suspect", job="over")
    (incident,) = client.get("/v1/incidents?job=over").json()["items"]
    client.post("/v1/jobs/over/end")
    shown = client.get(f"/v1/incidents/{incident['id']}").json()
    assert (shown["state"], shown["resolution"]) == ("resolved", "ended")


def test_a_job_whose_first_news_is_a_failure_is_kept_and_diagnosed(client: TestClient) -> None:
    job = {"job_id": "failed", "world_size": N_RANKS, "start": START, "end": START + 1}
    event = {"time": START, "rank": 2, "node": "node-2", "kind": "process_exit", "code": "-9"}
    receipt = send(client, "failed", orjson.dumps({"job": job, "events": [event]}))
    assert (receipt["new"], receipt["first_step"]) == (True, None)
    answer = client.get("/v1/jobs/failed/window", headers={"Accept": "application/json"})
    assert answer.headers["X-Missing-Tables"] == "steps, metrics"
    assert answer.json()["events"][0]["kind"] == "process_exit"
    found = client.post("/v1/diagnoses", content=answer.content, headers=JSON).json()
    assert (found["failure_mode"], found["stragglers"][0]["ranks"]) == ("fail_stop", [2])
    # Steps that come later join the events.
    for content in fragments("failed", step_rows(20)):
        send(client, "failed", content)
    answer = client.get("/v1/jobs/failed/window", headers={"Accept": "application/json"})
    assert answer.headers["X-Missing-Tables"] == "metrics"
    assert (len(answer.json()["steps"]["rank"]), len(answer.json()["events"])) == (80, 1)


def test_many_segments_become_one(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "MERGED_FROM", 8)
    rows = step_rows(40)
    for content in fragments("merged", rows):
        send(client, "merged", content)
    watch(client, "merged")
    with state_of(client).database.reading() as session:
        assert len(repository.segments(session, "merged", -np.inf, np.inf)) < 16
    window = client.get("/v1/jobs/merged/window", headers={"Accept": "application/json"}).json()
    assert len(window["steps"]["rank"]) == rows["rank"].size


def test_a_long_segment_is_not_merged_again(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "MERGED_FROM", 4)
    monkeypatch.setattr(repository, "CLOSED_STEPS", 20)
    rows = step_rows(120)
    for first in range(0, 120, 30):
        chosen = (rows["step"] >= first) & (rows["step"] < first + 30)
        part = {name: values[chosen] for name, values in rows.items()}
        for content in fragments("long", part, first=first):
            send(client, "long", content)
        watch(client, "long")
    with state_of(client).database.reading() as session:
        found = session.scalars(
            select(repository.SegmentRow).where(repository.SegmentRow.job_id == "long")
        ).all()
        lengths = [row.last_step - row.first_step for row in found]
    assert max(lengths) < 60
    window = client.get("/v1/jobs/long/window", headers={"Accept": "application/json"}).json()
    assert len(window["steps"]["rank"]) == rows["rank"].size


def test_a_merged_segment_is_as_young_as_its_newest_rows(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "MERGED_FROM", 4)
    for content in fragments("young", step_rows(40)):
        send(client, "young", content)
    with state_of(client).database.reading() as session:
        newest = session.scalar(
            select(func.max(repository.SegmentRow.received_at)).where(repository.SegmentRow.job_id == "young")
        )
    watch(client, "young")
    with state_of(client).database.reading() as session:
        [merged] = session.scalars(
            select(repository.SegmentRow).where(repository.SegmentRow.job_id == "young")
        ).all()
    assert merged.received_at == newest


def test_rows_after_the_end_of_their_window_are_kept(client: TestClient) -> None:
    rows = step_rows(30)
    content = orjson.loads(body("late", rows, np.arange(rows["rank"].size)))
    content["job"]["end"] = content["job"]["start"] + 1.0
    send(client, "late", orjson.dumps(content))
    window = client.get(
        "/v1/jobs/late/window",
        params={"since": "2020-01-01T00:00:00Z"},
        headers={"Accept": "application/json"},
    ).json()
    assert len(window["steps"]["rank"]) == rows["rank"].size


def test_late_rows_of_old_steps_do_not_begin_an_ended_job_again(client: TestClient) -> None:
    *early, last = fragments("raced", step_rows(20), every=20)
    for content in early:
        send(client, "raced", content)
    client.post("/v1/jobs/raced/end")
    send(client, "raced", last)
    assert client.get("/v1/jobs/raced/telemetry").json()["ended_at"] is not None
    for content in fragments("raced", step_rows(30), first=20):
        send(client, "raced", content)
    assert client.get("/v1/jobs/raced/telemetry").json()["ended_at"] is None


def test_a_job_that_cannot_be_watched_stops_no_other_and_stays_due(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in ("bad", "good"):
        for content in fragments(job_id, step_rows(90), every=90):
            send(client, job_id, content)
    watch(client, "bad")
    bodies = {job_id: fragments(job_id, step_rows(120), first=90, every=30) for job_id in ("bad", "good")}
    for job_id, held in bodies.items():
        for content in held:
            send(client, job_id, content)
    whole = repository.newest_segments

    def failing(session: Any, job_id: str) -> list[str]:
        if job_id == "bad":
            raise SourceError("the store is away")
        return whole(session, job_id)

    monkeypatch.setattr(repository, "newest_segments", failing)
    watch(client, "good")
    pending = {}
    with state_of(client).database.reading() as session:
        for job_id in ("bad", "good"):
            pending[job_id] = session.get_one(repository.StreamedJobRow, job_id).pending
    assert pending == {"bad": True, "good": False}


def test_old_telemetry_is_deleted_with_its_windows(client: TestClient) -> None:
    segment = send(client, "old", fragments("old", step_rows(10))[0])["segment"]
    state = state_of(client)
    watch(client, "old")
    later = now() + timedelta(days=2)
    state.old_rows.delete(later)
    assert client.get("/v1/jobs/old/telemetry").status_code == 404
    assert state.windows.has(segment)
    state.retention.prune(later)
    assert not state.windows.has(segment)


@pytest.mark.parametrize(
    ("job_id", "content", "status", "says"),
    [
        ("other", body("job", step_rows(3), np.arange(12)), 400, "the body is of job 'job'"),
        ("broken", b'{"job": {', 422, "a complete JSON document"),
    ],
)
def test_bad_telemetry_is_refused(
    client: TestClient, job_id: str, content: bytes, status: int, says: str
) -> None:
    answer = client.post(f"/v1/jobs/{job_id}/telemetry", content=content, headers=JSON)
    assert answer.status_code == status, answer.text
    assert says in answer.text
    assert client.get(f"/v1/jobs/{job_id}/telemetry").status_code == 404


def test_a_job_that_goes_on_with_fewer_ranks_is_watched_and_diagnosed(client: TestClient) -> None:
    before = step_rows(80)
    for content in fragments("shrunk", before, every=40):
        send(client, "shrunk", content)
    assert watch(client, "shrunk")["world_size"] == N_RANKS
    after = step_rows(120, slow_from=100, n_ranks=3, start=START + 60.0)
    for content in fragments("shrunk", after, every=40):
        send(client, "shrunk", content)
    job = watch(client, "shrunk")
    assert (job["world_size"], job["last_step"]) == (3, 119)
    found = diagnosed(client, job["diagnosis_id"])
    assert found["failure_mode"] == "fail_slow"
    assert found["stragglers"][0]["ranks"] == [1]
    window = client.get("/v1/jobs/shrunk/window", headers={"Accept": "application/json"}).json()
    assert window["job"]["world_size"] == 3
    # A late row of the attempt before is refused.
    late = client.post(
        "/v1/jobs/shrunk/telemetry", content=body("shrunk", before, before["step"] == 79), headers=JSON
    )
    assert late.status_code == 409
    # So is a sample of an exporter that does not know of the restart.
    at = START + 100.0
    metrics = pa.table({"name": ["DCGM_FI_DEV_SM_CLOCK"], "time": [at], "value": [1980.0], "rank": [3]})
    job = {"job_id": "shrunk", "world_size": N_RANKS, "start": at, "end": at + 1.0}
    fragment = Window.from_tables(job, metrics=metrics, scope="fragment").to_json()
    sample = client.post("/v1/jobs/shrunk/telemetry", content=fragment, headers=JSON)
    assert sample.status_code == 409


def test_two_trainers_with_one_job_id_are_named_and_not_diagnosed(client: TestClient) -> None:
    first, second = step_rows(40), step_rows(40, seed=1, start=START + 0.05)
    for each in zip(fragments("twice", first), fragments("twice", second), strict=True):
        for content in each:
            send(client, "twice", content)
    job = watch(client, "twice", timedelta(hours=2))
    [remark] = job["remarks"]
    assert remark.startswith(
        "two trainers send rank 0 of this job at the same time: give each of them a job_id"
    )
    assert job["diagnosis_id"] is None
    refused = client.get("/v1/jobs/twice/window")
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid-input")


def test_another_number_of_ranks_is_another_job(client: TestClient) -> None:
    rows = step_rows(3)
    everything = np.arange(rows["rank"].size)
    send(client, "grown", body("grown", rows, everything))
    answer = client.post(
        "/v1/jobs/grown/telemetry", content=body("grown", rows, everything, world_size=8), headers=JSON
    )
    assert answer.status_code == 409
    assert "another job_id" in answer.json()["hint"]


def test_jobs_are_listed_newest_first(client: TestClient) -> None:
    for job_id in ("list-1", "list-2"):
        send(client, job_id, fragments(job_id, step_rows(3))[0])
    found = client.get("/v1/jobs", params={"limit": 2}).json()
    assert [item["job_id"] for item in found["items"]] == ["list-2", "list-1"]
    assert found["next"] is not None


@pytest.mark.parametrize("path", ["/v1/jobs/none/telemetry", "/v1/jobs/none/window"])
def test_an_unknown_job_is_not_found(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_ending_an_unknown_job_is_not_found(client: TestClient) -> None:
    assert client.post("/v1/jobs/none/end").status_code == 404


def test_more_telemetry_than_memory_allows_is_refused(client: TestClient) -> None:
    rows = step_rows(40)
    for content in fragments("large", rows):
        send(client, "large", content)
    state = state_of(client)
    with state.database.reading() as session:
        digests = repository.segments(session, "large", -np.inf, np.inf)
    context = Context(bundles=None, windows=state.windows, max_memory_bytes=20_000)  # type: ignore[arg-type]
    with pytest.raises(TooLarge, match="more than"):
        work.cut(context, digests, -np.inf, np.inf, "application/json", as_sent=False)
