"""Search for a schedule of StragglAR: which rank sends which chunk to which rank in each round.

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

With window = ceil(log2 n) the number of holders of a chunk has to double in every round. For n a power of two
each rank then holds one chunk in flight, as in the published scheme. For other n some ranks hold two. A
bipartite matching decides who sends which. Young chunks go first, because a chunk that falls behind never
recovers.

It is not proved that the matching always succeeds. It does for all n up to 300 and every 37th up to 1,100. If
it fails, the owners send their finished chunks around a ring, which takes almost twice the rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

STRAGGLER = -1
IndexTransfer = tuple[int, int, int]
IndexRound = list[IndexTransfer]


def spread(n_ranks: int) -> list[IndexRound]:
    """Rounds of `(source, destination, chunk)`, with `STRAGGLER` for the straggler."""
    for due_ones_last in (True, False):
        rounds = _Spread(n_ranks, due_ones_last).rounds()
        if rounds is not None:
            return rounds
    return exchanges_then_ring(n_ranks)


def exchanges_then_ring(n_ranks: int) -> list[IndexRound]:
    """All exchanges, and then a ring of the owners: 2(n - 1) - 1 rounds, for any n."""
    n_owners = n_ranks - 1
    exchanges = [[(owner, STRAGGLER, owner), (STRAGGLER, owner, owner)] for owner in range(n_owners)]
    ring = [
        [(x, (x + 1) % n_owners, (x - step) % n_owners) for x in range(n_owners)]
        for step in range(n_owners - 1)
    ]
    return exchanges + ring


class _Spread:
    """One attempt.

    With `due_ones_last`, of the ranks with two chunks in flight those receive last whose exchange is still to
    come. A rank that receives nothing has one chunk less, and is easier to have ready for its exchange.

    At the start of round t, bit j of `ages[x]` says whether rank x holds chunk t - j, for 1 <= j <= window.
    """

    def __init__(self, n_ranks: int, due_ones_last: bool) -> None:
        self.n_owners = n_ranks - 1
        self.window = (n_ranks - 1).bit_length()
        self.due_ones_last = due_ones_last
        self.ages = [0] * self.n_owners
        self.oldest = 1 << self.window
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
        """Age of the chunk that each sender sends: the youngest, whose holders at most double."""
        ages = range(1, min(self.window - 1, now) + 1)
        capacity = {age: sum(held >> age & 1 for held in self.ages) for age in ages}
        able = {x: [age for age in ages if self.ages[x] >> age & 1] for x in senders}
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
            ages = [a for a in range(1, self.window) if not held >> a & 1 and max(eldest, a) >= least]
            # A rank that is due soon gets the oldest chunk.
            allowed[x] = ages if due_in[x] >= self.window else ages[::-1]
        order = {}
        for x in ranks:
            in_flight = (self.ages[x] & self.young).bit_count()
            late = in_flight * (x > now) if self.due_ones_last else 0
            order[x] = (in_flight > 0, late, due_in[x], x)
        return matching(sorted(ranks, key=order.__getitem__), allowed, supply)

    def _advance(self, peer: int, received: Mapping[int, int]) -> None:
        keep = 2 * self.oldest - 2
        for x, held in enumerate(self.ages):
            gained = 1 << received[x] if x in received else 0
            self.ages[x] = (held | gained | (x == peer)) << 1 & keep


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
