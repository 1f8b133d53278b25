"""Pauses a source: its services end, and wait at their next start until it is resumed.

The record ``pause`` in ``{source}.state`` says so. It is written by a process that takes over from all
services of the source, in a Kafka transaction that leaves their states as they are.
"""

import threading
from typing import Final

from millrace.contract import RUN, SERVICES, Topics
from millrace.kafka.client import AdminClient
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.state import last_records, state_key
from millrace.kafka.topics import topic_ids
from millrace.runtime.errors import StopRequestedError
from millrace.runtime.health import Health
from millrace.runtime.logging import get_logger
from millrace.runtime.settings import ServiceSettings

_LOG = get_logger(__name__)
_KEY: Final = b"pause"
_LOOK_S: Final = 5.0


def pause_source(settings: ServiceSettings) -> None:
    """Take over from all services of a source, so that they end, and have them wait when they start again.

    So does a snapshot that is being taken.
    """
    _write(settings, b"paused")
    with TransactionalProducer(settings.kafka, settings.source, "snapshot") as producer:
        (state,) = producer.open()
        if state is not None:
            producer.commit(state.value)


def resume_source(settings: ServiceSettings) -> None:
    """Let the services of a source continue."""
    _write(settings, None)


def _write(settings: ServiceSettings, value: bytes | None) -> None:
    with TransactionalProducer(settings.kafka, settings.source, RUN) as producer:
        states = [None if stored is None else stored.value for stored in producer.open()]
        first, *others = zip(map(state_key, SERVICES), states, strict=True)
        producer.commit(first[1], others=[*others, (_KEY, value)])


def paused_since(settings: ServiceSettings, admin: AdminClient) -> int | None:
    """Say since when a source is paused, in milliseconds since 1970; None where it is not."""
    topic = Topics(settings.source).state
    if topic not in topic_ids(admin, [topic]):
        return None
    found = last_records(settings.kafka, {topic: 1}, lambda record: record.key == _KEY, undecided=False)
    record = found.get((topic, 0))
    return None if record is None or record.value is None else record.timestamp_ms


def wait_while_paused(
    settings: ServiceSettings, admin: AdminClient, health: Health, stop: threading.Event
) -> None:
    """Wait until a source is not paused; raises :class:`StopRequestedError` where the process is to stop."""
    told = False
    while paused_since(settings, admin) is not None:
        if not told:
            _LOG.warning("the source is paused: 'millrace resume' resumes it")
            told = True
        health.beat()
        if stop.wait(_LOOK_S):
            raise StopRequestedError
