"""The agent on a real Slurm: drains with a reason, requeues once, and leaves ended jobs alone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from acting import SPARE, Acting
from played_cluster import PlayedService
from slurm_cluster import MISSING, RealSlurm, real_slurm

from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")]
#: Notes each start of the job, and goes on until it is ended.
SCRIPT = "echo start >> starts\nsleep 600"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSlurm]:
    with real_slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture(autouse=True)
def _clean(slurm: RealSlurm) -> Iterator[None]:
    (slurm.folder / "starts").write_text("")
    yield
    slurm.run("scancel", f"--nodelist={slurm.host}")
    slurm.run("scancel", "--state=PENDING")
    if "DRAIN" in slurm.node():
        slurm.run("scontrol", "update", f"NodeName={slurm.host}", "State=RESUME")
    until(lambda: "State=IDLE" in slurm.node())


def acting(folder: Path, slurm: RealSlurm, job: str, **option: object) -> Acting:
    service = PlayedService(**{"nodes": [slurm.host], **option})
    return Acting(folder, service, {"platform": "slurm", "job": job, **SPARE}, mode="automatic")


def test_a_node_is_drained_with_a_reason_and_the_job_requeued_once(tmp_path: Path, slurm: RealSlurm) -> None:
    job = slurm.submit(SCRIPT, "--requeue", "--comment=x JobState=PENDING Restarts=99")
    until(lambda: (slurm.folder / "starts").read_text() == "start\n")
    mine = acting(tmp_path, slurm, job)
    for _ in range(4):
        mine.round()
    assert mine.newest.state == "done"
    assert "DRAIN" in slurm.node()
    assert f"Reason=straggler-rca gpu_throttling incident {'a' * 32}" in slurm.node()
    # It waits, because its node is drained.
    until(lambda: slurm.state(job) == "PENDING")
    slurm.run("scontrol", "update", f"NodeName={slurm.host}", "State=RESUME")
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    until(lambda: (slurm.folder / "starts").read_text() == "start\nstart\n")
    assert "Restarts=1 " in slurm.run("scontrol", "show", "job", job)


@pytest.mark.parametrize("name", ["spare-1", "spare-[1-2]", "login-1"])
def test_a_node_without_the_job_is_not_drained(name: str, tmp_path: Path, slurm: RealSlurm) -> None:
    job = slurm.submit(SCRIPT, "--requeue")
    mine = acting(tmp_path, slurm, job, nodes=[name])
    mine.round()
    assert mine.round()
    assert "straggler-rca" not in slurm.run("scontrol", "show", "nodes")
    assert slurm.state(job) == "RUNNING"


def test_a_job_that_ends_before_its_action_is_not_started_again(tmp_path: Path, slurm: RealSlurm) -> None:
    job = slurm.submit(SCRIPT.replace("sleep 600", "while [ ! -e end ]; do sleep 0.05; done"), "--requeue")
    mine = acting(tmp_path, slurm, job)
    mine.round()
    (slurm.folder / "end").write_text("")
    until(lambda: slurm.state(job) == "COMPLETED")
    mine.round()
    assert mine.journal.all()[0].note == f"job {job} does not run: it is COMPLETED"
    assert (slurm.folder / "starts").read_text() == "start\n"
    assert "DRAIN" not in slurm.node()


def test_a_job_that_may_not_be_requeued_is_left_alone(tmp_path: Path, slurm: RealSlurm) -> None:
    job = slurm.submit(SCRIPT, "--no-requeue")
    mine = acting(tmp_path, slurm, job)
    assert mine.round() == [f"not now: job {job} may not be requeued"]
    assert slurm.state(job) == "RUNNING"
    assert "DRAIN" not in slurm.node()


def test_scontrol_fails_loudly_for_a_job_that_it_does_not_know(tmp_path: Path, slurm: RealSlurm) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        slurm.state("999999")
    [text] = acting(tmp_path, slurm, "999999").round()
    assert "not now: squeue" in text
