"""The reader: from a server's log, or log files, to ``{source}.raw``.

It reads, writes and commits in turn on one thread: while Kafka is slow nothing is read, so that the source
waits and memory stays bounded.

Kafka transactions end where the source's do, once they are due, as long as those are below 64 MiB and 5 s;
else anywhere.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, Protocol

from millrace.avro.service_state import ReaderState
from millrace.contract import SourcePosition, Topics
from millrace.kafka.client import AdminClient, connect
from millrace.kafka.exactly_once import Committer, Started, committed_state, take_over
from millrace.kafka.metrics import CommitMetrics
from millrace.kafka.pause import in_its_place
from millrace.kafka.producer import TransactionalProducer
from millrace.mysql.errors import (
    DuplicateReplicaError,
    GapError,
    LogMismatchError,
    PurgedError,
    RefusedError,
    RetriableError,
    SourceError,
)
from millrace.mysql.packets import EventPiece
from millrace.reader.event_cutter import OtherBytesError
from millrace.reader.exclusion import RawExclusion
from millrace.reader.files import EndOfFiles, FileSource
from millrace.reader.live import LiveSource
from millrace.reader.metrics import ReaderMetrics
from millrace.reader.settings import ReaderSettings
from millrace.reader.stage import BadChecksumError, RawStage
from millrace.runtime.errors import StopRequestedError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.service import Service
from millrace.stage import Groups

_IDLE_WAIT_S: Final = 0.5
_OPEN_WAIT_S: Final = 0.05
"""How long to wait for more while a source's transaction is coming in."""

_FEW_EVENTS: Final = 100
_FEW_BYTES: Final = 256 * 1024
"""Less than this came in one read: the reader keeps up with the source, and commits at once."""

_CONFIRMED_BY_SILENCE_S: Final = 1.0
"""A server that has not refused a position by now waits there for its next event."""

_FIRST_BACKOFF_S: Final = 0.5
_LAST_BACKOFF_S: Final = 30.0


class Source(Protocol):
    """Where events come from."""

    def open(self) -> None:
        """Go to where the stage's state says, or to the start."""

    def read(self, timeout_s: float) -> list[EventPiece]:
        """Return what has come within ``timeout_s``, or nothing."""

    def settle(self) -> None:
        """Acknowledge what was read and written, where the source waits for that."""

    def close(self) -> None:
        """Let go of connection or file."""


def run(service: Service[ReaderSettings]) -> None:
    """Carry events until asked to stop, or until all files have been read."""
    settings = service.settings
    admin = connect(settings.kafka, service.stop)
    metrics = ReaderMetrics(service.metrics)
    in_its_place(service, admin, partial(_run, service, admin, metrics))


def _run(service: Service[ReaderSettings], admin: AdminClient, metrics: ReaderMetrics) -> None:
    settings = service.settings
    examine(service, admin, metrics)
    with (
        TransactionalProducer(settings.kafka, settings.source, "reader", stop=service.stop) as producer,
        ExitStack() as registered,
    ):
        started = take_over(settings, producer, admin, "reader", ReaderState, stop=service.stop)
        commits = CommitMetrics(service.metrics, "reader", producer)
        registered.callback(service.metrics.unregister, commits)
        stage = make_stage(settings, started, metrics)
        committer: Committer[ReaderState] = Committer(
            producer, started.guard, started.state, stop=service.stop, health=service.health
        )
        carry(service, stage, committer, metrics)


def examine(service: Service[ReaderSettings], admin: AdminClient, metrics: ReaderMetrics) -> None:
    """Look whether the source can be read, before anybody is fenced.

    Who has the wrong server or password must not fence a reader that works.
    """
    settings = service.settings
    before = committed_state(settings, admin, "reader", ReaderState)
    if before is not None:
        _say_where(service, before)
    stage = RawStage(Topics(settings.source).raw, 0, metrics, before, retry_checksums=not settings.files)
    with _source_errors():
        if settings.files:
            FileSource(settings, stage, metrics, _beat(service)).examine()
        else:
            LiveSource(settings, stage, lambda: None, _beat(service)).examine()


def make_stage(settings: ReaderSettings, started: Started[ReaderState], metrics: ReaderMetrics) -> RawStage:
    """Make the stage of a reader that has taken over."""
    raw = Topics(settings.source).raw
    limit = started.infos[raw].record_limit
    return RawStage(
        raw,
        limit,
        metrics,
        started.state,
        retry_checksums=not settings.files,
        exclusion=RawExclusion.of(settings.topics),
    )


def carry(
    service: Service[ReaderSettings],
    stage: RawStage,
    committer: Committer[ReaderState],
    metrics: ReaderMetrics,
    following: Callable[[Groups], None] = lambda _: None,
) -> None:
    """Carry events until asked to stop, or until all files have been read.

    ``following`` takes what was sent; and nothing, where nothing comes.
    """
    with _source_errors():
        _Loop(service, stage, committer, metrics, following).run()


def _beat(service: Service[ReaderSettings]) -> Callable[[], None]:
    def beat() -> None:
        service.health.beat()
        if service.stop.is_set():
            raise StopRequestedError

    return beat


@contextmanager
def _source_errors() -> Iterator[None]:
    """Yield errors of the source their exit codes."""
    try:
        yield
    except (RetriableError, RefusedError) as error:
        raise UserError(str(error), ExitCode.SOURCE) from error
    except LogMismatchError as error:
        raise UserError(str(error), ExitCode.DATA) from error
    except GapError as error:
        raise UserError(
            f"{error}. Nothing after that place was written; look at the log there with mysqlbinlog",
            ExitCode.DATA,
        ) from error


