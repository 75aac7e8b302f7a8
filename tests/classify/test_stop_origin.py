"""The origin of a stop: the rank that stopped first or works on alone; a working rank did not crash."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rca.classify.components import Component
from rca.classify.stop_origin import refine_stop_cause, stop_origin
from tests.for_each import for_each

CAUSES = {"process_crash": 0.8, "hang": 0.2}


def features(n_ranks: int = 6, silence: float = 40.0, **known: dict[int, float]) -> Any:
    """Endings in which nothing is known but what is given per rank."""
    found: dict[str, Any] = {name: np.zeros(n_ranks) for name in ("behind", "fatal", "origin", "died")}
    found["cpu_ratio"] = np.zeros(n_ranks)
    for name, values in known.items():
        found[name][list(values)] = list(values.values())
    for name in ("fatal", "origin", "died"):
        found[name] = found[name].astype(bool)
    return SimpleNamespace(job_end=SimpleNamespace(**found, steps_since_progress=silence))


def ranks(*numbers: int, probability: float = 0.9) -> list[Component]:
    return [Component("rank", (number,), probability) for number in numbers]


def kept(components: list[Component], answer: Any) -> list[tuple[int, ...]]:
    return [component.ranks for component in stop_origin(components, answer)]


def test_who_waits_for_the_first_of_all_stops_a_phase_later() -> None:
    answer = features(behind={1: -0.78, 4: -0.22})
    assert kept(ranks(4, 1), answer) == [(1,)]


def test_who_stopped_at_the_same_point_stays() -> None:
    assert kept(ranks(4, 1), features(behind={1: -1.0, 4: -0.95})) == [(4,), (1,)]


def test_whom_an_event_names_stays() -> None:
    answer = features(behind={1: -0.78, 4: -0.22}, fatal={4: 1.0})
    assert kept(ranks(4, 1), answer) == [(4,), (1,)]


def test_who_works_while_all_others_wait_is_waited_for() -> None:
    answer = features(cpu_ratio={3: 4.0, 0: 0.1})
    assert kept(ranks(0, probability=0.2), answer) == [(3,)]
    assert kept([], answer) == [(3,)]


@for_each(
    "answer",
    [
        features(cpu_ratio={3: 0.45}),
        features(cpu_ratio={3: 4.0, 0: 0.35}),
        features(cpu_ratio={3: 4.0, 0: np.nan}),
        features(),
        features(cpu_ratio={3: 4.0}, silence=9.0),
        features(cpu_ratio={3: 4.0}, died={0: 1.0}),
        features(n_ranks=2, cpu_ratio={1: 4.0}),
    ],
    ids=[
        "rests as well", "waiting spins", "one is not measured", "all rest", "not for long",
        "somebody died", "one of two may be who lives",
    ],
)  # fmt: skip
def test_otherwise_nobody_stands_out(answer: Any) -> None:
    assert kept(ranks(0, probability=0.2), answer) == []


def test_a_probable_suspect_is_not_overruled_by_who_works() -> None:
    """Rank 3 may work on: it is unknown whether the other ranks wait or are gone."""
    assert kept(ranks(1, probability=0.6), features(cpu_ratio={3: 4.0})) == [(1,)]


def test_where_nothing_was_sampled_nobody_works_alone() -> None:
    answer = features()
    answer.job_end.cpu_ratio = None
    assert kept(ranks(0, probability=0.2), answer) == []
    assert refine_stop_cause(ranks(0)[0], CAUSES, answer) == CAUSES


def test_who_stops_behind_the_others_goes_before_who_works_alone() -> None:
    """A dead rank's node may be busy with the dump of its memory."""
    assert kept(ranks(1), features(behind={1: -1.0}, cpu_ratio={3: 4.0})) == [(1,)]


def test_whose_process_works_did_not_die() -> None:
    answer = refine_stop_cause(ranks(2)[0], CAUSES, features(cpu_ratio={2: 0.12}))
    assert answer["hang"] > 0.9
    assert sum(answer.values()) == pytest.approx(1.0)


@for_each(
    "answer",
    [
        features(),
        features(cpu_ratio={2: np.nan}),
        features(cpu_ratio={4: 1.0}),
        features(cpu_ratio={2: 0.04}),
        features(cpu_ratio={2: 0.12}, silence=12.0),
        features(cpu_ratio=dict.fromkeys(range(6), 1.0) | {2: 0.2}),
        features(cpu_ratio={2: 1.0}, fatal={2: 1.0}),
        features(cpu_ratio={2: 1.0}, origin={2: 1.0}),
    ],
    ids=[
        "rests", "not measured", "another works", "hardly", "its last samples", "far less than the others",
        "an event says so", "the end began with it",
    ],
)  # fmt: skip
def test_otherwise_the_beliefs_stay(answer: Any) -> None:
    assert refine_stop_cause(ranks(2)[0], CAUSES, answer) == CAUSES


def test_who_died_by_the_events_died_though_its_container_works() -> None:
    answer = refine_stop_cause(ranks(2)[0], CAUSES, features(cpu_ratio={2: 1.0}, died={2: 1.0}))
    assert answer["process_crash"] > 0.9
