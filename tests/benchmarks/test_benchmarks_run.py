"""Every benchmark runs at a toy size and reports what it says it reports; no time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import rca
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.growth import Growth, draw
from benchmarks.stages import STAGES
from benchmarks.windows import Shape, make_window

ROOT = Path(__file__).resolve().parents[2]


def test_window_has_the_shape_that_was_asked_for() -> None:
    window = make_window(Shape(ranks=16, steps=12, metrics=5, samples=3, stages=2))
    assert window.steps.num_rows == 16 * 12
    assert window.metrics.num_rows == 16 * 5 * 3
    assert window.job.topology.n_stages == 2


def test_same_seed_makes_the_same_window() -> None:
    shape = Shape(ranks=4, steps=10, metrics=3, samples=2)
    assert make_window(shape, seed=3).to_json() == make_window(shape, seed=3).to_json()
    assert make_window(shape, seed=3).to_json() != make_window(shape, seed=4).to_json()


def test_every_metric_of_the_window_is_one_that_a_diagnosis_uses() -> None:
    quality = rca.diagnose(make_window(Shape(ranks=4, steps=20))).quality
    assert quality.unknown_metrics == []
    assert quality.metric_samples_unused == 0


@pytest.mark.long
def test_diagnosis_benchmark_reports_every_stage_beside_its_floor(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "diagnosis",
        "--ranks",
        "8",
        "--steps",
        "20",
        "--metrics",
        "20",
        "--samples",
        "4",
        "--seconds",
        "0",
        "--least",
        "1",
        "--no-cold-start",
        "--json",
        str(figures),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    assert [(size["ranks"], size["encoding"]) for size in found["sizes"]] == [(8, "JSON"), (8, "Arrow")]
    for size in found["sizes"]:
        assert set(size["stages"]) == set(size["floors"]) == set(STAGES)
        assert all(stage["p50"] > 0 for stage in (*size["stages"].values(), *size["floors"].values()))
        # A window that takes the short way out as healthy would measure nothing of the causal stage.
        assert size["answer"].startswith("fail_slow, ")
        assert size["http"]["memory_peak_bytes"] > size["memory_before_bytes"] / 2
    for stage in STAGES:
        assert stage in done.stdout


def test_growth_is_fitted_and_drawn(tmp_path: Path) -> None:
    seconds = {256: 0.2, 512: 0.3, 1024: 0.5}
    found = Growth.of("ranks", seconds, seconds.values())
    assert found.fixed == pytest.approx(0.1)
    assert found.each * 256 == pytest.approx(0.1)
    assert found.off_line < 1e-9
    assert 0.5 < found.exponent < 1.0
    assert Growth.of("steps", [1, 2, 4], [1.0, 4.0, 16.0]).exponent == pytest.approx(2.0)
    draw([found, found], tmp_path / "growth.svg")
    assert "straight line" in (tmp_path / "growth.svg").read_text()


def test_unknown_benchmark_is_refused_with_the_known_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-benchmark"]) == 2
    assert "diagnosis" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_every_registered_benchmark_exists(name: str) -> None:
    assert find_spec(BENCHMARKS[name].module) is not None


@pytest.mark.long
@pytest.mark.slow
def test_the_store_benchmark_reports_size_lists_and_deletion(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "store", "--diagnoses", "400", "--json", str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    assert found["bytes"] > 100_000
    assert all(0 < taken["alone"] <= taken["p95"] for taken in found["lists"].values())
    assert found["lists"]["/v1/nodes"]["runs"] >= 60
    assert 150 < found["prune"]["deleted"]["diagnoses"] < 250
    assert "bytes per diagnosis" in done.stdout


@pytest.mark.long
@pytest.mark.slow
def test_a_short_soak_finds_everything_again(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = ["--seconds", "3", "--steps", "20", "--processes", "1", "--json", str(figures)]
    command = [sys.executable, "-m", "benchmarks", "soak", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    kept = found["kept"]
    assert kept["found"] == kept["acknowledged"] > 0
    assert (kept["lost"], kept["duplicated"], kept["unclaimed"]) == (0, 0, 0)
    for phase in found["phases"].values():
        assert (phase["broken"], phase["other"]) == (0, 0), done.stderr
        assert phase["answered"] + phase["shed"] == phase["requests"] > 0
        assert min(phase["cores"].values()) > 0
    assert set(found["kept_under_overload"]) == {"accepted", "diagnosed", "accepted per processor second"}
    assert found["memory"]["pool"]["resident"][0] > 30e6
    assert f"Acknowledged {kept['acknowledged']:,}" in done.stdout


@pytest.mark.system
def test_collect_benchmark_reports_time_and_memory() -> None:
    command = [sys.executable, "-m", "benchmarks.collecting", "--rest", "0.1", "--json"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    assert found["step_seconds"] > 0
    assert found["phase_seconds"] < found["step_seconds"] < found["share_of_step"]
    assert found["memory_bytes"] < 20e6


@pytest.mark.system
def test_stragglar_benchmark_shows_our_rounds_beside_the_published() -> None:
    command = [sys.executable, "-m", "benchmarks.stragglar", "--ranks", "--largest", "12"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = {words[0]: words[1:4] for words in map(str.split, ran.stdout.splitlines())}
    assert rows["8"] == ["9", "9", "9"]
    assert rows["12"] == ["14", "15", "14"]