def _say_where(service: Service[ReaderSettings], state: ReaderState) -> None:
    """Say that the state, and not MILLRACE_START, tells where to start."""
    settings, log = service.settings, service.log
    if state.reset is not None:
        log.warning("the source was moved", to=state.reset, from_=str(state.place))
    elif "start" in settings.model_fields_set:
        log.info(
            "MILLRACE_START is not used",
            reason=f"the state of {settings.source} says where to resume: {state.place}",
            advice=f"'millrace source reset {settings.source} --to …' moves it",
        )


class _Loop:
    """Reads until it is told to stop; connects again when a link is lost."""

    def __init__(
        self,
        service: Service[ReaderSettings],
        stage: RawStage,
        committer: Committer[ReaderState],
        metrics: ReaderMetrics,
        following: Callable[[Groups], None],
    ) -> None:
        settings, beat = service.settings, _beat(service)
        self._source: Source = (
            FileSource(settings, stage, metrics, beat)
            if settings.files
            else LiveSource(settings, stage, self._commit, beat)
        )
        self._stop = service.stop
        self._health = service.health
        self._log = service.log
        self._stage = stage
        self._committer = committer
        self._metrics = metrics
        self._following = following
        self._has_read = False
        self._purged_at: SourcePosition | None = None
        self._opened = 0.0
        self._backoff_s = _FIRST_BACKOFF_S

    def run(self) -> None:
        """Carry events; raises what stops the reader for good."""
        while not self._stop.is_set():
            is_open = False
            try:
                self._source.open()
                is_open = True
                self._opened = time.monotonic()
                self._metrics.connects.inc()
                self._metrics.connected.set(1)
                self._health.set_ready()
                self._carry()
            except StopRequestedError:
                break
            except EndOfFiles:
                self._commit()
                self._log.info("all files have been read")
                return
            except PurgedError as error:
                # Connecting anew tells whether a file is missing, or RESET MASTER has begun another log.
                state = self._stage.state()
                if not is_open or state is None or state.place == self._purged_at:
                    raise
                self._purged_at = state.place
                self._commit()
                self._log.warning("looking at the server's log again", reason=str(error))
            except (BadChecksumError, OtherBytesError) as error:
                self._commit()
                self._log.warning("asking for an event again", reason=str(error))
            except RetriableError as error:
                self._lost(error)
            except DuplicateReplicaError:
                # Usually it is our own successor, of which Kafka says more than the server can.
                self._checkpoint()
                raise
            finally:
                self._metrics.connected.set(0)
                self._source.close()
        self._commit()

    def _carry(self) -> None:
        wait_s = 0.0
        while not self._stop.is_set():
            self._health.beat()
            pieces = self._source.read(wait_s)
            if pieces:
                self._take(pieces)
            wait_s = 0.0
            if len(pieces) < _FEW_EVENTS and sum(len(piece.data) for piece in pieces) < _FEW_BYTES:
                self._pause()
                self._source.settle()  # the server must not wait for what follows
                self._committer.wait_to_begin()
                wait_s = _OPEN_WAIT_S if self._committer.pending else _IDLE_WAIT_S
            if self._stage.confirmed:
                self._has_read = True
                self._backoff_s = _FIRST_BACKOFF_S
        self._source.settle()

    def _take(self, pieces: Sequence[EventPiece]) -> None:
        """Write events; commit where that is due and the source's transaction ends."""
        stage, committer = self._stage, self._committer
        for _ in stage.take(pieces, int(time.time() * 1000), due=committer.due):
            self._settle()
            if stage.confirmed and ((committer.due and not stage.inside) or committer.long):
                committer.commit(wait=False)

    def _pause(self) -> None:
        """Commit, as little or nothing has come for now, unless a source's transaction is still coming."""
        stage, committer = self._stage, self._committer
        if not stage.confirmed:
            if time.monotonic() - self._opened < _CONFIRMED_BY_SILENCE_S:
                return
            stage.confirm()
        self._settle()
        # Where nothing has been written yet: whoever starts at the end of the log and finds nothing for an
        # hour must not start at another end after it.
        if (committer.pending or committer.moved) and (not stage.inside or committer.long):
            committer.commit()
        elif not committer.pending:
            committer.idle()
            self._following({})

    def _settle(self) -> None:
        sent = self._committer.settle(self._stage.output, self._stage.state())
        if sent:
            self._following(sent)

    def _commit(self) -> None:
        """Commit what is written, wherever that ends."""
        self._settle()
        if self._committer.pending:
            self._committer.commit()

    def _checkpoint(self) -> None:
        """Commit, even if nothing was written: a reader that another has taken over from learns of it."""
        self._settle()
        self._committer.commit()

    def _lost(self, error: SourceError) -> None:
        """Wait before the next attempt; at the very start, when nothing ever worked, give up instead."""
        if not self._has_read:
            raise error
        # An open transaction would not last through the wait; and if another reader has thrown us out, we
        # must not do the same to it.
        self._checkpoint()
        self._metrics.lost_links.inc()
        self._health.set_ready(False)
        wait_s = self._backoff_s * random.uniform(0.5, 1.0)  # noqa: S311 - to spread load, not to keep secrets
        self._log.warning("the source is lost for now", reason=str(error), again_in_s=round(wait_s, 1))
        self._backoff_s = min(self._backoff_s * 2, _LAST_BACKOFF_S)
        until = time.monotonic() + wait_s
        while time.monotonic() < until and not self._stop.wait(min(1.0, wait_s)):
            self._health.beat()
            self._committer.sign()
