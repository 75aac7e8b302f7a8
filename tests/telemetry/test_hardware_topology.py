"""Topology files: Slurm, Kubernetes, nvidia-smi, NCCL and our own; merged, and attached to a window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rca
from rca.errors import InvalidInput, InvalidWindow, SourceError
from rca.window.topology import HardwareTopology, merged, read_topology, with_topology
from rca.window.topology.hostlist import MAX_HOSTS, expanded
from tests.for_each import for_each

TOPOLOGY_CONF = """
# Two leaves under one spine.
SwitchName=leaf-1 Nodes=n[0-1] LinkSpeed=100
switchname=leaf-2 nodes=n2,\\
n3
SwitchName=spine Switches=leaf-[1-2]
"""
#: As ``scontrol show topology`` writes it: upper switches list nodes as well.
SHOWN = """SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=leaf-[1-2]
SwitchName=leaf-1 Level=0 LinkSpeed=1 Nodes=n[0-1]
SwitchName=leaf-2 Level=0 LinkSpeed=1 Nodes=n[2-3]
"""
TOPOLOGY_YAML = """
- topology: blocks
  block: {block_sizes: [2], blocks: [{block: b1, nodes: "n[0-3]"}]}
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: spine
        children: leaf-[1-2]
      - {switch: leaf-1, nodes: "n[0-1]"}
      - {switch: leaf-2, nodes: "n[2-3]"}
"""
OWN = """
nodes:
  n[0-1]: {leaf_switch: leaf-1}
  n[2-3]: {leaf_switch: leaf-2}
every_node:
  gpus:
    - {pcie_switch: plx0, nic: mlx5_0, rail: 0}
    - {pcie_switch: plx0, nic: mlx5_1, rail: 1}
"""
#: Two GPUs and two adapters behind one switch, as in a DGX A100, then one GPU with its own adapter.
MATRIX = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tNV12\tPXB\tPXB\tSYS\t0-15\t0\t\tN/A
GPU1\tNV12\t X \tNV12\tPXB\tPXB\tSYS\t0-15\t0\t\tN/A
GPU2\tNV12\tNV12\t X \tSYS\tSYS\tPIX\t16-31\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\t X \tPIX\tSYS
NIC1\tPXB\tPXB\tSYS\tPIX\t X \tSYS
NIC2\tSYS\tSYS\tPIX\tSYS\tSYS\t X

Legend:

  X    = Self
  PIX  = Connection traversing at most a single PCIe bridge

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
  NIC2: mlx5_4
"""
OLD_MATRIX = """        GPU0    GPU1    mlx5_0  CPU Affinity
GPU0     X      PIX     PIX     0-7
GPU1    PIX      X      PIX     0-7
mlx5_0  PIX     PIX      X
"""
NCCL = """<system version="1">
  <cpu host_hash="0x1" numaid="0" affinity="ffff" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="0000:01:00.0" class="0x060400" vendor="0x1000" link_width="16">
      <pci busid="0000:04:00.0" class="0x060400">
        <pci busid="0000:07:00.0" class="0x030200"><gpu dev="0" sm="80" rank="0" gdr="1"/></pci>
        <pci busid="0000:0c:00.0" class="0x020700"><nic><net name="mlx5_0" dev="0" port="1"/></nic></pci>
      </pci>
      <pci busid="0000:0b:00.0" class="0x060400">
        <pci busid="0000:0f:00.0" class="0x030200"><gpu dev="1" sm="80" rank="1" gdr="1"/></pci>
        <pci busid="0000:12:00.0" class="0x020700"><nic><net name="mlx5_1" dev="1" port="1"/></nic></pci>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1"><pci busid="0000:47:00.0" class="0x030200"><gpu dev="2" sm="80" rank="2"/></pci></cpu>
</system>
"""


def job(n_ranks: int = 8, per_node: int = 2, **columns: Any) -> rca.Window:
    places = [
        {"rank": rank, "node": f"n{rank // per_node}", "gpu": rank % per_node}
        | {name: values[rank] for name, values in columns.items()}
        for rank in range(n_ranks)
    ]
    steps = [
        {"rank": rank, "step": step, "start_time": 1e9 + step, "step_seconds": 1.0}
        for rank in range(n_ranks)
        for step in range(3)
    ]
    about = {"job_id": "j", "world_size": n_ranks, "start": 1e9, "end": 1e9 + 4, "ranks": places}
    return rca.Window.from_tables(about, steps=steps)


