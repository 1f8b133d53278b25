"""The GTIDs of all transactions that are whole in the raw topic: cheap to extend, as text in the state.

MySQL's is a set of ``uuid[:tag]:first-last:…``. MariaDB's is the last GTID of each domain, since within a
domain the order is total.
"""

import re
import uuid
from bisect import bisect_right
from typing import Final

from millrace.binlog.declaration import Event
from millrace.binlog.errors import InvalidValueError
from millrace.binlog.events.gtid import GtidInterval, GtidSetEntry, GtidTaggedLogEvent, PreviousGtidsLogEvent
from millrace.binlog.events.mariadb import MariadbGtidListEvent
from services.reader.progress import Gtid

__all__ = ["GtidProgress", "encode_gtids", "gtid_text"]

_MARIADB: Final = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)")
_TAG: Final = re.compile(r"[a-z_][a-z0-9_]{0,31}")

_Origin = tuple[bytes, str]
"""A server's uuid, 16 bytes, and a tag, empty for none."""


class GtidProgress:
    """A set of GTIDs that grows; ``known`` is False while what lies before our start is not known."""

    def __init__(self, text: str = "") -> None:
        """Start with a set as :meth:`text` gave it; raises InvalidValueError on any other text."""
        self.known = False
        self._intervals: dict[_Origin, list[list[int]]] = {}
        self._domains: dict[int, tuple[int, int]] = {}
        if text:
            self.replace(text)

    def replace(self, text: str) -> None:
        """Forget everything and start with the set in ``text``, which may be empty."""
        self._intervals, self._domains = {}, {}
        self.known = True
        for part in re.sub(r"\s", "", text).split(","):
            if not part:
                continue
            mariadb = _MARIADB.fullmatch(part)
            if mariadb is not None:
                domain, server, sequence = map(int, mariadb.groups())
                self._domains[domain] = server, sequence
            else:
                self._parse(part)

    def _parse(self, part: str) -> None:
        """Add ``uuid[:tag]:n[-m][:n[-m]|:tag:…]``."""
        words = part.split(":")
        try:
            origin = uuid.UUID(words[0]).bytes, ""
            for word in words[1:]:
                if _TAG.fullmatch(word.lower()):
                    origin = origin[0], word.lower()
                    continue
                first, _, last = word.partition("-")
                self._add(origin, int(first), int(last or first) + 1)
        except ValueError:
            raise InvalidValueError(
                f"{part!r} is no GTID set: expected uuid:first-last,… (MySQL) or "
                "domain-server-number,… (MariaDB)"
            ) from None

    def add(self, gtid: Gtid) -> None:
        """Add the GTID of a transaction that is whole now."""
        if not self.known:
            return
        if isinstance(gtid, str):
            for_text = GtidProgress(gtid)
            self._merge(for_text)
        elif isinstance(gtid, GtidTaggedLogEvent):
            self._add((gtid.sid, gtid.tag), gtid.gno, gtid.gno + 1)
        elif len(gtid) == 2:
            sid, number = gtid
            intervals = self._intervals.get((sid, ""))
            if intervals and intervals[-1][1] == number:
                intervals[-1][1] = number + 1
            else:
                self._add((sid, ""), number, number + 1)
        else:
            domain, server, sequence = gtid
            self._domains[domain] = server, sequence

    def previous(self, event: Event) -> str:
        """Take up what a PREVIOUS_GTIDS or GTID_LIST says of the logs before; return that as text."""
        said = GtidProgress()
        said.known = True
        if isinstance(event, PreviousGtidsLogEvent):
            for entry in event.entries:
                for interval in entry.intervals:
                    said._add((entry.sid, entry.tag), interval.start, interval.end)
        elif isinstance(event, MariadbGtidListEvent):
            # Per domain and server; the one that was last in a domain stands last.
            for item in event.entries:
                said._domains[item.domain_id] = item.server_id, item.seq_no
        self._merge(said)
        self.known = True
        return said.text()

    def text(self) -> str:
        """Return the set as text, "" while it is not known."""
        if not self.known:
            return ""
        parts = [f"{domain}-{server}-{last}" for domain, (server, last) in sorted(self._domains.items())]
        by_server: dict[bytes, list[str]] = {}
        for (sid, tag), intervals in sorted(self._intervals.items()):
            words = by_server.setdefault(sid, [str(uuid.UUID(bytes=sid))])
            if tag:
                words.append(tag)
            words += [str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in intervals]
        return ",".join(parts + [":".join(words) for words in by_server.values()])

    def encode(self) -> bytes:
        """Return MySQL's binary form, as in PREVIOUS_GTIDS and COM_BINLOG_DUMP_GTID."""
        entries = tuple(
            GtidSetEntry(sid, tag, tuple(GtidInterval(a, b) for a, b in intervals))
            for (sid, tag), intervals in sorted(self._intervals.items())
        )
        tagged = any(entry.tag for entry in entries)
        return PreviousGtidsLogEvent(int(tagged), entries).encode_fields(0)

    def _merge(self, other: "GtidProgress") -> None:
        for origin, intervals in other._intervals.items():
            for first, end in intervals:
                self._add(origin, first, end)
        for domain, (server, sequence) in other._domains.items():
            if domain not in self._domains or self._domains[domain][1] < sequence:
                self._domains[domain] = server, sequence

    def _add(self, origin: _Origin, first: int, end: int) -> None:
        """Add the numbers from ``first`` up to, not including, ``end``."""
        if not 0 < first < end:
            raise ValueError(f"{first}-{end - 1} is no interval")
        intervals = self._intervals.setdefault(origin, [])
        at = bisect_right(intervals, [first])
        if at and intervals[at - 1][1] >= first:
            at -= 1
            first = intervals[at][0]
        stop = at
        while stop < len(intervals) and intervals[stop][0] <= end:
            end = max(end, intervals[stop][1])
            stop += 1
        intervals[at:stop] = [[first, end]]


def encode_gtids(text: str) -> bytes:
    """Return a GTID set of MySQL, given as text, in its binary form; raises InvalidValueError."""
    return GtidProgress(text).encode()


def gtid_text(gtid: Gtid) -> str:
    """Spell one GTID."""
    if isinstance(gtid, str):
        return gtid
    if isinstance(gtid, GtidTaggedLogEvent):
        return gtid.gtid
    if len(gtid) == 2:
        return f"{uuid.UUID(bytes=gtid[0])}:{gtid[1]}"
    return "-".join(map(str, gtid))
