"""Write simulated windows as a collection folder: resumable, deterministic by seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson

from rca.simulation import sample_scenario, simulate
from rca.telemetry.labels import Label, read_label, write_labelled


def simulate_collection(
    folder: Path,
    n_windows: int,
    seed: int,
    *,
    cause: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write `n_windows` labelled windows and their manifest; windows already complete are not redone.

    Returns
    -------
    int
        Windows in the collection.
    """
    folder.mkdir(parents=True, exist_ok=True)
    children = np.random.SeedSequence(seed).spawn(n_windows)
    entries = []
    for position, child in enumerate(children, start=1):
        name = f"{cause or 'mixture'}-{seed}-{position:05d}"
        if not (folder / name).exists():
            labelled = simulate(sample_scenario(np.random.default_rng(child), cause=cause))
            write_labelled(labelled.window, Label.model_validate(labelled.label), folder / name)
        label = read_label(folder / name)
        entries.append(
            {
                "id": name,
                "path": name,
                "failure_mode": label.failure_mode,
                "causes": [each.cause for each in label.causes],
                "seed": seed,
            }
        )
        progress(position, n_windows)
    manifest = folder / "manifest.json"
    fresh = folder / ".manifest.json.new"
    fresh.write_bytes(orjson.dumps({"format": 1, "windows": entries}, option=orjson.OPT_INDENT_2))
    fresh.replace(manifest)
    return len(entries)
