"""The operation trace of a simulated job: one row per operation and worker, as a profiler would write it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rca.arrays import FloatArray
from rca.simulation.forward import op_starts
from rca.simulation.scenario import Scenario
from rca.simulation.timing import Timing, job_plan
from rca.telemetry.schema import OPS
from rca.whatif.optypes import NAMES


def ops_table(scenario: Scenario, timing: Timing, n_run: int, clock_error: FloatArray) -> pa.Table:
    """Build the ``ops`` table of the completed steps; of a tensor group its first rank is traced.

    Parameters
    ----------
    timing : Timing
        Run with ``keep_ends``.
    n_run : int
        Steps that were completed.
    clock_error : ndarray of shape (n_ranks,), seconds
    """
    plan, course = job_plan(scenario), timing.course
    begun = op_starts(plan, course)[..., :n_run]
    if course.ends is None or n_run == 0:
        return OPS.empty()
    lasted = course.ends[..., :n_run] - begun
    op, data, step = (index.ravel() for index in np.indices(begun.shape))
    rank = (plan.stage[op] * scenario.replicas + data) * scenario.parallelism.tensor
    stages = plan.shape.pipeline
    chunk = np.where(plan.chunk >= 0, plan.chunk * stages + plan.stage, -1)
    columns = {
        "rank": rank,
        "dp_rank": data,
        "stage": plan.stage[op],
        "step": step + scenario.first_step_number,
        "optype": pa.DictionaryArray.from_arrays(pa.array(plan.optype[op].astype(np.int32)), list(NAMES)),
        "seq_id": plan.sequence[op],
        "mc": plan.chunk[op],
        "gmc": chunk[op],
        "mb_id": plan.microbatch[op],
        "start_ts": begun.ravel() + clock_error[rank] + scenario.start,
        "duration": np.maximum(lasted.ravel(), 0.0),
    }
    return pa.table({column.name: pa.array(columns[column.name]).cast(column.type) for column in OPS.columns})
