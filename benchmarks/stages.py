"""Time and memory of a diagnosis, stage by stage, in a new process.

The stages are the functions of the pipeline itself, with a clock around them. `benchmarks.diagnosis` runs
this module, which prints one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json as stdlib_json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
import pyarrow as pa

import rca
from benchmarks.measure import Budget, memory, peak_memory, repeat, summary
from rca.classify.classifier import Classifier
from rca.diagnosis import pipeline
from rca.diagnosis.bundle import baseline
from rca.features import extract
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.window import window as window_module
from rca.window.encodings import multipart

STAGES = ("parse", "validate", "features", "classify", "causal", "render", "total")
#: (stage, where its function is looked up, name). What is left of a diagnosis is assembling the answer.
CLOCKED: tuple[tuple[str, Any, str], ...] = (
    ("validate", window_module, "validated"),
    ("features", pipeline, "extract"),
    ("classify", Classifier, "classify"),
    ("causal", pipeline, "price"),
)


class Clock:
    """Seconds per stage of the run in progress."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def around(self, stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, with its time booked on `stage`."""

        def clocked(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                self.spent[stage] = self.spent.get(stage, 0.0) + time.perf_counter() - begin

        return clocked

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The pipeline with clocks around its stages."""
        with ExitStack() as stack:
            for stage, owner, name in CLOCKED:
                stack.enter_context(patch.object(owner, name, self.around(stage, getattr(owner, name))))
            made = staticmethod(self.around("causal", PhaseReplay.from_arrays))
            stack.enter_context(patch.object(PhaseReplay, "from_arrays", made))
            yield


def diagnosed(body: bytes, bundle: rca.Bundle, clock: Clock) -> bytes:
    """Bytes in, bytes out, as the service does it; books every stage on the clock."""
    begin = time.perf_counter()
    window = rca.read_window(body)
    decoded = time.perf_counter()
    diagnosis = rca.diagnose(window, bundle=bundle)
    answer = orjson.dumps(diagnosis.to_dict())
    end = time.perf_counter()
    spent = clock.spent
    spent["parse"] = decoded - begin - spent["validate"]
    spent["render"] = end - decoded - sum(spent[stage] for stage in ("features", "classify", "causal"))
    spent["total"] = end - begin
    return answer


def measured(body: bytes, bundle: rca.Bundle, budget: Budget) -> dict[str, Any]:
    """Memory of the first diagnosis, then the time of warm ones, then the floors."""
    before = memory()
    clock = Clock()
    runs: list[dict[str, float]] = []
    with clock.installed():
        answer = orjson.loads(diagnosed(body, bundle, clock))
        peak = peak_memory()
        # As every process of the service does once it is warm; a script that imports half of Python
        # in addition to `rca` and does not, waits for full collections while its JSON is parsed.
        gc.collect()
        gc.freeze()
        started = time.perf_counter()
        while not budget.spent(started, len(runs)):
            clock.spent = {}
            diagnosed(body, bundle, clock)
            runs.append(clock.spent)
    stages = {stage: summary([run[stage] for run in runs]) for stage in STAGES}
    floors = {stage: summary(repeat(run, budget)) for stage, run in _floors(body, bundle).items()}
    floors["total"] = {"p50": sum(floor["p50"] for floor in floors.values())}
    return {
        "body_bytes": len(body),
        "answer": _digest(answer),
        "stages": stages,
        "floors": floors,
        "memory_before_bytes": before,
        "memory_peak_bytes": peak,
    }


def _floors(body: bytes, bundle: rca.Bundle) -> dict[str, Callable[[], Any]]:
    """The least each stage could do: the parser, one pass over the numbers, two models, one encoding."""
    window = rca.read_window(body)
    features = extract(window)
    steps, metrics = _numbers(window.steps), _numbers(window.metrics)
    own = features.work.own
    mode, straggler = (bundle.classifier.heads[name] for name in ("mode", "straggler"))
    rows = np.ascontiguousarray(features.rank[:, straggler.columns])
    row = np.ascontiguousarray(features.window[None, mode.columns])
    answer = rca.diagnose(window, bundle=bundle).to_dict()

    def one_pass() -> None:
        for column in (*steps, *metrics):
            column.sum()

    return {
        "parse": _parser(body),
        "validate": one_pass,
        "features": one_pass,
        "classify": lambda: (mode.booster.raw(row), straggler.booster.raw(rows)),
        "causal": lambda: own.max(axis=0),
        "render": lambda: orjson.dumps(answer),
    }


def _parser(body: bytes) -> Callable[[], Any]:
    if body.startswith(b"{"):
        return lambda: orjson.loads(body)
    parts = dict(multipart.split_parts(body, multipart.boundary_of(body, None)))
    job = parts.pop("job")
    streams = [pa.py_buffer(content) for content in parts.values()]

    def read() -> None:
        orjson.loads(job)
        for stream in streams:
            pa.ipc.open_stream(stream).read_all()

    return read


def _numbers(table: pa.Table) -> list[Any]:
    return [
        column.combine_chunks().to_numpy(zero_copy_only=False)
        for column in table.columns
        if not pa.types.is_dictionary(column.type)
    ]


def _digest(answer: dict[str, Any]) -> str:
    """What was diagnosed, in one line: a fast answer to another question is no good."""
    causes = [f"{cause['cause']} on rank {cause['ranks'][0]}" for cause in answer["causes"]]
    return ", ".join([answer["failure_mode"], *causes])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("body", type=Path)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--least", type=int, default=5)
    given = parser.parse_args()
    bundle = rca.Bundle.load(given.bundle) if given.bundle else baseline()
    found = measured(given.body.read_bytes(), bundle, Budget(given.seconds, given.least))
    stdlib_json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
