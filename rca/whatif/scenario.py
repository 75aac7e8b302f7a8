"""Descriptions of scenarios: which times change, and to which values.

>>> rank_3 = Selection(ranks=(3,), types=("forward-compute",), steps=(40, 80))
>>> through_n2 = Selection(kind="communication", nodes=("n2",))
>>> changes = (Change(select=rank_3, to="peers"), Change(select=through_n2, to="scale", value=0.8))
>>> Scenario(name="both", changes=changes).name
'both'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from rca.arrays import BoolArray
from rca.errors import InvalidInput
from rca.frozen import Frozen
from rca.whatif.optypes import NAMES, OP_TYPES
from rca.window.schema import PHASES
from rca.window.times.own_work import WORK_PHASES

Kind = Literal["compute", "communication", "host"]
Target = Literal["ideal", "peers", "measured", "scale", "seconds", "less", "move_to_stage"]
Base = Literal["measured", "ideal"]

_MERGED = {op.merged for op in OP_TYPES}
KNOWN_TYPES = frozenset(NAMES) | _MERGED | frozenset(WORK_PHASES) | {"communication_transfer_seconds"}
MAX_VALUE = 1e9
"""Largest factor, or number of seconds. Single-precision times overflow beyond it."""

LISTED = 16
"""Available values listed in an error."""

_NEEDS_VALUE = ("scale", "seconds", "less", "move_to_stage")


def _no_coercion(value: Any) -> Any:
    """Refuse what pydantic would take for a number although it is none in JSON."""
    if isinstance(value, bool | str | bytes):
        raise PydanticCustomError("number", "needs a number")
    return value


_NO_COERCION = BeforeValidator(_no_coercion)
Whole = Annotated[int, _NO_COERCION]


class Selection(Frozen):
    """Operations or phases that a change applies to. Absent fields do not restrict the selection.

    Attributes
    ----------
    types : tuple of str, optional
        Operation types, merged names (``forward-pp-comm``) or, for windows without operations, phase
        columns.
    kind : str, optional
        ``compute`` (forward, backward), ``communication``, or ``host`` (garbage collection, loading, ...).
    nodes : tuple of str, optional
        Node names. Needs a window whose job names nodes.
    steps : (int, int), optional
        First and last training step, both inclusive.
    """

    types: tuple[str, ...] | None = None
    kind: Kind | None = None
    ranks: tuple[Whole, ...] | None = None
    data_ranks: tuple[Whole, ...] | None = None
    stages: tuple[Whole, ...] | None = None
    nodes: tuple[str, ...] | None = None
    steps: tuple[Whole, Whole] | None = None

    @model_validator(mode="after")
    def _known_types(self) -> Selection:
        unknown = sorted(set(self.types or ()) - KNOWN_TYPES)
        if unknown:
            outcomes = [name for name in unknown if name in PHASES]
            why = " (a result of the replay)" if outcomes else ""
            raise ValueError(f"unknown operation type or phase {unknown[0]!r}{why}")
        if self.steps is not None and self.steps[0] > self.steps[1]:
            raise ValueError(f"steps run from {self.steps[0]} back to {self.steps[1]}")
        return self


class Change(Frozen):
    """Change of the selected times.

    Attributes
    ----------
    to : str
        - ``ideal``: the ideal time of the type.
        - ``peers``: the median of the data ranks that are not selected, same operation and step.
        - ``measured``: the traced time (useful on an ideal base).
        - ``scale``: the time multiplied by `value`.
        - ``seconds``: `value` seconds.
        - ``less``: `value` seconds less, at least zero.
        - ``move_to_stage``: the share `value` of the compute of the selected stage runs on stage `stage`.
    stage : int, optional
        Receiving stage of ``move_to_stage``.
    """

    select: Selection = Field(default_factory=Selection)
    to: Target
    value: Annotated[float, Field(allow_inf_nan=False), _NO_COERCION] | None = None
    stage: Annotated[int, Field(ge=0), _NO_COERCION] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Change:
        if (self.value is None) == (self.to in _NEEDS_VALUE):
            needs = "needs" if self.to in _NEEDS_VALUE else "takes no"
            raise ValueError(f"{self.to!r} {needs} value")
        if self.value is not None and self.value < 0:
            raise ValueError("value must not be negative")
        if self.value is not None and self.value > MAX_VALUE:
            raise ValueError(f"value must not exceed {MAX_VALUE:g}")
        if self.to == "move_to_stage":
            if self.stage is None or self.select.stages is None or len(self.select.stages) != 1:
                raise ValueError("'move_to_stage' needs one selected stage and the receiving stage")
            if self.stage == self.select.stages[0]:
                raise ValueError("'move_to_stage' needs another stage to move to")
            if self.value is not None and self.value > 1:
                raise ValueError("'move_to_stage' moves a share between 0 and 1")
        return self


class Scenario(Frozen):
    """Named changes, applied in order to the measured job or to the ideal job."""

    name: Annotated[str, Field(max_length=200)] = "scenario"
    changes: tuple[Change, ...] = ()
    base: Base = "measured"

    def then(self, *changes: Change) -> Scenario:
        """A copy with further changes at the end."""
        return self.model_copy(update={"changes": self.changes + changes})

    @classmethod
    def of(cls, description: Scenario | Mapping[str, Any]) -> Scenario:
        """Scenario from a plain description, as in JSON.

        Raises
        ------
        InvalidInput
            If a field cannot be used. The message names it.
        """
        if isinstance(description, Scenario):
            return description
        try:
            return cls.model_validate(description)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise InvalidInput(f"scenario: {field}: {first['msg']}") from error

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which `Scenario.of` reads."""
        return self.model_dump(mode="json", exclude_none=True)


def refuse_unmatched(scenario: Scenario, matched: BoolArray, hint: str) -> None:
    """Refuse a scenario with a change that selects no operation.

    Parameters
    ----------
    matched : ndarray of shape (n_changes,), bool
    hint : str
        The available selections.

    Raises
    ------
    InvalidInput
        The message names the scenario and the first such change, counted from 1.
    """
    for number, found in enumerate(matched, start=1):
        if not found:
            raise InvalidInput(f"scenario {scenario.name!r}: change {number} selects no operation", hint=hint)


def refuse_absent(scenario: Scenario, present: Mapping[str, frozenset[Any]]) -> None:
    """Refuse a scenario that names an absent rank, stage or node, even among present ones.

    Parameters
    ----------
    present : mapping of str to frozenset
        Available values, by field of `Selection`.

    Raises
    ------
    InvalidInput
        The message names the scenario, the change (counted from 1) and the first absent value.
    """
    for number, change in enumerate(scenario.changes, start=1):
        for field, held in present.items():
            absent = set(getattr(change.select, field) or ()) - held
            if field == "stages" and change.stage is not None:
                absent |= {change.stage} - held
            if absent:
                known = sorted(held)
                more = ", ..." if len(known) > LISTED else ""
                raise InvalidInput(
                    f"scenario {scenario.name!r}: change {number} names "
                    f"{field.removesuffix('s').replace('_', ' ')} {min(absent)}, which the job does not have",
                    hint=f"it has {', '.join(map(str, known[:LISTED])) or 'none'}{more}",
                )
