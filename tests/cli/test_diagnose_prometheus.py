"""`rca diagnose --prometheus`: options, errors and exit codes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from rca.errors import InvalidInput
from rca.sources.instants import moment_of, seconds_of
from tests.for_each import for_each
from tests.telemetry.prometheus_servers import (
    END,
    INTERVAL,
    MISSING,
    dcgm_samples,
    dripping,
    node_samples,
    prometheus,
    stub,
    talking,
)

pytestmark = [pytest.mark.system, pytest.mark.smoke]

Run = Callable[..., Any]
SLOW = Path("data/windows/cpu-contention-node")
real = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")
HOUR = [END - 3600 + INTERVAL * number for number in range(240)]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "TOKEN", "USER", "PASSWORD"):
        monkeypatch.delenv(f"RCA_PROMETHEUS_{name}", raising=False)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Eight nodes of a Slurm job; GPU 37 has 60 % of the clock of the others."""
    lines = chain(
        dcgm_samples(8, HOUR, slow=37, label=lambda node, gpu: ',job="dcgm",hpc_job="4711"'),
        node_samples(8, HOUR),
    )
    with prometheus(tmp_path_factory.mktemp("prometheus"), lines) as url:
        yield url


@real
def test_the_slow_gpu_of_a_real_prometheus_is_named(rca_command: Run, cluster: str) -> None:
    asked = ("--prometheus", cluster, "--job", "4711", "--since", "30m", "--end", str(END))
    ran = rca_command("diagnose", *asked, "--format", "json")
    assert ran.code == 30
    told = json.loads(ran.out)
    assert [cause["cause"] for cause in told["causes"]] == ["gpu_throttling"]
    assert told["causes"][0]["ranks"] == [37]
    assert told["causes"][0]["nodes"] == ["node-4"]
    assert ran.err == ""
    assert "64 ranks on 8 nodes" in rca_command("diagnose", *asked).err


@real
def test_an_unknown_job_lists_those_that_report(rca_command: Run, cluster: str) -> None:
    ran = rca_command("diagnose", "--prometheus", cluster, "--job", "llama", "--end", str(END))
    assert (ran.code, ran.out) == (2, "")
    assert "no device reports for the job llama" in ran.err
    assert "hpc_job: 4711" in ran.err


@real
def test_plan_and_runbook_read_the_job_as_diagnose_does(rca_command: Run, cluster: str) -> None:
    asked = ("--prometheus", cluster, "--job", "4711", "--since", "30m", "--end", str(END))
    planned = rca_command("plan", *asked, "--format", "json")
    assert planned.code == 0
    assert {name for each in json.loads(planned.out)["options"] for name in each["nodes"]} == {"node-4"}
    shown = rca_command("runbook", *asked)
    assert shown.code == 0
    assert shown.out.startswith("Runbook gpu_throttling")
    assert "rank 37 on node-4, GPU 5" in shown.out


@real
def test_matchers_and_labels_that_nothing_has_are_named(
    rca_command: Run, cluster: str, tmp_path: Path
) -> None:
    asked = ("diagnose", "--prometheus", cluster, "--job", "4711", "--end", str(END))
    unmatched = rca_command(*asked, "--match", 'cluster="nosuch"')
    assert unmatched.code == 2
    assert 'with cluster="nosuch" in this time' in unmatched.err
    (tmp_path / "labels.yaml").write_text("labels: {node: wrong}")
    unplaced = rca_command(*asked, "--labels", tmp_path / "labels.yaml")
    assert unplaced.code == 2
    assert "no device has the label of the map for node: wrong" in unplaced.err
    assert "Hostname" in unplaced.err


@real
def test_every_label_of_the_map_that_no_device_has_is_named(
    rca_command: Run, cluster: str, tmp_path: Path
) -> None:
    wrong = {part: f"wrong_{part}" for part in ("job", "gpu", "rank", "pod", "namespace")}
    (tmp_path / "labels.yaml").write_text(json.dumps({"labels": {"node": "Hostname", **wrong}}))
    asked = ("--prometheus", cluster, "--labels", tmp_path / "labels.yaml")
    ran = rca_command("diagnose", *asked, "--job", "4711", "--end", str(END))
    assert ran.code == 2
    assert all(f"{part}: {label}" in ran.err for part, label in wrong.items())
    assert "Hostname" in ran.err.split("hint: ")[1]
    assert "node: Hostname" not in ran.err


