"""The examples of `docs/examples`, executed: scripts by a shell, an action as Robusta calls it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import robusta_api
import yaml
from receivers import Receiver, answers, promises_more_than_it_sends, receiver
from slack_limits import refused

from rca_api.hooks.schemas import AlertAnswer, AlertAnswers, AlertGroup
from tests.for_each import for_each

pytestmark = [pytest.mark.system, pytest.mark.smoke]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
WINDOWS = ROOT / "data" / "windows"
SLACK = EXAMPLES / "slack" / "post-diagnosis.sh"
SLOW, HEALTHY = WINDOWS / "cpu-contention-node", WINDOWS / "healthy"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A search path on which `rca` is this checkout."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "rca").write_text(f'#!/bin/sh\nexec {sys.executable} -m rca.cli "$@"\n')
    (folder / "rca").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def shell(path: str, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": path, "COLUMNS": "120"} | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def job() -> dict[str, Any]:
    """The manifest of the Kubernetes Job."""
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / "kubernetes" / "diagnose-job.yaml").read_text())
    return found


def run_in_pod(path: str, window: Path, folder: Path) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run the container's command with its volumes in `folder`; also gives the termination message."""
    (container,) = job()["spec"]["template"]["spec"]["containers"]
    (folder / "tmp").mkdir()
    # Where the container has what lies elsewhere here.
    places = {"/telemetry": window, "/tmp": folder / "tmp", "/dev/termination-log": folder / "end"}  # noqa: S108
    assert places.keys() - {"/dev/termination-log"} < {
        mount["mountPath"] for mount in container["volumeMounts"]
    }
    *program, script = container["command"]
    assert all(place in script for place in places)
    # In one pass: the checkout itself may lie under /tmp.
    script = re.sub("|".join(places), lambda found: str(places[found[0]]), script)
    ran = shell(path, *program, script)
    return ran, (folder / "end").read_text()


@pytest.fixture(scope="module")
def slow_pod(path: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """The Kubernetes Job on the telemetry of a slow job."""
    return run_in_pod(path, SLOW, tmp_path_factory.mktemp("pod"))


def test_the_kubernetes_job_fails_with_the_verdict_and_keeps_the_summary(slow_pod: tuple[Any, str]) -> None:
    ran, message = slow_pod
    assert ran.returncode == 10
    assert message.startswith("# FAIL-SLOW: node `node-1`")
    assert "- **Owner:** infrastructure" in message
    assert len(message.encode()) <= 4096
    assert ran.stdout.startswith(message)
    assert "## Who" in ran.stdout


@pytest.mark.long
def test_the_kubernetes_job_completes_for_a_healthy_job(path: str, tmp_path: Path) -> None:
    ran, message = run_in_pod(path, HEALTHY, tmp_path)
    assert ran.returncode == 0
    assert message.startswith("# HEALTHY")


@pytest.mark.long
def test_the_kubernetes_job_shows_the_error_of_what_cannot_be_read(path: str, tmp_path: Path) -> None:
    ran, message = run_in_pod(path, tmp_path / "none", tmp_path)
    assert ran.returncode == 2
    # Kubernetes takes the end of the log for an empty message.
    assert message == ""
    assert "error (" in ran.stderr


def test_the_kubernetes_job_runs_locked_down_and_is_not_repeated_by_the_kubelet() -> None:
    found = job()
    assert (found["apiVersion"], found["kind"]) == ("batch/v1", "Job")
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    # A podFailurePolicy is allowed with this alone.
    assert pod["restartPolicy"] == "Never"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"requests", "limits"} <= container["resources"].keys()
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert found["spec"]["activeDeadlineSeconds"] > 0


