"""The schemas of a source in its compacted topic ``{source}.avro``, where there is no schema registry.

A record's value is a schema as JSON, its header ``subject`` what the schema is for. Its key is the schema's
number in hexadecimal, as it stands in front of each record that the schema wrote: eight bytes, the first of
SHA-256 of the value, with the highest bit of the last one set. Avro's own fingerprint would not do: it is
made of the schema without its logical types, so that DECIMAL(10,2) and DECIMAL(10,3) share one, and whoever
may name a column can make two schemas share one.

A schema is there before the first record that it wrote. Writing it twice changes nothing, so services write
without a transaction, and without looking whether it is there.
"""

import hashlib
import json
import threading
import zlib
from typing import Any, Final

import fastavro
from confluent_kafka import KafkaError, KafkaException, Message

from millrace.avro.foreign import check_schema
from millrace.avro.records import read_record
from millrace.avro.registry import (
    RegistryError,
    SchemaLostError,
    SchemaRefusedError,
    SchemaRegistry,
    SchemaStore,
    UnknownSchemaError,
    full_name,
    schema_text,
    split_wire_format,
    value_subject,
)
from millrace.avro.schemas import NAMESPACE, Schema
from millrace.contract import HEADER_CHUNK, Topics, is_of_rows
from millrace.kafka import client
from millrace.kafka.client import admin_client, client_config
from millrace.kafka.errors import BrokerError, translated
from millrace.kafka.read import read_topic, source_topics
from millrace.kafka.state import held_range, last_record, last_records
from millrace.kafka.topics import ensure_topics, topic_ids
from millrace.runtime.errors import SettingsError
from millrace.runtime.logging import get_logger
from millrace.runtime.settings import KafkaSettings, RegistrySettings, TopicsSettings
from millrace.stage import Record

_LOG = get_logger(__name__)
_SUBJECT: Final = "subject"
_FLUSH_S: Final = 30.0
_SIGN: Final = 0x80


def open_schemas(
    kafka: KafkaSettings,
    registry: RegistrySettings,
    source: str,
    *,
    topics: TopicsSettings | None = None,
    stop: threading.Event | None = None,
) -> SchemaStore:
    """Return what keeps a source's schemas: the registry of the settings, else the source's topic."""
    if registry.url is not None:
        return SchemaRegistry(registry, stop=stop)
    return SchemaTopic(kafka, source, topics or TopicsSettings.model_validate({}))


def confirm_written(
    kafka: KafkaSettings,
    admin: client.AdminClient,
    schemas: SchemaStore,
    names: Topics,
    *,
    rows: bool = False,
) -> None:
    """Make sure that the last records of decoder and row mapper can be read by the schemas that they name.

    Those of tables are looked at with ``rows``. Raises :class:`SchemaLostError`.
    """
    topics = {
        names.events: "BinlogEvent",
        names.transactions: "Transaction",
        names.ddl: "Ddl",
        names.deadletter: "DeadLetter",
    }
    found = source_topics(admin, names.source)
    there = {name: count for name, count in found.items() if name in topics or (rows and is_of_rows(name))}
    for (topic, _), record in last_records(kafka, there, _is_first, undecided=False).items():
        try:
            schema_id, data = split_wire_format(record.value or b"")
        except ValueError:
            continue  # JSON
        subject = value_subject(topic)
        try:
            schema = schemas.schema(schema_id)
        except UnknownSchemaError as error:
            if isinstance(schemas, SchemaTopic) == (schema_id >= 0):
                raise  # the setting is wrong
            raise SchemaLostError(_place_of(schemas), subject, schema_id, "no schema") from error
        if not _is_of(
            schema, topics.get(topic, ""), data, whole=HEADER_CHUNK not in dict(record.headers or ())
        ):
            raise SchemaLostError(_place_of(schemas), subject, schema_id, "another schema")


def _place_of(schemas: SchemaStore) -> str:
    return "the topic of schemas" if isinstance(schemas, SchemaTopic) else "the schema registry"


