"""The label of a capture: injected faults, the steps in which they acted, their cost, and notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.lab.testbed.catalogue import BENIGN
from rca.lab.testbed.names import node_name
from rca.lab.testbed.ranks.shared import DevicePace
from rca.lab.testbed.record import Acted, CaptureRecord
from rca.lab.testbed.sampling.gpu_watch import GpuObservation
from rca.lab.testbed.sampling.nvml import reasons_in_words
from rca.lab.testbed.scenario import WARM_UP_STEPS, CaptureScenario, TestbedFault, TestbedJob
from rca.sources.labels import WindowLabel
from rca.window.causes import pattern_of

VISIBLE_MEASURED_SLOWDOWN = 0.08
ENOUGH_STEPS_ALONE = 5
MODEL_NAMES = {
    "mlp": "an 8-layer MLP",
    "transformer": "a small transformer encoder",
    "convolution": "an 8-layer convolutional network",
}


@dataclass(frozen=True)
class Impact:
    """Effect of a fault on the step time.

    Attributes
    ----------
    before, during : float
        Seconds per step: medians, or means for a fault that hits single steps.
    share : float
        Share of the window's steps it acted in, warm-up left out.
    shared : bool
        Another fault acted in the same steps and caused part of the slowdown.
    """

    before: float
    during: float
    share: float
    shared: bool = False

    @property
    def seconds_per_step(self) -> float:
        """Cost averaged over the window, as in a diagnosis."""
        return (self.during - self.before) * self.share

    @property
    def visible(self) -> bool:
        return self.during / self.before - 1 >= VISIBLE_MEASURED_SLOWDOWN

    def as_dict(self) -> dict[str, float | bool]:
        return {
            "step_before_s": self.before,
            "step_during_s": self.during,
            "ratio": self.during / self.before,
            "share_of_steps": self.share,
            "visible": self.visible,
            "shared": self.shared,
        }


def label_of(scenario: CaptureScenario, record: CaptureRecord) -> WindowLabel:
    """Label a capture.

    A fault without a visible slowdown is listed under ``injected`` only, and does not make the window faulty.
    """
    steps = record.step_seconds()
    measured = [(acted, impact_of(acted, record.acted, steps)) for acted in record.acted]
    visible = [pair for pair in measured if _is_visible(*pair)]
    slow = [pair for pair in visible if not pair[0].fault.spec.stops_the_job]
    stopped = len(slow) < len(visible)
    main, impact = max(slow, key=lambda pair: _cost(pair[1])) if slow and not stopped else (None, None)
    return WindowLabel.model_validate(
        {
            "failure_mode": "fail_stop" if stopped else "fail_slow" if slow else "healthy",
            "straggler_type": None if main is None else main.fault.spec.straggler_type,
            "pattern": None
            if main is None
            else pattern_of(main.fault.spec.cause, ends_inside=main.fault.last_step is not None),
            "causes": [_cause(acted, impact, scenario.job) for acted, impact in visible],
            "source": "testbed",
            "notes": notes_of(scenario, record),
            "visible": bool(visible),
            "impact": _impact_dict(impact),
            "injected": [_injected_fault(acted, impact) for acted, impact in measured],
            "benign": list(scenario.benign),
            "stranger_cpu_share": record.foreign_cpu_share,
            "scenario": scenario.model_dump(mode="json"),
            **_gpu_fields(record),
        }
    )


def impact_of(acted: Acted, all_acted: list[Acted], steps: FloatArray) -> Impact | None:
    """Step time before any fault and while this one acted; None where one of them was not observed.

    Parameters
    ----------
    steps : ndarray of shape (n_steps,), seconds
    """
    if acted.fault.spec.stops_the_job:
        return None
    known = np.isfinite(steps)
    active = [_steps_of(each, len(steps)) & known for each in all_acted]
    first = min(each.first_step for each in all_acted)
    before = known & (np.arange(len(steps)) < first)
    before[:WARM_UP_STEPS] = False
    mine = active[all_acted.index(acted)]
    alone = mine & (np.sum(active, axis=0) == 1)
    shared = int(alone.sum()) < ENOUGH_STEPS_ALONE
    affected = mine if shared else alone
    if not before.any() or not affected.any():
        return None
    average = np.mean if acted.fault.spec.periodic else np.median
    return Impact(
        float(average(steps[before])),
        float(average(steps[affected])),
        float(mine[WARM_UP_STEPS:].sum() / max(1, known[WARM_UP_STEPS:].sum())),
        shared and len(all_acted) > 1,
    )


def _steps_of(acted: Acted, n_steps: int) -> BoolArray:
    """Steps in which the fault acted fully: not the first, in which it started."""
    step = np.arange(n_steps)
    last = n_steps if acted.last_step is None else acted.last_step
    return (step > acted.first_step) & (step <= last)


def _is_visible(acted: Acted, impact: Impact | None) -> bool:
    # Without steps before the fault there is no comparison, so the injected fault counts.
    return acted.fault.spec.stops_the_job or impact is None or impact.visible


def _gpu_fields(record: CaptureRecord) -> dict[str, Any]:
    """Fields about the GPUs; empty without GPUs."""
    if record.pace is None:
        return {}
    pace = {each.name.lower(): float(record.pace[each]) for each in DevicePace}
    return {"gpus": [seen.as_dict() for seen in record.gpus], "gpu_pace": pace}


def _cost(impact: Impact | None) -> float:
    return 0.0 if impact is None else impact.seconds_per_step


def _impact_dict(impact: Impact | None) -> dict[str, float | bool] | None:
    return None if impact is None else impact.as_dict()


def _injected_fault(acted: Acted, impact: Impact | None) -> dict[str, Any]:
    return acted.fault.model_dump(mode="json") | {
        "cause": acted.fault.spec.cause,
        "impact": _impact_dict(impact),
    }


def _cause(acted: Acted, impact: Impact | None, job: TestbedJob) -> dict[str, Any]:
    fault = acted.fault
    affected_ranks = fault.affected_ranks(job)
    # The job's own causes, and those of a shared fabric, belong to no node.
    placed = fault.scope != "job"
    return {
        "cause": fault.spec.cause,
        "accepted": [fault.spec.cause, *fault.spec.alike],
        "ranks": affected_ranks,
        "nodes": sorted({node_name(job.node_of(rank)) for rank in affected_ranks}) if placed else [],
        "first_step": acted.first_step,
        "last_step": None if fault.spec.stops_the_job else acted.last_step,
        "severity": fault.severity / 3,
        "seconds_per_step": None if impact is None else impact.seconds_per_step,
    }


def notes_of(scenario: CaptureScenario, record: CaptureRecord) -> str:
    """Sentences about what was real in the capture."""
    job = scenario.job
    place = "network namespaces with a pinned core" if record.permitted.namespaces else "one loopback"
    done = [_fault_in_words(acted.fault) for acted in record.acted]
    harmless = [f"{kind}: {BENIGN[kind]}" for kind in scenario.benign]
    parts = [
        f"Real: {job.world_size} processes train {MODEL_NAMES[job.model]} over gloo and TCP.",
        f"Nodes are {place}.",
        *(_gpu_sentences(record) if job.gpu_ranks else []),
        *_stand_in_sentences(job),
        "Done: " + ("; ".join(done) or "nothing") + ".",
        *(["Harmless: " + "; ".join(harmless) + "."] if harmless else []),
        *(
            ["Tensors of a real size travel between pipeline stages; their content is not used."]
            if job.pipeline > 1
            else []
        ),
        f"Other processes used {record.foreign_cpu_share:.0%} of the CPU time.",
    ]
    return " ".join(parts)


def _stand_in_sentences(job: TestbedJob) -> list[str]:
    if len(job.gpu_ranks) == job.world_size:
        return []
    devices = "the other ranks' devices" if job.gpu_ranks else "devices"
    pace = " to the pace of the GPU before the job" if job.gpu_ranks else ""
    return [
        f"Stand-ins: {devices} are CPU processes that pad their kernels{pace}.",
        "Copy engines take turns on a token.",
    ]


def _gpu_sentences(record: CaptureRecord) -> list[str]:
    parts = [
        f"Real GPUs: {'; '.join(_gpu_in_words(seen) for seen in record.gpus)}.",
        "GPU signals are NVML's under DCGM's names; DCGM did not run.",
    ]
    if record.pace is not None:
        parts.append(
            f"A GPU rank computes its batch {record.pace[DevicePace.REPEATS]:.0f} times per step and copies "
            f"{record.pace[DevicePace.COPIED_BYTES] / 1e6:.0f} MB, of which it uses the batch only."
        )
    return parts


def _gpu_in_words(seen: GpuObservation) -> str:
    held = f"rank {seen.rank} computes on a {seen.gpu.name} (driver {seen.gpu.driver})"
    held += f", clock event reasons: {reasons_in_words(seen.reasons)}"
    if seen.interrupted:
        held += f", sometimes without values: {', '.join(seen.interrupted)}"
    return held


def _fault_in_words(fault: TestbedFault) -> str:
    if fault.spec.stops_the_job:
        return f"{fault.kind}: {fault.spec.real}"
    return f"{fault.kind}, severity {fault.severity} ({fault.level:g} {fault.spec.unit}): {fault.spec.real}"
