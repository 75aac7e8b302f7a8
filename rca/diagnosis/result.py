"""The diagnosis: what `rca.diagnose` returns and what every surface prints (format 2)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rca.diagnosis.format_1 import PRICE, lifted, without_contributions
from rca.diagnosis.places import PART_WORDS, Place, Shared, WindowSpan
from rca.frozen import Frozen
from rca.recovery.option import Option
from rca.recovery.site import Site
from rca.window.causes import STOP_CAUSES, UNKNOWN, CauseOwner, FailureMode, Pattern, StragglerType

if TYPE_CHECKING:
    from rca.window.window import Window

Scope = Literal["rank", "node", "stage", "data_group", "job"]
AbstentionCode = Literal[
    "too_short",
    "too_few_ranks",
    "no_step_times",
    "machine_stands_out",
    "out_of_distribution",
    "undecided_mode",
    "single_event",
    "left_at_once",
    "fell_silent",
    "failure_reported",
    "time_between_steps",
    "untimed_work",
    "stalls_together",
    "slower_than_before",
    "nobody_stands_out",
    "cause_not_certain",
]
Verdict = Literal["healthy", "fail_slow", "fail_stop", "undecided"]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Interval = tuple[float, float]

# Names of other modules that belong to an answer.
__all__ = ["PART_WORDS", "PRICE", "Place", "Shared", "WindowSpan"]


def verdict_of(failure_mode: FailureMode, *, abstained: bool) -> Verdict:
    """The verdict: the likeliest failure mode, unless the answer abstains."""
    return "undecided" if abstained else failure_mode


def _is_none(value: object) -> bool:
    return value is None


class ModelVersion(Frozen):
    """The bundle that produced an answer.

    `registry_version` is its number in the registry; None if it is not registered. `version` is that of the
    training.
    """

    name: str
    version: str
    sha256: str
    registry_version: int | None = None

    def __str__(self) -> str:
        number = "" if self.registry_version is None else f", registry version {self.registry_version}"
        return f"{self.name} {self.version} ({self.sha256[:12]}{number})"


class Slowdown(Frozen):
    """How much slower the window's mean step was than its own straggler-free replay.

    `seconds_per_step` and `interval` are means over the window's steps (warm-up excluded).
    `ratio` is mean observed step over mean ideal step. `versus_own_past` is the mean step after onset over
    the mean step before it. Without a healthy past in the window it is the usual step over that of the
    earlier window, or None without one. The other fields are None where the cost is unknown.
    `gpu_hours_idle` is the time of all ranks from a stop to the window's end, and part of `gpu_hours_lost`.
    """

    ratio: float | None
    seconds_per_step: float | None
    versus_own_past: float | None
    interval: Interval | None
    gpu_hours_lost: float | None
    gpu_hours_idle: float | None = None


class Evidence(Frozen):
    """One observation about a cause, in the user's units.

    `direction` is "against" where a signal that belongs to the cause was measured and is normal.
    `compared_with` says in words what `reference` is of: the peers, the other steps, a healthy machine.
    `device` is the network port or disk whose samples are the highest, where a node has several.
    """

    signal: str
    value: float | None
    reference: float | None
    unit: str
    note: str
    direction: Literal["for", "against"] = "for"
    compared_with: str | None = None
    device: str | None = None


class Finding(Frozen):
    """One signal of one component that deviates: who, what, compared with what, since when.

    `value` and `reference` are usual (median) ones over `ranks`, in the signal's unit, over the slow steps or
    the window. `against` is what `reference` is of; events are counted, and `note` is their code. `since` is
    None where the signal deviates from the begin of the window on, or was sampled too rarely. `strength` is
    the log likelihood ratio of a fault, in nats, from 0 to 6; it does not fall as the deviation grows.
    """

    component: str
    resource: str
    ranks: list[int]
    nodes: list[str]
    signal: str
    value: float | None
    reference: float | None
    unit: str
    against: Literal["peers", "other steps", "healthy machine", "events"]
    strength: float
    since: datetime | None = None
    note: str = ""


class Straggler(Frozen):
    """The smallest component that covers one group of slow ranks.

    `plausible_causes` are the causes that are not ruled out at the diagnosis's `set_level`, the likeliest
    first; empty where the bundle lacks the data. `shared` is left out where the ranks share no part,
    or the topology is not known. `since` and `until` are the times of `first_step` and `last_step`; `until`
    is None where the ranks are late to the window's end, and for stops. `places` has the first ranks only.
    """

    ranks: list[int]
    nodes: list[str]
    scope: Scope
    straggler_type: StragglerType | None
    pattern: Pattern | None
    probability: Probability
    first_step: int | None
    last_step: int | None
    since: datetime | None = None
    until: datetime | None = None
    places: list[Place] = []
    plausible_causes: list[str] = []
    shared: Shared | None = Field(default=None, exclude_if=_is_none)


class Cause(Frozen):
    """A catalogue cause with its cost: the seconds per step that its removal saves.

    `probability` is that of the cause on these ranks. It never exceeds their probability of straggling.
    `seconds_per_step`, `interval` and `share` are None where the cost is unknown, and for causes of a stop.
    `basis` is "timing" where no finding shows the cause on these ranks, and a signal would.
    `shared` and `places` are as in `Straggler`.
    """

    cause: str
    ranks: list[int]
    nodes: list[str]
    probability: Probability
    seconds_per_step: float | None
    interval: Interval | None
    share: float | None
    owner: CauseOwner
    evidence: list[Evidence]
    basis: Literal["signals", "timing"] = "signals"
    places: list[Place] = []
    shared: Shared | None = Field(default=None, exclude_if=_is_none)

    @property
    def stops_the_job(self) -> bool:
        """Whether the cause stopped the job; it then has no seconds per step."""
        return self.cause in STOP_CAUSES

    @property
    def without_price(self) -> bool:
        """Whether the cost per step is unknown; the evidence then explains why."""
        return self.seconds_per_step is None and not self.stops_the_job


class Action(Frozen):
    """A recovery step and what it is expected to gain.

    `cost_seconds` is the time that it takes from the job once. It pays off after `break_even_steps`. Heavy
    actions restart the job or take machines out: while the slowness lasts, they are due after
    `escalate_after_steps` more steps. `chance` is the probability that the action is on the true cause.
    `basis` is the source of the gain: the cost of the causes, a replay of the job, or a published formula.
    `correction` is observed over predicted gain of earlier uses, which the gain includes; None is 1.
    """

    action: str
    expected_seconds_per_step_saved: float | None
    interval: Interval | None
    cost_seconds: float | None
    break_even_steps: int | None
    runbook: str
    weight: Literal["none", "light", "heavy"] | None = None
    causes: list[str] = []
    ranks: list[int] = []
    nodes: list[str] = []
    chance: Probability | None = None
    basis: Literal["attribution", "replay", "published", "unknown"] | None = None
    risk: str | None = None
    escalate_after_steps: int | None = None
    correction: float | None = None


class Removal(Frozen):
    """A cause that is likely enough to act on, and what the job gains without it.

    `seconds_per_step_saved` is None where the cost of the cause is unknown.
    """

    cause: str
    ranks: list[int]
    seconds_per_step_saved: float | None
    interval: Interval | None


class RecoveryFacts(Frozen):
    """What a plan needs besides the rest of the answer, so that a stored one can be planned for again.

    `removals` are the causes worth acting on. `replayed` are actions that a replay of the window priced.
    `hints` are costs that the job itself gave. `over` is true if the stragglers were quiet at the end.
    """

    removals: list[Removal]
    replayed: list[Option] = []
    job_nodes: int = 0
    over: bool = False
    hints: Site = Site()
    global_batch: float | None = None


class Recommendation(Frozen):
    """The action to take now, and why this one; the action ``none`` where waiting is best."""

    action: str
    why: str


class AbstentionReason(Frozen):
    """Why there is no verdict: a code that stays, and a sentence for people."""

    code: AbstentionCode
    sentence: str


class Quality(Frozen):
    """Used and unused data of the window, and whether it is like the training windows.

    `out_of_distribution` is None where the bundle lacks the ranges of its training windows. `unfamiliar`
    describes the differences. `features_outside` names every window feature outside its range in training,
    the farthest first. It is for programs that watch drift, so familiar windows have it as well.
    """

    rows_used: int
    rows_unused: int
    steps_used: int
    warmup_steps: int
    metric_samples_used: int
    metric_samples_unused: int
    events_used: int
    events_unused: int
    unknown_metrics: list[str]
    notes: list[str]
    out_of_distribution: bool | None = None
    unfamiliar: list[str] = []
    features_outside: list[str] = []


class EarlierWindow(Frozen):
    """The window of the same job that this one was compared with.

    `seconds_before` lie between its end and the beginning of this one, `steps` of it were used. Its usual
    (median) step took `step_seconds`, that of this window `ratio` times as long; both are None where steps
    were not timed. `decided` is true if the answer follows from the comparison and not from the window alone.
    """

    window_id: str | None
    job_id: str
    seconds_before: float
    steps: int
    step_seconds: float | None
    ratio: float | None
    decided: bool = False


class Diagnosis(Frozen):
    """The complete answer about one window.

    `verdict` is `failure_mode`, the likeliest one, or undecided if the answer abstains. `since` and `until`
    are those of the stragglers: the earliest, and the latest if all of them are over.
    `causes[*].seconds_per_step` and `unexplained_seconds_per_step` add up to `slowdown.seconds_per_step`, as
    far as they are known. `findings` are all signals of machines that deviate, the loudest first, whatever
    the verdict. `failure_mode_set` holds every failure mode that is not ruled out at `set_level`.
    Of windows like the training windows, at least that share have their true mode in it. `left_out` counts
    the entries that long lists leave out, such as ``causes[0].ranks``. Documents of format 1 are read too.
    """

    format: Literal[2] = 2
    diagnosis_id: str
    window_id: str | None
    job_id: str
    created_at: datetime
    model: ModelVersion
    verdict: Verdict = "undecided"
    failure_mode: FailureMode
    failure_mode_probability: dict[FailureMode, Probability]
    abstained: bool
    abstention_reason: AbstentionReason | None = None
    since: datetime | None = None
    until: datetime | None = None
    window: WindowSpan | None = None
    slowdown: Slowdown
    stragglers: list[Straggler]
    causes: list[Cause]
    findings: list[Finding] = []
    unexplained_seconds_per_step: float | None
    next_check: str
    recommended: Recommendation | None = None
    actions: list[Action]
    missing_signals: list[str]
    quality: Quality
    set_level: Probability | None = None
    failure_mode_set: list[FailureMode] = []
    earlier: EarlierWindow | None = None
    left_out: dict[str, int] = {}
    recovery: RecoveryFacts | None = None

    @model_validator(mode="before")
    @classmethod
    def _lift(cls, document: Any) -> Any:
        """Lift format 1; the verdict follows from the failure mode and the abstention."""
        if not isinstance(document, dict):
            return document
        document = without_contributions(lifted(document) if document.get("format") == 1 else document)
        mode, abstained = document.get("failure_mode"), document.get("abstained")
        return document | {"verdict": "undecided" if abstained else mode}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy with changes; the verdict follows from the failure mode and the abstention."""
        verdict = verdict_of(
            (update or {}).get("failure_mode", self.failure_mode),
            abstained=(update or {}).get("abstained", self.abstained),
        )
        return super().model_copy(update={**(update or {}), "verdict": verdict}, deep=deep)

    @property
    def cause_is_unknown(self) -> bool:
        """Whether the answer is that no cause of the catalogue certainly explains a slow job."""
        return not self.abstained and bool(self.causes) and self.causes[0].cause == UNKNOWN

    def to_dict(self) -> dict[str, Any]:
        """Plain Python data, ready for any JSON encoder."""
        return self.model_dump(mode="json")

    def to_json(self, *, indent: int | None = None) -> str:
        """The diagnosis as JSON text."""
        return self.model_dump_json(indent=indent)

    def to_markdown(self) -> str:
        """A runbook page a person can act on."""
        from rca.runbook import render

        return render(self, "markdown")

    def to_html(self, window: Window | None = None) -> str:
        """The same page as standalone HTML, with pictures.

        Parameters
        ----------
        window : Window, optional
            The diagnosed window: adds pictures of its lateness and signals.
        """
        from rca.runbook import render

        return render(self, "html", window=window)

    def _repr_html_(self) -> str:
        return self.to_html()

    def __rich__(self) -> Any:
        from rca.runbook import render

        return render(self, "terminal")
