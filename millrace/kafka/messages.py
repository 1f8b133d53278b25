"""Records from and to confluent_kafka's clients in batches: by the kernel where it can, else one by one.

A Message with its calls costs several times what librdkafka itself takes for a record; the kernel calls
librdkafka (:mod:`millrace.kernel.messages`). Where that is not built, or librdkafka is another one,
confluent_kafka does the same; tests run with both.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, Final, NoReturn, Protocol, TypeVar

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message, cimpl

from millrace import kernel
from millrace.kafka import client
from millrace.kafka.client import KAFKA_LOG, Consumer, Producer
from millrace.kafka.read import record_of
from millrace.runtime.logging import get_logger
from millrace.stage import OutputRecord, Record

_LOG = get_logger(__name__)
_MAKING: Final = threading.Lock()
_SERVE_S: Final = 0.5
"""How long callbacks of a consumer wait at the most while records come."""

_SERVED: Final = 100
_PURGED: Final = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""Errors of records that were given up because of others."""

C = TypeVar("C")


class PartitionReader(Protocol):
    """Reads the records of partition 0 of a topic, which its consumer must be assigned after this is made."""

    @property
    def errors(self) -> list[KafkaError]:
        """What came beside records in the last batch."""

    @property
    def leader_epoch(self) -> int:
        """That of the last record; -1 where it is not known."""

    def read(self, count: int, wait_ms: int) -> Sequence[Record]:
        """Return up to ``count`` records: those that are there, else what comes first within ``wait_ms``."""

    def close(self) -> None:
        """Let go of the consumer, which is to be closed after this."""


class RecordWriter(Protocol):
    """Passes records to a producer."""

    def write(self, topic: str, partition: int, records: list[OutputRecord], index: int) -> int:
        """Add records from ``index`` on; return the index of the first that finds no room.

        A timestamp of 0, which librdkafka would take for "now", is written as 1. Raises KafkaException.
        """

    def wait(self, wait_ms: int) -> bool:
        """Wait until every partition has room; False where no answer comes for so long."""

    def wait_to_flush(self, wait_ms: int) -> bool:
        """Wait until no partition has more than one batch; False where no answer comes for so long.

        While there are more, a flush keeps a core busy that is better used to fill the next.
        """

    def refusals(self) -> list[tuple[str, int]]:
        """Return the topics of records that brokers refused since the last call, each with the code."""


def open_consumer(
    config: Mapping[str, Any], topic: str, *, dated: bool = True
) -> tuple[Consumer, Callable[[], PartitionReader]]:
    """Make a consumer, and what makes a reader of it, to be called before each assignment of ``topic``.

    What the client says of brokers and topics, such as that one was lost, is among the errors that a reader
    gives. Unless ``dated``, records have their offsets for timestamps.
    """
    lost: deque[KafkaError] = deque(maxlen=1)
    config = {**config, "error_cb": lost.append}
    consumer, handle, module = _made(lambda plugin: client.Consumer({**config, **plugin}, logger=KAFKA_LOG))
    if module is None:
        return consumer, lambda: _Messages(consumer, lost, dated=dated)
    return consumer, lambda: _Batches(
        consumer,
        module.PartitionReader(handle, topic, 0, Record, KafkaError, dated),
        module.errors_of_links,
    )


def open_producer(config: Mapping[str, Any]) -> tuple[Producer, RecordWriter]:
    """Make a producer, and what gives records to it."""
    refusals = _Refusals()
    config = {**config, "on_delivery": refusals.note, "delivery.report.only.error": True}
    producer, handle, module = _made(lambda plugin: client.Producer({**config, **plugin}, logger=KAFKA_LOG))
    if module is None:
        return producer, _Calls(producer, refusals)
    return producer, module.RecordWriter(handle, config["batch.size"], _fail)


@cache
def _kernel() -> ModuleType | None:
    """Return the kernel's module if it is to be used."""
    if not kernel.has("messages"):
        return None
    from millrace.kernel import messages  # noqa: PLC0415 - only where it is built

    try:
        messages.load(cimpl.__file__, confluent_kafka.libversion()[1])
    except messages.NotUsableError as error:
        _LOG.warning("Kafka's client is used without the kernel, which is slower", reason=str(error))
        return None
    return messages


