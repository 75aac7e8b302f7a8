"""``python -m benchmarks [NAME] [OPTIONS]``: one benchmark by name, or all quick ones.

A benchmark is a module of this package that runs as a script, with one line in `BENCHMARKS`. Each runs in a
process of its own, without the memory, threads and processor affinity of the others.
"""

from __future__ import annotations

import subprocess
import sys

#: Module of each benchmark, and those that take minutes, which run by name only.
BENCHMARKS = {
    "answers": "answers",
    "antdt": "antdt",
    "diagnosis": "diagnosis",
    "killed-ranks": "killed_ranks",
    "memory": "memory",
    "online": "online",
    "recovery": "recovery",
    "retold": "retold",
    "scale": "scale",
    "soak": "soak",
    "streams": "streams",
    "star": "star",
    "star-selector": "star_selector",
    "stragglar": "stragglar",
    "tabular": "tabular_ranking",
    "answers": Benchmark("benchmarks.answers", long=True),
    "antdt": Benchmark("benchmarks.antdt", long=True),
    "collect": Benchmark("benchmarks.collecting"),
    "core": Benchmark("benchmarks.core", long=True),
    "diagnosis": Benchmark("benchmarks.diagnosis"),
    "killed-ranks": Benchmark("benchmarks.killed_ranks", long=True),
    "memory": Benchmark("benchmarks.memory", long=True),
    "online": Benchmark("benchmarks.online", long=True),
    "recovery": Benchmark("benchmarks.recovery", long=True),
    "retold": Benchmark("benchmarks.retold", long=True),
    "scale": Benchmark("benchmarks.scale", long=True),
    "soak": Benchmark("benchmarks.soak", long=True),
    "store": Benchmark("benchmarks.store", long=True),
    "streams": Benchmark("benchmarks.streams", long=True),
    "star": Benchmark("benchmarks.star", long=True),
    "star-selector": Benchmark("benchmarks.star_selector", long=True),
    "stragglar": Benchmark("benchmarks.stragglar", long=True),
    "tabular": Benchmark("benchmarks.tabular_ranking"),
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
