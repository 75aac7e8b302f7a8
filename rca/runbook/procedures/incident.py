"""The values of placeholders that a diagnosis knows: nodes, ranks, devices, the job's number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rca.diagnosis.places import Place as RankInAnswer
from rca.diagnosis.result import Action, Cause, Diagnosis, Straggler
from rca.runbook.numbers import rank_list
from rca.runbook.summary import began
from rca.window.job import Job, RankPlace

#: Names come from telemetry, and commands are copied into a shell: only harmless ones are put into them.
_HARMLESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252}")
#: Names by which Slurm means every node, in any case.
_EVERY_NODE = {"all"}
_SLURM_JOB = re.compile(r"(?:slurm[-_])?(\d+(?:_\d+)?)")
_LONG_PCI_DOMAIN = re.compile(r"0000([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
#: Places that commands are written for, and nodes that one command may name.
MAX_PLACES, MAX_NODES = 3, 32


@dataclass(frozen=True)
class NodeOfCause:
    """A node with blamed ranks.

    Attributes
    ----------
    ranks : tuple of int
        Blamed ranks on the node, as far as it is known which are.
    values : dict
        Placeholders with the values of this place.
    """

    node: str | None
    ranks: tuple[int, ...]
    values: dict[str, str]

    @property
    def title(self) -> str:
        """The place in words: ``ranks 4-5 on node-2, GPU 0,1``."""
        ranks = f"{'rank' if len(self.ranks) == 1 else 'ranks'} {rank_list(self.ranks)}" if self.ranks else ""
        words = {"gpu": "GPU", "pci_address": "PCI", "port": "port"}
        devices = [f"{word} {self.values[name]}" for name, word in words.items() if name in self.values]
        on = f"{' on ' if ranks else ''}{self.node}" if self.node else ""
        return ", ".join([f"{ranks}{on}", *devices])


@dataclass(frozen=True)
class DiagnosedCause:
    """What one diagnosis says about a cause.

    Attributes
    ----------
    blamed : bool
        Whether the diagnosis names the cause. If not, the places are those of its stragglers.
    places : tuple of NodeOfCause
        The first `MAX_PLACES`.
    values : dict
        Placeholders with the same value at all places.
    withheld : bool
        Whether a node is left out, because a shell or Slurm would misread its name.
    actions : tuple of Action
        Those of the diagnosis that act on the cause.
    """

    diagnosis_id: str
    blamed: bool
    places: tuple[NodeOfCause, ...]
    more_places: int
    values: dict[str, str]
    withheld: bool
    actions: tuple[Action, ...]

    @classmethod
    def of(cls, diagnosis: Diagnosis, cause: str, job: Job | None = None) -> DiagnosedCause:
        """What a diagnosis says about a cause.

        Parameters
        ----------
        job : Job, optional
            Of the window: says which GPU, PCI address and adapter each rank has.
        """
        named = [each for each in diagnosis.causes if each.cause == cause]
        groups: Sequence[Cause | Straggler] = named or diagnosis.stragglers
        ranks = sorted({rank for group in groups for rank in group.ranks})
        nodes = sorted({node for group in groups for node in group.nodes})
        places = list(_places(groups, ranks, nodes, job))
        withheld = any(not _names_one_node(node) for node in nodes)
        places = [place for place in places if place.node is None or _names_one_node(place.node)]
        harmless = [node for node in nodes if _names_one_node(node)]
        values = {"reason": f"rca-{diagnosis.diagnosis_id}"[:60]}
        if ranks:
            values |= {"ranks": rank_list(ranks), "rank": str(ranks[0])}
        if harmless and len(harmless) <= MAX_NODES:
            values |= {"nodes": " ".join(harmless), "nodelist": ",".join(harmless)}
        if time := began(diagnosis):
            values["since"] = f"when it began: {time}"
        if number := _SLURM_JOB.fullmatch(diagnosis.job_id):
            values["job"] = number[1]
        return cls(
            diagnosis_id=diagnosis.diagnosis_id,
            blamed=bool(named),
            places=tuple(places[:MAX_PLACES]),
            more_places=len(places[MAX_PLACES:]),
            values={name: value for name, value in values.items() if name != "reason" or _safe(value)},
            withheld=withheld,
            actions=tuple(action for action in diagnosis.actions if cause in action.causes),
        )


def _places(
    groups: Sequence[Cause | Straggler], ranks: Sequence[int], nodes: Sequence[str], job: Job | None
) -> Iterable[NodeOfCause]:
    held: dict[int, RankPlace | RankInAnswer] = {
        place.rank: place for each in groups for place in each.places
    }
    # The window has the places of all ranks, the answer those of the first ones.
    held |= {} if job is None else {place.rank: place for place in job.ranks or ()}
    if not nodes:
        if ranks:
            yield NodeOfCause(None, tuple(ranks), {"rank": str(ranks[0])})
        return
    ports = {
        group.shared.within: group.shared.name
        for group in groups
        if group.shared is not None and group.shared.level == "nic"
    }
    for node in nodes:
        there = [rank for rank in ranks if rank in held and held[rank].node == node]
        if not there and len(nodes) == 1:
            there = list(ranks)
        values = {"node": node} | _devices([held[rank] for rank in there if rank in held])
        if there:
            values["rank"] = str(there[0])
        if node in ports:
            values["port"] = ports[node]
        safe = {name: value for name, value in values.items() if _safe(value)}
        if "node" in safe:
            # Double quotes of a shell keep a backslash before a dot.
            safe["node_pattern"] = node.replace(".", r"\.")
        yield NodeOfCause(node, tuple(there), safe)


def _devices(places: Sequence[RankPlace | RankInAnswer]) -> dict[str, str]:
    """Devices and pod of the ranks of one node; only what all of them share, but the GPUs of all."""
    found = {}
    gpus = sorted({place.gpu for place in places if place.gpu is not None})
    if gpus and all(place.gpu is not None for place in places):
        found["gpu"] = ",".join(map(str, gpus))
    addresses = {_short(place.pci_address) for place in places if place.pci_address is not None}
    if len(addresses) == 1:
        found["pci_address"] = addresses.pop()
    ports = {place.nic for place in places if place.nic is not None}
    if len(ports) == 1:
        found["port"] = ports.pop()
    pods = {(place.namespace, place.pod) for place in places}
    if len(pods) == 1:
        namespace, pod = pods.pop()
        found |= {} if pod is None else {"pod": pod}
        found |= {} if namespace is None else {"namespace": namespace}
    return found


def _short(address: str) -> str:
    """A PCI address as lspci writes it: nvidia-smi writes a domain of eight digits."""
    long = _LONG_PCI_DOMAIN.fullmatch(address)
    return (long[1] if long else address).lower()


def _names_one_node(name: str) -> bool:
    """Whether a name can stand in commands, and means one node there."""
    return bool(_HARMLESS.fullmatch(name)) and name.casefold() not in _EVERY_NODE


def _safe(value: str) -> bool:
    return all(_HARMLESS.fullmatch(part) for part in value.split(","))
