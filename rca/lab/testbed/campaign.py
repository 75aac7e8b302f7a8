"""A campaign: many captures in a row, which can be stopped and resumed at any time."""

from __future__ import annotations

import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from rca.errors import InvalidInput, RcaError
from rca.files import replace_file
from rca.lab.testbed.gpus import Gpu, require_gpus
from rca.lab.testbed.matrix import Planned, ScenarioMatrix, expand
from rca.lab.testbed.process import detach
from rca.lab.testbed.scenario import CaptureScenario
from rca.sources import labels
from rca.sources.labels import MANIFEST_FILE, read_collection, read_label

FAILURES = "failures.json"
#: Exit code of a forked capture that failed for a reason the user can read.
_FAILED = 3
_INTERRUPTED = 130


class Runner(Protocol):
    """Makes one capture: writes a labelled window's folder at `path`, or raises `RcaError`."""

    def __call__(self, scenario: CaptureScenario, path: Path) -> None:
        """Capture `scenario` to `path`."""


@dataclass(frozen=True)
class CampaignProgress:
    """Progress of a campaign.

    Attributes
    ----------
    remaining_seconds : float or None
        Estimate from the captures made so far; None before the first.
    """

    done: int
    total: int
    name: str
    remaining_seconds: float | None


@dataclass(frozen=True)
class CampaignOutcome:
    """Result of a run: captures in the collection, new captures, and failed ones with their messages."""

    total: int
    made: int
    failed: dict[str, str]


def run_campaign(
    matrix: ScenarioMatrix,
    folder: Path,
    runner: Runner,
    *,
    on_progress: Callable[[CampaignProgress], None] = lambda progress: None,
    limit: int | None = None,
) -> CampaignOutcome:
    """Make the captures of a matrix that are not in `folder` yet.

    The campaign continues after a failed capture, and the next run tries it again.

    Parameters
    ----------
    limit : int, optional
        Stop after this many captures.
    """
    planned = expand(matrix)
    _refuse_other_matrix(matrix, folder)
    folder.mkdir(parents=True, exist_ok=True)
    missing = [each for each in planned if not (folder / each.scenario.name).exists()]
    todo = missing[:limit]
    failed: dict[str, str] = {}
    made, began = 0, time.monotonic()
    write_manifest(matrix, folder, planned)
    for number, each in enumerate(todo):
        remaining = (time.monotonic() - began) / number * (len(todo) - number) if number else None
        on_progress(
            CampaignProgress(len(planned) - len(missing) + made, len(planned), each.scenario.name, remaining)
        )
        try:
            runner(each.scenario, folder / each.scenario.name)
            made += 1
        except RcaError as error:
            failed[each.scenario.name] = error.message
        write_manifest(matrix, folder, planned)
        replace_file(folder / FAILURES, orjson.dumps(failed, option=orjson.OPT_INDENT_2))
    return CampaignOutcome(sum((folder / each.scenario.name).exists() for each in planned), made, failed)


def require_gpus_of(planned: list[Planned]) -> tuple[Gpu, ...]:
    """The GPUs for a campaign; refuse one with GPU ranks on a machine where these captures would fail.

    Raises
    ------
    GpuMissing
        With the first thing that is missing.
    """
    count = max((len(each.scenario.job.gpu_ranks) for each in planned), default=0)
    return require_gpus(count) if count else ()


def write_manifest(matrix: ScenarioMatrix, folder: Path, planned: list[Planned]) -> None:
    """Write the collection's manifest: its captures, and the part of the collection of each."""
    entries = [_entry(folder, each) for each in planned if (folder / each.scenario.name).exists()]
    properties = {
        "name": matrix.name,
        "seed": matrix.seed,
        "planned": len(planned),
        "matrix": matrix.model_dump(mode="json"),
        "software": {"python": platform.python_version(), "kernel": platform.release()},
    }
    labels.write_manifest(folder, sorted(entries, key=lambda entry: str(entry["id"])), properties)


def forked(
    scenario: CaptureScenario, path: Path, *, max_foreign_cpu: float = 1.0, gpus: Sequence[Gpu] | None = None
) -> None:
    """Capture in a forked process: a crash costs one capture, and PyTorch is imported only once.

    Raises
    ------
    CaptureFailed
        With the capture's error message.
    """
    from rca.lab.testbed.capture import CaptureFailed, capture_to

    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        code = 1
        # Ctrl-C reaches the campaign only, which then sends SIGTERM once.
        detach(signal.SIGTERM)
        try:
            capture_to(scenario, path, max_foreign_cpu=max_foreign_cpu, gpus=gpus)
            code = 0
        except KeyboardInterrupt:
            code = _INTERRUPTED
        except RcaError as error:
            os.write(writer, "\n".join(filter(None, (error.message, error.hint))).encode()[:4000])
            code = _FAILED
        except BaseException:
            os.write(writer, traceback.format_exc()[-4000:].encode())
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writer)
    code = _wait_for(pid)
    with os.fdopen(reader, "rb") as pipe:
        message = pipe.read().decode(errors="replace")
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise CaptureFailed(message or f"the capture ended with {code}")


def _wait_for(pid: int) -> int:
    """Wait for a forked capture; pass an interrupt on, so that the capture takes everything down."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise


def _entry(folder: Path, planned: Planned) -> dict[str, Any]:
    name = planned.scenario.name
    label = read_label(folder / name)
    extra = label.model_extra or {}
    return {
        "id": name,
        "path": name,
        "group": planned.group,
        "split": planned.part,
        "model": planned.scenario.job.model,
        "world_size": planned.scenario.job.world_size,
        "gpu_ranks": list(planned.scenario.job.gpu_ranks),
        "failure_mode": label.failure_mode,
        "causes": [cause.cause for cause in label.causes],
        "visible": extra.get("visible"),
        "stranger_cpu_share": extra.get("stranger_cpu_share"),
        "seed": planned.scenario.seed,
    }


def _refuse_other_matrix(matrix: ScenarioMatrix, folder: Path) -> None:
    """Refuse a folder with another campaign: this one would overwrite its manifest."""
    if not (folder / MANIFEST_FILE).exists():
        return
    held = read_collection(folder).properties
    if (held.get("name"), held.get("seed")) != (matrix.name, matrix.seed):
        raise InvalidInput(
            f"{folder}: contains the campaign {held.get('name')!r}, seed {held.get('seed')}",
            hint="name another folder",
        )
