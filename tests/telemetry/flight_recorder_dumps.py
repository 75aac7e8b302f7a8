"""Made-up dumps of the PyTorch flight recorder."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START = 1_758_581_237.5


def entry(
    group: str,
    sequence: int,
    *,
    at: float = 0.0,
    state: str = "scheduled",
    operation: str = "nccl:all_reduce",
) -> dict[str, Any]:
    """One collective of a rank, enqueued `at` seconds after `START`."""
    return {
        "record_id": sequence,
        "process_group": [group, f"GROUP_{group}"],
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "profiling_name": operation,
        "time_created_ns": int((START + at) * 1e9),
        "state": state,
        "retired": False,
        "timeout_ms": 180_000,
        "is_p2p": False,
    }


def dump(groups: Mapping[str, Sequence[int]], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One dump; `groups` are the groups of its rank with their members."""
    config = {
        name: {"name": name, "desc": f"GROUP_{name}", "ranks": json.dumps(list(members))}
        for name, members in groups.items()
    }
    return {
        "version": "2.10",
        "pg_config": config,
        "nccl_version": "2.28.7",
        "pg_status": {},
        "entries": [dict(each) for each in entries],
    }


def write(folder: Path, dumps: Mapping[int, Mapping[str, Any]], *, as_json: bool = False) -> Path:
    """Write one file per rank, named as PyTorch names them."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, content in dumps.items():
        body = json.dumps(content).encode() if as_json else pickle.dumps(dict(content))
        (folder / f"nccl_trace_rank_{rank}").write_bytes(body)
    return folder


def hang(missing: Sequence[int], n_ranks: int = 8, group: str = "0") -> dict[int, dict[str, Any]]:
    """Dumps of a job whose ranks wait at collective 101, and whose missing ranks stopped after 98."""
    groups = {group: range(n_ranks)}
    finished = [entry(group, number, state="completed", at=0.01 * number) for number in (97, 98)]
    waiting = [*finished, entry(group, 100, at=1.0), entry(group, 101, at=1.1)]
    return {rank: dump(groups, finished if rank in missing else waiting) for rank in range(n_ranks)}
