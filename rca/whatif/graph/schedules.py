"""Dependency rules of a pipeline schedule: from one traced execution of a step to its graph.

`megatron` has the published rules: 1F1B with or without model chunks, with or without data parallelism,
gradient reduction after the backward pass or overlapped with it. `rounds` is for profiler traces, and
`by_types` chooses between them. For another schedule, write a function of the same type and pass it to
`rca.whatif.what_if` as ``schedule=``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rca.arrays import BoolArray, IntArray
from rca.errors import InvalidTrace
from rca.whatif.graph.graph import DependencyGraph, Group, Operation
from rca.whatif.graph.reference_step import Reference
from rca.whatif.optypes import (
    ALL_GATHER,
    BACKWARD,
    BACKWARD_RECV,
    BACKWARD_SEND,
    CLIP,
    COLLECTIVE,
    COMPUTE,
    COMPUTE_OF,
    EMBEDDING,
    FORWARD,
    FORWARD_RECV,
    FORWARD_SEND,
    GC,
    LAYERNORM,
    NAMES,
    OPTIMIZER,
    POINT_TO_POINT,
    REDUCE_SCATTER,
    ROUND,
    SEPARATE_ALL_REDUCE,
)

EPSILON = np.float32(5e-5)
"""Seconds. A compute and its transfer may overlap by this much at the point where they follow each other."""

# Step from the chunk of a transfer to the chunk of its peer.
_CHUNK_STEP = {FORWARD_SEND: 1, BACKWARD_RECV: 1, FORWARD_RECV: -1, BACKWARD_SEND: -1}
_PAIRS = ((FORWARD_SEND, FORWARD_RECV, 1), (BACKWARD_SEND, BACKWARD_RECV, -1))


@dataclass(frozen=True)
class Matching:
    """Which compute, and which peer, each point-to-point operation of a step belongs to.

    Attributes
    ----------
    compute_of : dict of int to int
        Transfer -> its compute operation. Skipped transfers are absent.
    pairs : list of (int, int)
        (send, receive) on neighbouring stages.
    alone : list of int
        Transfers without a peer: no-ops at the ends of the model, and skipped transfers.
    """

    compute_of: dict[int, int]
    pairs: list[tuple[int, int]]
    alone: list[int]


def match_transfers(reference: Reference) -> Matching:
    """Match transfers to computes by order within a stage, and to their peers across stages.

    Raises
    ------
    InvalidTrace
        If the counts on a stage, or of two peers, fit no schedule of this kind.
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
    """Transfers of no compute: receives after the last compute, sends before the first one."""
    if not computes.size:
        return np.ones(transfers.size, dtype=bool)
    if optype in (FORWARD_RECV, BACKWARD_RECV):
        return np.asarray(reference.start[transfers] > reference.start[computes].max() + EPSILON)
    return np.asarray(reference.end[transfers] < reference.end[computes].min() - EPSILON)


