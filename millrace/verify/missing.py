"""What is known to be missing of tables in their row topics, between two positions of the log.

That is what waits in the dead letter topic or could not be read, changes that the log itself lacks (gaps),
and statements that were logged as text. :meth:`millrace.verify.history.History.missing` finds what concerns
a table, under all its names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from millrace.avro.service_state import ANY_TABLE, RowMapperState
from millrace.contract import EventKey, RawKey, SourcePosition, Topics
from millrace.dead_letters import Outline, WaitingDeadLetters, read_outlines
from millrace.runtime.settings import KafkaSettings

_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class NonRowChange:
    """A statement that changed rows of a table, and was logged as text."""

    place: SourcePosition
    name: str
    gtid: str | None

    def __str__(self) -> str:
        """Return what it is and where: INSERT at bin.000001:4 (GTID)."""
        return f"{self.name} at {self.place}" + (f" ({self.gtid})" if self.gtid else "")


@dataclass(slots=True)
class DeadLetters:
    """Dead letters of a table in one log file, from ``first`` to ``last``; of any table those of events.

    They wait, or were redriven or discarded, or hold an event that could not be read. Where ``count`` is 0
    they were deleted while they waited. ``first`` is None where their keys tell no position.
    """

    table: str
    waits: bool
    first: SourcePosition | None
    last: SourcePosition | None
    count: int = 0

    def __str__(self) -> str:
        where = "" if self.first is None else f" at {self.first}"
        if self.first != self.last:
            where += f" to {self.last}"
        if self.table == ANY_TABLE:
            what = "could not be read, and may have changed any table: see millrace deadletter list"
            return f"events in the dead letter topic: {self.count:,}{where}; they {what}"
        if self.waits and not self.count:
            return (
                f"rows of {self.table} since {self.first} waited in the dead letter topic, and were deleted"
            )
        state = "wait: see millrace deadletter" if self.waits else "were redriven or discarded"
        return f"{self.count:,} dead letters with rows of {self.table}{where} {state}"


@dataclass(frozen=True, slots=True)
class Missing:
    """What is known to be missing of a table; as text a line for each."""

    dead_letters: Sequence[DeadLetters] = ()
    gaps: Sequence[SourcePosition] = ()
    statements: Sequence[NonRowChange] = ()

    @property
    def of_table(self) -> bool:
        """Whether changes of this very table are missing, not only such as may be of any."""
        return bool(self.statements) or any(each.waits for each in self.dead_letters)

    def __iter__(self) -> Iterator[str]:
        yield from map(str, self.dead_letters)
        if self.gaps:
            yield f"the log lacks changes before {_some(self.gaps)}"
        if self.statements:
            number = len(self.statements)
            yield f"changed by {number:,} statements without rows in the log: {_some(self.statements)}"


def _some(places: Sequence[object]) -> str:
    """Name the first, and the last."""
    if len(places) <= _EXAMPLES:
        return ", ".join(map(str, places))
    return f"{', '.join(map(str, places[: _EXAMPLES - 1]))}, …, {places[-1]}"


@dataclass(slots=True)
class DeadLettersByTable:
    """The dead letters of a source, by table and log file; those that were published do not count."""

    found: dict[tuple[str, bool, int, str], DeadLetters] = field(default_factory=dict)

    @classmethod
    def read(cls, kafka: KafkaSettings, topics: Topics, state: RowMapperState | None) -> "DeadLettersByTable":
        """Read what is in the topic now."""
        made = cls()
        entries = () if state is None else state.quarantined
        any_discarded = state is not None and bool(state.counters.get("dead_letters_discarded"))
        waiting = WaitingDeadLetters(entries)
        for outline in read_outlines(kafka, topics.deadletter, undecided=False):
            waits = waiting.take(outline)
            if waits or any_discarded or outline.table is None:
                made._take(outline, waits=waits)
        for entry in entries:
            if entry.key and not waiting.counts[entry.name]:
                place = _place(entry.key.encode())
                made.found[entry.name, True, -1, ""] = DeadLetters(entry.name, True, place, place)
        return made

    def _take(self, outline: Outline, *, waits: bool) -> None:
        table, place = outline.table or ANY_TABLE, _place(outline.key)
        key = table, waits, *((-1, "") if place is None else place[:2])
        found = self.found.setdefault(key, DeadLetters(table, waits, place, place))
        found.count += 1
        if place is not None and found.first is not None and found.last is not None:
            found.first = min(found.first, place, key=SourcePosition.order)
            found.last = max(found.last, place, key=SourcePosition.order)

    def by_table(self) -> Mapping[str, Sequence[DeadLetters]]:
        """Return them in the order of the log."""
        found: dict[str, list[DeadLetters]] = {}
        for each in self.found.values():
            found.setdefault(each.table, []).append(each)
        return found


def _place(key: bytes) -> SourcePosition | None:
    for kind in (EventKey, RawKey):
        try:
            parsed = kind.parse(key)
            raw = parsed.raw if isinstance(parsed, EventKey) else parsed
            raw.place.order()
        except ValueError:
            continue
        return raw.place
    return None
