"""A real Alertmanager on the loopback interface."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.telemetry.prometheus_servers import free_port
from tests.waiting import until

PROGRAM = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
MISSING = "" if PROGRAM and sys.platform == "linux" else "prometheus-alertmanager is not installed"
QUIET = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}


@contextmanager
def alertmanager(folder: Path, config: dict[str, Any] | None = None) -> Iterator[str]:
    """Run one with `config`, by default without receivers; yields its address."""
    folder.mkdir(parents=True, exist_ok=True)
    # YAML contains JSON.
    (folder / "alertmanager.yml").write_text(json.dumps(config or QUIET), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    server = subprocess.Popen(
        [
            PROGRAM or "", "--config.file=alertmanager.yml", "--storage.path=data",
            "--cluster.listen-address=",
            f"--web.listen-address={address}", "--log.level=error",
        ],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        ready = f"http://{address}/-/ready"
        until(lambda: urllib.request.urlopen(ready, timeout=1).status == 200, not_yet=OSError)
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(10)


def alerts_of(url: str) -> list[dict[str, Any]]:
    """Alerts that are active now."""
    with urllib.request.urlopen(f"{url}/api/v2/alerts?active=true", timeout=5) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def raise_alert(url: str, **labels: str) -> None:
    """Post a firing alert, as Prometheus does."""
    body = json.dumps([{"labels": labels}]).encode()
    request = urllib.request.Request(
        f"{url}/api/v2/alerts", body, headers={"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=5).close()
