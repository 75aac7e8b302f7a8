"""`rca watch`: every job on time, whatever the others do."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

import rca
from rca.cli import app
from rca.client import Client
from rca.diagnosis.result import Diagnosis
from rca.errors import InvalidInput, RcaError, SourceError
from rca.sources.prometheus.job_names import JobName, KnownJob
from rca.window.window import Window
from rca_api.commands.watch import _read as read_job_window
from rca_api.watch.plan import JobSelection, WatchedJob, WatchPlan, read_plan
from rca_api.watch.rounds import RoundOutcome, Rounds, WatchState
from tests.for_each import for_each
from tests.shifted_windows import shifted
from tests.telemetry.prometheus_servers import dripping, talking

HEALTHY = Path(__file__).parents[2] / "data" / "windows" / "healthy"
SLOW = HEALTHY.parent / "nic-rate-limited"


def plan_of(*jobs: str, every: float = 60.0) -> WatchPlan:
    return WatchPlan(every=every, jobs=tuple(WatchedJob(job=name, folder=HEALTHY) for name in jobs))


@pytest.fixture(scope="module")
def answer() -> Diagnosis:
    return rca.diagnose(rca.read_window(HEALTHY))


class Growing:
    """Windows of which each one ends later."""

    def __init__(self) -> None:
        self._window, self._given = rca.read_window(HEALTHY), count()

    def __call__(self, _: WatchedJob | None = None) -> Window:
        return shifted(self._window, float(next(self._given)))


class Watching:
    """Rounds whose reading is replaced, and what they report."""

    def __init__(
        self, plan: WatchPlan, read: Callable[[WatchedJob], object], answer: Diagnosis, state: Path
    ) -> None:
        self.outcomes: list[RoundOutcome] = []
        self.stopping = threading.Event()
        self._arrived = threading.Condition()
        self.rounds = Rounds(plan, read, lambda _: answer, self._take, WatchState(state))  # type: ignore[arg-type]

    def _take(self, outcome: RoundOutcome) -> None:
        with self._arrived:
            self.outcomes.append(outcome)
            self._arrived.notify_all()

    def until(self, enough: Callable[[list[RoundOutcome]], bool]) -> None:
        threading.Thread(target=self.rounds.run, args=(self.stopping,), daemon=True).start()
        with self._arrived:
            assert self._arrived.wait_for(lambda: enough(self.outcomes), timeout=30)
        self.stopping.set()


def test_a_slow_source_delays_no_other(tmp_path: Path, answer: Diagnosis) -> None:
    held = threading.Event()

    grown = Growing()

    def read(job: WatchedJob) -> Window:
        if job.job == "slow":
            held.wait(30)
        return grown()

    watching = Watching(plan_of("slow", "quick", every=0.01), read, answer, tmp_path / "state")
    watching.until(lambda outcomes: sum(one.job == "quick" for one in outcomes) >= 3)
    held.set()
    assert {one.job for one in watching.outcomes} == {"quick"}


def test_a_failing_source_is_tried_again(tmp_path: Path, answer: Diagnosis) -> None:
    calls = 0

    def read(_: WatchedJob) -> Window:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise SourceError("no route to the server")
        return rca.read_window(HEALTHY)

    watching = Watching(plan_of("flaky", every=0.01), read, answer, tmp_path / "state")
    watching.until(lambda outcomes: any(one.diagnosis for one in outcomes))
    assert [one.error is not None for one in watching.outcomes[:3]] == [True, True, False]


def test_a_restart_waits_for_the_rest_of_the_interval(tmp_path: Path, answer: Diagnosis) -> None:
    state = tmp_path / "state"
    first = Watching(plan_of("resumed", every=3600.0), Growing(), answer, state)
    first.until(lambda outcomes: len(outcomes) == 1)
    again = Watching(plan_of("resumed", "new", every=3600.0), Growing(), answer, state)
    again.until(lambda outcomes: len(outcomes) == 1)
    assert [one.job for one in again.outcomes] == ["new"]


def test_a_damaged_state_makes_all_jobs_due(tmp_path: Path, answer: Diagnosis) -> None:
    (tmp_path / "state").write_text("[]")
    watching = Watching(plan_of("due", every=3600.0), Growing(), answer, tmp_path / "state")
    watching.until(lambda outcomes: len(outcomes) == 1)
    assert "due" in orjson.loads((tmp_path / "state").read_bytes())["diagnosed"]


def test_an_unexpected_error_ends_no_job(tmp_path: Path, answer: Diagnosis) -> None:
    def read(_: WatchedJob) -> None:
        raise ZeroDivisionError

    watching = Watching(plan_of("odd", every=0.01), read, answer, tmp_path / "state")
    watching.until(lambda outcomes: len(outcomes) >= 2)
    assert all(isinstance(one.error, RcaError) for one in watching.outcomes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("jobs: []", "needs jobs, or select"),
        ("every: 60s", "needs jobs, or select"),
        ("select: [{prometheus: 'http://p', jobs: '('}]", "is no regular expression"),
        ("jobs: [{job: a}]", "needs prometheus, folder or both"),
        ("jobs: [{job: a, folder: x}, {job: a, folder: y}]", "the job 'a' occurs twice"),
        ("jobs: [{job: a, folder: x, every: soon}]", "'soon' is no span of time"),
        (
            "jobs:\n- {job: a, folder: x}\n- {job: b, folder: x, evry: 5s}",
            "line 3: jobs.1.evry: Extra inputs",
        ),
        (
            "jobs: [{job: a, prometheus: 'http://p', headers: {Host: s3cret}}]",
            "the header Host cannot be given",
        ),
        ("- a", "watch.yaml: needs names and values, not a list"),
        ("every: 5s\njobs: [", "watch.yaml: line 2 is no YAML"),
    ],
)
def test_a_wrong_plan_names_the_member(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "watch.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        read_plan(path)
    assert says in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_job_with_a_folder_and_prometheus_has_its_steps_and_the_exporters_of_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = rca.read_window(SLOW)
    asked: list[dict[str, object]] = []

    def read_job(*_: object, **more: object) -> Window:
        asked.append(more)
        sample = {
            "time": slow.job.end - 1,
            "name": "node_load1",
            "value": 7.5,
            "node": slow.job.topology.node_names[0],
        }
        return rca.Window.from_tables(slow.job, metrics=[sample])

    monkeypatch.setattr(WatchedJob, "read_job", read_job)
    window = read_job_window(WatchedJob(job="both", folder=SLOW, prometheus="http://p"))
    assert window.steps.equals(slow.steps)
    assert 7.5 in window.metrics.column("value").to_pylist()
    assert asked == [
        {
            "namespace": None,
            "matchers": (),
            "start": min(slow.job.start, slow.job.end - 120),
            "end": slow.job.end,
            "steps": False,
        }
    ]


def test_values_of_headers_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "watch.yaml"
    path.write_text("jobs: [{job: a, prometheus: 'http://p', headers: {X-Scope-OrgID: s3cret}}]")
    plan = read_plan(path)
    assert plan.jobs[0].headers["X-Scope-OrgID"].get_secret_value() == "s3cret"
    assert "s3cret" not in repr(plan) + plan.model_dump_json()


def test_paths_count_from_the_folder_of_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "watch.yaml"
    path.write_text("every: 2m\njobs: [{job: a, folder: windows, every: 1h}]")
    plan = read_plan(path)
    assert plan.jobs[0].folder == tmp_path / "windows"
    assert (plan.every, plan.jobs[0].every) == (120.0, 3600.0)
    assert plan.state == tmp_path / ".watch-state.json"


def test_once_prints_a_line_per_job_and_exits_with_the_worst(tmp_path: Path) -> None:
    path = tmp_path / "watch.yaml"
    path.write_text(f"jobs: [{{job: good, folder: {HEALTHY}}}, {{job: bad, folder: {SLOW}}}]")
    result = CliRunner().invoke(app, ["watch", str(path), "--once"])
    assert result.exit_code == 10, result.output
    assert "good: HEALTHY" in result.output
    assert "bad: FAIL-SLOW" in result.output


@for_each(
    ("verdicts", "code"),
    [
        (("healthy", "healthy"), 0),
        (("undecided", "healthy"), 30),
        (("undecided", "fail_slow"), 10),
        (("fail_slow", "fail_stop", "undecided"), 20),
        (("fail_stop", None), 2),
    ],
)
def test_the_exit_code_is_that_of_the_worst_job(
    tmp_path: Path, answer: Diagnosis, verdicts: tuple[str | None, ...], code: int
) -> None:
    modes = {"healthy": (False, "healthy"), "undecided": (True, "healthy")}
    answers = iter(
        [
            None if each is None else answer.model_copy(
                update=dict(zip(("abstained", "failure_mode"), modes.get(each, (False, each)), strict=True))
            )
            for each in verdicts
        ]
    )  # fmt: skip

    def diagnose(_: Window) -> Diagnosis:
        found = next(answers)
        if found is None:
            raise SourceError("away")
        return found

    jobs = [f"{{job: j{number}, folder: {HEALTHY}}}" for number in range(len(verdicts))]
    (tmp_path / "watch.yaml").write_text(f"jobs: [{', '.join(jobs)}]")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rca, "diagnose", diagnose)
        assert CliRunner().invoke(app, ["watch", str(tmp_path / "watch.yaml"), "--once"]).exit_code == code


def test_selected_jobs_are_watched_while_they_are_there(
    tmp_path: Path, answer: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ["a", "listed"]
    selection = JobSelection(prometheus="http://p", every=0.01)
    monkeypatch.setattr(
        JobSelection, "present", lambda _: [WatchedJob(job=each, prometheus="http://p") for each in there]
    )
    plan = plan_of("listed", every=0.01).model_copy(update={"select": (selection,)})
    watching = Watching(plan, Growing(), answer, tmp_path / "state")
    ended: list[tuple[str, str]] = []
    watching.rounds.end = lambda job, reason: ended.append((job, reason))

    def moved(outcomes: list[RoundOutcome]) -> bool:
        if {one.job for one in outcomes} == {"a", "listed"}:
            there[:] = ["b"]
        return bool(ended) and [one.job for one in outcomes].count("b") > 2

    watching.until(moved)
    assert ended == [("a", "no longer listed by http://p")]
    (note,) = [one.note for one in watching.outcomes if one.note]
    assert note == "no longer listed by http://p; it is not watched any more"
    assert {one.job for one in watching.outcomes} == {"a", "b", "listed"}


def test_a_job_ends_only_after_several_looks_that_lack_it(
    tmp_path: Path, answer: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [WatchedJob(job="a", prometheus="http://p")]
    away = SourceError("the server cannot be reached")
    looks = iter([there, [], [], away, away, away, away, there, [], [], away, [], []])

    def present(_: JobSelection) -> list[WatchedJob]:
        found = next(looks, [])
        if isinstance(found, SourceError):
            raise found
        return found

    monkeypatch.setattr(JobSelection, "present", present)
    selection = JobSelection(prometheus="http://p", every=0.001)
    plan = plan_of("listed", every=60.0).model_copy(update={"select": (selection,)})
    watching = Watching(plan, Growing(), answer, tmp_path / "state")
    refusals = [SourceError("the service cannot be reached")]

    def end(_: str, __: str) -> None:
        if refusals:
            raise refusals.pop()

    watching.rounds.end = end
    watching.until(lambda outcomes: any(one.note for one in outcomes))
    failed = [one.error.message for one in watching.outcomes if one.error is not None]
    assert failed == ["the server cannot be reached"] * 5 + ["the service cannot be reached"]


def test_a_look_without_new_telemetry_diagnoses_nothing(tmp_path: Path, answer: Diagnosis) -> None:
    window = rca.read_window(HEALTHY)
    longer = replace(window, job=window.job.model_copy(update={"end": window.job.end + 60.0}))
    windows = iter([window, longer, longer])
    plan = plan_of("over", every=0.01)
    watching = Watching(plan, lambda _: next(windows), answer, tmp_path / "state")
    watching.until(lambda outcomes: len(outcomes) >= 3)
    first, *others = watching.outcomes[:3]
    assert (first.diagnosis, first.note) == (answer, "")
    assert {(each.diagnosis, each.note[:26]) for each in others} == {(None, "no new telemetry since 202")}
    # A restart remembers it; `--once` diagnoses all the same.
    again = Watching(plan, lambda _: longer, answer, tmp_path / "state")
    again.until(lambda outcomes: len(outcomes) == 1)
    assert again.outcomes[0].note
    assert [one.diagnosis for one in again.rounds.once()] == [answer]


def test_a_selection_takes_the_jobs_with_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [
        KnownJob(JobName(name, "ml", "names of pods"), 8, ("n",)) for name in ("llama-1", "bert-3", "llama-2")
    ]
    monkeypatch.setattr(JobSelection, "find_jobs", lambda *_, **__: jobs)
    chosen = JobSelection(prometheus="http://p", jobs="llama-.*", match=('cluster="a"',)).present()
    assert [(each.job, each.namespace, each.match) for each in chosen] == [
        ("llama-1", "ml", ('cluster="a"',)), ("llama-2", "ml", ('cluster="a"',))
    ]  # fmt: skip


def test_jobs_of_one_name_in_two_namespaces_are_both_watched(
    tmp_path: Path, answer: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [KnownJob(JobName("same", name, "names of pods"), 8, ("n",)) for name in ("team-a", "team-b")]
    monkeypatch.setattr(JobSelection, "find_jobs", lambda *_, **__: both)
    here, there = JobSelection(prometheus="http://p"), JobSelection(prometheus="http://q")
    plan = plan_of("x").model_copy(update={"jobs": (), "select": (here, there)})
    read: list[WatchedJob] = []
    rounds = Rounds(
        plan, lambda job: (read.append(job), rca.read_window(HEALTHY))[1], lambda _: answer, lambda _: None,
        WatchState(tmp_path / "state"),
    )  # fmt: skip
    outcomes = rounds.once()
    assert sorted((job.id, job.prometheus) for job in read) == [
        ("team-a/same", "http://p"), ("team-b/same", "http://p")
    ]  # fmt: skip
    # Those of another server with the same id are named.
    refused = [each.error.message for each in outcomes if each.error is not None]
    assert len(refused) == 2
    assert "team-a/same: this one of http://q is not watched" in refused[0]


def test_a_job_with_a_long_name_keeps_no_other_from_being_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [KnownJob(JobName(name, by="hpc_job"), 8, ("n",)) for name in ("x" * 300, "4711")]
    monkeypatch.setattr(JobSelection, "find_jobs", lambda *_, **__: jobs)
    assert [each.job for each in JobSelection(prometheus="http://p").present()] == ["4711"]
    jobs[1:] = [KnownJob(JobName(str(number)), 8, ("n",)) for number in range(257)]
    with pytest.raises(InvalidInput, match="257 jobs of http://p are selected; the limit is 256"):
        JobSelection(prometheus="http://p").present()


@pytest.mark.system
def test_once_ends_although_sources_never_do(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "watch.yaml"
    with talking(dripping(b" " * 500, b"HTTP/1.1 200 OK\r\n\r\n")) as url:
        jobs = [{"job": "slow", "prometheus": url, "timeout": 0.5}, {"job": "pipe", "folder": "pipe"}]
        path.write_bytes(orjson.dumps({"jobs": jobs}))
        began = time.monotonic()
        result = CliRunner().invoke(app, ["watch", str(path), "--once"])
    assert time.monotonic() - began < 5
    assert result.exit_code == 2
    assert "does not answer within 0.5 s" in result.output
    assert "is a pipe" in result.output


@pytest.mark.system
def test_once_ends_although_the_service_answers_byte_by_byte(tmp_path: Path) -> None:
    with talking(dripping(b" " * 500, b"HTTP/1.1 200 OK\r\n\r\n")) as url:
        diagnose = Client(url, timeout_seconds=0.5, retries=0).diagnose
        window, state = rca.read_window(HEALTHY), WatchState(tmp_path / "state")
        rounds = Rounds(plan_of("one"), lambda _: window, diagnose, lambda _: None, state)
        [outcome] = rounds.once()
    assert "no answer in time" in str(outcome.error)


@pytest.mark.system
def test_a_window_that_a_service_has_had_is_not_diagnosed_again(tmp_path: Path, url: str) -> None:
    """The job has ended: its folder stays as it is."""
    path, windows = tmp_path / "watch.yaml", tmp_path / "job"
    window = rca.read_window(HEALTHY)
    replace(window, job=window.job.model_copy(update={"job_id": "watched-twice"})).to_directory(windows)
    path.write_text(f"service: {url}\njobs: [{{job: one, folder: {windows}}}]")
    runs = [CliRunner().invoke(app, ["watch", str(path), "--once"]) for _ in range(2)]
    assert [each.exit_code for each in runs] == [0, 0]
    stored = orjson.loads(Client(url).get("/v1/diagnoses?job=watched-twice"))
    assert len(stored["items"]) == 1


def test_once_reports_a_missing_folder_as_json(tmp_path: Path) -> None:
    path = tmp_path / "watch.yaml"
    path.write_text("jobs: [{job: gone, folder: nowhere}]")
    result = CliRunner().invoke(app, ["watch", str(path), "--once", "--format", "json"])
    assert result.exit_code == 2
    error = orjson.loads(result.output.splitlines()[-1])["error"]
    assert error["code"] == "source-error"
    assert "rca sources" in error["hint"]
    unread = CliRunner().invoke(app, ["watch", str(tmp_path / "nosuch.yaml"), "--once", "--format", "json"])
    assert (unread.exit_code, orjson.loads(unread.stderr)["code"]) == (2, "source-error")


def test_a_fault_that_is_over_is_left_out_of_the_next_window(tmp_path: Path) -> None:
    """CPU hogs end in the middle of the window: the next look begins after them, also after a restart."""
    whole = rca.read_window(HEALTHY.parent / "cpu-contention-node")
    spread = replace(whole, job=whole.job.model_copy(update={"end": whole.job.end + 60}))
    faulty = rca.diagnose(whole)
    assert faulty.until is not None
    over = faulty.model_copy(update={"window": rca.diagnose(spread).window})
    seen: list[Window] = []
    for _ in range(2):
        rounds = Rounds(
            plan_of("one"), lambda _: spread, lambda given: (seen.append(given), over)[1], lambda _: None,
            WatchState(tmp_path / "state"),
        )  # fmt: skip
        rounds.once()
    first, after, second = seen[:3]
    assert first.job.start == whole.job.start
    # The part after the fault is diagnosed at once, and not only at the next look.
    assert after.job.start == second.job.start
    assert second.job.start == pytest.approx(faulty.until.timestamp(), abs=0.001)
    assert 0 < second.steps.num_rows < first.steps.num_rows


def test_windows_reach_the_diagnosis_as_they_were_read(answer: Diagnosis, tmp_path: Path) -> None:
    window = rca.read_window(HEALTHY)
    seen: list[Window] = []

    def diagnose(given: Window) -> Diagnosis:
        seen.append(given)
        return answer

    rounds = Rounds(
        plan_of("one"), lambda _: window, diagnose, lambda _: None, WatchState(tmp_path / "state")
    )
    began = time.time()
    [outcome] = rounds.once()
    assert outcome.diagnosis is answer
    assert seen == [window]
    assert WatchState(tmp_path / "state").last("one") == pytest.approx(began, abs=5.0)
