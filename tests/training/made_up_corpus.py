"""A corpus of random features: what windows look like does not matter, only how many there are of what."""

from __future__ import annotations

from typing import Any

import numpy as np

from rca.features import RANK_FEATURES, WINDOW_FEATURES
from rca.lab.training.corpus import Corpus
from rca.window.causes import SLOW_CAUSES, STOP_CAUSES

MODES = ("healthy", "fail_slow", "fail_stop")
PARTS = ("train", "calibration", "validation", "test")


def made_up_corpus(n_windows: int, seed: int = 0, **changes: Any) -> Corpus:
    """Windows of two ranks each, the second one faulty unless the window is healthy."""
    rng = np.random.default_rng(seed)
    mode = rng.choice(MODES, n_windows, p=[0.4, 0.5, 0.1])
    slow, stop = rng.choice(SLOW_CAUSES, n_windows), rng.choice(STOP_CAUSES, n_windows)
    cause = np.where(mode == "fail_slow", slow, np.where(mode == "fail_stop", stop, ""))
    faulty = np.column_stack([np.zeros(n_windows, dtype=bool), mode != "healthy"]).ravel()
    corpus = {
        "window": rng.normal(size=(n_windows, len(WINDOW_FEATURES))),
        "rank": rng.normal(size=(2 * n_windows, len(RANK_FEATURES))),
        "owner": np.repeat(np.arange(n_windows), 2),
        "faulty": faulty,
        "rank_cause": tuple(np.where(faulty, np.repeat(cause, 2), "").tolist()),
        "mode": tuple(mode.tolist()),
        "cause": tuple(cause.tolist()),
        "scope": tuple(np.where(mode == "healthy", "", "some").tolist()),
        "group": tuple(f"simulation-{number}" for number in range(n_windows)),
        "part": tuple(rng.choice(PARTS, n_windows, p=[0.5, 0.1, 0.3, 0.1]).tolist()),
        "real": (False,) * n_windows,
        "unfelt": (False,) * n_windows,
        "weight": np.ones(n_windows),
    }
    return Corpus(**(corpus | changes))
