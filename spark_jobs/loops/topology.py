"""The replication topology, inferred from the logs: the servers are not asked.

If the log of a server has what another one wrote, there is a path between the two. Members that reach each
other are a ring. Its order follows from the commit times of MySQL 8.0, else from the order in which logs have
transactions that several servers wrote at the same time: a log has those of its predecessor in that one's
order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from statistics import median
from typing import Final

_ALL_ORDERS: Final = 7
"""Up to so many members all orders of a ring are tried: 720."""
_BACKWARDS: Final = 1e9


@dataclass(frozen=True, slots=True)
class Passage:
    """Where a transaction is: for each member its place in the log, and the time of its commit in µs."""

    origin: str | None
    places: Mapping[str, tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class Topology:
    """The members, the ways between them, and the rings among them in their order.

    ``sure`` is false where the order of a ring is a guess, since nothing in the logs tells it.
    """

    members: Sequence[str]
    edges: Sequence[tuple[str, str]] = ()
    rings: Sequence[Sequence[str]] = ()
    sure: bool = True
    reached: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def ring_of(self, member: str) -> Sequence[str]:
        """Return the ring in which a member is, empty where it is in none."""
        return next((ring for ring in self.rings if member in ring), ())

    def upstream(self, member: str) -> list[str]:
        """Return the members from which one replicates."""
        return [start for start, end in self.edges if end == member]

    def path(self, members: Iterable[str]) -> list[str]:
        """Put members into the order of the ring that they are in, as far as they are in one."""
        wanted = set(members)
        ordered = [member for ring in self.rings for member in ring if member in wanted]
        return ordered + [member for member in self.members if member in wanted and member not in ordered]


def infer(members: Sequence[str], reach: Iterable[tuple[str, str]], passages: Sequence[Passage]) -> Topology:
    """Infer a topology; ``reach`` are pairs of members of which the second has what the first wrote."""
    reached = _closure(members, reach)
    groups = _groups(members, reached)
    rings: list[Sequence[str]] = []
    edges: list[tuple[str, str]] = []
    sure = True
    for group in groups:
        if len(group) == 1:
            continue
        ring, told = _ordered(group, passages)
        sure &= told
        rings.append(ring)
        edges += [*pairwise(ring), (ring[-1], ring[0])]
    edges += _between(groups, reached, passages)
    return Topology(members, list(dict.fromkeys(edges)), rings, sure, reached)


def in_rings(members: Sequence[str], reach: Iterable[tuple[str, str]]) -> set[str]:
    """Return the members that are in rings; ``reach`` is as for :func:`infer`."""
    groups = _groups(members, _closure(members, reach))
    return {member for group in groups if len(group) > 1 for member in group}


def _closure(members: Sequence[str], reach: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    reached = {member: {member} for member in members}
    for start, end in reach:
        reached[start].add(end)
    for middle in members:
        for start in members:
            if middle in reached[start]:
                reached[start] |= reached[middle]
    return {member: frozenset(found) for member, found in reached.items()}


def _groups(members: Sequence[str], reached: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Gather members that reach each other."""
    groups: list[list[str]] = []
    for member in members:
        for group in groups:
            if member in reached[group[0]] and group[0] in reached[member]:
                group.append(member)
                break
        else:
            groups.append([member])
    return groups


def _between(
    groups: Sequence[Sequence[str]], reached: Mapping[str, frozenset[str]], passages: Sequence[Passage]
) -> list[tuple[str, str]]:
    """Return the ways from one group to another that lead over no third."""
    ways = []
    for start in groups:
        for end in groups:
            if start is end or end[0] not in reached[start[0]]:
                continue
            others = (group for group in groups if group is not start and group is not end)
            if any(group[0] in reached[start[0]] and end[0] in reached[group[0]] for group in others):
                continue
            costs = {(a, b): _cost(a, b, passages) for a in start for b in end}
            ways.append(min(costs, key=lambda way: costs[way]))
    return ways


def _ordered(group: Sequence[str], passages: Sequence[Passage]) -> tuple[Sequence[str], bool]:
    """Return the order of a ring, and whether the logs tell it."""
    if len(group) == 2:
        return group, True
    cost = {(a, b): _cost(a, b, passages) for a in group for b in group if a != b}
    if len(group) > _ALL_ORDERS:
        ring = [group[0]]
        while len(ring) < len(group):
            ring.append(min((m for m in group if m not in ring), key=lambda m: cost[ring[-1], m]))
        return ring, False
    rings = [(group[0], *rest) for rest in permutations(group[1:])]
    costs = sorted(
        (sum(cost[way] for way in [*pairwise(ring), (ring[-1], ring[0])]), place, ring)
        for place, ring in enumerate(rings)
    )
    return costs[0][2], costs[0][0] < costs[1][0]


def _cost(start: str, end: str, passages: Sequence[Passage]) -> float:
    """Return how little it looks as if one member replicates from another: 0 where all is as if it did."""
    both = [p.places for p in passages if p.origin != end and start in p.places and end in p.places]
    lags = [b - a for a, b in ((p[start][1], p[end][1]) for p in both) if a is not None and b is not None]
    if lags:
        return sum(lag < 0 for lag in lags) / len(lags) * _BACKWARDS + max(median(lags), 0)
    order = [p[end][0] for p in sorted(both, key=lambda p: p[start][0])]
    return sum(later < earlier for earlier, later in pairwise(order)) / max(len(order), 1)
