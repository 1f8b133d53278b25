"""How far one side of a hop is behind the other, counted from what lies between.

Bytes are those of the log on every hop, so that the numbers can be added. Seconds are the age of the oldest
event that has not come through. Counting stops at a limit; a count that was not finished is "at least".
"""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from millrace.avro.events import EventDeserializer
from millrace.binlog.checksum import CHECKSUM_LENGTH
from millrace.binlog.grammar import HEADING
from millrace.binlog.gtid_set import GtidSet
from millrace.binlog.header import HEADER_LENGTH, TYPE_OFFSET
from millrace.binlog.transaction import ROLES
from millrace.binlog.types import EventType
from millrace.contract import HEADER_ARTIFICIAL, HEADER_CHUNK, HEADER_MARKER
from millrace.kafka.client import Message

_LIMIT_RECORDS: Final = 20_000
_LIMIT_BYTES: Final = 64 << 20
_LIMIT_S: Final = 5.0
_INTERVAL: Final = re.compile(r":(\d+)(?:-(\d+))?(?=[:,]|$)")


@dataclass(frozen=True, slots=True)
class Lag:
    """What has not come through; None for what cannot be told. Without ``exact`` it is at least so much."""

    bytes: int | None
    seconds: float | None
    transactions: int | None
    records: int | None = None
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """What one record adds: ``bytes`` of the log, and whether a transaction begins with it.

    ``gtid`` tells that it says so by a GTID event, not by a BEGIN, which most servers write as well.
    """

    bytes: int
    begins: bool
    gtid: bool = True


def raw_step(message: Message) -> Step:
    """Look at a record of the raw topic."""
    value, headers = message.value() or b"", dict(message.headers() or ())
    if HEADER_MARKER in headers or HEADER_ARTIFICIAL in headers:
        return Step(0, False)
    if _is_continued(headers) or len(value) < HEADER_LENGTH:
        return Step(len(value), False)
    if ROLES[value[TYPE_OFFSET]] in HEADING:
        return Step(len(value), True)
    begins = b"BEGIN" in value[-len(b"BEGIN") - CHECKSUM_LENGTH :]
    return Step(len(value), begins and value[TYPE_OFFSET] == EventType.QUERY_EVENT, gtid=False)


def event_step(deserialize: EventDeserializer) -> Callable[[Message], Step]:
    """Return what looks at a record of the events topic."""

    def step(message: Message) -> Step:
        headers = dict(message.headers() or ())
        if HEADER_MARKER in headers or _is_continued(headers):
            return Step(0, False)
        event = deserialize(message.value() or b"")
        size = 0 if event.sub_index or event.artificial else event.header.event_size
        return Step(size, event.begins)

    return step


def count(messages: Iterable[Message], step: Callable[[Message], Step] | None) -> Lag:
    """Count what has not come through; without ``step`` records alone."""
    records = size = read = gtids = begins = 0
    oldest_ms: int | None = None
    exact = True
    deadline = time.monotonic() + _LIMIT_S
    for message in messages:
        if records >= _LIMIT_RECORDS or read >= _LIMIT_BYTES or time.monotonic() > deadline:
            exact = False
            break
        records += 1
        read += len(message.value() or b"")
        if oldest_ms is None:
            oldest_ms = message.timestamp()[1]
        if step is not None:
            found = step(message)
            size += found.bytes
            gtids += found.begins and found.gtid
            begins += found.begins and not found.gtid
    seconds = 0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)
    if step is None:
        return Lag(None if records else 0, seconds, None if records else 0, records, exact)
    return Lag(size, seconds, gtids or begins, records, exact)


def gtids_between(reached: str, end: str) -> int | None:
    """Count the transactions of ``end`` that are not in ``reached``; None where a set is missing.

    Of MariaDB's positions, which name the last transaction of each domain, the numbers are subtracted: that
    counts numbers which were never used as well.
    """
    if not reached or not end:
        return None
    if ":" in end:
        missing = str(GtidSet.parse(end).subtract(GtidSet.parse(reached)))
        return sum(int(last or first) - int(first) + 1 for first, last in _INTERVAL.findall(missing))
    before = _sequences(reached)
    return sum(max(0, number - before.get(domain, 0)) for domain, number in _sequences(end).items())


def _sequences(position: str) -> dict[int, int]:
    """Return the highest number of each domain of a position of MariaDB."""
    found: dict[int, int] = {}
    for gtid in position.split(","):
        domain, _, sequence = (int(part) for part in gtid.strip().split("-"))
        found[domain] = max(found.get(domain, 0), sequence)
    return found


def _is_continued(headers: dict[str, str | bytes | None]) -> bool:
    """Whether a record is a chunk, and not the first."""
    chunk = headers.get(HEADER_CHUNK)
    return isinstance(chunk, bytes) and not chunk.startswith(b"0/")
