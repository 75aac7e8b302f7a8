"""Real jobs in which one rank is killed: is the job called healthy, and is exactly that rank blamed?

Four processes train with gloo's all-reduce and `rca.collect`. One of them gets SIGKILL at a random moment,
and the others lose their peer. Training codes react in one of the ways of `ENDS`. They stop the collector
in a ``finally``, after the loop, or not at all. Other jobs end without a kill, in the same ways. In half of
these one process ends by ``os._exit(0)`` after its last step, and loses what its collector has not written.

Needs the extra `[testbed]`.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path

import numpy as np

from rca import collect, diagnose, read_window
from rca.errors import RcaError

RANKS = 4
#: What the training code does with the error of a lost peer.
ENDS = ("raise", "exit", "return", "os_exit")
#: Where it stops the collector: in a `finally` around the loop, as its last line, or nowhere.
STOPS = ("finally", "last", "never")
#: How it times its phases: by a context each, or by hooks on the model of data parallelism.
TIMERS = ("phases", "watch")
#: Seconds from the first step to the kill, or of a healthy job.
MIN_SECONDS, MAX_SECONDS = 0.5, 2.5
#: Work of a rank in each step.
WORK_SECONDS = 0.01
#: A collective gives up after so many seconds, and so does a job.
PATIENCE = 60.0


@dataclass(frozen=True)
class KilledJob:
    """One job to run.

    Attributes
    ----------
    ends, stops, timers : str
        Of `ENDS`, `STOPS` and `TIMERS`.
    killed, vanishes : int or None
        Rank that gets SIGKILL; rank of a healthy job that ends by ``os._exit(0)`` after its last step.
    seconds : float
        From the first step to the kill; without one, to the end.
    """

    ends: str
    stops: str
    timers: str
    killed: int | None
    vanishes: int | None
    seconds: float


@dataclass(frozen=True)
class KillAnswer:
    """The answer about one job, with the ranks of each straggler that stopped it.

    Those that were slow before are left out: other processes of the machine may have slowed them.
    """

    job: KilledJob
    mode: str
    blamed: tuple[tuple[int, ...], ...]

    @property
    def healthy(self) -> bool:
        """Whether the job was called healthy, for certain or not."""
        return self.mode.startswith("healthy")

    @property
    def right(self) -> bool:
        """Whether a kill blames exactly its rank; whether a healthy job is not called stopped."""
        if self.job.killed is None:
            return not self.mode.startswith("fail_stop")
        return self.mode.startswith("fail_stop") and self.blamed == ((self.job.killed,),)


def jobs(kills: int, healthy: int, seed: int) -> list[KilledJob]:
    """Jobs whose variants take turns, with random ranks and moments."""
    chance = np.random.default_rng(seed)
    variants = list(product(ENDS, STOPS, TIMERS))
    chance.shuffle(variants)
    made = []
    for number in range(kills + healthy):
        ends, stops, timers = variants[number % len(variants)]
        rank, kill = int(chance.integers(RANKS)), number < kills
        killed, vanishes = rank if kill else None, rank if not kill and number % 2 else None
        seconds = chance.uniform(MIN_SECONDS, MAX_SECONDS)
        made.append(KilledJob(ends, stops, timers, killed, vanishes, seconds))
    return made


def run(job: KilledJob, folder: Path) -> bool:
    """Run a job, which leaves the files of its collector in `folder`; False in a rank's own process."""
    started = folder / "started"
    ranks = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            _train(job, rank, folder, started)
            return False
        ranks.append(child)
    try:
        _wait_for(started)
    except TimeoutError:
        for child in ranks:
            os.kill(child, signal.SIGKILL)
        raise
    if job.killed is not None:
        time.sleep(job.seconds)
        os.kill(ranks[job.killed], signal.SIGKILL)
    for child in ranks:
        os.waitpid(child, 0)
    return True


def _wait_for(path: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"no rank finished a step within {PATIENCE:.0f} s")
        time.sleep(0.005)


def _train(job: KilledJob, rank: int, folder: Path, started: Path) -> None:
    """One rank's training code, which reacts to a lost peer as the job says."""
    # Runs last at the interpreter's end: to take apart PyTorch would take a second.
    atexit.register(os._exit, 0)
    # The error of a lost peer is expected.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    collect.start(folder / "collected", rank=rank, world_size=RANKS, node=f"node-{rank // 2}")
    try:
        _react(job, rank, folder, started)
    finally:
        if job.stops == "finally":
            collect.stop()
    if job.stops == "last":
        collect.stop()


