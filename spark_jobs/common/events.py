"""Events of ``{source}.events`` as rows of a DataFrame, decoded in the executors.

A record is Avro after the id of its writer's schema. The driver asks the registry for all schemas of the
topic, and every record is decoded with its own, in ``mapInArrow`` by :mod:`millrace.avro.events`, which reads
the head of a record (position, header, context) and, only if requested, the event itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millrace.avro.events import EventDeserializer, EventRecord
from millrace.binlog.declaration import Event
from millrace.binlog.events import (
    FormatDescriptionEvent,
    GtidEvent,
    GtidTaggedLogEvent,
    MariadbGtidListEvent,
    PreviousGtidsLogEvent,
    RowsEvent,
    TableMapEvent,
)
from millrace.binlog.events.gtid import commit_times
from millrace.binlog.events.query import StatementEvent
from millrace.binlog.grammar import Role
from millrace.binlog.gtid_set import GtidSet
from millrace.binlog.transaction import codes_of
from millrace.binlog.types import EventType
from millrace.text import valid_text
from spark_jobs.common.content import CONTENT_TYPES, statement_digest
from spark_jobs.common.kafka import read_records
from spark_jobs.common.lines import Line, read_lines, rows_of

if TYPE_CHECKING:
    from millrace.avro.registry import SchemaStore
    from spark_jobs.common.job import Job

EVENT_SCHEMA: Final = (
    "source string, offset bigint, raw_key string, epoch int, log_file string, position bigint, "
    "sub_index bigint, server_id bigint, timestamp bigint, type string, size bigint, "
    "transaction string, ordinal bigint, ends string, database string, table string, operation string, "
    "original_commit_us bigint, immediate_commit_us bigint, digest bigint, "
    "thread_id bigint, server_version string, gtids string, "
    "table_id bigint, definition binary, before_bits binary, after_bits binary, images binary, "
    "topic string, partition int, key binary, value binary, fault string"
)
"""An event.

``raw_key`` is the key of the raw event, ``size`` its length in the log in bytes. ``operation`` is insert,
update or delete in rows events. The commit times (µs since 1970) stand in the events that begin transactions
of MySQL 8.0. ``digest`` is a hash of what a statement does, and of its variables; ``thread_id`` is the
session of a QUERY. ``server_version`` stands in format descriptions, ``gtids`` at the head of a log: which
transactions lie before it. The rest serves to read rows: ``definition`` is the body of a table map,
``before_bits``, ``after_bits`` and ``images`` those of a rows event. A record that cannot be read has
nothing but its source and :data:`spark_jobs.common.faults.FAULT_COLUMNS`, which are null in all others.
"""

_TYPE_NAMES: Final = {int(event_type): event_type.name for event_type in EventType}
_READ_WHOLE: Final = CONTENT_TYPES | {
    EventType.TABLE_MAP_EVENT,
    EventType.FORMAT_DESCRIPTION_EVENT,
    EventType.PREVIOUS_GTIDS_LOG_EVENT,
    EventType.MARIADB_GTID_LIST_EVENT,
    *codes_of(Role.ROWS, Role.GTID, Role.ANONYMOUS_GTID),
}
TABLE_MAP_POST_HEADER: Final = 8
"""Length of the post-header of table maps in the column ``definition``."""


class RecordError(ValueError):
    """A record of the events topic is none of the decoder's."""


class KnownSchemas:
    """Replaces the registry in an executor: the schemas of a topic, by id."""

    def __init__(self, schemas: Mapping[int, Any], topic: str = "its topic") -> None:
        self._schemas = schemas
        self._topic = topic

    def schema(self, schema_id: int) -> Any:
        """Return the schema with this id."""
        if schema_id not in self._schemas:
            raise RecordError(
                f"the registry does not have schema {schema_id} under {self._topic}; check that "
                "MILLRACE_REGISTRY_URL is the registry that the services use"
            )
        return self._schemas[schema_id]


def read_events(spark: SparkSession, job: "Job") -> DataFrame:
    """Return the events of all sources of a job as :data:`EVENT_SCHEMA`."""
    frames = []
    for one in job.inputs:
        records = read_records(spark, job.kafka, one.part)
        frames.append(decode_events(records, one.source, one.part.topic, one.schemas))
    return reduce(DataFrame.union, frames)


