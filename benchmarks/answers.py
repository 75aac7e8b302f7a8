"""``python -m benchmarks answers``: a digest of every answer, to prove that a refactoring changes none.

Diagnoses the windows of `data/windows`, every packed collection below `data`, and simulated windows.
``--output`` keeps the answers; ``--before`` compares with answers that an older commit kept.
Diagnosis identifiers and creation times are left out, because they differ in every run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rca.diagnosis import diagnose
from rca.lab.simulation.corpus import simulated_window
from rca.lab.testbed.pack import unpack
from rca.sources.labels import MANIFEST_FILE, read_collection
from rca.sources.read import read_window
from rca.workers import Workers

DATA = Path(__file__).resolve().parent.parent / "data"
#: Simulated windows by default, and the seed of the first; no part of the training corpus is near it.
N_SIMULATED = 400
FIRST_SEED = 770_000_000
#: Fields of an answer that hold sentences.
WORDS = ("note", "notes", "next_check", "runbook", "sentence", "unfamiliar")
VOLATILE = ("diagnosis_id", "created_at")
Source = tuple[str, str]


def main(arguments: list[str]) -> int:
    """Diagnose, print the digest of each collection and of all, and compare with `--before`."""
    given = _options(arguments)
    answers: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        sources = [*_captured(Path(scratch), given.without), *_simulated(given.simulated)]
        with Workers(given.processes) as workers:
            for position, (name, answer) in enumerate(workers.map(_answer, sources, chunk=8), start=1):
                answers[name] = answer
                if position % 200 == 0 or position == len(sources):
                    sys.stderr.write(f"answers: {position:,} of {len(sources):,} windows\n")
    if given.output is not None:
        given.output.write_text("".join(json.dumps([name, answers[name]]) + "\n" for name in answers))
    _print_digests(answers)
    if given.before is None:
        return 0
    before = dict(map(json.loads, given.before.read_text().splitlines()))
    if given.ignore_words:
        before, answers = _without_words(before), _without_words(answers)
    return _compare(before, answers, given.ignore)


def _captured(scratch: Path, without: list[str]) -> Iterator[Source]:
    """Name and folder of every window that is shipped, archives unpacked into `scratch`."""
    for folder in sorted(manifest.parent for manifest in DATA.rglob(MANIFEST_FILE)):
        collection = folder.relative_to(DATA).as_posix()
        if any(fnmatch(collection, pattern) for pattern in without):
            continue
        unpacked = folder
        if next(folder.glob("*.tar"), None) is not None:
            unpacked = scratch / collection
            unpack(folder, unpacked, lambda *_: None)
        for entry in read_collection(unpacked):
            yield f"{collection}/{entry.id}", str(entry.path)


def _simulated(n_windows: int) -> Iterator[Source]:
    return ((f"simulated/{seed}", str(seed)) for seed in range(FIRST_SEED, FIRST_SEED + n_windows))


def _answer(source: Source) -> tuple[str, dict[str, Any]]:
    name, place = source
    window = simulated_window(int(place))[0] if name.startswith("simulated/") else read_window(place)
    answer = diagnose(window).to_dict()
    return name, {key: value for key, value in answer.items() if key not in VOLATILE}


def _print_digests(answers: dict[str, dict[str, Any]]) -> None:
    collections = Counter(name.rsplit("/", 1)[0] for name in answers)
    for collection, n_windows in collections.items():
        lines = [_line(name, answers[name]) for name in answers if name.rsplit("/", 1)[0] == collection]
        print(f"{_digest(lines)[:16]}  {n_windows:5d}  {collection}")
    print(f"{_digest(_line(name, answer) for name, answer in answers.items())}  {len(answers):5d}  all")


def _line(name: str, answer: dict[str, Any]) -> str:
    return json.dumps([name, answer], sort_keys=True)


def _digest(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode())
    return digest.hexdigest()


def _compare(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]], ignore: list[str]) -> int:
    """Print which windows are answered otherwise, and in which fields; 1 if any is."""
    changed: Counter[str] = Counter()
    both = [name for name in after if name in before]
    different = 0
    for name in both:
        fields = sorted(
            key
            for key in before[name].keys() | after[name].keys()
            if key not in ignore
            and json.dumps(before[name].get(key), sort_keys=True)
            != json.dumps(after[name].get(key), sort_keys=True)
        )
        if fields:
            different += 1
            changed.update(fields)
            if different <= 10:
                print(f"differs: {name}: {', '.join(fields)}")
    print(f"{different} of {len(both)} answers differ; only before {len(before.keys() - after.keys())}")
    for field, count in changed.most_common():
        print(f"  {count:5d}  {field}")
    return int(different > 0)


def _without_words(value: Any) -> Any:
    """An answer without the texts that are written for people."""
    if isinstance(value, dict):
        return {key: _without_words(held) for key, held in value.items() if key not in WORDS}
    return [_without_words(held) for held in value] if isinstance(value, list) else value


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks answers", description=__doc__)
    parser.add_argument("--output", type=Path, help="keep the answers in this file, one per line")
    parser.add_argument("--before", type=Path, help="compare with answers kept by another commit")
    parser.add_argument("--ignore-words", action="store_true", help="compare no sentences")
    parser.add_argument("--ignore", action="append", default=[], help="answer field that may differ")
    parser.add_argument("--without", action="append", default=[], help="pattern of collections to leave out")
    parser.add_argument("--simulated", type=int, default=N_SIMULATED, help="simulated windows")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
