"""The reader's state, made of what ``{source}.raw`` ends with.

The events of the last log file are taken a second time, by what took them the first time. What lies before
that file is known by its head, or else by the end of the file before it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from prometheus_client import CollectorRegistry

from millrace.avro.service_state import ReaderState, Rebuilt
from millrace.binlog.header import FIRST_POSITION
from millrace.contract import HEADER_ARTIFICIAL, HEADER_CHUNK, HEADER_MARKER, RawKey, Topics
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.search import first_reaching, last_before, records_between
from millrace.kafka.state import newest_offset, oldest_offset
from millrace.mysql.packets import EventPiece
from millrace.reader.exclusion import RawExclusion
from millrace.reader.metrics import ReaderMetrics
from millrace.reader.stage import RawStage
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import ServiceSettings
from millrace.stage import Record


class Settings(ServiceSettings):
    """Where the topics of a reader are."""

    captures = True


_RECORD_LIMIT = 1024 * 1024
"""Larger events are let go of in pieces of this size."""


def rebuild(
    settings: ServiceSettings, producer: TransactionalProducer, say: Callable[[str], None]
) -> Rebuilt[ReaderState]:
    """Make the state after the last whole event of the raw topic.

    Names of the server (``server_uuid``) are in no event, so that the state lacks them.
    """
    del producer, say
    topic = Topics(settings.source).raw
    try:
        state = _Rebuild(settings, topic).state_before(newest_offset(settings.kafka, topic))
    except ValueError as error:
        raise UserError(f"a record of {topic} is not one of the reader's: {error}", ExitCode.DATA) from error
    if state is None:
        raise UserError(
            f"{topic} holds no records, so the reader's position is unknown. 'millrace source reset' "
            "sets one; a reader that never ran needs none",
            ExitCode.DATA,
        )
    remarks = []
    if not state.gtid_set:
        remarks.append("no GTIDs are known: it can be resumed on the server that was read, and on no other")
    return Rebuilt(state, remarks)


class _Rebuild:
    def __init__(self, settings: ServiceSettings, topic: str) -> None:
        self._settings = settings.kafka
        self._exclusion = RawExclusion.of(settings.topics)
        self._topic = topic
        self._first = oldest_offset(self._settings, topic)

    def state_before(self, end: int) -> ReaderState | None:
        """Return the state after the records before ``end``."""
        key = self._last_key(end)
        if key is None:
            return None
        epoch_start = self._first_of((key.epoch, -1, -1), end)
        file_start = self._first_of((*key.order[:2], -1), end)
        before_epoch = self.state_before(epoch_start)
        before = before_epoch
        if file_start > epoch_start and not self._has_head(file_start, end):
            before = self.state_before(file_start)
        return _replayed(
            ReaderState(
                key.epoch,
                key.log_file,
                FIRST_POSITION,
                gtid_set=before.gtid_set if before else "",
                binlog_state=before.binlog_state if before else None,
                left_out=_all_of(before_epoch),
            ),
            records_between(self._settings, self._topic, file_start, end),
            self._exclusion,
        )

    def _last_key(self, end: int) -> RawKey | None:
        record = last_before(self._settings, self._topic, end)
        return None if record is None or record.key is None else RawKey.parse(record.key)

    def _first_of(self, order: tuple[int, int, int], end: int) -> int:
        return first_reaching(
            self._settings,
            self._topic,
            range(self._first, end),
            lambda record: RawKey.parse(record.key or b"").order >= order,
        )

    def _has_head(self, start: int, end: int) -> bool:
        """Return whether a file's records begin with its own head, which says what lies before it."""
        record = next(records_between(self._settings, self._topic, start, end), None)
        headers = dict((record.headers if record else None) or ())
        return HEADER_ARTIFICIAL not in headers and HEADER_MARKER not in headers


def _all_of(state: ReaderState | None) -> str:
    """Return the GTIDs of all that was read, as a later epoch leaves them out."""
    if state is None:
        return ""
    return state.gtid_set if state.binlog_state is None else state.binlog_state


class _KeyTracker:
    """Places events where their keys say."""

    def __init__(self, log_file: str) -> None:
        self.log_file = log_file
        self.position = FIRST_POSITION

    def place(self, type_code: int, event_size: int, next_position: int, flags: int, data: bytes) -> int:
        """Return the offset of the event that comes next."""
        del type_code, next_position, flags, data
        start = self.position
        self.position = start + event_size
        return start


def _replayed(state: ReaderState, records: Iterator[Record], exclusion: RawExclusion | None) -> ReaderState:
    """Take the records of a file again; an event whose last chunk is missing counts as not written."""
    metrics = ReaderMetrics(CollectorRegistry())
    stage = RawStage("", _RECORD_LIMIT, metrics, state, retry_checksums=False, exclusion=exclusion)
    tracker = _KeyTracker(state.log_file)
    stage.begin_session(tracker)
    stage.confirm()
    before: ReaderState | None = None
    """The state before the event that comes in chunks."""
    last_ms = state.last_timestamp
    """Of the last whole event: an earlier one may have raised it."""
    for record, piece in _pieces(records):
        if piece.first:
            before = None if piece.last else stage.state()
            tracker.position = RawKey.parse(record.key or b"").position
        for _ in stage.take([piece], record.timestamp_ms, due=False):
            stage.output.clear()
        if piece.last:
            before, last_ms = None, max(last_ms, record.timestamp_ms)
    return replace(before or stage.state() or state, chunk=0, chunk_crc32=0, last_timestamp=last_ms)


def _pieces(records: Iterator[Record]) -> Iterator[tuple[Record, EventPiece]]:
    """Yield the events of raw records, those in chunks in pieces."""
    expected, size = 0, 0
    for record in records:
        headers = dict(record.headers or ())
        value = record.value or b""
        if HEADER_MARKER in headers:
            continue
        if HEADER_CHUNK not in headers:
            expected = 0
            yield record, EventPiece(value, True, True, len(value))
            continue
        index, count = map(int, headers[HEADER_CHUNK].split(b"/"))
        if index == 0:
            expected, size = 0, int.from_bytes(value[9:13], "little")
        if index == expected:
            expected += 1
            yield record, EventPiece(value, index == 0, index + 1 == count, size)
