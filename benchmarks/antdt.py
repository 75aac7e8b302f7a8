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
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

if TYPE_CHECKING:
    from benchmarks.antdt_job import Job

FORK = multiprocessing.get_context("fork")
KILLED_SEED = 1000
_START_SECONDS, _JOB_SECONDS = 120.0, 1200.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def serve(folder: Path, port: int) -> None:
    """The service of the shards; its processes for diagnoses are not needed and not started."""
    import uvicorn

    from rca_api.shell.app import create_app
    from rca_api.shell.settings.settings import Settings

    app = create_app(Settings(data_dir=folder, auth="off", log_level="error"))
    app.state.parts.database.upgrade()
    uvicorn.run(app, port=port, lifespan="off", log_config=None)


def await_service(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/v1/data-shards", timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def run_ranks(job: Job) -> list[int]:
    """Start all ranks and wait for them; gives their exit codes. When one is killed, the others end."""
    from benchmarks.antdt_job import rank_main

    ranks = [FORK.Process(target=rank_main, args=(job, rank)) for rank in range(job.n_ranks)]
    for each in ranks:
        each.start()
    deadline = time.monotonic() + _JOB_SECONDS
    while any(each.is_alive() for each in ranks) and time.monotonic() < deadline:
        if any(each.exitcode not in (0, None) for each in ranks):
            # The peers of a dead rank may wait in the all-reduce.
            for each in ranks:
                each.join(1.0)
                each.kill()
        time.sleep(0.02)
    for each in ranks:
        each.kill()
        each.join()
    return [each.exitcode or 0 for each in ranks]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both jobs; all figures."""
    from benchmarks.antdt_job import Job

    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        service = FORK.Process(target=serve, args=(folder, port), daemon=True)
        service.start()
        try:
            await_service(port)
            job = Job(
                folder,
                f"http://127.0.0.1:{port}",
                free_port(),
                tuple(range(options.seeds)),
                n_samples=options.samples,
                n_epochs=options.epochs,
                slow_factor=options.factor,
                slow_by=options.slow,
                sample_seconds=options.sample_seconds,
            )
            codes = run_ranks(job)
            if any(codes):
                raise SystemExit(f"the job has failed: exit codes {codes}")
            written = json.loads((folder / "runs-0-0.json").read_text())
            unbiased = {"gradient_error": written["gradient_error"]}
            return compared(written["runs"], job) | unbiased | killed(job)
        finally:
            service.terminate()
            service.join()


def compared(runs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
    """Static data parallelism and AntDT: throughput, saved time and loss, seed by seed."""
    found: dict[str, list[float]] = {name: [] for name in FIGURES}
    for seed in job.seeds:
        static = next(run for run in runs if run["seed"] == seed and run["mode"] == "static")
        antdt = next(run for run in runs if run["seed"] == seed and run["mode"] == "antdt")
        changed = first_step_after(antdt["sizes"])
        before, after = np.diff(static["ends"]), np.diff(antdt["ends"])
        full = after[changed : job.n_steps]
        found["static_samples_per_second"].append(static["samples"] / before.sum())
        found["antdt_samples_per_second"].append(antdt["samples"] / after.sum())
        found["adjusted_samples_per_second"].append(job.batch / full.mean())
        found["speedup"].append(
            found["antdt_samples_per_second"][-1] / found["static_samples_per_second"][-1]
        )
        first, last = antdt["predicted"][0], antdt["predicted"][-1]
        found["predicted_saving_seconds"].append(first[0] - last[1])
        found["measured_saving_seconds"].append(float(np.median(before) - np.median(full)))
        found["static_loss"].append(static["loss"])
        found["antdt_loss"].append(antdt["loss"])
        found["loss_difference"].append(antdt["loss"] - static["loss"])
    noise = float(np.std(found["static_loss"], ddof=1))
    return {name: interval(values) for name, values in found.items()} | {"loss_noise": noise}


FIGURES = (
    "static_samples_per_second",
    "antdt_samples_per_second",
    "adjusted_samples_per_second",
    "speedup",
    "predicted_saving_seconds",
    "measured_saving_seconds",
    "static_loss",
    "antdt_loss",
    "loss_difference",
)


def first_step_after(sizes: list[list[int]]) -> int:
    """First step with the last sizes of the job."""
    step = len(sizes) - 1
    while step and sizes[step - 1] == sizes[-1]:
        step -= 1
    return step


def interval(values: list[float]) -> dict[str, float]:
    """Mean and its 95 % interval over seeds."""
    mean = float(np.mean(values))
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)) if len(values) > 1 else float("nan")
    return {"mean": mean, "lower": mean - half, "upper": mean + half}


def killed(job: Job) -> dict[str, Any]:
    """Kill a rank, go back to the checkpoint, and count the samples of all updates that the model has."""
    first = replace(
        job,
        port=free_port(),
        seeds=(KILLED_SEED,),
        checkpoint_every=5 if job.n_steps > 32 else 3,
        kill_step=job.n_steps // 2 + 1,
    )
    codes = run_ranks(first)
    assert codes[2] == -signal.SIGKILL, codes
    import torch

    step = int(torch.load(job.folder / "checkpoint.pt")["step"])
    again = run_ranks(replace(first, port=free_port(), life=1, kill_step=0))
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
                continue
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


def render(found: dict[str, Any], options: argparse.Namespace) -> None:
    console = Console()
    title = f"4 ranks, one {options.factor:g} times as slow ({options.slow}); {options.seeds} seeds"
    table = Table(title, "mean", "95 % interval", box=None, pad_edge=False)
    for name in FIGURES:
        each = found[name]
        table.add_row(
            name.replace("_", " "), f"{each['mean']:.4g}", f"{each['lower']:.4g} to {each['upper']:.4g}"
        )
    console.print(table)
    console.print(f"noise of the final loss between seeds: {found['loss_noise']:.4g}")
    console.print(f"update of unequal batches against one batch: {found['gradient_error']:.1e} of it apart")
    console.print(
        f"rank killed at step {found['killed_step']}, back to step {found['checkpoint_step']}: "
        f"{found['rolled_back_samples']} samples of updates that were rolled back are trained again. "
        f"Of {found['expected_samples']:,} samples {found['lost']} lost, {found['repeated']} repeated; "
        f"booked {found['booked_samples']:,}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks antdt", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each mode")
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--factor", type=float, default=4.0, help="how slow the slow rank is")
    parser.add_argument("--sample-seconds", type=float, default=0.005, help="time of a device for a sample")
    parser.add_argument("--slow", choices=["sleep", "work"], default="work", help="what slows it")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    found = measure(options)
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    render(found, options)


if __name__ == "__main__":
    main()
