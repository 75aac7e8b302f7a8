"""Score the reader and the diagnosis on the logs of `logs_retold`.

python tests/telemetry/retold_logs.py open held late shared
"""

from __future__ import annotations

import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import rca
from rca.errors import RcaError

FOLDER = Path(__file__).parent / "logs_retold"


def cases(half: str) -> list[dict[str, Any]]:
    return tomllib.loads((FOLDER / f"{half}.toml").read_text("utf-8"))["case"]


def path_of(case: dict[str, Any], folder: Path) -> Path:
    if "file" in case:
        return FOLDER / case["file"]
    path = folder / "job.log"
    path.write_text(case["text"].lstrip("\n"), "utf-8")
    return path


def verdict(case: dict[str, Any], folder: Path) -> tuple[str, rca.Diagnosis | None]:
    """``right``, ``undecided``, ``silent``, ``wrong`` or ``refused``.

    Right is exactly the place with certainty, or no place where the text names none. Undecided names the
    place, perhaps among others, and abstains; silent names no place although the text does. Any other place
    is wrong. A log of a healthy job may be refused; a place or a stop in it is wrong.
    """
    healthy = case.get("healthy", False)
    try:
        answer = rca.diagnose(rca.read_window(path_of(case, folder)))
    except RcaError:
        return ("right" if healthy else "refused"), None
    ranks = {rank for each in answer.stragglers for rank in each.ranks}
    nodes = {node for each in answer.stragglers for node in each.nodes}
    wanted_ranks, wanted_nodes = set(case.get("ranks", [])), set(case.get("nodes", []))
    named = bool(ranks or nodes)
    if healthy:
        stopped = answer.failure_mode == "fail_stop" and not answer.abstained
        return ("wrong" if named or stopped else "right"), answer
    if not wanted_ranks and not wanted_nodes:
        return ("wrong" if named else "right"), answer
    if answer.failure_mode != case.get("mode", "fail_stop"):
        return ("wrong" if named or not answer.abstained else "silent"), answer
    found = ranks == wanted_ranks if wanted_ranks else nodes == wanted_nodes and not ranks
    if found and not answer.abstained:
        return "right", answer
    if not named:
        return "silent", answer
    among = wanted_ranks <= ranks if wanted_ranks else wanted_nodes <= nodes
    return ("undecided" if answer.abstained and among else "wrong"), answer


def main() -> None:
    for half in sys.argv[1:]:
        counts: Counter[str] = Counter()
        for case in cases(half):
            with tempfile.TemporaryDirectory() as folder:
                result, answer = verdict(case, Path(folder))
            counts[result] += 1
            if result != "right" and "-v" in sys.argv and answer is not None:
                print(
                    half,
                    result,
                    case["name"],
                    [(e.ranks, e.nodes) for e in answer.stragglers],
                    answer.next_check,
                )
            elif result != "right":
                print(half, result, case["name"])
        print(half, dict(counts))


if __name__ == "__main__":
    main()
