"""The schema history, rebuilt: each DDL statement of the events topic, applied to the catalogue.

What comes of it is compared with the schemas topic. A version that differs, or is not there, is written again
under its key, where the last record counts. One that no statement leads to any more gets what holds at its
place. What the events topic no longer reaches back to stays as it is, and so do definitions that were given:
those at a place where no event starts.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from millrace.avro.events import EventDeserializer
from millrace.avro.registry import SchemaStore
from millrace.avro.schema_version import SchemaVersion
from millrace.avro.service_state import RowMapperState
from millrace.avro.single_object import SingleObjectError
from millrace.contract import GAP, SourcePosition
from millrace.ddl import State, Unknown
from millrace.kafka.client import connect
from millrace.kafka.continuity import ContinuityGuard
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.read import read_topic
from millrace.kafka.search import records_between
from millrace.kafka.state import oldest_offset
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.definitions import DefiningStatements
from millrace.rowmapper.event_reader import EventReader, Incoming, Marker
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.stage import Output
from millrace.verify.history import read_catalog

Settings = RowMapperSettings

_EVERY: Final = 500_000


@dataclass(frozen=True, slots=True)
class Correction:
    """A version that differs from what is stored; ``before`` is None where nothing is, or cannot be read."""

    before: State | None
    version: SchemaVersion


def corrections(
    settings: RowMapperSettings,
    registry: SchemaStore,
    stop: int,
    say: Callable[[str], None],
    given: Mapping[tuple[str, str], State] | None = None,
    *,
    at: SourcePosition | None = None,
) -> list[Correction]:
    """Apply the statements before offset ``stop`` of the events topic; give the versions that differ.

    ``given`` are definitions that hold before the event or after the gap ``at`` a place, that of the first
    event where there is none. Raises UserError where the events do not reach that place.
    """
    topics = settings.names
    stored: dict[bytes, bytes] = {}
    for message in read_topic(settings.kafka, topics.schemas):
        key, value = message.key(), message.value()
        if isinstance(key, bytes) and isinstance(value, bytes):
            stored[key] = value
    catalog = read_catalog(settings.kafka, topics)
    versions = {key: _version(value) for key, value in stored.items()}
    work = _Rebuild(settings, registry, catalog, versions, given or {}, at=at)
    made = {version.key: version for version in work.run(stop, say)}
    found = [
        Correction(_state(work.stored.get(key)), version)
        for key, version in made.items()
        if stored.get(key) != version.to_bytes()
    ]
    found += [
        Correction(version.state, right)
        for key, version in work.stored.items()
        if version is not None and key not in made and (right := work.instead_of(version)) is not None
    ]
    return found


def write(
    settings: RowMapperSettings,
    producer: TransactionalProducer,
    state: RowMapperState,
    versions: Sequence[SchemaVersion],
) -> None:
    """Write versions, and the state that knows of the last of them, in one Kafka transaction."""
    topic, now_ms, output = settings.names.schemas, time.time_ns() // 1_000_000, Output()
    for version in versions:
        output.add(topic, version.key, version.to_bytes(), now_ms)
    guard = ContinuityGuard(settings.kafka, connect(settings.kafka), settings.names, "rowmapper")
    guard.begin(state.continuity)
    guard.note(None, {topic: output.groups[topic, 0][-1]})
    producer.send(output)
    producer.commit(replace(state, continuity=guard.continuity).to_bytes())


def _version(value: bytes) -> SchemaVersion | None:
    try:
        return SchemaVersion.from_bytes(value)
    except SingleObjectError:
        return None


def _state(version: SchemaVersion | None) -> State | None:
    return None if version is None else version.state


class _Rebuild:
    """One run over the events."""

    def __init__(
        self,
        settings: RowMapperSettings,
        registry: SchemaStore,
        catalog: Catalog,
        stored: dict[bytes, SchemaVersion | None],
        given: Mapping[tuple[str, str], State],
        *,
        at: SourcePosition | None,
    ) -> None:
        self.stored = stored
        self._settings = settings
        self._registry = registry
        self._catalog = catalog
        self._given = given
        self._at = at
        self._first: SourcePosition | None = None
        self._last: SourcePosition | None = None

    def run(self, stop: int, say: Callable[[str], None]) -> Iterator[SchemaVersion]:
        """Yield the versions to which statements lead."""
        kafka, topic = self._settings.kafka, self._settings.names.events

        def reread(start: int, end: int) -> Generator[bytes, None, None]:
            for record in records_between(kafka, topic, start, end):
                yield record.value or b""

        limit = self._settings.rows.unpacked_mib << 20
        reader = EventReader(EventDeserializer(self._registry), reread, unpacked_limit=limit)
        stored = (version for version in self.stored.values() if version is not None)
        statements = DefiningStatements(self._catalog, stored)
        for record in records_between(kafka, topic, oldest_offset(kafka, topic), stop):
            if record.offset % _EVERY == _EVERY - 1:
                say(f"at offset {record.offset} of {topic}")
            taken = reader.take(record)
            if isinstance(taken, Marker) and taken.kind == GAP:
                self._first = self._first or taken.position
                yield from statements.gap(taken.position)
            elif isinstance(taken, Incoming):
                self._last = place = taken.position
                self._first = self._first or place
                yield from statements.come_to(place)
                yield from self._give(place)
                yield from statements.take(taken.event, taken.large)
        if self._given:
            words = (
                "holds no event" if self._last is None else f"was read up to {self._last.with_epoch()} only"
            )
            raise UserError(f"{topic} {words}: definitions cannot be given after that", ExitCode.SETTINGS)

    def _give(self, place: SourcePosition) -> Iterator[SchemaVersion]:
        """Yield the definitions that are given, once an event is at their place or after it.

        They hold from just before it on, where no event starts. A gap that begins an epoch is at position 0.
        """
        assert self._first is not None
        at = self._at or place
        if at.order() > place.order() or not self._given:
            return
        if at.order() < self._first.order():
            raise UserError(
                f"the events topic begins at {self._first.with_epoch()}, which is after {at.with_epoch()}",
                ExitCode.SETTINGS,
            )
        for (database, table), state in self._given.items():
            version = SchemaVersion(database, table, at.epoch, at.log_file, max(at.position - 1, 0), state)
            self._catalog.restore(version)
            yield version
        self._given = {}

    def instead_of(self, version: SchemaVersion) -> SchemaVersion | None:
        """Return what holds at the place of a version that no statement leads to; None where it may stay."""
        place = version.place
        if self._first is None or self._last is None:
            return None
        if not self._first.order() <= place.order() <= self._last.order():
            return None
        found = self._catalog.find(version.database, version.table, place)
        state: State = Unknown("no statement of the log defines it")
        if found is not None and not found.later:
            state = found.definition
        if state == version.state:
            return None
        return SchemaVersion(version.database, version.table, *place, state)
