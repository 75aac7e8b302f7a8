"""A real Slurm of this machine in a folder: its own munge, controller and one live node, on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.waiting import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "squeue", "sbatch")
#: Why a test with a real Slurm is skipped, or empty.
MISSING = ", ".join(
    name for name in PROGRAMS if shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin") is None
)
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/linear
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={host} NodeAddr=127.0.0.1 Port={node} CPUs=1 State=UNKNOWN
NodeName=spare-[1-2] NodeAddr=127.0.0.1 Port={spare} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class RealSlurm:
    """Submits jobs, and shows them and the node; commands need `SLURM_CONF`."""

    def __init__(self, folder: Path, host: str) -> None:
        self.folder, self.host = folder, host

    def run(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch job, and give its id once it runs."""
        path = self.folder / "job.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        where = ("--output=/dev/null", f"--nodelist={self.host}", f"--chdir={self.folder}")
        job = self.run("sbatch", "--parsable", *where, *options, str(path))
        until(lambda: self.state(job) == "RUNNING")
        return job

    def state(self, job: str) -> str:
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--Format=State").strip()

    def node(self) -> str:
        return self.run("scontrol", "show", "node", self.host)


@contextmanager
def real_slurm(folder: Path) -> Iterator[RealSlurm]:
    """Run the daemons until the block ends; `SLURM_CONF` names their configuration meanwhile."""
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    ports = dict(zip(("controller", "node", "spare"), _free_ports(3), strict=True))
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(host=host, folder=folder, **ports))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    commands = (
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.sock", *munge],
        ["slurmctld", "-D", "-c", "-f", str(configuration)],
        ["slurmd", "-D", "-N", host, "-f", str(configuration)],
    )
    path = f"{os.environ['PATH']}:/usr/sbin"
    variables = os.environ | {"SLURM_CONF": str(configuration), "PATH": path}
    with ExitStack() as running:
        for command in commands:
            with (folder / f"{command[0]}.out").open("wb") as log:
                process = running.enter_context(
                    subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)
                )
            running.callback(process.kill)
            if command[0] == "munged":
                until(lambda: (folder / "munge.sock").exists())
        before = os.environ.get("SLURM_CONF")
        os.environ["SLURM_CONF"] = str(configuration)
        try:
            found = RealSlurm(folder, host)
            until(lambda: "State=IDLE" in found.node(), not_yet=subprocess.CalledProcessError)
            yield found
            found.run("scancel", "--signal=KILL", "--full", "--state=RUNNING")
        finally:
            os.environ.pop("SLURM_CONF")
            if before is not None:
                os.environ["SLURM_CONF"] = before


def _free_ports(number: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
