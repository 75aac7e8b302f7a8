"""Diagnosis from records of collectives alone: a stopped job without step rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from rca.classify.decision_table import LONG_WAIT, MIN_WAIT, NAMED_OF_COLLECTIVE, RIGHT_RANKS, STOPPED
from rca.diagnosis.advice import LEFT_CHECK
from rca.diagnosis.answer_limits import MAX_STRAGGLERS
from rca.diagnosis.causes import by_expected_cost, without_cost
from rca.diagnosis.data_quality import listed
from rca.diagnosis.findings import findings_in_events
from rca.diagnosis.result import (
    AbstentionCode,
    AbstentionReason,
    Cause,
    Diagnosis,
    Evidence,
    ModelVersion,
    Quality,
    Scope,
    Straggler,
)
from rca.diagnosis.untimed import untimed_diagnosis, untimed_quality, untimed_straggler
from rca.diagnosis.when_and_where import utc
from rca.features.collective_progress import CollectiveProgress
from rca.features.machine_outliers import groups_of
from rca.window.causes import FailureMode
from rca.window.window import Window

#: Probability of each cause, given the ranks: a process that wrote its dump is alive and does not join; one
#: without a dump may have ended, or its dump was not collected.
CAUSE_WITH_DUMP = {"hang": 0.9, "process_crash": 0.1}
CAUSE_WITHOUT_DUMP = {"process_crash": 0.6, "hang": 0.4}
_NOBODY = "ranks wait in collectives that all members joined: no rank is missing"
_ONE_RECORD = (
    "only rank {rank} has a record: without those of the other ranks, it is open which one is missing"
)
_RECORDS_CHECK = "collect the logs or dumps of the other ranks and diagnose them together"
_NO_WAIT = "no rank waits in a collective, so the records do not show whether the job stopped"
_FEW_WAIT = "{waiting} ranks wait for {missing}: those that wait may have run ahead"
_SHORT_WAIT = "the longest wait is {seconds:.3g} s at the end of the window; a running job shows this as well"
_NO_DUMP = "{ranks} left no record: the process ended, or its record was not collected"
_DUMPS_CHECK = "take a second dump after a minute: in a running job the sequence numbers have grown"
_STACK_CHECK = (
    "look at {ranks}: the stack of the process (py-spy dump), the kernel log and the GPU (nvidia-smi)"
)


def diagnose_collectives(window: Window, model: ModelVersion) -> Diagnosis:
    """Diagnose a window with the table ``collectives`` and without steps.

    Parameters
    ----------
    model : ModelVersion
        Version of the bundle; it has no part in this answer.

    Returns
    -------
    Diagnosis
        Fail-stop with the ranks that did not join, or abstained. It claims no seconds per step.
    """
    progress = CollectiveProgress.from_window(window)
    missing = [int(rank) for rank in np.flatnonzero(progress.missing)]
    found = groups_of(progress.missing, window.job.topology)
    groups = [list(ranks) for ranks in found[:MAX_STRAGGLERS]]
    causes = by_expected_cost([cause for ranks in groups for cause in _causes(window, progress, ranks)])
    reason = _reason(window, progress, missing, causes)
    mode, probability = _mode(progress, certain=reason is None or reason.code == "cause_not_certain")
    return untimed_diagnosis(
        window,
        model,
        mode=mode,
        probability=probability,
        modes_left=["fail_stop"] if probability["fail_stop"] >= STOPPED else ["healthy", "fail_stop"],
        stragglers=[_straggler(window, progress, ranks) for ranks in groups],
        causes=causes,
        findings=findings_in_events(window),
        reason=reason,
        next_check=_next_check(
            progress, missing if reason is None or reason.code == "cause_not_certain" else []
        ),
        missing=["steps"],
        quality=_quality(window, progress),
        left_out=len(found) - len(groups),
    )


def _mode(progress: CollectiveProgress, *, certain: bool) -> tuple[FailureMode, dict[FailureMode, float]]:
    stopped = STOPPED if certain else 0.5
    other = (1.0 - stopped) / 2
    mode: FailureMode = "fail_stop" if progress.waiting.any() else "healthy"
    return mode, {"healthy": other, "fail_slow": other, "fail_stop": stopped}


def _reason(
    window: Window, progress: CollectiveProgress, missing: Sequence[int], causes: Sequence[Cause]
) -> AbstentionReason | None:
    found: tuple[AbstentionCode, str] | None = None
    if not progress.waiting.any():
        found = "undecided_mode", _NO_WAIT
    elif (one := _only_record(progress)) is not None:
        found = "undecided_mode", _ONE_RECORD.format(rank=one)
    elif not missing:
        found = "nobody_stands_out", _NOBODY
    elif len(missing) > (waiting := _arrived(progress, missing)) or (
        len(missing) == waiting and _longest_wait(window, progress) < LONG_WAIT
    ):
        found = "undecided_mode", _FEW_WAIT.format(waiting=waiting, missing=len(missing))
    elif (wait := _longest_wait(window, progress)) < MIN_WAIT:
        found = "undecided_mode", _SHORT_WAIT.format(seconds=wait)
    elif causes[0].probability < NAMED_OF_COLLECTIVE * RIGHT_RANKS:
        without = [rank for rank in missing if not progress.recorded[rank]]
        found = "cause_not_certain", _NO_DUMP.format(ranks=listed(without))
    return None if found is None else AbstentionReason(code=found[0], sentence=found[1])


def _arrived(progress: CollectiveProgress, missing: Sequence[int]) -> int:
    """Number of ranks that wait and are not missing themselves."""
    return int(progress.waiting.sum() - progress.waiting[list(missing)].sum())


def _only_record(progress: CollectiveProgress) -> int | None:
    """The rank with a record, if no other rank has one."""
    recorded = np.flatnonzero(progress.recorded)
    return int(recorded[0]) if recorded.size == 1 else None


def _longest_wait(window: Window, progress: CollectiveProgress) -> float:
    """Seconds that the earliest wait for a missing rank lasts at the end of the window; 0 without a time."""
    known = [wait.since for wait in progress.waits.values() if np.isfinite(wait.since)]
    return window.job.end - min(known) if known else 0.0


def _causes(window: Window, progress: CollectiveProgress, ranks: list[int]) -> list[Cause]:
    recorded = bool(progress.recorded[ranks].any())
    chances = CAUSE_WITH_DUMP if recorded else CAUSE_WITHOUT_DUMP
    nodes, evidence = window.job.topology.nodes_of(ranks), _evidence(progress, ranks)
    return [
        without_cost(name, ranks, nodes, RIGHT_RANKS * chance, evidence) for name, chance in chances.items()
    ]


def _evidence(progress: CollectiveProgress, ranks: list[int]) -> list[Evidence]:
    wait = min((progress.waits[rank] for rank in ranks), key=lambda each: each.since)
    note = (
        f"{wait.waiting} members of {wait.group} wait in {wait.operation} for {listed(ranks)}; "
        "collectives behind the group"
    )
    value = None if wait.behind is None else float(wait.behind)
    return [Evidence(signal="collectives_behind", value=value, reference=0.0, unit="", note=note)]


def _straggler(window: Window, progress: CollectiveProgress, ranks: list[int]) -> Straggler:
    waits = (progress.waits[rank].since for rank in ranks if rank in progress.waits)
    since = utc(min((since for since in waits if np.isfinite(since)), default=None))
    scope: Scope = "rank" if len(ranks) == 1 else "node"
    return untimed_straggler(ranks, window.job.topology.nodes_of(ranks), scope, RIGHT_RANKS, since)


def _next_check(progress: CollectiveProgress, missing: Sequence[int]) -> str:
    if missing:
        return _STACK_CHECK.format(ranks=listed(missing))
    if progress.waiting.any() and _only_record(progress) is not None:
        return _RECORDS_CHECK
    return _DUMPS_CHECK if progress.waiting.any() else LEFT_CHECK


def _quality(window: Window, progress: CollectiveProgress) -> Quality:
    notes = ["the window has no steps: the answer follows from records of collectives alone"]
    waiting = int(progress.waiting.sum())
    since = min((wait.since for wait in progress.waits.values() if np.isfinite(wait.since)), default=None)
    if waiting and since is not None:
        began = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        notes.append(f"{waiting} of {window.job.world_size} ranks wait, for the missing ones since {began}")
    absent = np.flatnonzero(~progress.recorded)
    if absent.size:
        notes.append(f"no record: {listed(absent.tolist())}")
    return untimed_quality(window, notes, rows_used=window.collectives.num_rows)
