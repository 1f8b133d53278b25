"""The schema history: definitions of ``{source}.catalog``, what DDL statements make of them, and which holds.

A definition holds from the place at which it was read, or from the statement that led to it, until the next
one. A table of which the first thing known is a reading is taken to have been so before it, too, which is
said of its rows; but not before the last statement that may have altered it until then, of which the reading
tells, nor where the reader has not looked for such statements. Of a table of which nothing is known,
statements tell nothing either.

A table of which nothing is known did not exist where a whole reading did not list it: one of all tables and
databases, by a user who may see them. That holds until a statement makes the table, or may have made tables
without naming them.

Where changes are missing from the log, DDL statements may be among them. So what was known before such a gap
does not hold after it: there a table is not known until it is read, created or given. A gap of the reader's
begins an epoch, and the reader looks for alterations from there to its next reading; that holds from the gap
on, as the first one does. After a gap that does not begin an epoch nobody has looked.
"""

import re
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Final, Literal, NamedTuple

from millrace.avro.catalog import CatalogEntry
from millrace.avro.schema_version import SchemaVersion
from millrace.binlog.names import folded
from millrace.binlog.table import TableDefinition
from millrace.contract import SourcePosition
from millrace.ddl import MISSING, UNNAMED, Session, State, Unknown, apply
from millrace.selection.tables import SYSTEM_DATABASES

_NUMBER: Final = re.compile(r"\d+$")

_KEPT: Final = 20
"""Versions of a table that are kept; rows older than that come only where a table is redriven."""

_FORGOTTEN: Final = Unknown("it is older than what is kept of the schema history")


_BEGINNING: Final = SourcePosition(-1, "", 0)


class Found(NamedTuple):
    """A table's definition; ``later`` if it was read only after the event in question."""

    definition: State
    later: bool
    origin: Literal["catalog", "history"] = "catalog"


@dataclass(frozen=True, slots=True)
class _Version:
    """What is known of a table from a place on."""

    place: SourcePosition
    state: State
    origin: Literal["catalog", "history"]
    altered: SourcePosition | None = None
    """Up to where it may have been another before it was read; that is ``place`` where nobody has looked."""

    @property
    def order(self) -> tuple[tuple[int, int, int], bool]:
        """What sorts versions: where a reading and a statement have one place, the statement comes after."""
        return self.place.order(), self.origin == "history"


