"""Sets of global transaction identifiers, of MySQL and of MariaDB.

MySQL: ``uuid:1-5:7,uuid:tag:3`` in text; in binary, as COM_BINLOG_DUMP_GTID and PREVIOUS_GTIDS have it, per
origin (and tag) a list of intervals with exclusive ends. Format: ``Gtid_set`` in MySQL's ``sql/rpl_gtid.h``.
MariaDB: a position, ``domain-server-sequence`` once per domain; and what a log holds, once per domain and
server. Format: ``sql/rpl_gtid.h`` of MariaDB.
"""

import re
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millrace.binlog.errors import InvalidValueError
from millrace.binlog.events import (
    GtidInterval,
    GtidSetEntry,
    GtidTaggedLogEvent,
    MariadbGtidListEvent,
    PreviousGtidsLogEvent,
)

__all__ = ["GtidSet", "MariadbBinlogState", "MariadbGtid", "MariadbGtidPosition"]

Origin = tuple[bytes, str]
"""Uuid of a server, 16 bytes, and a tag, empty for identifiers without one."""

_GTID_MAX = (1 << 63) - 1
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}\Z")
_NUMBERS = re.compile(r"(\d+)(?:-(\d+))?\Z")


class _Intervals:
    """Disjoint half-open intervals of numbers in rising order, none touching the next."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.starts, self.ends, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Intervals) and self.starts == other.starts and self.ends == other.ends

    __hash__ = None  # type: ignore[assignment]  # mutable

    def add(self, start: int, end: int) -> None:
        """Add the numbers from ``start`` up to, not including, ``end``."""
        starts, ends = self.starts, self.ends
        if ends and ends[-1] == start:
            ends[-1] = end
            return
        first = bisect_right(ends, start - 1)
        last = bisect_right(starts, end)
        if first < last:
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]

    def remove(self, start: int, end: int) -> None:
        """Take out the numbers from ``start`` up to, not including, ``end``."""
        kept = _Intervals()
        for left, right in self:
            if left < min(right, start):
                kept.add(left, min(right, start))
            if max(left, end) < right:
                kept.add(max(left, end), right)
        self.starts, self.ends = kept.starts, kept.ends

    def covers(self, start: int, end: int) -> bool:
        """Return whether all numbers from ``start`` up to ``end`` are in."""
        index = bisect_right(self.starts, start) - 1
        return index >= 0 and self.ends[index] >= end


class GtidSet:
    """A set of MySQL's transaction identifiers; mutable, compared by content.

    ``str()`` gives the canonical text, as ``gtid_executed`` shows it but on one line.
    """

    __slots__ = ("_origins",)

    def __init__(self) -> None:
        self._origins: dict[Origin, _Intervals] = {}

    @classmethod
    def parse(cls, text: str) -> "GtidSet":
        """Read the text form; white space and line breaks are ignored. Raises InvalidValueError."""
        parsed = cls()
        for part in "".join(text.split()).split(","):
            if part:
                parsed._parse_origin(part)
        return parsed

    def _parse_origin(self, part: str) -> None:
        sid_text, *items = part.split(":")
        try:
            sid = uuid.UUID(sid_text).bytes
        except ValueError:
            raise InvalidValueError(f"{sid_text!r} in a GTID set is not a uuid") from None
        tag = ""
        for index, entry in enumerate(items):
            numbers = _NUMBERS.match(entry)
            if numbers is not None:
                start = int(numbers[1])
                end = int(numbers[2]) if numbers[2] else start
                if not 0 < start <= _GTID_MAX or end >= _GTID_MAX:
                    raise InvalidValueError(f"{entry!r} in a GTID set is out of range")
                if start <= end:
                    self._add((sid, tag), start, end + 1)
            elif _TAG.match(entry.lower()) and index < len(items) - 1:
                tag = entry.lower()
            else:
                raise InvalidValueError(f"{entry!r} in a GTID set is neither a number, an interval nor a tag")
        if not items:
            raise InvalidValueError(f"{part!r} in a GTID set names no transactions")

    def _add(self, origin: Origin, start: int, end: int) -> None:
        intervals = self._origins.get(origin)
        if intervals is None:
            intervals = self._origins[origin] = _Intervals()
        intervals.add(start, end)

    def add(self, gtid: str) -> None:
        """Add one identifier, ``uuid:number`` or ``uuid:tag:number``."""
        self._parse_origin(gtid)

    def add_number(self, sid: bytes, gno: int, tag: str = "") -> None:
        """Add one identifier by its parts, as events have them."""
        self._add((sid, tag), gno, gno + 1)

    def update(self, other: "GtidSet") -> None:
        """Add all identifiers of another set."""
        for origin, intervals in other._origins.items():
            for start, end in intervals:
                self._add(origin, start, end)

    def copy(self) -> "GtidSet":
        """Make an independent set of the same content."""
        return self.union(GtidSet())

    def union(self, other: "GtidSet") -> "GtidSet":
        """Make the set of what is in either."""
        result = GtidSet()
        result.update(self)
        result.update(other)
        return result

    def subtract(self, other: "GtidSet") -> "GtidSet":
        """Make the set of what is in this one and not in ``other``."""
        result = self.copy()
        for origin, intervals in other._origins.items():
            kept = result._origins.get(origin)
            if kept is None:
                continue
            for start, end in intervals:
                kept.remove(start, end)
            if not kept.starts:
                del result._origins[origin]
        return result

    def intersect(self, other: "GtidSet") -> "GtidSet":
        """Make the set of what is in both."""
        return self.subtract(self.subtract(other))

    def contains(self, gtid: str) -> bool:
        """Return whether all identifiers of ``gtid``, one or a set in text form, are in."""
        return self.contains_set(GtidSet.parse(gtid))

    def contains_set(self, other: "GtidSet") -> bool:
        """Return whether ``other`` is a subset of this set."""
        return all(
            origin in self._origins and self._origins[origin].covers(start, end)
            for origin, intervals in other._origins.items()
            for start, end in intervals
        )

    def __bool__(self) -> bool:
        return bool(self._origins)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GtidSet) and self._origins == other._origins

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __str__(self) -> str:
        parts: list[str] = []
        previous: bytes | None = None
        for sid, tag in sorted(self._origins):
            numbers = ":".join(
                f"{start}-{end - 1}" if end - start > 1 else str(start)
                for start, end in self._origins[sid, tag]
            )
            tagged = f"{tag}:{numbers}" if tag else numbers
            if sid == previous:
                parts[-1] += f":{tagged}"
            else:
                parts.append(f"{uuid.UUID(bytes=sid)}:{tagged}")
            previous = sid
        return ",".join(parts)

    def __repr__(self) -> str:
        return f"GtidSet.parse({str(self)!r})"

    def to_event(self) -> PreviousGtidsLogEvent:
        """Make the event that has this content; its format is the tagged one only where a tag occurs."""
        entries = tuple(
            GtidSetEntry(sid, tag, tuple(GtidInterval(*interval) for interval in self._origins[sid, tag]))
            for sid, tag in sorted(self._origins)
        )
        return PreviousGtidsLogEvent(int(any(entry.tag for entry in entries)), entries)

    @classmethod
    def from_event(cls, event: PreviousGtidsLogEvent) -> "GtidSet":
        """Make the set that a PREVIOUS_GTIDS event holds."""
        result = cls()
        for entry in event.entries:
            for interval in entry.intervals:
                result._add((entry.sid, entry.tag), interval.start, interval.end)
        return result

    def encode(self) -> bytes:
        """Write the binary form, as COM_BINLOG_DUMP_GTID sends it."""
        return self.to_event().encode_fields(0)

    @classmethod
    def decode(cls, data: bytes) -> "GtidSet":
        """Read the binary form; raises MalformedError."""
        return cls.from_event(PreviousGtidsLogEvent.decode_fields(data, 0, len(data), 0))

    @classmethod
    def of(cls, events: Iterable[GtidTaggedLogEvent]) -> "GtidSet":
        """Collect the identifiers of GTID events."""
        result = cls()
        for event in events:
            result.add_number(event.sid, event.gno, event.tag)
        return result


@dataclass(frozen=True, slots=True, order=True)
class MariadbGtid:
    """One of MariaDB's identifiers, ``domain-server-sequence``."""

    domain_id: int
    server_id: int
    seq_no: int

    @classmethod
    def parse(cls, text: str) -> "MariadbGtid":
        """Read the text form; raises InvalidValueError."""
        match = re.fullmatch(r"\s*(\d+)-(\d+)-(\d+)\s*", text)
        if match is None:
            raise InvalidValueError(f"{text!r} is not a GTID of MariaDB, domain-server-sequence")
        domain_id, server_id, seq_no = map(int, match.groups())
        if domain_id >= 1 << 32 or server_id >= 1 << 32 or seq_no >= 1 << 64:
            raise InvalidValueError(f"{text!r} is out of range for a GTID of MariaDB")
        return cls(domain_id, server_id, seq_no)

    def __str__(self) -> str:
        return f"{self.domain_id}-{self.server_id}-{self.seq_no}"


