"""Results of the two real traces equal every published number; skipped if the traces are absent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rca.whatif.analysis import replay_of, what_if

HERE = Path(os.environ.get("RCA_WHAT_IF_TRACES", "../shared/traces/what-if"))

pytestmark = pytest.mark.skipif(
    not HERE.is_dir(),
    reason=f"no real traces at {HERE}: they are not part of the project (RCA_WHAT_IF_TRACES)",
)


def numbers(found: Any, expected: Any, path: str = "") -> list[tuple[str, float, float]]:
    if isinstance(expected, dict):
        assert list(found) == list(expected), path
        return [item for key in expected for item in numbers(found[key], expected[key], f"{path}/{key}")]
    if isinstance(expected, float):
        return [(path, found, expected)]
    assert found == expected, path
    return []


@pytest.mark.parametrize("engine", ["numpy", "numba"])
@pytest.mark.parametrize("name", ["AR", "ST"])
def test_every_published_number_is_reproduced(name: str, engine: Any) -> None:
    expected = json.loads((HERE / f"result-{name}.json").read_text())
    found = what_if(HERE / f"trace-{name}.parquet", HERE / f"meta-{name}.yaml", engine=engine).published()
    for key in ("Mw", "Ms"):
        expected[key] = json.loads((HERE / f"{key.lower()}-{name}.json").read_text())[key]
    compared = numbers(found, {key: expected[key] for key in found})
    assert set(found) == set(expected)
    assert len(compared) > 500
    assert [item for item in compared if abs(item[1] - item[2]) > 1e-6 * abs(item[2])] == []


@pytest.mark.parametrize(("name", "pattern", "ranks"), [("AR", "worker", (0,)), ("ST", "stage", (6, 7))])
def test_the_known_cause_is_found(name: str, pattern: str, ranks: tuple[int, ...]) -> None:
    found = what_if(replay_of(HERE / f"trace-{name}.parquet", HERE / f"meta-{name}.yaml"))
    assert [(finding.pattern, finding.ranks) for finding in found.findings] == [(pattern, ranks)]
    assert found.warnings == ()
