"""Jobs of a scheduler's list are read from Prometheus, in spans that are over."""

from __future__ import annotations

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from rca.diagnosis.bundle import baseline
from rca.errors import InvalidInput, SourceError
from rca.sources.prometheus.window import read_prometheus
from rca.sweep import Answers, job_windows, read_jobs, sweep
from rca.sweep.incident_report import incident_report
from rca.sweep.prometheus_jobs import SETTLED_SECONDS, JobSpan
from tests.telemetry.prometheus_servers import END, INTERVAL, MISSING, dcgm_samples, node_samples, prometheus

pytest.importorskip("fsspec", reason="the extra [scale] is not installed")

pytestmark = [pytest.mark.system, pytest.mark.smoke]
MINUTE = 60.0
T0 = 1_700_000_000.0
NINE = 1_795_770_000.0  # 2026-11-27T09:00:00Z


@pytest.mark.parametrize(
    "text",
    [
        "job,start,end\n4711,2026-11-27T09:00:00Z,2026-11-27T10:00:00Z\n4712,1795770000,\n",
        "JobID|Start|End\n4711|2026-11-27T09:00:00|2026-11-27T10:00:00\n4712|2026-11-27T09:00:00|Unknown\n",
        "name  start                 completiontime\n\n4711  2026-11-27T09:00:00Z  2026-11-27T10:00:00Z\n"
        "4712  2026-11-27T09:00:00Z  <none>\n",
        '\ufeff"end";"state";"job"; "start"\n"1795773600";"done";"4711";"1795770000"\n;;4712;1795770000\n',
    ],
    ids=["csv", "slurm", "kubectl", "other order"],
)
def test_lists_of_schedulers_are_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "jobs").write_text(text)
    found = [JobSpan("4711", NINE, NINE + 3600), JobSpan("4712", NINE, None)]
    assert read_jobs(tmp_path / "jobs") == (found, 0)


def test_jobs_that_have_not_run_and_steps_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text(
        "JobIDRaw  Start  End\n--------- ------ ------\n4711 1795770000 1795773600\n"
        "4711.batch 1795770000 1795773600\n4711.0 1795770000 1795773600\n"
        "4712 Unknown Unknown\n4713 None 1795770000\n4714 1795770000 1795770000\n"
    )
    assert read_jobs(tmp_path / "jobs") == ([JobSpan("4711", NINE, NINE + 3600)], 5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no lines"),
        ("job,start,end\n", "has no lines"),
        ("job,start,end\na,1795770000000,\n", "is no time from 2000 to 2100"),
        ("job,start,end\na,nan,\n", "'nan' is no time from 2000 to 2100"),
        ("job,from,end\na,1,2\n", "no column 'start': the first line has job, from, end"),
        ("job,start,end\na,1\n", "line 2: 2 values for 3 columns"),
        ("job,start,end\na,1795770000,\nb,noon,2\n", "line 3: 'noon' is no time"),
        (
            "job,start,end\na,1795770001,1795770000\n",
            "line 2: the job a ends at 1795770000, and starts at 1795770001",
        ),
        ("job,start,end\n,1,2\n", "line 2: a job has no name"),
    ],
)
def test_bad_lists_are_refused_with_the_place(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "jobs").write_text(text)
    with pytest.raises(InvalidInput, match=reason):
        read_jobs(tmp_path / "jobs")


def test_a_list_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        read_jobs(tmp_path / "nowhere")


def spans(*jobs: JobSpan, now: float, every: float = 30 * MINUTE) -> list[tuple[float, float]]:
    """Begin and end of each window, minutes after `T0`."""
    found = job_windows(jobs, every=every, reading=partial(read_prometheus, "http://host"), now=now)
    return [((each.start - T0) / MINUTE, (each.end - T0) / MINUTE) for each in found]


def test_a_job_that_is_over_is_cut_without_a_short_rest() -> None:
    over = T0 + 1e6
    assert spans(JobSpan("a", T0, T0 + 70 * MINUTE), now=over) == [(0, 30), (30, 70)]
    assert spans(JobSpan("a", T0, T0 + 80 * MINUTE), now=over) == [(0, 30), (30, 60), (60, 80)]
    assert spans(JobSpan("a", T0, T0 + 5 * MINUTE), now=over) == [(0, 5)]


def test_a_job_that_runs_has_whole_spans_only() -> None:
    settled = T0 + 70 * MINUTE + SETTLED_SECONDS
    assert spans(JobSpan("a", T0, None), now=settled) == [(0, 30), (30, 60)]
    assert spans(JobSpan("a", T0, T0 + 71 * MINUTE), now=settled) == [(0, 30), (30, 60)]


def test_lines_of_one_job_are_one() -> None:
    lines = [JobSpan("a", T0, T0 + end * MINUTE) for end in (70, 50)]
    assert spans(*lines, JobSpan("a", T0, None), now=T0 + 1e6) == [(0, 30), (30, 70)]


