"""The steps that data/README.md gives for one's own incidents lead to scores."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from rca.lab.evaluation.run import evaluate_collection
from rca.sources.labels import write_manifest
from rca.sources.read import read_window
from rca.window.causes import CAUSES
from tests.shifted_windows import shifted

PAGE = (Path(__file__).parents[2] / "data" / "README.md").read_text(encoding="utf-8")


def test_the_described_files_make_a_collection_that_can_be_evaluated(
    real_windows: Path, tmp_path: Path
) -> None:
    label, manifest = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (entry,) = json.loads(manifest)["windows"]
    folder = tmp_path / entry["path"]
    read_window(real_windows / "nic-rate-limited").to_directory(folder)
    (folder / "label.json").write_text(label)
    (tmp_path / "manifest.json").write_text(manifest)
    (case,) = evaluate_collection(tmp_path).cases
    assert case.label.causes[0].cause in CAUSES
    assert (case.judged.mode_right, case.judged.ranks_exact) == (1, 1)


def test_a_window_is_compared_with_the_earlier_one_that_its_manifest_names(
    real_windows: Path, tmp_path: Path
) -> None:
    for name, seconds in (("now", 0.0), ("before", -3600.0)):
        shifted(read_window(real_windows / "nic-rate-limited"), seconds).to_directory(tmp_path / name)
        shutil.copy(real_windows / "nic-rate-limited" / "label.json", tmp_path / name)
    write_manifest(
        tmp_path,
        [{"id": "now", "path": "now", "earlier": "before"}, {"id": "before", "path": "before"}],
        {},
    )
    now, before = evaluate_collection(tmp_path).cases
    assert before.diagnosis.earlier is None
    assert now.diagnosis.earlier is not None
    assert now.diagnosis.earlier.ratio == pytest.approx(1.0)


def test_its_links_lead_somewhere() -> None:
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)]+)\)", PAGE)]
    assert [target for target in targets if not (Path(__file__).parents[2] / "data" / target).exists()] == []
