"""Sampled jobs cover what clusters have, in proportion, and stay within what is healthy."""

from __future__ import annotations

import numpy as np
import pytest

from rca.lab.simulation import SimulationScenario, sample_scenario
from rca.lab.simulation.compute_work import stage_work
from rca.lab.simulation.sampling_job import CALM_QUEUE, HUGE, sample_job

JOBS = [
    SimulationScenario(
        dialect="gpu_cluster", **sample_job(np.random.default_rng([4, index]), "gpu_cluster", "healthy")
    )
    for index in range(1500)
]


def test_about_one_cluster_job_in_a_hundred_is_huge_and_short():
    huge = [job for job in JOBS if job.world_size > 4096]
    assert 0.003 < len(huge) / len(JOBS) < 0.02
    assert {job.world_size for job in huge} <= {8192, 16_384}
    assert max(job.n_steps for job in huge) <= 16
    assert min(job.n_steps for job in JOBS if job.world_size < HUGE) >= 20


def test_some_clusters_hold_two_generations_a_few_per_cent_apart():
    mixed = [job for job in JOBS if job.fleet.speeds]
    assert 0.04 < len(mixed) / len(JOBS) < 0.16
    assert all(len(job.fleet.speeds) == len(job.fleet.models) == job.n_nodes for job in mixed)
    assert min(min(job.fleet.speeds) for job in mixed) >= 0.97


def test_some_pipelines_are_interleaved():
    pipelines = [job for job in JOBS if job.parallelism.pipeline > 1]
    interleaved = [job for job in pipelines if job.parallelism.virtual_pipeline > 1]
    assert 0.15 < len(interleaved) / len(pipelines) < 0.35
    assert all(job.workload.microbatches % job.parallelism.pipeline == 0 for job in interleaved)


def test_stages_of_healthy_jobs_differ_by_less_than_the_weakest_fault():
    for job in JOBS:
        if job.parallelism.pipeline > 1:
            share = stage_work(job, np.zeros((job.parallelism.pipeline, 1)))[:, 0]
            assert share.max() / share.mean() - 1 < 0.12


def test_no_loader_worker_is_without_a_place_in_the_queue():
    assert all(job.workload.loader_workers <= max(1, job.workload.prefetch_steps) for job in JOBS)


def test_loaders_keep_a_few_batches_ahead_or_some_for_each_of_many_workers():
    ahead = {job.workload.prefetch_steps for job in JOBS}
    assert ahead == {0, 1, 2, 3, 4} | {2, 4, 8, 16, 32, 64}
    assert {job.workload.loader_workers for job in JOBS if job.workload.prefetch_steps >= 32} >= {8, 16}


@pytest.mark.system
@pytest.mark.parametrize(("cause", "rare"), [("data_loader_stall", True), ("gpu_contention", False)])
def test_only_faults_of_batches_are_rare(cause: str, *, rare: bool):
    rng = np.random.default_rng(0)
    shares = np.array([sample_scenario(rng, cause=cause).faults[0].late_share for _ in range(60)])
    assert 0.0 < shares.min() <= 1.0
    assert ((shares < 1.0).mean() > 0.15) == rare
    assert (shares == 1.0).mean() > 0.4


def test_some_testbeds_run_pipelines_and_some_have_calm_hosts():
    rng = np.random.default_rng(6)
    drawn = [sample_job(rng, "cpu_testbed", "healthy") for _ in range(400)]
    staged = [job for job in drawn if job["parallelism"].pipeline > 1]
    assert 0.04 < len(staged) / len(drawn) < 0.16
    assert {job["parallelism"].pipeline for job in staged} == {2, 4}
    assert all(job["workload"].microbatches >= job["parallelism"].pipeline for job in staged)
    calm = [job for job in drawn if job["workload"].run_queue_share < CALM_QUEUE]
    assert 0.2 < len(calm) / len(drawn) < 0.4
