"""The schedule of StragglAR: an all-reduce for every size, in no more rounds than the published ones."""

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_checker import InvalidSchedule, check

from rca.errors import InvalidInput
from rca.runtime.stragglar import schedule as stragglar_schedule
from rca.runtime.stragglar.schedule import CollectiveSchedule, Transfer, fewest_rounds, schedule
from rca.runtime.stragglar.spreading import exchanges_then_ring
from tests.for_each import for_each

PUBLISHED_POWERS_OF_TWO = {4: 4, 8: 9, 16: 18, 32: 35, 64: 68, 128: 133}
PUBLISHED_EVEN = {
    6: 7, 10: 12, 12: 15, 14: 17, 18: 21, 20: 24, 22: 26, 24: 27, 26: 31, 28: 33, 30: 38, 40: 47, 48: 57,
    96: 108, 192: 208,
}  # fmt: skip


@st.composite
def schedules(draw: st.DrawFn, smallest: int = 2) -> CollectiveSchedule:
    n = draw(st.integers(smallest, 17))
    return schedule(n, draw(st.integers(0, n - 1)))


@settings(max_examples=40)
@given(schedules())
def test_every_contribution_reaches_every_chunk_of_every_rank_once(rounds: CollectiveSchedule) -> None:
    check(rounds)


@for_each(("n", "published"), (PUBLISHED_POWERS_OF_TWO | PUBLISHED_EVEN).items())
def test_no_more_rounds_than_published(n: int, published: int) -> None:
    assert len(schedule(n, n - 1).rounds) <= published


@for_each("n", [*range(2, 40), 49, 63, 99, 150])
def test_the_lower_bound_on_rounds_is_met(n: int) -> None:
    assert len(schedule(n, 0).rounds) == fewest_rounds(n)


@pytest.mark.parametrize("n", [96, 150])
def test_large_odd_and_even_sizes_pass_the_check(n: int) -> None:
    check(schedule(n, n // 2))


def test_256_ranks_meet_the_lower_bound() -> None:
    assert len(schedule(256, 17).rounds) == 262


@pytest.mark.parametrize("n", [2, 3, 11, 12])
def test_the_ring_that_replaces_a_failed_search_is_an_all_reduce(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stragglar_schedule, "_spread_of", lambda n: tuple(exchanges_then_ring(n)))
    rounds = schedule(n, 1)
    check(rounds)
    assert len(rounds.rounds) == 2 * (n - 1) - 1


def test_the_order_of_exchanges_is_the_order_of_chunks() -> None:
    rounds = schedule(9, 4).rounds
    exchanges = [next(each for each in transfers if each.destination == 4) for transfers in rounds[:8]]
    assert [(each.source, each.chunk) for each in exchanges] == [
        (0, 0), (1, 1), (2, 2), (3, 3), (5, 4), (6, 5), (7, 6), (8, 7),
    ]  # fmt: skip


def test_each_rank_finds_its_own_transfers() -> None:
    rounds = schedule(7, 2)
    found = [{each for each in pair if each} for pair in rounds.of_rank(5)]
    assert found == [{each for each in transfers if 5 in each[:2]} for transfers in rounds.rounds]


@settings(max_examples=40)
@given(schedules(), st.data())
def test_a_dropped_transfer_is_found(rounds: CollectiveSchedule, data: st.DataObject) -> None:
    number, position = _some_transfer(rounds, data)
    with pytest.raises(InvalidSchedule):
        check(
            _changed(rounds, number, rounds.rounds[number][:position] + rounds.rounds[number][position + 1 :])
        )


@settings(max_examples=40)
@given(schedules(), st.data())
def test_a_doubled_transfer_is_found(rounds: CollectiveSchedule, data: st.DataObject) -> None:
    number, position = _some_transfer(rounds, data)
    transfers = rounds.rounds[number]
    with pytest.raises(InvalidSchedule, match="2 times"):
        check(_changed(rounds, number, [*transfers, transfers[position]]))


@settings(max_examples=40)
@given(schedules(smallest=3), st.data())
def test_an_exchange_done_again_is_found(rounds: CollectiveSchedule, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, rounds.n_chunks - 1))
    exchange = [each for each in rounds.rounds[number] if rounds.straggler in each[:2]]
    again = replace(rounds, rounds=[*rounds.rounds, exchange])
    with pytest.raises(InvalidSchedule, match="counted twice"):
        check(again)


@settings(max_examples=40)
@given(schedules(smallest=3), st.data())
def test_two_sends_of_one_rank_are_found(rounds: CollectiveSchedule, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(rounds.rounds) - 1))
    first, *rest = rounds.rounds[number]
    third = next(rank for rank in range(rounds.n_ranks) if rank not in first[:2])
    extra = Transfer(first.source, third, first.chunk)
    rest = [each for each in rest if each.destination != third]
    with pytest.raises(InvalidSchedule, match="sends 2 times"):
        check(_changed(rounds, number, [first, *rest, extra]))


@settings(max_examples=40)
@given(schedules(smallest=3), st.data())
def test_two_rounds_swapped_are_found(rounds: CollectiveSchedule, data: st.DataObject) -> None:
    last = rounds.n_chunks - 1
    swapped = list(rounds.rounds)
    swapped[last], swapped[last + 1] = swapped[last + 1], swapped[last]
    with pytest.raises(InvalidSchedule, match=r"does not hold|lacks"):
        check(replace(rounds, rounds=swapped))


@settings(max_examples=40)
@given(schedules(smallest=3))
def test_a_chunk_that_its_source_gets_in_the_same_round_is_not_sent(rounds: CollectiveSchedule) -> None:
    first, *others = rounds.rounds
    exchange = first[0]
    third = next(rank for rank in range(rounds.n_ranks) if rank not in exchange[:2])
    with pytest.raises(InvalidSchedule):
        check(replace(rounds, rounds=[[*first, Transfer(third, exchange.source, exchange.chunk)], *others]))


@for_each(("n", "straggler"), [(1, 0), (0, 0), (4, 4), (4, -1), (2.5, 0), (4, None)])
def test_impossible_sizes_and_stragglers_are_refused(n: int, straggler: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        schedule(n, straggler)
    assert refused.value.hint


def _some_transfer(rounds: CollectiveSchedule, data: st.DataObject) -> tuple[int, int]:
    number = data.draw(st.integers(0, len(rounds.rounds) - 1).filter(lambda number: rounds.rounds[number]))
    return number, data.draw(st.integers(0, len(rounds.rounds[number]) - 1))


def _changed(rounds: CollectiveSchedule, number: int, transfers: list[Transfer]) -> CollectiveSchedule:
    changed = list(rounds.rounds)
    changed[number] = transfers
    return replace(rounds, rounds=changed)


@pytest.mark.system
def test_schedules_and_prices_need_no_torch() -> None:
    modules = "rca.runtime.stragglar.cost, rca.runtime.stragglar.schedule"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
