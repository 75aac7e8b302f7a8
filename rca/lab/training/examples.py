"""All examples of a training: simulated scenarios, and variants of real windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rca.lab.training.corpus import Example
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.held_out import named
from rca.lab.training.incidents import VARIANTS, incident_examples, learned_incidents
from rca.lab.training.simulated import simulated_examples
from rca.workers import Workers, counted


def gathered(
    n_windows: int,
    seed: int,
    collections: Sequence[Path],
    *,
    every_part: bool = False,
    variants: int = VARIANTS,
    workers: Workers,
    cache: FeatureCache | None,
    progress: Callable[[str, int, int], None],
) -> list[Example]:
    """Examples of the simulated scenarios of a seed and then of each collection, in their order.

    Parameters
    ----------
    every_part : bool
        See `rca.lab.training.incidents.learned_incidents`.
    variants : int
        Of each real window, see `rca.lab.training.incidents.varied`.
    workers, cache
        Without influence on the result.
    progress : callable
        ``(phase, done, total)``.

    Raises
    ------
    SourceError
        Before anything is simulated, if a collection or a label that is learned from is not there.
    InvalidInput
        Likewise, if something is wrong with one, or two collections have the same name.
    """
    captures = {
        name: learned_incidents(folder, every_part=every_part) for name, folder in named(collections).items()
    }
    simulated = counted(
        simulated_examples(n_windows, seed, workers=workers, cache=cache),
        n_windows,
        partial(progress, "simulating and extracting features"),
    )
    examples: list[Example] = list(simulated)
    for name, learned in captures.items():
        found = incident_examples(
            learned,
            seed,
            workers=workers,
            variants=variants,
            cache=cache,
            progress=partial(progress, "varying real windows"),
        )
        # Weights depend on the collection; the part depends on the group's name within it.
        examples += [replace(each, group=f"{name}/{each.group}") for each in found]
    return examples
