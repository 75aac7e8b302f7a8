"""Search for a schedule of StragglAR: which chunk goes from whom to whom in each round.

The ranks other than the straggler are numbered 0 to N - 1 here, and `owner` i holds chunk i. In round t < N
the straggler exchanges chunk t with owner t. Then that chunk is *in flight* for `window` rounds. In the
last of them, round t + window, every rank that lacks it receives it.

Why this ends in N + window - 1 rounds:

- At the start of round t, a rank is *saturated* if it holds chunk t - window. All others receive that chunk
  in this round. Saturated ranks receive a younger chunk meanwhile.
- So the number of chunks in flight that a rank holds stays the same, if each saturated rank receives one.
- Owner t must be saturated in round t, because it receives chunk t. So ranks due soon get old chunks.
- After the exchanges the straggler goes on sending chunk N - 1, under the numbers N, N + 1 and so on.
- Every rank has a chunk in flight after the last round. All these numbers stand for chunk N - 1.

For n a power of two this is the published scheme: window log2 n, one chunk in flight per rank. For other n
some ranks hold several chunks in flight, and a bipartite matching decides who sends which. The search stops
if a rank is left without a chunk in flight, and starts again with another preference. If all preferences
fail, the window grows by one, which costs one round. No size up to 260 needs that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

STRAGGLER = -1
IndexTransfer = tuple[int, int, int]
IndexRound = list[IndexTransfer]
# Of the way from half of the ranks saturated to the next lower power of two.
_SHARES = (0.65, 1.0, 0.5, 0.83, 0.91, 0.75, 0.55, 0.6, 0.7)


@dataclass(frozen=True)
class Preference:
    """How the search breaks ties.

    Attributes
    ----------
    most_saturated
        Target for the number of saturated ranks.
    youngest_first
        Ranks that are not due soon receive the youngest chunk, not the oldest.
    due_ones_last
        Of the ranks with several chunks in flight, those that are still due receive last.
    """

    most_saturated: int
    youngest_first: bool
    due_ones_last: bool


def spread(n_ranks: int) -> list[IndexRound]:
    """Rounds of `(source, destination, chunk)`, with `STRAGGLER` for the straggler."""
    window = (n_ranks - 1).bit_length()
    while True:
        for preference in _preferences(n_ranks):
            rounds = _Spread(n_ranks, window, preference).rounds()
            if rounds is not None:
                return rounds
        window += 1


def _preferences(n_ranks: int) -> Iterator[Preference]:
    """The preference that most often ends well first."""
    half, full = (n_ranks + 1) // 2, 1 << ((n_ranks - 1).bit_length() - 1)
    targets = list(dict.fromkeys(half + round(share * (full - half)) for share in _SHARES))
    for youngest_first in (True, False) if half < full else (False, True):
        for target in targets:
            for due_ones_last in (False, True):
                yield Preference(target, youngest_first, due_ones_last)


class _Spread:
    """One attempt with one preference.

    At the start of round t, bit j of `ages[x]` says whether rank x holds chunk t - j, for 1 <= j <= window.
    """

    def __init__(self, n_ranks: int, window: int, preference: Preference) -> None:
        self.n_owners = n_ranks - 1
        self.window = window
        self.preference = preference
        self.ages = [0] * self.n_owners
        self.oldest = 1 << window
        self.young = self.oldest - 2

    def rounds(self) -> list[IndexRound] | None:
        """Transfers of each round, or None if a rank was left without what it needs."""
        found = []
        for now in range(self.n_owners + self.window - 1):
            transfers = self._round(now)
            if transfers is None:
                return None
            found.append(transfers)
        return found

    def _round(self, now: int) -> IndexRound | None:
        spreading = now >= self.window
        saturated = [x for x, age in enumerate(self.ages) if not spreading or age & self.oldest]
        exchanging = now < self.n_owners
        peer = now if exchanging else min(saturated, key=lambda x: (self.ages[x].bit_count(), x), default=-1)
        if peer < 0 or (spreading and not self.ages[peer] & self.oldest):
            return None
        senders = [x for x in range(self.n_owners) if x != peer or not exchanging]
        lacking = [x for x, age in enumerate(self.ages) if not age & self.oldest] if spreading else []
        chosen = self._deliverers(senders, len(lacking))
        if chosen is None:
            return None
        sent = self._young_senders([x for x in senders if x not in chosen], now)
        supply = dict.fromkeys(range(1, self.window), 0)
        for age in sent.values():
            supply[age] += 1
        received = self._young_receivers([x for x in saturated if x != peer], supply, now)
        if spreading and any(
            x not in received and not self.ages[x] & self.young for x in saturated if x != peer
        ):
            return None
        moves: dict[int, tuple[list[int], list[int]]] = {age: ([], []) for age in range(1, self.window)}
        moves[self.window] = (sorted(chosen), lacking)
        for x, age in sent.items():
            moves[age][0].append(x)
        for x, age in received.items():
            moves[age][1].append(x)
        transfers = self._exchange(peer, now)
        for age, (sources, destinations) in moves.items():
            chunk = min(now - age, self.n_owners - 1)
            pairs = zip(sources, destinations, strict=False)
            transfers += [(a, b, chunk) for a, b in pairs if not self._holds(b, chunk, now)]
        self._advance(peer, received)
        return None if now == self.window - 1 and not all(self.ages) else transfers

    def _exchange(self, peer: int, now: int) -> IndexRound:
        """Both directions of the exchange, or afterwards the last chunk from the straggler."""
        if now < self.n_owners:
            return [(peer, STRAGGLER, now), (STRAGGLER, peer, now)]
        last = self.n_owners - 1
        return [] if self._holds(peer, last, now) else [(STRAGGLER, peer, last)]

    def _holds(self, rank: int, chunk: int, now: int) -> bool:
        if chunk < self.n_owners - 1:
            return bool(self.ages[rank] >> (now - chunk) & 1)
        return any(self.ages[rank] >> (now - number) & 1 for number in range(chunk, now))

    def _deliverers(self, senders: Sequence[int], n_lacking: int) -> set[int] | None:
        """Saturated ranks that send the oldest chunk: those with little else to send."""
        able = [x for x in senders if self.ages[x] & self.oldest]
        if len(able) < n_lacking:
            return None
        able.sort(key=lambda x: (self.ages[x].bit_count(), -(self.ages[x] & self.young)))
        return set(able[:n_lacking])

    def _young_senders(self, senders: Sequence[int], now: int) -> dict[int, int]:
        """Age of the chunk that each sender sends. The holders of a chunk at most double."""
        holders = {age: sum(held >> age & 1 for held in self.ages) for age in range(1, self.window)}
        capacity = {age: count for age, count in holders.items() if age <= now}
        before_last = self.window - 1
        if before_last in capacity:
            room = max(0, self.preference.most_saturated - holders[before_last])
            capacity[before_last] = min(holders[before_last], room)
        able = {x: _ages_in(self.ages[x] & self.young, before_last) for x in senders}
        # Ranks that are not saturated cannot send anything else: they go first.
        order = sorted(senders, key=lambda x: (len(able[x]), self.ages[x] >= self.oldest))
        return matching(order, able, capacity)

    def _young_receivers(self, ranks: Sequence[int], supply: Mapping[int, int], now: int) -> dict[int, int]:
        """Age of the chunk that each rank receives. It must be saturated again when it is due."""
        far = self.n_owners + self.window
        due_in = {x: x - now if x > now else far for x in ranks}
        if now < self.window:
            # The owners of the first exchanges have nothing to send to others before them.
            ranks = [x for x in ranks if not now < x < self.window]
        allowed = {}
        for x in ranks:
            held = self.ages[x] & self.young
            eldest = held.bit_length() - 1
            least = self.window - due_in[x]
            ages = [
                age
                for age in range(self.window - 1, 0, -1)
                if not held >> age & 1 and max(eldest, age) >= least
            ]
            allowed[x] = ages[::-1] if self.preference.youngest_first and due_in[x] >= self.window else ages
        order = {}
        for x in ranks:
            in_flight = (self.ages[x] & self.young).bit_count()
            late = in_flight * (x > now) if self.preference.due_ones_last else 0
            order[x] = (in_flight > 0, late, due_in[x], x)
        return matching(sorted(ranks, key=order.__getitem__), allowed, supply)

    def _advance(self, peer: int, received: Mapping[int, int]) -> None:
        keep = 2 * self.oldest - 2
        for x, held in enumerate(self.ages):
            gained = 1 << received[x] if x in received else 0
            self.ages[x] = (held | gained | (x == peer)) << 1 & keep


def _ages_in(bits: int, eldest: int) -> list[int]:
    return [age for age in range(eldest, 0, -1) if bits >> age & 1]


def matching(
    ranks: Sequence[int], allowed: Mapping[int, Sequence[int]], capacity: Mapping[int, int]
) -> dict[int, int]:
    """Largest assignment of ranks to ages that respects the capacity of each age.

    Augmenting paths, one rank after the other: ranks that come first are never left out for later ones.

    Parameters
    ----------
    ranks
        Ranks in order of importance.
    allowed
        Ages that a rank may have, the preferred ones first.
    capacity
        How many ranks may have an age.
    """
    members: dict[int, list[int]] = {age: [] for age in capacity}
    given: dict[int, int] = {}
    for rank in ranks:
        free = next((age for age in allowed[rank] if len(members.get(age, ())) < capacity.get(age, 0)), None)
        path = [(rank, free)] if free is not None else _augmenting_path(rank, allowed, capacity, members)
        for moved, age in path:
            if moved in given:
                members[given[moved]].remove(moved)
            members[age].append(moved)
            given[moved] = age
    return given


def _augmenting_path(
    rank: int,
    allowed: Mapping[int, Sequence[int]],
    capacity: Mapping[int, int],
    members: Mapping[int, Sequence[int]],
) -> list[tuple[int, int]]:
    """Moves `(rank, new age)` that make room for `rank`, the last move first; empty if there are none."""
    reached: dict[int, tuple[int, int | None]] = {}
    queue: list[int] = []

    def reach(candidate: int, left: int | None) -> None:
        for age in allowed[candidate]:
            if age not in reached and capacity.get(age, 0) > 0:
                reached[age] = (candidate, left)
                queue.append(age)

    reach(rank, None)
    for age in queue:
        if len(members[age]) < capacity[age]:
            path = []
            step: int | None = age
            while step is not None:
                moved, left = reached[step]
                path.append((moved, step))
                step = left
            return path
        for member in members[age]:
            reach(member, age)
    return []
