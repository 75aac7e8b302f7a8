"""The truth about a capture: what was done, when it really acted, and whether a user would have felt it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rca.telemetry.labels import Label
from rca.testbed.catalogue import BENIGN
from rca.testbed.names import node_name
from rca.testbed.ranks.shared import FloatArray
from rca.testbed.record import Record
from rca.testbed.scenario import WARM_UP_STEPS, Fault, JobShape, Scenario
from rca.testbed.schedule import Acted

VISIBLE_SLOWDOWN = 0.08
MODELS = {
    "mlp": "a 12-layer MLP",
    "transformer": "a small transformer encoder",
    "convolution": "a 12-layer convolutional network",
}
Pattern = Literal["transient", "persistent", "deterministic"]


@dataclass(frozen=True)
class Impact:
    """What a fault did to the step.

    Attributes
    ----------
    before, during : float
        Seconds per step: medians, or means for a fault that hits single steps.
    """

    before: float
    during: float

    @property
    def visible(self) -> bool:
        return self.during / self.before - 1 >= VISIBLE_SLOWDOWN

    def as_dict(self) -> dict[str, float | bool]:
        return {
            "step_before_s": self.before,
            "step_during_s": self.during,
            "ratio": self.during / self.before,
            "visible": self.visible,
        }


def label_of(scenario: Scenario, record: Record) -> Label:
    """Label a capture.

    A fault that no user would have felt is kept under ``injected``, and does not make the window faulty.
    """
    steps = record.step_seconds()
    judged = [(acted, impact_of(acted, record.acted, steps)) for acted in record.acted]
    felt = [pair for pair in judged if _felt(*pair)]
    stopping = next((acted for acted, _ in felt if acted.fault.spec.stops_the_job), None)
    slow = [pair for pair in felt if not pair[0].fault.spec.stops_the_job]
    main = max(slow, key=lambda pair: _cost(pair[1]))[0] if slow and stopping is None else None
    return Label.model_validate(
        {
            "failure_mode": "fail_stop" if stopping else "fail_slow" if slow else "healthy",
            "straggler_type": None if main is None else main.fault.spec.straggler_type,
            "pattern": None if main is None else pattern_of(main.fault),
            "causes": [_cause(acted, impact, scenario.job) for acted, impact in felt],
            "source": "testbed",
            "notes": notes_of(scenario, record),
            "visible": bool(felt),
            "impact": None if main is None else _impact_dict(dict(slow)[main]),
            "injected": [_injected(acted, impact) for acted, impact in judged],
            "benign": list(scenario.benign),
            "stranger_cpu_share": record.stranger_share,
            "scenario": scenario.model_dump(mode="json"),
        }
    )


def impact_of(acted: Acted, all_acted: list[Acted], steps: FloatArray) -> Impact | None:
    """Step time before any fault and while this one acted; None where one of them was not observed.

    Parameters
    ----------
    steps : ndarray of shape (n_steps,), seconds
    """
    earliest = min(each.first_step for each in all_acted)
    calm = steps[WARM_UP_STEPS:earliest]
    # The first step is only partly hurt, and batches loaded ahead hide the next.
    hurt = steps[acted.first_step + 1 : len(steps) if acted.last_step is None else acted.last_step + 1]
    calm, hurt = calm[np.isfinite(calm)], hurt[np.isfinite(hurt)]
    if acted.fault.spec.stops_the_job or calm.size == 0 or hurt.size == 0:
        return None
    average = np.mean if acted.fault.spec.periodic else np.median
    return Impact(float(average(calm)), float(average(hurt)))


def pattern_of(fault: Fault) -> Pattern:
    """Ends inside the window, begins inside it, or fills it."""
    if fault.last_step is not None:
        return "transient"
    return "deterministic" if fault.first_step <= WARM_UP_STEPS else "persistent"


def notes_of(scenario: Scenario, record: Record) -> str:
    """What was real, in words."""
    job = scenario.job
    place = "network namespaces with a pinned core" if record.permitted.namespaces else "one loopback"
    done = [
        f"{acted.fault.kind}, severity {acted.fault.severity} ({acted.fault.level:g} {acted.fault.spec.unit}): "
        f"{acted.fault.spec.real}"
        for acted in record.acted
    ]
    harmless = [f"{kind}: {BENIGN[kind]}" for kind in scenario.benign]
    parts = [
        f"Real: {job.world_size} processes train {MODELS[job.model]} over gloo and TCP; nodes are {place}.",
        "Stand-ins: devices are CPU processes with padded kernels, copy engines take turns on a token.",
        "Done: " + ("; ".join(done) or "nothing") + ".",
        *(["Harmless: " + "; ".join(harmless) + "."] if harmless else []),
        *(
            ["Between pipeline stages tensors of a real size travel, their content is not used."]
            if job.pipeline > 1
            else []
        ),
        f"Strangers used {record.stranger_share:.0%} of the CPU time.",
    ]
    return " ".join(parts)


def _felt(acted: Acted, impact: Impact | None) -> bool:
    # Without a before there is nothing to compare: what was done is believed.
    return acted.fault.spec.stops_the_job or impact is None or impact.visible


def _cost(impact: Impact | None) -> float:
    return 0.0 if impact is None else impact.during - impact.before


def _impact_dict(impact: Impact | None) -> dict[str, float | bool] | None:
    return None if impact is None else impact.as_dict()


def _injected(acted: Acted, impact: Impact | None) -> dict[str, Any]:
    return acted.fault.model_dump(mode="json") | {
        "cause": acted.fault.spec.cause,
        "impact": _impact_dict(impact),
    }


def _cause(acted: Acted, impact: Impact | None, job: JobShape) -> dict[str, Any]:
    fault = acted.fault
    victims = fault.victims(job)
    # The job's own causes, and a shared fabric, have no place: nobody in particular is to blame.
    placed = fault.scope != "job"
    return {
        "cause": fault.spec.cause,
        "accepted": [fault.spec.cause, *fault.spec.alike],
        "ranks": victims,
        "nodes": sorted({node_name(job.node_of(rank)) for rank in victims}) if placed else [],
        "first_step": acted.first_step,
        "last_step": None if fault.spec.stops_the_job else acted.last_step,
        "severity": fault.severity / 3,
        "seconds_per_step": None if impact is None else impact.during - impact.before,
    }