def test_the_kubernetes_job_replaces_disrupted_pods_alone() -> None:
    spec = job()["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    # The first rule that fits decides, and a disrupted container has an exit code too.
    disrupted, failed = spec["podFailurePolicy"]["rules"]
    assert disrupted["action"] == "Ignore"
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert failed["action"] == "FailJob"
    assert failed["onExitCodes"] == {"containerName": container["name"], "operator": "NotIn", "values": [0]}


def test_the_kubernetes_job_fits_the_published_schema() -> None:
    validation = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    validation.validate(job(), "1.31", strict=True)


@pytest.fixture(scope="module")
def rundeck() -> dict[str, Any]:
    """The definition of the Rundeck job."""
    (found,) = yaml.safe_load((EXAMPLES / "rundeck" / "diagnose-training-job.yaml").read_text())
    assert isinstance(found, dict)
    return found


def run_step(path: str, rundeck: dict[str, Any], folder: Path, window: Path) -> Any:
    """Run the script step as Rundeck does: from a file, with options in the environment."""
    (step,) = rundeck["sequence"]["commands"]
    script = folder / "step.sh"
    script.write_text(step["script"])
    script.chmod(0o755)
    values = {option["name"]: option.get("value", str(window)) for option in rundeck["options"]}
    return shell(path, script, **{f"RD_OPTION_{name.upper()}": value for name, value in values.items()})


@pytest.mark.long
def test_the_rundeck_job_shows_the_diagnosis_and_its_runbook(
    path: str, rundeck: dict[str, Any], tmp_path: Path
) -> None:
    ran = run_step(path, rundeck, tmp_path, SLOW)
    assert (ran.returncode, ran.stderr) == (10, "")
    assert ran.stdout.startswith("# FAIL-SLOW: node `node-1`")
    assert "Runbook cpu_contention: " in ran.stdout
    assert "kubectl cordon node-1" in ran.stdout


@pytest.mark.long
def test_the_rundeck_job_succeeds_for_a_healthy_job_and_fails_without_an_answer(
    path: str, rundeck: dict[str, Any], tmp_path: Path
) -> None:
    healthy = run_step(path, rundeck, tmp_path, HEALTHY)
    assert (healthy.returncode, healthy.stderr) == (0, "")
    assert "unbook" not in healthy.stdout.split("\n## ")[-1]
    unreadable = run_step(path, rundeck, tmp_path, tmp_path / "--none")
    assert (unreadable.returncode, unreadable.stdout) == (2, "")


def stub(folder: Path, name: str, script: str) -> str:
    """A search path on which a program is replaced by a script."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@for_each(
    ("window", "code", "says"),
    [
        (SLOW, 10, "FAIL-SLOW: node `node-1`"),
        (EXAMPLES / "slack", 2, "no diagnosis; run: rca diagnose "),
        (None, 0, None),
    ],
)
def test_the_epilog_of_slurm_notes_the_headline_in_the_job(
    path: str, tmp_path: Path, window: Path | None, code: int, says: str | None
) -> None:
    place = tmp_path / f"{code}"
    place.mkdir()
    if window is not None:
        shutil.copytree(window, place / "4711")
    noted = place / "noted"
    found = stub(place, "scontrol", f'printf "%s\\n" "$@" > {noted}')
    ran = shell(
        f"{found.split(':')[0]}:{path}", EXAMPLES / "slurm" / "epilog.sh",
        SLURM_JOB_ID="4711", RCA_TELEMETRY=str(place),
    )  # fmt: skip
    assert ran.returncode == code
    assert noted.exists() == (says is not None)
    if says is not None:
        verb, of, comment = noted.read_text().splitlines()
        assert (verb, of) == ("update", "JobId=4711")
        assert comment.startswith(f"AdminComment={says}")
        assert (place / "4711" / "diagnosis.md").exists() == (code == 10)


@pytest.mark.parametrize(
    ("verdict", "broken", "code", "shown"),
    [
        (30, "--diagnosis", 30, "runbook unknown --platform kubernetes"),
        (10, "--diagnosis", 10, "runbook unknown --platform kubernetes"),
        (20, "--diagnosis", 20, ""),
        (30, "*", 1, ""),
    ],
)
def test_the_rundeck_job_shows_the_runbook_of_open_causes_and_hides_no_error(
    rundeck: dict[str, Any], tmp_path: Path, verdict: int, broken: str, code: int, shown: str
) -> None:
    script = f"""case "$1 $2" in
      diagnose*) exit {verdict} ;;
      "runbook "{broken}) echo broken >&2; exit 2 ;;
    esac
    echo "$@" """
    ran = run_step(stub(tmp_path, "rca", script), rundeck, tmp_path, SLOW)
    assert (ran.returncode, ran.stdout.strip()) == (code, shown)
    assert "broken\nNo runbook of a cause" in ran.stderr


def test_the_rundeck_job_reads_files_and_folders_alone(rundeck: dict[str, Any], tmp_path: Path) -> None:
    ran = run_step(stub(tmp_path, "rca", "exit 0"), rundeck, tmp_path, Path("/dev/zero"))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "neither a file nor a folder" in ran.stderr
    (pattern,) = [option["regex"] for option in rundeck["options"] if option["name"] == "telemetry"]
    assert re.fullmatch(pattern, "/data/jobs/llama-7b-17.json")
    for refused_path in ("/dev/zero", "/proc/kcore", "data", "--help", "/data/$(id)", "/a b", ""):
        assert not re.fullmatch(pattern, refused_path)


def test_the_rundeck_job_has_what_its_format_needs(rundeck: dict[str, Any]) -> None:
    assert {"name", "description", "loglevel", "sequence"} <= rundeck.keys()
    assert rundeck["loglevel"] in {"DEBUG", "VERBOSE", "INFO", "WARN", "ERROR"}
    assert rundeck["sequence"]["strategy"] in {"node-first", "step-first", "parallel"}
    script = rundeck["sequence"]["commands"][0]["script"]
    # Rundeck replaces words between two of these.
    assert "@" not in script
    known = {f"RD_OPTION_{option['name'].upper()}" for option in rundeck["options"]}
    assert set(re.findall(r"RD_OPTION_\w+", script)) == known
    for option in rundeck["options"]:
        if option.get("enforced"):
            assert option["value"] in option["values"]


def posted(path: str, slack: Receiver, window: Path) -> Any:
    return shell(path, SLACK, window, SLACK_WEBHOOK_URL=slack.url)


def test_slack_gets_a_message_that_it_takes(path: str) -> None:
    with receiver(answers(200, body=b"ok")) as slack:
        ran = posted(path, slack, SLOW)
    assert (ran.returncode, ran.stdout, ran.stderr) == (10, "", "")
    ((headers, body),) = slack.received
    assert headers["content-type"] == "application/json"
    message = json.loads(body)
    assert refused(message) == []
    assert "node-1" in message["text"]
    titles = [block["text"]["text"] for block in message["attachments"][0]["blocks"][:-1]]
    assert any(title.startswith("*Do this*") for title in titles)


@pytest.mark.long
def test_slack_hears_nothing_about_a_healthy_job_and_a_refusal_is_an_error(path: str) -> None:
    with receiver(answers(403, body=b"invalid_token")) as slack:
        assert posted(path, slack, HEALTHY).returncode == 0
        assert slack.received == []
        ran = posted(path, slack, SLOW)
    assert ran.returncode == 1
    assert "403" in ran.stderr


def test_the_address_of_slack_is_no_argument_of_a_program(tmp_path: Path) -> None:
    stub(tmp_path, "rca", "exit 10")
    path = stub(tmp_path, "curl", f'echo "$@" > {tmp_path}/arguments; cat > {tmp_path}/config')
    ran = shell(path, SLACK, SLOW, SLACK_WEBHOOK_URL="https://hooks.example.org/hush\n")
    assert (ran.returncode, ran.stderr) == (10, "")
    assert (tmp_path / "config").read_text() == 'url = "https://hooks.example.org/hush"\n'
    assert "hush" not in (tmp_path / "arguments").read_text()


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        (["folder"], ""),
        (["folder"], 'https://x/"\noutput = "/tmp/y'),
        ([], "https://x"),
        (["a", "b"], "https://x"),
    ],
)
def test_the_script_for_slack_checks_argument_and_address_first(
    tmp_path: Path, arguments: list[str], address: str
) -> None:
    ran = shell(stub(tmp_path, "rca", "exit 0"), SLACK, *arguments, SLACK_WEBHOOK_URL=address)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("usage: SLACK_WEBHOOK_URL=")


@pytest.fixture
def playbook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the Robusta action, imported with a stand-in for Robusta."""
    return robusta_api.playbook(monkeypatch)


