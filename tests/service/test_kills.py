"""Streams, diagnoses, incidents and webhooks through many kills, with a clock that jumps.

Trainers stream jobs, one rank of which becomes slow. Callers post windows. A receiver gets webhooks. The
service and its processes are killed by SIGKILL at random moments, also while it starts, and its clock is set
by hours. Afterwards every acknowledged row is there with its value, every acknowledged diagnosis too, each
job has one incident, and all of its messages have arrived. ``RCA_TEST_KILLS`` sets the number of kills:
``python -m pytest tests/service/test_kills.py --long -s``.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import orjson
import pytest
from callers import TEMPLATE_ID, Crowd, Verdict
from killed_service import KilledService, killed_service
from receivers import receiver
from shifted_clock import ShiftedClock
from streaming import JSON, N_RANKS, body, step_rows
from watched import asked, computing, stored

from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.long]
KILLS = int(os.environ.get("RCA_TEST_KILLS", "200"))
SETTINGS = {
    "RCA_AUTH": "off",
    "RCA_DATABASE_URL": "",
    "RCA_WINDOW_STORE_URL": "",
    "RCA_PROCESSES": "1",
    "RCA_DEADLINE_SECONDS": "20",
    "RCA_LEASE_SECONDS": "1",
    "RCA_RATE_LIMIT": "",
    "RCA_WATCH_SECONDS": "0.5",
    # Trainers wait for the service as long as it is away.
    "RCA_JOB_SILENCE_SECONDS": "100000",
    "RCA_INCIDENT_SURE_PROBABILITY": "0.5",
    "RCA_WEBHOOK_HTTP": "true",
    "RCA_WEBHOOK_PRIVATE": "true",
}
N_STEPS, SLOW_FROM, STEPS_SENT = 160, 80, 20


class Trainers:
    """Threads that stream one job after the other, and repeat every fragment until it is acknowledged.

    Attributes
    ----------
    acknowledged : dict
        Step times by job, rank and step.
    ended : list of str
        Jobs that were sent whole.
    """

    def __init__(self, url: str, trainers: int = 2) -> None:
        self.acknowledged: dict[tuple[str, int, int], float] = {}
        self.ended: list[str] = []
        self.refused: Counter[int | str] = Counter()
        self._url = url
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._train, args=(number,), daemon=True) for number in range(trainers)
        ]

    @contextmanager
    def streaming(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self.rest()

    def rest(self) -> None:
        """Begin no further job, and wait until the present ones are sent."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(120.0)
        assert not any(thread.is_alive() for thread in self._threads)

    def _train(self, trainer: int) -> None:
        number = 0
        while not self._stopped.is_set():
            self._stream(f"job-{trainer}-{number}", random.Random(f"{trainer} {number}"))
            number += 1

    def _stream(self, job_id: str, draw: random.Random) -> None:
        began = time.time() - 0.2 * N_STEPS
        rows = step_rows(N_STEPS, slow_from=SLOW_FROM, seed=draw.randrange(1 << 31), start=began)
        of_part = rows["step"] // STEPS_SENT
        for part in range(N_STEPS // STEPS_SENT):
            for rank in draw.sample(range(N_RANKS), N_RANKS):
                chosen = (rows["rank"] == rank) & (of_part == part)
                fragment = body(job_id, rows, chosen)
                self._until_acknowledged(job_id, fragment)
                if draw.random() < 0.2:
                    self._until_acknowledged(job_id, fragment)
                sent = zip(rows["step"][chosen].tolist(), rows["step_seconds"][chosen].tolist(), strict=True)
                self.acknowledged.update({(job_id, rank, step): seconds for step, seconds in sent})
                time.sleep(0.02)
        self.ended.append(job_id)

    def _until_acknowledged(self, job_id: str, fragment: bytes) -> None:
        while True:
            try:
                address = f"{self._url}/v1/jobs/{job_id}/telemetry"
                with urlopen(Request(address, fragment, JSON), timeout=30) as answer:
                    answer.read()
                    return
            except HTTPError as error:
                error.close()
                self.refused[error.code] += 1
            except (OSError, HTTPException):
                self.refused["broken"] += 1
            time.sleep(0.05)


def kill_often(service: KilledService, data: Path, clock: ShiftedClock, draw: random.Random) -> Counter[str]:
    """Kill `KILLS` times; gives how often what was killed."""
    killed: Counter[str] = Counter()
    service.start()
    while killed.total() < KILLS:
        clock.set(draw.choice((-2.0, -1.0, 0.0, 0.0, 1.0, 2.0)))
        if draw.random() < 0.2:
            time.sleep(draw.uniform(0.0, 2.0))
            what = "service at its start"
        else:
            service.await_ready()
            time.sleep(draw.uniform(0.0, 1.5))
            what = draw.choice(("service", "pool process"))
        if what == "pool process":
            with suppress(IndexError, ProcessLookupError):
                os.kill(computing(data)[0], signal.SIGKILL)
                killed[what] += 1
            continue
        service.kill()
        killed[what] += 1
        until(lambda: not computing(data))
        service.start()
    return killed


def missing_rows(url: str, trainers: Trainers) -> int:
    """Acknowledged rows that are not there, or have another value."""
    lost = 0
    for job_id in {job_id for job_id, _, _ in trainers.acknowledged}:
        request = Request(f"{url}/v1/jobs/{job_id}/window", headers={"Accept": "application/json"})
        with urlopen(request, timeout=60) as answer:
            steps = orjson.loads(answer.read())["steps"]
        found = dict(zip(zip(steps["rank"], steps["step"], strict=True), steps["step_seconds"], strict=True))
        lost += sum(
            found.get((rank, step)) != seconds
            for (job, rank, step), seconds in trainers.acknowledged.items()
            if job == job_id
        )
    return lost


def items_of(url: str, path: str) -> list[Any]:
    """All items of a list, page by page."""
    items: list[Any] = []
    cursor = ""
    while True:
        page = asked(f"{url}{path}?limit=200{cursor}")
        items += page["items"]
        if page["next"] is None:
            return items
        cursor = f"&cursor={page['next']}"


def test_nothing_is_lost_by_kills_and_jumps_of_the_clock(
    tmp_path: Path, make_window: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    data, clock, draw = tmp_path / "data", ShiftedClock(tmp_path), random.Random(54)
    window: bytes = make_window(8, 40, late={3: 0.03}).to_json()
    posted = window.replace(b'"job":{', b'"job":{"window_id":"' + TEMPLATE_ID.encode() + b'",', 1)
    environment = SETTINGS | {"RCA_DATA_DIR": str(data)} | clock.environment
    with (
        (tmp_path / "log").open("wb") as log,
        receiver() as receiving,
        killed_service(environment, log.fileno()) as service,
    ):
        service.start()
        service.await_ready()
        asked(f"{service.url}/v1/webhooks", {"url": receiving.url})
        service.kill()
        trainers, crowd = Trainers(service.url), Crowd(posted, callers=1)
        crowd.url = service.url
        with trainers.streaming(), crowd.calling():
            began = time.monotonic()
            killed = kill_often(service, data, clock, draw)
            took = time.monotonic() - began
            clock.set(0.0)
            service.await_ready()
            trainers.rest()
            verdict = Verdict(crowd, service.url)
        lost = missing_rows(service.url, trainers)
        # A diagnosis is given up after five attempts, and its job has no incident then.
        given_up = {row["job_id"] for row in stored(service.url) if row["state"] == "failed"}
        followed = [job for job in trainers.ended if job not in given_up]
        opened = until(lambda: incidents_of_all(service.url, followed))
        sent = until(lambda: messages_of_all(opened, receiving.received))
    with capsys.disabled():
        sys.stdout.write(
            f"\n{killed.total()} kills ({dict(killed)}) in {took:.0f} s: "
            f"{len(trainers.acknowledged):,} rows of {len(trainers.ended)} jobs acknowledged, {lost} lost; "
            f"diagnoses acknowledged {verdict.acknowledged}, found {verdict.found}; "
            f"jobs given up {len(given_up)}; incidents {len(opened)}; "
            f"messages {len(receiving.received)}, distinct {sent}; refused {dict(trainers.refused)}\n"
        )
    assert lost == 0
    # A slow machine computes longer, so that five kills meet the same work more often.
    assert len(given_up) <= max(1, (verdict.acknowledged + len(trainers.ended)) // 20)
    assert verdict.found + verdict.given_up == verdict.windows == verdict.acknowledged
    assert (verdict.duplicated, verdict.unclaimed) == (0, 0)
    assert set(trainers.refused) | set(crowd.refused) <= {"broken", 409, 503, 504}
    # Each job became slow once.
    assert Counter(each["job_id"] for each in opened if each["job_id"] in followed) == Counter(followed)


def incidents_of_all(url: str, jobs: list[str]) -> list[Any]:
    """All incidents, once each of the jobs has one."""
    found = items_of(url, "/v1/incidents")
    return found if {each["job_id"] for each in found} >= set(jobs) else []


def messages_of_all(incidents: list[Any], received: list[tuple[dict[str, str], bytes]]) -> int:
    """Number of distinct messages, once each incident has its opening; 0 before."""
    bodies = {headers["webhook-id"]: orjson.loads(body) for headers, body in list(received)}
    opened = {
        each["data"]["incident"]["id"]
        for each in bodies.values()
        if each["type"] in ("incident.opened", "incident.suspected")
    }
    return len(bodies) if opened >= {each["id"] for each in incidents} else 0