class Catalog:
    """All definitions that are known, per table in the order of the log.

    Of each table the last ``kept`` versions are that the stream has come to, all of them with None.
    """

    def __init__(self, kept: int | None = _KEPT) -> None:
        self._versions: defaultdict[tuple[str, str], list[_Version]] = defaultdict(list)
        self._gaps: list[SourcePosition] = []
        """Where changes are missing, in the order of the log."""
        self._kept = kept
        self._reached = _BEGINNING.order()
        """How far statements were applied: the readings after it wait for the stream, and are all kept."""
        self._lower_case = False
        self._whole: list[SourcePosition] = []
        """Where the whole catalogue was read, in the order of the log: the last one that was reached, and
        those after it."""
        self._coming: Counter[tuple[SourcePosition, int]] = Counter()
        """Number of entries that have arrived of a complete reading that is not finished."""

    @property
    def lower_case_names(self) -> bool:
        """Whether the server stores names of databases and tables in lower case."""
        return self._lower_case

    def add(self, entry: CatalogEntry) -> None:
        """Take a definition that was read.

        The reader writes all of them at each start, each time for a later place in the log. Of readings that
        say the same the first and the last are kept: what holds is the same between them.
        """
        self._lower_case |= entry.lower_case_names
        state: State = entry.definition if entry.unknown is None else Unknown(entry.unknown)
        key = (entry.definition.database, entry.definition.table)
        versions = self._versions[self._key(*key)]
        place = SourcePosition(entry.epoch, entry.log_file, entry.position)
        if entry.whole is not None:
            self._count(place, entry.read_ms, entry.whole)
        version = _Version(
            place,
            state,
            "catalog",
            SourcePosition(entry.epoch, entry.altered_log_file, entry.altered_position)
            if entry.altered_log_file
            else None,
        )
        at = bisect_right(versions, version.order, key=_order)
        if _is_forgotten(versions, at):
            return
        versions.insert(at, version)
        _carry_names(versions, at)
        if at == len(versions) - 1 and at > 1 and _said_twice(*versions[at - 2 :]):
            del versions[at - 1]
        self._forget(versions)

    def _count(self, place: SourcePosition, read_ms: int, entries: int) -> None:
        """Count an entry of a whole reading, which tells what is missing once all have come."""
        self._coming[place, read_ms] += 1
        if self._coming[place, read_ms] == entries:
            del self._coming[place, read_ms]
            insort(self._whole, place, key=SourcePosition.order)

    def restore(self, stored: SchemaVersion) -> None:
        """Take a version that was written by an earlier row mapper, or the note of a gap."""
        place = stored.place
        if stored.is_gap:
            self.gap(place)
            return
        self.reach(place)
        self._put((stored.database, stored.table), _Version(place, stored.state, "history"))

    def reach(self, place: SourcePosition) -> None:
        """Take note that all statements before a place were applied."""
        self._reached = max(self._reached, place.order())
        while self._kept is not None and len(self._whole) > 1 and self._whole[1].order() <= self._reached:
            del self._whole[0]

    def begin(self, place: SourcePosition) -> SchemaVersion | None:
        """Take note that no statement before ``place`` is applied; give what is written down of it.

        That is nothing where the catalogue was not read before it, or another row mapper has applied some.
        """
        if self._reached != _BEGINNING.order() or not (
            self._whole and self._whole[0].order() < place.order()
        ):
            return None
        # No statement stands just before the first event, so that the note stays when the history is rebuilt.
        before = place._replace(position=max(place.position - 1, 0))
        state = Unknown("statements before the first event were not applied")
        self._put(UNNAMED, _Version(before, state, "history"))
        return SchemaVersion(*UNNAMED, before.epoch, before.log_file, before.position, state)

    def gap(self, place: SourcePosition) -> SchemaVersion:
        """Take note that changes are missing just before ``place``; give what is written down of it."""
        self.reach(place)
        if place not in self._gaps:
            insort(self._gaps, place, key=SourcePosition.order)
        return SchemaVersion("", "", *place, Unknown("changes are missing from the log"))

    def apply(
        self, text: str, session: Session, place: SourcePosition, *, whole: bool
    ) -> list[SchemaVersion]:
        """Apply a statement, and give the versions that come of it."""
        session = replace(session, lower_case_names=self._lower_case)
        self.reach(place)
        known = _Known(self, place, trusts_readings=session.server.shows_before_logging)
        changes = apply(text, session, known, whole=whole)
        versions = [
            SchemaVersion(*key, place.epoch, place.log_file, place.position, state).bounded()
            for key, state in changes.items()
        ]
        for key, version in zip(changes, versions, strict=True):
            self._put(key, _Version(place, version.state, "history"))
        return versions

    def _put(self, key: tuple[str, str], version: _Version) -> None:
        versions = self._versions[self._key(*key)]
        at = bisect_right(versions, version.order, key=_order)
        if _is_forgotten(versions, at):
            return
        if at and versions[at - 1].order == version.order:
            versions[at - 1] = version
            _carry_names(versions, at)
        else:
            versions.insert(at, version)
            _carry_names(versions, at + 1)
            self._forget(versions)

    def _forget(self, versions: list[_Version]) -> None:
        while (
            self._kept is not None
            and len(versions) > self._kept
            and versions[2].place.order() <= self._reached
        ):
            versions[:2] = [_Version(_BEGINNING, _FORGOTTEN, "history")]

    def spelled(self, name: str) -> str:
        """Spell the name of a database or table as the server stores it."""
        return folded(name) if self._lower_case else name

    def _key(self, database: str, table: str) -> tuple[str, str]:
        return self.spelled(database), self.spelled(table)

    def find(self, database: str, table: str, place: SourcePosition, *, before: bool = False) -> Found | None:
        """Return what holds at ``place``; None where nothing is known of the table.

        Where nothing was known of it by then, that is the first definition, if it was read. ``before`` asks
        for what a statement at ``place`` found, which may have been applied already.
        """
        versions = self._versions.get(self._key(database, table))
        if not versions:
            return None
        index = bisect_right(versions, (place.order(), not before), key=_order)
        between = self._between_gaps(versions, place)
        if index > between.start:
            return Found(versions[index - 1].state, later=False, origin=versions[index - 1].origin)
        return self._before(versions, between, place)

    def since(
        self, database: str, table: str, place: SourcePosition, *, unaltered: bool = False
    ) -> list[Found]:
        """Return what :meth:`find` returns, and all definitions that came later, up to the next gap.

        Where they are to be ``unaltered``, up to the next statement that may have changed the table: beyond
        what the row mapper has applied, the reader must have looked for such.
        """
        versions = self._versions.get(self._key(database, table))
        if not versions:
            return []
        between = self._between_gaps(versions, place)
        index = bisect_right(versions, (place.order(), True), key=_order)
        if index <= between.start:
            found = self._before(versions, between, place)
            if found is None and unaltered:
                return []
            if found is not None and isinstance(found.definition, Unknown):
                return [found]
        first = max(index - 1, between.start)
        later = versions[index : between.stop]
        if unaltered:
            later = list(takewhile(partial(self._is_unaltered, versions[between.start], place), later))
        return [
            *(Found(one.state, later=False, origin=one.origin) for one in versions[first:index]),
            *(Found(one.state, later=True, origin=one.origin) for one in later),
        ]

    def _is_unaltered(self, first: _Version, place: SourcePosition, version: _Version) -> bool:
        """Return whether a later version may hold at ``place``, too; ``first`` is the first after the gap."""
        if version.origin == "history":
            return False
        if _holds_before(version, place, first=version is first):
            return True
        return version.altered in (None, version.place) and version.place.order() <= self._reached

    def last_gap(self, place: SourcePosition) -> SourcePosition | None:
        """Return the last place up to ``place`` before which changes are missing."""
        index = self._gaps_until(place)
        return self._gaps[index - 1] if index else None

    def gaps(self, since: tuple[int, int, int], until: tuple[int, int, int]) -> list[SourcePosition]:
        """Return the places after ``since`` and up to ``until`` before which changes are missing."""
        return [place for place in self._gaps if since < place.order() <= until]

    def _gaps_until(self, place: SourcePosition) -> int:
        return bisect_right(self._gaps, place.order(), key=SourcePosition.order)

    def _between_gaps(self, versions: Sequence[_Version], place: SourcePosition) -> range:
        """Return the indexes of the versions that no gap separates from ``place``."""
        index = self._gaps_until(place)
        start, stop = 0, len(versions)
        if index:
            start = bisect_left(versions, (self._gaps[index - 1].order(), False), key=_order)
        if index < len(self._gaps):
            stop = bisect_left(versions, (self._gaps[index].order(), False), key=_order)
        return range(start, stop)

    def _before(self, versions: list[_Version], between: range, place: SourcePosition) -> Found | None:
        """Return what holds before the first of the versions between two gaps, if there are any."""
        if _is_forgotten(versions, between.start):
            return Found(_FORGOTTEN, later=False, origin="history")
        gap, here = self.last_gap(place), versions[between.start : between.stop]
        if gap is None or gap.position == 0:
            for reading in takewhile(_is_reading, here):
                if _holds_before(reading, place, first=reading is here[0]):
                    return Found(reading.state, later=True)
        altered = _altered(here, place, gap)
        if altered is not None:
            return altered
        return None if gap is None else Found(_not_known_after(gap), later=False)

    def is_missing(self, database: str, table: str, place: SourcePosition) -> bool:
        """Return whether an unknown table did not exist just before a statement at ``place``.

        Of a database, that of a table with an empty name.
        """
        at = bisect_right(self._whole, place.order(), key=SourcePosition.order)
        if not at or (not table and self.spelled(database) in SYSTEM_DATABASES):
            return False
        read, gap, unnamed = self._whole[at - 1], self.last_gap(place), self._last(*UNNAMED, place)
        if (
            read.epoch != place.epoch
            or (gap is not None and gap.order() >= read.order())
            or (unnamed is not None and unnamed.place.order() >= read.order())
        ):
            return False
        if table:
            known = self._last(database, "", place)
            if known is None or known.state is MISSING:
                return False
        return self._last(database, table, place) is None

    def _last(self, database: str, table: str, place: SourcePosition) -> _Version | None:
        """Return what was known last of a table since the gap before a statement at ``place``."""
        versions = self._versions.get(self._key(database, table), [])
        index = bisect_right(versions, (place.order(), False), key=_order)
        return versions[index - 1] if index > self._between_gaps(versions, place).start else None

    def last_definition(self, database: str, table: str, place: SourcePosition) -> TableDefinition | None:
        """Return the last definition that a table of this name had before a statement at ``place``."""
        versions = self._versions.get(self._key(database, table), [])
        return _last_definition(versions, bisect_right(versions, (place.order(), False), key=_order))

    def definitions(self, database: str, table: str, place: SourcePosition) -> Iterator[TableDefinition]:
        """Yield the definitions that a table had up to ``place``, the last one first."""
        versions = self._versions.get(self._key(database, table), [])
        index = bisect_right(versions, (place.order(), True), key=_order)
        for version in reversed(versions[:index]):
            if isinstance(version.state, TableDefinition):
                yield version.state

    def tables(self, database: str, place: SourcePosition) -> Iterator[str]:
        """Yield the tables that a database has at ``place``, as far as is known."""
        for name, table in list(self._versions):
            if name == database and table:
                found = self.find(name, table, place, before=True)
                if found is not None and not found.later and found.definition is not MISSING:
                    yield table