def test_a_longer_last_span_replaces_the_one_before() -> None:
    reading = partial(read_prometheus, "http://user:secret@host:9090/graph")
    during, after = (
        job_windows([JobSpan("a b", T0, end)], every=30 * MINUTE, reading=reading, now=T0 + 1e4)
        for end in (None, T0 + 70 * MINUTE)
    )
    assert during[0] == after[0]
    assert during[1].url == after[1].url == "http://host:9090/?job=a+b&start=2023-11-14T22%3A43%3A20Z"
    assert during[1].version != after[1].version


def test_what_selects_the_samples_is_part_of_the_version() -> None:
    versions = {
        job_windows(
            [JobSpan("a", T0, T0 + 60)],
            every=60,
            reading=partial(read_prometheus, "http://host", **more),
            now=T0 + 1e4,
        )[0].version
        for more in ({}, {"namespace": "a"}, {"matchers": ('cluster="eu"',)}, {"token": "x"},
            {"headers": {"X-Scope-OrgID": "a"}}, {"headers": {"X-Scope-OrgID": "b"}},
            {"headers": {"Authorization": "Bearer x"}})
    }  # fmt: skip
    assert len(versions) == 5


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")
def test_jobs_of_a_real_prometheus_are_swept(tmp_path: Path, rca_command: Any) -> None:
    times = [END - 3600 + INTERVAL * number for number in range(240)]
    lines = chain(
        dcgm_samples(4, times, slow=13, label=lambda node, gpu: ',job="dcgm",hpc_job="4711"'),
        node_samples(4, times),
    )
    (tmp_path / "jobs.txt").write_text(
        f"JobID|Start|End\n4711|{END - 3600:.0f}|{END:.0f}\nnever-ran|{END - 3600:.0f}|{END:.0f}\n"
    )
    folder = tmp_path / "answers"
    with prometheus(tmp_path / "prometheus", lines) as url:
        asked = ("sweep", "--prometheus", url, "--jobs", tmp_path / "jobs.txt", "--output", folder)
        ran = rca_command(*asked, "--processes", "1")
        assert ran.code == 0, ran.err
        assert ran.out.startswith("4 windows, 0 with an answer before: 2 refused, 2 undecided")
        again = rca_command(*asked, "--processes", "1")
    assert "4 windows, 4 with an answer before: nothing to do" in again.out
    found = incident_report(Answers(str(folder)))
    assert found.facts["jobs"] == 1
    suspects = found.tables["suspects"].rows[["name", "windows", "main"]]
    assert suspects.to_numpy().tolist() == [["node-1", 2, "gpu_throttling"]]
    assert all("never-ran" in reason for reason in found.refused.reason)


def test_a_server_that_is_down_is_asked_again(tmp_path: Path) -> None:
    reading = partial(read_prometheus, "http://127.0.0.1:1", timeout=1.0)
    windows = job_windows([JobSpan("a", T0, T0 + 60)], every=60, reading=reading, now=T0 + 1e4)
    for _ in range(2):
        done = sweep(windows, Answers(str(tmp_path / "answers")), bundle=baseline())
        assert (done.kept, done.outcomes) == (0, {"refused": 1})


def test_options_that_cannot_be_used_are_refused_before_the_work(tmp_path: Path, rca_command: Any) -> None:
    (tmp_path / "jobs").write_text("job,start,end\na,1795770000,1795773600\n")
    (tmp_path / "ca.pem").write_text("no certificate")
    asked = ("sweep", "--prometheus", "http://127.0.0.1:1", "--jobs", tmp_path / "jobs")
    for options, reason in (
        (("--ca-file", tmp_path / "ca.pem"), "holds no readable certificates"),
        (("--match", "cluster=eu"), "is no label matcher"),
    ):
        ran = rca_command(*asked, *options, "--output", tmp_path / "answers")
        assert (ran.code, reason in ran.err) == (2, True)
    assert not (tmp_path / "answers").exists()


def test_credentials_of_the_environment_travel_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from rca.commands.prometheus_options import PrometheusOptions

    monkeypatch.setenv("RCA_PROMETHEUS_TOKEN", "t0ken")
    asked = PrometheusOptions(url="http://host:9090")
    assert asked.reading().keywords["token"] == "t0ken"  # noqa: S105
    monkeypatch.setenv("RCA_PROMETHEUS_USER", "me")
    monkeypatch.setenv("RCA_PROMETHEUS_PASSWORD", "p@ss")
    assert asked.reading().args == ("http://me:p%40ss@host:9090",)
    assert asked.reading().keywords["token"] is None


def test_jobs_and_urls_exclude_each_other(tmp_path: Path, rca_command: Any) -> None:
    (tmp_path / "jobs").write_text("job,start,end\na,1795770000,1795773600\n")
    assert (
        "--jobs is for --prometheus only" in rca_command("sweep", tmp_path, "--jobs", tmp_path / "jobs").err
    )
    assert "give a URL, or --prometheus" in rca_command("sweep", "--jobs", tmp_path / "jobs").err
    ran = rca_command("sweep", "--prometheus", "http://a", "--jobs", tmp_path / "jobs", "--every", "soon")
    assert (ran.code, "'soon' is no span of time" in ran.err) == (2, True)
