"""The incidents and the judging behind the table of rankings."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import tabular_ranking
from benchmarks.tabular import calibrate, pipelines, scms, services
from benchmarks.tabular.cases import TabularCase
from benchmarks.tabular.petshop import read_petshop
from benchmarks.tabular_ranking import hits, ours, ours_informed, robust_scaler

FAMILIES = [
    scms.draw,
    partial(scms.draw, course=True),
    services.draw,
    services.draw_latencies,
    pipelines.draw,
]


@pytest.mark.parametrize("draw", FAMILIES)
def test_a_drawn_incident_can_be_ranked_and_judged(draw):
    case = draw(np.random.default_rng(5))
    assert case.causes <= set(case.normal.columns)
    assert case.target in case.normal.columns
    for rank in (ours, ours_informed, robust_scaler):
        assert set(rank(case)) <= set(case.normal.columns)
        assert set(hits(case, rank(case))) <= {0.0, 1.0}


@pytest.mark.parametrize("draw", FAMILIES)
def test_incidents_are_reproducible(draw):
    first, second = (draw(np.random.default_rng(2)) for _ in range(2))
    pd.testing.assert_frame_equal(first.anomalous, second.anomalous)
    assert first.causes == second.causes


def test_a_pipeline_keeps_every_item():
    arrivals = np.full(50, 10)
    seconds = np.full((50, 2), 1 / 8.0)
    backlog = pipelines._flow(arrivals, seconds)
    # Two of ten items wait at the first stage in every row, none at the second: it is as fast as its supply.
    assert backlog[:, 0] == pytest.approx(2.0 * np.arange(1, 51))
    assert (backlog[:, 1] <= 8.0).all()


def test_hits_are_counted_by_depth() -> None:
    case = TabularCase("x", pd.DataFrame(), pd.DataFrame(), frozenset({"b_cpu"}))
    assert hits(case, ["a_cpu", "a_mem", "b_cpu"]).tolist() == [0, 0, 1, 1, 1]


def test_the_robust_scaler_counts_interquartile_ranges():
    normal = pd.DataFrame({"time": range(5), "wide": [0, 10, 20, 30, 40.0], "still": [1.0] * 5})
    anomalous = pd.DataFrame({"time": [9], "wide": [60.0], "still": [2.5]})
    case = TabularCase("x", normal, anomalous, frozenset({"wide"}))
    assert robust_scaler(case) == ["wide", "still"]


@pytest.mark.system
def test_calibration_prefers_evidence_that_tells():
    rng = np.random.default_rng(0)
    judged = [calibrate.judge(scms.draw(rng), True, True) for _ in range(40)]
    fitted = calibrate.fit(judged)
    for name in fitted.keys() - {"nothing"}:
        assert fitted[name] <= 0 if name in calibrate.AGAINST else fitted[name] >= 0
    held = calibrate.fit(judged, {"inherited": -0.5, "size": 2.0})
    assert (held["inherited"], held["size"]) == (-0.5, 2.0)
    assert held["coverage"] != pytest.approx(fitted["coverage"], abs=1e-3)
    nothing_known = dict.fromkeys(fitted, 0.0)
    assert calibrate.first_right(judged, fitted)[1] > calibrate.first_right(judged, nothing_known)[1]


def petshop_folder(root: Path) -> Path:
    """A scenario with one issue of latency: the shop waits for its database."""
    rng = np.random.default_rng(0)
    names = ("shop", "database", "mail")
    columns = pd.MultiIndex.from_product([names, ["latency", "requests"], ["Average", "p90"]])
    scenario = root / "low_traffic"
    issue = scenario / "train" / "issue_0"
    issue.mkdir(parents=True)
    (scenario / "noissue").mkdir()
    calls = pd.DataFrame(0, index=names, columns=names)
    calls.loc["shop", ["database", "mail"]] = 1
    calls.to_csv(scenario / "graph.csv")
    for place, rows in ((scenario / "noissue", 90), (issue, 5)):
        table = pd.DataFrame(rng.normal(10.0, 1.0, (rows, len(columns))), columns=columns)
        if rows == 5:
            table.loc[2:3, [("database", "latency", "Average"), ("shop", "latency", "Average")]] += 20.0
            table["mail", "latency", "Average"] = 60.0
        table.to_csv(place / "metrics.csv")
    facts = {
        "target": {"node": "shop", "metric": "latency", "agg": "Average"},
        "root_cause": {"node": "database", "metric": None},
    }
    (issue / "target.json").write_text(json.dumps(facts))
    return root


def test_an_issue_of_petshop_is_read_with_its_graph_and_its_target(tmp_path):
    (case,) = read_petshop(petshop_folder(tmp_path))
    assert (case.family, case.target, case.worse) == ("PetShop, train", "shop", "higher")
    assert case.causes == {"database"}
    assert (case.normal.shape, case.anomalous.shape) == ((90, 3), (5, 3))
    assert case.graph is not None
    assert set(case.graph.edges) == {("database", "shop"), ("mail", "shop")}
    # The mail server is extreme in all rows, the shop in two.
    assert ours_informed(case)[0] == "database"


def test_the_table_of_petshop_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tabular", "--public", str(petshop_folder(tmp_path))])
    tabular_ranking.main()
    printed = capsys.readouterr().out
    assert "PetShop, train: 1 incidents" in printed
    assert "robust scaler" in printed
    assert "graph and target" in printed
