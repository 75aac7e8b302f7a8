"""Labelled windows of other origin, asked by heads that learned nothing from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rca.errors import InvalidInput
from rca.training.corpus import Corpus, example, stack
from rca.training.head_losses import Losses, held_out_losses
from rca.training.heads import FittedHead, Target
from rca.training.incidents import felt, learned_incidents


def strangers_of(folders: Sequence[Path]) -> Corpus:
    """Examples of labelled collections, one per window as it is.

    Parts ``test`` stay unasked (without a ``split`` in the manifest a hash decides), and windows in which
    something was done that nobody felt: whether those are healthy is a matter of taste.

    Raises
    ------
    InvalidInput
        If a label names a cause outside the catalogue, or if nothing is left to ask.
    SourceError
        If a folder is no collection.
    """
    found = []
    for folder in folders:
        for each in learned_incidents(folder):
            told = felt(each)
            if told is not None:
                # Not as typed: one folder named in two ways is no two witnesses.
                found.append(example(*told, f"{folder.resolve()}/{each.group}", seed=0))
    if not found:
        raise InvalidInput(
            "no window to ask: all are of parts 'test', or in all of them nobody felt what was done",
            hint="give windows of the manifest another `split` than 'test'",
        )
    return stack(found)


def losses_on(head: FittedHead, target: Target) -> Losses | None:
    """Log loss on all rows whose label is a class of the head; None if there is no such row."""
    known = np.array([label in target.classes for label in target.labels], dtype=bool)
    return held_out_losses(head, target, known) if known.any() else None
