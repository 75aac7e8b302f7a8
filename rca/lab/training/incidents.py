"""Real labelled windows as training data, each in many variants."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from rca.errors import InvalidInput
from rca.lab.training.corpus import Example, example
from rca.lab.training.crops import crop, without_ranks
from rca.lab.training.digests import files_digest
from rca.lab.training.feature_cache import FeatureCache, cache_key
from rca.lab.training.split import part_of
from rca.lab.training.telemetry_dropout import blinded
from rca.sources.labels import Collection, CollectionEntry, Part, WindowLabel, read_collection, unfelt
from rca.window.causes import CAUSES, SPECS, UNKNOWN
from rca.window.window import Window
from rca.workers import Workers, counted

#: Variants of each window, the window itself among them.
VARIANTS = 24
MIN_CROP = 20
#: Parts whose windows are varied; test windows are used as they are.
LEARNED: tuple[Part, ...] = ("train", "calibration", "validation")
PARTS: tuple[Part, ...] = (*LEARNED, "test")


@dataclass(frozen=True)
class RecordedIncident:
    """One labelled window of a collection, and its part of the data."""

    entry: CollectionEntry
    group: str
    part: Part


def incidents(collection: Collection) -> list[RecordedIncident]:
    """Windows of a collection with their parts: the manifest's ``split``, or a hash of ``group``.

    A window without a ``group`` is a group of its own. Related windows should name one, so that a test
    window is not related to a learned one.

    Raises
    ------
    InvalidInput
        If a ``split`` is none of `PARTS`.
    """
    found = []
    for entry in collection:
        # Without the collection's name: a renamed folder keeps its split.
        group = f"incident/{entry.summary.get('group', entry.id)}"
        found.append(RecordedIncident(entry, group, _part(entry, group)))
    return found


def learned_incidents(folder: Path, *, every_part: bool = False) -> list[RecordedIncident]:
    """Incidents of a collection that are learned from, after a check of all labels.

    Parameters
    ----------
    every_part : bool
        Learn from the part ``test``, too, as from ``train``: folds decide what is held out.

    Raises
    ------
    SourceError
        If the collection, or one of its windows' labels, is not there.
    InvalidInput
        If the manifest or a label is invalid, the collection is empty, or a label that is learned from names
        a cause without a class. Test windows and faults without effect may have any cause.
    """
    found = incidents(read_collection(folder))
    if not found:
        raise InvalidInput(f"{folder}: the manifest lists no windows")
    if every_part:
        found = [replace(each, part="train") if each.part == "test" else each for each in found]
    for each in found:
        label = each.entry.read_label()
        if each.part in LEARNED and not unfelt(label):
            _refuse_unknown_causes(each.entry, label)
    return [each for each in found if each.part in LEARNED]


def _refuse_unknown_causes(entry: CollectionEntry, label: WindowLabel) -> None:
    for blamed in label.causes:
        if blamed.cause not in SPECS:
            raise InvalidInput(
                f"window {entry.id!r}: {entry.path}: {blamed.cause!r} is no cause of the catalogue",
                hint=f"one of {', '.join(CAUSES)}, or {UNKNOWN} for any other cause",
            )


def felt(incident: RecordedIncident) -> tuple[Window, WindowLabel] | None:
    """The window and its label; None if a fault was injected that had no effect.

    Such a window has no clear label, so it is neither learned from nor tested.

    Raises
    ------
    InvalidInput
        If the label blames a rank that the job does not have, or as of `CollectionEntry.read_window`.
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
    found: Sequence[RecordedIncident],
    seed: int,
    *,
    workers: Workers,
    variants: int = VARIANTS,
    cache: FeatureCache | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Example]:
    """Examples of every incident, in order: the window itself, then its other `variants`.

    An incident without effect has no examples.
    """
    keys = [None if cache is None else _cache_key(each, seed, variants) for each in found]
    held = [None if cache is None or key is None else cache.read(key) for key in keys]
    # Read here, because workers have no files of this machine.
    missing = ((each, felt(each)) for each, known in zip(found, held, strict=True) if known is None)
    fresh = workers.map(partial(_examples, seed=seed, variants=variants), missing)
    for key, known in counted(zip(keys, held, strict=True), len(found), progress):
        examples = next(fresh) if known is None else known
        if known is None and cache is not None and key is not None:
            cache.write(key, examples)
        yield from examples


def _cache_key(incident: RecordedIncident, seed: int, variants: int) -> str:
    content = files_digest(incident.entry.path)
    return cache_key("incident", content, incident.entry.id, incident.group, incident.part, seed, variants)


def _examples(
    read: tuple[RecordedIncident, tuple[Window, WindowLabel] | None], *, seed: int, variants: int
) -> list[Example]:
    incident, known = read
    if known is None:
        return []
    window, label = known
    digest = hashlib.sha256(f"{seed}/{incident.entry.id}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    found = [example(window, label, incident.group, int(rng.integers(2**31)))]
    for _ in range(variants - 1):
        changed = varied(window, label, rng)
        found.append(example(*changed, incident.group, int(rng.integers(2**31))))
    return [replace(each, part=incident.part, real=True) for each in found]


def varied(window: Window, label: WindowLabel, rng: np.random.Generator) -> tuple[Window, WindowLabel]:
    """One variant: shorter, of a smaller job, with less telemetry, or a combination."""
    if rng.random() < 0.5:
        window, label = _shorter(window, label, rng) or (window, label)
    if rng.random() < 0.3:
        window, label = _smaller(window, label, rng)
    return (blinded(window, rng) if rng.random() < 0.85 else window), label


def _shorter(
    window: Window, label: WindowLabel, rng: np.random.Generator
) -> tuple[Window, WindowLabel] | None:
    steps = np.unique(window.steps.column("step").to_numpy())
    if steps.size <= MIN_CROP or any(cause.first_step is None for cause in label.causes):
        return None
    for _ in range(4):
        length = int(rng.integers(MIN_CROP, steps.size + 1))
        begin = int(rng.integers(0, steps.size - length + 1))
        found = crop(window, label, int(steps[begin]), int(steps[begin]) + length)
        if found is not None:
            return found
    return None


def _smaller(window: Window, label: WindowLabel, rng: np.random.Generator) -> tuple[Window, WindowLabel]:
    """Without some healthy nodes, if all ranks do the same work and all faults have ranks."""
    sizes, topology = window.job.parallelism, window.job.topology
    if sizes is None or sizes.data != window.job.world_size or len(topology.node_names) < 3:
        return window, label
    placed = bool(label.causes) and all(cause.ranks for cause in label.causes)
    if label.failure_mode != "healthy" and not placed:
        # The faulty rank might be on a removed node, and the rest would still be labelled faulty.
        return window, label
    blamed = [rank for cause in label.causes for rank in cause.ranks]
    whole_job = len(set(blamed)) == window.job.world_size
    faulty = set() if whole_job else {int(topology.node[rank]) for rank in blamed}
    free = [node for node in range(len(topology.node_names)) if node not in faulty]
    spare = min(len(free), len(topology.node_names) - 2)
    if spare < 1:
        return window, label
    gone = np.isin(topology.node, rng.choice(free, int(rng.integers(1, spare + 1)), replace=False))
    # If a producer writes the rows of one rank only, a window without its node has no rows.
    if gone[window.steps.column("rank").to_numpy()].all():
        return window, label
    return without_ranks(window, label, np.flatnonzero(gone))
