"""Damaged logs, and small files of other sources, are read or refused with a reason, never another error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mutated_files import mutated
from retold_logs import FOLDER, cases
from test_metric_files import ANSWER, QUERY, SMI, TEXT
from test_py_spy_dumps import LOADING, WAITING, as_json, dump
from test_scheduler_events import AS_COLUMNS, EVENTS, SACCT, kubectl, pod

import rca
from rca.errors import RcaError

SETS = ("open", "held", "late", "last", "unseen", "harvest", "sealed", "healthy", "review", "usual")
LOGS = [case["text"].encode() for half in SETS for case in cases(half)]
LOGS += [path.read_bytes() for path in sorted(FOLDER.rglob("*")) if path.is_file() and path.suffix != ".toml"]


DMON = (
    "#Entity   GPUTL   SMCLK\nID        %       MHz\n" + 4 * "GPU 0     98      1980\nGPU 1     97      345\n"
)
OTHERS = [
    text.encode()
    for text in (
        *(SACCT, AS_COLUMNS, kubectl(EVENTS), dump(WAITING) + dump(LOADING), as_json(WAITING)),
        *(SMI, TEXT, json.dumps(ANSWER), QUERY, DMON),
        kubectl(
            [pod("a-1", "n1", state={"terminated": {"exitCode": 137, "finishedAt": "2025-03-01T12:00:05Z"}})]
        ),
    )
]


def read_all(folder: Path, seeds: range, files: list[bytes] = LOGS) -> int:
    """How many of the damaged files are answered."""
    answered = 0
    path = folder / "job.log"
    for seed in seeds:
        path.write_bytes(mutated(files, seed))
        try:
            rca.diagnose(rca.read_window(path))
            answered += 1
        except RcaError:
            continue
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return answered


def test_a_damaged_log_is_answered_or_refused(tmp_path: Path) -> None:
    assert read_all(tmp_path, range(330, 400)) > 20


def test_a_damaged_file_of_another_source_is_answered_or_refused(tmp_path: Path) -> None:
    assert read_all(tmp_path, range(80), OTHERS) > 5


@pytest.mark.system
@pytest.mark.long
def test_two_thousand_damaged_logs_are_answered_or_refused(tmp_path: Path) -> None:
    assert read_all(tmp_path, range(2000)) > 1000


def test_a_number_of_thousands_of_digits_in_a_table_is_no_rank(tmp_path: Path) -> None:
    text = (FOLDER / "syslog_other_year" / "job.log").read_text("utf-8")
    path = tmp_path / "job.log"
    path.write_text(text.replace("rank      : 4", f"rank      : {'9' * 5000}"), "utf-8")
    answer = rca.diagnose(rca.read_window(path))
    assert answer.failure_mode == "fail_stop"
