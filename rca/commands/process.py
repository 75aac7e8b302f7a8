"""What only the owner of a process may do to it: the `rca` program, not a caller of `rca.cli.run`."""

from __future__ import annotations

import io
import os
import sys
from importlib.abc import MetaPathFinder
from typing import Any

owned = False


def take_over() -> None:
    """Declare this process to be the command line's own, and make its streams forgiving."""
    global owned
    owned = True
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a sign gets a replacement, not a UnicodeEncodeError.
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


def forgo_pandas() -> None:
    """Let pyarrow conclude that pandas is not installed, which saves a second of start-up.

    pyarrow imports pandas at the first array it builds from or turns into Python data, to recognize
    pandas objects. A command that never touches one need not wait for that. pyarrow looks once per
    process, so this is only for short-lived processes of our own.
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
