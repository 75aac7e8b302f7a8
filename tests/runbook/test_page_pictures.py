"""The pictures of the HTML page: what they show of a window, and that they stand alone."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree

import pytest

import rca
from rca.diagnosis.result import Diagnosis
from rca.runbook import render
from rca.runbook.pictures import Picture, pictures_of
from rca.window.job import Parallelism
from rca.window.window import Window

Varied = Callable[..., Diagnosis]
WATERFALL, HEAT_MAP = "From the measured step to the ideal one", "Lateness of ranks over steps"
GRAPH = "Possible causes and the blamed path"


@pytest.fixture(scope="module")
def window() -> Window:
    return rca.read_window("data/windows/cpu-contention-node")


@pytest.fixture(scope="module")
def diagnosis(window: Window) -> Diagnosis:
    return rca.diagnose(window)


@pytest.fixture(scope="module")
def pictures(window: Window, diagnosis: Diagnosis) -> dict[str, Picture]:
    return {each.title: each for each in pictures_of(diagnosis, window)}


def words(picture: Picture) -> list[str]:
    root = ElementTree.fromstring(picture.svg)  # noqa: S314  (our own text)
    return [each.text or "" for each in root.iter("text")]


def boxes(picture: Picture, class_: str) -> list[dict[str, str]]:
    root = ElementTree.fromstring(picture.svg)  # noqa: S314
    return [dict(each.attrib) for each in root.iter("rect") if class_ in each.attrib["class"].split()]


def test_a_slow_node_has_all_pictures_in_reading_order(pictures: dict[str, Picture]) -> None:
    assert list(pictures) == [
        WATERFALL,
        HEAT_MAP,
        "Time some task waited for a CPU",
        "CPU time by mode",
        GRAPH,
    ]


def test_the_bars_of_the_waterfall_are_as_long_as_the_costs(
    pictures: dict[str, Picture], diagnosis: Diagnosis
) -> None:
    measured, ideal = (float(each["width"]) for each in boxes(pictures[WATERFALL], "bar"))
    (cause,) = (float(each["width"]) for each in boxes(pictures[WATERFALL], "blamed"))
    assert measured / ideal == pytest.approx(diagnosis.slowdown.ratio, rel=1e-3)
    share = diagnosis.causes[0].seconds_per_step / diagnosis.slowdown.seconds_per_step
    assert cause == pytest.approx(share * (measured - ideal), rel=1e-3)
    assert "cpu_contention, ranks 2-3" in words(pictures[WATERFALL])


def test_the_heat_map_frames_the_blamed_ranks_and_marks_the_onset(pictures: dict[str, Picture]) -> None:
    heat_map = pictures[HEAT_MAP]
    (frame,) = boxes(heat_map, "frame")
    row = float(boxes(heat_map, "shade")[0]["height"]) + 1
    assert float(frame["height"]) == pytest.approx(2 * row - 1)
    assert {"rank 2", "rank 3", "step 21"} <= set(words(heat_map))
    shades = [float(each["fill-opacity"]) for each in boxes(heat_map, "shade")]
    assert max(shades) == 1.0


def test_signals_are_drawn_beside_the_peers_with_onset(pictures: dict[str, Picture]) -> None:
    picture = pictures["Time some task waited for a CPU"]
    root = ElementTree.fromstring(picture.svg)  # noqa: S314
    assert [each.attrib["class"] for each in root.iter("polyline")] == ["peers", "own"]
    assert {"onset 09:54:23 UTC", "over 09:54:28 UTC"} <= set(words(picture))


def test_many_ranks_and_steps_share_cells(make_window) -> None:
    slow = make_window(n_ranks=160, n_steps=300, late={77: 0.05})
    found = rca.diagnose(slow)
    heat_map = next(each for each in pictures_of(found, slow) if each.title == HEAT_MAP)
    assert "ranks 75-77" in words(heat_map)
    assert len(boxes(heat_map, "shade")) <= 64 * 120
    assert len(heat_map.svg) < 500_000


def test_stages_are_drawn_where_there_are_any(window: Window, diagnosis: Diagnosis) -> None:
    job = window.job.model_copy(update={"parallelism": Parallelism(data=4, pipeline=2)})
    staged = Window.from_tables(job, steps=window.steps)
    (stages,) = (each for each in pictures_of(diagnosis, staged) if "stages" in each.title)
    assert {"stage 0", "stage 1", "data rank 0"} <= set(words(stages))
    assert len(boxes(stages, "frame")) == 2
    assert len(boxes(stages, "cell")) == 6


def test_without_its_window_an_answer_draws_what_it_has(varied: Varied, throttled: Diagnosis) -> None:
    assert [each.title for each in pictures_of(throttled)] == [WATERFALL, GRAPH]
    unknown = dict.fromkeys(("ratio", "seconds_per_step", "interval", "gpu_hours_lost"))
    slowdown = throttled.slowdown.model_copy(update=unknown)
    assert [each.title for each in pictures_of(varied(slowdown=slowdown))] == [GRAPH]
    assert pictures_of(varied(causes=[], failure_mode="healthy")) == ()


def test_a_page_has_its_pictures_and_nothing_from_elsewhere(window: Window, diagnosis: Diagnosis) -> None:
    page = diagnosis.to_html(window)
    assert page.count("<svg") == page.count("<figure>") == 5
    for foreign in ("http://", "https://", "<script", "<img", "url(", "@import"):
        assert foreign not in page
    assert "@media print" in page
    # A notebook shows the page without the window.
    assert diagnosis._repr_html_() == render(diagnosis, "html")
    assert "<svg" in diagnosis._repr_html_()