class _Known:
    """What is known before a statement."""

    def __init__(self, catalog: Catalog, place: SourcePosition, *, trusts_readings: bool) -> None:
        self._catalog, self._place = catalog, place
        self._trusts_readings = trusts_readings

    def state(self, database: str, table: str) -> State | None:
        """Return what is known of a table; what was read later does not count.

        After a gap it only tells that there may have been such a table.
        """
        if self._trusts_readings and self._catalog.is_missing(database, table, self._place):
            return MISSING
        found = self._catalog.find(database, table, self._place, before=True)
        if found is None or not found.later:
            return None if found is None else found.definition
        gap = self._catalog.last_gap(self._place)
        return None if gap is None else _not_known_after(gap)

    def later(self, database: str, table: str) -> State | None:
        """Return what was read later of a table that was never heard of."""
        found = self._catalog.find(database, table, self._place, before=True)
        return None if found is None else found.definition

    def was_read(self, database: str, table: str) -> bool:
        """Return whether what is known of a table was read after the last statement that changed it."""
        found = self._catalog.find(database, table, self._place, before=True)
        return found is not None and found.origin == "catalog"

    def last(self, database: str, table: str) -> TableDefinition | None:
        """Return the last definition that a table of this name had."""
        return self._catalog.last_definition(database, table, self._place)

    def tables(self, database: str) -> Iterator[str]:
        """Return the tables of a database that are not missing."""
        return self._catalog.tables(database, self._place)