class MariadbGtidPosition:
    """A position in MariaDB's streams: the last transaction of each domain; mutable, compared by content."""

    __slots__ = ("_domains",)

    def __init__(self, gtids: Iterable[MariadbGtid] = ()) -> None:
        self._domains: dict[int, MariadbGtid] = {}
        for gtid in gtids:
            self.add(gtid)

    @classmethod
    def parse(cls, text: str) -> "MariadbGtidPosition":
        """Read the text form, as in ``gtid_slave_pos``; a domain named twice is an error."""
        gtids = [MariadbGtid.parse(part) for part in text.split(",") if part.strip()]
        position = cls(gtids)
        if len(position._domains) != len(gtids):
            raise InvalidValueError(f"{text!r} names a domain twice")
        return position

    @classmethod
    def from_event(cls, event: MariadbGtidListEvent) -> "MariadbGtidPosition":
        """Make the position at which a log starts; of a domain's entries the last one is the latest."""
        return cls(MariadbGtid(entry.domain_id, entry.server_id, entry.seq_no) for entry in event.entries)

    def add(self, gtid: MariadbGtid) -> None:
        """Note a transaction as the last of its domain, whatever its number."""
        self._domains[gtid.domain_id] = gtid

    def contains(self, gtid: MariadbGtid) -> bool:
        """Return whether the position is at or after a transaction, by sequence number in its domain."""
        last = self._domains.get(gtid.domain_id)
        return last is not None and last.seq_no >= gtid.seq_no

    def union(self, other: "MariadbGtidPosition") -> "MariadbGtidPosition":
        """Make the position that has, for each domain, the higher sequence number."""
        result = MariadbGtidPosition(self._domains.values())
        for gtid in other._domains.values():
            if not result.contains(gtid):
                result.add(gtid)
        return result

    def __iter__(self) -> Iterator[MariadbGtid]:
        return iter(sorted(self._domains.values()))

    def __bool__(self) -> bool:
        return bool(self._domains)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MariadbGtidPosition) and self._domains == other._domains

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __str__(self) -> str:
        return ",".join(map(str, self))

    def __repr__(self) -> str:
        return f"MariadbGtidPosition.parse({str(self)!r})"


