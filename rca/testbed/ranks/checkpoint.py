"""Checkpoints: a file really written and synced, at the pace the knob asks for."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rca.testbed.ranks.shared import Knob, Shared

_CHUNK = bytes(256 * 1024)
_CHUNKS = 16


class CheckpointWriter:
    """Writes every so many steps, while asked to."""

    def __init__(self, path: Path, shared: Shared) -> None:
        self._path = path
        self._shared = shared

    def after_step(self, step: int) -> float:
        """Write if one is due; seconds it took, 0 if none was."""
        every = int(self._shared.knobs[Knob.CHECKPOINT_EVERY])
        if every == 0 or step % every != every - 1:
            return 0.0
        began = time.monotonic()
        pause = float(self._shared.knobs[Knob.CHECKPOINT_SECONDS]) / _CHUNKS
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for chunk in range(1, _CHUNKS + 1):
                os.write(handle, _CHUNK)
                os.fsync(handle)
                time.sleep(max(0.0, began + chunk * pause - time.monotonic()))
        finally:
            os.close(handle)
        return time.monotonic() - began
