"""From the pieces of events to the records of ``{source}.raw``, with the state after them.

What is written is a function of the log alone: key, value and headers of a record do not depend on how the
events came in, where connections were lost or where a Kafka transaction ended. The state says how far the
records go, down to the chunk; what comes again after that point is left out.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from millrace import kernel
from millrace.avro.service_state import ReaderState
from millrace.binlog.checksum import CRC32_RESIDUE, checksum_matches
from millrace.binlog.header import FIRST_POSITION
from millrace.binlog.types import EventType
from millrace.contract import ABANDONED, GAP, HEADER_ARTIFICIAL, HEADER_MARKER, SOURCE_CHANGED, RawKey
from millrace.mysql.errors import GapError
from millrace.mysql.packets import HEAD_SIZE, EventPiece
from millrace.mysql.position import ALTERED, PositionTracker
from millrace.reader.event_cutter import BAD_CHECKSUM, AlreadyWritten, CutEvent, chunks_of
from millrace.reader.exclusion import EXCLUDED, LOOKED_AT, BlankEvent, RawExclusion
from millrace.reader.log_progress import LogProgress
from millrace.reader.metrics import ReaderMetrics
from millrace.reader.progress import FOLLOWED, WATCHED
from millrace.runtime.errors import UserError
from millrace.runtime.logging import get_logger
from millrace.stage import Headers, Output, OutputRecord

if TYPE_CHECKING:
    from millrace.kernel.events import RawTaker

_LOG = get_logger(__name__)

_FORMAT_DESCRIPTION: Final = int(EventType.FORMAT_DESCRIPTION_EVENT)
_PREVIOUS_GTIDS: Final = int(EventType.PREVIOUS_GTIDS_LOG_EVENT)
_GTID_LIST: Final = int(EventType.MARIADB_GTID_LIST_EVENT)
_INCIDENT: Final = int(EventType.INCIDENT_EVENT)
_HEARTBEATS: Final = frozenset(map(int, (EventType.HEARTBEAT_LOG_EVENT, EventType.HEARTBEAT_LOG_EVENT_V2)))
_NOTED: Final = WATCHED | {_PREVIOUS_GTIDS, _GTID_LIST}

_SPECIAL: Final = _HEARTBEATS | {_FORMAT_DESCRIPTION, int(EventType.ROTATE_EVENT)}
"""Types that may be in no file, or in another one after them; GTID_LIST, which may as well, is in _NOTED."""

_LEFT: Final = _SPECIAL | {
    int(EventType.START_EVENT_V3),
    _PREVIOUS_GTIDS,
    _GTID_LIST,
    _INCIDENT,
    int(EventType.GTID_TAGGED_LOG_EVENT),
}
"""Types that the kernel leaves to the stage."""

_HEADER: Final = struct.Struct("<IBIIIH")


class Tracker(Protocol):
    """Tracks where events start: a :class:`~millrace.mysql.position.PositionTracker`, or a file's offsets."""

    log_file: str
    position: int

    def place(self, type_code: int, event_size: int, next_position: int, flags: int, data: bytes) -> int:
        """Return an event's start offset in ``log_file``, or NOT_IN_FILE, or ALTERED; go to its end."""


class BadChecksumError(Exception):
    """An event's checksum does not match; it may have been damaged on its way: ask for it again."""

    def __init__(self, log_file: str, position: int) -> None:
        super().__init__(f"{log_file} at {position}: the checksum does not match")


