"""What a file of a runbook may hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Platform = Literal["kubernetes", "slurm", "host"]
PLATFORMS: tuple[Platform, ...] = get_args(Platform)
#: Where a command runs: where the reader sits, on a node, or where the rank's process runs.
Where = Literal["here", "node", "rank"]
SectionName = Literal["verify", "contain", "fix", "confirm"]
SECTIONS: tuple[SectionName, ...] = get_args(SectionName)

#: ``{{ node }}``.
PLACEHOLDER = re.compile(r"\{\{ (\w+) \}\}")

Text = Annotated[str, Field(max_length=2000)]
Name = Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,39}$")]
ByPlatform = Text | dict[Platform, Text]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Undo(_Strict):
    """How a step is undone; without a command it says why there is none."""

    do: Text
    at: Where = "here"
    run: ByPlatform = ""


class StepSource(_Strict):
    """One step.

    Attributes
    ----------
    use : str, optional
        Name of a shared step, of which this one replaces single entries.
    do : str
        What to do, in words.
    at : {"here", "node", "rank"}
    run : str or dict
        The command, for all platforms or by platform; none where a person acts.
    changes : bool
        Whether it changes something; then it has an `undo`.
    confirmed, otherwise : str
        What is seen if the cause is confirmed, or the step worked, and if not.
    shows : tuple of str
        Placeholders whose value its command prints.
    platforms : tuple of str
        Where the step is shown.
    """

    use: Name | None = None
    do: Text = ""
    at: Where = "here"
    run: ByPlatform = ""
    changes: bool = False
    undo: Undo | None = None
    confirmed: Text = ""
    otherwise: Text = ""
    shows: tuple[Name, ...] = ()
    platforms: tuple[Platform, ...] = PLATFORMS

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.use is not None:
            return self
        if not self.do:
            raise ValueError("a step needs `do`, or `use` with the name of a shared step")
        if self.changes and self.undo is None:
            raise ValueError("a step that changes something needs `undo`")
        if self.undo is not None and not self.changes:
            raise ValueError("a step with `undo` needs `changes: true`")
        return self

    def resolved(self, shared: Mapping[str, StepSource]) -> StepSource:
        """The shared step with the entries of this one."""
        if self.use is None:
            return self
        own = {name: getattr(self, name) for name in self.model_fields_set if name != "use"}
        return shared[self.use].model_copy(update=own)


class Escalation(_Strict):
    """When to call which team, and what it needs to learn."""

    when: Text
    to: Text
    send: Text


class RunbookSource(_Strict):
    """A runbook of one cause. What is undone follows from the steps."""

    verify: Annotated[tuple[StepSource, ...], Field(min_length=1)]
    contain: tuple[StepSource, ...] = ()
    fix: tuple[StepSource, ...] = ()
    escalate: Annotated[tuple[Escalation, ...], Field(min_length=1)]
    confirm: Annotated[tuple[StepSource, ...], Field(min_length=1)]

    def steps(self) -> Iterator[StepSource]:
        """All steps, in the order of the page."""
        for section in SECTIONS:
            yield from getattr(self, section)


class Placeholder(_Strict):
    """What a placeholder stands for, and the command that finds its value."""

    meaning: Text
    at: Where = "here"
    find: ByPlatform = ""


class Common(_Strict):
    """What all runbooks share (``common.yaml``).

    Attributes
    ----------
    platform : {"kubernetes", "slurm", "host"}, optional
        Where commands run unless a caller says so.
    values : dict
        Known values of placeholders.
    run_on : dict
        Beginning of a command on a node or beside a rank, by platform.
    roll_back : tuple of StepSource
        What is undone last, in every runbook.
    """

    platform: Platform | None = None
    values: dict[Name, Text] = {}
    run_on: dict[Platform, dict[Literal["node", "rank"], Text]] = {}
    placeholders: dict[Name, Placeholder] = {}
    steps: dict[Name, StepSource] = {}
    roll_back: tuple[StepSource, ...] | None = None

    def replaced(self, site: Common) -> Common:
        """These entries, with those of a site in their place."""
        return Common(
            platform=site.platform or self.platform,
            values=self.values | site.values,
            run_on={name: self.run_on.get(name, {}) | site.run_on.get(name, {}) for name in PLATFORMS},
            placeholders=self.placeholders | site.placeholders,
            steps=self.steps | site.steps,
            roll_back=self.roll_back if site.roll_back is None else site.roll_back,
        )


def texts(source: BaseModel) -> Iterator[str]:
    """Every text of a file that may hold placeholders."""
    yield from _texts(source.model_dump(exclude={"use", "at", "platform", "platforms", "changes", "shows"}))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def unknown_placeholders(source: BaseModel, known: Mapping[str, object]) -> list[str]:
    """Placeholders that are not known, and what only looks like one."""
    wrong: dict[str, None] = {}
    for text in texts(source):
        wrong |= dict.fromkeys(name for name in PLACEHOLDER.findall(text) if name not in known)
        if "{{" in (rest := PLACEHOLDER.sub("", text)) or "}}" in rest:
            wrong["{{ with one name and two blanks"] = None
    return list(wrong)
