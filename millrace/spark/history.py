"""The schema history of a log: what each statement made of the definitions of tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from millrace.avro.catalog import CatalogEntry
from millrace.avro.events import EventRecord
from millrace.avro.schema_version import SchemaVersion
from millrace.contract import HEADER_MARKER, RawKey, SourcePosition
from millrace.ddl import State
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.definitions import DefiningStatements
from millrace.spark.decoding import Decoding, RawDecoder
from millrace.stage import Record

_BEGINNING: Final = SourcePosition(-1, "", 0)
"""Before all logs."""

Definitions = Mapping[tuple[str, str], State]
"""Definitions of tables, by database and table."""


def schema_history(
    source: str,
    records: Iterable[Record],
    *,
    catalog: Sequence[bytes] = (),
    stored: Sequence[bytes] = (),
    given: Definitions,
) -> list[bytes]:
    """Rebuild the schema history: the given definitions apply first, then each statement.

    ``records`` are the raw records of statements that define tables, format descriptions and gaps. Of the
    history that is ``stored`` what no statement can lead to stays, but for the tables that are given.
    """
    known = Catalog(kept=None)
    for value in catalog:
        known.add(CatalogEntry.from_bytes(value))
    spelled = known.spelled
    tables = {(spelled(database), spelled(table)) for database, table in given}
    kept = [
        version
        for version in map(SchemaVersion.from_bytes, stored)
        if (spelled(version.database), spelled(version.table)) not in tables
    ]
    versions = [
        SchemaVersion(database, table, *_BEGINNING, state) for (database, table), state in given.items()
    ]
    for version in versions:
        known.restore(version)
    statements = DefiningStatements(known, kept)
    for event in _events(source, records):
        versions += statements.gap(event) if isinstance(event, SourcePosition) else statements.take(event)
    versions += statements.come_to(None)
    return [version.to_bytes() for version in versions]


def _events(source: str, records: Iterable[Record]) -> Iterator[EventRecord | SourcePosition]:
    """Decode raw records; of a gap give the place."""
    decoder = RawDecoder(Decoding(source, into_rows=False, now_ms=0))
    for record in records:
        if HEADER_MARKER in dict(record.headers or ()):
            yield RawKey.parse(record.key or b"").place
            continue
        for written in decoder.take([record]):
            for _, value, *_ in written.get((decoder.topics.events, 0), ()):
                yield decoder.read_event(value or b"")
