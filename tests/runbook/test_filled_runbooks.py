"""Runbooks with an incident's nodes, ranks and devices in them, and those of a site."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_lint import check

from rca.diagnosis.places import Place as RankInAnswer
from rca.diagnosis.result import Diagnosis, Shared
from rca.errors import InvalidInput, SourceError
from rca.runbook.procedures import DiagnosedCause, Library, Runbook, runbook
from rca.runbook.procedures.pages import markdown, text
from rca.runbook.procedures.sources import SECTIONS
from rca.window.job import Job, RankPlace
from tests.for_each import for_each

Varied = Callable[..., Diagnosis]
LIBRARY = Library.read()


def job(*places: RankPlace) -> Job:
    return Job(job_id="llama-7b", world_size=8, start=0.0, end=1.0, ranks=places)


def filled(
    diagnosis: Diagnosis, cause: str = "gpu_throttling", held: Job | None = None, **more: Any
) -> Runbook:
    return runbook(LIBRARY, cause, incident=DiagnosedCause.of(diagnosis, cause, held), **more)


def commands(found: Runbook) -> list[str]:
    steps = [step for section in SECTIONS for step in getattr(found, section)]
    return [line for each in (*steps, *found.roll_back) for line in each.commands]


def test_nodes_and_ranks_come_from_the_diagnosis(throttled: Diagnosis) -> None:
    found = filled(throttled)
    assert found.places == ["rank 6 on node-3"]
    assert found.diagnosis_id == "d-1"
    assert found.verify[0].commands == [
        "ssh node-3 'nvidia-smi -q -i GPU -d PERFORMANCE,CLOCK,TEMPERATURE,POWER'"
    ]
    gpu = next(each for each in found.replace if each.written == "GPU")
    assert gpu.find.startswith("ssh node-3 'nvidia-smi --query-gpu=index")
    assert "NODE" not in {each.written for each in found.replace}


def test_an_escalation_says_when_it_began(throttled: Diagnosis) -> None:
    found = filled(throttled, "memory_pressure")
    assert found.escalate[0].send == "node, list of processes, when it began: step 12"
    unfilled = runbook(LIBRARY, "memory_pressure")
    assert unfilled.escalate[0].send == "node, list of processes, when it began"


def test_devices_come_from_the_places_of_the_window(throttled: Diagnosis) -> None:
    place = RankPlace(rank=6, node="node-3", gpu=2, pci_address="00000000:3B:00.0", nic="mlx5_2")
    found = filled(throttled, held=job(place))
    assert found.places == ["rank 6 on node-3, GPU 2, PCI 0000:3b:00.0, port mlx5_2"]
    assert "nvidia-smi -q -i 2 -d" in found.verify[0].commands[0]
    assert "GPU" not in {each.written for each in found.replace}
    slot = runbook(LIBRARY, "pcie_degradation", incident=DiagnosedCause.of(throttled, "x", job(place)))
    assert "lspci -vv -s 0000:3b:00.0" in slot.verify[1].commands[0]


def test_devices_come_from_the_answer_alone(varied: Varied, throttled: Diagnosis) -> None:
    place = RankInAnswer(rank=6, node="node-3", gpu=2, pci_address="0000:3b:00.0")
    cause = throttled.causes[0].model_copy(update={"places": [place]})
    found = filled(varied(causes=[cause]))
    assert found.places == ["rank 6 on node-3, GPU 2, PCI 0000:3b:00.0"]


def test_pod_and_namespace_come_from_the_window_or_the_answer(varied: Varied, throttled: Diagnosis) -> None:
    known = {"rank": 6, "node": "node-3", "pod": "llama-worker-3", "namespace": "ml"}
    cause = throttled.causes[0].model_copy(update={"places": [RankInAnswer(**known)]})
    for found in (
        filled(throttled, "runtime_gc", job(RankPlace(**known)), platform="kubernetes"),
        filled(
            varied(causes=[cause.model_copy(update={"cause": "runtime_gc"})]),
            "runtime_gc",
            platform="kubernetes",
        ),
    ):
        assert any("--namespace ml llama-worker-3" in line for line in commands(found))
        assert not {"POD", "NAMESPACE"} & {each.written for each in found.replace}


def test_a_shared_adapter_is_the_port(varied: Varied, throttled: Diagnosis) -> None:
    part = Shared(level="nic", name="mlx5_1", within="node-3", ranks=[6, 7], nodes=["node-3"])
    cause = throttled.causes[0].model_copy(update={"cause": "nic_degradation", "shared": part})
    found = filled(varied(causes=[cause]), "nic_degradation")
    assert found.verify[0].commands == ["ssh node-3 'ibstat mlx5_1'"]


def test_a_command_is_written_for_each_of_the_first_nodes(varied: Varied, throttled: Diagnosis) -> None:
    nodes = [f"node-{number}" for number in range(5)]
    cause = throttled.causes[0].model_copy(update={"nodes": nodes, "ranks": [0, 1, 2, 3, 4]})
    found = filled(varied(causes=[cause]), platform="slurm")
    assert [line.split()[1] for line in found.verify[0].commands] == nodes[:3]
    assert found.notes == ["Commands are written for the first places. Repeat them on 2 more."]
    # One command for all nodes.
    assert found.contain[0].commands == [
        "scontrol update NodeName=node-0,node-1,node-2,node-3,node-4 State=DRAIN Reason=rca-d-1"
    ]


def test_more_nodes_than_a_person_drains_at_once_are_not_filled_in(
    varied: Varied, throttled: Diagnosis
) -> None:
    cause = throttled.causes[0].model_copy(update={"nodes": [f"n{number}" for number in range(33)]})
    found = filled(varied(causes=[cause]), platform="kubernetes")
    assert found.contain[0].commands == ["kubectl cordon NODES"]


@for_each(
    "name",
    [
        "a; rm -rf /",
        "$(reboot)",
        "-oProxyCommand=reboot",
        "a b",
        "a'b",
        "a\nb",
        "`id`",
        "a/b",
        "ä",
        "ALL",
        "all",
    ],
)
def test_a_name_that_a_shell_interprets_is_in_no_command(
    varied: Varied, throttled: Diagnosis, name: str
) -> None:
    cause = throttled.causes[0].model_copy(update={"nodes": [name]})
    group = throttled.stragglers[0].model_copy(update={"nodes": [name]})
    hostile = varied(causes=[cause], stragglers=[group], diagnosis_id=name, job_id=name)
    place = RankPlace(rank=6, node="node-1", gpu=0, nic="eth0;reboot", pci_address="$(reboot)")
    for cause_id in ("gpu_throttling", "hang", "nic_degradation", "pcie_degradation"):
        for platform in ("kubernetes", "slurm", "host"):
            found = filled(hostile, cause_id, job(place), platform=platform)
            for line in commands(found):
                check(line)
                assert "reboot)" not in line
                assert "ProxyCommand" not in line
                assert name not in shlex.split(line)
            assert (
                "Some nodes are left out, because a shell or Slurm would misread their names." in found.notes
            )
            assert found.places == ["nodes that are left out because of their names"]
            assert "the whole job" not in text(found)
            assert "\n# " not in markdown(found)[1:]


#: Lines of one node in the files of hosts of Open MPI, MPICH and DeepSpeed, and with its domain.
LINES = ["{}", "{} slots=8", "{}:8", "{},max=1", "{}.example.org"]


@pytest.mark.system
@pytest.mark.parametrize(
    ("node", "others"),
    [
        ("node-1", ["node-10 slots=8", "node-1-x", "node-1_b", "my-node-1"]),
        ("gpu.1", ["gpu-1 slots=8", "gpux1", "gpu.12"]),
    ],
)
def test_the_lines_of_one_node_are_left_out_of_the_file_of_hosts_and_put_back(
    varied: Varied, throttled: Diagnosis, tmp_path: Path, node: str, others: list[str]
) -> None:
    cause = throttled.causes[0].model_copy(update={"nodes": [node]})
    found = filled(varied(causes=[cause]), platform="host")
    changing, undoing = (line for line in commands(found) if "HOSTFILE" in line)
    own = [line.format(node) for line in LINES]
    hosts = tmp_path / "HOSTFILE"
    hosts.write_text("\n".join([*own, *others]))
    subprocess.run(["/bin/sh", "-c", changing], cwd=tmp_path, check=True)
    assert hosts.read_text().splitlines() == [*(f"#{line}" for line in own), *others]
    subprocess.run(["/bin/sh", "-c", undoing], cwd=tmp_path, check=True)
    assert hosts.read_text().splitlines() == [*own, *others]


def test_names_in_prose_move_no_cursor_and_add_no_block(varied: Varied, throttled: Diagnosis) -> None:
    action = throttled.actions[0].model_copy(update={"causes": ["gpu_throttling"], "action": "x\x1b[2J\n# y"})
    found = filled(varied(actions=[action], diagnosis_id="d\x1b[2J\n# z"))
    for shown in (text(found), markdown(found)):
        assert "\x1b" not in shown
        assert not {"# y", "# z"} & {line[:3] for line in shown.splitlines()}


@pytest.mark.parametrize(
    ("job_id", "number"), [("4711", "4711"), ("slurm-4711_3", "4711_3"), ("llama", "JOB")]
)
def test_the_number_of_a_slurm_job_is_its_id(varied: Varied, job_id: str, number: str) -> None:
    found = filled(varied(job_id=job_id), platform="slurm")
    assert found.fix[-1].commands == [f"scontrol requeue {number}"]


def test_a_cause_that_the_diagnosis_does_not_name_is_said_to_be_none(throttled: Diagnosis) -> None:
    found = filled(throttled, "hang")
    assert found.notes == ["The diagnosis does not name hang. The places are those of its stragglers."]
    assert found.places == ["rank 6 on node-3"]


def test_actions_of_the_diagnosis_are_shown_before_the_fix(varied: Varied, throttled: Diagnosis) -> None:
    action = throttled.actions[0].model_copy(update={"causes": ["gpu_throttling"]})
    found = filled(varied(actions=[action]))
    assert found.plan == ["drain_node: saves 29 ms per step, costs 10 min once, pays off after 20,690 steps"]
    assert "Planned: drain_node: saves 29 ms" in text(found)
    assert "- Planned: drain_node: saves 29 ms" in markdown(found)
    assert filled(varied(actions=[action]), "hang").plan == []


def test_a_diagnosis_without_places_leaves_everything_open(varied: Varied) -> None:
    found = filled(varied(causes=[], stragglers=[]), "network_congestion")
    assert found.places == []
    assert "the whole job" in text(found)
    assert {"NODE", "PORT"} <= {each.written for each in found.replace}


# A site's own runbooks


def site(folder: Path, **content: str) -> Library:
    for name, lines in content.items():
        (folder / f"{name}.yaml").write_text(lines)
    return Library.read(folder)


OWN = """
verify:
  - do: Ask the rack's own tool about {{ node }}.
    at: node
    run: rackctl heat {{ rack }}
    confirmed: It is hot.
    otherwise: It is cold.
