"""STAR's learned selector: trained on simulated jobs, compared on others with the heuristic and the price.

``--write`` stores the model that `rca.runtime.star.selector` ships, as LightGBM text. Everything is
simulated: see `rca.runtime.star.simulation`. The same jobs give the same model.

Time to progress over synchronous training, geometric mean over 200 held-out jobs, 95 % bootstrap intervals:

================  ======================  =========================
choice            time                    learned choice over it
================  ======================  =========================
synchronous       1                       0.569 (0.536 to 0.606)
asynchronous      0.596 (0.559 to 0.636)  0.955 (0.941 to 0.968)
heuristic         0.667 (0.628 to 0.709)  0.853 (0.834 to 0.871)
price             0.617 (0.578 to 0.660)  0.921 (0.904 to 0.938)
learned           0.569 (0.536 to 0.606)  1
best of all       0.563 (0.530 to 0.599)  1.011 (1.007 to 1.015)
================  ======================  =========================

Asynchronous training is the best fixed mode there. Measured jobs are in `benchmarks/star.py`.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from rich.console import Console
from rich.table import Table

from rca.runtime.star import selector
from rca.runtime.star.grouping import of_mode
from rca.runtime.star.modes import heuristic_order
from rca.runtime.star.prediction import usual_seconds
from rca.runtime.star.price import Mode, UpdateProgress
from rca.runtime.star.selector import FEATURES, MAX_WORKERS, candidates, features
from rca.runtime.star.simulation import SimulatedJob, with_server

MODEL = Path(selector.__file__).with_name("selector.txt")
#: Steps that a job has run before the choice.
HISTORY = 16
#: Simulated time, in steps of the slowest worker.
HORIZON = 40
PARAMETERS: dict[str, Any] = {
    "objective": "regression",
    "num_leaves": 12,
    "min_data_in_leaf": 30,
    "learning_rate": 0.1,
    "monotone_constraints": [1, *[0] * (len(FEATURES) - 1)],
    "seed": 0,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbose": -1,
}
ROUNDS = 80
_DRAWS = 2000


@dataclass(frozen=True)
class Case:
    """One job: its modes with their features, and the simulated time of each over synchronous training."""

    modes: tuple[Mode, ...]
    rows: np.ndarray
    times: np.ndarray
    heuristic: int
    priced: int


def drawn(seed: int) -> SimulatedJob:
    """A job with stragglers of one of four kinds, or none."""
    rng = np.random.default_rng([seed, 7])
    n = int(rng.integers(3, MAX_WORKERS + 1))
    usual = float(np.exp(rng.uniform(np.log(0.05), np.log(0.5))))
    seconds = usual * rng.lognormal(0.0, rng.choice([0.01, 0.05, 0.15]), n)
    slow = rng.permutation(n)[: rng.integers(0, max(n // 2, 2))]
    seconds[slow] *= rng.uniform(1.1, 5.0, slow.size if rng.random() < 0.5 else 1)
    pauses = rng.random() < 0.4
    batch = float(2 ** rng.integers(3, 9))
    return SimulatedJob(
        seconds,
        batch,
        noise=batch * n * float(np.exp(rng.uniform(np.log(0.05), np.log(50.0)))),
        variation=float(rng.choice([0.02, 0.1, 0.3])),
        pause_chance=float(rng.uniform(0.01, 0.15)) if pauses else 0.0,
        pause_seconds=usual * float(rng.uniform(0.5, 5.0)) if pauses else 0.0,
        server_seconds=usual * float(np.exp(rng.uniform(np.log(1e-3), np.log(0.1)))),
    )


def case(seed: int) -> Case:
    """Simulate a job in all modes that can be chosen."""
    job = drawn(seed)
    draw = np.random.default_rng([seed, 8])
    sigma = float(np.sqrt(np.log1p(job.variation**2)))
    shape = (job.n_workers, HISTORY)
    steps = job.seconds[:, None] * draw.lognormal(-(sigma**2) / 2, sigma, shape)
    steps += job.pause_seconds * (draw.random(shape) < job.pause_chance)
    progress = UpdateProgress(usual_seconds(steps), job.batch, job.noise)
    modes = candidates(progress)
    horizon = HORIZON * float(job.seconds.max() + job.pause_chance * job.pause_seconds)
    seconds = [
        with_server(job, of_mode(mode), horizon, seed=seed).seconds_per_progress(job) for mode in modes
    ]
    order = heuristic_order(progress)
    heuristic = next(
        number
        for number, mode in enumerate(modes)
        if mode.order == order and mode.kind in ("x-order", "synchronous")
    )
    price = [mode.seconds for mode in modes]
    rows = features(steps, progress, modes, job.server_seconds)
    return Case(modes, rows, np.array(seconds) / seconds[0], heuristic, int(np.argmin(price)))


def fitted(cases: list[Case]) -> lightgbm.Booster:
    rows = np.concatenate([each.rows for each in cases])
    targets = np.log(np.concatenate([each.times for each in cases]))
    return lightgbm.train(PARAMETERS, lightgbm.Dataset(rows, targets), ROUNDS)


def choices(cases: list[Case], booster: lightgbm.Booster, known: list[Case]) -> dict[str, np.ndarray]:
    """Time of each way to choose, over synchronous training, for each job."""
    fixed = {"synchronous": _synchronous, "asynchronous": _asynchronous, "all but one": _all_but_one}
    best = min(fixed, key=lambda name: np.mean([np.log(each.times[fixed[name](each)]) for each in known]))
    learned = [int(np.argmin(np.asarray(booster.predict(each.rows)))) for each in cases]
    picked = {
        "synchronous": [0 for _ in cases],
        "asynchronous": [_asynchronous(each) for each in cases],
        f"best fixed mode ({best})": [fixed[best](each) for each in cases],
        "heuristic": [each.heuristic for each in cases],
        "price": [each.priced for each in cases],
        "learned": learned,
        "best of all": [int(np.argmin(each.times)) for each in cases],
    }
    return {
        name: np.array([each.times[number] for each, number in zip(cases, numbers, strict=True)])
        for name, numbers in picked.items()
    }


def _synchronous(_: Case) -> int:
    return 0


def _asynchronous(of: Case) -> int:
    return next(number for number, mode in enumerate(of.modes) if mode.order == 1 and mode.kind == "x-order")


def _all_but_one(of: Case) -> int:
    n = len({worker for mode in of.modes for group in mode.groups for worker in group})
    return next(
        number for number, mode in enumerate(of.modes) if mode.order == n - 1 and mode.kind == "x-order"
    )


def mean_interval(logs: np.ndarray) -> tuple[float, float, float]:
    """Geometric mean with its 95 % bootstrap interval over jobs."""
    drawn_logs = logs[np.random.default_rng(0).integers(0, logs.size, (_DRAWS, logs.size))].mean(axis=1)
    low, high = np.quantile(drawn_logs, [0.025, 0.975])
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks star-selector")
    parser.add_argument("--jobs", type=int, default=400, help="simulated jobs to learn from")
    parser.add_argument("--held-out", type=int, default=200, help="other jobs to compare on")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="store the model in the package")
    options = parser.parse_args()
    seeds = range(options.jobs + options.held_out)
    with ProcessPoolExecutor(options.processes) as pool:
        cases = list(pool.map(case, seeds, chunksize=8))
    known, held = cases[: options.jobs], cases[options.jobs :]
    booster = fitted(known)
    text = booster.model_to_string()
    found = choices(held, booster, known)
    console = Console(width=110)
    console.print(
        f"{len(known)} jobs to learn from, {len(held)} held out; model of {len(text) / 1e3:.0f} kB. "
        "Time to progress over synchronous training, geometric mean, 95 % interval over held-out jobs."
    )
    table = Table("choice", "time", "learned / it", box=None, pad_edge=False)
    for name, times in found.items():
        middle, low, high = mean_interval(np.log(times))
        ratio = mean_interval(np.log(found["learned"]) - np.log(times))
        table.add_row(
            name, f"{middle:.3f} [{low:.3f}, {high:.3f}]", f"{ratio[0]:.3f} [{ratio[1]:.3f}, {ratio[2]:.3f}]"
        )
    console.print(table)
    if options.write:
        MODEL.write_text(text, encoding="utf-8")
        console.print(f"written: {MODEL.name}")


if __name__ == "__main__":
    main()
