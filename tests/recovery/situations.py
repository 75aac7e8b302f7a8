"""Situations of small jobs, made from the ranks' work."""

from __future__ import annotations

from typing import Any

import numpy as np

from rca.recovery.site import Site
from rca.recovery.situation import BlamedCause, Situation, SlowRanks
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.window.job import Job
from rca.window.times.phases import PhaseArrays

STEPS = 60


def job(
    n_ranks: int = 8, *, per_node: int = 2, pipeline: int = 1, hints: dict[str, Any] | None = None
) -> Job:
    """Ranks on nodes of `per_node`."""
    return Job(
        job_id="job",
        world_size=n_ranks,
        parallelism={"data": n_ranks // pipeline, "pipeline": pipeline},
        ranks=[{"rank": rank, "node": f"node-{rank // 2}"} for rank in range(n_ranks)],
        start=0.0,
        end=100.0,
        hints=hints or {},
    )


def replay_of(forward: np.ndarray, of: Job, transfer: float = 0.01) -> PhaseReplay:
    """A job with only forward, backward and transfer; all ranks wait for the last one."""
    own = 2 * forward
    step = own.max(axis=0) + transfer
    phases = PhaseArrays(
        steps=np.arange(forward.shape[1]),
        present=np.ones(forward.shape, dtype=bool),
        start_time=np.zeros(forward.shape),
        seconds={
            "forward_seconds": forward,
            "backward_seconds": forward,
            "communication_wait_seconds": own.max(axis=0) - own,
            "communication_transfer_seconds": np.full(forward.shape, transfer),
            "step_seconds": np.broadcast_to(step, forward.shape).copy(),
        },
        load={},
    )
    return PhaseReplay.from_arrays(phases, of)


def slow_rank(n_ranks: int = 8, *, late: dict[int, float] | None = None, usual: float = 0.05) -> np.ndarray:
    """Forward time of every rank and step; some ranks are slower by a factor."""
    forward = np.full((n_ranks, STEPS), usual)
    for rank, factor in (late or {5: 1.5}).items():
        forward[rank] *= factor
    return forward


def fault(cause: str = "gpu_throttling", ranks: tuple[int, ...] = (5,), **changes: Any) -> BlamedCause:
    """A likely, evident fault of known cost."""
    given = {
        "cause": cause,
        "ranks": ranks,
        "nodes": tuple(sorted({f"node-{rank // 2}" for rank in ranks})),
        "probability": 0.95,
        "saved": 0.05,
        "interval": (0.04, 0.06),
        "actionable": True,
        "evident": True,
    }
    return BlamedCause(**(given | changes))


def situation(**changes: Any) -> Situation:
    """A fail-slow job of 8 ranks whose rank 5 computes half as fast again."""
    of = changes.pop("job", None) or job()
    forward = changes.pop("forward", slow_rank())
    transfer = changes.pop("transfer", 0.01)
    faults = changes.pop("faults", (fault(),))
    site = changes.pop("site", Site())
    if site.libraries is None:
        # Whether they run in the job is a matter of its own.
        site = site.model_copy(update={"libraries": ("antdt", "star", "stragglar")})
    given = {
        "mode": "fail_slow",
        "decided": True,
        "faults": faults,
        "suspects": tuple(SlowRanks(each.ranks, each.nodes, each.probability) for each in faults),
        "step_seconds": 0.16,
        "lost": 0.05,
        "lost_interval": (0.04, 0.06),
        "steps_lost": STEPS,
        "over": False,
        "job_nodes": len(of.topology.node_names),
        "global_batch": None,
        "topology": of.topology,
        "replay": replay_of(forward, of, transfer),
        "site": site,
    }
    return Situation(**(given | changes))
