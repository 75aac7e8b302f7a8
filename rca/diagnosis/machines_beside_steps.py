"""What the machines show where step times leave an answer open."""

from __future__ import annotations

from dataclasses import replace

from rca.diagnosis.exporters_only import diagnose_exporters
from rca.diagnosis.result import Diagnosis
from rca.window.schema import STEPS
from rca.window.window import Window

#: Reasons of abstention that the machines settle: which rank is late is not timed, or who it is stays open.
_NOT_TIMED = frozenset({"too_few_ranks"})
_CHECK = "time the phases of each rank: they would show a straggler that machines do not"
_NOTE = "no rank has phase timings: step times and exporters show no straggler"


def with_machines(diagnosis: Diagnosis, window: Window) -> Diagnosis:
    """The answer, settled by the exporters where step times of the job alone leave it open.

    A job whose step times rule a fault out, and whose machines are all compared, in use and alike, is
    healthy.
    """
    reason = diagnosis.abstention_reason
    if reason is None or reason.code not in _NOT_TIMED or diagnosis.failure_mode != "healthy":
        return diagnosis
    if not window.metrics.num_rows:
        return diagnosis
    machines = diagnose_exporters(replace(window, steps=STEPS.empty()), diagnosis.model)
    if machines.verdict != "healthy" or not set(diagnosis.failure_mode_set) <= {"healthy"}:
        return diagnosis
    quality = diagnosis.quality.model_copy(update={"notes": [*diagnosis.quality.notes, _NOTE]})
    return diagnosis.model_copy(
        update={"abstained": False, "abstention_reason": None, "quality": quality, "next_check": _CHECK}
    )
