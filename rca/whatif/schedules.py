"""Dependency rules: from one observed execution of a step to its graph.

`megatron` holds the published rules: 1F1B with or without model chunks, with or without data parallelism,
gradient reduction after or under the backward pass. Another schedule is another function of the same
type, handed to `rca.whatif.what_if` as ``schedule=``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np

from rca.arrays import BoolArray, IntArray
from rca.whatif.graph import DependencyGraph, Group, Operation
from rca.whatif.matching import Matching, match_transfers
from rca.whatif.optypes import (
    ALL_GATHER,
    BACKWARD,
    BACKWARD_RECV,
    BACKWARD_SEND,
    CLIP,
    COMPUTE,
    COMPUTE_OF,
    EMBEDDING,
    FORWARD,
    FORWARD_RECV,
    GC,
    LAYERNORM,
    OPTIMIZER,
    POINT_TO_POINT,
    REDUCE_SCATTER,
    SEPARATE_ALL_REDUCE,
)
from rca.whatif.reference import Reference

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
        operations=tuple(
            Operation(int(stage), int(optype), int(sequence))
            for stage, optype, sequence in zip(
                reference.stage, reference.optype, reference.sequence, strict=True
            )
        ),
        edges=tuple(sorted(set(edges))),
        groups=tuple(_groups(reference, matching, active)),
        active=frozenset(np.flatnonzero(active).tolist()),
    )


def _modelled(reference: Reference, *, overlap: bool) -> BoolArray:
    """Which operations the rules place: gradient exchange needs data ranks, embeddings an end stage."""
    outside = [] if overlap else [SEPARATE_ALL_REDUCE]
    if not reference.use_dp:
        outside += [ALL_GATHER, REDUCE_SCATTER]
    ends = np.isin(reference.stage, (0, reference.n_stages - 1))
    placed: BoolArray = ends | (reference.optype != EMBEDDING)
    return placed & ~np.isin(reference.optype, outside)


class _StageRules:
    """The edges inside one stage."""

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
        """One chain for all computes, one for each type of transfer."""
        edges = _chain(self.compute)
        for optype in POINT_TO_POINT:
            edges += _chain(self.of(optype))
        return edges

    def transfer_edges(self, matching: Matching) -> Edges:
        """Chain receive, compute and send; a receive also waits for the compute before."""
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
        """Post the first backward's transfers two computes before it, where the warm-up ends."""
        backward = np.flatnonzero(self.reference.optype[self.compute] == BACKWARD)
        if not backward.size or backward[0] < 2:
            return []
        posted_after = int(self.compute[backward[0] - 2])
        first = [op for op in self.of(BACKWARD_RECV, BACKWARD_SEND) if self.reference.sequence[op] == 0]
        return [(posted_after, int(op)) for op in first]

    def gradient_edges(self, *, overlap: bool) -> Edges:
        """Gathers before a chunk's first forward; with overlap, scatters after its last backward."""
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
        """Chain what follows the last compute; absent operations are stepped over."""
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
