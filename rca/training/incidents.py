"""Real labelled windows as training data: every one in many variants, weighted so that they count."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from rca.errors import InvalidInput
from rca.processes import mapped
from rca.telemetry.causes import CAUSES, SPECS, UNKNOWN
from rca.telemetry.labels import Collection, CollectionEntry, Label, Part, read_collection, unfelt
from rca.telemetry.window import Window
from rca.training.corpus import Example, example
from rca.training.crops import crop, without_ranks
from rca.training.digests import files_digest
from rca.training.feature_cache import FeatureCache, cache_key
from rca.training.split import part_of
from rca.training.telemetry_dropout import blinded

#: Variants of each window, the window itself among them.
VARIANTS = 24
SHORTEST_CROP = 20
#: Test windows are judged as they are; only what is learned from is varied.
LEARNED: tuple[Part, ...] = ("train", "calibration", "validation")
PARTS: tuple[Part, ...] = (*LEARNED, "test")


@dataclass(frozen=True)
class Incident:
    """One labelled window of a collection, and the part of the data it belongs to."""

    entry: CollectionEntry
    group: str
    part: Part


def incidents(collection: Collection) -> list[Incident]:
    """Windows of a collection with their parts: the manifest's ``split``, or a hash of ``group``.

    Without a ``group`` a window is its own, so related windows of one's own collection should name one:
    what was learned must not be asked again.

    Raises
    ------
    InvalidInput
        If a ``split`` is none of `PARTS`: a window that was meant to be held out would be learned from.
    """
    found = []
    for entry in collection:
        # Without the collection's name: a renamed folder must not deal its windows anew.
        group = f"incident/{entry.summary.get('group', entry.id)}"
        found.append(Incident(entry, group, _part(entry, group)))
    return found


def learned_incidents(folder: Path, *, every_part: bool = False) -> list[Incident]:
    """Incidents of a collection that are learned from, after a look at the labels of all of them.

    Parameters
    ----------
    folder : Path
    every_part : bool
        Learn from all of them, whatever the manifest says: where folds decide what is held out.

    Raises
    ------
    SourceError
        If the collection, or one of its windows' labels, is not there.
    InvalidInput
        If the manifest or a label is none, the collection is empty, or a label that is learned from names a
        cause that no head has a class for. What is only judged may be labelled with any cause, and so may
        faults that nobody felt: they are left out of what is learned.
    """
    found = incidents(read_collection(folder))
    if not found:
        raise InvalidInput(f"{folder}: the manifest lists no windows")
    if every_part:
        found = [replace(each, part="train") for each in found]
    for each in found:
        label = each.entry.read_label()
        if each.part in LEARNED and not unfelt(label):
            _refuse_unknown_causes(each.entry, label)
    return [each for each in found if each.part in LEARNED]


def _refuse_unknown_causes(entry: CollectionEntry, label: Label) -> None:
    for blamed in label.causes:
        if blamed.cause not in SPECS:
            raise InvalidInput(
                f"window {entry.id!r}: {entry.path}: {blamed.cause!r} is no cause of the catalogue",
                hint=f"one of {', '.join(CAUSES)}, or {UNKNOWN} for what is none of them",
            )


def felt(incident: Incident) -> tuple[Window, Label] | None:
    """The window and its label; None where something was done to the job that nobody would have felt.

    Whether such a window is to be called healthy is a matter of taste, and nothing to learn from or to ask.

    Raises
    ------
    InvalidInput
        If the label blames a rank that the job has not, or as `CollectionEntry.read_window` raises it.
    """
    label = incident.entry.read_label()
    if unfelt(label):
        return None
    window = incident.entry.read_window()
    beyond = [rank for cause in label.causes for rank in cause.ranks if rank >= window.job.world_size]
    if beyond:
        raise InvalidInput(
            f"window {incident.entry.id!r}: {incident.entry.path}: the label blames rank {beyond[0]} of "
            f"a job of {window.job.world_size} ranks"
        )
    return window, label


def _part(entry: CollectionEntry, group: str) -> Part:
    named = entry.summary.get("split")
    if named is None:
        return part_of(group)
    for part in PARTS:
        if named == part:
            return part
    raise InvalidInput(
        f"window {entry.id!r}: the manifest's split {named!r} is none of {', '.join(PARTS)}",
        hint="without a split a hash of the window's group decides",
    )


def incident_examples(
    found: Sequence[Incident],
    seed: int,
    *,
    processes: int,
    variants: int = VARIANTS,
    cache: FeatureCache | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Example]:
    """Examples of all incidents that somebody would have felt, in their order, `variants` of each."""
    batches = varied_incidents(found, seed, processes=processes, variants=variants, cache=cache)
    for done, batch in enumerate(batches, start=1):
        yield from batch
        progress(done, len(found))


def varied_incidents(
    found: Sequence[Incident],
    seed: int,
    *,
    processes: int,
    variants: int = VARIANTS,
    cache: FeatureCache | None = None,
) -> Iterator[list[Example]]:
    """Examples of every incident, whatever its part: the window itself, then its other variants.

    An incident that nobody would have felt has none.
    """
    work = partial(_examples, seed=seed, variants=variants)
    if cache is not None:
        work = partial(_remembered, cache=cache, seed=seed, variants=variants)
    return mapped(work, found, processes)


def _remembered(incident: Incident, *, cache: FeatureCache, seed: int, variants: int) -> list[Example]:
    content = files_digest(incident.entry.path)
    key = cache_key("incident", content, incident.entry.id, incident.group, incident.part, seed, variants)
    return cache.remember(key, lambda: _examples(incident, seed=seed, variants=variants))


def _examples(incident: Incident, *, seed: int, variants: int) -> list[Example]:
    told = felt(incident)
    if told is None:
        return []
    window, label = told
    digest = hashlib.sha256(f"{seed}/{incident.entry.id}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    found = [example(window, label, incident.group, int(rng.integers(2**31)))]
    for _ in range(variants - 1):
        changed = varied(window, label, rng)
        found.append(example(*changed, incident.group, int(rng.integers(2**31))))
    return [replace(each, part=incident.part, real=True) for each in found]


def varied(window: Window, label: Label, rng: np.random.Generator) -> tuple[Window, Label]:
    """One variant: perhaps shorter, perhaps of a smaller job, and mostly with blind spots."""
    if rng.random() < 0.5:
        window, label = _shorter(window, label, rng) or (window, label)
    if rng.random() < 0.3:
        window, label = _smaller(window, label, rng)
    return (blinded(window, rng) if rng.random() < 0.85 else window), label


def _shorter(window: Window, label: Label, rng: np.random.Generator) -> tuple[Window, Label] | None:
    steps = np.unique(window.steps.column("step").to_numpy())
    if steps.size <= SHORTEST_CROP or any(cause.first_step is None for cause in label.causes):
        return None
    for _ in range(4):
        length = int(rng.integers(SHORTEST_CROP, steps.size + 1))
        begin = int(rng.integers(0, steps.size - length + 1))
        found = crop(window, label, int(steps[begin]), int(steps[begin]) + length)
        if found is not None:
            return found
    return None


def _smaller(window: Window, label: Label, rng: np.random.Generator) -> tuple[Window, Label]:
    """Without some nodes that nobody blames; only where all ranks do the same work, and faults have ranks."""
    sizes, topology = window.job.parallelism, window.job.topology
    if sizes is None or sizes.data != window.job.world_size or len(topology.node_names) < 3:
        return window, label
    placed = bool(label.causes) and all(cause.ranks for cause in label.causes)
    if label.failure_mode != "healthy" and not placed:
        # Who is at fault might be on a node that is taken away, and the rest would be learned from as faulty.
        return window, label
    blamed = [rank for cause in label.causes for rank in cause.ranks]
    everybody = len(set(blamed)) == window.job.world_size
    guilty = set() if everybody else {int(topology.node[rank]) for rank in blamed}
    free = [node for node in range(len(topology.node_names)) if node not in guilty]
    spare = min(len(free), len(topology.node_names) - 2)
    if spare < 1:
        return window, label
    gone = np.isin(topology.node, rng.choice(free, int(rng.integers(1, spare + 1)), replace=False))
    # Some producers write the rows of one rank only: without its node there is no window left.
    if gone[window.steps.column("rank").to_numpy()].all():
        return window, label
    return without_ranks(window, label, np.flatnonzero(gone))
