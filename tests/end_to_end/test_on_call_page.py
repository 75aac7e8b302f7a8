"""docs/how-to/on-call.md: its files and commands lead from exporters to an incident, and to its end.

Prometheus, Alertmanager and the service are real. Times are shorter than those of the page.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.service.alertmanager_server import MISSING as NO_ALERTMANAGER
from tests.service.alertmanager_server import alertmanager, alerts_of, raise_alert
from tests.telemetry.prometheus_servers import MISSING as NO_PROMETHEUS
from tests.telemetry.prometheus_servers import free_port, prometheus
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(NO_PROMETHEUS or NO_ALERTMANAGER), reason="Prometheus or Alertmanager is missing"
    ),
]
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "on-call.md").read_text(encoding="utf-8")
#: The fault began so long before the test does; the history so long before that, seconds.
LASTED, BEFORE = 60.0, 200.0
FIRST_LINE = re.compile(r"```(?:yaml|bash)\n# (?P<name>[^\n]+)\n(?P<code>.*?)```", re.DOTALL)
#: GPU 2 of node-2.
CULPRIT = ("node-2", 2)


def page(name: str) -> list[str]:
    """The blocks of the page whose first line is this comment."""
    return [found["code"] for found in FIRST_LINE.finditer(PAGE) if found["name"] == name]


def samples(slow: bool, at: float | None = None) -> Iterator[str]:
    """Lines of the GPU exporters of a job on two nodes, with a time for a history."""
    when = "" if at is None else f" {at:.3f}"
    for name, usual, bad in (
        ("SM_CLOCK", 1965, 1090),
        ("GPU_UTIL", 98, 100),
        ("POWER_USAGE", 650, 390),
        ("FB_USED", 70_000, 70_000),
    ):
        for node in (1, 2):
            for gpu in range(4):
                value = (
                    bad
                    if slow and (f"node-{node}", gpu) == CULPRIT
                    else usual + (gpu + int(at or time.time())) % 3
                )
                yield (
                    f'DCGM_FI_DEV_{name}{{gpu="{gpu}",Hostname="node-{node}",modelName="H100",namespace="ml",'
                    f'pod="llama-70b-worker-{node - 1}",job="training",instance="exporters"}} {value}{when}'
                )


def series_of(line: str) -> str:
    return line.partition("}")[0]


@contextmanager
def exporters(slow: threading.Event) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            lines = (
                re.sub(r',job="training",instance="exporters"', "", each) for each in samples(slow.is_set())
            )
            body = "\n".join([*lines, ""]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def running(script: str, folder: Path) -> Iterator[None]:
    """Run commands of the page in the background, in a group that ends with the test."""
    settings = {"RCA_DATA_DIR": str(folder / "data"), "RCA_PROCESSES": "1"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [shutil.which("bash") or "bash", "-c", f"{script}\nwait"],
            cwd=folder, env={**os.environ, **settings, "PATH": path}, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield
        finally:
            for ended in (signal.SIGTERM, signal.SIGKILL):
                # Those that the shell started may outlive it.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, ended)
                process.wait(20)
                with suppress(AssertionError):
                    until(lambda: not alive(process.pid), seconds=10)


def answer(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as found:
        return json.load(found)


def test_the_page_leads_to_an_incident_and_to_its_end(tmp_path: Path) -> None:
    now, port = time.time(), free_port()
    service, slow = f"http://127.0.0.1:{port}", threading.Event()
    slow.set()
    onset = now - LASTED
    times = [now - LASTED - BEFORE + 5 * number for number in range(int((LASTED + BEFORE - 2) / 5))]
    by_name: dict[str, list[str]] = {}
    for at in times:
        for line in samples(at >= onset, at):
            by_name.setdefault(line.partition("{")[0], []).append(line)
    lines = (
        line
        for name, held in by_name.items()
        for line in [f"# TYPE {name} gauge", *sorted(held, key=series_of)]
    )
    shutil.copy(
        ROOT / "api" / "deploy" / "prometheus" / "gpu-alerts.yaml", tmp_path / "prometheus-rules.yaml"
    )
    (tmp_path / "prometheus").mkdir()
    shutil.copy(ROOT / "api" / "deploy" / "prometheus" / "gpu-alerts.yaml", tmp_path / "prometheus")
    routes = page("alertmanager.yml")[0].replace("http://127.0.0.1:8080", service).replace("10s", "0s")
    with exporters(slow) as target, alertmanager(tmp_path / "am", yaml.safe_load(routes)) as receiver:
        config = page("prometheus.yml")[0].replace("scrape_interval: 5s", "scrape_interval: 1s")
        config = config.replace('"node-1:9400", "node-2:9400"', f'"{target}"')
        config = config.replace("alertmanager:9093", receiver.removeprefix("http://"))
        with prometheus(tmp_path / "prometheus", lines, config) as url:
            fill = {
                "http://prometheus:9090": url,
                "http://alertmanager:9093": receiver,
                "http://127.0.0.1:8080": service,
                "--port 8080": f"--port {port}",
                "every: 15s": "every: 1s",
            }

            def filled(text: str) -> str:
                for before, after in fill.items():
                    text = text.replace(before, after)
                return text

            for name in ("watch.yaml", "sources.yaml"):
                (tmp_path / name).write_text(filled(page(name)[0]))
            first, watch, later = map(filled, page("not run: needs servers"))
            env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            looked = subprocess.run(
                ["bash", "-c", first], env=env, capture_output=True, text=True, cwd=tmp_path
            )
            assert looked.returncode == 30, looked.stderr
            assert "llama-70b" in looked.stdout.splitlines()[1]
            assert "SUSPECTED fail-slow: rank 6 on `node-2` (GPU 2), cause `gpu_throttling`" in looked.stdout
            with running(watch, tmp_path):
                opened = until(lambda: answer(f"{service}/v1/incidents?state=open")["items"], not_yet=OSError)
                (incident,) = opened
                assert (incident["job_id"], incident["cause"], incident["place"], incident["confidence"]) == (
                    "ml/llama-70b", "gpu_throttling", ["node-2"], "suspected",
                )  # fmt: skip
                assert datetime.fromisoformat(incident["began"]).timestamp() == pytest.approx(onset, abs=20.0)
                until(
                    lambda: [
                        each for each in alerts_of(receiver) if each["labels"]["cause"] == "gpu_throttling"
                    ]
                )
                raise_alert(
                    receiver,
                    alertname="GpuThrottled",
                    Hostname="node-2",
                    gpu="2",
                    namespace="ml",
                    pod="llama-70b-worker-1",
                )
                hook = 'route="/v1/hooks/alertmanager",status="200"'
                until(lambda: hook in urllib.request.urlopen(f"{service}/metrics", timeout=5).read().decode())
                shown = subprocess.run(
                    ["bash", "-c", later], env=env, capture_output=True, text=True, cwd=tmp_path
                )
                assert shown.returncode == 0, shown.stderr
                assert "rank 6 on node-2, GPU 2" in shown.stdout
                slow.clear()
                until(lambda: not answer(f"{service}/v1/incidents?state=open")["items"])
                events = answer(f"{service}/v1/incidents/{incident['id']}")["timeline"]
                assert [each["kind"] for each in events] == ["suspected", "resolved"]
                until(lambda: not [each for each in alerts_of(receiver) if "incident_id" in each["labels"]])
