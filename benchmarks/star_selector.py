"""STAR's learned selector: trained on simulated jobs, compared on others with the heuristic and the price.

``--write`` stores the model that `rca.runtime.star.selector` ships, as LightGBM text. Everything is
simulated: see `rca.runtime.star.simulation`. The same jobs give the same model.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

from benchmarks.measure import print_table
from rca.lab.evaluation.intervals import bootstrap
from rca.runtime.star import selector
from rca.runtime.star.arrivals import that_may_recur
from rca.runtime.star.calibration import priced_again
from rca.runtime.star.grouping import of_mode
from rca.runtime.star.modes import candidates, heuristic_order
from rca.runtime.star.price import Mode, UpdateProgress
from rca.runtime.star.selector import FEATURES, MAX_WORKERS, features
from rca.runtime.star.simulation import SimulatedJob, with_server
from rca.runtime.star.usual_step import usual_seconds

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


@dataclass(frozen=True)
class SimulatedModes:
    """One job: its modes with their features, and the simulated time of each over synchronous training."""

    modes: tuple[Mode, ...]
    rows: np.ndarray
    times: np.ndarray
    heuristic: int
    priced: int
    with_steps: int


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


def case(seed: int) -> SimulatedModes:
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
    # A report is two messages of the server.
    known = replace(progress, steps=that_may_recur(steps), report_seconds=2 * job.server_seconds)
    better = [priced_again(mode, known).seconds for mode in modes]
    rows = features(steps, progress, modes, job.server_seconds)
    times = np.array(seconds) / seconds[0]
    return SimulatedModes(modes, rows, times, heuristic, int(np.argmin(price)), int(np.argmin(better)))


def fitted(cases: list[SimulatedModes]) -> lightgbm.Booster:
    rows = np.concatenate([each.rows for each in cases])
    targets = np.log(np.concatenate([each.times for each in cases]))
    return lightgbm.train(PARAMETERS, lightgbm.Dataset(rows, targets), ROUNDS)


def choices(cases: list[SimulatedModes], booster: lightgbm.Booster) -> dict[str, np.ndarray]:
    """Time of each way to choose, over synchronous training, for each job."""
    picked = {
        "synchronous": [0 for _ in cases],
        "asynchronous": [_asynchronous(each) for each in cases],
        "heuristic": [each.heuristic for each in cases],
        "price of usual steps": [each.priced for each in cases],
        "price of varied steps and the server": [each.with_steps for each in cases],
        "learned": [int(np.argmin(np.asarray(booster.predict(each.rows)))) for each in cases],
        "best of all": [int(np.argmin(each.times)) for each in cases],
    }
    return {
        name: np.array([each.times[number] for each, number in zip(cases, numbers, strict=True)])
        for name, numbers in picked.items()
    }


def _asynchronous(of: SimulatedModes) -> int:
    return next(number for number, mode in enumerate(of.modes) if mode.order == 1 and mode.kind == "x-order")


def geometric(ratios: np.ndarray) -> str:
    """Geometric mean with its 95 % bootstrap interval over jobs."""
    value, low, high, _ = bootstrap(np.log(ratios), np.random.default_rng(0))
    return f"{np.exp(value):.3f} [{np.exp(low):.3f}, {np.exp(high):.3f}]"


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
    found = choices(held, booster)
    print(f"{len(known)} jobs to learn from, {len(held)} held out; model of {len(text) / 1e3:.0f} kB.")
    rows = [(name, geometric(times), geometric(found["learned"] / times)) for name, times in found.items()]
    print_table("Time over synchronous training, 95 % intervals", ("choice", "time", "learned / it"), rows)
    if options.write:
        MODEL.write_text(text, encoding="utf-8")
        print(f"written: {MODEL.name}")


if __name__ == "__main__":
    main()
