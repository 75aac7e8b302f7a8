"""Sentences whose user-supplied parts are marked, so that every renderer can quote them safely."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from rca.diagnosis.result import PART_WORDS, Cause, Finding, Straggler, WindowSpan
from rca.runbook.numbers import count, rank_list
from rca.window.catalogue import channels, resolve
from rca.window.names import UNSEEN

_MAX_NAME_LENGTH = 120
_MAX_NODES = 4
#: Runs of ranks in one list.
_MAX_RUNS = 8
# Lone surrogates, too: a text of JSON may have them.
_UNPRINTABLE = UNSEEN | {"Cs"}


class Name(str):
    """Text that came from the user or names an identifier: rendered as code, never as markup."""

    __slots__ = ()


Phrase = tuple[str, ...]

#: Words for timed phases; other signals have a meaning in the catalogue.
_PHASES = {
    "data_loading_seconds": "data loading",
    "host_to_device_seconds": "host-to-device copies",
    "forward_seconds": "forward",
    "backward_seconds": "backward",
    "optimizer_seconds": "optimizer",
    "checkpoint_seconds": "checkpoint",
    "gc_seconds": "garbage collection",
    "communication_seconds": "communication",
    "communication_transfer_seconds": "transfer within communication",
    "communication_wait_seconds": "waiting within communication",
    "step_seconds": "whole step",
}


def clean(text: str) -> str:
    """`text` on one line without characters that could move a cursor or reorder a page."""
    kept = (" " if unicodedata.category(char) in _UNPRINTABLE else char for char in text)
    return " ".join("".join(kept).split())


def name(text: str) -> Name:
    """Clean a user's string and cut it to a length a page can hold."""
    shown = clean(text) or "(empty)"
    return Name(shown if len(shown) <= _MAX_NAME_LENGTH else shown[: _MAX_NAME_LENGTH - 1] + "…")


#: Failures that events report, as evidence names them.
_FAILURES = {
    "exit_code": "exit code",
    "xid": "Xid code",
    "ecc": "memory error of a device",
    "oom_kill": "killed by the kernel for memory",
    "link_down": "link down",
    "heartbeat_missed": "heartbeat missed",
    "nccl_timeout": "collective timed out",
}


def label_of(signal: str) -> str:
    """What a signal is, in words; empty for signals that only their note explains."""
    if signal in _PHASES:
        return _PHASES[signal]
    if signal in _FAILURES:
        return _FAILURES[signal]
    feeding = channels().get(signal, ())
    known = feeding[0] if feeding else resolve(signal)
    return known.meaning if known is not None else ""


def plain(phrase: Phrase) -> str:
    """Join the phrase into bare text."""
    return "".join(phrase)


def joined(phrases: Iterable[Phrase], separator: str = ", ") -> Phrase:
    """Phrases one after the other with `separator` between them."""
    parts: list[str] = []
    for phrase in phrases:
        if parts:
            parts.append(separator)
        parts.extend(phrase)
    return tuple(parts)


def node_names(nodes: Sequence[str]) -> Phrase:
    """Node names, the first few in full and the rest counted."""
    shown = joined((name(node),) for node in nodes[:_MAX_NODES])
    rest = len(nodes) - _MAX_NODES
    return (*shown, f" and {rest:,} more") if rest > 0 else shown


def place_of(component: Straggler | Cause, span: WindowSpan | None = None) -> Phrase:
    """The component to look at: the part that its ranks share, else as `who`.

    Parameters
    ----------
    span : WindowSpan, optional
        Of the job, to see whether these are all ranks.
    """
    scope = component.scope if isinstance(component, Straggler) else None
    if span is not None and 1 < span.world_size == len(component.ranks):
        return all_ranks(span)
    ranks = who(component.ranks, component.nodes, scope)
    if len(component.places) == 1 and component.places[0].gpu is not None:
        ranks = (*ranks, f" (GPU {component.places[0].gpu})")
    stages = {each.stage for each in component.places}
    if scope == "stage" and len(stages) == 1 and None not in stages:
        ranks = (f"pipeline stage {next(iter(stages))} ({_ranks(component.ranks)})",)
    part = component.shared
    if part is None:
        return ranks
    title, between = PART_WORDS[part.level]
    inside = (between, name(part.within)) if part.within is not None else ()
    return (title, name(part.name), *inside, " (", *ranks, ")")


def place_of_finding(finding: Finding, span: WindowSpan | None = None) -> Phrase:
    """The ranks of a finding and their nodes; ``all 64 ranks`` if it is on all."""
    if span is not None and 1 < span.world_size == len(finding.ranks):
        return all_ranks(span)
    return who(finding.ranks, finding.nodes)


def all_ranks(span: WindowSpan) -> Phrase:
    """``all 64 ranks (8 nodes)``."""
    nodes = f" ({count(span.nodes, 'node')})" if span.nodes else ""
    return (f"all {span.world_size:,} ranks{nodes}",)


def _ranks(ranks: Sequence[int]) -> str:
    """``rank 6`` or ``ranks 0-7,12``; of many runs the first, and the number of the others."""
    runs = rank_list(ranks).split(",")
    shown = runs[:_MAX_RUNS]
    hidden = len(set(ranks)) - sum(_length(run) for run in shown)
    more = f" and {hidden:,} more" if hidden else ""
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {','.join(shown)}{more}"


def _length(run: str) -> int:
    first, _, last = run.partition("-")
    return int(last or first) - int(first) + 1


def who(ranks: Sequence[int], nodes: Sequence[str], scope: str | None = None) -> Phrase:
    """Name the component to look at: ``rank 6 on node-3``, ``node node-1 (ranks 2-3)``, ``the whole job``."""
    if scope == "job" or (not ranks and not nodes):
        return ("the whole job",)
    listed = _ranks(ranks) if ranks else ""
    if scope == "node" and nodes:
        label = "node " if len(nodes) == 1 else "nodes "
        return (label, *node_names(nodes), f" ({listed})" if listed else "")
    if scope in ("stage", "data_group"):
        label = "a pipeline stage" if scope == "stage" else "a data-parallel group"
        return (f"{label} ({listed})",)
    if not nodes:
        return (listed,)
    return (f"{listed} on ", *node_names(nodes)) if listed else ("node ", *node_names(nodes))