def _assign(
    reference: Reference, optype: int, stage: int, transfers: IntArray, computes: IntArray
) -> dict[int, int]:
    """Assign the k-th transfer to the compute with sequence number k."""
    n = computes.size
    offset = 0
    if transfers.size != n:
        edge = stage in (0, reference.n_stages - 1)
        if not edge or transfers.size not in (0, n - 1):
            raise InvalidTrace(
                f"stage {stage} has {transfers.size} {NAMES[optype]} for {n} {NAMES[COMPUTE_OF[optype]]}",
                hint="expected equal counts; the first and the last stage may have none or one less",
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


Edges = list[tuple[int, int]]

DATA_COLLECTIVES = (ALL_GATHER, REDUCE_SCATTER, SEPARATE_ALL_REDUCE)

Schedule = Callable[[Reference], DependencyGraph]


def megatron(reference: Reference) -> DependencyGraph:
    """Apply the published dependency model.

    References
    ----------
    "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025.
    """
    overlap = reference.use_dp and bool((reference.optype == SEPARATE_ALL_REDUCE).any())
    active = _modelled(reference, overlap=overlap)
    matching = match_transfers(reference)
    edges: Edges = []
    for stage in range(reference.n_stages):
        rules = _StageRules(reference, stage)
        edges += rules.compute_edges()
        edges += rules.transfer_edges(matching)
        edges += rules.first_backward_edges()
        if reference.use_dp:
            edges += rules.gradient_edges(overlap=overlap)
        edges += rules.tail_edges(overlap=overlap)
    return DependencyGraph(
        operations=_operations(reference),
        edges=tuple(sorted(set(edges))),
        groups=tuple(_groups(reference, matching, active)),
        active=frozenset(np.flatnonzero(active).tolist()),
    )


def rounds(reference: Reference) -> DependencyGraph:
    """Chain the rounds: own work, then a collective of all ranks, then the next round.

    Raises
    ------
    InvalidTrace
        If the trace has operations of other types.
    """
    foreign = np.setdiff1d(reference.optype, ROUND)
    if foreign.size:
        named = ", ".join(NAMES[code] for code in foreign)
        raise InvalidTrace(f"rounds of own-work and collective cannot be mixed with {named}")
    ordered = np.lexsort((-reference.optype, reference.sequence))
    return DependencyGraph(
        operations=_operations(reference),
        edges=tuple(_chain(ordered)),
        groups=tuple(
            Group((int(op),), across_data=True) for op in ordered if reference.optype[op] == COLLECTIVE
        ),
        active=frozenset(ordered.tolist()),
    )


def by_types(reference: Reference) -> DependencyGraph:
    """`rounds` for a trace with rounds, `megatron` for any other."""
    return rounds(reference) if np.isin(reference.optype, ROUND).any() else megatron(reference)


def _operations(reference: Reference) -> tuple[Operation, ...]:
    columns = (reference.stage, reference.optype, reference.sequence)
    return tuple(
        Operation(int(stage), int(optype), int(sequence))
        for stage, optype, sequence in zip(*columns, strict=True)
    )


def _modelled(reference: Reference, *, overlap: bool) -> BoolArray:
    """Operations in the model: gradient exchange needs data ranks, embeddings an end stage."""
    outside = [] if overlap else [SEPARATE_ALL_REDUCE]
    if not reference.use_dp:
        outside += [ALL_GATHER, REDUCE_SCATTER]
    ends = np.isin(reference.stage, (0, reference.n_stages - 1))
    placed: BoolArray = ends | (reference.optype != EMBEDDING)
    return placed & ~np.isin(reference.optype, outside)


class _StageRules:
    """The edges within one stage."""

    def __init__(self, reference: Reference, stage: int) -> None:
        self.reference = reference
        here = np.flatnonzero(reference.stage == stage)
        self.ordered = reference.ordered(here)
        self.compute = self.of(*COMPUTE)
        self.has_embedding = stage in (0, reference.n_stages - 1)

    def of(self, *optypes: int) -> IntArray:
        """Select the stage's operations of the given types, in order."""
        return self.ordered[np.isin(self.reference.optype[self.ordered], optypes)]

    def compute_edges(self) -> Edges:
        """One chain of all computes, and one chain of each type of transfer."""
        edges = _chain(self.compute)
        for optype in POINT_TO_POINT:
            edges += _chain(self.of(optype))
        return edges

    def transfer_edges(self, matching: Matching) -> Edges:
        """Chain receive, compute and send. A receive also depends on the previous compute."""
        edges: Edges = []
        for optype in POINT_TO_POINT:
            receiving = optype in (FORWARD_RECV, BACKWARD_RECV)
            same_type = self.of(COMPUTE_OF[optype])
            by_sequence = {int(self.reference.sequence[op]): int(op) for op in same_type}
            for transfer in map(int, self.of(optype)):
                compute = matching.compute_of.get(transfer)
                if compute is None:
                    continue
                if not receiving:
                    edges.append((compute, transfer))
                    continue
                edges.append((transfer, compute))
                before = by_sequence.get(int(self.reference.sequence[compute]) - 1)
                if before is not None:
                    edges.append((before, transfer))
        return edges

    def first_backward_edges(self) -> Edges:
        """The transfers of the first backward depend on the compute two places before it."""
        backward = np.flatnonzero(self.reference.optype[self.compute] == BACKWARD)
        if not backward.size or backward[0] < 2:
            return []
        posted_after = int(self.compute[backward[0] - 2])
        first = [op for op in self.of(BACKWARD_RECV, BACKWARD_SEND) if self.reference.sequence[op] == 0]
        return [(posted_after, int(op)) for op in first]

    def gradient_edges(self, *, overlap: bool) -> Edges:
        """Gathers precede the first forward of a chunk. With overlap, scatters follow its last backward."""
        reference = self.reference
        edges = _chain(self.of(ALL_GATHER, REDUCE_SCATTER))
        gathers, scatters = self.of(ALL_GATHER), self.of(REDUCE_SCATTER)
        forwards, backwards = self.of(FORWARD), self.of(BACKWARD)
        chunks = np.unique(reference.chunk[np.concatenate((forwards, backwards))])
        for chunk in chunks[chunks >= 0]:
            gather = gathers[reference.chunk[gathers] == chunk]
            forward = forwards[reference.chunk[forwards] == chunk]
            if gather.size and forward.size:
                edges.append((int(gather[-1]), int(forward[0])))
            if not overlap:
                continue
            scatter = scatters[reference.chunk[scatters] == chunk]
            backward = backwards[reference.chunk[backwards] == chunk]
            if scatter.size and backward.size:
                last = backward[np.argmax(reference.end[backward])]
                edges.append((int(last), int(scatter[0])))
        return edges

    def tail_edges(self, *, overlap: bool) -> Edges:
        """Chain the operations after the last compute; absent operations are skipped."""
        reference = self.reference
        last_compute = int(self.compute[np.argmax(reference.end[self.compute])])
        scatters = self.of(REDUCE_SCATTER) if reference.use_dp else self.compute[:0]
        embedding = self.of(EMBEDDING) if self.has_embedding else self.compute[:0]
        pauses, layernorm = self.of(GC), self.of(LAYERNORM)
        end = (self.of(CLIP), self.of(OPTIMIZER))
        middle = (self.of(SEPARATE_ALL_REDUCE) if overlap else scatters,)
        tail = np.concatenate((pauses, layernorm, embedding, *middle, *end))
        edges = _chain(np.append(last_compute, tail))
        if overlap and scatters.size:
            rest = tail[pauses.size :]
            if rest.size:
                edges.append((int(scatters[-1]), int(rest[0])))
        return edges


def _chain(ops: IntArray) -> Edges:
    listed = [int(op) for op in ops]
    return list(pairwise(listed))


def _groups(reference: Reference, matching: Matching, active: BoolArray) -> Iterable[Group]:
    yield from (Group(pair, across_data=False) for pair in matching.pairs)
    yield from (Group((op,), across_data=False) for op in matching.alone)
    for op in np.flatnonzero(active & np.isin(reference.optype, DATA_COLLECTIVES)):
        yield Group((int(op),), across_data=True)
    for optype, across_data in ((EMBEDDING, False), (CLIP, True)):
        ops = np.flatnonzero(active & (reference.optype == optype))
        for sequence in np.unique(reference.sequence[ops]):
            members = ops[reference.sequence[ops] == sequence]
            yield Group(tuple(int(op) for op in members), across_data=across_data)
