"""MariaDB's own events.

BINLOG_CHECKPOINT_EVENT (161), GTID_EVENT (162), GTID_LIST_EVENT (163), START_ENCRYPTION_EVENT (164),
PARTIAL_ROW_DATA_EVENT (172). Format: MariaDB's ``sql/log_event.h`` and ``sql/log_event.cc``.
"""

from enum import IntFlag
from typing import ClassVar, Self

from millrace.binlog.declaration import (
    Event,
    When,
    body,
    event,
    item,
    post_header,
    read_structures,
    structure,
    write_structures,
)
from millrace.binlog.errors import EncodeError
from millrace.binlog.events.gtid import TransactionIdEvent
from millrace.binlog.fields import U8, U32, U64, Bytes12, NonZero8, RestBytes, Text32, truncated
from millrace.binlog.grammar import Role
from millrace.binlog.header import EventHeader

__all__ = [
    "BinlogCheckpointEvent",
    "GtidListEntry",
    "MariadbGtidEvent",
    "MariadbGtidExtraFlag",
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


class MariadbGtidExtraFlag(IntFlag):
    """``flags_extra`` of a GTID event, ``FL_*``; three say which part of an ALTER in two phases follows."""

    MULTI_ENGINE = 1
    START_ALTER = 2
    COMMIT_ALTER = 4
    ROLLBACK_ALTER = 8
    THREAD_ID = 16


_XA = MariadbGtidFlag.PREPARED_XA | MariadbGtidFlag.COMPLETED_XA
_ALTER_ENDS = MariadbGtidExtraFlag.COMMIT_ALTER | MariadbGtidExtraFlag.ROLLBACK_ALTER


@event(161, role=Role.BETWEEN, post_header_lengths=(4,))
class BinlogCheckpointEvent(Event):
    """Crash recovery needs no log older than this one."""

    binlog_filename: Text32 = body()


@structure
class MariadbXid:
    """Name of an XA transaction as its client gave it."""

    format_id: U32 = item()
    gtrid_length: ClassVar[U8] = item(length_of="gtrid")
    bqual_length: ClassVar[U8] = item(length_of="bqual")
    gtrid: RestBytes = item()
    bqual: RestBytes = item()


@event(162, role=Role.GROUP_GTID, post_header_lengths=(19,))
class MariadbGtidEvent(TransactionIdEvent):
    """Which transaction (or, with STANDALONE, which single event) follows.

    ``flags2`` is a MariadbGtidFlag. ``commit_id`` is there with GROUP_COMMIT_ID, ``xid`` with PREPARED_XA and
    COMPLETED_XA. ``flags_extra`` (10.5 on), a MariadbGtidExtraFlag, is 0 where the wire has none;
    MULTI_ENGINE announces ``extra_engines``, COMMIT_ALTER and ROLLBACK_ALTER ``start_alter_seq_no``,
    THREAD_ID ``thread_id``.
    """

    seq_no: U64 = post_header()
    domain_id: U32 = post_header()
    flags2: U8 = post_header()
    commit_id: U64 | None = body(default=None, when=When("flags2", MariadbGtidFlag.GROUP_COMMIT_ID))
    xid: MariadbXid | None = body(default=None, when=When("flags2", _XA))
    flags_extra: NonZero8 = body(default=0)
    extra_engines: U8 | None = body(default=None, when=When("flags_extra", MariadbGtidExtraFlag.MULTI_ENGINE))
    start_alter_seq_no: U64 | None = body(default=None, when=When("flags_extra", _ALTER_ENDS))
    thread_id: U32 | None = body(default=None, when=When("flags_extra", MariadbGtidExtraFlag.THREAD_ID))
    padding: RestBytes = body(default=b"")

    def gtid(self, server_id: int) -> str:
        """Write the identifier as text, ``domain-server-sequence``; the server's id stands in the header."""
        return f"{self.domain_id}-{server_id}-{self.seq_no}"

    def transaction_id(self, header: EventHeader) -> str:
        """Return the identifier as text."""
        return self.gtid(header.server_id)


@structure
class GtidListEntry:
    """The last transaction of a domain that came from a server."""

    domain_id: U32 = item()
    server_id: U32 = item()
    seq_no: U64 = item()


@event(163, role=Role.BETWEEN, post_header_lengths=(4,))
class MariadbGtidListEvent(Event):
    """Where each domain stands at the start of this log.

    ``gl_flags`` (4 bits: 1 UNTIL_REACHED, 2 IGN_GTIDS) and the count (28 bits) share one uint32. Codec by
    hand: no other event has such a field.
    """

    gl_flags: U8 = post_header()
    entries: tuple[GtidListEntry, ...] = body()
    padding: RestBytes = body(default=b"")

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        at = offset + 4
        if at > end:
            raise truncated("gl_flags and count", 4, offset, end)
        counted = int.from_bytes(data[offset:at], "little")
        entries, after = read_structures(GtidListEntry, counted & 0x0FFFFFFF, data, at, end)
        return cls(counted >> 28, entries, data[after:end])

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body."""
        if self.gl_flags > 15 or len(self.entries) > 0x0FFFFFFF:
            raise EncodeError(f"flags {self.gl_flags}, {len(self.entries)} entries: more than 4 and 28 bits")
        counted = (self.gl_flags << 28 | len(self.entries)).to_bytes(4, "little")
        return counted + write_structures(self.entries) + self.padding


@event(164, role=Role.BETWEEN)
class StartEncryptionEvent(Event):
    """Everything after this event is encrypted: see millrace.binlog.encryption.

    With IGNORABLE_F in its header it is not: the server sends plain events on a connection.
    """

    crypto_scheme: U8 = body()
    key_version: U32 = body()
    nonce: Bytes12 = body()


@event(172, role=Role.PART, post_header_lengths=(9,))
class PartialRowDataEvent(Event):
    """A piece of a rows event that was too large for one packet (12.3 on): see millrace.binlog.fragments.

    ``seq_no`` counts from 1 to ``total_fragments``. A comment in the server's header file has these two
    fields in the other order than MariaDB's protocol documentation.
    """

    rest_field = "data"

    total_fragments: U32 = post_header()
    seq_no: U32 = post_header()
    flags: U8 = post_header()
    orig_event_size: U64 | None = body(when=When("flags", 1))
    data: RestBytes = body()
