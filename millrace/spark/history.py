"""The schema history of a log: what each statement made of the definitions of tables."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.avro.catalog import CatalogEntry
from millrace.avro.events import EventRecord
from millrace.avro.schema_version import SchemaVersion
from millrace.binlog.header import TYPE_OFFSET
from millrace.binlog.types import EventType
from millrace.contract import GAP, HEADER_CHUNK, HEADER_MARKER, RawKey, SourcePosition
from millrace.ddl import State
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.definitions import DefiningStatements
from millrace.rowmapper.session import DEFINING
from millrace.spark.archive import Archive, records_of
from millrace.spark.decoding import Decoding, RawDecoder
from millrace.spark.raw_topic import DESCRIBES
from millrace.stage import Record

_BEGINNING: Final = SourcePosition(-1, "", 0)
"""Before all logs."""

_PACKED: Final = EventType.QUERY_COMPRESSED_EVENT
_TYPES: Final = frozenset({EventType.QUERY_EVENT, _PACKED, *DESCRIBES})
_DEFINES: Final = re.compile(("(?i)\\b(?:" + "|".join(sorted(DEFINING)) + ")\\b").encode())
_FIRST_CHUNK: Final = re.compile(rb"0/[0-9]{1,9}")
_ROWS: Final = 10_000

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


def defining_records(archive: Archive) -> Iterator[Record]:
    """Yield the records of an archive that :func:`schema_history` takes, perhaps more statements."""
    types = pa.array([bytes([code]) for code in sorted(_TYPES)], pa.binary())
    large = None
    names = "offset", "key", "value", "headers"
    for batch in archive.columns(archive.start, archive.end, _ROWS, names):
        code = pc.binary_slice(batch.column("value"), TYPE_OFFSET, TYPE_OFFSET + 1)
        wanted = pc.or_(pc.is_in(code, types), pc.is_valid(batch.column("headers")))
        for record in records_of(batch.filter(wanted)):
            headers = dict(record.headers or ())
            marker, chunk = headers.get(HEADER_MARKER), headers.get(HEADER_CHUNK)
            if marker is not None:
                if marker == GAP:
                    yield record
            elif chunk is not None and not _FIRST_CHUNK.fullmatch(chunk):
                if record.key == large:
                    yield record
            elif _defines(record.value or b""):
                yield record
                large = None if chunk is None else record.key


def _defines(event: bytes) -> bool:
    code = event[TYPE_OFFSET] if len(event) > TYPE_OFFSET else None
    return code in DESCRIBES or code == _PACKED or (code in _TYPES and _DEFINES.search(event) is not None)
