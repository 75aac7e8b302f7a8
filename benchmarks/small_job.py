"""A small training job of real processes, with a device whose time is a pause."""

from __future__ import annotations

import time

import numpy as np
import torch

N_FEATURES, N_CLASSES, N_HIDDEN = 20, 4, 64


def data_of(n_samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of classes that overlap, so that the loss has a floor above zero."""
    rng = np.random.default_rng(seed)
    y = rng.integers(N_CLASSES, size=n_samples)
    centres = rng.normal(size=(N_CLASSES, N_FEATURES))
    x = centres[y] + rng.normal(scale=1.5, size=(n_samples, N_FEATURES))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def network(seed: int) -> torch.nn.Module:
    """Two layers; the same for the same seed."""
    torch.manual_seed(seed)
    layers = torch.nn.Linear(N_FEATURES, N_HIDDEN), torch.nn.ReLU(), torch.nn.Linear(N_HIDDEN, N_CLASSES)
    return torch.nn.Sequential(*layers)


def spend(seconds: float, factor: float, slow_by: str) -> None:
    """Spend the time of a device, and `factor` times as much in all.

    What is beyond `seconds` is a pause (``sleep``), or work of this process on a core.
    """
    time.sleep(seconds)
    more = (factor - 1) * seconds
    if more <= 0:
        return
    if slow_by == "sleep":
        time.sleep(more)
        return
    matrix = np.ones((64, 64))
    until = time.thread_time() + more
    while time.thread_time() < until:
        matrix @ matrix