@real
def test_a_time_without_samples_is_named(rca_command: Run, cluster: str) -> None:
    ran = rca_command("diagnose", "--prometheus", cluster, "--job", "4711", "--end", "2020-01-01T00:00:00Z")
    assert ran.code == 2
    assert "in this time" in ran.err


def test_a_refused_token_is_bad_input_and_not_shown(rca_command: Run, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    with stub(lambda *_: (401, "text/plain", b"no")) as url:
        ran = rca_command("diagnose", "--prometheus", url, "--job", "a", "--token-file", tmp_path / "token")
    assert ran.code == 2
    assert "refuses the credentials" in ran.err
    assert "s3cret" not in ran.err


@for_each(
    ("arguments", "said"),
    [
        ((), "nothing to diagnose"),
        (("--prometheus", "http://p"), "--prometheus needs --job"),
        (("--prometheus", "http://p", "--job", "a", "--since", "soon"), "'soon' is no span of time"),
        (("--prometheus", "http://p", "--job", "a", "--since", "0s"), "the window has 0 s"),
        (("--prometheus", "http://p", "--job", "a", "--since", "30d"), "at most 7 days"),
        (
            ("--prometheus", "http://p", "--job", "a", "--start", "1795770020", "--end", "1795770010"),
            "the end of the window lies 10 s before its start",
        ),
        (("--prometheus", "http://127.0.0.1:1", "--job", "a", "--timeout", "99999999999"), "(1 day)"),
        (("--prometheus", "http://127.0.0.1:1", "--job", "a", "--timeout", "1e400"), "(1 day)"),
        (("--prometheus", "http://p", "--job", "a", "--start", "noon"), "'noon' is no time"),
        (("--prometheus", "http://p", "--job", "a", "--start", "1", "--since", "1m"), "contradict"),
        (("--prometheus", "http://p", "--job", "a", "--match", "cluster=eu"), "is no label matcher"),
        (("--prometheus", "http://p", "--job", "a", "--header", "X-Scope-OrgID"), "has no colon"),
        (
            ("--prometheus", "http://p", "--job", "a", "--labels", "nowhere.yaml"),
            "nowhere.yaml: cannot be read",
        ),
        ((str(SLOW), "--job", "a"), "--job is for --prometheus only"),
        ((str(SLOW), "--prometheus", "http://p"), "--prometheus needs --job"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(rca_command: Run, arguments: Any, said: str) -> None:
    ran = rca_command("diagnose", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_a_server_that_answers_byte_by_byte_ends_with_the_time_limit(rca_command: Run) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    began = time.monotonic()
    with talking(dripping(b" " * 100, head, every=0.5)) as url:
        ran = rca_command("diagnose", "--prometheus", url, "--job", "a", "--timeout", "1")
    assert time.monotonic() - began < 5
    assert ran.code == 2
    assert "does not answer within 1 s, with all requests together" in ran.err
    assert "hint: shorten --since, select less with --match, or raise --timeout" in ran.err


def test_a_path_wins_over_the_address_in_the_environment(
    rca_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RCA_PROMETHEUS_URL", "http://nowhere.invalid")
    assert rca_command("diagnose", SLOW).code == 10


def test_spans_and_moments_are_read() -> None:
    assert [seconds_of(text) for text in ("90", "90s", "30m", "1.5h", "2d")] == [90, 90, 1800, 5400, 172_800]
    assert moment_of("1700000000") == 1_700_000_000.0
    assert moment_of("2023-11-14T22:13:20Z") == moment_of("2023-11-14T23:13:20+01:00") == 1_700_000_000.0
    assert moment_of("2023-11-14 22:13:20") == 1_700_000_000.0
    with pytest.raises(InvalidInput, match="is no span"):
        seconds_of("-3m")
