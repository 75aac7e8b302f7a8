"""A worker of an elastic job: notes its start in a file, and fails when a peer is lost, as collectives do."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def note(folder: Path) -> dict[str, Any]:
    """Write down this start, for the test and for the peers."""
    names = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    start = {name: int(os.environ[name]) for name in names} | {"pid": os.getpid()}
    place = folder / f"{time.time_ns()}-{os.getpid()}.json"
    place.with_suffix(".new").write_text(json.dumps(start))
    place.with_suffix(".new").rename(place)
    return start


if __name__ == "__main__":
    held = Path(sys.argv[1])
    mine = note(held)
    peers: dict[int, int] = {}
    while True:
        time.sleep(0.05)
        for path in sorted(held.glob("*.json")):
            start = json.loads(path.read_text())
            if start["WORLD_SIZE"] == mine["WORLD_SIZE"] and Path(f"/proc/{start['pid']}").exists():
                peers.setdefault(start["RANK"], start["pid"])
        if not all(Path(f"/proc/{pid}").exists() for pid in peers.values()):
            sys.exit("a peer is lost")
