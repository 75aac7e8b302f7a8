"""The incidents and the judging behind the table of rankings."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import tabular_ranking
from benchmarks.tabular import calibrate, pipelines, scms, services
from benchmarks.tabular.accuracy import column_hits, service_hits, with_interval
from benchmarks.tabular.baselines import chance, ours, ours_informed, robust_scaler
from benchmarks.tabular.cases import Case
from benchmarks.tabular.petshop import read_petshop
from benchmarks.tabular.public import read_cases
from benchmarks.tabular.shop import CALLS, CAUSE, IN_A_ROW, MANY, NORMAL, SINGLE, SINGLES, TARGET, read_shop

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
    for rank in (ours, ours_informed, robust_scaler, chance):
        assert set(rank(case)) <= set(case.normal.columns)
        assert set(column_hits(case, rank(case))) <= {0.0, 1.0}


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


def test_hits_are_counted_by_depth_and_services_once():
    case = Case(
        "x", pd.DataFrame(), pd.DataFrame(), frozenset({"b_cpu"}), {"a_cpu": "a", "a_mem": "a", "b_cpu": "b"}
    )
    ranking = ["a_cpu", "a_mem", "b_cpu"]
    assert column_hits(case, ranking).tolist() == [0, 0, 1, 1, 1]
    assert service_hits(case, ranking).tolist() == [0, 1, 1, 1, 1]
    assert with_interval(np.ones(4)) == "1.00 [1.00, 1.00]"


def test_the_robust_scaler_counts_interquartile_ranges():
    normal = pd.DataFrame({"time": range(5), "wide": [0, 10, 20, 30, 40.0], "still": [1.0] * 5})
    anomalous = pd.DataFrame({"time": [9], "wide": [60.0], "still": [2.5]})
    case = Case("x", normal, anomalous, frozenset({"wide"}))
    assert robust_scaler(case) == ["wide", "still"]


def public_folder(root: Path) -> Path:
    rng = np.random.default_rng(0)
    for run in ("1", "2"):
        place = root / "shop" / "cart_cpu" / run
        place.mkdir(parents=True)
        table = pd.DataFrame(
            rng.normal(10.0, 1.0, (90, 3)), columns=["cart_cpu", "cart_latency-90", "web_cpu"]
        )
        table.insert(0, "time", np.arange(90))
        table.loc[60:, "cart_cpu"] += 30.0
        table.to_csv(place / "data.csv", index=False)
        (place / "inject_time.txt").write_text("60\n")
    return root


def test_public_captures_are_read_by_folder_name_and_injection_time(tmp_path):
    cases = list(read_cases(public_folder(tmp_path)))
    assert [case.family for case in cases] == ["shop, cpu"] * 2
    assert [len(case.normal) for case in cases] == [60, 60]
    assert cases[0].causes == {"cart_cpu"}
    assert service_hits(cases[0], ours(cases[0])).tolist() == [1, 1, 1, 1, 1]


def test_the_table_is_printed_for_public_captures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tabular", "--public", str(public_folder(tmp_path))])
    tabular_ranking.main()
    told = capsys.readouterr().out
    assert "shop, cpu: 2 incidents" in told
    assert "robust scaler" in told
    assert "graph and target" not in told


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


def test_the_shop_is_read_with_its_graph_and_its_cause_is_found(tmp_path: Path):
    rng = np.random.default_rng(3)
    services = sorted({name for by, called in CALLS.items() for name in (by, *called)})

    def latencies(rows: int, slower: float) -> pd.DataFrame:
        """Everybody waits for all that he calls."""
        own = {name: rng.exponential(0.1, rows) for name in services}
        own[CAUSE] = own[CAUSE] + slower
        total: dict[str, np.ndarray] = {}

        def of(name: str) -> np.ndarray:
            if name not in total:
                total[name] = own[name] + sum(of(called) for called in CALLS.get(name, ()))
            return total[name]

        return pd.DataFrame({name: of(name) for name in services})

    for name, table in ((NORMAL, latencies(300, 0)), (SINGLE, latencies(1, 2)), (MANY, latencies(100, 2))):
        table.to_csv(tmp_path / name, index=False)
    cases = list(read_shop(tmp_path))
    assert len(cases) == 1 + SINGLES + 100 // IN_A_ROW + 1
    last = cases[-1]
    assert last.graph is not None
    assert set(last.graph.edges) == {(called, by) for by, all_ in CALLS.items() for called in all_}
    assert last.target == TARGET
    assert ours_informed(last)[0] == CAUSE
    assert service_hits(last, ours_informed(last))[0] == 1
    assert list(read_shop(tmp_path / "elsewhere")) == []


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


def test_random_order_differs_from_incident_to_incident():
    rng = np.random.default_rng(1)
    drawn = [pd.DataFrame(rng.normal(size=(1, 9)), columns=list("abcdefghi")) for _ in range(20)]
    orders = {tuple(chance(Case("x", one, one, frozenset({"a"})))) for one in drawn}
    assert len(orders) > 15
