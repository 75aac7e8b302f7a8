"""Remedies of the causes and the next check of a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rca.classify.classifier import Classification, named_ranks
from rca.classify.link_evidence import transfer_grew
from rca.classify.preconditions import idles_between_steps, stays_silent, works_untimed
from rca.diagnosis.abstention import contradicting_evidence, deciding_resource
from rca.diagnosis.data_quality import listed, silent_ranks
from rca.diagnosis.result import Cause, Interval, RecoveryFacts, Removal
from rca.diagnosis.slowdown import events_check, job_wide_check, planned_check
from rca.features import FeatureSet
from rca.features.resource_evidence import RESOURCES
from rca.window.catalogue import channels
from rca.window.causes import CAUSES

#: What to collect where a whole family of evidence is missing.
_COLLECT = {
    "phases": "per-rank phase times (forward, backward, communication wait), which show the slow rank",
    "gpu_clock": "GPU metrics (DCGM_FI_DEV_SM_CLOCK, DCGM_FI_DEV_CLOCKS_EVENT_REASONS)",
    "cpu_wait": "CPU metrics (node_pressure_cpu_waiting_seconds_total, process_schedstat_*)",
    "nic": "network metrics (node_infiniband_port_transmit_wait_total or node_qdisc_backlog)",
    "storage": "storage metrics (node_pressure_io_waiting_seconds_total, node_disk_io_time_seconds_total)",
}


#: Shows whether a job finished or was cancelled.
LEFT_CHECK = "check how the job ended (sacct --jobs, kubectl describe job) and its last log lines"
#: Shows whether an event about a failed process or device is true.
FAILED_CHECK = "check the launcher's log: did these processes end, and were they started again?"
#: Shows what takes the time between steps.
BETWEEN_STEPS_CHECK = (
    "time what runs between steps (evaluation, saves, logging); if a row stands for several steps, give each "
    "row the trainer's own step number"
)

#: For a stop that nothing places.
NOT_LOCATED_CHECK = (
    "read which collective each rank waits in (flight recorder dumps, py-spy dump): the rank that is in "
    "another one, or in none, is the first; then the launcher's log for the first exit"
)

#: Metrics named when one resource would settle a question.
_SHOWN_METRICS = 2

#: Straggler type -> the most informative family of evidence.
_MAX_INFORMATIVE = {"communication": "nic", "compute": "gpu_clock", "host": "cpu_wait", "input": "storage"}


def _wanted(missing: list[str], suspected: str | None) -> list[str]:
    """What to collect, the most informative first."""
    # Host metrics without any GPU metric: the host probably has no GPU.
    no_gpu = "cpu_wait" not in missing and {"gpu_clock", "gpu_activity", "gpu_heat"} <= set(missing)
    families = [family for family in _COLLECT if family in missing]
    families.sort(
        key=lambda family: (
            family != "phases",
            family != _MAX_INFORMATIVE.get(suspected or ""),
            no_gpu and family == "gpu_clock",
        )
    )
    return [_COLLECT[family] for family in families]


def removals(
    causes: list[Cause], alone: Mapping[tuple[str, tuple[int, ...]], tuple[float, Interval]]
) -> RecoveryFacts:
    """The causes to act on, with the seconds per step that removing each of them alone would save."""
    found = []
    for cause in causes:
        saved = alone.get((cause.cause, tuple(cause.ranks)), (None, None))
        found.append(
            Removal(cause=cause.cause, ranks=cause.ranks, seconds_per_step_saved=saved[0], interval=saved[1])
        )
    return RecoveryFacts(removals=found)


def signals_for(cause: Cause) -> list[str]:
    """Exporter signals, not phases, that are evidence for the cause."""
    of_machines = {each.channel for channels in RESOURCES.values() for each in channels}
    return [each.signal for each in cause.evidence if each.direction == "for" and each.signal in of_machines]


def swap_check(cause: Cause) -> str:
    """The check where the likeliest cause's own signals are normal: whether other machines are slow too."""
    normal = ", ".join(evidence.signal for evidence in cause.evidence if evidence.direction == "against")
    return (
        f"{normal} normal, so {cause.cause} is unlikely; move {listed(cause.ranks)} to other machines, or "
        "run the same test on them and on a fast peer: does the slowness stay with the machine or the work?"
    )


