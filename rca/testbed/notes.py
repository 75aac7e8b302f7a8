"""What was real about a capture, in words, for its label."""

from __future__ import annotations

from rca.testbed.catalogue import BENIGN
from rca.testbed.ranks.shared import Pace
from rca.testbed.record import Record
from rca.testbed.sampling.gpu_watch import GpuSeen
from rca.testbed.sampling.nvml import reasons_in_words
from rca.testbed.scenario import Fault, JobShape, Scenario

MODELS = {
    "mlp": "an 8-layer MLP",
    "transformer": "a small transformer encoder",
    "convolution": "an 8-layer convolutional network",
}


def notes_of(scenario: Scenario, record: Record) -> str:
    """What was real, in words."""
    job = scenario.job
    place = "network namespaces with a pinned core" if record.permitted.namespaces else "one loopback"
    done = [_in_words(acted.fault) for acted in record.acted]
    harmless = [f"{kind}: {BENIGN[kind]}" for kind in scenario.benign]
    parts = [
        f"Real: {job.world_size} processes train {MODELS[job.model]} over gloo and TCP; nodes are {place}.",
        *(_of_gpus(record) if job.gpu_ranks else []),
        *_of_stand_ins(job),
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


def _of_stand_ins(job: JobShape) -> list[str]:
    if len(job.gpu_ranks) == job.world_size:
        return []
    whose = "the other ranks' devices" if job.gpu_ranks else "devices"
    pace = " at the pace the GPU had before the job" if job.gpu_ranks else ""
    return [
        f"Stand-ins: {whose} are CPU processes with kernels padded{pace}, copy engines take turns on a token."
    ]


def _of_gpus(record: Record) -> list[str]:
    parts = [
        f"Real GPUs: {'; '.join(_of_gpu(seen) for seen in record.gpus)}.",
        "GPU signals are NVML's under DCGM's names; DCGM did not run.",
    ]
    if record.pace is not None:
        parts.append(
            f"A GPU rank computes its batch {record.pace[Pace.REPEATS]:.0f} times over and copies "
            f"{record.pace[Pace.COPIED_BYTES] / 1e6:.0f} MB per step, of which all but the batch is ballast."
        )
    return parts


def _of_gpu(seen: GpuSeen) -> str:
    held = f"rank {seen.rank} computes on a {seen.gpu.name} (driver {seen.gpu.driver})"
    held += f", whose clock event reasons were {reasons_in_words(seen.reasons)}"
    if seen.interrupted:
        held += f" and which stopped answering at times: {', '.join(seen.interrupted)}"
    return held


def _in_words(fault: Fault) -> str:
    if fault.spec.stops_the_job:
        return f"{fault.kind}: {fault.spec.real}"
    return f"{fault.kind}, severity {fault.severity} ({fault.level:g} {fault.spec.unit}): {fault.spec.real}"
