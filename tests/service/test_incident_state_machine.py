"""The state machine of an incident: what opens, changes and resolves it, and its laws."""

from __future__ import annotations

from math import log1p

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rca_api.incidents.observation import Observation, Subject, Verdict
from rca_api.incidents.repository import Loss, total
from rca_api.incidents.state_machine import (
    Hysteresis,
    NoIncident,
    OpenIncident,
    State,
    Transition,
    next_state,
    replay,
)
from tests.for_each import for_each

#: What opens it and what is a relapse have tests of their own.
SETTINGS = Hysteresis(sure_probability=0.5, opening_windows=2, reopen_seconds=0.0, silence_seconds=600.0)
FIRM = Hysteresis(silence_seconds=600.0, reopen_seconds=500.0)
NIC = Subject("fail_slow", "nic_degradation")
CPU = Subject("fail_slow", "cpu_contention")
GC = Subject("fail_slow", "runtime_gc")
HANG = Subject("fail_stop", "hang")
LETTERS: dict[str, tuple[Verdict, Subject | None]] = {
    "h": ("healthy", None),
    # Healthy as far as exporters show.
    "e": ("healthy", None),
    "u": ("unsure", None),
    "s": ("suspect", Subject("fail_slow", None)),
    "n": ("sick", NIC),
    "c": ("sick", CPU),
    "g": ("sick", GC),
    "x": ("sick", HANG),
    # One cause on three nodes, and on two of them at once.
    # A stop that exporters show.
    "p": ("suspect", Subject("fail_stop", "process_crash")),
    "t": ("suspect", Subject("fail_slow", "gpu_throttling")),
    "1": ("sick", Subject("fail_slow", "cpu_contention", ("node-1",))),
    "2": ("sick", Subject("fail_slow", "cpu_contention", ("node-2",))),
    "3": ("sick", Subject("fail_slow", "cpu_contention", ("node-3",))),
    "b": ("sick", Subject("fail_slow", "cpu_contention", ("node-1", "node-3"))),
}


#: Windows whose fault is over when they end.
OVER = {"N": "n", "C": "c", "S": "s"}


def window(number: int, letter: str, *, gap: float = 0.0, probability: float = 0.97) -> Observation:
    verdict, subject = LETTERS["u" if letter == "l" else OVER.get(letter, letter)]
    start = 60.0 * number + gap
    return Observation(
        f"d{number}",
        start,
        start + 60.0,
        verdict,
        subject,
        probability,
        untimed=letter == "e",
        over=30.0 if letter in OVER else None,
        probably_healthy=letter == "l",
    )


def lived(letters: str, settings: Hysteresis = SETTINGS, probability: float = 0.97) -> list[str]:
    """Events of a job's windows as words, with the window that decided."""
    told = []
    for seen, _, events in replay(
        NoIncident(), [window(i, one, probability=probability) for i, one in enumerate(letters)], settings
    ):
        told += [f"{int(seen.start // 60)} {event.kind}" for event in events]
    return told


@for_each(
    ("letters", "expected"),
    [
        ("hhhh", []),
        ("uuuu", []),
        ("hhn", ["2 opened"]),
        ("nh", ["0 opened"]),
        ("nhhuuh", ["0 opened", "5 resolved"]),
        ("nhhnhhh", ["0 opened", "6 resolved"]),
        ("nhnhnhnhnhnh", ["0 opened"]),
        ("nuuuuuu", ["0 opened"]),
        ("nc", ["0 opened"]),
        ("ncc", ["0 opened", "2 cause_changed"]),
        ("ncuc", ["0 opened", "3 cause_changed"]),
        ("ncncncnc", ["0 opened"]),
        ("ncxcxcx", ["0 opened", "6 cause_uncertain"]),
        # The second change takes twice as many windows as the first.
        ("nccnnnn", ["0 opened", "2 cause_changed", "6 cause_changed"]),
        # The cause stays and the node moves; a window that names both agrees with either.
        ("11133333", ["0 opened", "4 place_changed"]),
        ("1b3b3b3", ["0 opened"]),
        ("1b33", ["0 opened", "3 place_changed"]),
        ("131313", ["0 opened"]),
        ("1c1c", ["0 opened"]),
        # No cause is stable: the incident says so, until one is.
        ("cgngngngngng", ["0 opened", "6 cause_uncertain"]),
        ("cgngngngngggg", ["0 opened", "6 cause_uncertain", "12 cause_changed"]),
        ("1232323232", ["0 opened", "6 cause_uncertain"]),
        ("nchc", ["0 opened"]),
        ("nxx", ["0 opened", "2 cause_changed"]),
        ("nhhhn", ["0 opened", "3 resolved", "4 opened"]),
    ],
)
def test_lives(letters: str, expected: list[str]) -> None:
    assert lived(letters) == expected