def _made(make: Callable[[dict[str, str]], C]) -> tuple[C, Any, Any]:
    """Make a client, with the kernel's module as a plugin; give the client, its handle and the module.

    Both are None where the client does not take the plugin.
    """
    module = _kernel()
    if module is not None:
        plugin = {"plugin.library.paths": str(module.__file__)}
        with _MAKING, contextlib.suppress(KafkaException):  # what is wrong with the settings comes again
            made, handle = module.made(lambda: make(plugin))
            return made, handle, None if handle is None else module
    return make({}), None, None


def _lost(text: str) -> KafkaError:
    """Make an error of what the client has said: whatever that is, it goes on trying."""
    return KafkaError(KafkaError._TRANSPORT, text)


# -- with the kernel ------------------------------------------------------------------------------------


def _fail(code: int, text: str) -> NoReturn:
    raise KafkaException(KafkaError(code, text))


class _Batches:
    """Reads with the kernel. What is not of the partition lies in the consumer's own queue."""

    def __init__(self, consumer: Consumer, reader: Any, errors_of_links: Callable[[], int]) -> None:
        self.errors: list[KafkaError] = []
        self._consumer = consumer
        self._reader = reader
        self._errors_of_links = errors_of_links
        self._said = errors_of_links()
        self._served_at = time.monotonic()

    @property
    def leader_epoch(self) -> int:
        epoch: int = self._reader.leader_epoch
        return epoch

    def read(self, count: int, wait_ms: int) -> Sequence[Record]:
        records: Sequence[Record] = self._reader.read(count, wait_ms)
        self.errors = self._reader.errors
        if not records or time.monotonic() - self._served_at > _SERVE_S:
            self._serve()
        return records

    def _serve(self) -> None:
        """Let confluent_kafka serve its callbacks, and take the errors that concern no partition."""
        for message in self._consumer.consume(_SERVED, timeout=0):
            error = message.error()
            if error is None:
                raise RuntimeError(f"a record of {message.topic()} came where none is read")
            self.errors.append(error)
        said, self._said = self._said, self._errors_of_links()
        if said != self._said:
            self.errors.append(_lost("a broker was lost or not reached, or a topic is not there"))
        self._served_at = time.monotonic()

    def close(self) -> None:
        self._reader.close()


# -- without --------------------------------------------------------------------------------------------


class _Messages:
    """Reads with confluent_kafka alone."""

    def __init__(self, consumer: Consumer, lost: "deque[KafkaError]", *, dated: bool) -> None:
        self._lost = lost
        self.errors: list[KafkaError] = []
        self.leader_epoch = -1
        self._consumer = consumer
        self._dated = dated

    def read(self, count: int, wait_ms: int) -> Sequence[Record]:
        messages = self._consumer.consume(count, timeout=0)
        if not messages and wait_ms > 0:
            messages = self._consumer.consume(1, timeout=wait_ms / 1000)
        self.errors = [error for message in messages if (error := message.error()) is not None]
        if self.errors:
            messages = [message for message in messages if message.error() is None]
        if self._lost:
            self.errors.append(_lost(self._lost.pop().str()))
        if messages:
            epoch = messages[-1].leader_epoch()
            self.leader_epoch = -1 if epoch is None else epoch
        records = [record_of(message) for message in messages]
        return records if self._dated else [one._replace(timestamp_ms=one.offset) for one in records]

    def close(self) -> None:
        pass


class _Refusals:
    """Takes delivery reports."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []

    def note(self, error: KafkaError | None, message: Message) -> None:
        topic = message.topic()
        if error is not None and error.code() not in _PURGED and topic is not None:
            found = topic, error.code()
            if found not in self.found:
                self.found.append(found)


class _Calls:
    """Writes with confluent_kafka alone."""

    def __init__(self, producer: Producer, refusals: _Refusals) -> None:
        self._producer = producer
        self._refusals = refusals

    def write(self, topic: str, partition: int, records: list[OutputRecord], index: int) -> int:
        produce = self._producer.produce
        try:
            for key, value, timestamp_ms, headers in records[index:]:
                if headers is None:
                    # By position, as cimpl.pyi has them: keywords would cost as much as the rest of the call.
                    produce(topic, value, key, partition, None, None, timestamp_ms or 1)
                else:
                    produce(topic, value, key, partition, timestamp=timestamp_ms or 1, headers=list(headers))
                index += 1
        except BufferError:
            pass
        return index

    def wait(self, wait_ms: int) -> bool:
        del wait_ms  # what has no room waits for the producer's queue as a whole
        return True

    def wait_to_flush(self, wait_ms: int) -> bool:
        del wait_ms
        return True

    def refusals(self) -> list[tuple[str, int]]:
        found, self._refusals.found = self._refusals.found, []
        return found
