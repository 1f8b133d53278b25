"""MariaDB's own events.

BINLOG_CHECKPOINT_EVENT (161), GTID_EVENT (162), GTID_LIST_EVENT (163), START_ENCRYPTION_EVENT (164),
PARTIAL_ROW_DATA_EVENT (172). Format: MariaDB's ``sql/log_event.h`` and ``sql/log_event.cc``.
"""

from enum import IntFlag
from typing import Self

from millrace.binlog.declaration import Event, body, event, item, post_header, structure
from millrace.binlog.errors import EncodeError
from millrace.binlog.fields import U8, U32, U64, Bytes12, RestBytes, Text32, truncated
from millrace.binlog.grammar import Role
from millrace.binlog.types import EventType

__all__ = [
    "BinlogCheckpointEvent",
    "GtidListEntry",
    "MariadbGtidEvent",
    "MariadbGtidFlag",
    "MariadbGtidListEvent",
    "MariadbXid",
    "PartialRowDataEvent",
    "StartEncryptionEvent",
]


class MariadbGtidFlag(IntFlag):
    """``flags2`` of a GTID event, ``FL_*``."""

    STANDALONE = 1
    GROUP_COMMIT_ID = 2
    TRANSACTIONAL = 4
    ALLOW_PARALLEL = 8
    WAITED = 16
    DDL = 32
    PREPARED_XA = 64
    COMPLETED_XA = 128


_GROUP_COMMIT_ID = 2
_XA = 64 | 128
_MULTI_ENGINE, _ALTER_ENDS, _THREAD_ID = 1, 4 | 8, 16


@event(EventType.BINLOG_CHECKPOINT_EVENT, role=Role.BETWEEN, post_header_lengths=(4,))
class BinlogCheckpointEvent(Event):
    """Crash recovery needs no log older than this one."""

    binlog_filename: Text32 = body()


@structure
class MariadbXid:
    """Name of an XA transaction as its client gave it."""

    format_id: U32 = item()
    gtrid: RestBytes = item()
    bqual: RestBytes = item()


@event(EventType.MARIADB_GTID_EVENT, role=Role.GROUP_GTID, post_header_lengths=(19,))
class MariadbGtidEvent(Event):
    """Which transaction (or, with STANDALONE, which single event) follows.

    ``flags2`` is a MariadbGtidFlag. ``commit_id`` is there with GROUP_COMMIT_ID, ``xid`` with PREPARED_XA and
    COMPLETED_XA. ``flags_extra`` (10.5 on) is 0 where the wire has none; its bit 1 announces
    ``extra_engines``, bits 4 and 8 ``start_alter_seq_no``, bit 16 ``thread_id``. ``padding`` is what fills
    the event up.
    """

    seq_no: U64 = post_header()
    domain_id: U32 = post_header()
    flags2: U8 = post_header()
    commit_id: U64 | None = body(default=None)
    xid: MariadbXid | None = body(default=None)
    flags_extra: U8 = body(default=0)
    extra_engines: U8 | None = body(default=None)
    start_alter_seq_no: U64 | None = body(default=None)
    thread_id: U32 | None = body(default=None)
    padding: RestBytes = body(default=b"")

    def gtid(self, server_id: int) -> str:
        """Write the identifier as text, ``domain-server-sequence``; the server's id stands in the header."""
        return f"{self.domain_id}-{server_id}-{self.seq_no}"

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        at = offset + 13
        if offset + 19 > end:
            raise truncated("seq_no, domain_id, flags2, …", 19, offset, end)
        seq_no = int.from_bytes(data[offset : offset + 8], "little")
        domain_id = int.from_bytes(data[offset + 8 : offset + 12], "little")
        flags2 = data[offset + 12]
        if not flags2 & (_GROUP_COMMIT_ID | _XA) and not data[at]:
            return cls(seq_no, domain_id, flags2, padding=data[at:end])
        commit_id = xid = engines = alter = thread_id = None
        flags_extra = 0
        if flags2 & _GROUP_COMMIT_ID:
            commit_id = int.from_bytes(data[at : at + 8], "little")
            at += 8
        if flags2 & _XA:
            gtrid, bqual = at + 6, at + 6 + int.from_bytes(data[at + 4 : at + 5], "little")
            after = bqual + int.from_bytes(data[at + 5 : at + 6], "little")
            xid = MariadbXid(
                int.from_bytes(data[at : at + 4], "little"), data[gtrid:bqual], data[bqual:after]
            )
            at = after
        if at < end and data[at]:
            flags_extra = data[at]
            at += 1
            if flags_extra & _MULTI_ENGINE:
                engines = int.from_bytes(data[at : at + 1], "little")
                at += 1
            if flags_extra & _ALTER_ENDS:
                alter = int.from_bytes(data[at : at + 8], "little")
                at += 8
            if flags_extra & _THREAD_ID:
                thread_id = int.from_bytes(data[at : at + 4], "little")
                at += 4
        if at > end:
            raise truncated("what flags2 and flags_extra announce", at - offset, offset, end)
        return cls(
            seq_no, domain_id, flags2, commit_id, xid, flags_extra, engines, alter, thread_id, data[at:end]
        )

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body."""
        flags2, flags_extra = self.flags2, self.flags_extra
        announced = (
            (self.commit_id, flags2 & _GROUP_COMMIT_ID),
            (self.xid, flags2 & _XA),
            (self.extra_engines, flags_extra & _MULTI_ENGINE),
            (self.start_alter_seq_no, flags_extra & _ALTER_ENDS),
            (self.thread_id, flags_extra & _THREAD_ID),
        )
        if any((value is None) == bool(flag) for value, flag in announced):
            raise EncodeError(f"flags2 {flags2}, flags_extra {flags_extra} announce something else")
        parts = [
            self.seq_no.to_bytes(8, "little"),
            self.domain_id.to_bytes(4, "little"),
            flags2.to_bytes(1, "little"),
        ]
        if self.commit_id is not None:
            parts.append(self.commit_id.to_bytes(8, "little"))
        if self.xid is not None:
            gtrid, bqual = self.xid.gtrid, self.xid.bqual
            parts.append(
                self.xid.format_id.to_bytes(4, "little") + bytes((len(gtrid), len(bqual))) + gtrid + bqual
            )
        if flags_extra:
            parts.append(flags_extra.to_bytes(1, "little"))
        if self.extra_engines is not None:
            parts.append(self.extra_engines.to_bytes(1, "little"))
        if self.start_alter_seq_no is not None:
            parts.append(self.start_alter_seq_no.to_bytes(8, "little"))
        if self.thread_id is not None:
            parts.append(self.thread_id.to_bytes(4, "little"))
        parts.append(self.padding)
        return b"".join(parts)


@structure
class GtidListEntry:
    """The last transaction of a domain that came from a server."""

    domain_id: U32 = item()
    server_id: U32 = item()
    seq_no: U64 = item()


@event(EventType.MARIADB_GTID_LIST_EVENT, role=Role.BETWEEN, post_header_lengths=(4,))
class MariadbGtidListEvent(Event):
    """Where each domain stands at the start of this log.

    On the wire ``gl_flags`` (4 bits: 1 UNTIL_REACHED, 2 IGN_GTIDS) and the count (28 bits) share one uint32.
    """

    gl_flags: U8 = post_header()
    entries: tuple[GtidListEntry, ...] = body()
    padding: RestBytes = body(default=b"")

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        at = offset + 4
        counted = int.from_bytes(data[offset:at], "little")
        after = at + 16 * (counted & 0x0FFFFFFF)
        if after > end or at > end:
            raise truncated("count and entries", after - offset, offset, end)
        entries = tuple(
            GtidListEntry(
                int.from_bytes(data[entry : entry + 4], "little"),
                int.from_bytes(data[entry + 4 : entry + 8], "little"),
                int.from_bytes(data[entry + 8 : entry + 16], "little"),
            )
            for entry in range(at, after, 16)
        )
        return cls(counted >> 28, entries, data[after:end])

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body."""
        if self.gl_flags > 15 or len(self.entries) > 0x0FFFFFFF:
            raise EncodeError(f"flags {self.gl_flags}, {len(self.entries)} entries: more than 4 and 28 bits")
        return b"".join(
            (
                (self.gl_flags << 28 | len(self.entries)).to_bytes(4, "little"),
                *(
                    entry.domain_id.to_bytes(4, "little")
                    + entry.server_id.to_bytes(4, "little")
                    + entry.seq_no.to_bytes(8, "little")
                    for entry in self.entries
                ),
                self.padding,
            )
        )


