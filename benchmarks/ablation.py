"""``python -m benchmarks ablation``: what each group of features is worth to each head.

A group is hidden (every value missing) from training and test alike, all heads are fitted anew, and their
log loss on held-out scenarios is compared, row by row, with that of the heads that saw everything. Above zero
the group earns its place; an interval that holds zero says that this corpus cannot tell. Nothing is removed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from rca.arrays import FloatArray
from rca.evaluation.intervals import Estimate
from rca.features import RANK_FEATURES, WINDOW_FEATURES
from rca.features.evidence import resource_names
from rca.features.groups import feature_groups, group_names
from rca.training.corpus import Corpus, stack
from rca.training.head_losses import Losses, change, held_out_losses
from rca.training.heads import fit_heads, targets
from rca.training.run import DEFAULT_SEED
from rca.training.simulated import simulated_examples

N_WINDOWS = 6000
#: Parts that neither fit nor calibration looks at; with no threshold to choose, validation is one of them.
HELD_OUT = ("validation", "test")
#: Every resource at once: what a model of phases alone would be.
ALL_RESOURCES = "all resources"

Progress = Callable[[str], None]


def without(corpus: Corpus, groups: Collection[str]) -> Corpus:
    """The corpus with every feature of the groups missing."""
    group_of = feature_groups()

    def hidden(rows: FloatArray, names: Sequence[str]) -> FloatArray:
        gone = np.array([group_of[name] in groups for name in names])
        return np.where(gone, np.nan, rows)

    return replace(
        corpus, window=hidden(corpus.window, WINDOW_FEATURES), rank=hidden(corpus.rank, RANK_FEATURES)
    )


def losses_of(corpus: Corpus, seed: int, progress: Progress) -> dict[str, Losses]:
    """Fit every head and take its log loss on held-out scenarios."""
    fitted, wanted = fit_heads(corpus, seed, progress), targets(corpus)
    return {
        name: held_out_losses(head, wanted[name], np.isin(wanted[name].part, HELD_OUT))
        for name, head in fitted.items()
    }


def ablate(
    corpus: Corpus, questions: dict[str, tuple[str, ...]], seed: int, progress: Progress
) -> tuple[dict[str, Losses], dict[str, dict[str, Estimate]]]:
    """Losses with everything, and per question (name -> groups hidden) the change of every head's."""
    base = losses_of(corpus, seed, _prefixed("everything: ", progress))
    changes = {}
    for question, groups in questions.items():
        found = losses_of(without(corpus, groups), seed, _prefixed(f"without {question}: ", progress))
        changes[question] = {name: change(base[name], found[name]) for name in base}
    return base, changes


def _prefixed(prefix: str, progress: Progress) -> Progress:
    return lambda text: progress(prefix + text)


def questions_of(groups: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Groups to hide per question; every group alone and all resources together unless some are named."""
    known = {name: (name,) for name in group_names()} | {ALL_RESOURCES: resource_names()}
    return {name: known[name] for name in groups or known}


def table(base: dict[str, Losses], changes: dict[str, dict[str, Estimate]]) -> Table:
    """One row per hidden group, one column per head; bold where the interval excludes zero."""
    shown = Table("without", *base, title="rise of held-out log loss, in thousandths [95 % interval]")
    shown.add_row("(nothing: loss)", *(f"{losses.mean * 1e3:.0f}" for losses in base.values()))
    for question, by_head in changes.items():
        shown.add_row(question, *(_cell(by_head[name]) for name in base))
    return shown


def _cell(estimate: Estimate) -> str:
    value, low, high = (number * 1e3 for number in estimate[:3])
    text = rf"{value:+.1f} \[{low:+.1f}, {high:+.1f}]"
    return f"[bold]{text}[/bold]" if low > 0 or high < 0 else text


def main(arguments: list[str]) -> int:
    """Simulate, fit with and without each group, print the table and write the figures if asked."""
    given = _options(arguments)
    _progress(f"simulating {given.windows:,} windows")
    corpus = stack(simulated_examples(given.windows, given.seed, processes=given.processes))
    base, changes = ablate(corpus, questions_of(given.groups), given.seed, _progress)
    Console(width=None if sys.stdout.isatty() else 260).print(table(base, changes))
    if given.json:
        document = {
            "windows": given.windows,
            "seed": given.seed,
            "corpus_sha256": corpus.digest,
            "log_loss": {name: losses.mean for name, losses in base.items()},
            "rise": {
                question: {name: estimate.as_row() for name, estimate in by_head.items()}
                for question, by_head in changes.items()
            },
        }
        given.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ablation", description=__doc__)
    parser.add_argument("--windows", type=int, default=N_WINDOWS, help="simulated windows")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument(
        "--groups", nargs="+", choices=list(questions_of(())), default=[], help="only these; all if absent"
    )
    parser.add_argument("--processes", type=int, default=2, help="for the simulation")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here, too")
    return parser.parse_args(arguments)


def _progress(what: str) -> None:
    sys.stderr.write(f"ablation: {what}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