@for_each(
    ("letters", "expected"),
    [
        # The end of the fault is seen, and the short windows after it are probably healthy.
        ("nNll", ["0 opened", "3 resolved"]),
        ("nNNN", ["0 opened", "3 resolved"]),
        ("nSll", ["0 opened", "3 resolved"]),
        # Without a window that is certain, none of them says enough.
        ("nlllllll", ["0 opened"]),
        ("nNlnll", ["0 opened"]),
        # The end of another fault is none of this one.
        ("nCll", ["0 opened"]),
        # The same end, seen again, opens nothing; another fault does.
        ("nNllNNN", ["0 opened", "3 resolved"]),
        ("nNllC", ["0 opened", "3 resolved", "4 opened"]),
        # The incident of a window of a fault that is over.
        ("N", ["0 opened"]),
    ],
)
def test_the_end_of_a_fault_that_a_window_shows_counts_for_its_resolution(
    letters: str, expected: list[str]
) -> None:
    assert lived(letters) == expected


def test_a_window_after_a_long_silence_ends_the_old_incident_before_it_opens_its_own() -> None:
    life, _ = next_state(NoIncident(), window(0, "n"), SETTINGS)
    after, events = next_state(life, window(1, "c", gap=601.0), SETTINGS)
    assert [(event.kind, event.subject, event.reason) for event in events] == [
        ("resolved", NIC, "silence"),
        ("opened", CPU, None),
    ]
    assert isinstance(after, OpenIncident)
    assert after.subject == CPU


def test_silence_of_just_the_allowed_time_ends_nothing() -> None:
    life, _ = next_state(NoIncident(), window(0, "n"), SETTINGS)
    after, events = next_state(life, window(1, "n", gap=600.0), SETTINGS)
    assert isinstance(after, OpenIncident)
    assert events == ()


@for_each(
    ("letters", "probability", "expected"),
    [
        # A slow job: of the last three windows those that may show one fault are together .999 certain.
        ("n", 0.9985, []),
        ("n", 0.999, ["0 opened"]),
        ("hnn", 0.96, []),
        ("hnn", 0.97, ["2 opened"]),
        ("nhn", 0.97, ["2 opened"]),
        ("nun", 0.97, ["2 opened"]),
        ("nuun", 0.97, []),
        ("hnhhnhhnhh", 0.97, []),
        ("nhc", 0.97, []),
        ("h1b", 0.97, ["2 opened"]),
        ("h12", 0.97, []),
        # Three of one place, however certain and of whatever causes.
        ("hnnn", 0.6, ["3 opened"]),
        ("ncg", 0.6, ["2 opened"]),
        ("h1b", 0.6, []),
        ("h1bb", 0.6, ["3 opened"]),
        ("h121", 0.6, []),
        # A stopped one at once.
        ("hx", 0.6, ["1 opened"]),
        # A relapse opens the same incident again, and then it takes more to close it.
        ("nhhh" * 6, 0.999, ["0 opened", "3 resolved", "4 reopened"]),
        ("nhhhnhhhhhh", 0.999, ["0 opened", "3 resolved", "4 reopened", "10 resolved"]),
        ("nnhhhhhhhhhhhhnn", 0.97, ["1 opened", "4 resolved", "15 opened"]),
    ],
)
def test_opening_and_relapses(letters: str, probability: float, expected: list[str]) -> None:
    assert lived(letters, FIRM, probability) == expected