def _react(job: KilledJob, rank: int, folder: Path, started: Path) -> None:
    try:
        _loop(job, rank, folder, started)
    except RuntimeError:
        if job.ends == "raise":
            raise
        if job.ends == "exit":
            sys.exit(1)
        if job.ends == "os_exit":
            os._exit(1)
    if rank == job.vanishes:
        os._exit(0)


def _loop(job: KilledJob, rank: int, folder: Path, started: Path) -> None:
    import torch
    import torch.distributed as dist

    store = dist.FileStore(str(folder / "store"), RANKS)
    patience = timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=patience)
    net = torch.nn.Linear(8, 8)
    if job.timers == "watch":
        net = collect.watch(torch.nn.parallel.DistributedDataParallel(net))
    n_steps = 10**9 if job.killed is not None else round(job.seconds / WORK_SECONDS)
    for step in collect.steps(range(n_steps)):
        if job.timers == "watch":
            time.sleep(WORK_SECONDS)
            net(torch.ones(4, 8)).sum().backward()
        else:
            with collect.phase("forward"):
                time.sleep(WORK_SECONDS)
            with collect.phase("communication"):
                dist.all_reduce(torch.ones(64))
        if step == 0:
            started.touch()


def main(arguments: list[str]) -> int:
    """Run all jobs, print one line each and the sums; 1 if the limits are missed."""
    given = _options(arguments)
    # Ranks are forked with what they import, and without threads.
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch._dynamo
    import torch.distributed
    import torch.nn.parallel  # noqa: F401

    kept = Path(tempfile.mkdtemp())
    drawn = jobs(given.kills, given.healthy, given.seed)
    made = [(job, kept / f"{number:03}") for number, job in enumerate(drawn)]
    if not _run_all(made, given.at_once):
        return 0
    # Not before the last rank was forked: a diagnosis starts threads.
    outcomes = [_outcome(job, folder) for job, folder in made]
    shutil.rmtree(kept)
    return _sums(outcomes)


def _run_all(made: Sequence[tuple[KilledJob, Path]], at_once: int) -> bool:
    """Run the jobs, some at once; False in the process of a rank, which ends as that of a training script."""
    gc.freeze()
    running = 0
    for job, folder in made:
        folder.mkdir(parents=True)
        if running == at_once:
            os.wait()
            running -= 1
        if os.fork() == 0:
            if run(job, folder):
                os._exit(0)
            return False
        running += 1
    for _ in range(running):
        os.wait()
    return True


def _outcome(job: KilledJob, folder: Path) -> KillAnswer:
    """Diagnose a job, and print a line."""
    try:
        diagnosis = diagnose(read_window(folder / "collected"))
    except (RcaError, ValueError) as error:
        outcome = KillAnswer(job, f"unreadable: {error}", ())
    else:
        blamed = tuple(tuple(each.ranks) for each in diagnosis.stragglers if each.straggler_type is None)
        mode = diagnosis.failure_mode + (" (undecided)" if diagnosis.abstained else "")
        outcome = KillAnswer(job, mode, blamed)
    _print(outcome, folder)
    return outcome


def _print(outcome: KillAnswer, folder: Path) -> None:
    job = outcome.job
    truth = "healthy" if job.killed is None else f"killed {job.killed}"
    gone = "" if job.vanishes is None else f" (rank {job.vanishes} vanishes)"
    answer = f"{outcome.mode} {[list(each) for each in outcome.blamed]}"
    mark = "right" if outcome.right else "WRONG"
    title = f"{folder.name} {mark} {job.ends}/{job.stops}/{job.timers}"
    print(f"{title:36} {truth}{gone} after {job.seconds:.2f} s: {answer}", flush=True)


def _sums(outcomes: Sequence[KillAnswer]) -> int:
    kills = [each for each in outcomes if each.job.killed is not None]
    others = [each for each in outcomes if each.job.killed is None]
    healthy = sum(each.healthy for each in kills)
    right = sum(each.right for each in kills)
    alarms = sum(not each.right for each in others)
    slow = sum(not each.healthy for each in others) - alarms
    print(f"{len(kills)} kills: {healthy} called healthy, {right} blame exactly the killed rank")
    print(f"{len(others)} healthy ends: {alarms} called stopped, {slow} called slow")
    return int(healthy > 0 or right < 0.95 * len(kills) or alarms > 0)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks killed-ranks", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2, help="jobs that run at the same time")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
