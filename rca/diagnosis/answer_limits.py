"""Limits on the lists and texts of an answer, whatever names and ranks its window has.

An answer is stored, sent and read by people. So every list whose length follows from the window has a limit,
and `Diagnosis.left_out` counts what is missing from it.
"""

from __future__ import annotations

from typing import TypeVar

from rca.diagnosis.result import Cause, Diagnosis, Evidence, Finding, Place, Quality, Shared, Straggler

MAX_STRAGGLERS = 64
MAX_CAUSES = 64
MAX_ACTIONS = 64
MAX_FINDINGS = 32
MAX_NOTES = 50
MAX_UNKNOWN_METRICS = 100
#: Longest text, such as a note or the name of a metric, in characters.
MAX_TEXT_LENGTH = 400
#: Characters of all ranks and nodes of an answer together. All 10,240 ranks of a job take 60,000.
PLACE_CHARACTERS = 500_000
#: Every list of ranks or nodes keeps its first few.
MIN_PLACES = 8
#: Characters of a node in JSON besides its name; of a rank it is the comma.
_QUOTED = 3

_Entry = TypeVar("_Entry")
_Place = TypeVar("_Place", int, str)
_Component = TypeVar("_Component", Straggler, Cause)
_Observation = TypeVar("_Observation", bound=Evidence)


def within_limits(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with lists and texts within the limits; the same object if they are."""
    limits = _Limits(dict(diagnosis.left_out))
    stragglers = limits.places("stragglers", limits.first(diagnosis.stragglers, MAX_STRAGGLERS, "stragglers"))
    causes = limits.places("causes", limits.first(diagnosis.causes, MAX_CAUSES, "causes"))
    findings = limits.findings(limits.first(diagnosis.findings, MAX_FINDINGS, "findings"))
    actions = limits.first(diagnosis.actions, MAX_ACTIONS, "actions")
    quality = limits.quality(diagnosis.quality)
    next_check = _short(diagnosis.next_check)
    if limits.left_out == diagnosis.left_out and not limits.shortened and next_check == diagnosis.next_check:
        return diagnosis
    return diagnosis.model_copy(
        update={
            "stragglers": stragglers,
            "causes": causes,
            "findings": findings,
            "actions": actions,
            "quality": quality,
            "next_check": next_check,
            "left_out": limits.left_out,
        }
    )


class _Limits:
    """What is left out of an answer, and the characters that are left for its places."""

    def __init__(self, left_out: dict[str, int]) -> None:
        self.left_out = left_out
        self.shortened = False
        self._characters = PLACE_CHARACTERS

    def first(self, values: list[_Entry], most: int, name: str) -> list[_Entry]:
        """The first entries of a list; the others are counted under its name."""
        if len(values) > most:
            self.left_out[name] = self.left_out.get(name, 0) + len(values) - most
        return values[:most]

    def places(self, name: str, components: list[_Component]) -> list[_Component]:
        """The components with the ranks and nodes for which there is room."""
        found = []
        for position, each in enumerate(components):
            ranks = self._fitting(f"{name}[{position}].ranks", each.ranks)
            nodes = self._fitting(f"{name}[{position}].nodes", [self._text(node) for node in each.nodes])
            shared = self._shared(f"{name}[{position}].shared", each.shared)
            update = {
                "ranks": ranks,
                "nodes": nodes,
                "shared": shared,
                "places": [self._place(place) for place in each.places],
            }
            if isinstance(each, Cause):
                update["evidence"] = [self._evidence(item) for item in each.evidence]
            found.append(each.model_copy(update=update))
        return found

    def findings(self, found: list[Finding]) -> list[Finding]:
        """The findings with the ranks and nodes for which there is room."""
        return [
            each.model_copy(
                update={
                    "ranks": self._fitting(f"findings[{position}].ranks", each.ranks),
                    "nodes": self._fitting(
                        f"findings[{position}].nodes", [self._text(node) for node in each.nodes]
                    ),
                }
            )
            for position, each in enumerate(found)
        ]

    def quality(self, quality: Quality) -> Quality:
        """The data quality with the first unknown metrics and notes."""
        unknown = self.first(quality.unknown_metrics, MAX_UNKNOWN_METRICS, "quality.unknown_metrics")
        notes = self.first(quality.notes, MAX_NOTES, "quality.notes")
        update = {
            "unknown_metrics": [self._text(name) for name in unknown],
            "notes": [self._text(note) for note in notes],
        }
        return quality.model_copy(update=update)

    def _shared(self, name: str, part: Shared | None) -> Shared | None:
        if part is None:
            return None
        return Shared(
            level=part.level,
            name=self._text(part.name),
            within=None if part.within is None else self._text(part.within),
            ranks=self._fitting(f"{name}.ranks", part.ranks),
            nodes=self._fitting(f"{name}.nodes", [self._text(node) for node in part.nodes]),
        )

    def _evidence(self, item: _Observation) -> _Observation:
        device = None if item.device is None else self._text(item.device)
        update = {"note": self._text(item.note), "device": device}
        changed = (item.note, item.device) != (update["note"], device)
        return item.model_copy(update=update) if changed else item

    def _place(self, place: Place) -> Place:
        texts = {name: getattr(place, name) for name in ("node", "pci_address", "nic", "pod", "namespace")}
        cut = {name: self._text(text) for name, text in texts.items() if text is not None}
        return place.model_copy(update=cut) if cut != texts else place

    def _fitting(self, name: str, places: list[_Place]) -> list[_Place]:
        used = n_fit = 0
        for n_fit, place in enumerate(places):
            size = len(place) + _QUOTED if isinstance(place, str) else len(str(place)) + 1
            if n_fit >= MIN_PLACES and used + size > self._characters:
                break
            used += size
        else:
            n_fit = len(places)
        self._characters = max(self._characters - used, 0)
        return self.first(places, n_fit, name)

    def _text(self, text: str) -> str:
        short = _short(text)
        self.shortened |= short is not text
        return short


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"
