"""STAR on a real job: time to a target loss with a slow rank, against synchronous and asynchronous SGD.

Four workers train over gloo, one of them slowed, in all modes in turn; modes with a parameter server have one
process more. In a second part the rank gets slow in the middle of the job. Losses are computed afterwards,
from copies of the parameters, so that they take no time.

Measured: forward, backward, messages, updates, the clock and the loss. Simulated: a pause for each sample
stands for the device; the slow rank pauses longer.

Speeds are predicted by `rca.runtime.star.simulation`, for each seed from its synchronous run: own times of
the workers, time of an all-reduce and of a message of the server, gradient noise scale, and the learning
rate beside the best one. The calibrated speed is that with the reports per second of the first steps.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn.utils import vector_to_parameters

from benchmarks.measure import print_table
from benchmarks.small_job import data_of, interval, network
from benchmarks.star_job import (
    CHOSEN,
    LIKE,
    N_SAMPLES,
    N_WORKERS,
    SLOW,
    WITH_SERVER,
    ModeJob,
    StarWorker,
    run,
)
from rca.runtime.star.grouping import Groups, XOrder
from rca.runtime.star.learning_rate import best_learning_rate
from rca.runtime.star.modes import choose, clustered, heuristic_order, static_groups
from rca.runtime.star.noise import noise_scale
from rca.runtime.star.price import UpdateProgress
from rca.runtime.star.simulation import SimulatedJob as Simulated
from rca.runtime.star.simulation import with_ring, with_server
from rca.runtime.star.usual_step import is_straggler

#: Modes of the first part; those of the second, in which a rank gets slow.
MODES = ("synchronous", *WITH_SERVER, "ring with children")
CHANGING = ("synchronous", "asynchronous", "switching ring")
_SIMULATED_STEPS = 400
#: Full batches of each mode from which its speed is calibrated, after the first one, which warms up, or after
#: dynamic groups are formed.
CALIBRATED_FROM = 8
#: When a copy of the parameters was made, after how many full batches, and the copy.
Copy = tuple[float, float, np.ndarray]


def full_loss(job: ModeJob, vector: np.ndarray) -> tuple[torch.nn.Module, torch.Tensor]:
    """The model with some parameters, and its loss over all samples."""
    model, (x, y) = network(job.seed), data_of(N_SAMPLES, job.seed)
    vector_to_parameters(torch.from_numpy(vector), model.parameters())
    return model, torch.nn.functional.cross_entropy(model(x), y)


def loss_of(job: ModeJob, vector: np.ndarray) -> float:
    with torch.no_grad():
        return float(full_loss(job, vector)[1])


def to_target(job: ModeJob, copies: list[Copy], target: float) -> tuple[float, float]:
    """Seconds and full batches until the loss is at the target for the first time; infinite if never.

    The first update warms up: its time is replaced by that of the others.
    """
    (_, first_batches, _), start = copies[1], copies[1][0]
    for at, batches, vector in copies[2:]:
        if loss_of(job, vector) <= target:
            return (at - start) * batches / (batches - first_batches), batches
    return float("inf"), float("inf")


def measured_noise(job: ModeJob, vector: np.ndarray, draws: int = 200) -> float | None:
    """Gradient noise scale at some parameters, from batches of one worker and of all."""
    worker = StarWorker(replace(job, sample_seconds=0.0), 0)
    small, large = [], []
    for _ in range(draws):
        parts = torch.stack([worker.gradient(torch.from_numpy(vector)) for _ in range(N_WORKERS)])
        small.append(float(parts.square().sum(dim=1).mean()))
        large.append(float(parts.mean(dim=0).square().sum()))
    return noise_scale(np.array(small), np.array(large), job.batch, job.batch * N_WORKERS).samples


def job_to_simulate(job: ModeJob, full: dict[str, Any], target: float) -> Simulated:
    """What a synchronous run, up to the target, says about its job; the server is run alone for its part."""
    own = [np.array(each[1:]) for each in full["own"]]
    steps = np.diff([at for at, _, _ in full["copies"]])[1:]
    batches = to_target(job, full["copies"], target)[1]
    vector = full["copies"][int(min(batches, job.updates) / 2)][2]
    noise = measured_noise(job, vector)
    if noise is None:
        raise SystemExit("the gradient is within the noise; give larger batches")
    model, loss = full_loss(job, vector)
    alone = run(replace(job, mode="asynchronous", groups=((0,),), updates=50, probe=True))["copies"]
    return Simulated(
        np.array([float(np.mean(each)) for each in own]),
        job.batch,
        noise,
        steps=np.array(own),
        reduce_seconds=max(float(np.mean(steps - np.max(own, axis=0))), 0.0),
        # A report is two messages of the server.
        server_seconds=(alone[-1][0] - alone[4][0]) / (len(alone) - 5) / 2,
        learning_rate=job.learning_rate / best_learning_rate(loss, list(model.parameters())),
    )


def predicted(job: Simulated, mode: str, groups: tuple[tuple[int, ...], ...]) -> tuple[float, float]:
    """Speed, and reports per second, against synchronous SGD of a simulated run."""
    horizon = _SIMULATED_STEPS * float(job.seconds.max())
    full = with_ring(job, [], horizon)
    if mode == "synchronous":
        found = full
    elif mode == "ring with children":
        found = with_ring(job, [SLOW], horizon)
    else:
        grouping = XOrder(len(groups[0])) if mode in ("asynchronous", "x-order") else Groups(groups)
        found = with_server(job, grouping, horizon)
    speed = full.seconds_per_progress(job) / found.seconds_per_progress(job)
    return speed, found.reports_per_second / full.reports_per_second


def first_rate(found: dict[str, Any]) -> float:
    """Full batches per second of the first steps of a mode."""
    copies: list[Copy] = found["copies"]
    first = copies[found["changes"][0][0] if found["changes"] else 1]
    last = next((each for each in copies if each[1] >= first[1] + CALIBRATED_FROM), copies[-1])
    return (last[1] - first[1]) / (last[0] - first[0])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    job = ModeJob(
        "synchronous", 1000, options.updates, options.batch, options.factor, options.sample_seconds,
        options.learning_rate,
    )  # fmt: skip
    before = replace(job, updates=max(options.updates // 2, 8))
    first = job_to_simulate(before, run(before), options.target)
    progress = UpdateProgress(first.seconds, job.batch, first.noise, learning_rate=first.learning_rate)
    order = heuristic_order(progress)
    distance = LIKE * float(first.seconds.min())
    groups = {
        "asynchronous": ((0,),),
        "x-order": (tuple(range(order)),),
        "static groups": static_groups(progress, order).groups,
        "dynamic groups": clustered(first.seconds, distance),
    }
    job = replace(job, noise=first.noise, group_distance=distance)
    parts: dict[str, dict[str, Any]] = {}
    ring_speeds: list[float] = []
    for part, modes, slow_after in (
        ("slow from the start", MODES, 0),
        ("slow after a sixth", CHANGING, options.updates // 6),
    ):
        rows: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
        for seed in range(options.seeds):
            of_seed = replace(job, seed=seed, slow_after=slow_after)
            found: dict[str, dict[str, Any]] = {}
            # Seeds differ in the order, so that a change of the machine's load hits all modes alike.
            for mode in np.random.default_rng(seed).permutation(modes).tolist():
                found[mode] = run(replace(of_seed, mode=mode, groups=groups.get(mode, ())))
            simulated = None if slow_after else job_to_simulate(of_seed, found["synchronous"], options.target)
            for mode in modes:
                row = judged(of_seed, found[mode], options.target)
                if simulated is not None and mode != CHOSEN:
                    row["predicted"], rate = predicted(simulated, mode, groups.get(mode, ()))
                    pair = first_rate(found[mode]), first_rate(found["synchronous"])
                    row["calibrated"] = row["predicted"] * pair[0] / pair[1] / rate
                rows[mode].append(row)
            if simulated is not None:
                ring_speeds.append(rows["ring with children"][-1]["predicted"])
            else:
                before = share_before(of_seed, found["synchronous"], options.target)
                rows["switching ring"][-1]["predicted"] = 1 / (before + (1 - before) / ring_speeds[seed])
        parts[part] = {mode: figures(rows, mode) for mode in modes}
    chosen = choose(progress)
    return {"parts": parts, "job": first, "order": order, "chosen": f"{chosen.kind} {chosen.groups}"}


def share_before(job: ModeJob, full: dict[str, Any], target: float) -> float:
    """Share of the time to the target of a synchronous run before its rank gets slow."""
    times = [at for at, _, _ in full["copies"]]
    batches = min(to_target(job, full["copies"], target)[1], job.updates)
    start, change, end = times[1], times[job.slow_after], times[int(batches)]
    return (change - start) / (end - start) if end > change else 1.0


def judged(job: ModeJob, found: dict[str, Any], target: float) -> dict[str, Any]:
    """Figures of one training."""
    seconds, batches = to_target(job, found["copies"], target)
    return {
        "seconds": seconds,
        "full batches": batches,
        "staleness": float(np.mean(found["staleness"])) if found["staleness"] else 0.0,
        "final loss": loss_of(job, found["copies"][-1][2]),
        "changes": float(len(found["changes"])),
    }


def figures(rows: dict[str, list[dict[str, Any]]], mode: str) -> dict[str, Any]:
    """Means over seeds with intervals, and speeds of pairs with the same seed."""
    found: dict[str, Any] = {name: interval([row[name] for row in rows[mode]]) for name in rows[mode][0]}
    for other in ("synchronous", "asynchronous"):
        pairs = zip(rows[other], rows[mode], strict=True)
        found[f"over {other}"] = interval([before["seconds"] / row["seconds"] for before, row in pairs])
    if all("predicted" in row for row in rows[mode]):
        full = rows["synchronous"]
        speeds = [before["seconds"] / row["seconds"] for before, row in zip(full, rows[mode], strict=True)]
        for name in ("predicted", "calibrated"):
            pairs = zip(speeds, rows[mode], strict=True)
            ratios = [speed / row[name] for speed, row in pairs if name in row]
            if ratios:
                found[f"over {name}"] = interval(ratios)
    found["reached"] = sum(np.isfinite(row["seconds"]) for row in rows[mode])
    return found


def render(found: dict[str, Any], options: argparse.Namespace) -> None:
    job = found["job"]
    print(
        f"{N_WORKERS} workers, batches of {options.batch}, one slowed {options.factor:g} times; "
        f"{options.seeds} seeds; target loss {options.target:g}. Intervals: 95 %."
    )
    steps = ", ".join(f"{1e3 * each:.0f}" for each in job.seconds)
    print(
        f"Measured before: own steps of {steps} ms, all-reduce {1e3 * job.reduce_seconds:.1f} ms, a message "
        f"of the server {1e3 * job.server_seconds:.2f} ms, gradient noise scale {job.noise:.0f} samples, "
        f"learning rate {job.learning_rate:.2g} of the best one without noise."
    )
    stragglers = np.flatnonzero(is_straggler(job.seconds)).tolist()
    print(f"Stragglers {stragglers}; the heuristic takes x = {found['order']}, the price {found['chosen']}.")
    names = ("seconds", "over synchronous", "predicted", "over predicted", "calibrated", "over calibrated")
    means = ("full batches", "staleness", "final loss", "changes")
    for part, modes in found["parts"].items():
        rows = [
            (
                mode,
                *(shown(each[name]) if name in each else "" for name in names),
                *(f"{each[name]['mean']:.3g}" for name in means),
                f"{each['reached']}/{options.seeds}",
            )
            for mode, each in modes.items()
        ]
        print_table(part, ("mode", *names, *means, "reached"), rows)


def shown(found: dict[str, float]) -> str:
    return f"{found['mean']:.3g} [{found['lower']:.3g}, {found['upper']:.3g}]"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks star", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each mode")
    parser.add_argument("--updates", type=int, default=200, help="full batches of each training")
    parser.add_argument("--batch", type=int, default=16, help="samples of a worker and step")
    parser.add_argument("--factor", type=float, default=4.0, help="how slow the slow rank is")
    parser.add_argument("--sample-seconds", type=float, default=1e-3, help="time of a device for a sample")
    parser.add_argument("--learning-rate", type=float, default=0.2, help="of an update from all workers")
    parser.add_argument("--target", type=float, default=0.1, help="loss over all samples to reach")
    options = parser.parse_args()
    render(measure(options), options)


if __name__ == "__main__":
    main()
