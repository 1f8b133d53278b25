"""Configuration of Kafka clients from our settings, and the first contact with the cluster."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient

from millrace.kafka.errors import BrokerError, answer_of
from millrace.runtime.errors import StopRequestedError
from millrace.runtime.settings import KafkaSettings

__all__ = [
    "CONNECT_S",
    "KAFKA_LOG",
    "TRANSACTION_TIMEOUT_S",
    "AdminClient",
    "Consumer",
    "Message",
    "Producer",
    "admin_client",
    "client_config",
    "connect",
    "consumer_config",
    "producer_config",
]

KAFKA_LOG = logging.getLogger("millrace.kafka.librdkafka")
"""Where librdkafka's own messages go; give it as ``logger`` to every client."""


def _retries_are_debug(record: logging.LogRecord) -> bool:
    """Log as DEBUG what librdkafka tries again by itself; who waits for it says when that takes too long."""
    if record.getMessage().endswith(": retrying"):
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return KAFKA_LOG.isEnabledFor(record.levelno)


KAFKA_LOG.addFilter(_retries_are_debug)

TRANSACTION_TIMEOUT_S: Final = 30.0
"""How long a transaction may be open before its coordinator ends it."""

CONNECT_S: Final = 2.0
"""How long to wait for a first connection where what needs it says itself that there is none."""

_POLL_S = 0.2
_END_MS: Final = 10


@contextmanager
def _one_error() -> Iterator[None]:
    """Raise the client's fatal error where it called back with that error set, which is a SystemError."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


class Producer(confluent_kafka.Producer):
    """The client's producer, whose calls that serve callbacks raise a KafkaException and nothing else."""

    def poll(self, timeout: float = -1) -> int:
        """Serve callbacks, for ``timeout`` seconds at most; negative: until there is one."""
        with _one_error():
            return super().poll(timeout)

    def flush(self, timeout: float = -1) -> int:
        """Wait for deliveries; the number of those that are still to come."""
        with _one_error():
            return super().flush(timeout)

    def commit_transaction(self, timeout: float = -1) -> None:
        """Flush, and commit the open transaction."""
        with _one_error():
            super().commit_transaction(timeout)

    def abort_transaction(self, timeout: float = -1) -> None:
        """Abort the open transaction."""
        with _one_error():
            super().abort_transaction(timeout)


def client_config(settings: KafkaSettings) -> dict[str, Any]:
    """Return the configuration that all clients share: brokers, TLS, SASL, reconnects.

    A new client waits for ``reconnect.backoff.ms`` as well, between the connection by which it learns of the
    brokers and the next one. Each failure doubles it.
    """
    config: dict[str, Any] = {
        "bootstrap.servers": settings.bootstrap_servers,
        "client.id": "millrace",
        "security.protocol": settings.security_protocol,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 2000,
        "socket.keepalive.enable": True,
        "log.connection.close": False,
    }
    optional = {
        "sasl.mechanism": settings.sasl_mechanism,
        "sasl.username": settings.sasl_username,
        "sasl.password": settings.sasl_password and settings.sasl_password.get_secret_value(),
        "ssl.ca.location": settings.ssl_ca_location and str(settings.ssl_ca_location),
        "ssl.certificate.location": settings.ssl_certificate_location
        and str(settings.ssl_certificate_location),
        "ssl.key.location": settings.ssl_key_location and str(settings.ssl_key_location),
        "ssl.key.password": settings.ssl_key_password and settings.ssl_key_password.get_secret_value(),
    }
    config.update({name: value for name, value in optional.items() if value is not None})
    return config


def consumer_config(
    settings: KafkaSettings, group: str, *, isolation: str = "read_committed", follow: bool = True
) -> dict[str, Any]:
    """Return the configuration of a consumer that is assigned a partition and keeps its offsets itself.

    Kafka's own checksum of each batch is looked at: bytes that a broker's disk or the network has changed are
    an error. ``queued.max.messages.kbytes`` bounds what is read ahead; an empty queue is filled again within
    ``fetch.queue.backoff.ms``. At the end of a partition a broker holds a request for ``fetch.wait.max.ms``,
    and the client learns only then that it is the end: briefly for who does not ``follow`` what comes later.
    """
    return client_config(settings) | {
        "group.id": group,
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "fetch.wait.max.ms": 500 if follow else _END_MS,
        "fetch.queue.backoff.ms": 5,
        "fetch.error.backoff.ms": 50,
        "queued.max.messages.kbytes": 16 * 1024,
        "fetch.message.max.bytes": 1024 * 1024,
    }


