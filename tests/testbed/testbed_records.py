"""Small records as a capture leaves them, built by hand."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.lab.testbed.probe import Capabilities
from rca.lab.testbed.process import Exit
from rca.lab.testbed.ranks.shared import Row
from rca.lab.testbed.record import Acted, CaptureRecord
from rca.lab.testbed.sampling.series import Sample
from rca.lab.testbed.scenario import CaptureScenario

EVERYTHING = Capabilities(2, *[True] * 11)
UNIX_OFFSET = 1_700_000_000.0
#: A fault of rank 1's GPU.
GEMMS = {"kind": "gpu_gemms", "scope": "rank", "ranks": [1], "first_step": 15, "last_step": 30}


def rows_of(step_seconds: FloatArray, n_ranks: int) -> list[FloatArray]:
    """Rows of ranks that all take the same steps, one after the other, in phases of equal shares."""
    start = 100.0 + np.concatenate([[0.0], np.cumsum(step_seconds)[:-1]])
    rows = np.full((step_seconds.size, len(Row)), np.nan)
    rows[:, Row.START] = start
    for phase in (Row.DATA_LOADING, Row.HOST_TO_DEVICE, Row.FORWARD, Row.BACKWARD, Row.OPTIMIZER):
        rows[:, phase] = step_seconds / 6
    rows[:, Row.PEER_WAIT] = rows[:, Row.PEER_TRANSFER] = rows[:, Row.CHECKPOINT] = rows[:, Row.GC] = 0.0
    rows[:, Row.ARRIVAL_TIME] = start + 4 * step_seconds / 6
    rows[:, Row.DONE_TIME] = start + 5 * step_seconds / 6
    rows[:, Row.STEP] = step_seconds
    rows[:, Row.SAMPLES] = 32
    return [rows.copy() for _ in range(n_ranks)]


def record_of(
    rows: list[FloatArray],
    acted: list[Acted] | None = None,
    samples: list[Sample] | None = None,
    exits: list[Exit] | None = None,
) -> CaptureRecord:
    return CaptureRecord(rows, samples or [], exits or [], acted or [], UNIX_OFFSET, 0.03, EVERYTHING)


def scenario_of(*faults: dict[str, object], **fields: object) -> CaptureScenario:
    job = {"world_size": 4, "nodes": 2, "steps": 40, **fields.pop("job", {})}  # type: ignore[dict-item]
    return CaptureScenario.model_validate({"name": "made-up", "job": job, "faults": faults, **fields})


def gpu_scenario(*faults: dict[str, object], **job: object) -> CaptureScenario:
    """A job in which rank 1 has a GPU and every rank a node."""
    return scenario_of(*faults, job={"nodes": 4, "gpu_ranks": [1], **job})


def acted_of(scenario: CaptureScenario, index: int = 0) -> Acted:
    """The fault acted exactly as planned."""
    fault = scenario.faults[index]
    return Acted(fault, fault.first_step, fault.last_step)
