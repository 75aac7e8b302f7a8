"""``python -m benchmarks [NAME] [OPTIONS]``: one benchmark by name, or all of them.

A benchmark is a module of this package with ``main(arguments) -> exit status``; it is listed in
`BENCHMARKS` and imported only when it runs, so that one does not pay for another's imports.
"""

from __future__ import annotations

import sys
from importlib import import_module

BENCHMARKS = {
    "diagnosis": "benchmarks.diagnosis",
    "whatif": "benchmarks.whatif",
}


def main(arguments: list[str]) -> int:
    """Run the named benchmark with the remaining arguments, or every benchmark with its defaults."""
    if not arguments:
        return max(_run(name, []) for name in BENCHMARKS)
    name, *rest = arguments
    if name not in BENCHMARKS:
        sys.stderr.write(f"usage: python -m benchmarks [{'|'.join(BENCHMARKS)}] [OPTIONS]\n")
        return 0 if name in {"-h", "--help"} else 2
    return _run(name, rest)


def _run(name: str, arguments: list[str]) -> int:
    status: int = import_module(BENCHMARKS[name]).main(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