def decode_events(
    records: DataFrame, source: str, topic: str, schemas: Mapping[int, dict[str, Any]]
) -> DataFrame:
    """Decode records of an events topic, ``schemas`` by the ids with which they begin."""

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = event_deserializer(topic, schemas)
        layout = arrow_schema(EVENT_SCHEMA)

        def line(_partition: int, offset: int, *record: Any) -> Line:
            return source, offset, *_fields(*read_record(read, *record)), *_NO_FAULT

        def faulty(partition: int, offset: int, *record: Any) -> Line:
            key, value, fault, reason = record
            return source, offset, *_NO_EVENT, topic, partition, key, value, fault or reason

        for batch in batches:
            yield read_lines(rows_of(batch), layout, line, faulty)

    return records.select(*_OF_RECORDS).mapInArrow(decode, EVENT_SCHEMA)


_OF_RECORDS: Final = ("partition", "offset", "key", "value", "fault")


def event_deserializer(topic: str, schemas: Mapping[int, dict[str, Any]]) -> EventDeserializer:
    """Return a reader of the records of an events topic for executors, which have no registry."""
    return EventDeserializer(cast("SchemaStore", KnownSchemas(schemas, topic)))


def read_record(
    read: EventDeserializer, key: bytes | None, value: bytes | None, fault: str | None = None
) -> tuple[str, EventRecord]:
    """Return the key of the raw event and the record; raises where it is none, or has a fault."""
    if fault is not None or key is None or value is None:
        raise RecordError("it has no key" if key is None else "it has no value")
    record = read(value)
    raw_key = key[: key.rindex(b":")].decode()
    record.event  # noqa: B018 - also where nothing of it is wanted: it may be damaged
    return raw_key, record


def _fields(raw_key: str, record: EventRecord) -> tuple[Any, ...]:
    """Return an event's columns from ``raw_key`` on."""
    header = record.header
    type_code = header.type_code
    head = (
        raw_key,
        record.epoch,
        valid_text(record.log_file),
        record.position,
        record.sub_index,
        header.server_id,
        header.timestamp,
        type_name(type_code),
        header.event_size,
        valid_text(record.transaction),
        record.ordinal,
        record.ends and record.ends.value,
        valid_text(record.database),
        valid_text(record.table),
    )
    return head + (_own_fields(record.event) if type_code in _READ_WHOLE else _NOTHING)


def type_name(type_code: int) -> str:
    """Name a type of events, also one that is not known."""
    return _TYPE_NAMES.get(type_code) or f"type {type_code}"


def _own_fields(event: Event) -> tuple[Any, ...]:
    """Return the columns of an event from ``operation`` on."""
    match event:
        case RowsEvent():
            bits = event.columns_before_image or None, event.columns_after_image or None
            return (event.operation.statement, *_NO_HEAD, event.table_id, None, *bits, event.rows)
        case TableMapEvent():
            definition = event.encode_fields(TABLE_MAP_POST_HEADER)
            return (None, *_NO_HEAD, event.table_id, definition, None, None, None)
        case GtidEvent() | GtidTaggedLogEvent():
            return (None, *commit_times(event), *_NO_HEAD[2:], *_NO_ROWS)
        case FormatDescriptionEvent():
            return (*_NOTHING[:5], valid_text(event.version), None, *_NO_ROWS)
        case PreviousGtidsLogEvent() | MariadbGtidListEvent():
            return (*_NOTHING[:6], gtids_of(event), *_NO_ROWS)
        case _:
            thread_id = event.thread_id if isinstance(event, StatementEvent) else None
            return (*_NOTHING[:3], statement_digest(event), thread_id, None, None, *_NO_ROWS)


_NO_HEAD: Final = (None,) * 6
_NO_ROWS: Final = (None,) * 5
_NOTHING: Final = (None, *_NO_HEAD, *_NO_ROWS)
_NO_FAULT: Final = (None,) * 5
_NO_EVENT: Final = (None,) * (len(EVENT_SCHEMA.split(", ")) - len(("source", "offset")) - len(_NO_FAULT))


def gtids_of(event: PreviousGtidsLogEvent | MariadbGtidListEvent) -> str:
    """Write the transactions that lie before a log: a set of MySQL, the last of each origin of MariaDB."""
    if isinstance(event, PreviousGtidsLogEvent):
        return str(GtidSet.from_event(event))
    return ",".join(f"{one.domain_id}-{one.server_id}-{one.seq_no}" for one in event.entries)


_ARROW_TYPES: Final = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "array<string>": pa.list_(pa.string()),
}


@cache
def arrow_schema(ddl: str) -> pa.Schema:
    """Return the layout of Arrow batches that have the columns of a DDL string; needs no Spark."""
    columns = (column.split() for column in ddl.split(","))
    return pa.schema([(name, _ARROW_TYPES[type_]) for name, type_ in columns])