def act(playbook: ModuleType, url: str, api_key: str = "secret") -> str:
    """Let the action handle an alert; gives the text that it adds to the message."""
    return robusta_api.act(playbook, url, api_key, alertname="SlowTraining", job_id="llama-7b-17")


def answer(**members: Any) -> bytes:
    item = AlertAnswer(fingerprints=["c4ca4238a0b92382"], **members)
    return AlertAnswers(items=[item]).model_dump_json().encode()


@pytest.fixture
def diagnosed(slow_pod: tuple[Any, str]) -> Iterator[Receiver]:
    """A service that has diagnosed the job of an alert."""
    first = answer(
        state="diagnosed",
        diagnosis_id="0" * 32,
        verdict="fail_slow",
        url="https://rca.example.org/ui#/incidents/7",
    )
    page: str = slow_pod[0].stdout
    with receiver(answers(200, body=first), answers(200, body=page.encode())) as held:
        yield held


def test_the_robusta_action_adds_the_summary_to_the_message(
    playbook: ModuleType, diagnosed: Receiver
) -> None:
    text = act(playbook, f"http://127.0.0.1:{diagnosed.port}/")
    assert text.startswith("*FAIL-SLOW: node `node-1` (ranks 2-3), ")
    assert "\n- *Do this:* " in text
    assert text.endswith("\n<https://rca.example.org/ui#/incidents/7|Incident>")
    assert "## " not in text
    (asked, body), (read, _) = diagnosed.received
    assert diagnosed.paths[0].startswith("POST /v1/hooks/alertmanager ")
    assert diagnosed.paths[1].startswith(f"GET /v1/diagnoses/{'0' * 32} ")
    assert asked["authorization"] == read["authorization"] == "Bearer secret"
    (sent,) = AlertGroup.model_validate_json(body).alerts
    assert (sent.labels["job_id"], sent.fingerprint) == ("llama-7b-17", "c4ca4238a0b92382")
    assert sent.startsAt.isoformat() == "2026-11-18T11:00:00+00:00"