class MariadbBinlogState:
    """What a log of MariaDB holds: of each domain and server the last sequence number; mutable.

    The text is that of ``gtid_binlog_state``; the last entry of a domain is its latest transaction, as in a
    GTID_LIST. One domain with several writers may be in another order on each server, so that a position
    does not say which transactions lie before it.
    """

    __slots__ = ("_domains",)

    def __init__(self, gtids: Iterable[MariadbGtid] = ()) -> None:
        self._domains: dict[int, dict[int, int]] = {}
        for gtid in gtids:
            self.add(gtid)

    @classmethod
    def parse(cls, text: str) -> "MariadbBinlogState":
        """Read the text form; raises InvalidValueError."""
        return cls(MariadbGtid.parse(part) for part in text.split(",") if part.strip())

    @classmethod
    def from_event(cls, event: MariadbGtidListEvent) -> "MariadbBinlogState":
        """Make what a file says lies before it."""
        return cls(MariadbGtid(entry.domain_id, entry.server_id, entry.seq_no) for entry in event.entries)

    def add(self, gtid: MariadbGtid) -> None:
        """Note a transaction as the latest of its domain."""
        servers = self._domains.setdefault(gtid.domain_id, {})
        servers.pop(gtid.server_id, None)
        servers[gtid.server_id] = gtid.seq_no

    def update(self, other: "MariadbBinlogState") -> None:
        """Add what another log holds; the latest of a domain stays unless the other's is not in this one."""
        for domain_id, theirs in other._domains.items():
            ahead = not self.contains(other._latest(domain_id))
            ours = self._domains.setdefault(domain_id, {})
            latest = next(reversed(theirs if ahead else ours))
            for server_id, seq_no in theirs.items():
                ours[server_id] = max(seq_no, ours.get(server_id, 0))
            ours[latest] = ours.pop(latest)

    def contains(self, gtid: MariadbGtid) -> bool:
        """Return whether the log holds a transaction, by the numbers of its server."""
        return self._domains.get(gtid.domain_id, {}).get(gtid.server_id, -1) >= gtid.seq_no

    def lacking(self, other: "MariadbBinlogState") -> list[MariadbGtid]:
        """Return the last transactions of ``other`` that the log does not hold."""
        return [gtid for gtid in other if not self.contains(gtid)]

    def domains(self) -> set[int]:
        """Return the domains of which the log holds transactions."""
        return set(self._domains)

    def equals(self, other: "MariadbBinlogState", domain_id: int) -> bool:
        """Return whether two logs hold the same transactions of a domain."""
        return self._domains.get(domain_id, {}) == other._domains.get(domain_id, {})

    def position(self) -> MariadbGtidPosition:
        """Return the latest transaction of each domain."""
        return MariadbGtidPosition(map(self._latest, self._domains))

    def _latest(self, domain_id: int) -> MariadbGtid:
        server_id, seq_no = next(reversed(self._domains[domain_id].items()))
        return MariadbGtid(domain_id, server_id, seq_no)

    def __iter__(self) -> Iterator[MariadbGtid]:
        for domain_id in sorted(self._domains):
            for server_id, seq_no in self._domains[domain_id].items():
                yield MariadbGtid(domain_id, server_id, seq_no)

    def __str__(self) -> str:
        return ",".join(map(str, self))

    def __repr__(self) -> str:
        return f"MariadbBinlogState.parse({str(self)!r})"
