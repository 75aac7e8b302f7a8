"""One loud resource decides where the classifier is not sure, and only there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Suspect
from rca.classify.components import Component
from rca.diagnosis.bundle import baseline
from rca.diagnosis.machine_evidence import CORROBORATED, causes_of_loudest_resource, corroborated
from rca.features import RANK_FEATURES, extract
from rca.features.resource_evidence import RESOURCES, resource_names
from tests.for_each import for_each

BELIEFS = {"unknown": 0.5, "gpu_contention": 0.3, "cpu_contention": 0.15, "memory_pressure": 0.05}


def scores(**loud: float):
    return np.array([loud.get(name, 0.0) for name in resource_names()])


@pytest.fixture(scope="module")
def slow(make_window):
    return extract(make_window(late={5: 0.05}, steps=slice(20, None)))


def weighed(slow, beliefs=BELIEFS, ranks=(5,), past: float | None = None, **loud: float) -> Suspect:
    peers = np.zeros((8, len(RESOURCES)))
    peers[list(ranks)] = scores(**loud)
    since = peers if past is None else np.full(peers.shape, past)
    features = replace(slow, evidence=replace(slow.evidence, versus_peers=peers, versus_past=since))
    suspect = Suspect(Component("rank", ranks, 0.9), {"compute": 0.9}, {}, dict(beliefs))
    return corroborated(suspect, features, BusyEvidence.from_features(features, baseline().mechanisms))


def test_the_loud_resources_cause_is_believed_and_the_rest_by_its_own_shares(slow) -> None:
    found = weighed(slow, cpu_load=6.0)
    assert next(iter(found.causes)) == "cpu_contention"
    assert found.causes["cpu_contention"] == pytest.approx(CORROBORATED)
    assert sum(found.causes.values()) == pytest.approx(sum(BELIEFS.values()))
    assert found.causes["unknown"] / found.causes["gpu_contention"] == pytest.approx(5 / 3)
    assert found.types["host"] > found.types["compute"]


FABRIC = resource_names().index("fabric")
LINKS = {"unknown": 0.5, "network_congestion": 0.1, "nic_degradation": 0.05}


@pytest.mark.parametrize(
    ("since", "decides"),
    [([6.0] * 8, True), ([6.0] * 5 + [0.0] * 3, True), ([6.0] * 3 + [0.0] * 5, False), ([np.nan] * 8, False)],
)
def test_of_most_ranks_a_fabric_that_marks_more_than_before_decides(slow, since, decides) -> None:
    """Beside peers it shows nothing, and where there is no past nothing either."""
    past = np.zeros((8, len(RESOURCES)))
    past[:, FABRIC] = since
    for ranks, expected in ((tuple(range(8)), decides), ((5,), False)):
        peers = np.zeros(past.shape)
        features = replace(slow, evidence=replace(slow.evidence, versus_peers=peers, versus_past=past))
        suspect = Suspect(Component("job", ranks, 0.9), {}, {}, dict(LINKS))
        evidence = BusyEvidence.from_features(features, baseline().mechanisms)
        found = corroborated(suspect, features, evidence).causes
        assert (next(iter(found)) == "network_congestion") is expected


def test_of_most_ranks_nothing_beside_peers_decides(slow) -> None:
    found = weighed(slow, beliefs=LINKS, ranks=tuple(range(8)), past=0.0, fabric=6.0)
    assert found.causes == LINKS


@pytest.mark.parametrize("first", ["unknown", "gpu_contention"])
def test_one_loud_resource_outweighs_another_cause_that_is_not_certain(slow, first: str) -> None:
    found = weighed(slow, beliefs={first: 0.89, "cpu_contention": 0.1}, cpu_load=6.0)
    assert next(iter(found.causes)) == "cpu_contention"


def test_several_resources_of_one_cause_are_one_voice(slow) -> None:
    assert next(iter(weighed(slow, cpu_load=6.0, cpu_wait=3.0).causes)) == "cpu_contention"
    both = weighed(slow, cpu_load=6.0, memory=3.1)
    assert both.causes == BELIEFS


def test_a_resource_that_drowns_the_others_is_the_only_voice(slow) -> None:
    found = weighed(slow, cpu_load=6.0, memory=2.9)
    assert next(iter(found.causes)) == "cpu_contention"


@pytest.mark.parametrize(("first", "hears"), [("unknown", True), ("gpu_contention", False)])
def test_that_nothing_explains_it_is_never_sure(slow, first: str, hears: bool) -> None:
    found = weighed(slow, beliefs={first: 0.97, "cpu_contention": 0.01}, cpu_load=6.0)
    assert (next(iter(found.causes)) == "cpu_contention") is hears


@for_each(
    "quiet",
    [
        {"cpu_load": 1.9},
        {"gpu_heat": 6.0},
        {"cpu_load": 6.0, "past": 0.2},
        {"cpu_load": 6.0, "ranks": (1, 3, 5, 6, 7)},
        {"cpu_load": 6.0, "beliefs": {"gpu_contention": 0.9, "cpu_contention": 0.05}},
        {"cpu_load": 6.0, "beliefs": {"network_congestion": 0.5, "nic_degradation": 0.1}},
        {"cpu_load": 6.0, "beliefs": {}},
    ],
    ids=[
        "not loud",
        "moves with others",
        "always so",
        "most ranks",
        "sure",
        "of links",
        "nothing believed",
    ],
)
def test_otherwise_the_classifiers_word_stands(slow, quiet) -> None:
    assert weighed(slow, **quiet).causes == quiet.get("beliefs", BELIEFS)


def test_a_resource_of_two_causes_tells_both() -> None:
    assert causes_of_loudest_resource(scores(storage=4.0)) == {"storage_degradation", "checkpoint_stall"}
    assert causes_of_loudest_resource(scores()) == frozenset()
    assert causes_of_loudest_resource(np.full(len(RESOURCES), np.nan)) == frozenset()


def booked(slow, beliefs, *, own: float = 0.2, **phases: float):
    """Rank 5's causes, with this lateness and these parts of it in phases, in steps; no resource is loud."""
    rows = slow.rank.copy()
    rows[5, RANK_FEATURES.index("own_time_excess")] = own
    for phase in ("data_loading", "checkpoint", "forward"):
        rows[5, RANK_FEATURES.index(f"{phase}_excess")] = phases.get(phase, 0.0)
    return weighed(replace(slow, rank=rows), beliefs=beliefs).causes


