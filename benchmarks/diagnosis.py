"""``python -m benchmarks diagnosis``: what a diagnosis costs by the size of the job.

Every size runs in fresh processes on one core: one for the stages in process, one for the service over
loopback. Nothing is asserted; the ratio to the floor is what to watch, because it survives a busy machine.
`--growth FILE` measures instead how the time grows with ranks, steps and metrics, and draws it into the file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks import cold_start, growth
from benchmarks.measure import machine, pin_to_one_core
from benchmarks.receiver import ROOT
from benchmarks.report import render
from benchmarks.windows import METRICS, Shape, make_window

SIZES = (8, 64, 1024, 10240)
#: Beyond this many ranks JSON is not what one sends.
MAX_JSON = 1024


def main(arguments: list[str]) -> int:
    """Measure, print tables, and write the figures to a file with `--json`."""
    given = _options(arguments)
    load = os.getloadavg()[0]
    core = pin_to_one_core()
    found: dict[str, Any] = {
        "core": core,
        "load_average": load,
        "machine": machine(),
        "shape": asdict(_shape(0, given)),
        "sizes": [],
    }
    # Tables keep their width in a log file, too.
    console = Console(width=None if sys.stdout.isatty() else 180)
    if given.growth:
        _growth(given, console)
        return 0
    for ranks in given.ranks:
        found["sizes"] += _size(_shape(ranks, given), given)
    if given.cold_start:
        _progress("cold start")
        found["cold_start"] = cold_start.measured(bundle=given.bundle)
    render(found, console)
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks diagnosis", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--metrics", type=int, default=20, help=f"per rank, at most {len(METRICS)}")
    parser.add_argument(
        "--samples",
        type=int,
        default=10,
        help="per metric and rank; 10 are a 15 s scrape of 100 steps of 1.5 s",
    )
    parser.add_argument("--stages", type=int, default=1, help="pipeline stages of the job")
    parser.add_argument("--seconds", type=float, default=5.0, help="per measurement, at least --least runs")
    parser.add_argument("--least", type=int, default=5)
    parser.add_argument("--bundle", type=Path, help="model bundle; the shipped one if absent")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here, too")
    parser.add_argument("--growth", type=Path, metavar="FILE", help="draw the growth, as .png or .svg")
    parser.add_argument(
        "--largest", type=int, nargs=3, default=[4096, 1600, 20], help="ranks, steps and metrics of it"
    )
    parser.add_argument("--http", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--cold-start", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args(arguments)


def _shape(ranks: int, given: argparse.Namespace) -> Shape:
    return Shape(ranks, given.steps, given.metrics, given.samples, given.stages)


def _size(shape: Shape, given: argparse.Namespace) -> list[dict[str, Any]]:
    """One size in every encoding that suits it."""
    _progress(f"{shape.ranks:,} ranks: making the window")
    window = make_window(shape)
    bodies = {"JSON": window.to_json} if shape.ranks <= MAX_JSON else {}
    found = []
    for encoding, encode in (bodies | {"Arrow": window.to_arrow}).items():
        with TemporaryDirectory() as folder:
            body = Path(folder) / "body"
            body.write_bytes(encode())
            _progress(f"{shape.ranks:,} ranks as {encoding}: in process")
            result = {"ranks": shape.ranks, "encoding": encoding} | _child("benchmarks.stages", body, given)
            if given.http:
                _progress(f"{shape.ranks:,} ranks as {encoding}: over HTTP")
                result["http"] = _child("benchmarks.over_http", body, given)
            found.append(result)
    return found


def _growth(given: argparse.Namespace, console: Console) -> None:
    def seconds_of(shape: Shape) -> float:
        _progress(f"{shape.ranks:,} ranks, {shape.steps:,} steps, {shape.metrics} metrics")
        with TemporaryDirectory() as folder:
            body = Path(folder) / "body"
            body.write_bytes(make_window(shape).to_arrow())
            return float(_child("benchmarks.stages", body, given)["stages"]["total"]["least"])

    found = growth.measured(seconds_of, dict(zip(growth.SIZES, given.largest, strict=True)))
    growth.render(found, console)
    console.print(machine(), style="dim", highlight=False)
    growth.draw(found, given.growth)
    if given.json:
        given.json.write_text(json.dumps([asdict(each) for each in found], indent=2) + "\n")


def _child(module: str, body: Path, given: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", module, str(body)]
    command += ["--seconds", str(given.seconds), "--least", str(given.least)]
    if given.bundle:
        command += ["--bundle", str(given.bundle.resolve())]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _progress(what: str) -> None:
    sys.stderr.write(f"benchmark: {what} ...\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
