"""Control groups of nodes and ranks, on hierarchies of version 1 and version 2.

Every rank gets the same generous limits, with or without a fault: the existence of a limit must not reveal
the affected rank.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rca.lab.testbed.names import PREFIX, node_name

ROOT = Path("/sys/fs/cgroup")
QUOTA_PERIOD_US = 20_000
# Version 1 name to version 2 name.
_CONTROLLERS = {"cpu": "cpu", "blkio": "io", "memory": "memory"}
# Where a controller may also be mounted: together with another one.
_MOUNTED_AS = {"cpu": ("cpu", "cpu,cpuacct")}
_REMOVAL_SECONDS = 3.0


@dataclass(frozen=True)
class Hierarchies:
    """Where controllers are mounted.

    Attributes
    ----------
    mounts : dict of str to Path
        Root of each writable version 1 controller, or of version 2 for the controllers that it offers.
    unified : Path or None
        The version 2 root, which has pressure files and CPU time even without controllers.
    """

    mounts: dict[str, Path]
    unified: Path | None

    def is_v2(self, controller: str) -> bool:
        """Whether the controller is served by version 2."""
        return self.mounts.get(controller) == self.unified

    def roots(self) -> list[Path]:
        """Distinct hierarchies."""
        found = [*self.mounts.values(), *([self.unified] if self.unified else [])]
        return list(dict.fromkeys(found))


def find_hierarchies(root: Path = ROOT) -> Hierarchies:
    """Find the hierarchies in which this process may create groups."""
    unified = next((path for path in (root / "unified", root) if _is_v2(path)), None)
    if unified is not None and not os.access(unified, os.W_OK):
        unified = None
    offered = [] if unified is None else (unified / "cgroup.controllers").read_text().split()
    mounts: dict[str, Path] = {}
    for controller, v2_name in _CONTROLLERS.items():
        v1 = next(
            (
                p
                for p in (root / name for name in _MOUNTED_AS.get(controller, (controller,)))
                if (p / "tasks").exists()
            ),
            None,
        )
        if v1 is not None and os.access(v1, os.W_OK):
            mounts[controller] = v1
        elif unified is not None and v2_name in offered:
            mounts[controller] = unified
    return Hierarchies(mounts, unified)


def _is_v2(path: Path) -> bool:
    return (path / "cgroup.controllers").exists()


class ControlGroups:
    """The testbed's groups: ``rcatb/node-N/rank-R`` in every hierarchy, and ``node-N/others`` for hogs."""

    def __init__(self, hierarchies: Hierarchies) -> None:
        self.hierarchies = hierarchies

    def path(self, controller: str, node: int, rank: int | None = None) -> Path | None:
        """Directory of a node's or rank's group under `controller` (or ``unified``)."""
        held = self.hierarchies
        root = held.unified if controller == "unified" else held.mounts.get(controller)
        if root is None:
            return None
        group = root / PREFIX / node_name(node)
        return group if rank is None else group / f"rank-{rank}"

    def joined_by(self, node: int, rank: int) -> list[Path]:
        """Directories a rank's process joins, one per hierarchy."""
        return [root / PREFIX / node_name(node) / f"rank-{rank}" for root in self.hierarchies.roots()]

    def others(self, node: int) -> list[Path]:
        """Directories that foreign load on the node joins."""
        return [root / PREFIX / node_name(node) / "others" for root in self.hierarchies.roots()]

    def set_weight(self, node: int, ranks: float) -> None:
        """Give the node's foreign load the weight of that many ranks."""
        of_node = self.path("cpu", node)
        if of_node is None:
            return
        group = of_node / "others"
        if self.hierarchies.is_v2("cpu"):
            (group / "cpu.weight").write_text(str(min(10_000, round(100 * ranks))))
        else:
            (group / "cpu.shares").write_text(str(min(262_144, round(1024 * ranks))))

    def set_cpu_quota(self, node: int, rank: int, milliseconds: float | None) -> None:
        """CPU time per 20 ms for the rank's own processes; None gives them all there is."""
        group = self._required("cpu", node, rank)
        if milliseconds is None:
            milliseconds = QUOTA_PERIOD_US / 1000 * (os.cpu_count() or 1)
        quota = str(round(1000 * milliseconds))
        if self.hierarchies.is_v2("cpu"):
            (group / "cpu.max").write_text(f"{quota} {QUOTA_PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(quota)

    def set_read_limit(self, node: int, rank: int, device: str, bytes_per_second: int) -> None:
        """Limit direct reads of the rank from a disk (``major:minor``); 0 lifts the limit."""
        group = self._required("blkio", node, rank)
        if self.hierarchies.is_v2("blkio"):
            (group / "io.max").write_text(f"{device} rbps={bytes_per_second or 'max'}")
        else:
            (group / "blkio.throttle.read_bps_device").write_text(f"{device} {bytes_per_second}")

    def memory_used(self, node: int, rank: int) -> int:
        """Bytes charged to the rank's group."""
        name = "memory.current" if self.hierarchies.is_v2("memory") else "memory.usage_in_bytes"
        return int((self._required("memory", node, rank) / name).read_text())

    def set_memory_limit(self, node: int, rank: int, limit: int | None) -> None:
        """Limit what is charged to the rank's group, in bytes; None lifts the limit."""
        group = self._required("memory", node, rank)
        if self.hierarchies.is_v2("memory"):
            (group / "memory.high").write_text("max" if limit is None else str(limit))
        else:
            (group / "memory.limit_in_bytes").write_text(str(-1 if limit is None else limit))

    def _required(self, controller: str, node: int, rank: int) -> Path:
        path = self.path(controller, node, rank)
        if path is None:
            raise FileNotFoundError(f"no writable {controller} hierarchy")
        return path


@contextlib.contextmanager
def control_groups(hierarchies: Hierarchies, ranks_of_nodes: list[list[int]]) -> Iterator[ControlGroups]:
    """Create the groups of all nodes and ranks with generous limits, and remove them again."""
    try:
        for root in hierarchies.roots():
            for node, ranks in enumerate(ranks_of_nodes):
                for leaf in (*(f"rank-{rank}" for rank in ranks), "others"):
                    (root / PREFIX / node_name(node) / leaf).mkdir(parents=True, exist_ok=True)
            if root == hierarchies.unified:
                _delegate(root, hierarchies)
        groups = ControlGroups(hierarchies)
        if "cpu" in hierarchies.mounts:
            for node, ranks in enumerate(ranks_of_nodes):
                for rank in ranks:
                    groups.set_cpu_quota(node, rank, None)
        yield groups
    finally:
        for root in hierarchies.roots():
            remove_tree(root / PREFIX)


def _delegate(root: Path, hierarchies: Hierarchies) -> None:
    """Enable version 2 controllers, from the root down to the nodes."""
    wanted = {_CONTROLLERS[name] for name, mount in hierarchies.mounts.items() if mount == root}
    if not wanted:
        return
    line = " ".join(f"+{name}" for name in sorted(wanted))
    for group in (root, root / PREFIX, *sorted((root / PREFIX).glob("node-*"))):
        (group / "cgroup.subtree_control").write_text(line)


def remove_tree(group: Path) -> bool:
    """Remove a group and those below it once their processes have ended; returns whether all are removed."""
    if not group.is_dir():
        return True
    for child in [path for path in group.iterdir() if path.is_dir()]:
        remove_tree(child)
    deadline = time.monotonic() + _REMOVAL_SECONDS
    while time.monotonic() < deadline:
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.02)
        else:
            return True
    return False


def members(group: Path) -> list[int]:
    """Processes in a group and those below it."""
    files = group.rglob("cgroup.procs") if group.is_dir() else []
    return sorted({int(line) for file in files for line in file.read_text().split()})