def _settling(causes: list[Cause], missing: list[str]) -> str | None:
    """The sentence on the signal that would decide between the causes of the first component."""
    if not causes or "phases" in missing:
        return None
    beliefs = {cause.cause: cause.probability for cause in causes if cause.ranks == causes[0].ranks}
    resource = deciding_resource(beliefs, [name for name in missing if name in RESOURCES])
    if resource is None:
        return None
    likeliest = sorted(beliefs, key=lambda name: (-beliefs[name], name))[:2]
    metrics = ", ".join(_exporter_names(resource))
    return f"no cause is certain ({' or '.join(likeliest)}?); collect {metrics}: {resource} decides"


def _exporter_names(resource: str) -> list[str]:
    """Metrics that show the resource, the most informative first."""
    known = channels()
    names = [known[each.channel][0].name for each in RESOURCES[resource] if each.channel in known]
    return names[:_SHOWN_METRICS]


def _check_of(cause: Cause) -> str:
    """The check of a cause, at the part that its ranks share."""
    check = CAUSES[cause.cause].next_check
    return check if cause.shared is None else f"look at {cause.shared.title}: {check}"


def look_at(
    classification: Classification,
    features: FeatureSet,
    found: list[Cause],
    missing: list[str],
    *,
    named: bool,
    abstained: bool,
    unexplained: Cause | None,
) -> str:
    """The one check to do next; of the ranks that no known cause explains, if that is the answer.

    Parameters
    ----------
    found : list of Cause
        Of the catalogue, in the order of the answer.
    missing : list of str
        Signals that the window lacks.
    named, abstained : bool
        Whether the first cause may be named; whether the answer abstains.
    unexplained : Cause or None
        `unknown` where it is the answer.
    """
    if classification.events:
        return events_check(classification, features)
    if classification.mode == "healthy":
        if features.job_end.all_released or stays_silent(features):
            return LEFT_CHECK
        if features.job_end.failed.any():
            return FAILED_CHECK
        if (check := planned_check(features, decided=classification.decided and not abstained)) is not None:
            return check
        if idles_between_steps(features) or works_untimed(features):
            return BETWEEN_STEPS_CHECK
        chances = classification.probability
        if chances["fail_slow"] >= chances["fail_stop"] and (check := job_wide_check(features)) is not None:
            return check
    if unexplained is not None:
        found = []
    if found and contradicting_evidence(found[0]):
        return swap_check(found[0])
    return next_check(
        classification.mode,
        classification.decided and not (abstained and classification.mode == "healthy"),
        found,
        missing,
        suspected=_suspected_type(classification, features),
        silent=silent_ranks(features),
        named=named,
        suspects=named_ranks(classification.suspects) if unexplained is None else unexplained.ranks,
    )


def _suspected_type(classification: Classification, features: FeatureSet) -> str | None:
    """Straggler type that further signals should confirm."""
    for suspect in classification.suspects:
        if suspect.types:
            return max(suspect.types, key=lambda name: suspect.types[name])
    return "communication" if transfer_grew(features) else None


def next_check(
    mode: str,
    decided: bool,
    causes: list[Cause],
    missing: list[str],
    *,
    suspected: str | None = None,
    silent: Sequence[int] = (),
    named: bool = True,
    suspects: Sequence[int] = (),
) -> str:
    """The one check to do next.

    Parameters
    ----------
    mode, decided : str, bool
    causes : list of Cause
        In the order of the answer.
    missing : list of str
        Signals that the window lacks.
    suspected : str, optional
        Straggler type that more signals should settle.
    silent : sequence of int
        Ranks that reported nothing.
    named : bool
        Whether the first cause may be named.
    suspects : sequence of int
        Ranks that straggle, whatever the cause.
    """
    if mode == "healthy" and decided:
        return "nothing to do; the slowdown is normal noise"
    if mode == "fail_stop" and silent:
        return f"check {listed(silent)}: no step reported"
    if mode == "fail_stop" and not causes:
        return NOT_LOCATED_CHECK
    wanted = _wanted(missing, suspected)
    if mode == "healthy":
        return "not sure enough to call it healthy; " + (
            f"collect {wanted[0]}" if wanted else "send a longer window"
        )
    if causes and causes[0].probability >= 0.5 and named:
        return _check_of(causes[0])
    if mode == "fail_slow" and (settling := _settling(causes, missing)) is not None:
        return settling
    if wanted:
        why = "no cause is certain" if causes else "no known cause explains it"
        return f"{why}; collect {wanted[0]}"
    if causes:
        return _check_of(causes[0])
    if suspects:
        return (
            f"no measured signal explains {listed(suspects)}; run the same test on them and on a fast "
            "peer, or move them to other machines: does the slowness stay with the machine or the work?"
        )
    return "no rank is slower than the others; send a window that covers the change from normal to slow"
