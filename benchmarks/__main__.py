"""``python -m benchmarks [NAME] [OPTIONS]``: one benchmark by name, or all quick ones.

A benchmark is a module of this package that runs as a script, with one line in `BENCHMARKS`. Each runs in a
process of its own, without the memory, threads and processor affinity of the others.
"""

from __future__ import annotations

import subprocess
import sys

#: Module of each benchmark, and those that take minutes, which run by name only.
BENCHMARKS = {
    "act": "act",
    "answers": "answers",
    "antdt": "antdt",
    "core": "core",
    "diagnosis": "diagnosis",
    "killed-ranks": "killed_ranks",
    "memory": "memory",
    "online": "online",
    "online-testbeds": "online_testbeds",
    "push": "push",
    "recovery": "recovery",
    "retold": "retold",
    "scale": "scale",
    "soak": "soak",
    "streams": "streams",
    "star": "star",
    "star-selector": "star_selector",
    "stragglar": "stragglar",
    "tabular": "tabular_ranking",
}
LONG = BENCHMARKS.keys() - {"diagnosis", "tabular"}


def main(arguments: list[str]) -> int:
    """Run the named benchmark with the remaining arguments, or every quick one."""
    if not arguments:
        for name in sorted(LONG):
            sys.stderr.write(f"not run: python -m benchmarks {name}\n")
        return max(_run(name, []) for name in BENCHMARKS if name not in LONG)
    name, *rest = arguments
    if name not in BENCHMARKS:
        sys.stderr.write(f"usage: python -m benchmarks [{'|'.join(BENCHMARKS)}] [OPTIONS]\n")
        return 0 if name in {"-h", "--help"} else 2
    return _run(name, rest)


def _run(name: str, arguments: list[str]) -> int:
    command = [sys.executable, "-m", f"benchmarks.{BENCHMARKS[name]}", *arguments]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