def producer_config(settings: KafkaSettings, transactional_id: str) -> dict[str, Any]:
    """Return the configuration of a transactional producer.

    The end of a transaction sends what waits, so that ``linger.ms`` delays nothing; it makes batches large
    while transactions are long, and is longer than brokers take to answer, since librdkafka polls without a
    pause while what has lingered waits for an answer. Batches are bounded by bytes alone, which
    :class:`~millrace.kafka.messages.RecordWriter` counts. A batch of several records stays below what every
    topic of ours takes, even if nothing in it can be compressed; ``message.max.bytes`` leaves it to the topic
    to refuse a single large one. The leaders of topics that it has not written yet are looked up together,
    ``topic.metadata.refresh.fast.interval.ms`` after the first of them.
    """
    compression: dict[str, Any] = {"compression.type": settings.compression}
    if settings.compression == "zstd":
        compression["compression.level"] = 1
    return (
        client_config(settings)
        | compression
        | {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": round(TRANSACTION_TIMEOUT_S * 1000),
            "delivery.timeout.ms": 25_000,
            "acks": "all",
            "linger.ms": 1000,
            "batch.size": 1_000_000,
            "batch.num.messages": 1_000_000,
            "message.max.bytes": 64 * 1024 * 1024,
            "queue.buffering.max.messages": 200_000,
            "topic.metadata.refresh.fast.interval.ms": 10,
            "queue.buffering.max.kbytes": 64 * 1024,
        }
    )


def admin_client(settings: KafkaSettings) -> AdminClient:
    """Make a client that asks, and let it connect.

    What needs the leaders of partitions is asked for again only after 3 s where no broker was connected yet.
    """
    admin = AdminClient(client_config(settings), logger=KAFKA_LOG)
    with suppress(KafkaException):  # what is asked for then says why
        answer_of(admin.describe_cluster(request_timeout=CONNECT_S), CONNECT_S)
    return admin


def connect(settings: KafkaSettings, stop: threading.Event | None = None) -> AdminClient:
    """Reach a broker within the time that the settings give.

    Raises :class:`BrokerError` in words if there is none, and :class:`StopRequestedError` soon after ``stop``
    is set.
    """
    reasons: list[str] = []

    def note(error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            reasons.append(error.str())

    try:
        admin = AdminClient(client_config(settings) | {"error_cb": note}, logger=_quiet())
    except KafkaException as error:
        raise BrokerError(f"the settings for Kafka cannot be used: {error.args[0].str()}") from error
    deadline = time.monotonic() + settings.connect_timeout_s
    while True:
        if stop is not None and stop.is_set():
            raise StopRequestedError
        admin.poll(0)
        try:
            # The brokers alone: a cluster may have any number of topics.
            within_s = min(_POLL_S * 10, settings.connect_timeout_s)
            answer_of(admin.describe_cluster(request_timeout=within_s), within_s + _POLL_S)
        except KafkaException as error:
            if time.monotonic() < deadline:
                admin.poll(_POLL_S)
                continue
            admin.poll(0)
            reason = reasons[-1] if reasons else error.args[0].str()
            raise BrokerError(
                f"Kafka at {settings.bootstrap_servers} cannot be reached within "
                f"{settings.connect_timeout_s:g} s: {reason}; check that it runs and that "
                "MILLRACE_KAFKA_BOOTSTRAP_SERVERS and _SECURITY_PROTOCOL are right"
            ) from error
        else:
            return admin


def _quiet() -> logging.Logger:
    """Return a logger that keeps nothing below CRITICAL: failed attempts to connect end up in one error."""
    logger = logging.getLogger("millrace.kafka.connect")
    logger.setLevel(logging.CRITICAL)
    return logger
