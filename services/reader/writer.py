"""From the pieces of events to the records of ``{source}.raw``, with the state after them.

What is written is a function of the log alone: key, value and headers of a record do not depend on how the
events came in, where connections were lost or where a Kafka transaction ended. The state says how far the
records go, down to the chunk; what comes again after that point is left out.

Kafka transactions end where the source's do, once they are due, as long as those are below 64 MiB and 5 s;
else anywhere.
"""

import struct
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from millrace import kernel
from millrace.avro.state import LogIdentity, ReaderState
from millrace.binlog.checksum import checksum_matches
from millrace.binlog.errors import BinlogError
from millrace.binlog.events.control import FormatDescriptionEvent
from millrace.binlog.state import StreamState
from millrace.binlog.stream import decode_event
from millrace.binlog.types import ChecksumAlgorithm, EventType
from millrace.contract import (
    ABANDONED,
    GAP,
    HEADER_ARTIFICIAL,
    HEADER_CHECKSUM,
    HEADER_MARKER,
    SOURCE_CHANGED,
    RawKey,
)
from millrace.kafka.chunks import chunk_header, split
from millrace.kafka.pipe import TransactionalProducer
from millrace.mysql.errors import GapError
from millrace.mysql.packets import HEAD_SIZE, EventPiece
from millrace.mysql.position import ALTERED, PositionTracker
from millrace.runtime.logging import get_logger
from services.reader.gtids import GtidProgress, gtid_text
from services.reader.metrics import ReaderMetrics
from services.reader.progress import NOTES, WATCHED, TransactionProgress

if TYPE_CHECKING:
    from millrace.kernel.events import RawTaker

__all__ = ["BadChecksumError", "Placer", "RawWriter"]

_LOG = get_logger(__name__)

_FORMAT_DESCRIPTION: Final = int(EventType.FORMAT_DESCRIPTION_EVENT)
_PREVIOUS_GTIDS: Final = int(EventType.PREVIOUS_GTIDS_LOG_EVENT)
_GTID_LIST: Final = int(EventType.MARIADB_GTID_LIST_EVENT)
_INCIDENT: Final = int(EventType.INCIDENT_EVENT)
_BAD: Final = (HEADER_CHECKSUM, b"bad")
_HEARTBEATS: Final = frozenset(map(int, (EventType.HEARTBEAT_LOG_EVENT, EventType.HEARTBEAT_LOG_EVENT_V2)))
_NOTED: Final = WATCHED | {_PREVIOUS_GTIDS, _GTID_LIST}

_SPECIAL: Final = _HEARTBEATS | {_FORMAT_DESCRIPTION, int(EventType.ROTATE_EVENT)}
"""Types that may be in no file, or in another one behind them; GTID_LIST, which may as well, is in _NOTED."""

_HEADER: Final = struct.Struct("<IBIIIH")
_CRC_RESIDUE: Final = 0x2144DF1C
"""CRC-32 of any bytes followed by their own CRC-32."""
_CHECKSUM_LENGTH: Final = 4

_LONG_TRANSACTION_BYTES: Final = 64 * 1024 * 1024
_LONG_TRANSACTION_S: Final = 5.0

_CONFIRMED_BY_SILENCE_S: Final = 1.0
"""A server that has not refused a position by now waits there for its next event."""


class Placer(Protocol):
    """Says where events start: a :class:`~millrace.mysql.position.PositionTracker`, or a file's offsets."""

    log_file: str
    position: int

    def place(self, type_code: int, event_size: int, next_position: int, flags: int, data: bytes) -> int:
        """Return an event's start offset in ``log_file``, or NOT_IN_FILE, or ALTERED; go to its end."""


class BadChecksumError(Exception):
    """An event's checksum does not match; it may have been damaged on its way: ask for it again."""

    def __init__(self, log_file: str, position: int) -> None:
        super().__init__(f"{log_file} at {position}: the checksum does not match")


@dataclass(slots=True)
class _OpenEvent:
    """An event that comes in pieces; ``buffer`` holds what is not in a chunk yet."""

    log_file: str
    position: int
    key: bytes
    type_code: int
    server_id: int
    head: bytes
    timestamp_ms: int
    size: int
    count: int
    index: int
    written: int
    discard: bool
    buffer: bytearray
    crc: int = 0


