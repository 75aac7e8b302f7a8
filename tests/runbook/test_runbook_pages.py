"""The three renderings: complete, equal in content, and safe against what users put into names."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

import rca
from rca.diagnosis.result import AbstentionReason, Diagnosis, EarlierWindow, Finding
from rca.runbook import render
from tests.for_each import for_each

Varied = Callable[..., Diagnosis]
HOSTILE = "n<script>alert(1)</script>|x`` `*_[a](http://evil) \x1b[31m\u202e\n# big"
TOLD = [
    "FAIL-SLOW: rank 6 on node-3, +32 ms per step (1.28x), cause gpu_throttling (0.83)",
    "interval 28 to 36 ms",
    "+29 ms",
    "91 %",
    "infrastructure",
    "SM clock: 1,410 MHz, compared with 1,755 MHz (while busy)",
    "Unexplained: +3 ms per step (9 % of the slowdown)",
    "drain_node: saves 29 ms per step (20 to 33 ms), costs 10 min once, pays back after 20,690 steps.",
    "Next check: nvidia-smi -q -d PERFORMANCE on node-3",
    "DCGM_FI_DEV_XID_ERRORS",
    "520 rows of steps used, 8 not; 65 steps, of them 1 warm-up.",
    "Metrics not in the signal catalogue: foo_total.",
    "rank 3 reports no metrics",
    "Job llama-7b, window w-1, diagnosis d-1, 2026-03-01 03:00:00 UTC, model baseline 0.1.0 (abababababab).",
]


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def html_text(page: str) -> _Text:
    parser = _Text()
    parser.feed(page)
    return parser


def from_markdown(page: str) -> _Text:
    return html_text(MarkdownIt("commonmark").enable("table").render(page))


def terminal_text(diagnosis: Diagnosis, width: int = 200) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(render(diagnosis, "terminal", verbose=True))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@for_each("line", TOLD)
def test_every_rendering_shows_the_same(throttled: Diagnosis, line: str) -> None:
    assert line in from_markdown(render(throttled, "markdown")).text
    assert line in html_text(render(throttled, "html")).text
    assert line in terminal_text(throttled)


def test_html_stands_alone(throttled: Diagnosis) -> None:
    page = render(throttled, "html")
    assert page.startswith("<!doctype html>")
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"(src|href)=|@import|url\(", page)


def hostile(varied: Varied, base: Diagnosis) -> Diagnosis:
    group = base.stragglers[0].model_copy(update={"nodes": [HOSTILE]})
    evidence = base.causes[0].evidence[0].model_copy(update={"signal": HOSTILE, "note": HOSTILE})
    cause = base.causes[0].model_copy(update={"nodes": [HOSTILE], "evidence": [evidence]})
    return varied(job_id=HOSTILE, window_id=HOSTILE, stragglers=[group], causes=[cause], next_check=HOSTILE)


def test_hostile_names_add_no_element_to_html(varied: Varied, throttled: Diagnosis) -> None:
    clean, attacked = (
        html_text(render(throttled, "html")),
        html_text(render(hostile(varied, throttled), "html")),
    )
    assert attacked.tags == clean.tags
    assert "<script>alert(1)</script>" in attacked.text


def test_hostile_names_add_no_element_to_markdown(varied: Varied, throttled: Diagnosis) -> None:
    clean = from_markdown(render(throttled, "markdown"))
    attacked = from_markdown(render(hostile(varied, throttled), "markdown"))
    assert attacked.tags == clean.tags
    assert "<script>alert(1)</script>" in attacked.text


def test_terminal_escapes_and_direction_overrides_never_reach_a_page(
    varied: Varied, throttled: Diagnosis
) -> None:
    attacked = hostile(varied, throttled)
    for page in (render(attacked, "markdown"), render(attacked, "html"), terminal_text(attacked)):
        assert "\x1b" not in page
        assert "\u202e" not in page


@pytest.mark.system
@given(st.text(max_size=40))
def test_any_node_name_leaves_the_markdown_structure_alone(throttled: Diagnosis, text: str) -> None:
    group = throttled.stragglers[0].model_copy(update={"nodes": [text]})
    attacked = throttled.model_copy(update={"stragglers": [group], "job_id": text})
    assert (
        from_markdown(render(attacked, "markdown")).tags == from_markdown(render(throttled, "markdown")).tags
    )


def test_numbers_that_are_not_numbers_read_unknown(varied: Varied, throttled: Diagnosis) -> None:
    nan = float("nan")
    slowdown = throttled.slowdown.model_copy(
        update={"ratio": nan, "seconds_per_step": nan, "interval": (nan, nan), "gpu_hours_lost": nan}
    )
    for format_ in ("markdown", "html"):
        text = render(varied(slowdown=slowdown, unexplained_seconds_per_step=nan), format_)
        assert "unknown" in text
        assert "nan" not in text.lower().replace("nvidia", "")


def test_a_narrow_terminal_keeps_the_culprit(throttled: Diagnosis) -> None:
    assert "rank 6 on node-3" in terminal_text(throttled, width=60)


CLOCK = Finding(
    component="GPU",
    resource="gpu_clock",
    ranks=[6],
    nodes=["node-3"],
    signal="sm_clock_mhz",
    value=1185.0,
    reference=1975.0,
    unit="MHz",
    against="peers",
    strength=5.2,
    since=datetime(2026, 3, 1, 14, 2, tzinfo=UTC),
)


@pytest.fixture
def doubtful(varied: Varied, throttled: Diagnosis) -> Diagnosis:
    group = throttled.stragglers[0].model_copy(
        update={
            "plausible_causes": ["gpu_throttling", "gpu_contention"],
        }
    )
    quality = throttled.quality.model_copy(
        update={
            "out_of_distribution": True,
            "unfamiliar": ["world size: 9,000 ranks; training had 4,096"],
        }
    )
    return varied(
        abstained=True,
        abstention_reason=AbstentionReason(
            code="cause_not_certain", sentence="no cause is certain enough to be named: between a, b"
        ),
        set_level=0.9,
        failure_mode_set=["fail_slow", "healthy"],
        findings=[CLOCK],
        stragglers=[group],
        quality=quality,
    )


@for_each(
    "line",
    [
        "Not certain, cause_not_certain: No cause is certain enough to be named: between a, b.",
        "Not ruled out at 90 %: fail-slow, healthy.",
        "GPU, rank 6 on node-3: SM clock 1,185 MHz, peers 1,975 MHz, since 2026-03-01 14:02:00 UTC",
        "rank 6 on node-3, causes not ruled out at 90 %: gpu_throttling, gpu_contention.",
        "The window is unlike those the model learned from: its probabilities are less reliable.",
        "world size: 9,000 ranks; training had 4,096",
    ],
)
def test_doubt_is_shown_in_every_rendering(doubtful: Diagnosis, line: str) -> None:
    assert line in from_markdown(render(doubtful, "markdown")).text
    assert line in html_text(render(doubtful, "html")).text
    assert line in terminal_text(doubtful)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {},
            "Compared with the earlier window w-6, which ended 10 min before this one: the median step "
            "took 89 ms then and takes 2.70x as long now.",
        ),
        ({"decided": True}, "2.70x as long now. The answer is based on this comparison."),
        (
            {"window_id": None, "ratio": None, "step_seconds": None},
            "Compared with the earlier window, which ended 10 min before this one: "
            "at least one of them has no step times.",
        ),
    ],
    ids=["found", "decided", "untimed"],
)
def test_the_compared_window_is_shown(
    varied: Varied, throttled: Diagnosis, changes: dict[str, Any], line: str
) -> None:
    compared = {"window_id": "w-6", "job_id": "j", "seconds_before": 600.0, "steps": 50} | {
        "step_seconds": 0.089,
        "ratio": 2.7,
    }
    earlier = EarlierWindow.model_validate(compared | changes)
    slowdown = throttled.slowdown.model_copy(update={"versus_own_past": 2.7})
    shown = varied(earlier=earlier, slowdown=slowdown)
    for text in (from_markdown(render(shown, "markdown")).text, html_text(render(shown, "html")).text):
        assert line in text
        # The same past is told once.
        assert ("Compared with before the onset" in text) == (earlier.ratio is None)


def test_without_doubt_no_page_speaks_of_it(throttled: Diagnosis) -> None:
    for page in (render(throttled, "markdown"), render(throttled, "html"), terminal_text(throttled)):
        assert "Not certain" not in page
        assert "ruled out" not in page


def test_without_step_times_the_cost_is_unknown_and_not_zero() -> None:
    job = {"job_id": "a", "world_size": 4, "start": 1e9, "end": 1e9 + 60}
    events = [
        {"time": 1e9 + 5, "node": None, "rank": 2, "kind": kind, "code": code, "message": None}
        for kind, code in (("process_exit", "1"), ("oom_kill", None))
    ]
    text = rca.diagnose(rca.Window.from_tables(job, events=events)).to_markdown()
    assert "Cost unknown: no step was timed." in text
    assert "1.00x" not in text
    assert "0 s per step" not in text
    assert "- Exit code: 1, compared with 0 (2001-09-09 01:46:45 UTC)" in text
    assert "- Killed by the kernel for memory (2001-09-09 01:46:45 UTC)" in text
    assert "- No step was timed, so its cost is unknown\n" in text
