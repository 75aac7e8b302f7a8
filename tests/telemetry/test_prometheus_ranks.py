"""Devices of Prometheus and ranks of a job: nodes, pods, instances, maps, and what has no place."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import rca
from rca.sources.prometheus.gaps import OFF_BY_DEFAULT
from rca.sources.prometheus.job_devices import JobDevices
from rca.sources.prometheus.kubernetes import Pod, label_name, ordinals, pod_by_name, pod_of
from rca.sources.prometheus.label_map import LabelMap, read_label_map
from rca.sources.prometheus.rank_places import natural, place_ranks
from rca.window.catalogue import resolve
from tests.for_each import for_each

CLOCK = "DCGM_FI_DEV_SM_CLOCK"
COUNTERS = Path("api/deploy/prometheus/dcgm-counters.csv")


def gpu(node: str, index: int, **labels: str) -> dict[str, str]:
    return {"__name__": CLOCK, "Hostname": node, "gpu": str(index), **labels}


def found(
    series: list[dict[str, str]], *pods: Pod, nodes: dict[tuple[str, str], str] | None = None
) -> JobDevices:
    return JobDevices((), tuple(series), (CLOCK,), pods, nodes or {})


def table(
    series: list[dict[str, str]], label_map: LabelMap | None = None, *pods: Pod
) -> dict[int, tuple[str, int]]:
    """Rank -> node and GPU."""
    places = place_ranks(found(series, *pods), label_map or LabelMap())
    return {rank: (device[0], device[1]) for device, rank in places.ranks.items()}


def test_nodes_are_in_natural_order() -> None:
    assert sorted(["n10", "n2", "n1-b", "n1-a"], key=natural) == ["n1-a", "n1-b", "n2", "n10"]
    ranks = table([gpu(node, index) for node in ("node10", "node2") for index in (1, 0)])
    assert ranks == {0: ("node2", 0), 1: ("node2", 1), 2: ("node10", 0), 3: ("node10", 1)}


def test_a_gpu_that_is_missing_keeps_its_rank() -> None:
    series = [gpu(f"node{node}", index) for node in range(3) for index in range(4) if (node, index) != (1, 2)]
    places = place_ranks(found(series), LabelMap())
    assert places.world_size == 12
    assert 6 not in places.ranks.values()
    assert places.ranks["node2", 0, "", ""] == 8
    assert any("no device reports for 1 ranks: 6" in note for note in places.notes)


def test_nodes_of_different_gpus_are_numbered_one_after_the_other() -> None:
    series = [gpu("node0", 4), gpu("node0", 5), gpu("node1", 0), gpu("node1", 1)]
    assert table(series) == {0: ("node0", 4), 1: ("node0", 5), 2: ("node1", 0), 3: ("node1", 1)}


def test_instances_of_a_gpu_are_devices_of_their_own() -> None:
    series = [gpu("node0", 0), *(gpu("node0", 0, GPU_I_ID=part) for part in ("1", "2"))]
    places = place_ranks(found(series), LabelMap())
    assert places.ranks == {("node0", 0, "1", ""): 0, ("node0", 0, "2", ""): 1}
    # One index names two ranks, so it is the place of neither.
    assert [place.gpu for place in places.places] == [None, None]


@pytest.mark.parametrize("label", ["Hostname", "hostname", "node", "instance"])
def test_labels_of_every_version_name_the_node(label: str) -> None:
    value = "node7:9400" if label == "instance" else "node7"
    assert table([{"__name__": CLOCK, "gpu": "0", label: value}]) == {0: ("node7", 0)}


def test_the_pod_of_the_exporter_is_no_machine() -> None:
    assert table([gpu("dcgm-exporter-x7k2p", 0, instance="10.0.0.7:9400")]) == {0: ("10.0.0.7", 0)}


def test_devices_without_an_index_are_ordered_by_uuid() -> None:
    series = [
        {"__name__": "nvidia_smi_utilization_gpu_ratio", "instance": "a:1", "uuid": each} for each in "qp"
    ]
    places = place_ranks(found(series), LabelMap())
    assert places.ranks == {("a", -1, "", "p"): 0, ("a", -1, "", "q"): 1}


def test_what_names_no_device_is_listed_with_the_label_that_would() -> None:
    places = place_ranks(found([gpu("node0", 0), {"__name__": CLOCK, "Hostname": "node1"}]), LabelMap())
    assert any("1 series name no device" in note and "a label gpu or UUID" in note for note in places.notes)
    with pytest.raises(rca.InvalidInput, match="no device of the job has both") as refused:
        place_ranks(found([{"__name__": CLOCK}]), LabelMap())
    assert "--labels" in str(refused.value.hint)


def kubeflow(kind: str, index: int, name: str = "llama") -> dict[str, str]:
    return {
        "namespace": "ml",
        "pod": f"{name}-{kind}-{index}",
        "label_training_kubeflow_org_job_name": name,
        "label_training_kubeflow_org_replica_type": kind,
        "label_training_kubeflow_org_replica_index": str(index),
    }


def test_rank_is_pod_times_gpus_plus_gpu_and_masters_come_first() -> None:
    held = [
        pod_of(each, "llama")
        for each in (kubeflow("worker", 1), kubeflow("worker", 0), kubeflow("master", 0))
    ]
    pods = [pod for _, pod in filter(None, held)]
    series = [
        gpu(node, index, pod=pod, namespace="ml")
        for pod, node in (("llama-master-0", "c"), ("llama-worker-0", "a"), ("llama-worker-1", "b"))
        for index in (4, 5)
    ]
    assert table(series, None, *pods) == {
        0: ("c", 4), 1: ("c", 5), 2: ("a", 4), 3: ("a", 5), 4: ("b", 4), 5: ("b", 5),
    }  # fmt: skip


def test_the_pod_of_a_device_is_part_of_its_place() -> None:
    used = {
        "exported_pod": "llama-0",
        "exported_namespace": "ml",
        "pod": "dcgm-exporter-x7k2p",
        "namespace": "gpu",
    }
    series = [gpu("a", 0, **used), gpu("a", 1, pod="dcgm-exporter-x7k2p", namespace="gpu"), gpu("a", 2)]
    places = place_ranks(found(series), LabelMap()).places
    assert [(each.pod, each.namespace) for each in places] == [("llama-0", "ml"), (None, None), (None, None)]


def test_groups_without_devices_hold_no_ranks_and_missing_pods_keep_theirs() -> None:
    pods = [Pod("ml", "l", "launcher"), *(Pod("ml", f"w{index}", "worker", 0, index) for index in (0, 2))]
    assert ordinals(pods, [("ml", "w0"), ("ml", "w2")]) == {("ml", "w0"): 0, ("ml", "w2"): 2}


@for_each(
    ("title", "labels", "pod"),
    [
        (
            "Volcano",
            {"volcano.sh/job-name": "j", "volcano.sh/task-spec": "worker", "volcano.sh/task-index": "3"},
            ("worker", 0, 3),
        ),
        (
            "JobSet",
            {
                "jobset.sigs.k8s.io/jobset-name": "j",
                "jobset.sigs.k8s.io/replicatedjob-name": "node",
                "jobset.sigs.k8s.io/job-index": "2",
                "batch.kubernetes.io/job-completion-index": "5",
                "batch.kubernetes.io/job-name": "j-node-2",
            },
            ("node", 2, 5),
        ),
        (
            "Indexed Job",
            {"batch.kubernetes.io/job-name": "j", "batch.kubernetes.io/job-completion-index": "4"},
            ("", 0, 4),
        ),
        (
            "Kueue pod group",
            {"kueue.x-k8s.io/pod-group-name": "j", "kueue.x-k8s.io/pod-group-pod-index": "1"},
            ("", 0, 1),
        ),
        (
            "LeaderWorkerSet",
            {
                "leaderworkerset.sigs.k8s.io/name": "j",
                "leaderworkerset.sigs.k8s.io/group-index": "1",
                "leaderworkerset.sigs.k8s.io/worker-index": "2",
            },
            ("", 1, 2),
        ),
    ],
)
@for_each("prefix", ["label_", "pod_label_", ""])
def test_labels_of_controllers_give_the_pod(
    title: str, labels: dict[str, str], pod: tuple[str, int, int], prefix: str
) -> None:
    series = {prefix + label_name(label): value for label, value in labels.items()}
    held = pod_of({"namespace": "ml", "pod": "p", **series}, "j")
    assert held is not None
    assert (held[0].title, held[1]) == (title, Pod("ml", "p", *pod))
    assert pod_of({"namespace": "ml", "pod": "p", **series}, "other") is None


def test_the_first_pod_of_every_set_follows_the_last_of_the_one_before() -> None:
    pods = [Pod("ml", f"{outer}{index}", "node", outer, index) for outer in range(2) for index in range(3)]
    numbers = ordinals(pods, [("ml", pod.name) for pod in pods])
    assert [numbers["ml", pod.name] for pod in pods] == [0, 1, 2, 3, 4, 5]


@for_each(
    ("name", "pod"),
    [
        ("j-worker-12", ("worker", 0, 12)),
        ("j-3-x7k2p", ("", 0, 3)),
        ("j-3-24567", ("", 0, 3)),
        ("j-node-1-3-x7k2p", ("node", 1, 3)),
        ("j-7", ("", 0, 7)),
        ("j-2-worker-0", None),
        ("other-worker-0", None),
        ("j-worker", None),
    ],
)
def test_names_of_pods_are_understood(name: str, pod: tuple[str, int, int] | None) -> None:
    assert pod_by_name("ml", name, "j") == (None if pod is None else Pod("ml", name, *pod))


def test_a_map_places_ranks(tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text("labels: {gpu: slot}\nranks: {b: [0, 1], a: {0: 3, 1: 2}}\n")
    label_map = read_label_map(tmp_path / "map.yaml")
    series = [
        {"__name__": CLOCK, "Hostname": f"{node}.example", "slot": str(index)}
        for node in "ab"
        for index in (0, 1)
    ]
    assert table(series, label_map) == {
        0: ("b.example", 0),
        1: ("b.example", 1),
        2: ("a.example", 1),
        3: ("a.example", 0),
    }


def test_a_map_orders_nodes() -> None:
    series = [gpu(node, index) for node in "abc" for index in (0, 1)]
    places = place_ranks(found(series), LabelMap(nodes=("c", "a")))
    assert [place.node for place in places.places] == ["c", "c", "a", "a"]
    assert "1 nodes are not in the map: b" in places.notes


def test_a_label_may_hold_the_rank() -> None:
    label_map = LabelMap.model_validate({"labels": {"rank": "global_rank"}})
    assert table([gpu("a", 0, global_rank="1"), gpu("a", 1, global_rank="0")], label_map) == {
        0: ("a", 1),
        1: ("a", 0),
    }
    with pytest.raises(rca.InvalidInput, match="same rank in the label global_rank"):
        table([gpu("a", 0, global_rank="1"), gpu("a", 1, global_rank="1")], label_map)


@for_each(
    ("text", "said"),
    [
        ("labels: [", "is no YAML"),
        ("lables: {}", "lables: Extra inputs"),
        ("labels: {gpu: 'a b'}", "labels.gpu"),
        ("ranks: {a: [0, 0]}", "rank 0 is on two GPUs"),
        ("nodes: [a, a]", "names a node twice"),
        ("- a", "needs names and values"),
    ],
)
def test_a_map_that_cannot_be_used_says_where(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "map.yaml").write_text(text)
    with pytest.raises(rca.InvalidInput) as refused:
        read_label_map(tmp_path / "map.yaml")
    assert said in str(refused.value)


def test_the_counters_file_turns_on_what_a_diagnosis_uses() -> None:
    rows = [
        row for row in csv.reader(COUNTERS.read_text().splitlines()) if row and not row[0].startswith("#")
    ]
    names = [row[0] for row in rows]
    assert all(len(row) == 3 and row[1].strip() in {"gauge", "counter"} for row in rows)
    assert len(set(names)) == len(names)
    assert set(OFF_BY_DEFAULT) <= set(names)
    assert [name for name in names if (signal := resolve(name)) is None or not signal.all_channels()] == []


def test_a_pod_that_moved_counts_on_its_last_node() -> None:
    pods = [Pod("ml", f"w-{index}", "", 0, index) for index in range(2)]
    series = [
        gpu(node, index, pod=pod, namespace="ml")
        for pod, node in (("w-0", "old"), ("w-0", "a"), ("w-1", "b"))
        for index in range(2)
    ]
    places = place_ranks(found(series, *pods, nodes={("ml", "w-0"): "a"}), LabelMap())
    assert [place.node for place in places.places] == ["a", "a", "b", "b"]
    assert any("pod w-0 moved: only samples of a are used, not of old" in note for note in places.notes)


def test_a_pod_that_replaced_another_has_its_ranks() -> None:
    pods = [Pod("ml", name, "", 0, 0) for name in ("j-0-aaaaa", "j-0-zzzzz")]
    series = [gpu(node, 0, pod=pod.name, namespace="ml") for pod, node in zip(pods, "ab", strict=True)]
    devices = JobDevices((), tuple(series), (CLOCK,), tuple(pods), {}, frozenset({("ml", "j-0-zzzzz")}))
    places = place_ranks(devices, LabelMap())
    assert [place.node for place in places.places] == ["b"]
    assert any("j-0-zzzzz and j-0-aaaaa have the same index" in note for note in places.notes)


def test_the_map_of_the_guide_can_be_read(tmp_path: Path) -> None:
    guide = Path("docs/how-to/prometheus.md").read_text(encoding="utf-8")
    (tmp_path / "map.yaml").write_text(guide.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    label_map = read_label_map(tmp_path / "map.yaml")
    assert label_map.nodes == ("node-b", "node-a")
    assert label_map.ranks_by_gpu() == {"node-b": {0: 0, 1: 1}, "node-a": {0: 3, 1: 2}}
    assert all(label_map.labels.model_dump().values())