def _is_of(schema: dict[str, Any], name: str, data: bytes, *, whole: bool) -> bool:
    """Return whether a schema is an earlier one of that name, by which ``data`` can be read."""
    if name and full_name(schema) != f"{NAMESPACE}.{name}":
        return False
    try:
        if whole:
            read_record(data, fastavro.parse_schema(schema))
    except ValueError:
        return False
    return True


def _is_first(record: Record) -> bool:
    """Return whether a record, or the first of its chunks, begins with the id of a schema."""
    chunk = dict(record.headers or ()).get(HEADER_CHUNK, b"0/1")
    return record.value is not None and chunk.startswith(b"0/")


def schema_number(text: bytes) -> int:
    """Return the number of a schema: negative, as those of a registry are not."""
    return int.from_bytes(_number_bytes(text), "little", signed=True)


def _number_bytes(text: bytes) -> bytes:
    digest = hashlib.sha256(text).digest()[:8]
    return digest[:7] + bytes([digest[7] | _SIGN])


class SchemaTopic(SchemaStore):
    """The schemas of one source in its topic. May be used by several threads."""

    def __init__(self, kafka: KafkaSettings, source: str, topics: TopicsSettings) -> None:
        self._kafka = kafka
        self._topics = Topics(source)
        self._settings = topics
        self._lock = threading.Lock()
        self._producer: client.Producer | None = None
        self._written: set[int] = set()
        # Subject and compressed text by number: the topic may have those of 10,000 tables.
        self._read: dict[int, tuple[str, bytes]] = {}
        self._next = 0
        self._schemas: dict[int, dict[str, Any]] = {}
        self._used: dict[int, tuple[str, bytes]] = {}
        """As ``_read``, of schemas by which records are written."""
        self._topic_is: tuple[str, int, int] | None = None

    def check(self) -> None:
        """Do nothing: Kafka answers, or nothing is at work."""

    def register(self, subject: str, schema: Schema) -> int:
        """Return the number of ``schema``, once it is in the topic."""
        text = schema_text(subject, schema)
        number = schema_number(text)
        if number not in self._written:
            self._write(subject, text)
            self._written.add(number)
            self._used[number] = subject, zlib.compress(text)
        return number

    def confirm(self, subject: str, schema: Schema, schema_id: int) -> None:
        """Make sure that the schema of a number is in the topic; write it again if it is not."""
        text = schema_text(subject, schema)
        number = schema_number(text)
        if schema_id >= 0 or schema_id != number:
            self.register(subject, schema)
            return
        with self._lock:
            if number not in self._read and self._topics.avro in topic_ids(
                admin_client(self._kafka), [self._topics.avro]
            ):
                self._read_on()
        if number in self._read:
            self._used[number] = subject, zlib.compress(text)
        else:
            _LOG.warning("writing a schema again", subject=subject, topic=self._topics.avro)
            self.register(subject, schema)

    @property
    def _in_use(self) -> bool:
        return bool(self._used)

    def confirm_in_use(self) -> None:
        """Read the topic again where it was made anew or has lost records, and write what it lacks."""
        topic = self._topics.avro
        found = topic_ids(admin_client(self._kafka), [topic]).get(topic)
        held = range(0) if found is None else held_range(self._kafka, topic)
        before, self._topic_is = self._topic_is, (found or "", held.start, held.stop)
        if before is None or (before[:2] == self._topic_is[:2] and before[2] <= held.stop):
            return
        with self._lock:
            self._read, self._next = {}, 0
            if found is None:
                self._producer = None
            else:
                self._read_on()
        lost = [number for number in self._used if number not in self._read]
        if lost:
            _LOG.warning(
                "the topic of schemas has lost some: they are written again", topic=topic, lost=len(lost)
            )
        for number in lost:
            subject, text = self._used[number]
            self._write(subject, zlib.decompress(text))

    def _write(self, subject: str, text: bytes) -> None:
        with self._lock:
            if self._producer is None:
                self._producer = self._open()
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(error)

        topic = self._topics.avro
        with translated(f"writing a schema to {topic}"):
            self._producer.produce(
                topic,
                text,
                _number_bytes(text).hex(),
                0,
                headers=[(_SUBJECT, subject.encode())],
                on_delivery=delivered,
            )
            if self._producer.flush(_FLUSH_S):
                raise BrokerError(f"a schema was not written to {topic} within {_FLUSH_S:g} s")
            if failures and failures[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise SchemaRefusedError(
                    f"the schema of {subject} has {len(text):,} bytes, and {topic} takes none so large: "
                    "raise its max.message.bytes"
                )
            if failures:
                raise KafkaException(failures[0])

    def _open(self) -> client.Producer:
        """Create the topic unless it exists; raises SettingsError where a registry has the schemas."""
        topics, admin = self._topics, admin_client(self._kafka)
        known = topic_ids(admin, [topics.avro, topics.events])
        if topics.avro not in known:
            last = last_record(self._kafka, topics.events, _is_first) if topics.events in known else None
            if last is not None and (last.value or b"")[:1] == b"\0":
                problem = (
                    f"MILLRACE_REGISTRY_URL is missing: the records of {topics.events} were written with a "
                    "schema registry. To do without one, have 'millrace reprocess' write them again"
                )
                raise SettingsError([problem])
            _LOG.info("there is no schema registry: schemas go to a topic", topic=topics.avro)
        ensure_topics(admin, self._settings, {topics.avro: "avro"})
        config = client_config(self._kafka) | {"acks": "all", "enable.idempotence": True, "linger.ms": 0}
        config |= {"message.max.bytes": 16 << 20}
        return client.Producer(config, logger=client.KAFKA_LOG)

    def schema(self, schema_id: int) -> dict[str, Any]:
        """Return the schema with this number."""
        with self._lock:
            known = self._schemas.get(schema_id)
            if known is not None:
                return known
            if schema_id >= 0:
                raise UnknownSchemaError(
                    f"a record was written with schema {schema_id} of a schema registry: set "
                    "MILLRACE_REGISTRY_URL"
                )
            if schema_id not in self._read:
                self._read_on()
            if schema_id not in self._read:
                key = schema_id.to_bytes(8, "little", signed=True).hex()
                raise UnknownSchemaError(f"{self._topics.avro} has no schema {key}")
            return self._parsed(schema_id)

    def subject_schemas(self, subject: str) -> dict[int, dict[str, Any]]:
        """Return every schema of a subject, by its number."""
        with self._lock:
            self._read_on()
            found = [number for number, (of, _) in self._read.items() if of == subject]
            return {number: self._schemas.get(number) or self._parsed(number) for number in found}

    def _read_on(self) -> None:
        """Read what has come to the topic since the last time."""
        for message in read_topic(self._kafka, self._topics.avro, start=self._next):
            self._next = (message.offset() or 0) + 1
            key, text = message.key(), message.value()
            if not isinstance(text, bytes) or key != _number_bytes(text).hex().encode():
                _LOG.warning("a record of the topic of schemas is left out", offset=message.offset())
                continue
            subject = dict(message.headers() or ()).get(_SUBJECT)
            name = subject.decode("utf-8", "replace") if isinstance(subject, bytes) else ""
            self._read[schema_number(text)] = name, zlib.compress(text)

    def _parsed(self, number: int) -> dict[str, Any]:
        text = zlib.decompress(self._read[number][1])
        try:
            schema: dict[str, Any] = json.loads(text)
            check_schema(schema)
        except (ValueError, RecursionError) as error:
            raise RegistryError(f"{self._topics.avro} has a schema that cannot be used: {error}") from None
        self._schemas[number] = schema
        return schema

    def close(self) -> None:
        """Let go of the producer, which has nothing left to send."""
        self._producer = None
