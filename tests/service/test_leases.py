"""Leases of a table with names of its own: claims, expiry, renewal, giving back, races between replicas."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import String, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rca_api.shell.store.base import UtcDateTime
from rca_api.shell.store.database import Database
from rca_api.shell.store.leases import Leases

pytestmark = pytest.mark.smoke

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LENGTH = timedelta(seconds=30)
SECOND = timedelta(seconds=1)


class Base(DeclarativeBase):
    pass


class Parcel(Base):
    __tablename__ = "parcels"

    number: Mapped[int] = mapped_column(primary_key=True)
    carrier: Mapped[str | None] = mapped_column(String(32))
    due_back: Mapped[datetime | None] = mapped_column(UtcDateTime)
    trips: Mapped[int] = mapped_column(default=0)
    open: Mapped[bool] = mapped_column(default=True)


LEASES = Leases(
    Parcel,
    key=Parcel.number,
    owner=Parcel.carrier,
    until=Parcel.due_back,
    attempts=Parcel.trips,
    unfinished=Parcel.open,
)


@pytest.fixture
def parcels(database: Database) -> Database:
    """Three open parcels and a closed one."""
    Base.metadata.create_all(database.engine)
    with database.session() as session:
        session.add_all([Parcel(number=number, open=number < 4) for number in (1, 2, 3, 4)])
    return database


def claim(database: Database, owner: str, at: datetime = NOON, limit: int = 9) -> list[int]:
    with database.session() as session:
        wanted = select(Parcel).order_by(Parcel.number).limit(limit)
        return [row.number for row in LEASES.claim(session, wanted, owner, at, LENGTH).rows]


def parcel(database: Database, number: int) -> Parcel:
    with database.reading() as session:
        return session.get_one(Parcel, number)


def test_open_rows_are_claimed_in_the_order_wanted(parcels: Database) -> None:
    assert claim(parcels, "one", limit=2) == [1, 2]
    assert claim(parcels, "other") == [3]
    assert claim(parcels, "third") == []
    row = parcel(parcels, 1)
    assert (row.carrier, row.due_back, row.trips) == ("one", NOON + LENGTH, 1)


def test_a_lease_ends_after_its_length(parcels: Database) -> None:
    claim(parcels, "one")
    assert claim(parcels, "other", NOON + LENGTH - SECOND) == []
    assert claim(parcels, "other", NOON + LENGTH) == [1, 2, 3]
    assert parcel(parcels, 1).trips == 2


def test_a_lease_further_ahead_than_any_worker_sets_one_is_free(parcels: Database) -> None:
    claim(parcels, "one", NOON + timedelta(minutes=10))
    assert claim(parcels, "other", NOON) == [1, 2, 3]


@pytest.mark.parametrize("ahead", [16 * SECOND, 5 * LENGTH], ids=["clock ahead", "longer leases"])
def test_a_lease_of_another_clock_or_length_is_valid(parcels: Database, ahead: timedelta) -> None:
    claim(parcels, "one", NOON + ahead)
    assert claim(parcels, "other", NOON) == []


def test_conditions_of_free_and_leased_rows_exclude_each_other(parcels: Database) -> None:
    claim(parcels, "one", limit=1)
    for at, leased in ((NOON, [1]), (NOON + LENGTH, []), (NOON - timedelta(minutes=10), [])):
        with parcels.reading() as session:
            numbers = select(Parcel.number).order_by(Parcel.number)
            assert session.scalars(numbers.where(LEASES.is_leased(at, LENGTH))).all() == leased
            free = session.scalars(numbers.where(LEASES.is_free(at, LENGTH))).all()
            assert free == [number for number in (1, 2, 3) if number not in leased]


def test_a_renewed_lease_lasts_and_only_its_owner_renews_it(parcels: Database) -> None:
    claim(parcels, "one", limit=2)
    with parcels.session() as session:
        renewed = LEASES.renew(session, "one", [1, 3, 4], NOON + 20 * SECOND, LENGTH)
        assert [row.number for row in renewed] == [1]
        assert LEASES.renew(session, "other", [1, 2], NOON, LENGTH) == []
    assert claim(parcels, "other", NOON + LENGTH) == [2, 3]


@pytest.mark.parametrize(("counted", "trips"), [(False, 0), (True, 1)])
def test_a_row_given_back_is_free_at_once(parcels: Database, counted: bool, trips: int) -> None:
    claim(parcels, "one")
    with parcels.session() as session:
        assert LEASES.give_back(session, "other", [1]) == []
        assert [row.number for row in LEASES.give_back(session, "one", [1], counted=counted)] == [1]
    assert parcel(parcels, 1).trips == trips
    assert claim(parcels, "other") == [1]


def test_a_row_whose_attempts_are_used_up_is_not_claimed(parcels: Database) -> None:
    claim(parcels, "one", limit=1)
    with parcels.session() as session:
        wanted = select(Parcel).order_by(Parcel.number)
        found = LEASES.claim(session, wanted, "other", NOON + LENGTH, LENGTH, most_attempts=1)
        assert [row.number for row in found.rows] == [2, 3]
        assert [(row.number, row.trips) for row in found.exhausted] == [(1, 1)]


def test_a_worker_that_lost_its_lease_holds_nothing(parcels: Database) -> None:
    claim(parcels, "one")
    claim(parcels, "other", NOON + LENGTH)
    with parcels.session() as session:
        assert LEASES.held_one(session, "one", 1) is None
        row = LEASES.held_one(session, "other", 1)
        assert row is not None
        row.open = False
        LEASES.end(row)
    with parcels.session() as session:
        assert LEASES.held_one(session, "other", 1) is None
    ended = parcel(parcels, 1)
    assert (ended.carrier, ended.due_back, ended.trips) == (None, None, 2)


def test_replicas_that_claim_at_once_share_the_rows(database: Database) -> None:
    Base.metadata.create_all(database.engine)
    with database.session() as session:
        session.add_all([Parcel(number=number) for number in range(60)])

    def work_off(owner: str) -> list[int]:
        own: list[int] = []
        while numbers := claim(database, owner, limit=3):
            own += numbers
        return own

    with ThreadPoolExecutor(4) as threads:
        claimed = Counter(number for own in threads.map(work_off, "abcd") for number in own)
    assert claimed == dict.fromkeys(range(60), 1)
