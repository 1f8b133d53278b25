"""The reader: from a server's log, or log files, to ``{source}.raw``.

It reads, writes and commits in turn on one thread: while Kafka is slow nothing is read, so that the source
waits and memory stays bounded.
"""

import random
import time
from typing import Final, Protocol

from millrace.avro.state import ReaderState, stored_state
from millrace.contract import Topics
from millrace.kafka.client import connect
from millrace.kafka.pipe import TransactionalProducer
from millrace.kafka.topics import ensure_topics
from millrace.mysql.errors import (
    DuplicateReplicaError,
    GapError,
    OtherLogError,
    RefusedError,
    RetriableError,
    SourceError,
)
from millrace.mysql.packets import EventPiece
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.service import Service, StopRequestedError
from services.reader.files import EndOfFiles, FileSource
from services.reader.live import LiveSource
from services.reader.metrics import ReaderMetrics
from services.reader.settings import ReaderSettings
from services.reader.writer import BadChecksumError, RawWriter

__all__ = ["run"]

_IDLE_WAIT_S: Final = 0.5
_OPEN_WAIT_S: Final = 0.05
"""How long to wait for more while a source's transaction is coming in."""

_FIRST_BACKOFF_S: Final = 0.5
_LAST_BACKOFF_S: Final = 30.0


class Source(Protocol):
    """Where events come from."""

    def open(self) -> None:
        """Go to where the writer's state says, or to the start."""

    def read(self, timeout_s: float) -> list[EventPiece]:
        """Return what has come within ``timeout_s``, or nothing."""

    def settle(self) -> None:
        """Acknowledge what was read and written, where the source waits for that."""

    def close(self) -> None:
        """Let go of connection or file."""


def run(service: Service[ReaderSettings]) -> None:
    """Carry events until asked to stop, or until all files have been read."""
    settings = service.settings
    topics = Topics(settings.source)
    kinds = {topics.raw: "raw", topics.catalog: "catalog", topics.state: "state"}
    infos = ensure_topics(connect(settings.kafka), settings.topics, kinds)
    metrics = ReaderMetrics(service.metrics)

    def beat() -> None:
        service.health.beat()
        if service.stop.is_set():
            raise StopRequestedError

    with TransactionalProducer(settings.kafka, settings.source, "reader", stop=service.stop) as producer:
        state = stored_state(ReaderState, producer.open(), topics.state)
        if state is not None:
            _say_where(service, state)
        writer = RawWriter(
            producer,
            topics.raw,
            infos[topics.raw].record_limit,
            metrics,
            state,
            retry_checksums=not settings.files,
        )
        source: Source = (
            FileSource(settings, writer, metrics, beat)
            if settings.files
            else LiveSource(settings, writer, producer, beat)
        )
        try:
            _Loop(service, source, writer, producer, metrics).run()
        except (RetriableError, RefusedError) as error:
            raise UserError(str(error), ExitCode.SOURCE) from error
        except OtherLogError as error:
            raise UserError(str(error), ExitCode.DATA) from error
        except GapError as error:
            raise UserError(
                f"{error}. Nothing behind that place was written; look at the log there with mysqlbinlog",
                ExitCode.DATA,
            ) from error


def _say_where(service: Service[ReaderSettings], state: ReaderState) -> None:
    """Say that the state, and not MILLRACE_START, tells where to start."""
    settings, log = service.settings, service.log
    if state.reset is not None:
        log.warning("the source was moved", to=state.reset, from_=f"{state.log_file}:{state.position}")
    elif "start" in settings.model_fields_set:
        log.info(
            "MILLRACE_START is not used",
            reason=f"the state of {settings.source} says where to resume: {state.log_file}:{state.position}",
            advice=f"'millrace source reset {settings.source} --to …' moves it",
        )


class _Loop:
    """Reads until it is told to stop; connects again when a link is lost."""

    def __init__(
        self,
        service: Service[ReaderSettings],
        source: Source,
        writer: RawWriter,
        producer: TransactionalProducer,
        metrics: ReaderMetrics,
    ) -> None:
        self._stop = service.stop
        self._health = service.health
        self._log = service.log
        self._source = source
        self._writer = writer
        self._producer = producer
        self._metrics = metrics
        self._has_read = False
        self._backoff_s = _FIRST_BACKOFF_S

    def run(self) -> None:
        """Carry events; raises what stops the reader for good."""
        while not self._stop.is_set():
            try:
                self._source.open()
                self._metrics.connects.inc()
                self._metrics.connected.set(1)
                self._health.set_ready()
                self._carry()
            except StopRequestedError:
                break
            except EndOfFiles:
                self._writer.commit()
                self._log.info("all files have been read")
                return
            except BadChecksumError as error:
                self._writer.commit()
                self._log.warning("asking for an event again", reason=str(error))
            except RetriableError as error:
                self._lost(error)
            except DuplicateReplicaError:
                # Usually it is our own successor, of which Kafka says more than the server can.
                self._writer.checkpoint()
                raise
            finally:
                self._metrics.connected.set(0)
                self._source.close()
        self._writer.commit()

    def _carry(self) -> None:
        while not self._stop.is_set():
            self._health.beat()
            pieces = self._source.read(0.0 if self._producer.pending else _IDLE_WAIT_S)
            if not pieces:
                self._writer.pause()
                if self._producer.pending:
                    pieces = self._source.read(_OPEN_WAIT_S)
            if pieces:
                self._writer.write(pieces)
            if self._writer.confirmed:
                self._has_read = True
                self._backoff_s = _FIRST_BACKOFF_S
        self._source.settle()

    def _lost(self, error: SourceError) -> None:
        """Wait before the next attempt; at the very start, when nothing ever worked, give up instead."""
        if not self._has_read:
            raise error
        # An open transaction would not last through the wait; and if another reader has thrown us out, we
        # must not do the same to it.
        self._writer.checkpoint()
        self._metrics.lost_links.inc()
        self._health.set_ready(False)
        wait_s = self._backoff_s * random.uniform(0.5, 1.0)  # noqa: S311 - to spread load, not to keep secrets
        self._log.warning("the source is lost for now", reason=str(error), again_in_s=round(wait_s, 1))
        self._backoff_s = min(self._backoff_s * 2, _LAST_BACKOFF_S)
        until = time.monotonic() + wait_s
        while time.monotonic() < until and not self._stop.wait(min(1.0, wait_s)):
            self._health.beat()
