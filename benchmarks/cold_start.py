"""Time from the shell to a printed diagnosis, compared with the import of its three main libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import Budget, repeat, summary

WINDOW = Path("data/windows/cpu-contention-node")
IMPORTS = "import numpy, pyarrow, pydantic"
#: `rca diagnose` says by its status what it found; anything else is a failure.
ANSWERS = {0, 10, 20, 30}


def measured(window: Path = WINDOW, bundle: Path | None = None, runs: int = 5) -> dict[str, Any]:
    """Seconds of fresh processes, files in the page cache."""
    diagnose = [str(Path(sys.executable).with_name("rca")), "diagnose", str(window)]
    if bundle is not None:
        diagnose += ["--bundle", str(bundle)]
    budget = Budget(seconds=0.0, least=runs, most=runs)
    _run(diagnose)  # The first one also compiles byte code.
    return {
        "window": str(window),
        "diagnose": summary(repeat(lambda: _run(diagnose), budget)),
        "imports": summary(repeat(lambda: _run([sys.executable, "-c", IMPORTS]), budget)),
    }


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode not in ANSWERS:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}\n{done.stderr.decode()[-2000:]}")