@event(EventType.START_ENCRYPTION_EVENT, role=Role.BETWEEN)
class StartEncryptionEvent(Event):
    """Everything after this event is encrypted: see millrace.binlog.encryption.

    With IGNORABLE_F in its header it is not: the server sends plain events on a connection.
    """

    crypto_scheme: U8 = body()
    key_version: U32 = body()
    nonce: Bytes12 = body()


_ORIG_EVENT_SIZE = 1


@event(EventType.PARTIAL_ROW_DATA_EVENT, role=Role.PART, post_header_lengths=(9,))
class PartialRowDataEvent(Event):
    """A piece of a rows event that was too large for one packet (12.3 on): see millrace.binlog.fragments.

    ``seq_no`` counts from 1 to ``total_fragments``. ``orig_event_size``, in the first fragment, is there
    where bit 1 of ``flags`` is set. MariaDB's protocol documentation is followed; a comment in the server's
    header file has the first two fields in the other order.
    """

    rest_field = "data"

    total_fragments: U32 = post_header()
    seq_no: U32 = post_header()
    flags: U8 = post_header()
    orig_event_size: U64 | None = body()
    data: RestBytes = body()

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        at = offset + 9
        if at > end:
            raise truncated("total_fragments, seq_no, flags", 9, offset, end)
        flags, size = data[at - 1], None
        if flags & _ORIG_EVENT_SIZE:
            if at + 8 > end:
                raise truncated("orig_event_size", 8, at, end)
            size, at = int.from_bytes(data[at : at + 8], "little"), at + 8
        total_fragments = int.from_bytes(data[offset : offset + 4], "little")
        seq_no = int.from_bytes(data[offset + 4 : offset + 8], "little")
        return cls(total_fragments, seq_no, flags, size, data[at:end])

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body."""
        if (self.orig_event_size is None) == bool(self.flags & _ORIG_EVENT_SIZE):
            raise EncodeError(f"flags {self.flags} announce something else")
        size = b"" if self.orig_event_size is None else self.orig_event_size.to_bytes(8, "little")
        counts = self.total_fragments.to_bytes(4, "little") + self.seq_no.to_bytes(4, "little")
        return counts + self.flags.to_bytes(1, "little") + size + self.data
