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
from benchmarks.diagnosis import STAGES
from benchmarks.windows import WindowSize, make_window

ROOT = Path(__file__).resolve().parents[2]


def test_window_has_the_shape_that_was_asked_for() -> None:
    window = make_window(WindowSize(ranks=16, steps=12, metrics=5, samples=3))
    assert window.steps.num_rows == 16 * 12
    assert window.metrics.num_rows == 16 * 5 * 3


def test_same_seed_makes_the_same_window() -> None:
    shape = WindowSize(ranks=4, steps=10, metrics=3, samples=2)
    assert make_window(shape, seed=3).to_json() == make_window(shape, seed=3).to_json()
    assert make_window(shape, seed=3).to_json() != make_window(shape, seed=4).to_json()


def test_every_metric_of_the_window_is_one_that_a_diagnosis_uses() -> None:
    quality = rca.diagnose(make_window(WindowSize(ranks=4, steps=20))).quality
    assert quality.unknown_metrics == []
    assert quality.metric_samples_unused == 0


@pytest.mark.long
@pytest.mark.system
def test_diagnosis_benchmark_reports_every_stage(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    size = ["--ranks", "8", "--steps", "20", "--samples", "4", "--seconds", "0", "--least", "1"]
    command = [sys.executable, "-m", "benchmarks", "diagnosis", *size, "--json", str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    assert [(size["ranks"], size["encoding"]) for size in found["sizes"]] == [(8, "JSON"), (8, "Arrow")]
    for size in found["sizes"]:
        assert set(size["stages"]) == set(STAGES)
        assert all(stage["p50"] > 0 for stage in size["stages"].values())
        # A window that takes the short way out as healthy would measure nothing of the causal stage.
        assert size["answer"].startswith("fail_slow, ")
        assert size["http"]["memory_peak_bytes"] > size["memory_peak_bytes"] / 2
    for stage in STAGES:
        assert stage in done.stdout


def test_unknown_benchmark_is_refused_with_the_known_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-benchmark"]) == 2
    assert "diagnosis" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_every_registered_benchmark_exists(name: str) -> None:
    assert find_spec(f"benchmarks.{BENCHMARKS[name]}") is not None


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.system
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
    assert found["share_under_overload"] > 0
    assert f"acknowledged {kept['acknowledged']:,}" in done.stdout
