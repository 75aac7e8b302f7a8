"""The life of an incident: what opens, changes and resolves it, and the laws it keeps whatever comes."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rca_api.incidents.life import Event, Hysteresis, Life, Observation, Subject, Verdict, next_state, replay
from rca_api.incidents.losses import Loss, total

SETTINGS = Hysteresis(healthy_windows=3, changed_windows=2, silence_seconds=600.0)
NIC = Subject("fail_slow", "nic_degradation")
CPU = Subject("fail_slow", "cpu_contention")
HANG = Subject("fail_stop", "hang")
LETTERS: dict[str, tuple[Verdict, Subject | None]] = {
    "h": ("healthy", None),
    "u": ("unsure", None),
    "n": ("sick", NIC),
    "c": ("sick", CPU),
    "x": ("sick", HANG),
}


def window(number: int, letter: str, *, gap: float = 0.0) -> Observation:
    verdict, subject = LETTERS[letter]
    start = 60.0 * number + gap
    return Observation(f"d{number}", start, start + 60.0, verdict, subject)


def lived(letters: str) -> list[str]:
    """Events of a job's windows as words, with the window that decided."""
    told = []
    for seen, _, events in replay(None, [window(i, one) for i, one in enumerate(letters)], SETTINGS):
        told += [f"{int(seen.start // 60)} {event.kind}" for event in events]
    return told


@pytest.mark.parametrize(
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
        ("ncxcxcx", ["0 opened"]),
        ("nchc", ["0 opened"]),
        ("nxx", ["0 opened", "2 cause_changed"]),
        ("nhhhn", ["0 opened", "3 resolved", "4 opened"]),
    ],
)
def test_lives(letters: str, expected: list[str]) -> None:
    assert lived(letters) == expected


def test_a_window_after_a_long_silence_ends_the_old_incident_before_it_opens_its_own() -> None:
    life, _ = next_state(None, window(0, "n"), SETTINGS)
    after, events = next_state(life, window(1, "c", gap=601.0), SETTINGS)
    assert [(event.kind, event.subject, event.reason) for event in events] == [
        ("resolved", NIC, "silence"),
        ("opened", CPU, None),
    ]
    assert after is not None
    assert after.subject == CPU


def test_silence_of_just_the_allowed_time_ends_nothing() -> None:
    life, _ = next_state(None, window(0, "n"), SETTINGS)
    after, events = next_state(life, window(1, "n", gap=600.0), SETTINGS)
    assert after is not None
    assert events == ()


@given(st.text("hunc", min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_replaying_does_not_depend_on_the_order_of_arrival(letters: str, random: object) -> None:
    windows = [window(i, one) for i, one in enumerate(letters)]
    shuffled = list(windows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert list(replay(None, shuffled, SETTINGS)) == list(replay(None, windows, SETTINGS))


@given(st.integers(1, 6), st.integers(1, 6), st.text("hn", min_size=1, max_size=60))
def test_alternation_faster_than_the_hysteresis_never_flaps(healthy: int, most: int, letters: str) -> None:
    assume("h" * healthy not in letters)
    told = list(replay(None, (window(i, one) for i, one in enumerate(letters)), Hysteresis(healthy, most)))
    assert sum(len(events) for _, _, events in told) <= 1


class Incidents(RuleBasedStateMachine):
    """One job's windows, in order, of any kind and with any gap."""

    def __init__(self) -> None:
        super().__init__()
        self.life: Life | None = None
        self.events: list[Event] = []
        self.time = 0.0
        self.since_event: list[str] = []

    @rule(letter=st.sampled_from("hhhunncx"), gap=st.sampled_from([0.0, 0.0, 0.0, 300.0, 601.0]))
    def window_arrives(self, letter: str, gap: float) -> None:
        verdict, subject = LETTERS[letter]
        start = self.time + gap
        seen = Observation("d", start, start + 60.0, verdict, subject)
        before = self.life
        self.life, events = next_state(before, seen, SETTINGS)
        self.time = seen.end
        self.since_event.append("s" if verdict == "sick" else letter)
        silent = before is not None and seen.start - before.last_end > SETTINGS.silence_seconds
        assert len(events) <= (2 if silent else 1)
        if before is None and verdict != "sick":
            assert self.life is None
            assert events == ()
        for event in events:
            if event.kind == "resolved" and event.reason == "healthy":
                healthy = [one for one in self.since_event if one != "u"]
                assert healthy[-SETTINGS.healthy_windows :] == ["h"] * SETTINGS.healthy_windows
            self.events.append(event)
            self.since_event = []

    @precondition(lambda self: self.life is not None)
    @rule()
    def it_was_opened_after_all_others_were_resolved(self) -> None:
        opened = sum(event.kind == "opened" for event in self.events)
        resolved = sum(event.kind == "resolved" for event in self.events)
        assert opened == resolved + 1

    @invariant()
    def events_take_turns(self) -> None:
        for before, after in zip(self.events, self.events[1:], strict=False):
            assert (before.kind, before.subject) != (after.kind, after.subject)
            assert (before.kind == "resolved") == (after.kind == "opened")
        for event in self.events:
            assert event.previous != event.subject

    @invariant()
    def what_is_open_is_what_was_announced_last(self) -> None:
        last = self.events[-1] if self.events else None
        if last is None or last.kind == "resolved":
            assert self.life is None
        else:
            assert self.life is not None
            assert self.life.subject == last.subject

    @invariant()
    def streaks_stay_below_what_would_have_ended_them(self) -> None:
        if self.life is not None:
            assert self.life.healthy_streak < SETTINGS.healthy_windows
            assert self.life.candidate_streak < SETTINGS.changed_windows
            assert (self.life.candidate is None) == (self.life.candidate_streak == 0)


TestIncidents = Incidents.TestCase
TestIncidents.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


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
