"""Diagnosis from exporters alone: which machine stands out, where no step was timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

import numpy as np

from rca.classify.decision_table import FOUND_SLOW, GONE, HEALTHY_MACHINES, UNKNOWN_MODE, VERY_LOUD
from rca.diagnosis.answer_limits import MAX_STRAGGLERS
from rca.diagnosis.causes import PEERS, described, without_cost
from rca.diagnosis.data_quality import listed
from rca.diagnosis.findings import Scores, deviations, findings
from rca.diagnosis.result import (
    AbstentionReason,
    Cause,
    Diagnosis,
    Evidence,
    ModelVersion,
    Quality,
    Straggler,
)
from rca.diagnosis.untimed import UNKNOWN_COST, untimed_diagnosis, untimed_quality, untimed_straggler
from rca.diagnosis.when_and_where import utc
from rca.features.lasting_outliers import MIN_PART_SECONDS, OF_DEVICES, Present
from rca.features.machine_outliers import LOUD_SCORE, SLOW_FROM, MachineComparison, Outlier
from rca.features.resource_evidence import missing_resources
from rca.window.catalogue import unit_of_channel
from rca.window.causes import DECIDING, SPECS, UNKNOWN, FailureMode
from rca.window.window import Window

#: Probability that a loud resource (from `LOUD_SCORE` on), and a very loud one, belongs to a rank at fault:
#: the share among 400 simulated and 520 captured windows without their steps, by Laplace's rule.
RIGHT: dict[str, tuple[float, float]] = {
    "gpu_clock": (0.39, 0.86),
    "gpu_activity": (0.5, 0.5),
    "gpu_memory": (0.33, 0.57),
    "pcie": (0.33, 0.67),
    "nvlink": (0.2, 0.85),
    "nic": (0.53, 0.57),
    "cpu_wait": (0.74, 0.89),
    "cpu_quota": (0.83, 0.88),
    "cpu_load": (0.45, 0.45),
    "memory": (0.4, 0.94),
    "storage": (0.22, 0.86),
    "loader_cpu": (0.71, 0.71),
    "collector": (0.64, 0.83),
}
#: Score from which a lasting outlier makes a suspect, units. What a device reports of itself counts from
#: `LOUD_SCORE` on. Signals of hosts and networks change with the work of the job as well, and hosts differ
#: all along: these also need an onset in the window. Of 268 healthy simulated windows none
#: has a suspect (docs/decisions/0052).
OF_HOSTS: dict[str, float] = dict.fromkeys(
    ("nic", "cpu_wait", "cpu_quota", "memory", "storage", "collector"), VERY_LOUD
)
#: Least fall of a throttled clock, as a share of that of its peers: GPUs at their power cap count violations.
MIN_CLOCK_LOSS = 0.12
#: More places than these deviate all along because the job has several kinds of machines.
MAX_PLACES_ALL_ALONG = 3
#: Shortest window for a healthy verdict, seconds.
MIN_HEALTHY_SECONDS = 60.0
#: The first cause with the resource, if it can be on single machines.
_CAUSE_OF = {
    resource: cause
    for cause, resources in reversed(DECIDING.items())
    if cause != "network_congestion"
    for resource in resources
} | {"loader_cpu": "data_loader_stall"}
#: Kinds of outliers that show a slow rank, not a lost one.
_SLOWER = ("loud", "slow")
CLOCK = "sm_clock_mhz"
#: Channels that compare the times of kernels.
_OF_KERNELS = ("gpu_slowdown", "gpu_slowdown_of_past")
_NO_STEPS = "no step was timed: whether the job is slow, and what a fault costs, are unknown"
_ENDED_CHECK = (
    "look for {ranks}: is the GPU still there (nvidia-smi -L, kernel log: Xid 79), does the exporter run?"
)
_RELEASED_CHECK = "look at {ranks}: its device is empty while others are in use; did its process end?"
_STANDS_OUT = (
    "exporters show a lasting fault of {ranks}; no step was timed, so whether the job is slow, and what it "
    "costs, are unknown"
)
_HEALTHY_CHECK = "nothing to do; step times would show what exporters do not"
_SILENT_CHECK = "look at the exporters of {nodes}: they report nothing while the other devices work"
_STALE_CHECK = "no exporter has reported for {seconds:.0f} s: does the job run, do Prometheus and exporters?"
_STOPPED_CHECK = "the devices of most ranks are hardly in use: does the job still run?"
_TIME_STEPS = "time the steps of each rank: they show whether the job waits for {ranks}"
_FAILED_CHECK = (
    "look at {ranks}: events report that a process or a device failed; read the kernel and launcher logs"
)
_INCOMPARABLE = (
    "check the node, rank and device labels of the metrics: no signal of two ranks could be compared"
)
_NOTHING = "time the steps of each rank: no machine stands out"


def diagnose_exporters(window: Window, model: ModelVersion) -> Diagnosis:
    """Diagnose a window with metrics and without steps.

    Parameters
    ----------
    model : ModelVersion
        Version of the bundle; it has no part in this answer.

    Returns
    -------
    Diagnosis
        It names the machines that stand out, without a cost, and abstains. Where all devices are compared,
        in use and alike at the end, the job is healthy as far as exporters show.
    """
    compared = MachineComparison.from_window(window)
    present = Present.of(window.job, compared)
    unequal = _of_unequal_machines(present.outliers)
    suspected = [each for each in unequal if _is_suspect(each, compared.signals.values)]
    found = sorted(unequal, key=lambda each: (each not in suspected, -_probability(each)))
    outliers = found[:MAX_STRAGGLERS]
    causes = _causes(outliers, compared)
    scores = Scores.of_machines(compared.evidence)
    shown = findings(
        deviations(scores, compared.topology), compared.evidence, compared.topology, window, present.signals
    )
    # What deviated earlier, and no longer does, is shown, and is over.
    now = deviations(Scores.of_machines(present.evidence), compared.topology)
    healthy = not found and not now and _is_healthy(window, compared, present)
    mode, probability = _mode(outliers, healthy=healthy)
    return untimed_diagnosis(
        window,
        model,
        mode=mode,
        probability=probability,
        modes_left=["healthy"] if healthy else ["healthy", "fail_slow", "fail_stop"],
        stragglers=_stragglers(outliers, compared, window.job.end),
        causes=causes,
        findings=shown,
        # A fault that is less likely than none is shown, and not suspected.
        reason=None if healthy else _reason(suspected if mode != "healthy" else []),
        next_check=_HEALTHY_CHECK if healthy else _next_check(outliers, compared, present),
        missing=["steps", *missing_resources(compared.evidence)],
        quality=_quality(window, compared, present),
        left_out=len(found) - len(outliers),
    )


def _of_unequal_machines(outliers: Sequence[Outlier]) -> list[Outlier]:
    """The outliers without those of a job that has several kinds of machines."""
    along = Counter(each.resource for each in outliers if each.kind == "loud" and each.since is None)
    return [
        each for each in outliers if each.since is not None or along[each.resource] <= MAX_PLACES_ALL_ALONG
    ]


def _is_suspect(outlier: Outlier, measured: Container[str]) -> bool:
    """Whether an outlier is loud enough, and has lasted long enough, for a suspected incident.

    Parameters
    ----------
    measured : container of str
        Channels of the window.
    """
    if outlier.kind in ("failed", "released"):
        return True
    if outlier.kind == "ended":
        return outlier.value >= MIN_PART_SECONDS
    if not outlier.lasting:
        return False
    if outlier.resource in OF_HOSTS:
        return outlier.since is not None and outlier.score >= OF_HOSTS[outlier.resource]
    if outlier.resource not in OF_DEVICES or outlier.score < LOUD_SCORE:
        return False
    if outlier.resource != "gpu_clock":
        return True
    if CLOCK not in measured:
        return outlier.score >= VERY_LOUD
    shown = ((outlier.channel, outlier.value, outlier.reference), *outlier.beside)
    return any(name == CLOCK and value <= (1 - MIN_CLOCK_LOSS) * usual for name, value, usual in shown)


def _is_healthy(window: Window, compared: MachineComparison, present: Present) -> bool:
    """Whether exporters show all devices of the job, in use and alike, up to the end of the window."""
    in_use = not (present.stale_seconds or present.stopped or compared.silent)
    covered = present.covered == compared.topology.n_ranks
    return present.clean and in_use and covered and window.job.end - window.job.start >= MIN_HEALTHY_SECONDS


def _reason(suspected: list[Outlier]) -> AbstentionReason:
    if not suspected:
        return AbstentionReason(code="no_step_times", sentence=_NO_STEPS)
    ranks = listed(sorted({rank for each in suspected for rank in each.ranks}))
    return AbstentionReason(code="machine_stands_out", sentence=_STANDS_OUT.format(ranks=ranks))


def _probability(outlier: Outlier) -> float:
    if outlier.kind == "slow":
        return FOUND_SLOW
    if outlier.kind != "loud":
        return GONE
    return RIGHT[outlier.resource][outlier.score >= VERY_LOUD]


def _mode(outliers: list[Outlier], *, healthy: bool) -> tuple[FailureMode, dict[FailureMode, float]]:
    """The likeliest failure mode by the likeliest outliers; without any, all modes are alike."""
    if healthy:
        return "healthy", {"healthy": HEALTHY_MACHINES, "fail_slow": 1 - HEALTHY_MACHINES, "fail_stop": 0.0}
    if not outliers:
        return "healthy", {
            "healthy": 1 - 2 * UNKNOWN_MODE,
            "fail_slow": UNKNOWN_MODE,
            "fail_stop": UNKNOWN_MODE,
        }
    slow = max((_probability(each) for each in outliers if each.kind in _SLOWER), default=0.0)
    stop = max((_probability(each) for each in outliers if each.kind not in _SLOWER), default=0.0)
    total = max(1.0, slow + stop)
    # In this order a fault as likely as not is called a fault.
    chances: dict[FailureMode, float] = {
        "fail_stop": stop / total,
        "fail_slow": slow / total,
        "healthy": 1.0 - (slow + stop) / total,
    }
    return max(chances, key=lambda mode: chances[mode]), chances


def _stragglers(outliers: list[Outlier], compared: MachineComparison, end: float) -> list[Straggler]:
    found: dict[tuple[int, ...], Straggler] = {}
    for each in outliers:
        cause = _cause_name(each)
        kind = SPECS[cause].type if cause is not None else None
        if each.channel in _OF_KERNELS:
            kind = "compute"
        ranks = list(each.ranks)
        found.setdefault(
            each.ranks,
            untimed_straggler(
                ranks,
                compared.topology.nodes_of(ranks),
                "rank" if len(ranks) == 1 or _is_part_of_a_node(each) else "node",
                _probability(each),
                # The value of series that ended is the time without a sample before the window's end.
                utc(end - each.value if each.kind == "ended" else each.since),
                until=utc(each.until),
                straggler_type=None if kind == "fail_stop" or kind == "unknown" else kind,
                shared=described(each.part, compared.topology),
            ),
        )
    return list(found.values())


def _is_part_of_a_node(outlier: Outlier) -> bool:
    return outlier.part is not None and outlier.part.level == "pcie_switch"


def cause_of_resource(resource: str) -> str | None:
    """The cause that a loud resource of one machine shows; None if it shows none."""
    return _CAUSE_OF.get(resource)


def _cause_name(outlier: Outlier) -> str | None:
    if outlier.kind == "slow":
        return UNKNOWN
    if outlier.part is not None and outlier.part.level == "leaf_switch":
        return "network_congestion"
    return "process_crash" if outlier.kind != "loud" else cause_of_resource(outlier.resource)


def _causes(outliers: list[Outlier], compared: MachineComparison) -> list[Cause]:
    """A cause of each outlier; those of the same cause and ranks are one, with the evidence of all."""
    found: dict[tuple[str, tuple[int, ...]], Cause] = {}
    for each in outliers:
        cause = _cause(each, compared)
        if cause is None:
            continue
        known = found.get((cause.cause, each.ranks))
        if known is not None:
            cause = known.model_copy(update={"evidence": [*known.evidence, *cause.evidence[1:]]})
        found[cause.cause, each.ranks] = cause
    return list(found.values())


def _cause(outlier: Outlier, compared: MachineComparison) -> Cause | None:
    name = _cause_name(outlier)
    if name is None:
        return None
    ranks = list(outlier.ranks)
    return without_cost(
        name,
        ranks,
        compared.topology.nodes_of(ranks),
        _probability(outlier),
        [UNKNOWN_COST, _evidence(outlier), *_beside(outlier)],
        shared=described(outlier.part, compared.topology),
    )


def _evidence(outlier: Outlier) -> Evidence:
    if outlier.kind == "failed":
        note = "an event reports that the process or the device failed"
        return Evidence(signal="events", value=None, reference=None, unit="", note=note)
    if outlier.kind == "ended":
        note = "no sample for so long before the end of the window"
        return Evidence(
            signal="series_ended", value=outlier.value, reference=outlier.reference, unit="s", note=note
        )
    note = "memory of the device at the end" if outlier.kind == "released" else _span_of(outlier)
    if outlier.kind == "slow":
        note = "in the window or at its end"
    known = np.isfinite(outlier.reference)
    return Evidence(
        signal=outlier.channel,
        value=outlier.value,
        reference=outlier.reference if known else None,
        unit=unit_of_channel(outlier.channel),
        note=note,
        compared_with="median rank" if outlier.kind == "slow" else PEERS,
    )


def _span_of(outlier: Outlier) -> str:
    return (
        "mean over the window" if outlier.since is None and outlier.until is None else "mean since its onset"
    )


def _beside(outlier: Outlier) -> list[Evidence]:
    """The other channels of the resource that deviate as well."""
    return [
        Evidence(
            signal=channel,
            value=value,
            reference=reference if np.isfinite(reference) else None,
            unit=unit_of_channel(channel),
            note=_span_of(outlier),
            compared_with=PEERS,
        )
        for channel, value, reference in outlier.beside
    ]


def _next_check(outliers: list[Outlier], compared: MachineComparison, present: Present) -> str:
    if not outliers and present.stale_seconds:
        return _STALE_CHECK.format(seconds=present.stale_seconds)
    if not outliers and compared.silent:
        return _SILENT_CHECK.format(nodes=" and ".join(compared.silent[:3]))
    if not outliers and present.stopped:
        return _STOPPED_CHECK
    if not outliers:
        known = np.isfinite(compared.evidence.versus_peers).any() or not SLOW_FROM.keys().isdisjoint(
            compared.signals.level
        )
        return _NOTHING if known else _INCOMPARABLE
    first = outliers[0]
    checks = {
        "failed": _FAILED_CHECK,
        "ended": _ENDED_CHECK,
        "released": _RELEASED_CHECK,
        "loud": _TIME_STEPS,
        "slow": f"{{ranks}}: {SPECS[UNKNOWN].next_check}",
    }
    check = checks[first.kind].format(ranks=listed(list(first.ranks)))
    cause = _cause_name(first)
    if first.kind == "loud" and cause is not None:
        return f"{SPECS[cause].next_check}; then {check}"
    return check


def _quality(window: Window, compared: MachineComparison, present: Present) -> Quality:
    notes = ["the window has no steps: only machines were compared"]
    if compared.silent:
        names, nodes = compared.silent, len(compared.topology.node_names)
        notes.append(
            f"the exporters of {len(names)} of {nodes} nodes ended while the other devices work on "
            f"({', '.join(names[:3])}): their machines are not compared"
        )
    if any(each.kind == "ended" for each in present.outliers):
        notes.append("series that end may also mean that their exporter ended")
    signals = compared.signals
    return untimed_quality(
        window, notes, samples_used=signals.samples_used, unknown_metrics=signals.unknown_names
    )
