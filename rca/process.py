"""Settings of the process of the `rca` program; callers of `rca.cli.run` keep theirs."""

from __future__ import annotations

import gc
import io
import os
import sys
from importlib.abc import MetaPathFinder
from typing import Any

#: New objects after which a short process looks for garbage; Python's own number is 700.
OBJECTS_PER_COLLECTION = 100_000
owned = False


def take_over() -> None:
    """Mark this process as owned by the command line, and let its streams replace unknown characters."""
    global owned
    owned = True
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without a character shows a replacement instead of a UnicodeEncodeError.
            stream.reconfigure(errors="replace")


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        del path, target
        if name == "pandas":
            raise ModuleNotFoundError("kept out of this process", name=name)


def start_quickly() -> None:
    """Save start-up time in a short process of the command line: no pandas, few garbage collections.

    Imports and one diagnosis leave little garbage, and looking for it takes time.
    """
    if owned:
        gc.set_threshold(OBJECTS_PER_COLLECTION)
    forgo_pandas()


def forgo_pandas() -> None:
    """Let pyarrow find no pandas, which saves a second of start-up.

    pyarrow imports pandas with the first array, to recognise pandas objects. Commands without pandas objects
    do not need that. pyarrow looks once per process, so this is for processes of the command line only.
    """
    if not owned or "pandas" in sys.modules:
        return
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.array([0.0]).to_numpy()
    finally:
        sys.meta_path.remove(finder)