@for_each(
    ("letters", "expected"),
    [
        ("ssseee", ["2 suspected", "5 resolved"]),
        ("sssehseee", ["2 suspected", "8 resolved"]),
        # Exporters do not show that the steps are fast again.
        ("nneeeeeeee", ["1 opened"]),
        ("sssneeee", ["2 suspected", "3 confirmed"]),
        ("nnehehh", ["1 opened", "6 resolved"]),
    ],
)
def test_windows_without_step_times_resolve_suspected_incidents_only(
    letters: str, expected: list[str]
) -> None:
    assert lived(letters, FIRM) == expected


@for_each(
    ("letters", "expected"),
    [
        ("hshh", []),
        ("hssss", ["3 suspected"]),
        # Suspects among undecided windows open nothing.
        ("hssusus", []),
        ("sshss", []),
        # The first certain cause confirms it; a suspect of a known incident changes nothing.
        ("sssunn", ["2 suspected", "4 confirmed"]),
        ("nnssss", ["1 opened"]),
        ("nnhhshhh", ["1 opened", "7 resolved"]),
        ("ssshhh", ["2 suspected", "5 resolved"]),
        # So does one in which the fault ends. Its end counts for the next windows.
        ("sssNnnn", ["2 suspected", "3 confirmed"]),
        ("sssNNNN", ["2 suspected", "3 confirmed", "6 resolved"]),
        # One certain window among suspects names the cause.
        ("sn", ["1 opened"]),
        ("nss", ["2 opened"]),
        # The number of windows that change a cause is that of a new incident.
        ("sssncc", ["2 suspected", "3 confirmed", "5 cause_changed"]),
        # A suspect alone does not reopen. Several do, and each relapse doubles the healthy windows.
        ("nnhhhsshh", ["1 opened", "4 resolved"]),
        ("nnhhhssshhhhhh", ["1 opened", "4 resolved", "7 reopened", "13 resolved"]),
        ("sss" + "hhhsss" * 3 + "h", ["2 suspected", "5 resolved", "8 reopened"]),
        ("ssshhhsssn", ["2 suspected", "5 resolved", "8 reopened", "9 confirmed"]),
        # After a confirmed incident, suspects do not put its cause in doubt.
        ("nnhhhsssn", ["1 opened", "4 resolved", "7 reopened"]),
        ("ssshhhhhhhhhhhhsss", ["2 suspected", "5 resolved", "17 suspected"]),
    ],
)
def test_windows_that_are_certain_of_a_fault_and_not_of_its_cause(letters: str, expected: list[str]) -> None:
    assert lived(letters, FIRM) == expected


@pytest.mark.parametrize(
    ("letters", "named"), [("nss", "d0"), ("sn", "d1"), ("sss", "d2"), ("ssshhhsss", "d8")]
)
def test_an_event_has_the_diagnosis_of_its_subject(letters: str, named: str) -> None:
    windows = [window(i, one) for i, one in enumerate(letters)]
    *_, (last, after, (event,)) = replay(NoIncident(), windows, FIRM)
    assert isinstance(after, OpenIncident)
    assert (event.diagnosis_id, event.window_end) == (named, last.end)
    assert event.suspected == after.suspected == ("n" not in letters)


def test_a_suspected_incident_follows_what_its_suspects_name() -> None:
    assert lived("tttpppp", FIRM) == ["2 suspected", "4 cause_changed"]
    # It stays suspected, and is confirmed by a window that is certain.
    assert lived("tttppppn", FIRM) == ["2 suspected", "4 cause_changed", "7 confirmed"]


def test_a_confirmed_incident_is_silent_without_windows_with_steps() -> None:
    assert lived("n" + "e" * 12, SETTINGS) == ["0 opened"]
    assert lived("n" + "e" * 12 + "h", SETTINGS) == ["0 opened", "13 resolved"]


