"""AntDT on a real job: throughput with a slow rank, the same loss, and no sample lost when a rank is killed.

Four ranks train over gloo; the shards come from the service, over HTTP, kept in SQLite. A pause for each
sample stands for the device. Static data parallelism and AntDT run in turn, in the same processes.

In a second job a rank is killed with SIGKILL. All ranks go back to the last checkpoint, and the samples of
each update of the model are counted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import torch

from benchmarks.antdt_job import ShardedJob, rank_main
from benchmarks.measure import print_table
from benchmarks.small_job import free_port, interval, run_ranks

KILLED_SEED = 1000
_START_SECONDS, _JOB_SECONDS = 120.0, 1200.0


@contextmanager
def shard_service(folder: Path) -> Iterator[str]:
    """The service of the shards, without its processes for diagnoses, which would take the ranks' cores."""
    port = free_port()
    service = multiprocessing.get_context("fork").Process(target=serve, args=(folder, port), daemon=True)
    service.start()
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + _START_SECONDS
    try:
        while True:
            try:
                with urlopen(f"{url}/v1/data-shards", timeout=5):
                    break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
        yield url
    finally:
        service.terminate()
        service.join()


def serve(folder: Path, port: int) -> None:
    import uvicorn

    from rca_api.shell.app import create_app
    from rca_api.shell.settings.settings import Settings

    app = create_app(Settings(data_dir=folder, auth="off", log_level="error"))
    app.state.parts.database.upgrade()
    uvicorn.run(app, port=port, lifespan="off", log_config=None)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both jobs; all figures."""
    with tempfile.TemporaryDirectory() as name, shard_service(Path(name)) as url:
        job = ShardedJob(
            Path(name),
            url,
            free_port(),
            tuple(range(options.seeds)),
            n_samples=options.samples,
            n_epochs=options.epochs,
            slow_factor=options.factor,
            sample_seconds=options.sample_seconds,
        )
        codes = run_ranks(rank_main, job, job.n_ranks, _JOB_SECONDS)
        if any(codes):
            raise SystemExit(f"the job has failed: exit codes {codes}")
        written = json.loads((job.folder / "runs-0-0.json").read_text())
        unbiased = {"gradient_error": written["gradient_error"]}
        return compared(written["runs"], job) | unbiased | killed(job)


def compared(runs: list[dict[str, Any]], job: ShardedJob) -> dict[str, Any]:
    """Static data parallelism and AntDT: throughput, saved time and loss over seeds."""
    rows = []
    for seed in job.seeds:
        static, antdt = (
            next(run for run in runs if (run["seed"], run["mode"]) == (seed, mode))
            for mode in ("static", "antdt")
        )
        before, after = np.diff(static["ends"]), np.diff(antdt["ends"])
        full = after[first_step_after(antdt["sizes"]) : job.n_steps]
        # A short job may end before the controller acts.
        changes = antdt["predicted"] or [(0.0, 0.0)]
        rows.append(
            {
                "static_samples_per_second": static["samples"] / before.sum(),
                "antdt_samples_per_second": antdt["samples"] / after.sum(),
                "predicted_saving_seconds": changes[0][0] - changes[-1][1],
                "measured_saving_seconds": float(np.median(before) - np.median(full)),
                # Equal batches until the workers are measured, and steps that not all have samples for.
                "lost_at_start_and_end_seconds": float(after.sum() - np.median(full) * job.n_steps),
                "static_loss": static["loss"],
                "antdt_loss": antdt["loss"],
                "loss_difference": antdt["loss"] - static["loss"],
            }
        )
    return {name: interval([row[name] for row in rows]) for name in rows[0]}


def first_step_after(sizes: list[list[int]]) -> int:
    """First step with the last sizes of the job."""
    step = len(sizes) - 1
    while step and sizes[step - 1] == sizes[-1]:
        step -= 1
    return step


def killed(job: ShardedJob) -> dict[str, Any]:
    """Kill a rank, go back to the checkpoint, and count the samples of all updates that the model has."""
    first = replace(
        job,
        port=free_port(),
        seeds=(KILLED_SEED,),
        checkpoint_every=5 if job.n_steps > 32 else 3,
        kill_step=job.n_steps // 2 + 1,
    )
    codes = run_ranks(rank_main, first, job.n_ranks, _JOB_SECONDS)
    assert codes[2] == -signal.SIGKILL, codes
    step = int(torch.load(job.folder / "checkpoint.pt")["step"])
    restarted = replace(first, port=free_port(), life=1, kill_step=0)
    again = run_ranks(rank_main, restarted, job.n_ranks, _JOB_SECONDS)
    if any(again):
        raise SystemExit(f"the job has failed after the restart: exit codes {again}")
    counts: Counter[int] = Counter()
    dropped = 0
    for path in job.folder.glob(f"trained-{KILLED_SEED}-*.jsonl"):
        is_first = path.stem.endswith("-0")
        for line in path.read_text().splitlines():
            at, samples = json.loads(line)
            if is_first and at >= step:
                dropped += len(samples)
            else:
                counts.update(samples)
    with urlopen(f"{job.url}/v1/data-shards/seed-{KILLED_SEED}-True") as answer:
        progress = json.loads(answer.read())
    times = [counts[sample] for sample in range(job.n_samples)]
    return {
        "killed_step": first.kill_step,
        "checkpoint_step": step,
        "rolled_back_samples": dropped,
        "lost": sum(job.n_epochs - each for each in times if each < job.n_epochs),
        "repeated": sum(each - job.n_epochs for each in times if each > job.n_epochs),
        "booked_samples": progress["samples"],
        "finished": progress["finished"],
        "expected_samples": job.n_samples * job.n_epochs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks antdt", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each mode")
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--factor", type=float, default=4.0, help="how slow the slow rank is")
    parser.add_argument("--sample-seconds", type=float, default=0.005, help="time of a device for a sample")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    found = measure(options)
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    rows = [
        (name.replace("_", " "), f"{each['mean']:.4g}", f"{each['lower']:.4g} to {each['upper']:.4g}")
        for name, each in found.items()
        if isinstance(each, dict)
    ]
    title = f"4 ranks, one {options.factor:g} times as slow; {options.seeds} seeds"
    print_table(title, ("figure", "mean", "95 % interval"), rows)
    print(f"update of unequal batches against one batch: {found['gradient_error']:.1e} of it apart")
    print(
        f"rank killed at step {found['killed_step']}, back to step {found['checkpoint_step']}: "
        f"{found['rolled_back_samples']} samples of updates that were rolled back are trained again. "
        f"Of {found['expected_samples']:,} samples {found['lost']} lost, {found['repeated']} repeated; "
        f"booked {found['booked_samples']:,}."
    )


if __name__ == "__main__":
    main()