class RawWriter:
    """Writes the raw topic of one source.

    ``record_limit`` is the largest value of a record; larger events are chunked. ``retry_checksums`` makes a
    bad checksum raise :class:`BadChecksumError` the first time; the second time, and else at once, the event
    is written with a header that says so.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        topic: str,
        record_limit: int,
        metrics: ReaderMetrics,
        state: ReaderState | None,
        *,
        retry_checksums: bool,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._record_limit = record_limit
        self._metrics = metrics
        self._retry_checksums = retry_checksums
        self._suspect: tuple[str, int] | None = None
        self._began = 0.0
        self._bytes = 0
        # Where we stand.
        self._placer: Placer | None = None
        self._before_session = state
        self._epoch = state.epoch if state else 0
        self._identity = state.identity if state else None
        self._boundary = state.boundary if state else 4
        self._last_ms = state.last_timestamp if state else 0
        self._identity_file = state.log_file if state else ""
        self._gtids = _gtids_of(state)
        self._left_out = self._next_left_out = state.left_out if state else ""
        self._progress = TransactionProgress(state.open_gtid if state else None)
        self._format = StreamState()
        self._crc = False
        self._open: _OpenEvent | None = None
        # What the kernel writes: events and bytes in this batch, and with which keys.
        self._kernel = _kernel()
        self._taken = 0, 0
        self._prefix_file: str | None = None
        self._prefix_epoch, self._prefix = 0, b""
        # What was written before this session and comes again in it.
        self._skip_file = ""
        self._skip_to = 0
        self._skip_chunks = 0
        self._announcement: str | None = None
        self._gap = False
        self._confirmed = True
        self._session_began = 0.0
        self._recorded = state is not None
        self._server: tuple[str | None, str | None] = (None, None)

    # -- where we stand -----------------------------------------------------------------------------

    @property
    def state(self) -> ReaderState | None:
        """Where the records written so far end; None before anything is known.

        A session counts once its source has shown that the place where it begins is a place in the log.
        """
        placer = self._placer
        if placer is None or not self._confirmed or self._announcement is not None or not placer.log_file:
            return self._before_session
        log_file, position, chunk = placer.log_file, placer.position, 0
        if self._open is not None and not self._open.discard:
            log_file, position, chunk = self._open.log_file, self._open.position, self._open.written
        elif log_file == self._skip_file and position <= self._skip_to:
            position, chunk = self._skip_to, self._skip_chunks
        if position < 1 << 32:
            self._boundary = position
        identity, open_gtid = self._identity, self._progress.open_gtid
        if identity is not None and self._identity_file != log_file:
            # The server is the same; what is particular to the file has not come yet.
            identity = replace(identity, created=0, previous_gtids=None)
        return ReaderState(
            epoch=self._epoch,
            log_file=log_file,
            position=position,
            chunk=chunk,
            boundary=self._boundary,
            identity=identity,
            gtid_set=self._gtids.text(),
            left_out=self._left_out,
            open_gtid=None if open_gtid is None else gtid_text(open_gtid),
            last_timestamp=self._last_ms,
        )

    @property
    def confirmed(self) -> bool:
        """Whether the source has shown that the place where this session began is a place in its log."""
        return self._confirmed

    @property
    def session_epoch(self) -> int:
        """Epoch of the events that come next."""
        return self._epoch + (1 if self._announcement is not None else 0)

    def begin_session(
        self,
        placer: Placer,
        *,
        server_uuid: str | None = None,
        server_uid: str | None = None,
        gtid_set: str | None = None,
        left_out: str | None = None,
        changed: str | None = None,
        gap: bool = False,
    ) -> None:
        """Go on with events of a new connection or file, which ``placer`` places.

        They may begin before our position in its file: what is there already is left out. ``gtid_set``, where
        given, is what lies before them. ``left_out``, where given, are the GTIDs that the source leaves out
        wherever they stand. ``changed`` says in words why it is another log than before: a new epoch begins
        as soon as its first file is known. ``gap`` says that ``changed`` tells what is missing.
        """
        state = self.state
        if not self._confirmed or self._announcement is not None:
            # The session before never began: what was said of it holds for no other.
            self._gtids = _gtids_of(state)
            self._left_out = state.left_out if state else ""
        self._before_session = state
        self._placer = placer
        self._open = None
        self._format = StreamState()
        self._crc = False
        self._server = (server_uuid, server_uid)
        self._skip_file, self._skip_to, self._skip_chunks = "", 0, 0
        self._announcement, self._gap = changed, gap
        self._confirmed = False
        self._session_began = self._began = time.monotonic()
        self._bytes = 0
        if gap:
            # What was read so far is not all that lies before; what is, must be said anew.
            self._gtids = GtidProgress()
        if gtid_set is not None:
            self._gtids.replace(gtid_set)
        self._next_left_out = left_out or ""
        if changed is None and left_out is not None:
            self._left_out = left_out
        if changed is None and state is not None:
            self._skip_file, self._skip_to, self._skip_chunks = state.log_file, state.position, state.chunk

    def announce(self) -> None:
        """Begin the new epoch at once, where ``changed`` asked for one and no event will tell when."""
        if self._announcement is not None:
            self._announce(self._announcement, int(time.time() * 1000))

    # -- events -------------------------------------------------------------------------------------

    def write(self, pieces: Sequence[EventPiece]) -> None:  # noqa: PLR0912, PLR0915 - hot
        """Add events to the Kafka transaction; commit where one is due and the source's transaction ends.

        Raises :class:`GapError` where bytes are missing, :class:`BadChecksumError` as the class says.
        """
        placer = self._placer
        assert placer is not None
        now_ms = int(time.time() * 1000)
        if not self._producer.pending:
            self._began, self._bytes = time.monotonic(), 0
        place, produce, topic, limit = placer.place, self._producer.produce, self._topic, self._record_limit
        unpack, crc32 = _HEADER.unpack_from, zlib.crc32
        prefix_file, prefix = None, b""
        events = size_sum = 0
        for data, first, last, event_size in self._left_by_kernel(pieces, now_ms):
            if not (first and last):
                self._piece(data, first, last, event_size, now_ms)
                continue
            timestamp, type_code, server_id, size, next_position, flags = unpack(data)
            if size != event_size:
                raise GapError(f"{placer.log_file}: an event of {size} bytes came as {event_size} bytes")
            log_file = placer.log_file
            position = place(type_code, size, next_position, flags, data)
            if position >= 0 or type_code in _HEARTBEATS:
                self._confirmed = True
            if position < self._skip_to:
                if position < 0:
                    self._not_in_file(position, type_code, data, now_ms)
                    continue
                if log_file == self._skip_file:
                    if type_code == _FORMAT_DESCRIPTION:
                        self._describe(data, known=True)
                    continue
            if log_file is not prefix_file:
                prefix_file, prefix = log_file, _key_prefix(self._epoch, log_file)
            timestamp_ms = timestamp * 1000
            # Not min and max: a call each per event.
            if timestamp_ms < self._last_ms:  # noqa: PLR1730
                timestamp_ms = self._last_ms
            if timestamp_ms > now_ms:  # noqa: PLR1730
                timestamp_ms = now_ms
            self._last_ms = timestamp_ms
            key = b"%d%b%d" % (server_id, prefix, position)
            if type_code == _FORMAT_DESCRIPTION:
                self._describe(data, known=False)
            if self._crc and crc32(data) != _CRC_RESIDUE and not checksum_matches(data):
                self._bad_checksum(log_file, position)
                self._chunks(key, data, timestamp_ms, [_BAD])
            elif size > limit:
                self._chunks(key, data, timestamp_ms, [])
            else:
                produce(topic, key, data, timestamp_ms)
            events += 1
            size_sum += size
            if type_code in _NOTED:
                self._note(type_code, server_id, data)
        events, size_sum = events + self._taken[0], size_sum + self._taken[1]
        self._taken = 0, 0
        self._bytes += size_sum
        self._metrics.wrote(events, size_sum, self._last_ms, placer.position)
        long = self._bytes >= _LONG_TRANSACTION_BYTES or time.monotonic() - self._began >= _LONG_TRANSACTION_S
        if long and self._confirmed:
            self.commit()

    def _left_by_kernel(self, pieces: Sequence[EventPiece], now_ms: int) -> Iterable[EventPiece]:
        """Give the pieces that the kernel leaves, in their turn; it writes those before and between."""
        taker = self._kernel
        if taker is None:
            yield from pieces
            return
        pieces = list(pieces)
        index, count = 0, len(pieces)
        while index < count:
            before, placer = index, self._placer
            if type(placer) is PositionTracker and self._open is None and not self._comes_again(placer):
                index = self._take(taker, placer, pieces, index, now_ms)
            if index == before:
                yield pieces[index]
                index += 1

    def _comes_again(self, placer: Placer) -> bool:
        """Tell whether what comes next was written before this session."""
        return placer.log_file == self._skip_file and placer.position < self._skip_to

    def _take(
        self,
        taker: "RawTaker",
        placer: PositionTracker,
        pieces: list[EventPiece],
        index: int,
        now_ms: int,
    ) -> int:
        """Let the kernel write whole events up to the end of a transaction; give the index behind them."""
        if placer.log_file is not self._prefix_file or self._epoch != self._prefix_epoch:
            self._prefix_file, self._prefix_epoch = placer.log_file, self._epoch
            self._prefix = _key_prefix(self._epoch, placer.log_file)
        records: list[tuple[bytes, bytes, int]] = []
        after = taker.take(
            pieces,
            index,
            placer.position,
            placer.zero_allowed,
            self._last_ms,
            now_ms,
            self._record_limit,
            self._crc,
            self._prefix,
            self._progress,
            records,
        )
        if after > index:
            placer.position, self._last_ms = taker.position, taker.last_ms
            self._confirmed = True
            self._producer.produce_batch(self._topic, records)
            self._taken = self._taken[0] + after - index, self._taken[1] + taker.size
            for gtid in taker.finished:
                self._gtids.add(gtid)
            if taker.ended and self._producer.due:
                self.commit()
        return after

    def pause(self) -> None:
        """Note that nothing more has come for now: commit, unless a source's transaction is still coming."""
        if not self._confirmed and time.monotonic() - self._session_began < _CONFIRMED_BY_SILENCE_S:
            return
        self._confirmed = True
        if not self._recorded and self.state is not None:
            # Nothing has been written yet. But whoever starts at the end of the log and finds nothing for an
            # hour must not start at another end after it.
            self._producer.begin()
        if self._producer.pending and (
            not self._progress.inside or time.monotonic() - self._began >= _LONG_TRANSACTION_S
        ):
            self.commit()

    def commit(self) -> None:
        """Commit what is written, wherever that ends."""
        if self._producer.pending:
            state = self.state
            self._producer.commit(None if state is None else state.to_bytes())
            self._recorded = state is not None
            self._metrics.committed()
            self._began, self._bytes = time.monotonic(), 0

    def checkpoint(self) -> None:
        """Commit, even if nothing was written: a reader that another has taken over from learns of it."""
        self._producer.begin()
        self.commit()

    def _note(self, type_code: int, server_id: int, data: bytes) -> None:
        """Follow transactions and GTIDs; commit at the end of a transaction if it is time to."""
        end = len(data) - _CHECKSUM_LENGTH if self._crc else len(data)
        if type_code in (_PREVIOUS_GTIDS, _GTID_LIST):
            self._previous_gtids(data)
            return
        if type_code == _INCIDENT:
            _LOG.error("the server reports an incident: changes may be missing from its log", **self._where())
            self._metrics.incidents.inc()
        progress = self._progress
        try:
            ended = progress.note(type_code, server_id, data, end)
        except (BinlogError, IndexError, struct.error) as error:
            _LOG.error(
                "an event's part in its transaction cannot be read", reason=str(error), **self._where()
            )
            return
        if progress.finished is not None:
            self._gtids.add(progress.finished)
            progress.finished = None
        if ended and self._producer.due:
            self.commit()

    def _not_in_file(self, position: int, type_code: int, data: bytes, now_ms: int) -> None:
        """Act on an event that the dump made up, or altered."""
        assert self._placer is not None
        if self._announcement is not None and self._placer.log_file:
            self._announce(self._announcement, now_ms)
        if position == ALTERED and type_code == _FORMAT_DESCRIPTION:
            known = self._identity is not None and self._identity_file == self._placer.log_file
            self._describe(data, known=known)
            if not known:
                # Nobody has seen this file's head: without it, its events could not be read.
                key = RawKey(_HEADER.unpack_from(data)[2], self._epoch, self._placer.log_file, 4).encode()
                self._last_ms = min(now_ms, max(self._last_ms, _HEADER.unpack_from(data)[0] * 1000))
                self._producer.produce(self._topic, key, data, self._last_ms, [(HEADER_ARTIFICIAL, b"1")])

    def _announce(self, reason: str, now_ms: int) -> None:
        """Open a new epoch: another log follows."""
        assert self._placer is not None
        before, self._announcement = self._before_session, None
        # The server has taken our GTIDs, or it would have refused before it named a file.
        self._confirmed = True
        if before is not None and (before.open_gtid is not None or self._progress.inside):
            # Where no event starts: chunks of a cut event have its position.
            position = before.position + (1 if before.chunk else 0)
            key = RawKey(0, before.epoch, before.log_file, position).encode()
            again = "is among what is missing" if self._gap else "follows again, whole"
            words = f"transaction {before.open_gtid or '(without GTID)'} was cut; it {again}"
            self._producer.produce(self._topic, key, words.encode(), now_ms, [(HEADER_MARKER, ABANDONED)])
        self._epoch += 1
        self._left_out = self._next_left_out
        self._identity = None
        self._boundary = 4
        self._progress = TransactionProgress()
        key = RawKey(0, self._epoch, self._placer.log_file, 0).encode()
        marker = GAP if self._gap else SOURCE_CHANGED
        self._producer.produce(self._topic, key, reason.encode(), now_ms, [(HEADER_MARKER, marker)])
        self._last_ms = now_ms
        self._metrics.source_changes.inc()
        if self._gap:
            self._metrics.gaps.inc()
            _LOG.error("changes are missing; what follows is in a new epoch", reason=reason, **self._where())
        else:
            _LOG.warning("another log follows, in a new epoch", reason=reason, **self._where())

    def _describe(self, data: bytes, *, known: bool) -> None:
        """Learn from a format description whether events have checksums; note whose file it is."""
        try:
            decoded = decode_event(data, self._format, verify=False)
        except BinlogError as error:
            # Its bytes go on as they are: what they mean is for the decoder to find out.
            _LOG.error("the format description cannot be read", reason=str(error), **self._where())
            self._crc = False
            return
        description = decoded.event
        assert self._format.format is not None
        self._crc = self._format.format.checksum is ChecksumAlgorithm.CRC32
        if known or not isinstance(description, FormatDescriptionEvent):
            return
        assert self._placer is not None
        self._boundary = 4
        self._identity_file = self._placer.log_file
        self._identity = LogIdentity(
            server_id=decoded.header.server_id,
            server_version=description.server_version,
            created=decoded.header.timestamp,
            server_uuid=self._server[0],
            server_uid=self._server[1],
        )

    def _previous_gtids(self, data: bytes) -> None:
        """Take up the GTIDs that a file says lie before it."""
        try:
            text = self._gtids.previous(decode_event(data, self._format, verify=False).event)
        except BinlogError as error:
            _LOG.error("the GTIDs before this file cannot be read", reason=str(error), **self._where())
            return
        if self._identity is not None:
            self._identity = replace(self._identity, previous_gtids=text)

    def _bad_checksum(self, log_file: str, position: int) -> None:
        """Count a bad checksum; the first time on a live dump raise, so that the event is asked for again."""
        self._metrics.bad_checksums.inc()
        if self._retry_checksums and self._suspect != (log_file, position):
            self._suspect = log_file, position
            assert self._placer is not None
            self._placer.position = position
            self._placer.log_file = log_file
            raise BadChecksumError(log_file, position)
        self._suspect = None
        _LOG.error("an event's checksum does not match; it is written as it is", **self._where())

    def _where(self) -> dict[str, object]:
        assert self._placer is not None
        return {"log_file": self._placer.log_file, "position": self._placer.position, "epoch": self._epoch}

    # -- large events -------------------------------------------------------------------------------

    def _chunks(
        self, key: bytes, data: bytes, timestamp_ms: int, last_headers: list[tuple[str, bytes]]
    ) -> None:
        """Write an event that came whole, in chunks if need be; the last one gets ``last_headers`` too."""
        skip, self._skip_chunks = self._skip_chunks, 0
        chunks = list(split(data, self._record_limit))
        for index, (header, chunk) in enumerate(chunks[skip:], skip):
            headers = [] if header is None else [header]
            if index == len(chunks) - 1:
                headers += last_headers
            self._producer.produce(self._topic, key, chunk, timestamp_ms, headers or None)

    def _piece(self, data: bytes, first: bool, last: bool, event_size: int, now_ms: int) -> None:
        """Take a piece of an event that does not come whole."""
        if first:
            self._open_event(data, event_size, now_ms)
        open_event = self._open
        if open_event is None:
            raise GapError("a piece of an event came without its beginning")
        open_event.crc = zlib.crc32(data, open_event.crc)
        if not open_event.discard:
            open_event.buffer += data
            while len(open_event.buffer) > self._record_limit:
                self._chunk(open_event, self._record_limit, [])
            if time.monotonic() - self._began >= _LONG_TRANSACTION_S or (
                self._bytes >= _LONG_TRANSACTION_BYTES and not last
            ):
                self.commit()
                self._began = time.monotonic()
        if last:
            self._close_event(open_event)

    def _open_event(self, data: bytes, event_size: int, now_ms: int) -> None:
        assert self._placer is not None
        timestamp, type_code, server_id, size, next_position, flags = _HEADER.unpack_from(data)
        if size != event_size:
            raise GapError(f"{self._placer.log_file}: an event of {size} bytes came as {event_size} bytes")
        log_file = self._placer.log_file
        position = self._placer.place(type_code, size, next_position, flags, data)
        self._confirmed = True
        discard = position < 0 or (log_file == self._skip_file and position < self._skip_to)
        skip, written = 0, 0
        if not discard:
            skip, self._skip_chunks = self._skip_chunks, 0
            written = skip
            self._last_ms = min(now_ms, max(self._last_ms, timestamp * 1000))
        self._open = _OpenEvent(
            log_file,
            position,
            RawKey(server_id, self._epoch, log_file, max(position, 0)).encode(),
            type_code,
            server_id,
            data[:HEAD_SIZE],
            self._last_ms,
            size,
            -(-size // self._record_limit),
            0,
            written,
            discard,
            bytearray(),
        )

    def _chunk(self, open_event: _OpenEvent, size: int, headers: list[tuple[str, bytes]]) -> None:
        """Write the next chunk, unless an earlier session did."""
        chunk = bytes(open_event.buffer[:size])
        del open_event.buffer[:size]
        if open_event.index >= open_event.written:
            if open_event.count > 1:
                headers = [chunk_header(open_event.index, open_event.count), *headers]
            self._producer.produce(
                self._topic, open_event.key, chunk, open_event.timestamp_ms, headers or None
            )
            self._bytes += len(chunk)
            open_event.written = open_event.index + 1
        open_event.index += 1

    def _close_event(self, open_event: _OpenEvent) -> None:
        """Write the last chunk, which alone can tell that the checksum of the whole is bad."""
        if not open_event.discard:
            headers: list[tuple[str, bytes]] = []
            if self._crc and open_event.crc != _CRC_RESIDUE:
                # Before the last chunk is written, so that a second reading can go on with it.
                self._bad_checksum(open_event.log_file, open_event.position)
                headers = [_BAD]
            self._chunk(open_event, len(open_event.buffer), headers)
            self._metrics.wrote(1, open_event.size, self._last_ms, open_event.position + open_event.size)
        self._open = None
        if not open_event.discard and open_event.type_code in _NOTED:
            self._note(open_event.type_code, open_event.server_id, open_event.head)


def _gtids_of(state: ReaderState | None) -> GtidProgress:
    """Give the GTIDs of a state, to which more may be added."""
    gtids = GtidProgress(state.gtid_set if state else "")
    if state and state.identity and state.identity.previous_gtids is not None:
        # A set may be empty and known.
        gtids.known = True
    return gtids


def _kernel() -> "RawTaker | None":
    """Give what writes ordinary events; None where the kernel is not there."""
    if not kernel.has("events"):
        return None
    from millrace.kernel.events import RawTaker  # noqa: PLC0415 - only where it is built

    left = _NOTED | _SPECIAL
    return RawTaker(bytes(NOTES.get(code, code in left) for code in range(256)))


def _key_prefix(epoch: int, log_file: str) -> bytes:
    """Return what stands between the numbers of a raw key."""
    return RawKey(0, epoch, log_file, 0).encode()[1:-1]