def test_a_single_suspect_opens_nothing_whatever_the_settings() -> None:
    assert lived("s", SETTINGS, probability=1.0) == []
    assert lived("ss", SETTINGS, probability=1.0) == ["1 suspected"]


def test_what_led_to_the_opening_is_part_of_it() -> None:
    *_, (_, _, (opened,)) = replay(NoIncident(), [window(i, one) for i, one in enumerate("hnhn")], FIRM)
    assert (opened.kind, opened.first) == ("opened", window(1, "n").order)


def test_an_uncertain_incident_names_what_its_diagnoses_share() -> None:
    for letters, cause in (("cgngngn", None), ("1232323", "cpu_contention")):
        windows = [window(i, one) for i, one in enumerate(letters)]
        *_, (_, after, (event,)) = replay(NoIncident(), windows, SETTINGS)
        assert event.subject == Subject("fail_slow", cause)
        assert isinstance(after, OpenIncident)
        assert after.uncertain


@given(st.text("hunsc", min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_replaying_does_not_depend_on_the_order_of_arrival(letters: str, random: object) -> None:
    windows = [window(i, one) for i, one in enumerate(letters)]
    shuffled = list(windows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert list(replay(NoIncident(), shuffled, SETTINGS)) == list(replay(NoIncident(), windows, SETTINGS))


@given(st.integers(1, 6), st.integers(1, 6), st.text("hn", min_size=1, max_size=60))
def test_alternation_faster_than_the_hysteresis_never_flaps(healthy: int, most: int, letters: str) -> None:
    assume("h" * healthy not in letters)
    settings = Hysteresis(sure_probability=0.5, healthy_windows=healthy, changed_windows=most)
    told = list(replay(NoIncident(), (window(i, one) for i, one in enumerate(letters)), settings))
    assert sum(len(events) for _, _, events in told) <= 1


def announced(letters: str, probability: float) -> list[Transition]:
    windows = [window(i, one, probability=probability) for i, one in enumerate(letters)]
    return [event for _, _, events in replay(NoIncident(), windows, Hysteresis()) for event in events]


@pytest.mark.system
@given(st.sampled_from("n1"), st.integers(0, 40), st.integers(0, 40), st.integers(1, 40))
def test_whatever_comes_and_goes_in_the_same_rhythm_is_announced_a_few_times(
    sick: str, n_sick: int, n_healthy: int, times: int
) -> None:
    for probability in (0.9, 1.0):
        rhythm = (sick * n_sick + "h" * n_healthy) * times
        # Relapses double the healthy windows: 3, 6, 12, 24, 48; longer pauses are recoveries.
        assert len(announced(rhythm, probability)) <= (11 if n_healthy < 48 else 2 * times)


@given(st.text("cgn123", min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 20))
def test_causes_that_take_turns_are_announced_a_few_times(causes: str, each: int, times: int) -> None:
    rhythm = "".join(cause * each for cause in causes) * times
    assert len(announced(rhythm, 1.0)) <= 6


class Incidents(RuleBasedStateMachine):
    """One job's windows, in order, of any kind and with any gap."""

    def __init__(self) -> None:
        super().__init__()
        self.state: State = NoIncident()
        self.events: list[Transition] = []
        self.time = 0.0
        self.since_event: list[Observation] = []

    @rule(
        letter=st.sampled_from("hhhhunncxg123b"),
        gap=st.sampled_from([0.0, 0.0, 0.0, 300.0, 601.0]),
        probability=st.sampled_from([0.7, 0.999]),
    )
    def window_arrives(self, letter: str, gap: float, probability: float) -> None:
        verdict, subject = LETTERS[letter]
        start = self.time + gap
        seen = Observation("d", start, start + 60.0, verdict, subject, probability)
        before = self.state
        self.state, events = next_state(before, seen, FIRM)
        self.time = seen.end
        self.since_event.append(seen)
        silent = isinstance(before, OpenIncident) and seen.start - before.last_end > FIRM.silence_seconds
        assert len(events) <= (2 if silent else 1)
        if isinstance(before, NoIncident) and verdict != "sick":
            assert isinstance(self.state, NoIncident)
            assert events == ()
        for event in events:
            self.check(event)
            self.events.append(event)
            # The window that ends a silence is the first of what comes then.
            self.since_event = [seen] if event.reason == "silence" else []

    def check(self, event: Transition) -> None:
        confident = [one for one in self.since_event if one.verdict != "unsure"]
        if event.kind == "resolved" and event.reason == "healthy":
            last = confident[-FIRM.healthy_windows :]
            assert [one.verdict for one in last] == ["healthy"] * FIRM.healthy_windows
        if event.kind == "opened":
            last = [one for one in self.since_event[-FIRM.opening_of :] if one.verdict == "sick"]
            together = sum(log1p(-one.probability) for one in last) <= log1p(-FIRM.sure_probability)
            lasts = len(last) >= FIRM.opening_windows
            assert together or lasts or event.subject.failure_mode == "fail_stop"
        if event.kind == "reopened":
            resolved = self.events[-1]
            assert (resolved.kind, resolved.reason) == ("resolved", "healthy")
            assert confident[-1].start - resolved.window_end < FIRM.reopen_seconds
        if event.kind == "cause_uncertain":
            assert len({one.subject for one in confident if one.subject is not None}) > 1

    @precondition(lambda self: isinstance(self.state, OpenIncident))
    @rule()
    def it_was_opened_after_all_others_were_resolved(self) -> None:
        opened = sum(event.kind in ("opened", "reopened") for event in self.events)
        resolved = sum(event.kind == "resolved" for event in self.events)
        assert opened == resolved + 1

    @invariant()
    def events_take_turns(self) -> None:
        for before, after in zip(self.events, self.events[1:], strict=False):
            assert (before.kind == "resolved") == (after.kind in ("opened", "reopened"))
        for event in self.events:
            if event.kind in ("cause_changed", "place_changed"):
                assert event.previous != event.subject

    @invariant()
    def what_is_open_is_what_was_announced_last(self) -> None:
        last = self.events[-1] if self.events else None
        if last is None or last.kind == "resolved":
            assert isinstance(self.state, NoIncident)
        else:
            assert isinstance(self.state, OpenIncident)
            assert self.state.subject == last.subject
            assert self.state.uncertain == (last.kind == "cause_uncertain")

    @invariant()
    def what_is_remembered_is_bounded(self) -> None:
        if isinstance(self.state, NoIncident):
            assert len(self.state.recent) <= FIRM.opening_of
        else:
            assert (self.state.candidate is None) == (self.state.candidate_streak == 0)


TestIncidents = Incidents.TestCase
TestIncidents.settings = settings(max_examples=60, stateful_step_count=40)


losses = st.builds(
    lambda start, length, seconds: Loss(start, start + length, seconds, seconds / 100),
    st.integers(0, 50).map(float),
    st.integers(1, 20).map(float),
    st.integers(0, 100).map(float),
)


@given(st.lists(losses, max_size=12), st.randoms(use_true_random=False))
def test_losses_do_not_depend_on_order_and_never_exceed_their_sum(found: list[Loss], random: object) -> None:
    whole = total(found)
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert total(shuffled) == pytest.approx(whole)
    assert 0 <= whole.seconds <= sum(each.seconds for each in found) + 1e-9


def test_overlapping_windows_lose_their_common_time_once() -> None:
    assert total([Loss(0, 60, 6.0, 0.6), Loss(30, 90, 6.0, 0.6)]).seconds == pytest.approx(9.0)
    assert total([Loss(0, 60, 6.0, 0.6), Loss(10, 20, 1.0, 0.1)]).seconds == pytest.approx(6.0)
    assert total([Loss(0, 60, 6.0, 0.6), Loss(60, 120, 6.0, 0.6)]).gpu_hours == pytest.approx(1.2)
