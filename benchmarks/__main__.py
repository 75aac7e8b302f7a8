"""``python -m benchmarks [NAME] [OPTIONS]``: one benchmark by name, or all quick ones.

A benchmark is a module of this package that runs as a script, with one line in `BENCHMARKS`. Each runs in a
process of its own, without the memory, threads and processor affinity of the others.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Benchmark:
    """A module to run, and whether it takes minutes; long ones run by name only."""

    module: str
    long: bool = False


BENCHMARKS = {
    "answers": Benchmark("benchmarks.answers", long=True),
    "antdt": Benchmark("benchmarks.antdt", long=True),
    "collect": Benchmark("benchmarks.collecting"),
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


def main(arguments: list[str]) -> int:
    """Run the named benchmark with the remaining arguments, or every quick one."""
    if not arguments:
        for name, benchmark in BENCHMARKS.items():
            if benchmark.long:
                sys.stderr.write(f"not run: python -m benchmarks {name}\n")
        chosen = [each for each in BENCHMARKS.values() if not each.long]
        return max(_run(benchmark, []) for benchmark in chosen)
    name, *rest = arguments
    if name not in BENCHMARKS:
        sys.stderr.write(f"usage: python -m benchmarks [{'|'.join(BENCHMARKS)}] [OPTIONS]\n")
        return 0 if name in {"-h", "--help"} else 2
    return _run(BENCHMARKS[name], rest)


def _run(benchmark: Benchmark, arguments: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", benchmark.module, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