def _carry_names(versions: list[_Version], at: int) -> None:
    """Let readings from the index ``at`` on have the former names that were known before them.

    What one says that was known before is the same object from then on.
    """
    for index in range(max(at, 1), len(versions)):
        before, reading = versions[index - 1].state, versions[index]
        if reading.origin != "catalog":
            return
        state = reading.state
        if before == state:
            state = before
        elif isinstance(state, TableDefinition):
            last = _last_definition(versions, index)
            if last is not None:
                state = state.confirming(last) if last is before else state.replacing(last)
        versions[index] = replace(reading, state=state)
        if index > at and _names(state) == _names(reading.state):
            return  # nor would those after it change


def _last_definition(versions: Sequence[_Version], stop: int) -> TableDefinition | None:
    """Return the last definition among the first ``stop`` versions."""
    states = (versions[index].state for index in reversed(range(stop)))
    return next((state for state in states if isinstance(state, TableDefinition)), None)


def _names(state: State) -> Sequence[object]:
    """Return what :func:`_carry_names` changes."""
    return (
        ([column.former for column in state.columns], state.gone)
        if isinstance(state, TableDefinition)
        else ()
    )


def _is_forgotten(versions: list[_Version], at: int) -> bool:
    """Return whether a version that would stand there is older than those that are kept."""
    return at == 1 and len(versions) > 1 and versions[0].state is _FORGOTTEN


def _not_known_after(gap: SourcePosition) -> Unknown:
    return Unknown(
        f"changes are missing before {gap.with_epoch()}, and what the table has been since is not "
        f"known: {_give_it(gap)}"
    )


def _give_it(gap: SourcePosition | None) -> str:
    """Say how a definition is given that holds from a gap on, or from the first event on."""
    # A gap that begins no epoch is noted just before an event.
    at = "" if gap is None else f" --at {gap.epoch}:{gap.log_file}:{gap.position + (gap.position > 0)}"
    return f"give that with 'millrace schema rebuild --definitions FILE.sql{at}'"


def _is_reading(version: _Version) -> bool:
    return version.origin == "catalog"


def _holds_before(reading: _Version, place: SourcePosition, *, first: bool) -> bool:
    """Return whether a table was at an earlier place what was read of it.

    The first reading that names no statement is of a reader that has looked from where it began on.
    """
    return first if reading.altered is None else reading.altered.order() < place.order()


def _altered(versions: Sequence[_Version], place: SourcePosition, gap: SourcePosition | None) -> Found | None:
    """Say that nobody knows what a table was before its first version; None where nothing says so."""
    found = (v.altered for v in versions if v.altered is not None and v.altered != v.place)
    at = next((each for each in found if place.order() <= each.order()), None)
    if at is None:
        return None
    words = f"it may have been altered up to {at}, and what it was before is not known: {_give_it(gap)}"
    if gap is None:
        words += ", or begin after that place (MILLRACE_START)"
    return Found(Unknown(words), later=True)


def _order(version: _Version) -> tuple[tuple[int, int, int], bool]:
    return version.order


def _said_twice(before: _Version, between: _Version, last: _Version) -> bool:
    if before.state is not last.state or before.place.epoch != last.place.epoch:
        # The first one of an epoch may be the first after a gap, and says up to where it was altered.
        return False
    return before.origin == between.origin == last.origin == "catalog"
