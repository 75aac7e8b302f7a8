"""Which rank of which job this process is: from arguments, torch.distributed or the launcher."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Variables of torchrun, SLURM, Open MPI and MPICH, in this order.
RANK: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
WORLD_SIZE: Final = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_RANK: Final = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
NODE: Final = ("RCA_COLLECT_NODE", "SLURMD_NODENAME")
JOB: Final = ("RCA_COLLECT_JOB_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
#: Counts of restarts: of the scheduler, and of torchrun, which counts from 0 again in each restart of the
#: scheduler. Each restart is a run of its own.
RESTARTS: Final = ("RCA_COLLECT_ATTEMPT", "JOBSET_RESTART_ATTEMPT", "SLURM_RESTART_COUNT")
INNER_RESTARTS: Final = ("TORCHELASTIC_RESTART_COUNT",)
#: A restart of the scheduler counts as much as so many of torchrun.
MAX_INNER_RESTARTS: Final = 1000
MAX_RESTARTS: Final = 1_000_000


@dataclass(frozen=True)
class Identity:
    """Place of a process in its job.

    Attributes
    ----------
    gpu : int or None
        Number of the rank on its node.
    run : str or None
        The same for all ranks of one run, other for a restart; None if the launcher gives none.
    attempt : int or None
        Number of the restart, which grows with each; None if the launcher gives none.
    """

    rank: int
    world_size: int
    gpu: int | None
    node: str
    job_id: str | None
    run: str | None
    attempt: int | None = None

    def header(self) -> dict[str, Any]:
        """As in the header of a segment."""
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "gpu": self.gpu,
            "node": self.node,
            "job_id": self.job_id,
            "run": self.run,
            "attempt": self.attempt,
        }


def identify(
    rank: int | None = None,
    world_size: int | None = None,
    node: str | None = None,
    job_id: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Identity:
    """Find the place of this process: arguments first, then torch.distributed, then the environment."""
    joined = _process_group()
    if joined is not None:
        rank = joined[0] if rank is None else rank
        world_size = joined[1] if world_size is None else world_size
    rank = _number(environment, RANK) if rank is None else rank
    world_size = _number(environment, WORLD_SIZE) if world_size is None else world_size
    rank = 0 if rank is None else rank
    job = job_id or _text(environment, JOB)
    attempt = _attempt(environment)
    return Identity(
        rank=rank,
        world_size=max(rank + 1, 1 if world_size is None else world_size),
        gpu=_number(environment, LOCAL_RANK),
        node=node or _text(environment, NODE) or socket.gethostname() or "unknown",
        job_id=job,
        run=None if job is None else f"{job}.{attempt or 0}",
        attempt=attempt,
    )


def _attempt(environment: Mapping[str, str]) -> int | None:
    """Number of the restart, by all counts together."""
    outer, inner = _number(environment, RESTARTS), _number(environment, INNER_RESTARTS)
    if outer is None and inner is None:
        return None
    return MAX_INNER_RESTARTS * min(outer or 0, MAX_RESTARTS) + min(inner or 0, MAX_INNER_RESTARTS - 1)


def _process_group() -> tuple[int, int] | None:
    """Rank and world size of the default process group, if the training code made one."""
    module = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return int(module.get_rank()), int(module.get_world_size())


def _text(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    # torchrun calls a run without an id "none".
    held = (environment.get(name, "").strip() for name in names)
    return next((text for text in held if text and text != "none"), None)


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    text = _text(environment, names)
    return int(text) if text is not None and text.isdigit() else None