@for_each(
    ("status", "body", "said"),
    [
        (
            200,
            answer(state="skipped", detail="it names no job", hint="add job_id"),
            "it names no job. add job_id",
        ),
        (200, answer(state="queued", diagnosis_id="0" * 32, detail="not finished yet"), "not finished yet"),
        (502, b'{"detail": "prometheus is away", "hint": null}', "prometheus is away"),
        (500, b"<html>", "HTTP 500"),
        (500, b"[1]", "HTTP 500"),
        (500, b'{"detail": 3}', "3"),
        (200, b"<html>", "no answer of the service"),
        (200, b"{}", "no answer of the service"),
        (200, b"[]", "no answer of the service"),
        (200, b'{"items": [null]}', "no answer of the service"),
        (200, answer(state="skipped", detail="job <!channel>"), "job &lt;!channel&gt;"),
    ],
)
def test_the_robusta_action_says_why_there_is_no_diagnosis(
    playbook: ModuleType, status: int, body: bytes, said: str
) -> None:
    with receiver(answers(status, body=body)) as service:
        text = act(playbook, f"http://127.0.0.1:{service.port}")
    assert text.startswith("*No diagnosis:* ")
    assert said in text


def test_the_robusta_action_says_that_an_answer_is_cut_off(playbook: ModuleType) -> None:
    with receiver(promises_more_than_it_sends) as service:
        assert "no answer of the service" in act(playbook, f"http://127.0.0.1:{service.port}")


@pytest.mark.parametrize(("key", "sent"), [("hush\n", 1), ("hu\nsh", 0), ("hush\u20ac", 0)])
def test_the_robusta_action_does_not_print_a_key(playbook: ModuleType, key: str, sent: int) -> None:
    with receiver(answers(403, body=b'{"detail": "no"}')) as service:
        text = act(playbook, f"http://127.0.0.1:{service.port}", key)
    assert text.startswith("*No diagnosis:* ")
    assert "hu" not in text
    assert [headers["authorization"] for headers, _ in service.received] == ["Bearer hush"] * sent


def test_the_robusta_action_does_not_print_a_password_of_the_address(playbook: ModuleType) -> None:
    text = act(playbook, "http://jane:hush@127.0.0.1")
    assert "http://127.0.0.1: " in text
    assert "hush" not in text


def test_the_robusta_action_carries_the_key_to_no_other_server(playbook: ModuleType) -> None:
    with receiver() as other, receiver(answers(302, f"Location: {other.url}")) as service:
        text = act(playbook, f"http://127.0.0.1:{service.port}")
    assert "HTTP 302" in text
    assert other.received == []


def test_the_values_of_robusta_name_the_action_and_its_parameters(playbook: ModuleType) -> None:
    values = yaml.safe_load((EXAMPLES / "robusta" / "values.yaml").read_text())
    ((name, given),) = values["customPlaybooks"][0]["actions"][0].items()
    assert callable(getattr(playbook, name))
    playbook.DiagnoseParams.model_validate(given)
    (repository,) = values["playbookRepos"]
    assert (EXAMPLES / "robusta" / repository / "diagnose.py").exists()
    assert f'name = "{repository}"' in (EXAMPLES / "robusta" / "pyproject.toml").read_text()
