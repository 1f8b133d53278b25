"""How far a log has been carried: its epoch and identity, its GTIDs, the transaction at hand, its format."""

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from millrace.avro.service_state import LogIdentity, ReaderState
from millrace.binlog.checksum import CHECKSUM_LENGTH
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events.control import FormatDescriptionEvent
from millrace.binlog.header import FIRST_POSITION
from millrace.binlog.state import LogFormat, StreamState
from millrace.reader.gtids import GtidProgress, gtid_text
from millrace.reader.progress import TransactionProgress
from millrace.runtime.logging import get_logger

if TYPE_CHECKING:
    from millrace.kernel.events import RawTaker

_LOG = get_logger(__name__)
_LAST_POSITION: Final = 0xFFFFFFFF


class LogProgress:
    """What the state says of a log besides the place in it, and what tells how its events are to be taken."""

    def __init__(self, state: ReaderState | None) -> None:
        """Start where a state says."""
        self.epoch = state.epoch if state else 0
        self.identity = state.identity if state else None
        self.last_ms = state.last_timestamp if state else 0
        """Timestamp of the last record, milliseconds since 1970.

        That of a later record is smaller only where our clock goes back.
        """
        self.left_out = state.left_out if state else ""
        self.transaction = TransactionProgress(state.open_gtid if state else None)
        self.gtids = _gtids_of(state)
        self.excluded_tables = set(state.excluded_tables if state else ())
        """Ids of the tables whose rows are left out, in the statement at hand."""
        self.checksums = False
        """Whether events end with a CRC32, as the format description at hand says."""
        self._boundary = state.boundary if state else FIRST_POSITION
        self._identity_file = state.log_file if state else ""
        self._format = StreamState()
        self._server: tuple[str | None, str | None] = (None, None)

    def begin_session(
        self,
        server_uuid: str | None,
        server_uid: str | None,
        *,
        gtid_set: str | None,
        binlog_state: str | None,
        left_out: str | None,
        gap: bool,
    ) -> None:
        """Continue with a new connection or file, which begins with its format description.

        ``gtid_set``, and of MariaDB ``binlog_state``, is what lies before it, ``left_out`` what the source
        leaves out; None for what is known already. But after a ``gap`` what was read so far is not all that
        lies before.
        """
        self._format = StreamState()
        self.checksums = False
        self._server = (server_uuid, server_uid)
        if gap:
            self.gtids = GtidProgress()
        if gtid_set is not None:
            self.gtids.replace(gtid_set, binlog_state)
        if left_out is not None:
            self.left_out = left_out

    def forget_session(self, state: ReaderState | None) -> None:
        """Take back what was said of a session that never began."""
        self.gtids = _gtids_of(state)
        self.left_out = state.left_out if state else ""
        self.excluded_tables = set(state.excluded_tables if state else ())
        self.identity = state.identity if state else None
        self._identity_file = state.log_file if state else ""

    def begin_epoch(self, left_out: str, now_ms: int) -> None:
        """Continue with another log, which lacks the GTIDs ``left_out``."""
        self.epoch += 1
        self.last_ms = now_ms
        self.left_out = left_out
        self.identity = None
        self._boundary = FIRST_POSITION
        self.transaction = TransactionProgress()

    def state(self, log_file: str, position: int, chunk: int, chunk_crc32: int) -> ReaderState:
        """Return the state at a place of the log."""
        if position <= _LAST_POSITION:
            self._boundary = position
        identity, open_gtid = self.identity, self.transaction.open_gtid
        if identity is not None and self._identity_file != log_file:
            # The server is the same; what is particular to the file has not come yet.
            identity = replace(identity, created=0, previous_gtids=None)
        return ReaderState(
            epoch=self.epoch,
            log_file=log_file,
            position=position,
            chunk=chunk,
            chunk_crc32=chunk_crc32,
            boundary=self._boundary,
            identity=identity,
            gtid_set=self.gtids.text(),
            left_out=self.left_out,
            open_gtid=None if open_gtid is None else gtid_text(open_gtid),
            last_timestamp=self.last_ms,
            excluded_tables=sorted(self.excluded_tables),
            binlog_state=self.gtids.binlog_state,
        )

    def knows(self, log_file: str) -> bool:
        """Return whether the head of a file was seen."""
        return self.identity is not None and self._identity_file == log_file

    @property
    def format(self) -> LogFormat | None:
        """How events are laid out, as the format description at hand says; None where it cannot be read."""
        return self._format.format

    def stamp(self, timestamp: int, now_ms: int) -> int:
        """Return the timestamp of a record: its event's, but never before the last one, nor after now."""
        self.last_ms = min(now_ms, max(self.last_ms, timestamp * 1000))
        return self.last_ms

    def describe(self, data: bytes, log_file: str, *, known: bool) -> None:
        """Learn from a format description whether events have checksums, and unless ``known`` whose it is."""
        try:
            decoded = decode_event(data, self._format, verify=False)
        except BinlogError as error:
            # Its bytes are carried as they are: what they mean is for the decoder to find out.
            _LOG.error("the format description cannot be read", reason=str(error), log_file=log_file)
            self.checksums = False
            return
        description = decoded.event
        self.checksums = self._format.has_checksums
        if known or not isinstance(description, FormatDescriptionEvent):
            return
        self._boundary = FIRST_POSITION
        self._identity_file = log_file
        self.identity = LogIdentity(
            server_id=decoded.header.server_id,
            server_version=description.server_version,
            created=decoded.header.timestamp,
            server_uuid=self._server[0],
            server_uid=self._server[1],
        )

    def previous_gtids(self, data: bytes, log_file: str) -> None:
        """Take up the GTIDs that a file says lie before it."""
        try:
            event = decode_event(data, self._format, verify=False).event
            text = self.gtids.previous(event, self.left_out)
        except BinlogError as error:
            _LOG.error("the GTIDs before this file cannot be read", reason=str(error), log_file=log_file)
            return
        if self.identity is not None and self.identity.previous_gtids is None:
            self.identity = replace(self.identity, previous_gtids=text)

    def pass_over(self, taker: "RawTaker") -> None:
        """Take note of the events that the kernel has taken."""
        self.last_ms = taker.last_ms
        self.transaction = TransactionProgress(taker.open_gtid, taker.mode)
        for gtid in taker.finished:
            self.gtids.add(gtid)

    def follow(self, type_code: int, server_id: int, data: bytes, log_file: str) -> bool:
        """Take note of an event's part in its transaction; tell whether it ends one.

        ``data`` is the event with its checksum, or its first bytes.
        """
        transaction = self.transaction
        end = len(data) - CHECKSUM_LENGTH if self.checksums else len(data)
        try:
            ended = transaction.note(type_code, server_id, data, end)
        except (BinlogError, IndexError, struct.error) as error:
            _LOG.error(
                "an event's part in its transaction cannot be read", reason=str(error), log_file=log_file
            )
            return False
        if transaction.finished is not None:
            self.gtids.add(transaction.finished)
        return ended


def _gtids_of(state: ReaderState | None) -> GtidProgress:
    """Return the GTIDs of a state, to which more may be added."""
    gtids = GtidProgress(state.gtid_set, state.binlog_state) if state else GtidProgress()
    if state and state.identity and state.identity.previous_gtids is not None:
        # A set may be empty and known.
        gtids.known = True
    return gtids