def nodes(**labels: str) -> dict[str, Any]:
    """What ``kubectl get nodes -o json`` writes, a node for each keyword."""
    return {
        "kind": "List",
        "items": [
            {"kind": "Node", "metadata": {"name": name, "labels": json.loads(text)}}
            for name, text in labels.items()
        ],
    }


def written(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def leaves(topology: HardwareTopology) -> dict[str, str]:
    found = {node: topology.of(node, None, "leaf_switch") for node in topology.nodes}
    return {node: fact.name for node, fact in found.items() if fact is not None}


def column(window: rca.Window, name: str) -> list[Any]:
    return [getattr(place, name) for place in window.job.ranks or ()]


@pytest.mark.parametrize(
    ("expression", "hosts"),
    [
        ("host[1-3,5]", ["host1", "host2", "host3", "host5"]),
        ("a[08-10]b,login", ["a08b", "a09b", "a10b", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_hostlists_are_expanded(expression: str, hosts: list[str]) -> None:
    assert expanded(expression) == hosts


@for_each(
    "expression", ["n[1-", "n]1[", "n[[1]]", "n[a-b]", "n[3-1]", f"n[0-{MAX_HOSTS}]", "n[0-999][0-999]"]
)
def test_a_wrong_hostlist_is_refused(expression: str) -> None:
    with pytest.raises(InvalidInput, match="is no list of hosts"):
        expanded(expression)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("topology.conf", TOPOLOGY_CONF),
        ("shown.txt", SHOWN),
        ("topology.yaml", TOPOLOGY_YAML),
        ("own.yaml", OWN),
    ],
)
def test_every_file_of_switches_gives_the_same_leaves(tmp_path: Path, name: str, text: str) -> None:
    topology = read_topology(written(tmp_path, name, text))
    assert leaves(topology) == {"n0": "leaf-1", "n1": "leaf-1", "n2": "leaf-2", "n3": "leaf-2"}


@pytest.mark.parametrize(
    "label",
    [
        "fabric.topograph.run/tier-0",
        "network.topology.nvidia.com/leaf",
        "topology.k8s.aws/network-node-layer-3",
        "cloud.google.com/gce-topology-subblock",
    ],
)
def test_labels_of_kubernetes_nodes_name_the_leaf(tmp_path: Path, label: str) -> None:
    wide = {"topology.kubernetes.io/zone": "z", "topology.k8s.aws/network-node-layer-1": "top"}
    held = nodes(
        n0=json.dumps({**wide, label: "a"}), n1=json.dumps({**wide, label: "b"}), n2=json.dumps(wide)
    )
    assert leaves(read_topology(written(tmp_path, "nodes.json", held))) == {"n0": "a", "n1": "b"}


def test_the_nearest_of_four_layers_is_the_leaf(tmp_path: Path) -> None:
    labels = {f"topology.k8s.aws/network-node-layer-{layer}": f"nn-{layer}" for layer in range(1, 5)}
    assert leaves(read_topology(written(tmp_path, "nodes.json", nodes(n0=json.dumps(labels))))) == {
        "n0": "nn-4"
    }


def test_a_zone_is_no_switch(tmp_path: Path) -> None:
    held = nodes(n0='{"topology.kubernetes.io/zone": "z"}')
    with pytest.raises(InvalidInput, match=r"topology.kubernetes.io/zone name places with many switches"):
        read_topology(written(tmp_path, "nodes.json", held))


def test_the_matrix_gives_switch_and_nearest_adapter(tmp_path: Path) -> None:
    topology = read_topology(written(tmp_path, "n1.txt", MATRIX), ["n0", "n1"])
    switch = [
        fact and fact.name for gpu in range(3) if (fact := topology.of("n1", gpu, "pcie_switch")) or True
    ]
    adapter = [fact and fact.name for gpu in range(3) if (fact := topology.of("n1", gpu, "nic")) or True]
    assert switch[0] == switch[1] != switch[2]
    # Two adapters are equally near to the first GPUs: which one they use is not known.
    assert adapter == [None, None, "mlx5_4"]
    assert topology.of("n0", 0, "pcie_switch") is None


def test_an_old_matrix_names_adapters_in_its_header(tmp_path: Path) -> None:
    topology = read_topology(written(tmp_path, "any.txt", OLD_MATRIX))
    assert [topology.of("x", gpu, "nic") for gpu in (0, 1)] == [
        topology.of("y", gpu, "nic") for gpu in (0, 1)
    ]
    fact = topology.of("x", 1, "nic")
    assert fact is not None
    assert fact.name == "mlx5_0"


def test_nccl_s_file_gives_address_switch_and_adapter(tmp_path: Path) -> None:
    topology = read_topology(written(tmp_path, "topo.xml", NCCL))
    facts = [
        [
            fact.name if (fact := topology.of("n0", gpu, level)) else None
            for level in ("pci_address", "pcie_switch", "nic")
        ]
        for gpu in range(3)
    ]
    assert facts[:2] == [
        ["0000:07:00.0", "0000:01:00.0", "mlx5_0"],
        ["0000:0f:00.0", "0000:01:00.0", "mlx5_1"],
    ]
    # The third GPU is behind no switch, and as far from one adapter as from the other.
    assert facts[2] == ["0000:47:00.0", None, None]


def test_files_are_merged_into_the_ranks_of_the_window(tmp_path: Path) -> None:
    given = job()
    files = [written(tmp_path, "topology.conf", TOPOLOGY_CONF), written(tmp_path, "topo.xml", NCCL)]
    window = with_topology(given, files)
    assert column(window, "leaf_switch") == ["leaf-1"] * 4 + ["leaf-2"] * 4
    assert column(window, "nic") == ["mlx5_0", "mlx5_1"] * 4
    assert given.job.ranks is not None
    assert given.job.ranks[0].nic is None
    assert window.steps is given.steps


@pytest.mark.parametrize("encode", ["json", "arrow", "directory"])
def test_every_encoding_keeps_the_topology(tmp_path: Path, encode: str) -> None:
    window = with_topology(job(), written(tmp_path, "own.yaml", OWN))
    if encode == "directory":
        window.to_directory(tmp_path / "w")
        again = rca.read_window(tmp_path / "w")
    else:
        again = rca.read_window(window.to_json() if encode == "json" else window.to_arrow())
    assert again.job.ranks == window.job.ranks
    assert column(again, "rail") == ["0", "1"] * 4


def test_ranks_without_a_gpu_have_those_of_the_node_in_order(tmp_path: Path) -> None:
    path = written(tmp_path, "own.yaml", OWN)
    window = with_topology(job(gpu=[None] * 8), path)
    assert column(window, "nic") == ["mlx5_0", "mlx5_1"] * 4
    # Three ranks on two GPUs: which rank uses which one is not known.
    assert set(column(with_topology(job(6, 3, gpu=[None] * 6), path), "nic")) == {None}


def test_a_file_places_ranks_of_which_the_window_says_nothing(tmp_path: Path) -> None:
    ranks = [{"rank": rank, "node": f"n{rank // 2}", "gpu": rank % 2} for rank in range(8)]
    files = [written(tmp_path, "ranks.json", {"ranks": ranks}), written(tmp_path, "t.conf", TOPOLOGY_CONF)]
    window = with_topology(job(node=[None] * 8, gpu=[None] * 8), files)
    assert column(window, "node") == [f"n{rank // 2}" for rank in range(8)]
    assert column(window, "leaf_switch") == ["leaf-1"] * 4 + ["leaf-2"] * 4


def test_a_domain_in_the_name_of_a_node_does_not_matter(tmp_path: Path) -> None:
    held = {"nodes": {f"n{node}.cluster.local": {"leaf_switch": "s"} for node in range(4)}}
    assert set(column(with_topology(job(), written(tmp_path, "o.json", held)), "leaf_switch")) == {"s"}


def test_files_that_contradict_each_other_are_refused_by_name(tmp_path: Path) -> None:
    one = written(tmp_path, "one.conf", TOPOLOGY_CONF)
    other = written(tmp_path, "other.conf", TOPOLOGY_CONF.replace("n[0-1]", "n0").replace("n2,", "n1,n2,"))
    with pytest.raises(
        InvalidInput, match=r"leaf_switch of n1 is leaf-1 in .*one.conf, and leaf-2 in .*other.conf"
    ):
        read_topology([one, other])
    assert merged([read_topology(one), read_topology(one)]).facts == read_topology(one).facts


def test_a_file_that_contradicts_the_window_is_refused(tmp_path: Path) -> None:
    window = job(leaf_switch=["leaf-9"] * 8)
    with pytest.raises(InvalidInput, match="leaf-9 in the window's ranks, and leaf-1 in"):
        with_topology(window, written(tmp_path, "t.conf", TOPOLOGY_CONF))


def test_an_address_is_the_same_in_dcgm_s_spelling(tmp_path: Path) -> None:
    window = job(pci_address=["00000000:07:00.0", "00000000:0F:00.0"] * 4)
    assert column(with_topology(window, written(tmp_path, "t.xml", NCCL)), "nic") == ["mlx5_0", "mlx5_1"] * 4
    other = job(pci_address=["00000000:08:00.0", "00000000:0F:00.0"] * 4)
    with pytest.raises(InvalidInput, match=r"the pci_address of rank 0 is 0000:08:00.0 in the window"):
        with_topology(other, written(tmp_path, "t.xml", NCCL))


def test_the_topology_of_another_cluster_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "t.conf", "SwitchName=s Nodes=gpu[1-4]\n")
    with pytest.raises(
        InvalidInput, match="none of the job's nodes: it names gpu1, gpu2, gpu3; the job runs on n0"
    ):
        with_topology(job(), path)
    with pytest.raises(InvalidInput, match="does not say on which node"):
        with_topology(job(node=[None] * 8), path)


@for_each(
    ("name", "content", "message"),
    [
        ("t.conf", "SwitchName=s Switches=a,b\n", "defines no switch with nodes"),
        ("t.conf", "BlockName=b1 Nodes=n[0-3]\nBlockSizes=2\n", "describes blocks of nodes"),
        ("t.conf", "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1\n", "is both a and b"),
        ("t.conf", "SwitchName=a Nodes=n[1\n", "line 1: 'n.1' is no list of hosts"),
        ("t.yaml", "- topology: t\n  flat: true\n", "has no tree"),
        ("t.yaml", "nodes: [1, 2]\n", "nodes: Input should be a valid dictionary"),
        ("t.yaml", "nodes: {n1: {leaf: s}}\n", "nodes.n1.leaf: Extra inputs"),
        ("t.yaml", "a: [1\n", "is no YAML"),
        ("t.json", '{"items": [', "is no JSON"),
        ("t.xml", NCCL[:300], "is no XML"),
        ("t.xml", '<!DOCTYPE x [<!ENTITY a "b">]><system/>', "declares a document type"),
        ("t.xml", '<system version="1"/>', "has no GPU"),
        ("t.txt", MATRIX[: MATRIX.index("GPU2\tNV12")], "has no row of GPU2"),
        ("t.txt", MATRIX.replace("\tSYS\t0-15", "\t0-15"), "row of GPU0 does not fit the 6 devices"),
        ("t.txt", "hello\n", "is no topology of a known kind"),
        ("t.txt", "", "is no topology of a known kind"),
        (
            "t.yaml",
            "ranks: [{rank: 0, node: a, gpu: 0}, {rank: 0, node: b, gpu: 0}]",
            "rank 0 is listed twice",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        read_topology(written(tmp_path, name, content))
    assert name in str(refused.value)
    assert refused.value.hint


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is a folder"):
        read_topology(tmp_path)
    with pytest.raises(SourceError, match="cannot be read"):
        read_topology(tmp_path / "absent")


def test_wrong_names_in_a_window_are_refused() -> None:
    with pytest.raises(InvalidWindow, match="leaf_switch"):
        job(leaf_switch=["\x1b[1m"] * 8)


def test_a_node_that_occurs_twice_in_one_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "places.yaml"
    path.write_text("nodes:\n  node-0: {leaf_switch: a}\n  node-0: {leaf_switch: b}\n")
    with pytest.raises(InvalidInput, match=r"places\.yaml.*node-0 occurs twice"):
        read_topology(path)
