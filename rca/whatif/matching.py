"""Which send or receive belongs to which compute operation, and which send to which receive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, IntArray
from rca.errors import InvalidTrace
from rca.whatif.optypes import (
    BACKWARD_RECV,
    BACKWARD_SEND,
    COMPUTE_OF,
    FORWARD_RECV,
    FORWARD_SEND,
    NAMES,
)
from rca.whatif.reference import Reference

EPSILON = np.float32(5e-5)
"""Seconds by which two ends of a compute and a transfer may cross and still belong together."""

# Towards the peer of the transfer: the next chunk of the model or the one before.
_CHUNK_STEP = {FORWARD_SEND: 1, BACKWARD_RECV: 1, FORWARD_RECV: -1, BACKWARD_SEND: -1}
_PAIRS = ((FORWARD_SEND, FORWARD_RECV, 1), (BACKWARD_SEND, BACKWARD_RECV, -1))


@dataclass(frozen=True)
class Matching:
    """Point-to-point operations of one step.

    Attributes
    ----------
    compute_of : dict of int to int
        Transfer -> the compute operation it feeds or drains; skipped ones are absent.
    pairs : list of (int, int)
        (send, receive) on neighbouring stages.
    alone : list of int
        Transfers with no peer: no-ops at the ends of the model, and skipped ones.
    """

    compute_of: dict[int, int]
    pairs: list[tuple[int, int]]
    alone: list[int]


def match_transfers(reference: Reference) -> Matching:
    """Match transfers with computes by order within a stage, and with each other across stages.

    Raises
    ------
    InvalidTrace
        If counts on a stage, or of two peers, do not fit any schedule of this kind.
    """
    compute_of: dict[int, int] = {}
    valid: dict[tuple[int, int], list[int]] = {}
    alone: list[int] = []
    for stage in range(reference.n_stages):
        for optype, compute_type in COMPUTE_OF.items():
            transfers = reference.ordered(_select(reference, optype, stage))
            computes = reference.ordered(_select(reference, compute_type, stage))
            kept = transfers[~_skipped(reference, optype, transfers, computes)]
            alone += [int(op) for op in np.setdiff1d(transfers, kept)]
            matched = _assign(reference, optype, stage, kept, computes)
            compute_of.update(matched)
            for transfer, compute in matched.items():
                if _leaves_model(reference, optype, compute):
                    alone.append(transfer)
                else:
                    valid.setdefault((optype, stage), []).append(transfer)
    return Matching(compute_of, _pair(reference, valid), sorted(alone))


def _select(reference: Reference, optype: int, stage: int) -> IntArray:
    return np.flatnonzero((reference.optype == optype) & (reference.stage == stage))


def _skipped(reference: Reference, optype: int, transfers: IntArray, computes: IntArray) -> BoolArray:
    """Transfers that can serve no compute of this step: too late to receive for, too early to send of."""
    if not computes.size:
        return np.ones(transfers.size, dtype=bool)
    if optype in (FORWARD_RECV, BACKWARD_RECV):
        return np.asarray(reference.start[transfers] > reference.start[computes].max() + EPSILON)
    return np.asarray(reference.end[transfers] < reference.end[computes].min() - EPSILON)


def _assign(
    reference: Reference, optype: int, stage: int, transfers: IntArray, computes: IntArray
) -> dict[int, int]:
    """Give the k-th transfer to the compute with sequence number k."""
    n = computes.size
    offset = 0
    if transfers.size != n:
        edge = stage in (0, reference.n_stages - 1)
        if not edge or transfers.size not in (0, n - 1):
            raise InvalidTrace(
                f"stage {stage} has {transfers.size} {NAMES[optype]} for {n} {NAMES[COMPUTE_OF[optype]]}",
                hint="expected as many; on the first and the last stage none or one less would do",
            )
        offset = 1 if optype in (FORWARD_RECV, BACKWARD_RECV) else 0
    by_sequence = computes[np.argsort(reference.sequence[computes], kind="stable")]
    return {int(transfer): int(by_sequence[k + offset]) for k, transfer in enumerate(transfers)}


def _leaves_model(reference: Reference, optype: int, compute: int) -> bool:
    peer = int(reference.global_chunk[compute]) + _CHUNK_STEP[optype]
    return not 0 <= peer < reference.n_chunks * reference.n_stages


def _pair(reference: Reference, valid: dict[tuple[int, int], list[int]]) -> list[tuple[int, int]]:
    pairs = []
    for send, receive, towards in _PAIRS:
        for stage in range(reference.n_stages):
            peer = (stage + towards) % reference.n_stages
            sends, receives = valid.get((send, stage), []), valid.get((receive, peer), [])
            if len(sends) != len(receives):
                raise InvalidTrace(
                    f"stage {stage} has {len(sends)} {NAMES[send]} to stage {peer}, "
                    f"which has {len(receives)} {NAMES[receive]}"
                )
            pairs += list(zip(sends, receives, strict=True))
    return pairs