INPUT = {"runtime_gc": 0.5, "data_loader_stall": 0.15, "storage_degradation": 0.05, "checkpoint_stall": 0.05}


def test_nearly_all_lateness_in_one_phase_speaks_for_who_lengthens_it_alone(slow) -> None:
    found = booked(slow, INPUT, data_loading=0.18)
    assert next(iter(found)) == "data_loader_stall"
    total = sum(INPUT.values())
    assert found["data_loader_stall"] + found["storage_degradation"] == pytest.approx(CORROBORATED * total)
    assert found["data_loader_stall"] / found["storage_degradation"] == pytest.approx(3, rel=0.02)
    assert next(iter(booked(slow, INPUT, checkpoint=0.18))) == "checkpoint_stall"


@for_each(
    "other",
    [
        {"data_loading": 0.12},
        {"forward": 0.2},
        {"data_loading": 0.01, "own": 0.01},
        {"data_loading": np.nan},
        {"data_loading": 0.2, "beliefs": INPUT | {"runtime_gc": 0.91}},
        {"data_loading": 0.2, "beliefs": {"unknown": 0.6, "nic_degradation": 0.1}},
    ],
)
def test_lateness_elsewhere_or_a_sure_classifier_is_left_alone(slow, other) -> None:
    wanted = {"beliefs": INPUT} | other
    assert booked(slow, **wanted) == wanted["beliefs"]
