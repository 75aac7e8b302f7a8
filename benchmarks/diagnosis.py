"""``python -m benchmarks diagnosis``: what a diagnosis costs by the size of the job.

Every size runs in fresh processes on one core: one for the stages in process, one for the service over
loopback. The stages are the functions of the pipeline itself, with a clock around them. Nothing is asserted:
machines differ. Compare two versions in turns, by their fastest runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import orjson

import rca
from benchmarks.measure import MIB, child_processes, machine, peak_memory, print_table, repeated, summary
from benchmarks.service import ServiceConnection, started_service
from benchmarks.windows import METRICS, WindowSize, make_window
from rca.classify.classifier import Classifier
from rca.diagnosis import pipeline
from rca.diagnosis.bundle import baseline
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.window import window as window_module
from rca.window.encodings import arrow

#: Beyond this many ranks JSON is not what one sends.
MAX_JSON = 1024
#: (stage, where its function is looked up, name). What is left of a diagnosis is assembling the answer.
CLOCKED: tuple[tuple[str, Any, str], ...] = (
    ("validate", window_module, "validated"),
    ("features", pipeline, "extract"),
    ("classify", Classifier, "classify"),
    ("causal", pipeline, "price"),
)
STAGES = ("parse", "validate", "features", "classify", "causal", "render", "total")


def main(arguments: list[str]) -> int:
    """Measure, print tables, and write the figures to a file with `--json`."""
    given = _options(arguments)
    if given.part:
        json.dump((in_process if given.part == "stages" else over_http)(given), sys.stdout)
        return 0
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if given.bundle:
        os.environ["RCA_BUNDLE"] = str(given.bundle.resolve())
    sizes = [
        measured
        for ranks in given.ranks
        for measured in _size(WindowSize(ranks, given.steps, given.metrics, given.samples), given)
    ]
    columns = ("ranks, encoding", "body MiB", "p50 ms", "p99 ms", "least ms", "memory MiB")
    http = ("HTTP p50 ms", "HTTP p99 ms", "service MiB")
    print_table("Diagnosis in process and over HTTP", (*columns, *http), map(_row, sizes))
    rows = [
        (_name(each), *(f"{1e3 * each['stages'][name]['least']:.2f}" for name in STAGES)) for each in sizes
    ]
    print_table("Stages in process, fastest run, ms", ("ranks, encoding", *STAGES), rows)
    for each in sizes:
        print(f"{_name(each)}: {each['answer']}")
    print(f"Client and service share one core. {machine()}")
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "sizes": sizes}, indent=2) + "\n")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks diagnosis", description=__doc__)
    option = parser.add_argument
    option("--ranks", type=int, nargs="+", default=[8, 64, 1024, 10240])
    option("--steps", type=int, default=100)
    option("--metrics", type=int, default=len(METRICS), help="per rank")
    option("--samples", type=int, default=10, help="per metric and rank")
    option("--seconds", type=float, default=5.0, help="per measurement, at least --least runs")
    option("--least", type=int, default=5)
    option("--bundle", type=Path, help="model bundle; the shipped one if absent")
    option("--json", type=Path, metavar="FILE", help="write all figures here, too")
    option("--http", action=argparse.BooleanOptionalAction, default=True)
    # A process of its own measures one body.
    option("--part", choices=["stages", "http"], help=argparse.SUPPRESS)
    option("--body", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _size(size: WindowSize, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One size in every encoding that suits it."""
    window = make_window(size)
    bodies = {"JSON": window.to_json} if size.ranks <= MAX_JSON else {}
    for encoding, encode in (bodies | {"Arrow": window.to_arrow}).items():
        with TemporaryDirectory() as folder:
            body = Path(folder) / "body"
            body.write_bytes(encode())
            found = {"ranks": size.ranks, "encoding": encoding, "body_bytes": body.stat().st_size}
            for part in ("stages", "http") if given.http else ("stages",):
                sys.stderr.write(f"diagnosis: {size.ranks:,} ranks as {encoding}: {part} ...\n")
                command = [sys.executable, "-m", "benchmarks.diagnosis", "--part", part, "--body", str(body)]
                command += ["--seconds", str(given.seconds), "--least", str(given.least)]
                command += ["--bundle", str(given.bundle)] if given.bundle else []
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
                found |= json.loads(done.stdout)
            yield found


