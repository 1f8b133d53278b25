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

from confluent_kafka import KafkaError, KafkaException, Message

from millrace.avro.foreign import check_schema
from millrace.avro.registry import (
    RegistryError,
    SchemaRefusedError,
    SchemaRegistry,
    SchemaStore,
    UnknownSchemaError,
    schema_text,
)
from millrace.avro.schemas import Schema
from millrace.contract import Topics
from millrace.kafka import client
from millrace.kafka.client import admin_client, client_config
from millrace.kafka.errors import BrokerError, translated
from millrace.kafka.read import read_topic
from millrace.kafka.state import newest_offset
from millrace.kafka.topics import ensure_topics, topic_ids
from millrace.runtime.errors import SettingsError
from millrace.runtime.logging import get_logger
from millrace.runtime.settings import KafkaSettings, RegistrySettings, TopicsSettings

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
    """Give what keeps a source's schemas: the registry of the settings, else the source's topic."""
    if registry.url is not None:
        return SchemaRegistry(registry, stop=stop)
    return SchemaTopic(kafka, source, topics or TopicsSettings.model_validate({}))


def schema_number(text: bytes) -> int:
    """Give the number of a schema: negative, as those of a registry are not."""
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

    def check(self) -> None:
        """Do nothing: Kafka answers, or nothing is at work."""

    def register(self, subject: str, schema: Schema) -> int:
        """Return the number of ``schema``, once it is in the topic."""
        text = schema_text(subject, schema)
        number = schema_number(text)
        if number not in self._written:
            self._write(subject, text)
            self._written.add(number)
        return number

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
            if topics.events in known and newest_offset(self._kafka, topics.events):
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
            raise RegistryError(f"{self._topics.avro} has a schema that cannot be read by: {error}") from None
        self._schemas[number] = schema
        return schema

    def close(self) -> None:
        """Let go of the producer, which has nothing left to send."""
        self._producer = None