class RawStage:
    """Makes the records of the raw topic of one source.

    ``record_limit`` is the largest value of a record; larger events are chunked. ``retry_checksums`` makes a
    bad checksum raise :class:`BadChecksumError` the first time; the second time, and else at once, the event
    is written with a header that says so. Events that ``exclusion`` covers are blanked.
    """

    def __init__(
        self,
        topic: str,
        record_limit: int,
        metrics: ReaderMetrics,
        state: ReaderState | None,
        *,
        retry_checksums: bool,
        exclusion: RawExclusion | None = None,
    ) -> None:
        self.output = Output()
        self._topic = topic
        self._record_limit = record_limit
        self._metrics = metrics
        self._retry_checksums = retry_checksums
        self._exclusion = exclusion
        # Of the batch at hand: what was written.
        self._events = self._bytes = 0
        self._suspect: tuple[str, int] | None = None
        self._log = LogProgress(state)
        self._kernel = _kernel(_LEFT if exclusion is None else _LEFT | LOOKED_AT)
        # The session: where its events stand, what comes again in it, and the event that comes in pieces.
        self._tracker: Tracker | None = None
        self._before_session = state
        self._already = AlreadyWritten()
        self._cut: CutEvent | None = None
        self._announcement: str | None = None
        self._gap = False
        self._next_left_out = ""
        self._confirmed = True
        self._head: tuple[bytes, bytes, int, Headers] | None = None
        """The altered head of the file, until our place is confirmed."""

    # -- where we stand -----------------------------------------------------------------------------

    def state(self) -> ReaderState | None:
        """Return the state after everything that was written so far; None before anything is known.

        A session counts once its source has shown that the place where it begins is a place in the log.
        """
        tracker = self._tracker
        if tracker is None or not self._confirmed or self._announcement is not None or not tracker.log_file:
            return self._before_session
        already, cut = self._already, self._cut
        if cut is not None and not cut.discard:
            return self._log.state(cut.log_file, cut.position, cut.written, cut.written_crc32)
        if tracker.log_file == already.log_file and tracker.position <= already.position:
            return self._log.state(already.log_file, already.position, already.chunks, already.crc32)
        return self._log.state(tracker.log_file, tracker.position, 0, 0)

    @property
    def confirmed(self) -> bool:
        """Whether the source has shown that the place where this session began is a place in its log."""
        return self._confirmed

    @property
    def inside(self) -> bool:
        """Whether a transaction of the source has begun and not ended."""
        return self._log.transaction.inside or self._cut is not None

    @property
    def checksums(self) -> bool:
        """Whether events end with a checksum."""
        return self._log.checksums

    @property
    def session_epoch(self) -> int:
        """Epoch of the events that come next."""
        return self._log.epoch + (1 if self._announcement is not None else 0)

    def begin_session(
        self,
        tracker: Tracker,
        *,
        server_uuid: str | None = None,
        server_uid: str | None = None,
        gtid_set: str | None = None,
        binlog_state: str | None = None,
        left_out: str | None = None,
        changed: str | None = None,
        gap: bool = False,
    ) -> None:
        """Continue with events of a new connection or file, whose positions ``tracker`` follows.

        They may begin before our position in its file: what is there already is left out. ``gtid_set``, where
        given, is what lies before them. ``left_out``, where given, are the GTIDs that the source leaves out
        wherever they stand. ``changed`` says in words why it is another log than before: a new epoch begins
        as soon as its first file is known. ``gap`` says that ``changed`` tells what is missing.
        """
        state = self.state()
        if not self._confirmed or self._announcement is not None:
            # The session before never began: what was said of it holds for no other.
            self._log.forget_session(state)
        self._before_session = state
        self._tracker = tracker
        self._cut = self._head = None
        self._already = AlreadyWritten()
        self._announcement, self._gap = changed, gap
        self._confirmed = False
        self._next_left_out = left_out or ""
        left_out = None if changed is not None else left_out
        self._log.begin_session(
            server_uuid, server_uid, gtid_set=gtid_set, binlog_state=binlog_state, left_out=left_out, gap=gap
        )
        if changed is None and state is not None:
            self._already = AlreadyWritten(state.log_file, state.position, state.chunk, state.chunk_crc32)

    def confirm(self) -> None:
        """Take note that the source knows our place: it gives us what follows, or waits for it."""
        self._confirmed = True
        if self._head is not None:
            self.output.add(self._topic, *self._head)
            self._head = None

    def announce(self, now_ms: int) -> None:
        """Begin the new epoch at once, where ``changed`` asked for one and no event will tell when."""
        if self._announcement is not None:
            self._announce(self._announcement, now_ms)

    # -- events -------------------------------------------------------------------------------------

    def take(self, pieces: Sequence[EventPiece], now_ms: int, *, due: bool) -> Iterator[None]:
        """Write events; yield where a Kafka transaction may end, at the end at the latest.

        ``now_ms`` is the present time, in milliseconds since 1970. With ``due`` it yields at the end of the
        first transaction of the source, too. Raises :class:`GapError` where bytes are missing,
        :class:`BadChecksumError` as the class says, and
        :class:`~millrace.reader.event_cutter.OtherBytesError`; the output and the state agree then as well.
        """
        pieces = list(pieces)
        index, count = 0, len(pieces)
        while index < count:
            after, ended = self._take_natively(pieces, index, now_ms, stop_at_end=due)
            if after == index:
                piece = pieces[index]
                whole = piece.first and piece.last
                ended = self._event(piece, now_ms) if whole else self._piece(piece, now_ms)
                after = index + 1
            index = after
            if (due and ended) or self.output.full:
                due = due and not ended
                yield
        assert self._tracker is not None
        self._metrics.wrote(self._events, self._bytes, self._log.last_ms, self._tracker.position)
        self._events = self._bytes = 0
        yield

    def _take_natively(
        self, pieces: list[EventPiece], index: int, now_ms: int, *, stop_at_end: bool
    ) -> tuple[int, bool]:
        """Let the kernel write whole events; give the index after them.

        Also tell whether the last one ends a transaction at which to stop.
        """
        taker, tracker, log = self._kernel, self._tracker, self._log
        if (
            taker is None
            or type(tracker) is not PositionTracker
            or self._cut is not None
            or not self._confirmed
        ):
            return index, False
        if tracker.log_file == self._already.log_file and tracker.position < self._already.position:
            return index, False
        records: list[OutputRecord] = []
        after = taker.take(
            pieces,
            index,
            tracker.position,
            tracker.zero_allowed,
            log.last_ms,
            now_ms,
            self._record_limit,
            log.checksums,
            RawKey(0, log.epoch, tracker.log_file, 0).encode()[1:-1],
            log.transaction.mode,
            log.transaction.open_gtid,
            stop_at_end,
            records,
        )
        if after > index:
            tracker.position = taker.position
            log.pass_over(taker)
            self.output.extend(self._topic, records, taker.size)
            self._count(after - index, taker.size)
        return after, stop_at_end and taker.ended

    def _count(self, events: int, size: int) -> None:
        self._events += events
        self._bytes += size

    def _event(self, piece: EventPiece, now_ms: int) -> bool:
        """Take an event that came whole; tell whether it ends a transaction of the source."""
        tracker, log, data = self._tracker, self._log, piece.data
        assert tracker is not None
        timestamp, type_code, server_id, size, next_position, flags = _HEADER.unpack_from(data)
        if size != piece.event_size:
            raise GapError(f"{tracker.log_file}: an event of {size} bytes came as {piece.event_size} bytes")
        log_file = tracker.log_file
        position = tracker.place(type_code, size, next_position, flags, data)
        if position >= 0 or type_code in _HEARTBEATS:
            self.confirm()
        if position < 0:
            self._not_in_file(position, type_code, data, now_ms)
            return False
        if log_file == self._already.log_file and position < self._already.position:
            if type_code == _FORMAT_DESCRIPTION:
                log.describe(data, log_file, known=True)
            return False
        if type_code == _FORMAT_DESCRIPTION:
            # A relay log has further ones, of the server that it was fetched from.
            log.describe(data, log_file, known=position > FIRST_POSITION)
        last_headers = []
        if log.checksums and zlib.crc32(data) != CRC32_RESIDUE and not checksum_matches(data):
            self._bad_checksum(log_file, position)
            last_headers = [BAD_CHECKSUM]
        excluded = self._covers(type_code, data, log_file, position, damaged=bool(last_headers))
        if excluded:
            last_headers = []
            data = BlankEvent(data, size, checksum=log.checksums).take(size)
        key = RawKey(server_id, log.epoch, log_file, position).encode()
        timestamp_ms = log.stamp(timestamp, now_ms)
        for chunk, headers in chunks_of(data, self._record_limit, self._already, last_headers):
            named = [*(headers or ()), EXCLUDED] if excluded else headers
            self.output.add(self._topic, key, chunk, timestamp_ms, named)
        self._count(1, size)
        self._passed(type_code, piece.data)
        return type_code in _NOTED and self._note(type_code, server_id, data)

    def _covers(
        self, type_code: int, data: bytes, log_file: str, position: int, *, damaged: bool = False
    ) -> bool:
        """Return whether an event is to be blanked; ``data`` is the event or its first bytes."""
        if self._exclusion is None or type_code not in LOOKED_AT:
            return False
        log, tracker = self._log, self._tracker
        assert tracker is not None
        try:
            return self._exclusion.covers(type_code, data, log.format, log.excluded_tables, damaged=damaged)
        except UserError:
            tracker.log_file, tracker.position = log_file, position
            raise

    def _passed(self, type_code: int, data: bytes) -> None:
        """Take note that all of an event is written; ``data`` is the event or its first bytes."""
        if self._exclusion is not None and type_code in LOOKED_AT:
            self._exclusion.passed(type_code, data, self._log.format, self._log.excluded_tables)

    def _note(self, type_code: int, server_id: int, data: bytes) -> bool:
        """Follow transactions and GTIDs; tell whether one has ended."""
        assert self._tracker is not None
        log_file = self._tracker.log_file
        if type_code in (_PREVIOUS_GTIDS, _GTID_LIST):
            self._log.previous_gtids(data, log_file)
            return False
        if type_code == _INCIDENT:
            _LOG.error("the server reports an incident: changes may be missing from its log", **self._where())
            self._metrics.incidents.inc()
        return self._log.follow(type_code, server_id, data, log_file)

    def _not_in_file(self, position: int, type_code: int, data: bytes, now_ms: int) -> None:
        """Act on an event that the dump made up, or altered."""
        tracker, log = self._tracker, self._log
        assert tracker is not None
        if self._announcement is not None and tracker.log_file:
            self._announce(self._announcement, now_ms)
        if position == ALTERED and type_code == _FORMAT_DESCRIPTION:
            known = log.knows(tracker.log_file)
            log.describe(data, tracker.log_file, known=known)
            if not known:
                # Nobody has seen this file's head: without it, its events could not be read.
                timestamp, _, server_id, *_ = _HEADER.unpack_from(data)
                key = RawKey(server_id, log.epoch, tracker.log_file, 4).encode()
                self._head = key, data, log.stamp(timestamp, now_ms), [(HEADER_ARTIFICIAL, b"1")]
                if self._confirmed:
                    self.confirm()

    def _announce(self, reason: str, now_ms: int) -> None:
        """Open a new epoch: another log follows."""
        tracker, log = self._tracker, self._log
        assert tracker is not None
        before, self._announcement = self._before_session, None
        # The server has taken our GTIDs, or it would have refused before it named a file.
        self.confirm()
        if before is not None and (before.open_gtid is not None or log.transaction.inside):
            # Where no event starts: chunks of a cut event have its position.
            position = before.position + (1 if before.chunk else 0)
            key = RawKey(0, before.epoch, before.log_file, position).encode()
            again = "is among what is missing" if self._gap else "follows again, whole"
            words = f"transaction {before.open_gtid or '(without GTID)'} was cut; it {again}"
            self._add(key, words.encode(), now_ms, [(HEADER_MARKER, ABANDONED)])
        log.begin_epoch(self._next_left_out, now_ms)
        key = RawKey(0, log.epoch, tracker.log_file, 0).encode()
        marker = GAP if self._gap else SOURCE_CHANGED
        self._add(key, reason.encode(), now_ms, [(HEADER_MARKER, marker)])
        self._metrics.source_changes.inc()
        if self._gap:
            self._metrics.gaps.inc()
            _LOG.error("changes are missing; what follows is in a new epoch", reason=reason, **self._where())
        else:
            _LOG.warning("another log follows, in a new epoch", reason=reason, **self._where())

    def _add(self, key: bytes, value: bytes, timestamp_ms: int, headers: Headers) -> None:
        self.output.add(self._topic, key, value, timestamp_ms, headers)

    def _bad_checksum(self, log_file: str, position: int) -> None:
        """Count a bad checksum; the first time on a live dump raise, so that the event is asked for again."""
        self._metrics.bad_checksums.inc()
        if self._retry_checksums and self._suspect != (log_file, position):
            self._suspect = log_file, position
            assert self._tracker is not None
            self._tracker.position = position
            self._tracker.log_file = log_file
            raise BadChecksumError(log_file, position)
        self._suspect = None
        _LOG.error("an event's checksum does not match; it is written as it is", **self._where())

    def _where(self) -> dict[str, object]:
        assert self._tracker is not None
        return {
            "log_file": self._tracker.log_file,
            "position": self._tracker.position,
            "epoch": self._log.epoch,
        }

    # -- events in pieces -----------------------------------------------------------------------------

    def _piece(self, piece: EventPiece, now_ms: int) -> bool:
        """Take a piece of an event that does not come whole; tell whether it ends a transaction."""
        if piece.first:
            self._begin_cut(piece, now_ms)
        cut = self._cut
        if cut is None:
            raise GapError("a piece of an event came without its beginning")
        for chunk, headers in cut.take(piece.data):
            self._add(cut.key, chunk, cut.timestamp_ms, headers)
        if not piece.last:
            return False
        if not cut.discard:
            self._end_cut(cut)
        self._cut = None
        if cut.discard:
            return False
        self._count(1, cut.size)
        self._passed(cut.type_code, cut.head)
        return cut.type_code in _NOTED and self._note(cut.type_code, cut.server_id, cut.head)

    def _begin_cut(self, piece: EventPiece, now_ms: int) -> None:
        tracker, log = self._tracker, self._log
        assert tracker is not None
        timestamp, type_code, server_id, size, next_position, flags = _HEADER.unpack_from(piece.data)
        if size != piece.event_size:
            raise GapError(f"{tracker.log_file}: an event of {size} bytes came as {piece.event_size} bytes")
        log_file = tracker.log_file
        position = tracker.place(type_code, size, next_position, flags, piece.data)
        self.confirm()
        discard = position < 0 or (log_file == self._already.log_file and position < self._already.position)
        blank = None
        if not discard and self._covers(type_code, piece.data, log_file, position):
            blank = BlankEvent(piece.data, size, checksum=log.checksums)
        self._cut = CutEvent(
            log_file,
            position,
            RawKey(server_id, log.epoch, log_file, max(position, 0)).encode(),
            type_code,
            server_id,
            piece.data[:HEAD_SIZE],
            log.last_ms if discard else log.stamp(timestamp, now_ms),
            size,
            self._record_limit,
            discard,
            blank,
            *((0, 0) if discard else self._already.take_chunks()),
        )

    def _end_cut(self, cut: CutEvent) -> None:
        """Write the last chunk, which alone can tell that the checksum of the whole is bad."""
        last_headers: list[tuple[str, bytes]] = []
        if self._log.checksums and cut.crc32 != CRC32_RESIDUE:
            # Before the last chunk is written, so that a second reading can continue with it.
            self._bad_checksum(cut.log_file, cut.position)
            last_headers = [BAD_CHECKSUM] if cut.blank is None else []
        for chunk, headers in cut.end(last_headers):
            self._add(cut.key, chunk, cut.timestamp_ms, headers)


def _kernel(left: frozenset[int]) -> "RawTaker | None":
    """Return what writes all events but those of the types ``left``; None where the kernel is not there."""
    if not kernel.has("events"):
        return None
    from millrace.kernel.events import RawTaker  # noqa: PLC0415 - only where it is built

    return RawTaker(FOLLOWED, left)
