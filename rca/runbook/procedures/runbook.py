"""A runbook for one platform, filled with what is known about an incident."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import Field

from rca.diagnosis.result import Action
from rca.frozen import Frozen
from rca.runbook.numbers import count, seconds
from rca.runbook.phrases import clean
from rca.runbook.procedures.incident import DiagnosedCause
from rca.runbook.procedures.library import Library
from rca.runbook.procedures.sources import (
    PLACEHOLDER,
    SECTIONS,
    ByPlatform,
    Escalation,
    Platform,
    SectionName,
    StepSource,
    Undo,
    Where,
)
from rca.window.causes import SPECS, CauseOwner

#: Placeholders of a place: a command with one of these is written for each place.
_OF_PLACE = frozenset({"node", "node_pattern", "rank", "gpu", "pci_address", "port", "pod", "namespace"})


class Step(Frozen):
    """A step to do.

    `commands` has one command for each place, or none where a person acts. `changes` marks what has to be
    undone in the roll back.
    """

    number: int
    do: str
    commands: list[str]
    changes: bool
    confirmed: str
    otherwise: str


class UndoneStep(Frozen):
    """How to undo step `number`; None for what concerns no single step."""

    number: int | None
    do: str
    commands: list[str]


class Open(Frozen):
    """A placeholder without a known value: what stands for it in commands, and how to find it."""

    written: str
    meaning: str
    find: str


class Runbook(Frozen):
    """What to do about a cause.

    Attributes
    ----------
    owner : {"infrastructure", "workload", "either"}
    platform : {"kubernetes", "slurm", "host"}
    of_site : bool
        Whether the site replaced the runbook of the package.
    places : list of str
        Blamed ranks, nodes and devices, in words.
    notes : list of str
        What is unusual about this incident.
    verify, contain, fix, confirm : list of Step
        Numbered across the sections.
    plan : list of str
        Actions that the diagnosis suggests against the cause, with gain and cost.
    roll_back : list of UndoneStep
        The last change first.
    """

    cause: str
    meaning: str
    owner: CauseOwner
    platform: Platform
    of_site: bool = Field(description="The site's own runbook, in place of that of the package.")
    diagnosis_id: str | None
    places: list[str]
    notes: list[str]
    replace: list[Open]
    verify: list[Step]
    contain: list[Step]
    fix: list[Step]
    plan: list[str]
    roll_back: list[UndoneStep]
    escalate: list[Escalation]
    confirm: list[Step]


def runbook(
    library: Library, cause: str, *, platform: Platform | None = None, incident: DiagnosedCause | None = None
) -> Runbook:
    """The runbook of a cause.

    Parameters
    ----------
    cause : str
        Of the catalogue, or ``unknown``.
    platform : {"kubernetes", "slurm", "host"}, optional
        By default the site's own, else ``host``.
    incident : DiagnosedCause, optional
        Fills placeholders.

    Raises
    ------
    InvalidInput
        If there is no such cause.
    """
    source = library.source(cause)
    writer = _Writer(library, platform or library.common.platform or "host", incident)
    sections: dict[SectionName, list[Step]] = {}
    undone: list[UndoneStep] = []
    number = 0
    for section in SECTIONS:
        sections[section] = []
        for each in getattr(source, section):
            step = each.resolved(library.common.steps)
            if writer.platform not in step.platforms:
                continue
            number += 1
            sections[section].append(writer.step(step, number))
            if step.undo is not None:
                undone.insert(0, writer.undone(step.undo, number))
    for last in library.common.roll_back or ():
        step = last.resolved(library.common.steps)
        if writer.platform in step.platforms:
            undone.append(writer.undone(step, None))
    escalate = [
        Escalation(when=writer.text(each.when), to=writer.text(each.to), send=writer.text(each.send))
        for each in source.escalate
    ]
    spec = SPECS[cause]
    return Runbook(
        cause=cause,
        meaning=spec.meaning,
        owner=spec.owner,
        platform=writer.platform,
        of_site=cause in library.of_site,
        diagnosis_id=None if incident is None else incident.diagnosis_id,
        places=[] if incident is None else list(_places(incident)),
        notes=list(_notes(cause, incident)),
        replace=writer.replace(),
        **sections,
        plan=[] if incident is None else [_planned(action) for action in incident.actions],
        roll_back=undone,
        escalate=escalate,
    )


def _places(incident: DiagnosedCause) -> Iterator[str]:
    yield from (place.title for place in incident.places)
    if incident.withheld:
        yield "nodes that are left out because of their names"


def _notes(cause: str, incident: DiagnosedCause | None) -> Iterator[str]:
    if incident is None:
        return
    if not incident.blamed:
        yield f"The diagnosis does not name {cause}. The places are those of its stragglers."
    if incident.more_places:
        yield f"Commands are written for the first places. Repeat them on {incident.more_places} more."
    if incident.withheld:
        yield "Some nodes are left out, because a shell or Slurm would misread their names."


@dataclass
class _Writer:
    """Fills texts and commands, and remembers what stays open."""

    library: Library
    platform: Platform
    incident: DiagnosedCause | None
    used: dict[str, None] = field(default_factory=dict)
    shown_by: dict[str, int] = field(default_factory=dict)

    def step(self, step: StepSource, number: int) -> Step:
        for name in step.shows:
            self.shown_by.setdefault(name, number)
        return Step(
            number=number,
            do=self.text(step.do),
            commands=self.commands(step.run, step.at),
            changes=step.changes,
            confirmed=self.text(step.confirmed),
            otherwise=self.text(step.otherwise),
        )

    def undone(self, undo: Undo | StepSource, number: int | None) -> UndoneStep:
        return UndoneStep(number=number, do=self.text(undo.do), commands=self.commands(undo.run, undo.at))

    def text(self, text: str) -> str:
        """Prose, for the first place."""
        return self._filled(text, self._values()[0])

    def commands(self, run: ByPlatform, at: Where) -> list[str]:
        """The command, once for each place that it names."""
        command = run if isinstance(run, str) else run.get(self.platform, "")
        if not command:
            return []
        prefix = "" if at == "here" else self.library.common.run_on[self.platform][at]
        found: dict[str, None] = {}
        for values in self._values():
            line = self._filled(command, values)
            if prefix:
                line = f"{self._filled(prefix, values)} {shlex.quote(line)}"
            found[line] = None
            if not _OF_PLACE & {*PLACEHOLDER.findall(command), *PLACEHOLDER.findall(prefix)}:
                break
        return list(found)

    def replace(self) -> list[Open]:
        """The placeholders that stayed open, in the order of their first use."""
        found = []
        done: set[str] = set()
        # Commands that find a value may use placeholders themselves.
        while waiting := [name for name in self.used if name not in done]:
            name = waiting[0]
            done.add(name)
            known = self.library.common.placeholders[name]
            find = next(iter(self.commands(known.find, known.at)), "")
            source = f"; step {self.shown_by[name]} shows it" if name in self.shown_by else ""
            found.append(Open(written=_written(name), meaning=known.meaning + source, find=find))
        return found

    def _values(self) -> list[Mapping[str, str]]:
        shared = dict(self.library.common.values)
        if self.incident is None:
            return [shared]
        shared |= self.incident.values
        return [shared | place.values for place in self.incident.places] or [shared]

    def _filled(self, text: str, values: Mapping[str, str]) -> str:
        def value(name: str) -> str:
            if name not in values:
                self.used[name] = None
            return values.get(name, _written(name))

        return PLACEHOLDER.sub(lambda found: value(found[1]), text)


def _written(name: str) -> str:
    """What stands for an unknown value: a word that a shell does not interpret."""
    return name.upper()


def _planned(action: Action) -> str:
    """An action of the diagnosis, with its gain and its cost."""
    gain = action.expected_seconds_per_step_saved
    parts = ["saving unknown" if gain is None else f"saves {seconds(gain)} per step"]
    if action.cost_seconds:
        parts.append(f"costs {seconds(action.cost_seconds)} once")
    if action.break_even_steps:
        parts.append(f"pays off after {count(action.break_even_steps, 'step')}")
    if action.escalate_after_steps is not None:
        steps = action.escalate_after_steps
        parts.append("due now" if steps == 0 else f"due if it lasts {count(steps, 'more step')}")
    return f"{clean(action.action)}: {', '.join(parts)}"