contain:
  - use: cordon
escalate:
  - {when: always, to: "{{ infrastructure_contact }}", send: the rack}
confirm:
  - use: diagnose_again
"""


def test_a_site_replaces_a_runbook_and_shared_entries(tmp_path: Path, throttled: Diagnosis) -> None:
    library = site(
        tmp_path,
        gpu_throttling=OWN,
        common="platform: slurm\nvalues: {infrastructure_contact: '#gpu-oncall', rack: r7}\n"
        "placeholders: {rack: {meaning: the rack}}\nrun_on: {slurm: {node: 'rsh {{ node }}'}}\n"
        "steps: {cordon: {do: Fence {{ nodes }}., run: 'fence {{ nodes }}', changes: true, "
        "undo: {do: Unfence., run: 'unfence {{ nodes }}'}}}\n".replace(
            "do: Fence {{ nodes }}.", "do: 'Fence {{ nodes }}.'"
        ),
    )
    found = runbook(library, "gpu_throttling", incident=DiagnosedCause.of(throttled, "gpu_throttling"))
    assert (found.of_site, found.platform) == (True, "slurm")
    assert found.verify[0].commands == ["rsh node-3 'rackctl heat r7'"]
    assert found.contain[0].commands == ["fence node-3"]
    assert found.roll_back[0].commands == ["unfence node-3"]
    assert found.escalate[0].to == "#gpu-oncall"
    other = runbook(library, "gpu_memory_errors")
    assert (other.of_site, other.contain[0].commands) == (False, ["fence NODES"])
    # Where the site says nothing, all is as before.
    assert (
        runbook(library, "hang", platform="host").verify == runbook(LIBRARY, "hang", platform="host").verify
    )


@for_each(
    ("name", "content", "said"),
    [
        ("gpu_throtling", OWN, "gpu_throtling.yaml is named after no cause"),
        ("hang", "verify: [", "is no YAML"),
        ("hang", "- 1", "needs names and values"),
        ("hang", OWN, "there is no placeholder rack"),
        ("hang", OWN.replace("{{ rack }}", "{{rack}}"), "{{ with one name"),
        ("hang", OWN.replace("{{ rack }}", "r").replace("use: cordon", "use: fence"), "no shared step fence"),
        ("hang", OWN.replace("confirmed", "confirm"), "verify.0.confirm"),
        ("hang", "contain: [{do: x, changes: true}]", "verify"),
        ("hang", OWN.replace("  - use: cordon", "  - {do: x, changes: true}"), "needs `undo`"),
        ("hang", OWN.replace("  - use: cordon", "  - {do: x, undo: {do: y}}"), "needs `changes: true`"),
        ("hang", OWN.replace("  - use: cordon", "  - {run: x}"), "needs `do`"),
        ("common", "platform: vm", "platform"),
        ("common", "values: {rack: 1}", "values.rack"),
        ("common", "values: {rack: r7}", "there is no placeholder rack"),
        ("common", "steps: {mine: {use: cordon}}", "uses no other"),
        ("common", "roll_back: [{use: mine}]", "no shared step mine"),
    ],
)
def test_a_wrong_file_of_a_site_is_refused_by_name(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        site(tmp_path, **{name: content})
    assert said in str(caught.value)
    assert caught.value.hint


def test_a_folder_without_runbooks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no runbook"):
        Library.read(tmp_path)
    with pytest.raises(SourceError, match="cannot be read"):
        Library.read(tmp_path / "none")


def test_an_unknown_cause_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="no cause 'gremlins'") as caught:
        runbook(LIBRARY, "gremlins")
    assert "gpu_throttling" in (caught.value.hint or "")


def test_the_example_of_the_guide_can_be_used(tmp_path: Path, throttled: Diagnosis) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "runbooks.md").read_text()
    library = site(tmp_path, common=guide.split("```yaml\n")[1].split("```")[0])
    found = runbook(library, "gpu_throttling", incident=DiagnosedCause.of(throttled, "gpu_throttling"))
    assert found.verify[0].commands[0].startswith("ssh -J bastion node-3 ")
    assert found.contain[0].commands == ["fence node-3"]
