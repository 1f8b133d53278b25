"""The dead letters of ``{source}.deadletter``, in order, with chunks joined.

A record that is not a dead letter, since its bytes were damaged or its first chunks were deleted, is given as
:class:`Unreadable`: it must not hide the others.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro
from fastavro.read import SchemaResolutionError

from millrace.avro.records import NO_RECORD, DeadLetter, read_record
from millrace.avro.registry import SchemaStore, split_wire_format, value_subject
from millrace.avro.schemas import parsed_schema
from millrace.avro.service_state import QuarantinedTable
from millrace.contract import HEADER_CHUNK, HEADER_TABLE, Topics
from millrace.kafka.chunks import ChunkError, ChunkJoiner
from millrace.kafka.read import bytes_of, read_topic
from millrace.kafka.state import oldest_offset
from millrace.runtime.settings import KafkaSettings


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A dead letter, the offset of its first record, and when what it holds was written."""

    offset: int
    timestamp_ms: int
    content: DeadLetter

    @property
    def outline(self) -> "Outline":
        """What identifies it."""
        content = self.content
        return Outline(self.offset, content.service, content.table, content.offset, content.key)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record that is not a dead letter, and what is wrong with it."""

    offset: int
    timestamp_ms: int
    key: bytes
    error: str


@dataclass(frozen=True, slots=True)
class Outline:
    """What identifies a dead letter: where it is, and the record that it holds.

    ``table`` is None where it is none of a quarantined table, or is in chunks that an earlier version wrote.
    """

    offset: int
    service: str
    table: str | None
    read_offset: int
    key: bytes


class WaitingDeadLetters:
    """Finds the dead letters that wait to be redriven; it must see all of them in order."""

    def __init__(self, quarantined: Iterable[QuarantinedTable]) -> None:
        self.entries = {entry.name: entry for entry in quarantined}
        self.counts = dict.fromkeys(self.entries, 0)

    def take(self, outline: Outline) -> bool:
        """Count a dead letter if it waits; tell whether it does."""
        entry = self.entries.get(outline.table or "")
        if entry is None or outline.service != "rowmapper":
            return False
        if not self.counts[entry.name] and not is_first_waiting(outline, entry):
            return False
        self.counts[entry.name] += 1
        return True


def count_waiting(
    kafka: KafkaSettings, topic: str, quarantined: Iterable[QuarantinedTable]
) -> dict[str, int]:
    """Count the dead letters that wait, by the name of their table."""
    found = WaitingDeadLetters(quarantined)
    for outline in read_outlines(kafka, topic) if found.entries else ():
        found.take(outline)
    return found.counts


def is_first_waiting(dead_letter: Outline, entry: QuarantinedTable) -> bool:
    """Whether a dead letter is the first of its table that waits to be redriven."""
    is_first = dead_letter.key == entry.key.encode()
    if entry.dead_letter is not None:
        # Of a table that was paused none may have come at once.
        return dead_letter.offset == entry.dead_letter or (
            entry.is_paused and dead_letter.offset > entry.dead_letter and (is_first or not entry.knows_first)
        )
    return dead_letter.read_offset == entry.offset and is_first


def lost_tables(kafka: KafkaSettings, source: str, quarantined: Iterable[QuarantinedTable]) -> list[str]:
    """Name the tables whose first dead letter that waits is no longer in the topic."""
    topic = Topics(source).deadletter
    waiting = {entry.name: entry for entry in quarantined if entry.key or not entry.knows_first}
    oldest = oldest_offset(kafka, topic) if waiting else 0
    if not oldest:
        return []
    known = {name: entry for name, entry in waiting.items() if entry.knows_first}
    lost = {
        name for name, entry in waiting.items() if name not in known and oldest > (entry.dead_letter or 0)
    }
    for outline in read_outlines(kafka, topic) if known else ():
        if outline.service != "rowmapper":
            continue
        for name in [outline.table] if outline.table in known else [*known] if outline.table is None else []:
            if is_first_waiting(outline, known[name]):
                del known[name]
        if not known:
            break
    return sorted(lost.union(known))


def lost_in_words(topic: str, tables: Sequence[str]) -> str | None:
    """Say that dead letters of tables are lost; None where there are none."""
    if not tables:
        return None
    return (
        f"dead letters of {', '.join(tables)} that wait were deleted from {topic}: their rows are in no topic"
    )


def read_dead_letters(
    kafka: KafkaSettings, registry: SchemaStore, source: str, *, start: int = 0
) -> Iterator[DeadLetterRecord | Unreadable]:
    """Yield the dead letters that are committed now, from the one at offset ``start`` on."""
    topic = Topics(source).deadletter
    reader = _Reader(registry, topic)
    joiners: dict[bytes, ChunkJoiner] = {}  # decoder and row mapper may write theirs at the same time
    for message in read_topic(kafka, topic, start=start):
        key, value, offset = bytes_of(message.key()), bytes_of(message.value()), message.offset() or 0
        headers: Mapping[str, Any] = dict(message.headers() or ())
        timestamp_ms = message.timestamp()[1]
        if HEADER_CHUNK not in headers:
            yield reader.read(offset, timestamp_ms, key, value)
            continue
        joiner = joiners.setdefault(key, ChunkJoiner())
        chunk = bytes_of(headers[HEADER_CHUNK])
        if joiner.first_offset is not None and chunk.startswith(b"0/"):
            yield Unreadable(joiner.first_offset, timestamp_ms, key, "its last chunks are missing")
            joiner.reset()
        first = offset if joiner.first_offset is None else joiner.first_offset
        try:
            whole = joiner.feed(key, chunk, value, offset)
        except ChunkError as error:
            yield Unreadable(first, timestamp_ms, key, str(error))
            del joiners[key]
            continue
        if whole is not None:
            del joiners[key]
            yield reader.read(first, timestamp_ms, key, whole)
    for key, joiner in joiners.items():
        if joiner.first_offset is not None:
            yield Unreadable(joiner.first_offset, 0, key, "its last chunks are missing")


def read_outlines(kafka: KafkaSettings, topic: str, *, undecided: bool = True) -> Iterator[Outline]:
    """Yield the outlines of the dead letters that are committed now; of what is none, without a service.

    Of one in chunks no more than the first is read, so that its size does not matter.
    """
    fields = parsed_schema("DeadLetter")["fields"]
    names = [field["name"] for field in fields]
    head, until_table = (
        fastavro.parse_schema({"type": "record", "name": "Head", "fields": fields[: names.index(name) + 1]})
        for name in ("key", "table")
    )
    for message in read_topic(kafka, topic, undecided=undecided):
        headers: Mapping[str, Any] = dict(message.headers() or ())
        in_chunks, table = HEADER_CHUNK in headers, headers.get(HEADER_TABLE)
        if in_chunks and not bytes_of(headers[HEADER_CHUNK]).startswith(b"0/"):
            continue
        is_short = in_chunks or table is not None
        offset, key = message.offset() or 0, bytes_of(message.key())
        try:
            _, body = split_wire_format(bytes_of(message.value()))
            record = read_record(body, head if is_short else until_table)
        except ValueError:
            yield Outline(offset, "", None, -1, key)
            continue
        name = record.get("table") if table is None else bytes_of(table).decode("utf-8", "replace")
        yield Outline(offset, record["service"], name, record["offset"], key)


class _Reader:
    """Reads dead letters by the schemas that are registered for their topic."""

    def __init__(self, registry: SchemaStore, topic: str) -> None:
        self._registry = registry
        self._subject = value_subject(topic)
        self._schemas: dict[int, Any] = {}

    def read(self, offset: int, timestamp_ms: int, key: bytes, value: bytes) -> DeadLetterRecord | Unreadable:
        """Read one; the result says what is wrong with it."""
        try:
            schema_id, body = split_wire_format(value)
            stream = io.BytesIO(body)
            ours = parsed_schema("DeadLetter")
            record: Any = fastavro.schemaless_reader(stream, self._schema(schema_id), ours)
        except (*NO_RECORD, SchemaResolutionError) as error:
            return Unreadable(offset, timestamp_ms, key, f"it is not a dead letter: {error or 'it is cut'}")
        content = DeadLetter(**record)
        if stream.tell() != len(body):
            left = len(body) - stream.tell()
            return Unreadable(
                offset, timestamp_ms, key, f"it is not a dead letter: {left} bytes are left over"
            )
        if content.key != key:
            return Unreadable(
                offset, timestamp_ms, key, f"it is not a dead letter of this key: {content.key!r}"
            )
        return DeadLetterRecord(offset, timestamp_ms, content)

    def _schema(self, schema_id: int) -> Any:
        if schema_id not in self._schemas:
            found = self._registry.subject_schemas(self._subject)
            self._schemas |= {number: fastavro.parse_schema(schema) for number, schema in found.items()}
        if schema_id not in self._schemas:
            raise ValueError(f"its schema, {schema_id}, is none of {self._subject}")
        return self._schemas[schema_id]
