"""Facts about the data of a run: sizes, digests, and the identity of every real window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rca.lab.training.corpus import Corpus
from rca.lab.training.digests import files_digest, joint_digest, window_digest
from rca.lab.training.held_out import named
from rca.lab.training.incidents import LEARNED, incidents
from rca.lab.training.split import SHARES
from rca.sources.labels import read_collection


def data_facts(corpus: Corpus, n_windows: int, seed: int, collections: Sequence[Path]) -> dict[str, Any]:
    """Facts about the data of a run, as plain data.

    Returns
    -------
    dict
        ``corpus_sha256``, ``simulated`` (windows, seed, parts, modes) and ``collections``: per name the
        digest of all windows and labels, the number of windows per part, and the digests of the learned and
        tested windows.
    """
    simulated = [position for position, real in enumerate(corpus.real) if not real]
    return {
        "corpus_sha256": corpus.digest,
        "simulated": {
            "windows": n_windows,
            "seed": seed,
            "parts": _parts(corpus.part[position] for position in simulated),
            "modes": dict(sorted(Counter(corpus.mode[position] for position in simulated).items())),
        },
        "collections": {name: _collection(folder) for name, folder in named(collections).items()},
    }


def _parts(parts: Iterable[str]) -> dict[str, int]:
    counts = Counter(parts)
    return {name: counts[name] for name in SHARES}


def _collection(folder: Path) -> dict[str, Any]:
    found = incidents(read_collection(folder))
    return {
        "sha256": joint_digest(files_digest(each.entry.path) for each in found),
        "parts": _parts(each.part for each in found),
        "learned": sorted(window_digest(each.entry.path) for each in found if each.part in LEARNED),
        "tested": sorted(window_digest(each.entry.path) for each in found if each.part == "test"),
    }


def learned_from(facts: dict[str, Any]) -> set[str]:
    """Digests of the real windows that a run fitted, calibrated or chose thresholds on."""
    return {digest for each in facts.get("collections", {}).values() for digest in each["learned"]}


def tested_on(facts: dict[str, Any]) -> set[str]:
    """Names of the collections that a run was tested on."""
    return {name for name, each in facts.get("collections", {}).items() if each["tested"]}