def in_process(given: argparse.Namespace) -> dict[str, Any]:
    """Memory of the first diagnosis, then the time of warm ones, by stage."""
    bundle = rca.Bundle.load(given.bundle) if given.bundle else baseline()
    body, spent = given.body.read_bytes(), dict[str, float]()

    def run() -> dict[str, float]:
        spent.clear()
        _diagnosed(body, bundle, spent)
        return dict(spent)

    with _clocked(spent):
        answer = orjson.loads(_diagnosed(body, bundle, spent))
        peak = peak_memory()
        # As every process of the service does once it is warm.
        gc.collect()
        gc.freeze()
        runs = repeated(run, given.seconds, given.least)
    causes = [f"{cause['cause']} on rank {cause['ranks'][0]}" for cause in answer["causes"]]
    return {
        "answer": ", ".join([answer["failure_mode"], *causes]),
        "stages": {stage: summary([each[stage] for each in runs]) for stage in STAGES},
        "memory_peak_bytes": peak,
    }


@contextmanager
def _clocked(spent: dict[str, float]) -> Iterator[None]:
    """The pipeline with clocks around its stages, which add to `spent`."""

    def around(stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def clocked(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                spent[stage] = spent.get(stage, 0.0) + time.perf_counter() - begin

        return clocked

    with ExitStack() as stack:
        for stage, owner, name in CLOCKED:
            stack.enter_context(patch.object(owner, name, around(stage, getattr(owner, name))))
        made = staticmethod(around("causal", PhaseReplay.from_arrays))
        stack.enter_context(patch.object(PhaseReplay, "from_arrays", made))
        yield


def _diagnosed(body: bytes, bundle: rca.Bundle, spent: dict[str, float]) -> bytes:
    """Bytes in, bytes out, as the service does it; books every stage."""
    begin = time.perf_counter()
    window = rca.read_window(body)
    decoded = time.perf_counter()
    answer = orjson.dumps(rca.diagnose(window, bundle=bundle).to_dict())
    end = time.perf_counter()
    spent["parse"] = decoded - begin - spent["validate"]
    spent["render"] = end - decoded - sum(spent[stage] for stage in ("features", "classify", "causal"))
    spent["total"] = end - begin
    return answer


def over_http(given: argparse.Namespace) -> dict[str, Any]:
    """Seconds per request of one keep-alive connection, and the peak memory of the service."""
    body = given.body.read_bytes()
    kind = "application/json" if body.startswith(b"{") else arrow.CONTENT_TYPE
    with started_service() as (url, server):
        connection = ServiceConnection(url)

        def post() -> float:
            begin = time.perf_counter()
            status, answer = connection.ask("POST", "/v1/diagnoses", body, Content_Type=kind)
            if status != 200:
                raise RuntimeError(f"HTTP {status}: {answer}")
            return time.perf_counter() - begin

        post()
        service = summary(repeated(post, given.seconds, given.least))
        # The API process and those that compute: each one's own peak, so what is shared counts twice.
        peak = sum(peak_memory(each) for each in (server, *child_processes(server)))
    return {"http": service | {"memory_peak_bytes": peak}}


def _name(size: dict[str, Any]) -> str:
    return f"{size['ranks']:,} {size['encoding']}"


def _row(size: dict[str, Any]) -> list[str]:
    total, http = size["stages"]["total"], size.get("http")
    row = [_name(size), f"{size['body_bytes'] / MIB:.1f}"]
    row += [f"{1e3 * total[name]:.1f}" for name in ("p50", "p99", "least")]
    row += [f"{size['memory_peak_bytes'] / MIB:.0f}"]
    if http:
        row += [f"{1e3 * http[name]:.1f}" for name in ("p50", "p99")]
        row += [f"{http['memory_peak_bytes'] / MIB:.0f}"]
    return row


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
