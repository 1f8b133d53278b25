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

from millrace.avro.records import NO_RECORD, DeadLetter
from millrace.avro.registry import SchemaStore, split_wire_format, value_subject
from millrace.avro.schemas import parsed_schema
from millrace.avro.service_state import QuarantinedTable
from millrace.contract import HEADER_CHUNK, Topics
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


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record that is not a dead letter, and what is wrong with it."""

    offset: int
    timestamp_ms: int
    key: bytes
    error: str


def is_first_waiting(dead_letter: DeadLetterRecord, entry: QuarantinedTable) -> bool:
    """Whether a dead letter is the first of its table that waits to be redriven."""
    is_first = dead_letter.content.key == entry.key.encode()
    if entry.dead_letter is not None:
        # Of a table that was paused none may have come at once.
        return dead_letter.offset == entry.dead_letter or (
            entry.is_paused and dead_letter.offset > entry.dead_letter and (is_first or not entry.knows_first)
        )
    return dead_letter.content.offset == entry.offset and is_first


def lost_tables(
    kafka: KafkaSettings, registry: SchemaStore, source: str, quarantined: Iterable[QuarantinedTable]
) -> list[str]:
    """Name the tables whose first dead letter that waits is no longer in the topic."""
    oldest = oldest_offset(kafka, Topics(source).deadletter)
    waiting = {entry.name: entry for entry in quarantined if entry.key or not entry.knows_first}
    if not oldest:
        return []
    known = {name: entry for name, entry in waiting.items() if entry.knows_first}
    lost = {
        name for name, entry in waiting.items() if name not in known and oldest > (entry.dead_letter or 0)
    }
    for dead_letter in read_dead_letters(kafka, registry, source) if known else ():
        entry = None
        if isinstance(dead_letter, DeadLetterRecord) and dead_letter.content.service == "rowmapper":
            entry = known.get(dead_letter.content.table or "")
        if (
            entry is not None
            and isinstance(dead_letter, DeadLetterRecord)
            and is_first_waiting(dead_letter, entry)
        ):
            del known[entry.name]
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
