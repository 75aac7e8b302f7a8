"""Pickles of plain values: without code, and with a limit on the memory that they take.

A few bytes of a pickle can ask for gigabytes. So a process of its own, with a limit on its memory, reads each
pickle first.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

#: Memory of the process that reads pickles first. A dump of 5 MB takes about 30 MB.
MAX_MEMORY_BYTES = 640 << 20


class PlainUnpickler(pickle.Unpickler):
    """Reads plain values only: a pickle that names a class or a function is refused."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a dump holds plain values only")


def too_large(paths: Sequence[Path]) -> set[Path]:
    """The pickles whose values take more than `MAX_MEMORY_BYTES`; damaged ones are not among them.

    Raises
    ------
    OSError
        If the process that reads them cannot be started, or is killed.
    """
    if not paths:
        return set()
    # Without packages and variables of the environment, Python starts in about 20 ms.
    done = subprocess.run(  # noqa: S603 (this file, no shell)
        [sys.executable, "-I", "-S", __file__],
        input=b"\0".join(os.fsencode(path.absolute()) for path in paths),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise OSError("the process that checks its memory has failed")
    return {paths[int(number)] for number in done.stdout.split()}


def _main() -> None:
    """Write the numbers of the files, named on standard input, whose values do not fit."""
    # A lower limit of the system, or one that it does not know, stays as it is.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    for number, path in enumerate(sys.stdin.buffer.read().split(b"\0")):
        try:
            with open(path, "rb") as file:  # noqa: PTH123 (its name is bytes)
                PlainUnpickler(file).load()
        except MemoryError:
            print(number)
        except Exception:  # noqa: S112 (the next reader names the error)
            continue


if __name__ == "__main__":
    _main()
