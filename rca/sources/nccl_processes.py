"""Processes of a job that uses NCCL: ranks are numbered within each communicator, processes are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rca.errors import InvalidInput
from rca.window.rows.validation import MAX_WORLD_SIZE


class NcclProcess(NamedTuple):
    """One process of the job; `device` is 0 where a producer does not name it."""

    host: str
    pid: int
    device: int = 0


def ranks_of_job(
    communicators: Mapping[str, Mapping[NcclProcess, int]], sizes: Mapping[str, int], notes: list[str]
) -> tuple[dict[NcclProcess, int], int]:
    """The rank of each process in the job, from the ranks within each communicator; and the world size.

    The largest communicator gives the ranks if all processes are in it. Else processes are numbered by host
    and device, and a note says so.

    Parameters
    ----------
    communicators : mapping of str to mapping of NcclProcess to int
        The rank of each known process in each communicator.
    sizes : mapping of str to int
        Ranks of each communicator, unknown processes included.
    notes : list of str
        Gets a note if ranks are made up.

    Raises
    ------
    InvalidInput
        If there are more processes than a job may have ranks.
    """
    everyone = {process for members in communicators.values() for process in members}
    if len(everyone) > MAX_WORLD_SIZE:
        raise InvalidInput(f"{len(everyone):,} processes; a job has at most {MAX_WORLD_SIZE:,}")
    largest = max(communicators, key=lambda name: (sizes[name], len(communicators[name])))
    whole, size = communicators[largest], sizes[largest]
    numbered = len(set(whole.values())) == len(whole) and all(0 <= rank < size for rank in whole.values())
    if numbered and everyone == set(whole):
        return dict(whole), size
    notes.append("no communicator has all processes: ranks are numbered by host and device")
    ordered = sorted(everyone, key=lambda process: (process.host, process.device, process.pid))
    return {process: rank for rank, process in enumerate(ordered)}, len(ordered)
