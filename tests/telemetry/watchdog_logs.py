"""Lines of the NCCL watchdog as PyTorch 2.1 to 2.9 write them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

#: 21 March 2025, 02:07:08 UTC.
FIRED = 1742522828.0
NEW = "PG ID 0 PG GUID 0(default_pg)"


def caught(rank: int, number: int, *, stamp: str = "E321 02:07:08.408271257 ", group_rank: int = -1) -> str:
    place = rank if group_rank < 0 else group_rank
    return (
        f"[{stamp}ProcessGroupNCCL.cpp:629] [Rank {place}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
        "600060 milliseconds before timing out."
    )


def status(rank: int, number: int, enqueued: int, *, group: str = NEW, group_rank: int = -1) -> str:
    place = rank if group_rank < 0 else group_rank
    stamp = "E321 02:07:08.465150152 ProcessGroupNCCL.cpp:2168"
    if "GUID" in group:
        return (
            f"[{stamp}] [{group} Rank {place}]  failure detected by watchdog at work sequence id: {number} "
            f"PG status: last enqueued work: {enqueued}, last completed work: {number - 1}"
        )
    return (
        f"[{stamp}] [{group} Rank {place}] Exception (either an error or timeout) detected by watchdog at "
        f"work: {number}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {number - 1}."
    )


def behind(rank: int, enqueued: int, *, group: str = NEW) -> str:
    return (
        f"[E321 02:07:09.170574 ProcessGroupNCCL.cpp:1858] [{group} Rank {rank}] Received a dump signal "
        "due to a collective timeout from rank 0 and we will try our best to dump the debug info. Last "
        f"enqueued NCCL work: {enqueued}, last completed NCCL work: {enqueued}.This is most likely"
    )


def labelled(rank: int, *lines: str) -> list[str]:
    return [f"[rank{rank}]:{line}" for line in lines]


def hang(n_ranks: int, missing: Sequence[int], *, number: int = 78, group: str = NEW) -> dict[int, list[str]]:
    """Lines of each rank of a job in which some ranks did not join a collective."""
    return {
        rank: labelled(rank, behind(rank, number - 1, group=group))
        if rank in missing
        else labelled(rank, caught(rank, number), status(rank, number, number + rank % 3, group=group))
        for rank in range(n_ranks)
    }


def write(path: Path, lines: Sequence[str], *, at: float = FIRED + 5) -> Path:
    """Write a log with other lines around; it was last written at `at`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = ["loading shards", *(f"step {number} loss 2.3" for number in range(200))]
    path.write_text("\n".join([*noise, *lines, "terminate called without an active exception", ""]))
    os.utime(path, (at, at))
    return path


TABLE = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2025-03-21_02:07:31
  host      : node-b
  rank      : 2 (local_rank: 0)
  exitcode  : -6 (pid: 14692)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 14692
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-03-21_02:07:30
  host      : node-a
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 14690)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 14690
============================================================""".splitlines()
